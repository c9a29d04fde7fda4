"""The audit: walks the bucket and reports every breach of the protocol's invariant.

It runs beside live workers: what looks wrong is read again before it is reported. On request
it mends what it found by the protocol's own steps, which are safe at any time.

Example::

    report = await verify(ledger, repair=False)
    for finding in report.findings:
        print(finding.fault, finding.key, finding.detail)
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from buquet._core import ident
from buquet._core.record import Record
from buquet._core.rfc3339 import parse_ms
from buquet.deadletters import UNWRITTEN_S
from buquet.errors import ForeignKey, NewerLayout, PoisonRecord
from buquet.ledger import Ledger
from buquet.listing import entries
from buquet.protocol.keys import Marker
from buquet.protocol.session import TOMBSTONE, Session
from buquet.protocol.session import decode as decode_session
from buquet.protocol.task import TERMINAL, TaskStatus
from buquet.protocol.transitions import Deletable, judge
from buquet.store.interface import Always, Entry, IfAbsent

T = TypeVar("T")

GARBAGE_AFTER_MS = 60_000
"""Workers delete a marker within seconds after it has served; older ones were left over by a crash."""


class Fault(enum.StrEnum):
    """What may be wrong with an object."""

    LOST_MARKER = "lost marker"
    """A pending task that no worker can find."""
    ORPHAN = "orphan"
    """A running task that neither a marker nor a journal leads to."""
    GARBAGE = "garbage marker"
    """A marker that stands for nothing any more; workers and monitors delete it when they meet it."""
    UNREADABLE = "unreadable"
    """An object that cannot be decoded; nothing but a person can mend it."""
    STRAY = "stray"
    """An object under a key that nobody of this queue writes."""
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
        """Whether no task is at risk: garbage, strays and outlived entries cost a look, no more."""
        harmless = {Fault.GARBAGE, Fault.OUTLIVED, Fault.STRAY}
        return all(finding.repaired or finding.fault in harmless for finding in self.findings)


async def verify(ledger: Ledger, *, repair: bool = False, shards: Sequence[str] | None = None) -> Report:
    """Walk the whole bucket, one shard at a time.

    Costs a GET a task, one or two a marker, and two LISTs a thousand objects. Memory grows with
    the largest shard.

    Parameters
    ----------
    ledger:
        The protocol's steps on the queue.
    repair:
        Mend what can be mended.
    shards:
        Only these; all if left out.

    Raises
    ------
    StoreError
        The store did not answer.
    """
    audit = _Audit(ledger, repair=repair)
    await audit.read_sessions()
    for shard in ledger.keys.shards() if shards is None else shards:
        await audit.walk(shard)
    await audit.look_for_strays()
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
        """Count the sessions."""
        async for entry in entries(self._store, self._keys.sessions):
            with self._noting(entry.key):
                session = await self._session(entry.key)
                if session is not None and session.state == TOMBSTONE:
                    self.report.tombstones += 1
                elif session is not None:
                    self.report.live_sessions += 1

    async def _session(self, key: str) -> Session | None:
        blob = await self._store.get(key)
        return None if blob is None else decode_session(blob.body)

    async def _is_journaled(self, lease_id: str | None) -> bool:
        """Whether any session lists this lease, read after the ledger that names it."""
        async for entry in entries(self._store, self._keys.sessions):
            with contextlib.suppress(PoisonRecord, NewerLayout):  # noted when they were counted
                session = await self._session(entry.key)
                if session is not None and any(item.lease_id == lease_id for item in session.journal):
                    return True
        return False

    # --- a shard ---------------------------------------------------------------------------

    async def walk(self, shard: str) -> None:
        """Look at all markers, ledgers and dead letters of a shard."""
        # Ledgers last: a task that is claimed meanwhile is in one of the two (rule 22).
        markers = await self._read(f"{self._keys.ready}{shard}/", self._keys.parse_marker)
        listed = await self._read(f"{self._keys.all_failed}{shard}/", self._keys.parse_failed)
        claimed = await self._read(f"{self._keys.tasks}{shard}/", self._keys.parse_ledger)
        for task_id, entry in claimed.items():
            with self._noting(entry.key):
                await self._look_at(task_id, markers, listed)
        for marker, entry in markers.items():
            with self._noting(entry.key):
                await self._look_at_marker(marker, entry, claimed)
        for task_id, entry in listed.items():
            with self._noting(self._keys.ledger(task_id)):
                await self._look_at_dead_letter(task_id, entry)

    async def _look_at(self, task_id: str, markers: Container[Marker], listed: Container[str]) -> None:
        loaded = await self._ledger.load(task_id)
        if loaded is None:
            return
        record = loaded.record
        self._count(record)
        marker = self._keys.marker_of(record)
        if record.status == TaskStatus.Pending:
            if marker not in markers:
                await self._need(self._keys.marker_key(marker), record, Fault.LOST_MARKER)
        elif record.status == TaskStatus.Running:
            claimed_by = marker._replace(attempt=record.attempt - 1)
            if claimed_by not in markers:
                await self._need(self._keys.marker_key(claimed_by), record, Fault.ORPHAN)
        elif record.status == TaskStatus.Failed and task_id not in listed:
            await self._need(self._keys.failed(task_id), record, Fault.UNLISTED)

    async def _need(self, key: str, record: Record, fault: Fault) -> None:
        """Report that a task lacks this object, unless it has come meanwhile or the task has gone on."""
        if await self._store.head(key) is not None:
            return
        if fault is Fault.ORPHAN and await self._is_journaled(record.lease_id):
            return
        again = await self._ledger.load(record.id)
        if again is None or again.record.rev != record.rev:
            return
        if self._repair:
            await self._store.put(key, b"", Always() if fault is Fault.UNLISTED else IfAbsent(None))
        what = f"task {record.id} is {record.status}, rev {record.rev}"
        self._note(fault, key, what, repaired=self._repair)

    async def _look_at_marker(self, marker: Marker, entry: Entry, claimed: Container[str]) -> None:
        self.report.markers += 1
        if marker.attempt == 0 and entry.size and marker.task_id not in claimed:
            await self._look_at_unclaimed(marker, entry)
            return
        read_at = self._ledger.clock.monotonic()
        loaded = await self._ledger.load(marker.task_id)
        now_ms = self._store.time.lower_ms()
        if loaded is None:
            is_garbage, since_ms = entry.size == 0, entry.modified_ms
        else:
            judged = judge(marker, loaded.record, now_ms=now_ms, handles=())
            is_garbage, since_ms = isinstance(judged, Deletable), parse_ms(loaded.record.updated_at)
        if is_garbage and now_ms - since_ms > GARBAGE_AFTER_MS:
            await self._drop(Fault.GARBAGE, entry.key, "its task has gone on", read_at=read_at)

    async def _look_at_unclaimed(self, marker: Marker, entry: Entry) -> None:
        if ident.version(marker.task_id) == 8:  # its ledger is being written (rule 5)
            return
        record = await self._ledger.find(marker.task_id)
        if record is not None:
            self._count(record)
        is_its_own = record is not None and (record.attempt > 0 or self._keys.marker_of(record) == marker)
        if not is_its_own and await self._store.head(entry.key) is not None:
            raise PoisonRecord(f"the record inside belongs to another marker than {entry.key}")

    async def _look_at_dead_letter(self, task_id: str, entry: Entry) -> None:
        read_at = self._ledger.clock.monotonic()
        loaded = await self._ledger.load(task_id)
        if loaded is None:
            outlived = self._store.time.lower_ms() - entry.modified_ms > UNWRITTEN_S * 1000
        else:
            outlived = loaded.record.status in TERMINAL and loaded.record.status != TaskStatus.Failed
        if outlived:
            status = "gone" if loaded is None else loaded.record.status
            await self._drop(Fault.OUTLIVED, entry.key, f"its task is {status}", read_at=read_at)

    async def _drop(self, fault: Fault, key: str, detail: str, *, read_at: float) -> None:
        """Report an object that stands for nothing, if it is still there."""
        if await self._store.head(key) is None:
            return
        if self._repair:
            await self._store.delete(key, read_at=read_at)
        self._note(fault, key, detail, repaired=self._repair)

    # --- strays ----------------------------------------------------------------------------

    async def look_for_strays(self) -> None:
        """Report the keys that no walk of a shard has read."""
        keys = self._keys
        await self._look_for_strays(keys.ready, lambda key: keys.marker_key(keys.parse_marker(key)))
        await self._look_for_strays(keys.tasks, lambda key: keys.ledger(keys.parse_ledger(key)))
        await self._look_for_strays(keys.all_failed, lambda key: keys.failed(keys.parse_failed(key)))

    async def _look_for_strays(self, prefix: str, canonical: Callable[[str], str]) -> None:
        async for entry in entries(self._store, prefix):
            try:
                if canonical(entry.key) != entry.key:
                    raise PoisonRecord("it lies in another task's shard")
            except (PoisonRecord, ForeignKey) as error:
                self._note(Fault.STRAY, entry.key, str(error))

    # --- bits ------------------------------------------------------------------------------

    async def _read(self, prefix: str, parse: Callable[[str], T]) -> dict[T, Entry]:
        found = {}
        async for entry in entries(self._store, prefix):
            with contextlib.suppress(PoisonRecord):  # a stray
                found[parse(entry.key)] = entry
        return found

    @contextlib.contextmanager
    def _noting(self, key: str) -> Iterator[None]:
        """Report an object that cannot be read, and go on."""
        try:
            yield
        except (PoisonRecord, NewerLayout) as error:
            self._note(Fault.UNREADABLE, key, str(error))

    def _count(self, record: Record) -> None:
        by_status = self.report.by_status
        by_status[record.status] = by_status.get(record.status, 0) + 1

    def _note(self, fault: Fault, key: str, detail: str, *, repaired: bool = False) -> None:
        self.report.findings.append(Finding(fault, key, detail, repaired))
