"""The audit: walks the bucket and reports every breach of the protocol's invariant.

It runs beside live workers: what looks wrong is read again before it is reported. On request
it mends what it found by the protocol's own steps, which are safe at any time.

Example::

    report = await verify(ledger, repair=False)
    for finding in report.findings:
        print(finding.kind, finding.key, finding.detail)
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from buquet._core.record import Record
from buquet._core.rfc3339 import parse_ms
from buquet.errors import NewerLayout, PoisonRecord
from buquet.ledger import Garbage, Ledger, Loaded
from buquet.listing import entries
from buquet.protocol.keys import Marker
from buquet.protocol.session import TOMBSTONE, Session
from buquet.protocol.session import decode as decode_session
from buquet.protocol.task import TaskStatus
from buquet.store.interface import Always, Entry, IfAbsent


class Fault(enum.StrEnum):
    """What may be wrong with an object."""

    LOST_MARKER = "lost marker"
    """A pending task that no worker can find."""
    ORPHAN = "orphan"
    """A running task that neither a marker nor a journal leads to."""
    GARBAGE = "garbage marker"
    """A marker that stands for nothing any more; workers and monitors delete it when they meet it."""
    UNREADABLE = "unreadable"
    """An object that cannot be decoded, or whose key nobody of this queue writes."""
    UNLISTED = "unlisted dead letter"
    """A failed task that is not among the dead letters."""
    OUTLIVED = "outlived dead letter"
    """An entry among the dead letters whose task has not failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and whether it was mended."""

    fault: Fault
    key: str
    detail: str
    repaired: bool = False


@dataclass(slots=True)
class Report:
    """What an audit saw.

    `by_status` counts tasks; a task that was never claimed is pending.
    """

    by_status: dict[str, int] = field(default_factory=dict)
    markers: int = 0
    live_sessions: int = 0
    tombstones: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether no task is at risk: garbage costs a request and outlived entries a look, no more."""
        harmless = {Fault.GARBAGE, Fault.OUTLIVED}
        return all(finding.repaired or finding.fault in harmless for finding in self.findings)


async def verify(ledger: Ledger, *, repair: bool = False) -> Report:
    """Walk the whole bucket, one shard at a time.

    Costs a GET a task and a LIST a thousand objects. Memory grows with the largest shard.

    Parameters
    ----------
    ledger:
        The protocol's steps on the queue.
    repair:
        Mend what can be mended.

    Raises
    ------
    StoreError
        The store did not answer.
    """
    audit = _Audit(ledger, repair=repair)
    await audit.read_sessions()
    for shard in ledger.keys.shards():
        await audit.walk(shard)
    return audit.report


class _Audit:
    """One audit under way."""

    def __init__(self, ledger: Ledger, *, repair: bool) -> None:
        self.report = Report()
        self._ledger = ledger
        self._store = ledger.store
        self._keys = ledger.keys
        self._repair = repair

    # --- sessions --------------------------------------------------------------------------

    async def read_sessions(self) -> None:
        async for entry in self._entries(self._keys.sessions):
            session = await self._session(entry.key)
            if session is None:
                continue
            if session.state == TOMBSTONE:
                self.report.tombstones += 1
            else:
                self.report.live_sessions += 1

    async def _session(self, key: str) -> Session | None:
        blob = await self._store.get(key)
        if blob is None:
            return None
        try:
            return decode_session(blob.body)
        except (PoisonRecord, NewerLayout) as error:
            self._note(Fault.UNREADABLE, key, str(error))
            return None

    async def _is_journaled(self, lease_id: str | None) -> bool:
        """Whether any session lists this lease, read after the ledger that names it."""
        async for entry in self._entries(self._keys.sessions):
            session = await self._session(entry.key)
            if session is not None and any(item.lease_id == lease_id for item in session.journal):
                return True
        return False

    # --- a shard ---------------------------------------------------------------------------

    async def walk(self, shard: str) -> None:
        """Look at all markers, ledgers and dead letters of a shard."""
        markers = {entry.key: entry async for entry in self._entries(f"{self._keys.ready}{shard}/")}
        listed = {entry.key async for entry in self._entries(f"{self._keys.all_failed}{shard}/")}
        claimed: set[str] = set()
        async for entry in self._entries(f"{self._keys.tasks}{shard}/"):
            try:
                task_id = self._keys.parse_ledger(entry.key)
                loaded = await self._ledger.load(task_id)
            except (PoisonRecord, NewerLayout) as error:
                self._note(Fault.UNREADABLE, entry.key, str(error))
                continue
            claimed.add(task_id)
            if loaded is not None:
                await self._look_at(loaded, markers, listed)
        for entry in markers.values():
            await self._look_at_marker(entry, claimed)
        await self._look_at_dead_letters(listed)

    async def _look_at(self, loaded: Loaded, markers: dict[str, Entry], listed: set[str]) -> None:
        record = loaded.record
        self._count(record.status)
        if record.status == TaskStatus.Pending:
            await self._need(self._keys.marker_of(record), record, markers, Fault.LOST_MARKER)
        elif record.status == TaskStatus.Running:
            due_ms = parse_ms(record.available_at)
            shard = self._keys.shard(record.id)
            claimed_by = Marker(shard, record.priority, due_ms, record.id, record.attempt - 1)
            await self._need(claimed_by, record, markers, Fault.ORPHAN)
        elif record.status == TaskStatus.Failed:
            await self._need_dead_letter(record, listed)

    async def _need_dead_letter(self, record: Record, listed: set[str]) -> None:
        key = self._keys.failed(record.id)
        if key in listed or await self._store.get(key) is not None or not await self._still(record):
            return
        if self._repair:
            await self._store.put(key, b"", Always())
        self._note(Fault.UNLISTED, key, f"failed: {record.last_error}", repaired=self._repair)

    async def _need(self, marker: Marker, record: Record, markers: dict[str, Entry], fault: Fault) -> None:
        """A task needs this marker, or else a journal that lists its lease."""
        key = self._keys.marker_key(marker)
        if key in markers or await self._store.get(key) is not None:
            return
        if fault is Fault.ORPHAN and await self._is_journaled(record.lease_id):
            return
        if not await self._still(record):
            return
        if self._repair:
            await self._store.put(key, b"", IfAbsent(None))
        self._note(
            fault, key, f"task {record.id} is {record.status}, rev {record.rev}", repaired=self._repair
        )

    async def _still(self, record: Record) -> bool:
        """Whether the task is as it was read: else it has gone on, and nothing is wrong."""
        loaded = await self._ledger.load(record.id)
        return loaded is not None and loaded.record.rev == record.rev

    async def _look_at_marker(self, entry: Entry, claimed: set[str]) -> None:
        self.report.markers += 1
        try:
            marker = self._keys.parse_marker(entry.key)
            if marker.task_id not in claimed and marker.attempt == 0 and entry.size:
                if await self._ledger.find(marker.task_id) is not None:
                    self._count(TaskStatus.Pending)
                return
            judged = await self._ledger.inspect(marker, has_body=entry.size > 0, act=False)
        except (PoisonRecord, NewerLayout) as error:
            self._note(Fault.UNREADABLE, entry.key, str(error))
            return
        if isinstance(judged, Garbage):
            if self._repair:
                await self._store.delete(entry.key, read_at=judged.read_at)
            self._note(Fault.GARBAGE, entry.key, "its task has gone on", repaired=self._repair)

    async def _look_at_dead_letters(self, listed: set[str]) -> None:
        for key in sorted(listed):
            try:
                loaded = await self._ledger.load(self._keys.parse_failed(key))
            except (PoisonRecord, NewerLayout) as error:
                self._note(Fault.UNREADABLE, key, str(error))
                continue
            if loaded is not None and loaded.record.status in {TaskStatus.Completed, TaskStatus.Archived}:
                if self._repair:
                    await self._store.delete(key, read_at=loaded.read_at)
                self._note(Fault.OUTLIVED, key, f"its task is {loaded.record.status}", repaired=self._repair)

    # --- bits ------------------------------------------------------------------------------

    def _count(self, status: str) -> None:
        self.report.by_status[status] = self.report.by_status.get(status, 0) + 1

    def _note(self, fault: Fault, key: str, detail: str, *, repaired: bool = False) -> None:
        self.report.findings.append(Finding(fault, key, detail, repaired))

    def _entries(self, prefix: str) -> AsyncIterator[Entry]:
        return entries(self._store, prefix)
