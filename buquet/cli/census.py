"""Counts a queue from its listings: a LIST a thousand objects, and no GET of a task.

Waiting tasks are counted by their markers, failed ones by the index of dead letters, running ones
by the journals of the live sessions, which cost a GET each. So a task counts as running about a
second after its claim, and as waiting until then.

Example::

    counted, requests = counting(queue)
    census = await take(counted)
    census.total.ready, requests.total
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

from buquet._core.record import Record
from buquet._core.rfc3339 import parse_ms
from buquet.errors import NewerLayout, PoisonRecord
from buquet.listing import entries
from buquet.protocol.session import TOMBSTONE, Session, decode, parse_session_key
from buquet.protocol.transitions import decode as decode_record
from buquet.queue import READS_AT_ONCE, Queue
from buquet.store.retry import Retrying
from buquet.testing.counting import CountingStore

SAMPLE = 200
"""How many tasks a sample reads at most."""

SURE = 1.96
"""Standard deviations of a 95 % interval."""


def counting(queue: Queue) -> tuple[Queue, CountingStore]:
    """Return a queue on the same connections that counts its requests, and the counter."""
    counter = CountingStore(queue.store.once)
    return Queue(Retrying(counter, queue.clock), queue.keys), counter


@dataclass(slots=True)
class Counts:
    """Tasks by state, and when the oldest that waits was due, Unix ms."""

    ready: int = 0
    delayed: int = 0
    running: int = 0
    failed: int = 0
    oldest_due_ms: int | None = None

    def add_due(self, due_ms: int) -> None:
        """Count a task that is due."""
        self.ready += 1
        self.oldest_due_ms = due_ms if self.oldest_due_ms is None else min(due_ms, self.oldest_due_ms)


@dataclass(frozen=True, slots=True)
class Seen:
    """A session as it was read; `age_s` since its last heartbeat, by the store's clock."""

    session: Session
    role: str
    age_s: float

    @property
    def state(self) -> str:
        """`live`, `stale` (no heartbeat for longer than its lifetime) or `tombstone`."""
        if self.session.state == TOMBSTONE:
            return TOMBSTONE
        return "live" if self.age_s <= self.session.lifetime_s else "stale"

    @property
    def lived_s(self) -> float:
        """How long it lived until its last heartbeat, seconds."""
        return (parse_ms(self.session.beat_at) - parse_ms(self.session.started_at)) / 1000

    @property
    def done(self) -> int:
        """How many attempts it has ended."""
        counters = self.session.counters
        return sum(counters.get(name, 0) for name in ("completed", "failed", "retried"))

    @property
    def rate(self) -> float:
        """Attempts a second, over its life."""
        return self.done / self.lived_s if self.lived_s > 0 else 0.0


@dataclass(slots=True)
class Census:
    """A queue as one round of listings showed it, at `at_ms` (the store's time)."""

    at_ms: int = 0
    total: Counts = field(default_factory=Counts)
    by_shard: dict[str, Counts] = field(default_factory=dict)
    sessions: list[Seen] = field(default_factory=list)
    tasks: dict[str, str] = field(default_factory=dict)
    """The state of each task that was listed."""

    @property
    def oldest_s(self) -> float | None:
        """How long the oldest due task has waited, seconds."""
        due_ms = self.total.oldest_due_ms
        return None if due_ms is None else max(0.0, (self.at_ms - due_ms) / 1000)


async def take(queue: Queue) -> Census:
    """Count a queue.

    Raises
    ------
    StoreError
        The store did not answer.
    """
    census = Census(by_shard={shard: Counts() for shard in queue.keys.shards()})
    census.sessions = await read_sessions(queue)
    _count_journals(census, queue, "live")
    async for entry in entries(queue.store, queue.keys.ready):
        try:
            marker = queue.keys.parse_marker(entry.key)
        except PoisonRecord:
            continue
        census.at_ms = queue.store.time.now_ms()
        state = "ready" if marker.due_ms <= census.at_ms else "delayed"
        _count(census, queue, marker.task_id, state, marker.due_ms)
    async for entry in entries(queue.store, queue.keys.all_failed):
        try:
            task_id = queue.keys.parse_failed(entry.key)
        except PoisonRecord:
            continue
        _count(census, queue, task_id, "failed")
    # Whose owner was lost, and which nobody has taken back yet; once it is buried, they were.
    _count_journals(census, queue, "stale")
    census.at_ms = queue.store.time.now_ms()
    return census


def _count_journals(census: Census, queue: Queue, state: str) -> None:
    for seen in census.sessions:
        for lease in seen.session.journal if seen.state == state else ():
            _count(census, queue, lease.task_id, "running")


def _count(census: Census, queue: Queue, task_id: str, state: str, due_ms: int = 0) -> None:
    if task_id in census.tasks:  # a marker whose task runs, or that has two
        return
    census.tasks[task_id] = state
    for counts in (census.total, census.by_shard[queue.keys.shard(task_id)]):
        if state == "ready":
            counts.add_due(due_ms)
        else:
            setattr(counts, state, getattr(counts, state) + 1)


async def read_sessions(queue: Queue) -> list[Seen]:
    """Read all sessions, by worker; those that cannot be read are left out. A LIST, and a GET each."""
    listed = []
    async for entry in entries(queue.store, queue.keys.sessions):
        try:
            listed.append((entry.key, parse_session_key(queue.keys.prefix, entry.key).role))
        except PoisonRecord:
            continue
    found: list[Seen | None] = []
    for start in range(0, len(listed), READS_AT_ONCE):
        batch = listed[start : start + READS_AT_ONCE]
        found += await asyncio.gather(*(_read_session(queue, key, role) for key, role in batch))
    return sorted((seen for seen in found if seen is not None), key=lambda seen: seen.session.worker_id)


async def _read_session(queue: Queue, key: str, role: str) -> Seen | None:
    blob = await queue.store.get(key)
    if blob is None:
        return None
    try:
        session = decode(blob.body)
    except (PoisonRecord, NewerLayout):
        return None
    return Seen(session, role, max(0.0, (blob.date_ms - blob.modified_ms) / 1000))


# --- by type -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypeCount:
    """How many tasks of a state have a type, with half the width of the 95 % interval."""

    state: str
    task_type: str
    count: int
    error: int


async def by_type(queue: Queue, census: Census, *, exact: bool) -> list[TypeCount]:
    """Count listed tasks by type, from a random sample of at most 200 or from all.

    One GET a task, two for one that waits to be tried again.
    """
    task_ids = list(census.tasks)
    if not exact and len(task_ids) > SAMPLE:
        task_ids = _sample(queue, task_ids)
    types = await _types(queue, census, task_ids)
    read = Counter((census.tasks[task_id], task_type) for task_id, task_type in types.items())
    everything, looked_at = len(census.tasks), max(1, len(types))
    return [
        TypeCount(
            state,
            task_type,
            round(everything * count / looked_at),
            _error(everything, looked_at, count / looked_at),
        )
        for (state, task_type), count in sorted(read.items())
    ]


def _error(everything: int, looked_at: int, share: float) -> int:
    """Half the width of the 95 % interval of a share of a sample that was drawn without putting back."""
    if looked_at >= everything:
        return 0
    spread = sqrt(share * (1 - share) / looked_at * (everything - looked_at) / (everything - 1))
    return max(1, round(SURE * spread * everything))


def _sample(queue: Queue, task_ids: list[str]) -> list[str]:
    chosen: dict[int, None] = {}
    while len(chosen) < SAMPLE:
        chosen[int(queue.clock.uniform() * len(task_ids))] = None
    return [task_ids[index] for index in chosen]


async def _types(queue: Queue, census: Census, task_ids: Sequence[str]) -> dict[str, str]:
    types: dict[str, str] = {}

    async def read(task_id: str) -> None:
        try:
            if census.tasks[task_id] in {"ready", "delayed"}:
                record = await _submitted(queue, task_id) or await queue.ledger.find(task_id)
            else:
                record = await queue.ledger.find(task_id)
        except (PoisonRecord, NewerLayout):
            return
        if record is not None:
            types[task_id] = record.task_type

    for start in range(0, len(task_ids), READS_AT_ONCE):
        await asyncio.gather(*map(read, task_ids[start : start + READS_AT_ONCE]))
    return types


async def _submitted(queue: Queue, task_id: str) -> Record | None:
    """Read a task as its first marker has it; its type never changes."""
    try:
        first = queue.keys.first_marker(task_id)
    except ValueError:  # only a ledger can have this id
        return None
    blob = await queue.store.get(queue.keys.marker_key(first))
    return None if blob is None or not blob.body else decode_record(blob.body, task_id=task_id)
