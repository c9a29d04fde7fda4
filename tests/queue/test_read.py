"""get(), get_history(), now(), wait() and list_ready()."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from virtual import World, requests, virtual

from buquet import RetryPolicy, TaskStatus, Worker, WorkerRunOptions
from buquet._core import ident
from buquet._core.rfc3339 import parse_ms
from buquet.errors import ForeignKey, NewerLayout, PoisonRecord
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.interface import Always
from buquet.testing.clock import START

BURST = WorkerRunOptions(burst=True, with_monitor=False)
NOW = datetime.fromtimestamp(START, UTC)

MALFORMED = [
    "",
    "x",
    "018bcfe5680070009400" + "0" * 12,
    "018BCFE5-6800-7000-9400-0000000000AB",
    "{018bcfe5-6800-7000-9400-0000000000ab}",
    "018bcfe5-6800-4000-9400-0000000000ab",
    "018bcfe5-6800-7000-9400-0000000000ab/../../x",
]

UNKNOWN = [
    ident.mint(1_800_000_000_000, 5, 7),
    "018bcfe5-6800-7000-bfff-0000000000ab",  # of version 7, but not made here
    "018bcfe5-6800-8000-9400-0000000000ab",  # of version 8
]


async def run_all(queue: Queue, **handlers: object) -> None:
    """Work off what is due; each keyword is a task type and what its handler returns or raises."""
    worker = Worker(queue, "w")
    for task_type, result in handlers.items():

        @worker.task(task_type)
        async def handle(_input: object, result: object = result) -> object:
            if isinstance(result, Exception):
                raise result
            return result

    await worker.run(BURST)


# --- get and get_history -------------------------------------------------------------------


@pytest.mark.parametrize("task_id", MALFORMED)
@virtual
async def test_a_malformed_id_is_a_value_error(world: World, task_id: str) -> None:
    queue = world.queue()
    for read in (queue.get, queue.get_history, queue.wait):
        with pytest.raises(ValueError, match="is not a task id"):
            await read(task_id)
    assert requests(queue).total == 0


@pytest.mark.parametrize("task_id", UNKNOWN)
@virtual
async def test_an_unknown_task_is_none(world: World, task_id: str) -> None:
    queue = world.queue()
    assert await queue.get(task_id) is None
    assert await queue.get_history(task_id) == []
    with pytest.raises(LookupError, match=f"there is no task {task_id}"):
        await queue.wait(task_id)


@virtual
async def test_a_task_is_read_wherever_it_stands(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("mail", {"n": 1})
    assert await queue.get(task.id) == task
    await run_all(queue, mail={"sent": True})
    assert world.keys("ready/") == []
    done = await queue.get(task.id)
    assert done is not None
    assert (done.status, done.output, done.input) == (TaskStatus.Completed, {"sent": True}, {"n": 1})


@virtual
async def test_a_claim_between_the_two_reads_hides_nothing(world: World) -> None:
    """The ledger is not there yet, then the marker is not there any more: the ledger is read again."""
    queue = world.queue()
    task = await queue.submit("mail", {})
    first_marker = queue.keys.marker_key(queue.keys.first_marker(task.id))
    overtaken = asyncio.Event()

    def plan(kind: str, key: str) -> None:
        if (kind, key) == ("get", first_marker):
            body = world.bucket.get(first_marker).body  # type: ignore[union-attr]
            world.bucket.put(queue.keys.ledger(task.id), body, Always())
            world.bucket.delete(first_marker)
            overtaken.set()

    assert await world.queue(plan=plan).get(task.id) == task
    assert overtaken.is_set()


@virtual
async def test_what_cannot_be_read_is_told_apart(world: World) -> None:
    queue = world.queue()
    task_id = UNKNOWN[0]
    for body, error in ((b"hello", PoisonRecord), (b'{"v": 2}', NewerLayout)):
        world.bucket.put(queue.keys.ledger(task_id), body, Always())
        for read in (queue.get, queue.get_history, queue.wait):
            with pytest.raises(error, match=task_id):
                await read(task_id)


@virtual
async def test_a_history_is_the_task_s_life(world: World) -> None:
    queue = world.queue()
    policy = RetryPolicy(initial_interval_ms=0)
    task = await queue.submit("mail", {}, max_retries=1, retry_policy=policy)
    assert await queue.get_history(task.id) == [task]
    await run_all(queue, mail=ValueError("no"))
    history = await queue.get_history(task.id)
    assert [(seen.status.value, seen.attempt) for seen in history] == [
        ("pending", 0),
        ("running", 1),
        ("pending", 1),
        ("running", 2),
        ("failed", 2),
    ]
    assert history[0] == task
    assert history[-1] == await queue.get(task.id)
    assert history[-1].last_error == "ValueError: no"


# --- now -----------------------------------------------------------------------------------


@virtual
async def test_now_is_the_store_s_time_and_seldom_a_request(world: World) -> None:
    queue = world.queue()
    assert await queue.now() == "2027-01-15T08:00:00.000Z"
    assert requests(queue).counts == {"head": 1}
    await world.clock.sleep(3600)
    assert abs(parse_ms(await queue.now()) - (START + 3600) * 1000) <= 2000
    assert requests(queue).counts == {"head": 1}
    await world.clock.sleep(6 * 3600)
    assert abs(parse_ms(await queue.now()) - (START + 7 * 3600) * 1000) <= 2
    assert requests(queue).counts == {"head": 2}


@virtual
async def test_now_goes_with_the_helpers(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("mail", {}, schedule_at=NOW + timedelta(minutes=1))
    assert not task.is_available_at(await queue.now())
    await world.clock.sleep(61)
    assert task.is_available_at(await queue.now())


# --- wait ----------------------------------------------------------------------------------


@virtual
async def test_wait_returns_the_terminal_task(world: World) -> None:
    queue = world.queue()
    good, bad = await queue.submit("good", {}), await queue.submit("bad", {}, max_retries=0)
    waiting = asyncio.gather(queue.wait(good.id), queue.wait(bad.id))
    await world.clock.sleep(30)
    assert not waiting.done()
    await run_all(queue, good=1, bad=ValueError("x"))
    completed, failed = await waiting
    assert (completed.status, completed.output) == (TaskStatus.Completed, 1)
    assert (failed.status, failed.last_error) == (TaskStatus.Failed, "ValueError: x")


@virtual
async def test_wait_ends_in_time(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("mail", {})
    before = world.clock.monotonic()
    with pytest.raises(TimeoutError):
        await queue.wait(task.id, timeout_s=5)
    assert world.clock.monotonic() - before == pytest.approx(5)


@virtual
async def test_wait_reads_often_at_first_then_every_two_seconds(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("mail", {})
    await run_all(queue, other=1)  # the marker is there, the ledger is not: two reads a look
    requests(queue).counts.clear()
    with pytest.raises(TimeoutError):
        await queue.wait(task.id, timeout_s=0.04)
    assert requests(queue).counts == {"get": 2}
    with pytest.raises(TimeoutError):
        await queue.wait(task.id, timeout_s=0.06)
    assert requests(queue).counts == {"get": 2 + 4}
    requests(queue).counts.clear()
    with pytest.raises(TimeoutError):
        await queue.wait(task.id, timeout_s=205)
    assert 100 <= requests(queue).counts["get"] / 2 <= 115


# --- list_ready ----------------------------------------------------------------------------


@virtual
async def test_list_ready_is_one_list_of_what_is_due_most_urgent_first(world: World) -> None:
    queue = world.queue()
    tasks = [await queue.submit("mail", {}, priority=number % 10) for number in range(200)]
    await queue.submit("mail", {}, schedule_at=NOW + timedelta(hours=1))
    requests(queue).counts.clear()
    for shard in queue.keys.shards():
        mine = [task for task in tasks if queue.keys.shard(task.id) == shard]
        expected = [task.id for task in sorted(mine, key=lambda task: (task.priority, task.id))]
        assert await queue.list_ready(shard) == expected
        assert await queue.list_ready(shard, limit=3) == expected[:3]
        assert await queue.list_ready(shard, limit=0) == []
    assert set(requests(queue).counts) == {"list"}
    assert requests(queue).counts["list"] == 16 * 3


@virtual
async def test_a_task_is_ready_once_whatever_markers_it_has(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("mail", {})
    marker = queue.keys.first_marker(task.id)
    retry = queue.keys.marker_key(marker).replace("-0000", "-0001")
    world.bucket.put(retry, b"", Always())
    assert await queue.list_ready(marker.shard) == [task.id]


@virtual
async def test_what_is_nobody_s_is_passed_over(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("mail", {})
    shard = queue.keys.shard(task.id)
    for junk in (f"ready/{shard}/notes.txt", f"ready/{shard}/5/junk", f"ready/{shard}/5/~"):
        world.bucket.put(junk, b"x", Always())
    assert await queue.list_ready(shard) == [task.id]


@pytest.mark.parametrize("shard", ["", "g", "A", "00", "0/", None, 0])
@virtual
async def test_what_is_no_shard_is_refused(world: World, shard: object) -> None:
    queue = world.queue()
    for read in (queue.list_ready, queue.list):
        with pytest.raises(
            ValueError, match="is not a shard: this queue's shards are 1 lower-case hex digits"
        ):
            await read(shard)  # type: ignore[operator]


@pytest.mark.parametrize("limit", [-1, 1_000_001])
@virtual
async def test_a_limit_out_of_range_is_refused(world: World, limit: int) -> None:
    queue = world.queue()
    for read in (queue.list_ready, queue.list):
        with pytest.raises(ValueError, match="limit must be between 0"):
            await read("0", limit=limit)  # type: ignore[operator]


@virtual
async def test_two_shards_of_another_layout_are_an_error(world: World) -> None:
    await world.queue(Keys(shard_prefix_len=2)).submit("mail", {})
    worker = Worker(world.queue(), "w")
    worker.task("mail")(print)
    with pytest.raises(ForeignKey, match="a shard of 2 digits, this queue has 1"):
        await worker.run(BURST)


@virtual
async def test_a_task_instead_of_its_id_is_named(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    for call in (queue.get, queue.get_history, queue.wait, queue.requeue, queue.archive):
        with pytest.raises(TypeError, match=r"`task\.id`, not Task"):
            await call(task)  # type: ignore[arg-type]
