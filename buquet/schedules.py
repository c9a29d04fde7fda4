"""Schedules against a store: load, decide, conditional put.

Each step leaves the bucket sound wherever it is interrupted. An occurrence is submitted once by
any number of schedulers, because its task's id follows from it; what is noted of the last run
only saves them work.

Errors: `OutcomeUnknown` where a write stays undecided, `Unavailable` where the store is away.

Example::

    loaded = await schedules.load("daily-report")
    if loaded is not None:
        await schedules.fire(loaded.definition, read_at=loaded.read_at, late_ms=120_000)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from buquet._core.rfc3339 import format_ms
from buquet.errors import InvalidInput, NewerLayout, PoisonRecord, StoreError
from buquet.ledger import Ledger
from buquet.protocol.schedule import (
    Definition,
    Run,
    check,
    check_schedule_id,
    decode_definition,
    decode_run,
    due,
    encode,
    fired,
    occurrence,
    occurrence_id,
    run_of,
    skipped,
    starting,
    triggered,
)
from buquet.protocol.task import TERMINAL
from buquet.store.interface import Entry, FenceExpired, IfAbsent, IfMatches

log = logging.getLogger("buquet.schedules")

READS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class LoadedSchedule:
    """A schedule as it was read. `read_at` is `clock.monotonic()` before the read (for the fence)."""

    definition: Definition
    etag: str
    read_at: float


@dataclass(frozen=True, slots=True)
class _LoadedRun:
    run: Run | None
    etag: str | None
    read_at: float


class Schedules:
    """The schedules of one queue.

    Parameters
    ----------
    ledger:
        The protocol's steps on tasks.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.keys = ledger.keys
        self.store = ledger.store
        self._ledger = ledger
        self._clock = ledger.clock

    # --- reading ---------------------------------------------------------------------------

    async def load(self, schedule_id: str) -> LoadedSchedule | None:
        """Read a schedule; None if there is none of this id.

        Raises
        ------
        InvalidInput, InvalidInputType
            No schedule can have this id.
        PoisonRecord, NewerLayout
            It cannot be read.
        """
        check_schedule_id(schedule_id)
        return await self.load_key(self.keys.schedule(schedule_id))

    async def load_key(self, key: str) -> LoadedSchedule | None:
        """Read the schedule of a listed key; None if it is gone. Errors as `load`."""
        read_at = self._clock.monotonic()
        blob = await self.store.get(key)
        if blob is None:
            return None
        try:
            definition = decode_definition(blob.body)
        except (PoisonRecord, NewerLayout) as error:
            raise type(error)(f"{key}: {error}") from error
        if self.keys.schedule(definition.id) != key:
            raise PoisonRecord(f"{key}: the schedule inside is {definition.id!r}")
        return LoadedSchedule(definition, blob.etag, read_at)

    async def require(self, schedule_id: str) -> LoadedSchedule:
        """Read a schedule that must be there.

        Raises
        ------
        LookupError
            There is no such schedule.
        """
        loaded = await self.load(schedule_id)
        if loaded is None:
            raise LookupError(f"there is no schedule {schedule_id!r}")
        return loaded

    async def entries(self) -> list[Entry]:
        """List the objects of all schedules: one LIST for each thousand."""
        entries: list[Entry] = []
        while True:
            page = await self.store.list(self.keys.schedules, after=entries[-1].key if entries else "")
            entries.extend(page.entries)
            if not page.truncated:
                return entries

    async def load_all(self) -> list[LoadedSchedule]:
        """Read all schedules, by id; those that cannot be read are left out."""
        found: list[LoadedSchedule] = []
        entries = await self.entries()
        for start in range(0, len(entries), READS_AT_ONCE):
            batch = entries[start : start + READS_AT_ONCE]
            loaded = await asyncio.gather(*(self._load_readable(entry.key) for entry in batch))
            found.extend(one for one in loaded if one is not None)
        return sorted(found, key=lambda one: one.definition.id)

    async def _load_readable(self, key: str) -> LoadedSchedule | None:
        try:
            return await self.load_key(key)
        except (PoisonRecord, NewerLayout) as error:
            log.warning("left out: %s", error)
            return None

    async def run(self, definition: Definition) -> Run | None:
        """Read how far a schedule has come; None if it has not run yet."""
        return (await self._load_run(definition)).run

    async def _load_run(self, definition: Definition) -> _LoadedRun:
        key = self.keys.schedule_run(definition.id)
        read_at = self._clock.monotonic()
        blob = await self.store.get(key)
        if blob is None:
            return _LoadedRun(None, None, read_at)
        try:
            run = run_of(definition, decode_run(blob.body))
        except PoisonRecord as error:
            log.warning("%s is written anew: %s", key, error)
            run = None
        return _LoadedRun(run, blob.etag, read_at)

    # --- changing --------------------------------------------------------------------------

    async def create(self, definition: Definition, *, replace: bool) -> Definition:
        """Write a new schedule; with `replace` also over another of its id, whose `created_at` it keeps.

        Returns
        -------
        Definition
            The schedule with its times: nothing fires for the past.

        Raises
        ------
        InvalidInput, InvalidInputType
            A field makes no sense, or there is a schedule of this id already.
        NewerLayout
            The one to replace was written by a newer version.
        """
        check(definition)
        now = self.store.time.now()
        definition = msgspec.structs.replace(
            definition,
            nonce=self._ledger.mint_nonce(),
            created_at=now,
            updated_at=now,
            starts_at=self._start(),
        )
        key = self.keys.schedule(definition.id)
        condition: IfAbsent | IfMatches = IfAbsent(self._clock.monotonic())
        while await self.store.put(key, encode(definition), condition) is None:
            if not replace:
                raise InvalidInput(f"there is a schedule {definition.id!r} already; replace=True replaces it")
            read_at = self._clock.monotonic()
            blob = await self.store.get(key)
            if blob is None:
                condition = IfAbsent(read_at)
                continue
            condition = IfMatches(blob.etag)
            try:
                before = decode_definition(blob.body)
            except PoisonRecord as error:
                log.warning("%s is written anew: %s", key, error)
            else:
                definition = msgspec.structs.replace(
                    definition,
                    rev=before.rev + 1,
                    created_at=before.created_at,
                    updated_at=max(now, before.updated_at),
                )
        return definition

    async def set_enabled(self, schedule_id: str, *, enabled: bool) -> None:
        """Enable or disable a schedule; nothing that was due while it was disabled fires.

        Raises
        ------
        LookupError
            There is no such schedule.
        """
        while True:
            loaded = await self.require(schedule_id)
            before = loaded.definition
            if before.enabled == enabled:
                return
            after = msgspec.structs.replace(
                before,
                rev=before.rev + 1,
                nonce=self._ledger.mint_nonce(),
                enabled=enabled,
                updated_at=max(self.store.time.now(), before.updated_at),
                starts_at=self._start() if enabled else before.starts_at,
            )
            key = self.keys.schedule(schedule_id)
            if await self.store.put(key, encode(after), IfMatches(loaded.etag)) is not None:
                return

    def _start(self) -> str:
        """The present at the latest that it may be, so that nothing fires for the past."""
        return format_ms(self.store.time.upper_ms())

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule and what is known of its runs; a missing one is no error."""
        check_schedule_id(schedule_id)
        for key in (self.keys.schedule(schedule_id), self.keys.schedule_run(schedule_id)):
            await self.store.delete(key, read_at=self._clock.monotonic())

    # --- firing ----------------------------------------------------------------------------

    async def fire(self, definition: Definition, *, read_at: float, late_ms: int) -> int:
        """Submit what is due of a schedule, and then note the last run.

        Parameters
        ----------
        definition, read_at:
            The schedule, and `clock.monotonic()` before it was read: the fence of what is submitted.
        late_ms:
            An occurrence that is older than this was missed.

        Returns
        -------
        int
            The time up to which nothing is due any more, Unix ms.

        Raises
        ------
        StoreError
            The store did not answer; what is not noted yet is due again.
        FenceExpired
            The schedule was read too long ago: read it again.
        NewerLayout
            A newer version has noted the last run.
        """
        while True:
            loaded = await self._load_run(definition)
            now_ms = self.store.time.upper_ms()
            occurrences = due(definition, loaded.run, now_ms=now_ms, late_ms=late_ms)
            if not occurrences:
                return now_ms
            if definition.overlap == "allow":
                break
            if await self._may_start(definition, loaded, occurrences[-1]):
                loaded = await self._load_run(definition)
                break
        until_ms = await self._submit(definition, occurrences, read_at=read_at)
        at_ms = self.store.time.now_ms()
        await self._note(definition, loaded, lambda run: fired(definition, run, until_ms, at_ms=at_ms))
        return until_ms

    async def note_trigger(self, definition: Definition, task_id: str) -> None:
        """Note a task that was submitted out of turn as the last one; if that fails, only log it."""
        at_ms = self.store.time.now_ms()
        try:
            loaded = await self._load_run(definition)
            await self._note(definition, loaded, lambda run: triggered(definition, run, task_id, at_ms=at_ms))
        except (StoreError, NewerLayout) as error:  # the task stands, and the caller must learn its id
            log.warning("schedule %r: task %s is not noted as its last: %s", definition.id, task_id, error)

    async def _submit(self, definition: Definition, occurrences: list[int], *, read_at: float) -> int:
        """Submit occurrences in order; return the last that the fence let through, Unix ms."""
        for place, occurrence_ms in enumerate(occurrences):
            record = occurrence(
                definition,
                occurrence_ms,
                now_ms=self.store.time.now_ms(),
                nonce=self._ledger.mint_nonce(),
            )
            try:
                await self._ledger.submit(record, minted_at=read_at)
            except FenceExpired:
                if place == 0:
                    raise
                return occurrences[place - 1]
            log.info("schedule %r: task %s for %s", definition.id, record.id, record.first_due)
        return occurrences[-1]

    async def _may_start(self, definition: Definition, loaded: _LoadedRun, occurrence_ms: int) -> bool:
        """Whether no other task goes on. If so it is announced, if not the occurrence is left out.

        False also if somebody else has noted something meanwhile: decide anew.
        """
        task_id = occurrence_id(definition.id, occurrence_ms)
        busy_task_id = await self._busy_task(loaded.run, besides=task_id)
        if busy_task_id is None:
            return await self._write_run(definition, loaded, starting(definition, loaded.run, task_id))
        log.info("schedule %r: left out, task %s has not ended", definition.id, busy_task_id)
        after = skipped(definition, loaded.run, occurrence_ms, busy_task_id=busy_task_id)
        if after is not None:
            await self._write_run(definition, loaded, after)
        return False

    async def _busy_task(self, run: Run | None, *, besides: str) -> str | None:
        """Return the task of the last run, or of one that may have been submitted, that has not ended."""
        task_ids = () if run is None else (run.last_task_id, run.starting_task_id)
        for task_id in task_ids:
            if task_id is None or task_id == besides:
                continue
            try:
                record = await self._ledger.find(task_id)
            except (PoisonRecord, NewerLayout) as error:
                log.debug("taken as ended: %s", error)
                continue
            if record is not None and record.status not in TERMINAL:
                return task_id
        return None

    async def _note(
        self, definition: Definition, loaded: _LoadedRun, change: Callable[[Run | None], Run | None]
    ) -> None:
        """Write what a change makes of a run, over whatever others have noted meanwhile."""
        while True:
            after = change(loaded.run)
            if after is None or await self._write_run(definition, loaded, after):
                return
            loaded = await self._load_run(definition)

    async def _write_run(self, definition: Definition, loaded: _LoadedRun, after: Run) -> bool:
        after = msgspec.structs.replace(after, rev=after.rev + 1, nonce=self._ledger.mint_nonce())
        condition = IfAbsent(loaded.read_at) if loaded.etag is None else IfMatches(loaded.etag)
        try:
            key = self.keys.schedule_run(definition.id)
            return await self.store.put(key, encode(after), condition) is not None
        except FenceExpired:
            return False
