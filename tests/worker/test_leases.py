"""Leases: lost workers, stale workers, lost replies. Nothing is lost and nothing runs twice at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from test_run import BURST, options, statuses, submit_many, worker_of
from virtual import World, requests, virtual

from buquet import RetryPolicy, Task
from buquet._core.record import decode, encode
from buquet.errors import AccessDenied, OutcomeUnknown
from buquet.incarnation import Incarnation
from buquet.ledger import LOOKS_MS, Claim, Look
from buquet.protocol.session import Session, session_key
from buquet.protocol.session import encode as encode_session
from buquet.queue import Queue
from buquet.store.interface import FENCE_S, Always, FenceExpired
from buquet.testing.faulty import Conflict, Late, Lost, LostReply, Refused, Slow
from buquet.worker.execution import Execution
from buquet.worker.handlers import Handler

CRASHED = Incarnation("crashed", "wincarnation")
SESSION = Session(
    nonce="n", worker_id="crashed", incarnation="wincarnation", started_at="", beat_at="", lifetime_s=30
)


async def claim(queue: Queue, task_id: str, owner: Incarnation = CRASHED) -> Claim:
    """Claim a task as a worker does that is then never heard of again."""
    marker = queue.keys.first_marker(task_id)
    claimed = await queue.ledger.claim(marker, has_body=True, look=Look.MARKER, owner=owner, handles={"do"})
    assert isinstance(claimed, Claim)
    key = session_key("", owner.worker_id, owner.id)
    await queue.store.put(key, encode_session(SESSION), Always())  # which no monitor buries here
    return claimed


async def get(queue: Queue, task_id: str) -> Task:
    task = await queue.get(task_id)
    assert task is not None
    return task


def change(world: World, queue: Queue, task_id: str, **changes: Any) -> None:
    """Change a ledger behind everybody's back."""
    key = queue.keys.ledger(task_id)
    record = decode(world.bucket.get(key).body)  # type: ignore[union-attr]
    record = msgspec.structs.replace(record, rev=record.rev + 1, **changes)
    world.bucket.put(key, encode(record), Always())


# --- a lost worker -------------------------------------------------------------------------


@virtual
async def test_a_lost_worker_s_task_is_taken_back_after_its_lease(world: World) -> None:
    queue, started = world.queue(), []

    async def note(_input: object) -> None:
        started.append(world.clock.monotonic())

    task = await queue.submit("do", {}, timeout_seconds=60)
    await claim(queue, task.id)
    worker = worker_of(queue, note)
    running = asyncio.create_task(worker.run(options()))
    done = await queue.wait(task.id)
    assert worker.counters.taken_back == 1
    await world.clock.sleep(5)
    await worker.stop()
    await running
    # 60 s to run, 10 s of grace, 5 s for clocks that are off, and a few polls.
    assert 75 <= started[0] <= 80
    assert (done.status, done.attempt, done.retry_count) == ("completed", 2, 1)
    history = await queue.get_history(task.id)
    assert history[2].last_error == "WorkerLost: worker crashed was lost while it ran attempt 1"
    assert world.keys("ready/") == []


@virtual
async def test_a_task_that_kills_its_workers_runs_out_of_retries(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", {}, timeout_seconds=1, max_retries=0)
    await claim(queue, task.id)
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    failed = await queue.wait(task.id)
    await world.clock.sleep(10)
    await worker.stop()
    await running
    assert (failed.status, failed.attempt, failed.retry_count) == ("failed", 1, 0)
    assert failed.last_error == "WorkerLost: worker crashed was lost while it ran attempt 1"
    assert world.keys("ready/") == []


@virtual
async def test_a_live_lease_costs_its_waiters_next_to_nothing(world: World) -> None:
    queue = world.queue()
    for task_id in await submit_many(queue, 20, timeout_seconds=600):
        await claim(queue, task_id)
    waiting = world.queue()
    requests(waiting).requests = []
    worker = worker_of(waiting)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(590)
    made = [made for made in requests(waiting).requests or [] if not made[1].startswith("workers/")]
    # The first look, and then a look at ledger and session each.
    assert sum(kind in {"get", "put"} for kind, _ in made) <= (3 + len(LOOKS_MS)) * 20
    await worker.stop()
    await running


@pytest.mark.parametrize("fault", [Lost(), LostReply()])
@virtual
async def test_a_worker_takes_back_what_it_does_not_know_that_it_claimed(world: World, fault: Any) -> None:
    """Its claim stayed undecided until it gave up; nobody else is there."""
    away = False
    queue = world.queue(plan=lambda kind, key: fault if away and key.startswith("tasks/") else None)
    runs = 0

    async def count(_input: object) -> None:
        nonlocal runs
        runs += 1

    task = await queue.submit("do", {}, timeout_seconds=30)
    away = True
    worker = worker_of(queue, count)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(100)
    away = False
    done = await queue.wait(task.id, timeout_s=300)
    await worker.stop()
    await running
    assert (done.status, runs) == ("completed", 1)
    if isinstance(fault, Lost):
        # Nothing had been claimed. By chance a claim takes so long to be won that its lease is nearly over,
        # and is handed back.
        assert (done.attempt in {1, 2}, done.retry_count) == (True, 0)
    else:
        assert (done.attempt, done.retry_count) == (2, 1)


@virtual
async def test_a_worker_takes_back_what_it_claimed_and_could_not_settle(world: World) -> None:
    """Its own ledger was unreadable for a while, so it dropped the outcome; nobody else is there."""
    queue, runs = world.queue(), 0

    async def spoil(_input: object) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            key = queue.keys.ledger(task.id)
            spoiled.append(world.bucket.get(key).body)  # type: ignore[union-attr]
            world.bucket.put(key, b"not JSON", Always())

    spoiled: list[bytes] = []
    task = await queue.submit("do", {}, timeout_seconds=30)
    worker = worker_of(queue, spoil)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(10)
    world.bucket.put(queue.keys.ledger(task.id), spoiled[0], Always())
    done = await queue.wait(task.id, timeout_s=300)
    await worker.stop()
    await running
    assert (done.status, done.attempt, runs) == ("completed", 2, 2)


@virtual
async def test_the_marker_of_a_retry_is_not_mistaken_for_the_claim_s(world: World) -> None:
    """It is seen before the ledger is written; whoever saw it comes back soon, not after the lease."""
    queue = world.queue()
    task = await queue.submit("do", {}, timeout_seconds=3000)
    held = await claim(queue, task.id)
    early = held.record.attempt
    due_ms = queue.store.time.now_ms()
    marker = msgspec.structs.replace(held.record, status="pending")
    key = queue.keys.marker_key(queue.keys.marker_of(marker)).replace("-0000", f"-{early:04x}")
    world.bucket.put(key, b"", Always())
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(1)
    change(world, queue, task.id, status="pending", lease_id=None, lease_expires_at=None, worker_id=None)
    done = await queue.wait(task.id, timeout_s=5)
    await worker.stop()
    await running
    assert done.status == "completed"
    assert due_ms > 0


# --- a stale worker ------------------------------------------------------------------------


@virtual
async def test_a_stale_worker_s_outcome_is_dropped(world: World, caplog: pytest.LogCaptureFixture) -> None:
    queue = world.queue()

    async def overtaken(_input: object) -> str:
        change(world, queue, task.id, lease_id="another", worker_id="another", nonce="another")
        return "stale"

    task = await queue.submit("do", {})
    worker = worker_of(queue, overtaken)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(5)
    assert (worker.counters.lease_lost, worker.counters.completed) == (1, 0)
    await worker.stop()
    await running
    after = await get(queue, task.id)
    assert (after.status, after.worker_id, after.output) == ("running", "another", None)
    assert f"task {task.id}: lease lost, outcome completed dropped" in caplog.text
    assert len(world.keys("ready/")) == 1, "the running task keeps its marker"


@virtual
async def test_a_stop_with_nothing_left_to_say_leaves_no_task_of_the_loop(world: World) -> None:
    queue = world.queue()

    async def overtaken(_input: object) -> None:
        change(world, queue, task.id, lease_id="another", nonce="another")
        await world.clock.sleep(5)

    before = asyncio.all_tasks()
    task = await queue.submit("do", {})
    worker = worker_of(queue, overtaken)

    def stop_as_a_signal_does() -> None:
        assert worker._run is not None
        worker._run.stop()

    world.clock.loop.call_later(1, stop_as_a_signal_does)
    await worker.run(options())
    assert asyncio.all_tasks() - before == set()


@pytest.mark.parametrize("outcome", [None, ValueError("x")])
@virtual
async def test_a_completion_merges_with_a_cancel_request(world: World, outcome: Exception | None) -> None:
    queue = world.queue()

    async def cancelled_meanwhile(_input: object) -> str:
        change(world, queue, task.id, cancel_requested_at="2027-01-15T08:00:00.000Z", nonce="the canceller's")
        if outcome is not None:
            raise outcome
        return "done all the same"

    task = await queue.submit("do", {})
    await worker_of(queue, cancelled_meanwhile).run(BURST)
    after = await get(queue, task.id)
    if outcome is None:
        assert (after.status, after.output) == ("completed", "done all the same")
    else:
        assert (after.status, after.retry_count, after.last_error) == ("failed", 0, "ValueError: x")


@virtual
async def test_a_cancelled_pending_task_is_failed_not_run(world: World) -> None:
    queue, runs = world.queue(), 0

    async def fail(_input: object) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("x")

    policy = RetryPolicy(initial_interval_ms=5000)
    task = await queue.submit("do", {}, retry_policy=policy)
    worker = worker_of(queue, fail)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(2)
    change(world, queue, task.id, cancel_requested_at="2027-01-15T08:00:00.000Z", nonce="c")
    failed = await queue.wait(task.id, timeout_s=60)
    await world.clock.sleep(60)
    await worker.stop()
    await running
    assert (failed.status, failed.last_error, runs) == ("failed", "Cancelled: cancellation was requested", 1)
    assert world.keys("ready/") == []


# --- lost replies --------------------------------------------------------------------------


def once(kind: str, prefix: str, fault: Any, number: int = 1) -> Callable[[str, str], Any]:
    """Let the n-th request of a kind meet a fault."""
    seen = 0

    def plan(asked: str, key: str) -> Any:
        nonlocal seen
        if asked == kind and key.startswith(prefix):
            seen += 1
            return fault if seen == number else None
        return None

    return plan


@pytest.mark.parametrize("fault", [Lost(), LostReply(), Conflict(), Late(3.0), Late(60.0)])
@pytest.mark.parametrize(
    ("kind", "prefix", "number"),
    [
        ("put", "tasks/", 1),  # the claim
        ("put", "tasks/", 2),  # back to pending
        ("put", "tasks/", 3),  # the second claim
        ("put", "tasks/", 4),  # the completion
        ("put", "ready/", 2),  # the marker of the retry
        ("get", "ready/", 1),
        ("get", "tasks/", 1),
        ("list", "ready/", 1),
        ("delete_many", "ready/", 1),
    ],
)
@virtual
async def test_one_fault_anywhere_neither_loses_nor_doubles(
    world: World, fault: Any, kind: str, prefix: str, number: int
) -> None:
    runs = 0

    async def fail_once(_input: object) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError
        return runs

    queue = world.queue(plan=once(kind, prefix, fault, number))
    task = await queue.submit("do", {}, 20, retry_policy=RetryPolicy(initial_interval_ms=10))
    worker = worker_of(queue, fail_once)
    running = asyncio.create_task(worker.run(options()))
    done = await world.queue().wait(task.id, timeout_s=600)
    await world.clock.sleep(90)  # what a late request left behind is seen when the lease would end
    await worker.stop()
    await running
    assert (done.status, done.output, done.attempt, done.retry_count, runs) == ("completed", 2, 2, 1, 2)
    assert await get(queue, task.id) == done
    assert world.keys("ready/") == []


@virtual
async def test_a_refusal_ends_the_run_after_its_handlers(world: World) -> None:
    refused = False
    queue = world.queue(
        plan=lambda kind, _key: Refused(AccessDenied("not any more")) if refused and kind == "list" else None
    )

    async def slow(_input: object) -> str:
        await world.clock.sleep(5)
        return "finished"

    task = await queue.submit("do", {})
    running = asyncio.create_task(worker_of(queue, slow).run(options()))
    await world.clock.sleep(1)
    refused = True
    with pytest.raises(AccessDenied, match="not any more"):
        await running
    assert (await get(queue, task.id)).output == "finished"


@virtual
async def test_a_claim_that_rests_on_an_old_read_is_not_written(world: World) -> None:
    """The read took longer than the fence allows."""
    queue = world.queue(plan=once("get", "ready/", Slow(FENCE_S + 1)))
    task = await queue.submit("do", {})
    with pytest.raises(FenceExpired):
        await claim(queue, task.id)
    assert world.keys("tasks/") == []


@virtual
async def test_a_claim_whose_lease_has_ended_already_is_not_run(world: World) -> None:
    """Its reply came late; by now another may own the task."""
    queue, ended = world.queue(), []

    async def handler(_input: object) -> None:
        await world.clock.sleep(1)
        ended.append(1)

    task = await queue.submit("do", {}, timeout_seconds=20)
    held = await claim(queue, task.id)
    await world.clock.sleep(31)
    outcome = await Execution(held, Handler(handler), queue).run()
    assert (outcome.status, outcome.error) == ("pending", "TimeoutError: the handler ran longer than 0 s")
    assert ended == []


@virtual
async def test_a_worker_that_loses_many_claims_looks_before_it_writes(world: World) -> None:
    """A refused PUT costs thirteen reads (rule 7)."""
    queue = world.queue()
    for task_id in await submit_many(queue, 200, timeout_seconds=3600):
        await claim(queue, task_id)
    (fresh,) = await submit_many(queue, 1, priority=9)
    contended = world.queue()
    asked = requests(contended).requests = []
    worker = worker_of(contended, concurrency=1)
    running = asyncio.create_task(worker.run(options()))
    done = await queue.wait(fresh, timeout_s=60)
    assert done.status == "completed"
    assert worker.counters.claims_lost == 1
    written = [key for kind, key in asked if kind == "put" and key.startswith("tasks/")]
    assert len(written) == 3
    await worker.stop()
    await running


# --- what others left in the bucket ----------------------------------------------------------


@virtual
async def test_what_cannot_be_read_is_left_alone_and_stops_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    queue = world.queue()
    poison, newer, fine = await submit_many(queue, 3)
    for task_id, body in ((poison, b"not JSON"), (newer, b'{"v": 2}')):
        world.bucket.put(queue.keys.marker_key(queue.keys.first_marker(task_id)), body, Always())
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(30)
    await worker.stop()
    await running
    assert (await get(queue, fine)).status == "completed"
    assert len(world.keys("ready/")) == 2
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2


@virtual
async def test_markers_that_are_garbage_are_deleted(world: World) -> None:
    queue = world.queue()
    done, waiting = await submit_many(queue, 2)
    await worker_of(queue).run(options(max_tasks=2))
    garbage = [
        queue.keys.marker_key(queue.keys.first_marker(done)),
        queue.keys.marker_key(queue.keys.first_marker(waiting)).replace("-0000", "-0001"),
        "ready/0/5/000000000001-018bcfe5-6800-7000-9400-0000000000ab-0003",
    ]
    for key in garbage:
        world.bucket.put(key, b"", Always())
    await worker_of(queue).run(BURST)
    assert world.keys("ready/") == []
    assert await statuses(queue, [done, waiting]) == ["completed"] * 2


@virtual
async def test_a_marker_of_version_8_is_nothing_without_its_ledger(world: World) -> None:
    """Rule 1: its submitter writes the ledger a moment later, or never."""
    queue = world.queue()
    first = await queue.submit("do", "through its ledger")
    body = world.bucket.get(world.keys("ready/")[0]).body  # type: ignore[union-attr]
    world.bucket.delete(world.keys("ready/")[0])
    task_id = first.id[:14] + "8" + first.id[15:]
    record = msgspec.structs.replace(decode(body), id=task_id)
    marker = queue.keys.marker_key(queue.keys.marker_of(record))
    world.bucket.put(marker, encode(record), Always())
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(5)
    assert world.keys("tasks/") == []
    assert world.keys("ready/") == [marker]
    world.bucket.put(queue.keys.ledger(task_id), encode(record), Always())
    done = await queue.wait(task_id, timeout_s=10)
    await worker.stop()
    await running
    assert (done.status, done.attempt) == ("completed", 1)


# --- the steps themselves ------------------------------------------------------------------


@virtual
async def test_of_many_claims_at_once_one_wins(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", {})
    marker = queue.keys.first_marker(task.id)
    attempts = await asyncio.gather(
        *(
            world.queue().ledger.claim(
                marker,
                has_body=True,
                look=look,
                owner=Incarnation(f"w{number}", "i"),
                handles={"do"},
            )
            for number, look in enumerate([Look.MARKER, Look.BOTH] * 20)
        )
    )
    won = [attempt for attempt in attempts if isinstance(attempt, Claim)]
    assert len(won) == 1
    assert (await get(queue, task.id)).worker_id == won[0].record.worker_id


@virtual
async def test_of_many_take_backs_at_once_one_counts(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", {}, timeout_seconds=1)
    await claim(queue, task.id)
    await world.clock.sleep(20)
    loaded = [await queue.ledger.load(task.id) for _ in range(10)]
    taken = await asyncio.gather(*(queue.ledger.take_back(one) for one in loaded if one is not None))
    assert sum(taken) == 1
    after = await get(queue, task.id)
    assert (after.status, after.retry_count) == ("pending", 1)
    assert len(world.keys("ready/")) == 2


@virtual
async def test_an_undecided_outcome_can_be_asked_about_again(world: World) -> None:
    from buquet.protocol.task import TaskStatus
    from buquet.protocol.transitions import Outcome

    away = True
    queue = world.queue(plan=lambda kind, key: LostReply() if away and kind == "put" else None)
    task = await world.queue().submit("do", {})
    held = await claim(world.queue(), task.id)
    outcome = Outcome(TaskStatus.Completed, queue.ledger.mint_nonce(), queue.store.time.now_ms(), output=b"1")
    with pytest.raises(OutcomeUnknown):
        await queue.ledger.settle(held, outcome)
    away = False
    settled = await queue.ledger.settle(held, outcome)
    assert settled is not None
    assert (settled.status, settled.rev) == ("completed", 2), "written once"
