"""The reference is what the docstrings say, and the names on the page for newcomers from other clients exist."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import penstock
from penstock.client.consumer.settings import ConsumerOptions
from penstock.client.producer.settings import ProducerOptions

_ROOT = Path(__file__).resolve().parents[2]
_CLASSES = (
    penstock.Producer, penstock.AsyncProducer, penstock.Delivery, penstock.Consumer, penstock.AsyncConsumer,
    penstock.Admin, penstock.AsyncAdmin, penstock.ConfigResource,
)  # fmt: skip


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_reference", _ROOT / "tools" / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_docstrings_say() -> None:
    written = (_ROOT / "docs" / "api.md").read_text()
    assert written == _tool().page(), "docs/api.md is old: run `python tools/api_reference.py`"


def _our_cells() -> list[str]:
    """The last cells of the tables: what Penstock calls it."""
    lines = (_ROOT / "docs" / "coming-from.md").read_text().splitlines()
    return [line.rstrip("|").split("|")[-1] for line in lines if line.startswith("|") and not line.startswith("|-")]


def test_what_the_page_for_newcomers_calls_ours_is_ours() -> None:
    words = [word for cell in _our_cells() for word in re.findall(r"`([^`]+)`", cell)]
    assert len(words) > 60
    called = {name for word in words for name in re.findall(r"(?:^|\.|await )([a-z_]+)\(", word)}
    assert len(called) > 30
    methods = {name for kind in _CLASSES for name in dir(kind)}
    assert called - methods == set()
    signatures = [inspect.signature(kind) for kind in _CLASSES if kind is not penstock.Delivery]
    signatures += [inspect.signature(getattr(kind, name)) for kind in _CLASSES for name in called & set(dir(kind))]
    arguments = {name for signature in signatures for name in signature.parameters}
    arguments |= {*ConsumerOptions.__annotations__, *ProducerOptions.__annotations__}
    named = {name for word in words for name in re.findall(r"\b([a-z_]+)=", word)}
    assert named - arguments == set()
