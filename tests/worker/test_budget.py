"""What tasks may cost, counted below the retry layer."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from fleet import claim, leave_session
from test_run import BURST, options, submit_many, worker_of
from virtual import World, requests, virtual

from buquet import RetryPolicy
from buquet.incarnation import Incarnation
from buquet.queue import Queue
from buquet.testing.faulty import Slow
from buquet.worker import run as run_module


def spent(queue: Queue) -> Counter[str]:
    """Return and forget what was spent: reads and writes of tasks by kind, the rest as "other"."""
    counting = requests(queue)
    made, counting.requests = counting.requests or [], []
    return Counter(
        kind if kind in {"get", "put"} and not key.startswith("workers/") else "other" for kind, key in made
    )


@pytest.mark.parametrize("latency_s", [0.0, 0.02])
@pytest.mark.parametrize("concurrency", [16, 64])
@virtual
async def test_a_thousand_tasks(world: World, latency_s: float, concurrency: int) -> None:
    """Submit: 1 PUT. Claim and complete: 1 GET + 2 PUT. LIST and the rest: 0.1 a task at most."""
    queue = world.queue(plan=lambda _kind, _key: Slow(latency_s) if latency_s else None)
    spent(queue)
    await submit_many(queue, 1000)
    assert spent(queue) == {"put": 1000}
    await worker_of(queue, concurrency=concurrency).run(BURST)
    counts = spent(queue)
    assert (counts["get"], counts["put"]) == (1000, 2000)
    assert counts["other"] <= 100
    assert world.keys("ready/") == []


@virtual
async def test_a_retry_is_three_puts_and_a_get_more(world: World) -> None:
    """The marker, back to pending, the claim; and the read of the ledger, not of the empty marker."""
    queue = world.queue()
    for retries in (0, 1, 3):
        await submit_many(queue, 1, retry_policy=RetryPolicy(initial_interval_ms=0))
        left = retries

        async def fail(_input: object) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                raise ValueError

        spent(queue)
        await worker_of(queue, fail).run(BURST)
        counts = spent(queue)
        assert (counts["get"], counts["put"]) == (1 + retries, 2 + 3 * retries)


@virtual
async def test_a_failure_for_good_costs_one_put_more_than_a_completion(world: World) -> None:
    """Its entry among the dead letters."""
    queue = world.queue()

    async def fail(_input: object) -> None:
        raise ValueError

    await submit_many(queue, 10, max_retries=0)
    spent(queue)
    await worker_of(queue, fail).run(BURST)
    counts = spent(queue)
    assert (counts["get"], counts["put"]) == (10, 30)


@virtual
async def test_markers_are_deleted_in_batches_about_a_second_later(world: World) -> None:
    queue = world.queue()
    await submit_many(queue, 500)
    spent(queue)
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(0.5)
    assert worker.counters.completed == 500
    assert len(world.keys("ready/")) == 500
    await world.clock.sleep(run_module.FLUSH_S)
    assert world.keys("ready/") == []
    assert requests(queue).counts["delete_many"] == 1
    await worker.stop()
    await running


@virtual
async def test_what_a_few_busy_workers_cost_together(world: World) -> None:
    queues = [world.queue(plan=lambda _kind, _key: Slow(0.02)) for _ in range(3)]
    await submit_many(world.queue(), 900)
    await asyncio.gather(*(worker_of(queue).run(BURST) for queue in queues))
    counts = sum((requests(queue).counts for queue in queues), requests(world.queue()).counts)
    # Without sessions all three try every task; contention is bounded by each one's own order.
    assert counts["get"] + counts["put"] <= 6 * 900
    assert len(world.keys("tasks/")) == 900


@virtual
async def test_what_others_run_does_not_hasten_the_looks(world: World) -> None:
    """A try that comes to nothing is no work: a worker goes on to poll more and more rarely."""
    queue, other = world.queue(), world.queue()
    leave_session(world, other)
    worker = worker_of(queue)
    running = asyncio.create_task(worker.run(options()))
    await world.clock.sleep(2)
    counts = requests(queue).counts
    counts.clear()
    for _ in range(20):
        (task_id,) = await submit_many(other, 1)
        await claim(other, task_id)
        await world.clock.sleep(1)
    assert counts["get"] >= 20, "it has tried them"
    assert counts["list"] <= 20 + 3, "one a poll, and the sessions at 4, 8 and 16 s"
    await worker.stop()
    await running


@virtual
async def test_a_worker_counts_the_others_before_it_chooses(world: World) -> None:
    queue = world.queue(plan=lambda _kind, _key: Slow(0.01))
    for number in range(63):
        leave_session(world, queue, owner=Incarnation(f"w{number}", f"w{number:032}"))
    await submit_many(world.queue(), 640)
    requests(queue).requests = []
    running = asyncio.create_task(worker_of(queue, concurrency=640).run(options()))
    await world.clock.sleep(0.035)  # its session, the first page, and then the first claims
    tried = [key for kind, key in requests(queue).requests or [] if kind == "get"]
    assert 1 <= len(tried) <= 40, "about 2 of 64 of them, not all"
    running.cancel()
    await asyncio.wait({running})
