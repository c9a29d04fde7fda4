"""Failed tasks: the index of them, requeueing and archiving (rules 16, 19 and 21)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fleet import FOR_EVER, Line, claim, end, record_of, worker_of
from virtual import World, requests, virtual

from buquet import PermanentError, RetryPolicy, Task, WorkerRunOptions
from buquet._core.record import decode, encode
from buquet.deadletters import UNWRITTEN_S
from buquet.queue import Queue
from buquet.store.interface import Always
from buquet.testing.faulty import Fault, Late, LostReply

BURST = WorkerRunOptions(burst=True, with_monitor=False)


async def fail(_input: object) -> None:
    raise PermanentError("no use")


async def ended_tasks(queue: Queue, count: int = 1, *, status: str = "failed", **arguments: Any) -> list[str]:
    """Run tasks to their end."""
    ids = [(await queue.submit("do", number, **arguments)).id for number in range(count)]
    await worker_of(queue, fail if status == "failed" else None).run(BURST)
    return ids


async def get(queue: Queue, task_id: str) -> Task:
    task = await queue.get(task_id)
    assert task is not None
    return task


def rewrite(world: World, queue: Queue, task_id: str, **changes: Any) -> None:
    key = queue.keys.ledger(task_id)
    record = decode(world.bucket.get(key).body)  # type: ignore[union-attr]
    world.bucket.put(key, encode(msgspec.structs.replace(record, **changes)), Always())


# --- the index -----------------------------------------------------------------------------


@virtual
async def test_failed_tasks_are_listed(world: World) -> None:
    queue = world.queue()
    await ended_tasks(queue, 3, status="completed")
    failed = await ended_tasks(queue, 5)
    other = await queue.submit("other", None)
    worker = worker_of(queue)
    worker.task("other")(fail)
    await worker.run(BURST)
    listed = await queue.list_failed()
    assert {task.id for task in listed} == {*failed, other.id}
    assert {task.last_error for task in listed} == {"PermanentError: no use"}
    assert [task.id for task in await queue.list_failed(task_type="other")] == [other.id]
    assert len(await queue.list_failed(limit=2)) == 2
    assert await queue.list_failed(limit=0) == []
    for limit in (-1, True, 1.5):
        with pytest.raises((ValueError, TypeError)):
            await queue.list_failed(limit=limit)  # type: ignore[arg-type]


@virtual
async def test_the_entry_is_written_before_the_record(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    requests(queue).requests = asked = []
    await worker_of(queue, fail).run(BURST)
    puts = [key.split("/")[0] for kind, key in asked if kind == "put" and not key.startswith("workers/")]
    assert puts == ["tasks", "failed", "tasks"]
    assert world.keys("failed/") == [queue.keys.failed(task.id)]


@pytest.mark.parametrize("status", ["pending", "running", "completed", "archived"])
@virtual
async def test_an_entry_is_verified_by_the_ledger(world: World, status: str) -> None:
    """It is deleted only if the ledger is archived, or terminal but not failed."""
    queue = world.queue()
    (task_id,) = await ended_tasks(queue)
    changes: dict[str, Any] = {"status": status}
    if status == "running":
        changes |= {"lease_id": "x", "lease_expires_at": "2027-01-15T09:00:00.000Z"}
    rewrite(world, queue, task_id, **changes)
    await world.clock.sleep(3600)
    assert await queue.list_failed() == []
    assert len(world.keys("failed/")) == (status in {"pending", "running"})


@virtual
async def test_an_entry_without_a_ledger_stays_for_twenty_minutes(world: World) -> None:
    queue = world.queue()
    (task_id,) = await ended_tasks(queue)
    world.bucket.delete(queue.keys.ledger(task_id))
    for age_s, left in ((UNWRITTEN_S - 5, 1), (10, 0)):
        await world.clock.sleep(age_s)
        assert await queue.list_failed() == []
        assert len(world.keys("failed/")) == left


@virtual
async def test_what_cannot_be_read_stops_no_listing(world: World) -> None:
    queue = world.queue()
    ids = await ended_tasks(queue, 3)
    world.bucket.put(queue.keys.ledger(ids[0]), b"junk", Always())
    body = world.bucket.get(queue.keys.ledger(ids[1])).body  # type: ignore[union-attr]
    world.bucket.put(queue.keys.ledger(ids[1]), body.replace(b'"v":1', b'"v":2'), Always())
    world.bucket.put("failed/junk", b"", Always())
    assert [task.id for task in await queue.list_failed()] == [ids[2]]
    assert len(world.keys("failed/")) == 4


@virtual
async def test_more_failed_tasks_than_a_page(world: World) -> None:
    queue = world.queue()
    ids = await ended_tasks(queue, 1005)
    requests(queue).counts.clear()
    assert {task.id for task in await queue.list_failed(limit=2000)} == set(ids)
    assert requests(queue).counts == {"list": 2, "get": 1005}


# --- requeue -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["failed", "completed"])
@virtual
async def test_a_requeued_task_does_the_work_again(world: World, status: str) -> None:
    queue = world.queue()
    policy = RetryPolicy(initial_interval_ms=7)
    (old_id,) = await ended_tasks(
        queue, status=status, priority=2, max_retries=1, timeout_seconds=77, retry_policy=policy
    )
    old = await get(queue, old_id)
    await world.clock.sleep(50)
    new = await queue.requeue(old_id)
    assert (new.task_type, new.input, new.priority) == ("do", 0, 2)
    assert (new.timeout_seconds, new.max_retries, new.retry_policy) == (77, 1, policy)
    assert (new.status, new.retry_count, new.attempt, new.requeue_of) == ("pending", 0, 0, old_id)
    assert new.available_at == old.completed_at
    archived = await get(queue, old_id)
    assert (archived.status, archived.requeued_as) == ("archived", new.id)
    assert (archived.last_error, archived.output) == (old.last_error, old.output)
    assert await queue.list_failed() == []
    assert world.keys("failed/") == []
    seen: list[Any] = []

    async def note(input: Any) -> None:
        seen.append(input)

    await worker_of(queue, note).run(BURST)
    assert (seen, (await get(queue, new.id)).status) == ([0], "completed")


@virtual
async def test_requeueing_twice_makes_one_task(world: World) -> None:
    """At once from two callers, and again before and after the new task has run."""
    queue, other = world.queue(), world.queue()
    (old_id,) = await ended_tasks(queue)
    first, second = await asyncio.gather(queue.requeue(old_id), other.requeue(old_id))
    assert first.id == second.id == (await queue.requeue(old_id)).id
    assert len(world.keys("ready/")) == 1
    await worker_of(queue).run(BURST)
    again = await queue.requeue(old_id)
    assert (again.id, again.status) == (first.id, "completed")
    await worker_of(queue).run(BURST)
    assert len(world.keys("tasks/")) == 2
    assert record_of(world, queue, first.id).attempt == 1


@pytest.mark.parametrize("last", [FOR_EVER, LostReply(), Late(30)], ids=str)
@pytest.mark.parametrize("runs_meanwhile", [False, True])
@virtual
async def test_a_crash_at_any_request_is_mended_by_the_next_call(
    world: World, last: Fault, runs_meanwhile: bool
) -> None:
    for n in range(8):
        queue, line = world.queue(), Line(cut_after=n, last=last)
        (old_id,) = await ended_tasks(queue)
        calling = asyncio.create_task(world.queue(plan=line).requeue(old_id))
        await world.clock.sleep(3)
        await end(calling)
        if runs_meanwhile:
            await worker_of(queue).run(BURST)
        new = await queue.requeue(old_id)
        await world.clock.sleep(60)
        await worker_of(queue).run(BURST)
        record = record_of(world, queue, new.id)
        assert (record.status, record.attempt, record.requeue_of) == ("completed", 1, old_id), n
        old = record_of(world, queue, old_id)
        assert (old.status, old.requeued_as) == ("archived", new.id), n
        assert world.keys("ready/") == [], n
    assert not line.is_cut
    assert len(world.keys("tasks/")) == 16


@virtual
async def test_the_new_task_is_archived_only_after_the_old_one(world: World) -> None:
    """Its requeueing crashed between the two writes: the archiving completes that first."""
    queue, line = world.queue(), Line(cut_after=2)
    (old_id,) = await ended_tasks(queue)
    calling = asyncio.create_task(world.queue(plan=line).requeue(old_id))
    await world.clock.sleep(3)
    await end(calling)
    (new_id,) = (key.split("-", 1)[1].rsplit("-", 1)[0] for key in world.keys("ready/"))
    await worker_of(queue).run(BURST)
    assert record_of(world, queue, old_id).status == "failed"
    await queue.archive(new_id)
    old = record_of(world, queue, old_id)
    assert (old.status, old.requeued_as) == ("archived", new_id)
    assert record_of(world, queue, new_id).status == "archived"
    assert (await queue.requeue(old_id)).id == new_id


@virtual
async def test_what_cannot_be_requeued_says_why(world: World) -> None:
    queue = world.queue()
    waiting = await queue.submit("other", None)
    running = await queue.submit("do", None)
    await claim(queue, running.id)
    (archived,) = await ended_tasks(queue)
    await queue.archive(archived)
    cases: list[tuple[str, type[Exception], str]] = [
        ("junk", ValueError, "not a task id"),
        (waiting.id, LookupError, "there is no ended task"),
        (running.id, ValueError, "only a task that has ended"),
        (archived, ValueError, "is archived"),
    ]
    for task_id, error, message in cases:
        with pytest.raises(error, match=message):
            await queue.requeue(task_id)
    assert len(world.keys("ready/")) == 2


@virtual
async def test_a_new_task_that_has_been_removed_is_told(world: World) -> None:
    queue = world.queue()
    (old_id,) = await ended_tasks(queue)
    new = await queue.requeue(old_id)
    await worker_of(queue).run(BURST)
    world.bucket.delete(queue.keys.ledger(new.id))
    with pytest.raises(LookupError, match=f"was requeued as {new.id}, which has been removed"):
        await queue.requeue(old_id)
    assert world.keys("ready/") == []


@virtual
async def test_many_are_requeued_and_none_stops_the_others(world: World) -> None:
    queue = world.queue()
    ids = await ended_tasks(queue, 70)
    asked = [*ids[:40], "junk", *ids[40:], ids[0]]
    got = [(task_id, outcome) async for task_id, outcome in queue.requeue_many(iter(asked))]
    assert [task_id for task_id, _ in got] == asked
    assert isinstance(got[40][1], ValueError)
    tasks = [outcome for _, outcome in got if isinstance(outcome, Task)]
    assert [task.requeue_of for task in tasks] == [*ids, ids[0]]
    assert len({task.id for task in tasks}) == 70
    assert len(world.keys("ready/")) == 70


@virtual
async def test_a_task_may_be_requeued_again_as_itself(world: World) -> None:
    """The requeued task fails too; requeueing it makes a third."""
    queue = world.queue()
    (first,) = await ended_tasks(queue)
    ids = [first]
    for _ in range(3):
        ids.append((await queue.requeue(ids[-1])).id)
        await worker_of(queue, fail).run(BURST)
    assert len(set(ids)) == 4
    assert [record_of(world, queue, task_id).status for task_id in ids] == ["archived"] * 3 + ["failed"]
    assert [task.id for task in await queue.list_failed()] == ids[-1:]


# --- archive by id -------------------------------------------------------------------------


@virtual
async def test_an_archived_task_keeps_its_outcome(world: World) -> None:
    queue = world.queue()
    (completed,) = await ended_tasks(queue, status="completed")
    for _ in range(2):
        task = await queue.archive(completed)
        assert (task.status, task.completed_at) == ("archived", (await get(queue, completed)).completed_at)
    assert [one.status for one in await queue.get_history(completed)][-2:] == ["completed", "archived"]
    assert (await queue.wait(completed)).status == "archived"


@virtual
async def test_what_cannot_be_archived_says_why(world: World) -> None:
    queue = world.queue()
    waiting = await queue.submit("other", None)
    running = await queue.submit("do", None)
    await claim(queue, running.id)
    for task_id, error in (("junk", ValueError), (waiting.id, LookupError), (running.id, ValueError)):
        with pytest.raises(error):
            await queue.archive(task_id)


CALLS: list[Callable[[Queue, str], Any]] = [Queue.requeue, Queue.archive]


@pytest.mark.parametrize("call", CALLS)
@virtual
async def test_a_poison_record_is_an_error(world: World, call: Callable[[Queue, str], Any]) -> None:
    queue = world.queue()
    for field in ("completed_at", "first_due"):
        (task_id,) = await ended_tasks(queue)
        rewrite(world, queue, task_id, **{field: "yesterday"})
        with pytest.raises(ValueError, match="yesterday"):
            await call(queue, task_id)
