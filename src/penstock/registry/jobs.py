"""Work on schemas: their text, their differences. In this process, or, for large ones, in one of its own.

    python -m penstock.registry.jobs < job.json > result.json

A large schema becomes millions of objects. In the broker's process they would hold up every thread whenever Python
collects garbage, for half a second; in a process of their own they hold up nothing, and can be ended.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Final, Literal

import msgspec

from penstock.registry.changes import SchemaSource
from penstock.registry.formats import (
    SCHEMA_TYPES,
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    check_compatibility,
    format_schema,
    parse_schema,
)
from penstock.registry.formats.schema import Compatibility

_LARGE: Final = 64 * 1024
_TIMEOUT_S: Final = 30.0
_PARSED_MAX: Final = 64


class Job(msgspec.Struct, frozen=True):
    """`text`: as it is stored; `format`: in a form; `compare`: the first source with the others, oldest first."""

    kind: Literal["text", "format", "compare"]
    sources: tuple[SchemaSource, ...]
    normalize: bool = False
    is_new: bool = False
    form: str = ""
    level: Compatibility = "NONE"

    @property
    def is_large(self) -> bool:
        sizes = (len(each.schema) + sum(len(other.schema) for other in each.references) for each in self.sources)
        return sum(sizes) > _LARGE


class Result(msgspec.Struct, frozen=True):
    text: str = ""
    differences: tuple[Incompatibility, ...] = ()
    invalid: str | None = None


def carried_out(job: Job) -> Result:
    """The result of a job, wherever it belongs."""
    return _in_a_process(job) if job.is_large else result_of(job)


def result_of(job: Job) -> Result:
    """The result of a job, here."""
    try:
        parsed = [_parsed(each) for each in job.sources]
        if job.is_new:
            parsed[0].check_unfinished()
        if job.kind == "compare":
            return Result(differences=tuple(check_compatibility(parsed[0], parsed[1:], job.level)))
        if job.kind == "format":
            return Result(text=format_schema(parsed[0], job.form))
        return Result(text=parsed[0].normalized if job.normalize else parsed[0].canonical)
    except InvalidSchema as error:
        return Result(invalid=str(error))
    except RecursionError:
        return Result(invalid="It is nested too deeply.")


@functools.lru_cache(_PARSED_MAX)
def _parsed(source: SchemaSource) -> ParsedSchema:
    for known in SCHEMA_TYPES:
        if source.schema_type == known:
            return parse_schema(known, source.schema, source.references)
    raise InvalidSchema(f"Schema type {source.schema_type[:80]} is not known; use one of {', '.join(SCHEMA_TYPES)}.")


def _in_a_process(job: Job) -> Result:
    # -P: a module in the working directory must not take the place of another.
    command = [sys.executable, "-P", "-m", "penstock.registry.jobs"]
    try:
        done = subprocess.run(
            command, input=msgspec.json.encode(job), capture_output=True, timeout=_TIMEOUT_S, check=True
        )
        return msgspec.json.decode(done.stdout, type=Result)
    except subprocess.TimeoutExpired:
        return Result(invalid=f"It takes longer than {_TIMEOUT_S:g} s to check. Split it, and use references.")
    except subprocess.CalledProcessError as error:
        return Result(invalid=f"It cannot be checked; the process ended with {error.returncode}.")


def main() -> None:
    """One job from standard input, its result to standard output."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(result_of(job)))


if __name__ == "__main__":
    main()
