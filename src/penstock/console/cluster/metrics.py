"""Rates and latencies from `/metrics` of Penstock brokers.

A few families are asked for, not all: with many partitions the whole text has many megabytes. Counters are compared
with those of the scrape before; a quantile is that of the requests between two scrapes, not since the broker's start.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode

MAX_BYTES: Final = 8 * 1024 * 1024
TIMEOUT_S: Final = 2.0
_IN: Final = "kafka_server_bytes_in_total"
_OUT: Final = "kafka_server_bytes_out_total"
_DURATION: Final = "kafka_network_request_duration_seconds"
_NAMES: Final = (_IN, _OUT, _DURATION)
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Scrape(NamedTuple):
    """Counters of one broker, at a moment of the monotonic clock."""

    at_s: float
    bytes_in: float
    bytes_out: float
    latencies: Mapping[str, Mapping[float, float]]
    """API to the cumulative counts of its histogram, by upper bound in seconds."""


class Rates(NamedTuple):
    """What happened between two scrapes of all brokers. None: nothing did, or no broker was asked."""

    bytes_in: float | None
    bytes_out: float | None
    produce_p99_s: float | None
    fetch_p99_s: float | None


def parse(text: str, at_s: float) -> Scrape:
    """The counters in a text of the exposition format; what is malformed is left out."""
    bytes_in = bytes_out = 0.0
    latencies: dict[str, dict[float, float]] = {}
    for line in text.splitlines():
        if not line.startswith(_NAMES):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        name, labels = match[1], dict(_LABEL.findall(match[2] or ""))
        try:
            value = float(match[3])
            if name == f"{_DURATION}_bucket":
                latencies.setdefault(labels.get("api", ""), {})[float(labels.get("le", "nan"))] = value
        except ValueError:
            continue
        if name == _IN:
            bytes_in += value
        elif name == _OUT:
            bytes_out += value
    return Scrape(at_s, bytes_in, bytes_out, latencies)


def rates(before: Mapping[str, Scrape], after: Mapping[str, Scrape]) -> Rates:
    """The rates between two scrapes, of the brokers that are in both and did not restart."""
    pairs = [
        (before[url], now)
        for url, now in after.items()
        if url in before and now.at_s > before[url].at_s and now.bytes_in >= before[url].bytes_in
    ]
    if not pairs:
        return Rates(None, None, None, None)
    return Rates(
        sum((now.bytes_in - old.bytes_in) / (now.at_s - old.at_s) for old, now in pairs),
        sum(max(0.0, now.bytes_out - old.bytes_out) / (now.at_s - old.at_s) for old, now in pairs),
        quantile(0.99, _between(pairs, "Produce")),
        quantile(0.99, _between(pairs, "Fetch")),
    )


def _between(pairs: Iterable[tuple[Scrape, Scrape]], api: str) -> dict[float, float]:
    counts: dict[float, float] = {}
    for old, now in pairs:
        earlier = old.latencies.get(api, {})
        for bound, value in now.latencies.get(api, {}).items():
            counts[bound] = counts.get(bound, 0.0) + value - earlier.get(bound, 0.0)
    return counts


def quantile(share: float, cumulative: Mapping[float, float]) -> float | None:
    """By interpolation inside the bucket, as Prometheus does; None without requests."""
    bounds = sorted(cumulative)
    total = cumulative[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank = share * total
    low, below = 0.0, 0.0
    for bound in bounds:
        count = cumulative[bound]
        if count >= rank:
            if bound == float("inf"):
                return low
            inside = count - below
            return low + (bound - low) * ((rank - below) / inside if inside > 0 else 1.0)
        low, below = bound, count
    return low


# --------------------------------------------------------------------------------------------------- asking


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A broker does not redirect; something else on its port might, to anywhere."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def read(url: str, token: str | None) -> str:
    """The text of a page of a broker; OSError or ValueError if there is none."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            data: bytes = answer.read(MAX_BYTES)
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} answers {error.code}") from None
    return data.decode("utf-8", "replace")


def health_of(url: str, token: str | None) -> dict[str, object] | None:
    """What `/health` says; None if that is not a Penstock broker."""
    try:
        found = json.loads(read(f"{url}/health", token))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "status" in found else None


def scrape(url: str, token: str | None, at_s: float) -> Scrape | None:
    """The counters of a broker; None if it could not be asked."""
    try:
        return parse(read(f"{url}/metrics?{urlencode({'name': ','.join(_NAMES)})}", token), at_s)
    except (OSError, ValueError):
        return None
