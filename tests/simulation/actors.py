"""The processes of a run, and the tasks that they are given.

Each `..._main` is what one process does from its start to its end. They use the package as
applications do: `agree`, `Queue`, `Worker`, `Monitor`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from buquet._core.record import Record, encode
from buquet._core.rfc3339 import format_ms, parse_ms
from buquet.archiver import Archiver
from buquet.clock import token
from buquet.connection import agree
from buquet.errors import OutcomeUnknown, PermanentError, RetryableError, StoreError
from buquet.monitor import Monitor
from buquet.protocol.keys import Keys
from buquet.protocol.retry_policy import RetryPolicy
from buquet.queue import Queue
from buquet.store.interface import FenceExpired, IfMatches
from buquet.store.retry import Retrying
from buquet.testing.clock import START
from buquet.worker import TaskContext, Worker, WorkerRunOptions
from simulation.oracle import Oracle
from simulation.process import Process
from simulation.wire import Network, Wire

RETENTION_S = 7 * 24 * 3600.0
ARCHIVER_PAUSE_S = 40.0


class World(Protocol):
    """What an actor sees of the run."""

    network: Network
    oracle: Oracle
    specs: list[Spec]
    submitted: int
    kinds: dict[str, str]
    until_s: float


# --- tasks ---------------------------------------------------------------------------------

KINDS = ("quick", "quick", "slow", "slow", "flaky", "doomed", "stuck", "quick")
ENDS = {
    "quick": {"completed"},
    "slow": {"completed"},
    "flaky": {"completed"},
    "doomed": {"failed"},
    "stuck": {"failed"},
    "killer": {"failed"},
}
"""How a task of each kind ends unless its worker is lost too often or it is cancelled."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A task to submit: when, to whom, and how it shall behave."""

    at_s: float
    kind: str
    seconds: float
    fails: int
    timeout_s: float
    max_retries: int
    priority: int
    retry_ms: int
    delay_s: float | None


def draw_spec(chance: random.Random, kind: str, *, after_s: float, before_s: float) -> Spec:
    """Draw a task that is submitted between two moments."""
    seconds = 0.0
    if kind in {"slow", "stuck"}:
        seconds = 0.5 * 80 ** chance.random()
    return Spec(
        at_s=chance.uniform(after_s, before_s),
        kind=kind,
        seconds=seconds,
        fails=chance.choice((1, 1, 2, 3)),
        timeout_s=chance.choice((1.0, 3.0)) if kind == "stuck" else chance.choice((4.0, 60.0)) + seconds,
        max_retries=chance.choice((1, 2)) if kind in {"stuck", "killer"} else chance.choice((3, 25, 25)),
        priority=chance.choice((0, 5, 5, 5, 9)),
        retry_ms=chance.choice((0, 20, 1000, 5000)),
        delay_s=chance.uniform(1, 120) if chance.random() < 0.2 else None,
    )


def may_end(kind: str, record: Record) -> bool:
    """Whether a task of this kind may have come to this."""
    if record.status in {"archived", *ENDS[kind]}:
        return True
    if record.status == "failed":
        return record.cancel_requested_at is not None or record.retry_count >= record.max_retries
    return False


def register(worker: Worker, process: Process, oracle: Oracle) -> None:
    """Give a worker the handlers of all kinds."""

    def handler(act: Callable[[Any, TaskContext], Awaitable[None]]) -> Callable[..., Any]:
        async def run(value: Any, ctx: TaskContext) -> dict[str, int]:
            oracle.executed(process, ctx.task_id, ctx.attempt)
            await act(value, ctx)
            return {"attempt": ctx.attempt}

        return run

    async def sleep(value: Any, _: TaskContext) -> None:
        await asyncio.sleep(value["seconds"])

    async def stuck(_: Any, ctx: TaskContext) -> None:
        await asyncio.sleep(ctx.task.timeout_seconds + 60)

    async def flaky(value: Any, ctx: TaskContext) -> None:
        if ctx.attempt <= value["fails"]:
            raise RetryableError("not yet")

    async def doomed(_: Any, __: TaskContext) -> None:
        raise PermanentError("never")

    async def killer(_: Any, __: TaskContext) -> None:
        process.crash()
        await process.loop.create_future()

    acts = {"quick": sleep, "slow": sleep, "stuck": stuck, "flaky": flaky, "doomed": doomed, "killer": killer}
    for kind, act in acts.items():
        worker.task(kind)(handler(act))


# --- processes -----------------------------------------------------------------------------


async def connected(process: Process, world: World) -> Queue:
    """Open the queue as `connect()` does; a process whose store is away at first tries again."""
    store = Retrying(Wire(process, world.network), process.clock)
    while True:
        try:
            manifest = await agree(store, "", None)
            return Queue(store, Keys("", manifest.shard_prefix_len))
        except StoreError:
            await process.clock.sleep(1)


async def worker_main(
    process: Process, world: World, name: str, shards: list[str] | None, options: WorkerRunOptions
) -> None:
    """Run a worker until it is stopped."""
    worker = Worker(await connected(process, world), name, shards, concurrency=6)
    register(worker, process, world.oracle)
    await worker.run(options)


async def monitor_main(process: Process, world: World, name: str) -> None:
    """Run a monitor until it is stopped."""
    await Monitor(await connected(process, world), name).run()


async def submitter_main(process: Process, world: World) -> None:
    """Submit all tasks; where the last one left off, if that crashed."""
    queue = await connected(process, world)
    while world.submitted < len(world.specs):
        spec = world.specs[world.submitted]
        await process.clock.sleep(max(0.0, spec.at_s - process.clock.monotonic()))
        task_id = await _submit(queue, spec)
        world.submitted += 1
        world.kinds[task_id] = spec.kind
        world.oracle.submitted(task_id)


async def _submit(queue: Queue, spec: Spec) -> str:
    """Submit a task, and again until one is known to be stored."""
    due = None if spec.delay_s is None else START + queue.clock.monotonic() + spec.delay_s
    while True:
        try:
            task = await queue.submit(
                spec.kind,
                {"seconds": spec.seconds, "fails": spec.fails, "kind": spec.kind},
                timeout_seconds=spec.timeout_s,
                max_retries=spec.max_retries,
                retry_policy=RetryPolicy(initial_interval_ms=spec.retry_ms, max_interval_ms=10_000),
                schedule_at=None if due is None else datetime.fromtimestamp(due, UTC),
                priority=spec.priority,
            )
        except OutcomeUnknown as error:
            if await _is_stored(queue, str(error.task_id)):
                return str(error.task_id)
        except StoreError:
            await queue.clock.sleep(1)
        else:
            return task.id


async def _is_stored(queue: Queue, task_id: str) -> bool:
    while True:
        try:
            return await queue.get(task_id) is not None
        except StoreError:
            await queue.clock.sleep(1)


async def meddler_main(process: Process, world: World) -> None:
    """Extend leases and ask for cancellation, without taking tasks; requeue and archive ended ones.

    Two of them, so that the same task is requeued by two.
    """
    queue = await connected(process, world)
    while process.clock.monotonic() < world.until_s:
        await process.clock.sleep(process.clock.uniform() * 6)
        for task_id, record in list(world.oracle.ledgers.items()):
            try:
                await _meddle(process, world, queue, task_id, record)
            except (StoreError, FenceExpired, LookupError, ValueError):
                continue  # not now, or not any more: it has been archived or removed


async def _meddle(process: Process, world: World, queue: Queue, task_id: str, record: Record) -> None:
    chance = process.clock.uniform()
    if record.status == "running" and chance < 0.4:
        await _touch(queue, task_id, cancel=chance < 0.01)
    elif record.status == "failed" and record.requeue_of is None and chance < 0.1:
        world.oracle.submitted((await queue.requeue(task_id)).id)
    elif record.status in {"completed", "failed"} and chance < 0.02:
        await queue.archive(task_id)


async def _touch(queue: Queue, task_id: str, *, cancel: bool) -> None:
    """Change a running record, but not its lease."""
    loaded = await queue.ledger.load(task_id)
    if loaded is None or loaded.record.status != "running":
        return
    record = loaded.record
    now = queue.store.time.now()
    assert record.lease_expires_at is not None
    changed = msgspec.structs.replace(
        record,
        rev=record.rev + 1,
        nonce=token(queue.clock),
        updated_at=now,
        cancel_requested_at=now if cancel else record.cancel_requested_at,
        lease_expires_at=format_ms(parse_ms(record.lease_expires_at) + (0 if cancel else 1000)),
    )
    await queue.store.put(queue.keys.ledger(task_id), encode(changed), IfMatches(loaded.etag))


async def archiver_main(process: Process, world: World) -> None:
    """Remove old tasks."""
    queue = await connected(process, world)
    archiver = Archiver(queue.ledger, queue.store, retention_s=RETENTION_S)
    while process.clock.monotonic() < world.until_s:
        try:
            await archiver.sweep()
        except StoreError:
            pass
        await process.clock.sleep(ARCHIVER_PAUSE_S)
