"""Parses and compares schemas off the event loop: one job at a time, so that a hostile schema takes one core at most.

What waits is bounded by the connections. Large schemas are examined in a process of their own (`jobs.py`).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from penstock.registry.changes import Comparison, SchemaSource
from penstock.registry.errors import invalid_schema
from penstock.registry.formats import Incompatibility
from penstock.registry.jobs import Job, Result, carried_out


class SchemaParser:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schema-parser")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def text(self, source: SchemaSource, *, normalize: bool, is_new: bool) -> str:
        """The schema as it is stored. New ones are checked for what older ones may have. RegistryError."""
        return (await self._done(Job("text", (source,), normalize=normalize, is_new=is_new))).text

    async def formatted(self, source: SchemaSource, form: str) -> str:
        return (await self._done(Job("format", (source,), form=form))).text

    async def compare(self, wanted: Comparison) -> list[Incompatibility]:
        """Why a schema is not compatible with earlier ones; empty if it is. RegistryError."""
        if not wanted.earlier:
            return []
        job = Job("compare", (wanted.new, *wanted.earlier), level=wanted.level)
        return list((await self._done(job)).differences)

    async def _done(self, job: Job) -> Result:
        result = await asyncio.get_running_loop().run_in_executor(self._thread, carried_out, job)
        if result.invalid is not None:
            raise invalid_schema(result.invalid)
        return result
