"""Workers and monitors that can be cut off, and views of what they leave in the bucket.

For tests in virtual time::

    line = Line()
    queue = world.queue(plan=line)
    running = start(queue, handler)
    line.is_cut = True            # a crash, as all others see it: nothing of it arrives any more
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from virtual import World

from buquet import Worker, WorkerRunOptions
from buquet._core.record import Record, decode
from buquet.clock import token
from buquet.incarnation import Incarnation
from buquet.ledger import Claim, Look
from buquet.protocol.session import Entry, Session, encode, session_key
from buquet.protocol.session import decode as decode_session
from buquet.queue import Queue
from buquet.store.interface import Always
from buquet.testing.faulty import Fault, Slow

FOR_EVER = Slow(1e6)
"""A request that is not served while a test goes on."""

OWNER = Incarnation("crashed", "w" + "0" * 31 + "1")
"""A worker that is never heard of again."""


class Line:
    """A plan of faults: what lies between one client and the store.

    Parameters
    ----------
    cut_after:
        How many requests are served before the line is cut.
    last:
        What the one after them meets.
    """

    def __init__(self, cut_after: int | None = None, last: Fault = FOR_EVER) -> None:
        self.is_cut = False
        self.fault: Fault | None = None
        """What every request meets."""
        self.count = 0
        """How many requests have been sent."""
        self._cut_after = cut_after
        self._last = last

    def __call__(self, kind: str, key: str) -> Fault | None:
        if self.is_cut:
            return FOR_EVER
        self.is_cut = self.count == self._cut_after
        self.count += 1
        return self._last if self.is_cut else self.fault


def worker_of(
    queue: Queue, handler: Callable[[Any], Awaitable[Any]] | None = None, **arguments: Any
) -> Worker:
    """Make a worker that handles the type `do`, by doing nothing unless told."""
    worker = Worker(queue, **arguments)

    @worker.task("do")
    async def handle(input: Any) -> Any:
        return None if handler is None else await handler(input)

    return worker


def start(worker: Worker, **options: Any) -> asyncio.Task[None]:
    """Let a worker run beside the test."""
    return asyncio.create_task(worker.run(WorkerRunOptions(**options)))


async def claim(queue: Queue, task_id: str, owner: Incarnation = OWNER) -> Claim:
    """Claim a task as a worker does that is then never heard of again."""
    marker = queue.keys.first_marker(task_id)
    claimed = await queue.ledger.claim(marker, has_body=True, look=Look.MARKER, owner=owner, handles={"do"})
    assert isinstance(claimed, Claim)
    return claimed


def leave_session(
    world: World, queue: Queue, *claims: Claim, owner: Incarnation = OWNER, **fields: Any
) -> str:
    """Write the session of a worker that held these claims, journaled, and return its key."""
    now = queue.store.time.now()
    given = {"nonce": token(world.clock), "lifetime_s": 30.0, "journal": [entry_of(held) for held in claims]}
    session = Session(
        worker_id=owner.worker_id, incarnation=owner.id, started_at=now, beat_at=now, **(given | fields)
    )
    key = session_key(queue.keys.prefix, owner.worker_id, owner.id)
    world.bucket.put(key, encode(session), Always())
    return key


def entry_of(held: Claim) -> Entry:
    assert held.record.lease_expires_at is not None
    return Entry(held.record.id, held.lease_id, held.record.lease_expires_at)


def drop_marker(world: World, queue: Queue, held: Claim) -> None:
    """Delete the marker of a claim, as its owner does once the lease is journaled."""
    world.bucket.delete(queue.keys.marker_key(held.marker))


def sessions(world: World, prefix: str = "") -> dict[str, Session]:
    """Return the sessions in the bucket by their keys."""
    keys = world.keys(f"{prefix}workers/")
    return {key: decode_session(world.bucket.get(key).body) for key in keys}  # type: ignore[union-attr]


def record_of(world: World, queue: Queue, task_id: str) -> Record:
    """Return a task's ledger as it stands."""
    found = world.bucket.get(queue.keys.ledger(task_id))
    assert found is not None
    return decode(found.body)


async def until(world: World, condition: Callable[[], object], *, within_s: float) -> float:
    """Wait for a condition; return how long that took, in virtual seconds."""
    began = world.clock.monotonic()
    while not condition():
        await world.clock.sleep(0.1)
        waited_s = world.clock.monotonic() - began
        assert waited_s <= within_s, f"not within {within_s} s"
    return world.clock.monotonic() - began


async def end(*running: asyncio.Task[None]) -> None:
    """Cancel until nothing goes on: what hangs on a cut line wants to be told twice."""
    while not all(one.done() for one in running):
        for one in running:
            one.cancel()
        await asyncio.wait(running, timeout=1)
