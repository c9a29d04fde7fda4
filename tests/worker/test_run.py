"""A worker's life: what it claims, how it idles, how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from virtual import World, requests, virtual

from buquet import RetryPolicy, TaskStatus, Worker, WorkerRunOptions
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.interface import Capabilities
from buquet.store.memory import MemoryStore
from buquet.store.pace import Paced
from buquet.store.retry import Retrying
from buquet.testing.clock import START
from buquet.testing.faulty import Busy, Lost
from buquet.worker.run import UNSETTLED_TASKS

NOW = datetime.fromtimestamp(START, UTC)


def options(**changes: Any) -> WorkerRunOptions:
    return WorkerRunOptions(**({"with_monitor": False} | changes))


BURST = options(burst=True)


def worker_of(
    queue: Queue, handler: Callable[[Any], Awaitable[Any]] | None = None, **arguments: Any
) -> Worker:
    """Make a worker that handles the type `do`, by doing nothing unless told."""
    worker = Worker(queue, **arguments)

    @worker.task("do")
    async def handle(input: Any) -> Any:
        return None if handler is None else await handler(input)

    return worker


async def submit_many(queue: Queue, count: int, **arguments: Any) -> list[str]:
    return [(await queue.submit("do", number, **arguments)).id for number in range(count)]


async def statuses(queue: Queue, ids: list[str]) -> list[str]:
    return [task.status.value for task_id in ids if (task := await queue.get(task_id)) is not None]


# --- what it is told -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"worker_id": ""}, ValueError, "worker_id must be 1 to 200 printable"),
        ({"worker_id": "x" * 201}, ValueError, "worker_id must be 1 to 200"),
        ({"worker_id": "a\nb"}, ValueError, "worker_id must be"),
        ({"worker_id": 5}, TypeError, "worker_id must be a string, not int"),
        ({"shards": "0123"}, TypeError, "shards must be a list of names"),
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1"),
        ({"concurrency": 1.5}, TypeError, "concurrency must be an integer, not float"),
        ({"concurrency": True}, TypeError, "concurrency must be an integer, not bool"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Worker(**arguments)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"poll_interval_ms": 0}, ValueError),
        ({"poll_interval_ms": "5"}, TypeError),
        ({"poll_interval_ms": float("nan")}, ValueError),
        ({"shutdown_timeout_s": -1}, ValueError),
        ({"shutdown_timeout_s": None}, TypeError),
        ({"max_tasks": 0}, ValueError),
        ({"max_tasks": 1.5}, TypeError),
        ({"max_tasks": True}, TypeError),
        ({"burst": 1}, TypeError),
        ({"with_monitor": None}, TypeError),
        ({"heartbeat_interval_s": 20}, ValueError),
    ],
)
def test_a_bad_option_is_named(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(changes))):
        WorkerRunOptions(**changes)


def test_a_worker_is_named_after_host_and_process() -> None:
    assert Worker().worker_id == f"{socket.gethostname()}-{os.getpid()}"
    assert Worker(worker_id="ünï ✓").worker_id == "ünï ✓"


def test_the_published_options_are_the_defaults() -> None:
    chosen = WorkerRunOptions()
    assert (chosen.poll_interval_ms, chosen.with_monitor, chosen.monitor_check_interval_s) == (1000, True, 15)
    assert (chosen.with_scheduler, chosen.max_tasks, chosen.burst) == (False, None, False)
    assert (chosen.shutdown_timeout_s, chosen.heartbeat_interval_s, chosen.session_ttl_s) == (30, 10, 30)
    assert WorkerRunOptions(shutdown_timeout_s=0, poll_interval_ms=500).poll_interval_ms == 500


@virtual
async def test_a_worker_needs_a_queue_handlers_and_shards_that_are_there(world: World) -> None:
    with pytest.raises(ValueError, match="this worker has no queue"):
        await worker_of(None).run()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no handler is registered"):
        await Worker(world.queue()).run()
    with pytest.raises(ValueError, match="'00' is not a shard"):
        await worker_of(world.queue(), shards=["0", "00"]).run()
    with pytest.raises(ValueError, match="at least one shard"):
        await worker_of(world.queue(), shards=[]).run()


@virtual
async def test_a_worker_may_be_given_its_queue_late(world: World) -> None:
    queue = world.queue()
    ids = await submit_many(queue, 3)
    worker = worker_of(None)  # type: ignore[arg-type]
    await worker.run(BURST, queue=queue)
    assert await statuses(queue, ids) == ["completed"] * 3


@virtual
async def test_a_worker_runs_once_at_a_time_and_again_later(world: World) -> None:
    queue = world.queue()
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(1)
    with pytest.raises(RuntimeError, match="this worker is running already"):
        await worker.run(BURST)
    await worker.stop()
    await running
    ids = await submit_many(queue, 2)
    await worker.run(BURST)
    assert await statuses(queue, ids) == ["completed"] * 2


# --- which tasks ---------------------------------------------------------------------------


@virtual
async def test_only_its_shards(world: World, caplog: pytest.LogCaptureFixture) -> None:
    queue = world.queue(Keys(shard_prefix_len=2))
    ids = await submit_many(queue, 400)
    await worker_of(queue, worker_id="w", shards=["0", "a1", "f"]).run(BURST)
    mine = [queue.keys.shard(task_id).startswith(("0", "a1", "f")) for task_id in ids]
    assert any(mine)
    assert await statuses(queue, ids) == ["completed" if own else "pending" for own in mine]
    assert "worker w covers 33 of 256 shards" in caplog.messages


@virtual
async def test_only_types_it_handles_and_one_look_at_the_others(world: World) -> None:
    queue = world.queue()
    for _ in range(1200):
        await queue.submit("unknown", {}, priority=0)
    ids = await submit_many(queue, 5, priority=9)
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(30)
    assert await statuses(queue, ids) == ["completed"] * 5
    requests(queue).requests = []
    await world.clock.sleep(60)
    of_tasks = [made for made in requests(queue).requests or [] if not made[1].startswith("workers/")]
    assert {kind for kind, _ in of_tasks} == {"list"}
    assert len(of_tasks) <= 2 * 61
    await worker.stop()
    await running
    assert len(world.keys("ready/")) == 1200


@virtual
async def test_urgent_tasks_first(world: World) -> None:
    queue, order = world.queue(), []

    async def note(number: int) -> None:
        order.append(number)

    for number in range(60):
        await queue.submit("do", number, priority=9 - number % 10)
    await worker_of(queue, note, concurrency=1, shards=["0"]).run(BURST)
    priorities = [9 - number % 10 for number in order]
    assert len(order) >= 2
    assert priorities == sorted(priorities)


@virtual
async def test_a_task_waits_for_its_hour(world: World) -> None:
    queue, started = world.queue(), []

    async def note(_input: object) -> None:
        started.append(await queue.now())

    worker = worker_of(queue, note)
    running = asyncio.create_task(worker.run(options()))
    task = await queue.submit("do", {}, schedule_at=NOW + timedelta(hours=1))
    done = await queue.wait(task.id)
    await worker.stop()
    await running
    assert done.status == "completed"
    assert "2027-01-15T09:00:00.000Z" <= started[0] <= "2027-01-15T09:00:01.100Z"


@pytest.mark.parametrize("offset_s", [0.0, 0.3, 0.999])
@virtual
async def test_times_of_a_task_never_go_back(world: World, offset_s: float) -> None:
    """Although clients know the time to a second only, and each differently."""
    await world.clock.sleep(offset_s)
    queues = [world.queue(resolution_ms=1000) for _ in range(3)]
    producer = queues[0]
    await producer.now()
    ids = []
    for number in range(20):
        now = datetime.fromisoformat(await producer.now())
        task = await producer.submit("do", number, schedule_at=now + timedelta(seconds=number / 7))
        ids.append(task.id)
        await world.clock.sleep(0.13)

    async def fail_first(number: int) -> None:
        runs[number] = runs.get(number, 0) + 1
        if runs[number] == 1:
            raise ValueError

    runs: dict[int, int] = {}
    workers = [worker_of(queue, fail_first) for queue in queues]
    running = [asyncio.create_task(worker.run(options())) for worker in workers]
    for task_id in ids:
        await producer.wait(task_id)
    await asyncio.gather(*(worker.stop() for worker in workers), *running)
    for task_id in ids:
        history = await producer.get_history(task_id)
        moments = [seen.updated_at for seen in history]
        assert moments == sorted(moments)
        assert [seen.updated_at >= seen.available_at for seen in history if seen.status == "running"] == [
            True
        ] * 2


@virtual
async def test_a_retry_waits_its_delay(world: World) -> None:
    queue, started = world.queue(), []

    async def fail(_input: object) -> None:
        started.append(world.clock.monotonic())
        raise ValueError

    policy = RetryPolicy(initial_interval_ms=10_000, multiplier=3, jitter_percent=0)
    task = await queue.submit("do", {}, max_retries=2, retry_policy=policy)
    worker = worker_of(queue, fail)
    running = asyncio.create_task(worker.run(options()))
    failed = await queue.wait(task.id)
    await worker.stop()
    await running
    assert failed.status == "failed"
    gaps = [later - earlier for earlier, later in pairwise(started)]
    assert len(gaps) == 2
    assert 10 <= gaps[0] < 11.1
    assert 30 <= gaps[1] < 31.1


@virtual
async def test_no_more_at_once_than_it_was_told(world: World) -> None:
    queue, now, most = world.queue(), 0, 0

    async def count(_input: object) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await world.clock.sleep(1)
        now -= 1

    await submit_many(queue, 100)
    started = world.clock.monotonic()
    await worker_of(queue, count, concurrency=7).run(BURST)
    assert most == 7
    assert 15 <= world.clock.monotonic() - started < 20, "and all of them are used"


@virtual
async def test_two_workers_of_one_name_share_the_work(world: World) -> None:
    queue = world.queue()
    runs: dict[int, int] = {}

    async def count(number: int) -> None:
        runs[number] = runs.get(number, 0) + 1
        await world.clock.sleep(0.1)

    ids = await submit_many(queue, 200)
    workers = [worker_of(world.queue(), count, worker_id="w", concurrency=4) for _ in range(2)]
    await asyncio.gather(*(worker.run(BURST) for worker in workers))
    assert runs == dict.fromkeys(range(200), 1)
    assert await statuses(queue, ids) == ["completed"] * 200
    assert world.keys("ready/") == []


# --- how it ends by itself -----------------------------------------------------------------


@pytest.mark.parametrize(("concurrency", "most"), [(1, 3), (16, 3), (2, 30), (16, 30)])
@virtual
async def test_max_tasks_is_exact(world: World, concurrency: int, most: int) -> None:
    queue, runs = world.queue(), 0

    async def count(_input: object) -> None:
        nonlocal runs
        runs += 1

    ids = await submit_many(queue, 40)
    await worker_of(queue, count, concurrency=concurrency).run(options(max_tasks=most))
    assert runs == most
    assert sorted(await statuses(queue, ids)) == ["completed"] * most + ["pending"] * (40 - most)


@virtual
async def test_claims_that_come_to_nothing_are_no_tasks(world: World) -> None:
    queue = world.queue()
    for _ in range(20):
        await queue.submit("unknown", {}, priority=0)
    ids = await submit_many(queue, 2)
    await worker_of(queue).run(options(max_tasks=2))
    assert await statuses(queue, ids) == ["completed"] * 2


@virtual
async def test_a_burst_ends_when_nothing_is_due(world: World) -> None:
    queue = world.queue()
    ids = await submit_many(queue, 50)
    later = await queue.submit("do", {}, schedule_at=NOW + timedelta(hours=1))
    await worker_of(queue).run(BURST)
    assert world.clock.monotonic() < 10
    assert await statuses(queue, [*ids, later.id]) == ["completed"] * 50 + ["pending"]


@pytest.mark.parametrize("shards", ["02468ace", "13579bdf", "0f"])
@virtual
async def test_a_burst_looks_at_all_its_shards(world: World, shards: str) -> None:
    queue = world.queue()
    ids = []
    for task_id in await submit_many(queue, 200):
        if queue.keys.shard(task_id) == shards[-1]:
            ids.append(task_id)
        else:
            world.bucket.delete(queue.keys.marker_key(queue.keys.first_marker(task_id)))
    assert ids
    await worker_of(queue, shards=list(shards)).run(BURST)
    assert await statuses(queue, ids) == ["completed"] * len(ids)


@virtual
async def test_a_burst_does_what_its_own_tasks_submit(world: World) -> None:
    queue, runs = world.queue(), 0

    async def chain(left: int) -> None:
        nonlocal runs
        runs += 1
        if left:
            await queue.submit("do", left - 1)

    await queue.submit("do", 30)
    await worker_of(queue, chain).run(BURST)
    assert runs == 31


@virtual
async def test_a_burst_is_not_deceived_by_a_slow_listing(world: World) -> None:
    """The listing is answered before a task submits the next one, and arrives after that ended."""
    queue = world.queue()
    inner = queue.store.list  # type: ignore[attr-defined]

    async def slow_list(*arguments: Any, **keywords: Any) -> Any:
        page = await inner(*arguments, **keywords)
        await world.clock.sleep(0.3)
        return page

    queue.store.list = slow_list  # type: ignore[method-assign]
    runs = 0

    async def chain(left: int) -> None:
        nonlocal runs
        runs += 1
        await world.clock.sleep(0.4)
        if left:
            await queue.submit("do", left - 1)

    await queue.submit("do", 5)
    await worker_of(queue, chain).run(BURST)
    assert runs == 6


# --- idling --------------------------------------------------------------------------------


@pytest.mark.parametrize("poll_interval_ms", [500, 1000])
@virtual
async def test_an_idle_worker_is_one_list_a_poll(world: World, poll_interval_ms: int) -> None:
    queue = world.queue(Keys(shard_prefix_len=2))
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options(poll_interval_ms=poll_interval_ms)))
    await world.clock.sleep(11)  # between two heartbeats
    requests(queue).requests = []
    await world.clock.sleep(100)
    of_session = {("put", "workers/"), ("list", "workers/")}
    made = Counter((kind, key.partition("/")[0] + "/") for kind, key in requests(queue).requests or [])
    assert made[("list", "ready/")] == 100_000 // poll_interval_ms
    assert {*made} <= {("list", "ready/"), *of_session}
    assert sum(made[what] for what in of_session) <= 100 / 10 + 100 / 30 + 1
    await worker.stop()
    await running


@virtual
async def test_after_work_it_looks_again_soon(world: World) -> None:
    queue = world.queue()
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(60)
    first = await queue.submit("do", {})
    done = await queue.wait(first.id)
    assert done.completed_at is not None
    assert done.completed_at - first.created_at <= timedelta(seconds=1.01)
    second = await queue.submit("do", {})
    done = await queue.wait(second.id)
    assert done.completed_at is not None
    assert done.completed_at - second.created_at <= timedelta(seconds=0.5)
    await worker.stop()
    await running


@virtual
async def test_a_store_that_is_away_is_waited_for(world: World, caplog: pytest.LogCaptureFixture) -> None:
    away = False
    queue = world.queue(plan=lambda _kind, _key: Lost() if away else None)
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(5)
    away = True
    await world.clock.sleep(1800)
    away = False
    assert not running.done()
    task = await world.queue().submit("do", {})
    done = await world.queue().wait(task.id, timeout_s=120)
    assert done.status == "completed"
    await worker.stop()
    await running
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text.split(":")[0] for text in warnings] == ["waiting for the store", "the store is back"]


@virtual
async def test_an_outcome_waits_for_the_store(world: World, caplog: pytest.LogCaptureFixture) -> None:
    away = False
    queue = world.queue(plan=lambda _kind, _key: Busy() if away else None)
    runs = 0

    async def outage(_input: object) -> str:
        nonlocal away, runs
        runs += 1
        away = True
        return "kept"

    task = await queue.submit("do", {}, timeout_seconds=3600)
    worker = worker_of(queue, outage)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(900)
    away = False
    done = await world.queue().wait(task.id, timeout_s=120)
    assert (done.output, runs) == ("kept", 1)
    await worker.stop()
    await running
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(":")[0] for text in warned] == ["waiting for the store", "the store is back"]


@virtual
async def test_where_writes_are_paced_a_worker_goes_on_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completion has to wait a second after its claim there; the slot does not."""
    monkeypatch.setattr(MemoryStore, "capabilities", Capabilities(name="paced", write_interval_s=1.0))
    store = Paced(MemoryStore(world.clock, world.bucket), world.clock)
    queue = Queue(Retrying(store, world.clock), Keys())
    ids = await submit_many(queue, 64)
    worker = worker_of(queue, concurrency=2)
    started = world.clock.monotonic()
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(0.9)
    assert worker.counters.claimed == 2 * UNSETTLED_TASKS, "but not without bound"
    for task_id in ids:
        await queue.wait(task_id)
    await worker.stop()
    await running
    assert 3 <= world.clock.monotonic() - started < 8


# --- stop ----------------------------------------------------------------------------------


@virtual
async def test_a_stop_lets_handlers_finish_and_claims_no_more(world: World) -> None:
    queue = world.queue()

    async def slow(_input: object) -> str:
        await world.clock.sleep(20)
        return "finished"

    ids = await submit_many(queue, 10)
    worker = worker_of(queue, slow, concurrency=4)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(1)
    await worker.stop()
    assert world.clock.monotonic() == pytest.approx(20, abs=0.5)
    await asyncio.wait_for(running, 1)
    assert sorted(await statuses(queue, ids)) == ["completed"] * 4 + ["pending"] * 6
    assert len(world.keys("ready/")) == 6


@virtual
async def test_what_does_not_finish_is_released_without_a_retry_spent(world: World) -> None:
    queue = world.queue()

    async def endless(_input: object) -> None:
        await world.clock.sleep(10_000)

    task = await queue.submit("do", {}, timeout_seconds=20_000)
    worker = worker_of(queue, endless)
    running = asyncio.create_task(worker.run(options(shutdown_timeout_s=5)))
    await world.clock.sleep(1)
    await worker.stop()
    await running
    assert world.clock.monotonic() == pytest.approx(6, abs=0.5)
    released = await queue.get(task.id)
    assert released is not None
    assert (released.status, released.attempt, released.retry_count) == (TaskStatus.Pending, 1, 0)
    assert (released.worker_id, released.lease_expires_at, released.last_error) == (None, None, None)
    assert len(world.keys("ready/")) == 1, "the new marker, and not the claim's"
    await worker_of(queue).run(BURST)
    done = await queue.get(task.id)
    assert done is not None
    assert (done.status, done.attempt, done.retry_count) == ("completed", 2, 0)


@pytest.mark.parametrize("reply", ["a result", ValueError("torn out of work"), None])
@virtual
async def test_what_an_interrupted_handler_says(world: World, reply: object) -> None:
    """A result counts; an error is the interruption's, and no failure of the task."""
    queue = world.queue()

    async def stubborn(_input: object) -> object:
        try:
            await world.clock.sleep(10_000)
        except asyncio.CancelledError:
            if reply is None:
                raise
            await world.clock.sleep(1)
            if isinstance(reply, Exception):
                raise reply from None
        return reply

    task = await queue.submit("do", {}, timeout_seconds=20_000, max_retries=0)
    worker = worker_of(queue, stubborn)
    running = asyncio.create_task(worker.run(options(shutdown_timeout_s=0)))
    await world.clock.sleep(1)
    await worker.stop()
    await running
    after = await queue.get(task.id)
    assert after is not None
    expected = ("completed", "a result", 0) if isinstance(reply, str) else ("pending", None, 0)
    assert (after.status, after.output, after.retry_count) == expected


@virtual
async def test_a_second_stop_hands_back_at_once(world: World) -> None:
    queue = world.queue()

    async def endless(_input: object) -> None:
        await world.clock.sleep(10_000)

    ids = await submit_many(queue, 3, timeout_seconds=20_000)
    worker = worker_of(queue, endless)
    running = asyncio.create_task(worker.run(options(shutdown_timeout_s=1000)))
    await world.clock.sleep(1)
    stops = [asyncio.create_task(worker.stop()) for _ in range(2)]
    await asyncio.gather(*stops, running)
    assert world.clock.monotonic() < 2
    assert await statuses(queue, ids) == ["pending"] * 3


@virtual
async def test_a_stop_while_idle_is_immediate_and_without_a_run_nothing(world: World) -> None:
    worker = worker_of(world.queue())
    await worker.stop()
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(60)
    before = world.clock.monotonic()
    await worker.stop()
    assert running.done() or world.clock.monotonic() == before
    await running
    assert world.clock.monotonic() == before
    await worker.stop()


@pytest.mark.parametrize("in_a_task", [False, True])
@virtual
async def test_a_handler_may_stop_its_worker(world: World, in_a_task: bool) -> None:
    queue = world.queue()
    worker = Worker(queue)

    @worker.task("do")
    async def handle(_input: object) -> str:
        await (asyncio.create_task(worker.stop()) if in_a_task else worker.stop())
        return "the last word"

    task = await queue.submit("do", {})
    await asyncio.wait_for(worker.run(options()), 60)
    done = await queue.get(task.id)
    assert done is not None
    assert done.output == "the last word"


@virtual
async def test_a_task_claimed_as_the_stop_came_is_released(world: World) -> None:
    """Its claim was under way; it is not started any more."""
    ran = False

    async def note(_input: object) -> None:
        nonlocal ran
        ran = True

    queue = world.queue()
    worker = worker_of(queue, note)

    def stop_at_claim(kind: str, key: str) -> None:
        if kind == "put" and key.startswith("tasks/") and not stopping:
            stopping.append(asyncio.ensure_future(worker.stop()))

    stopping: list[asyncio.Future[None]] = []
    queue = world.queue(plan=stop_at_claim)
    task = await queue.submit("do", {})
    await worker.run(options(), queue=queue)
    await asyncio.gather(*stopping)
    after = await queue.get(task.id)
    assert after is not None
    assert (after.status, after.attempt, after.retry_count, ran) == ("pending", 1, 0, False)


@virtual
async def test_a_stop_while_the_store_is_away_ends(world: World) -> None:
    away = False
    queue = world.queue(plan=lambda _kind, _key: Lost() if away else None)

    async def outage(_input: object) -> None:
        nonlocal away
        away = True

    task = await queue.submit("do", {})
    worker = worker_of(queue, outage)
    running = asyncio.create_task(worker.run(options(shutdown_timeout_s=5)))
    await world.clock.sleep(10)
    before = world.clock.monotonic()
    await worker.stop()
    await running
    assert world.clock.monotonic() - before < 180
    away = False
    kept = await queue.get(task.id)
    assert kept is not None
    assert kept.status == "running", "its lease will be taken back"


# --- cancelling run() ----------------------------------------------------------------------


@pytest.mark.parametrize("cancels", [1, 2])
@virtual
async def test_a_cancelled_run_leaves_no_task_of_the_loop(world: World, cancels: int) -> None:
    queue = world.queue()

    async def endless(_input: object) -> None:
        await world.clock.sleep(10_000)

    ids = await submit_many(queue, 5, timeout_seconds=20_000)
    before = asyncio.all_tasks()
    running = asyncio.create_task(worker_of(queue, endless).run(options()))
    await world.clock.sleep(1)
    assert len(asyncio.all_tasks() - before) > 5
    for _ in range(cancels):
        running.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    if cancels > 1:
        await world.clock.sleep(0.01)
    assert asyncio.all_tasks() - before == set()
    assert world.clock.monotonic() < 2
    if cancels == 1:
        assert await statuses(queue, ids) == ["pending"] * 5


@virtual
async def test_a_finished_run_leaves_no_task_of_the_loop(world: World) -> None:
    queue = world.queue()
    before = asyncio.all_tasks()
    await submit_many(queue, 5)
    await worker_of(queue).run(BURST)
    assert asyncio.all_tasks() - before == set()

    async def slow(_input: object) -> None:
        await world.clock.sleep(5)

    await submit_many(queue, 5)
    worker = worker_of(queue, slow)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(1)
    await worker.stop()
    await running
    assert asyncio.all_tasks() - before == set()


@virtual
async def test_a_run_in_a_timeout_ends_with_it(world: World) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await worker_of(world.queue()).run(options())


# --- counters ------------------------------------------------------------------------------


@virtual
async def test_counters_count(world: World) -> None:
    queue = world.queue()
    worker = Worker(queue)

    @worker.task("good")
    async def good(_input: object) -> None:
        pass

    @worker.task("bad")
    async def bad(_input: object) -> None:
        raise ValueError

    for _ in range(3):
        await queue.submit("good", {})
    await queue.submit("bad", {}, max_retries=2, retry_policy=RetryPolicy(initial_interval_ms=0))
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(10)
    counters = worker.counters
    await worker.stop()
    await running
    assert (counters.claimed, counters.completed, counters.retried, counters.failed) == (6, 3, 2, 1)
    assert (counters.claims_lost, counters.lease_lost, counters.taken_back, counters.released) == (0, 0, 0, 0)
    assert worker.counters.claimed == 0
