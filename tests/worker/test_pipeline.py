"""The pipeline: listings, claims, handlers and completions overlap, so a far store costs no throughput.

In virtual time, where computing takes none: what is missing from the ideal is what waits for
something that it does not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from test_run import BURST, options, submit_many, worker_of
from virtual import World, requests, virtual

from buquet import WorkerRunOptions
from buquet.queue import Queue
from buquet.testing.faulty import Slow

CONCURRENCY = 64
REQUESTS_A_TASK = 3
"""The GET of its marker, the claim and the completion: one after the other."""


def slow(latency_s: float, **by_kind: float) -> Callable[[str, str], Any]:
    """Make each request take `latency_s`, or what is said of its kind."""
    return lambda kind, _key: Slow(by_kind.get(kind, latency_s))


async def completion_times(
    world: World, queue: Queue, tasks: int, run: WorkerRunOptions = BURST
) -> list[float]:
    """Run tasks; return when each was completed, seconds after the worker began."""
    times: list[float] = []
    began = world.clock.monotonic()
    worker = worker_of(queue, concurrency=CONCURRENCY)
    running = asyncio.create_task(worker.run(run))
    while not running.done():
        times += [world.clock.monotonic() - began] * (worker.counters.completed - len(times))
        await world.clock.sleep(0.001)
    await running
    assert len(times) == tasks
    return times


@pytest.mark.parametrize("latency_s", [0.02, 0.05, 0.3])
@virtual
async def test_slots_are_always_busy(world: World, latency_s: float) -> None:
    """64 slots, three requests a task: 64 / (3 x latency) tasks a second."""
    await submit_many(world.queue(), 4000)
    queue = world.queue(plan=slow(latency_s))
    times = await completion_times(world, queue, 4000)
    steady_s = times[-1] - times[0]
    ideal_s = (4000 - CONCURRENCY) * REQUESTS_A_TASK * latency_s / CONCURRENCY
    assert ideal_s / steady_s >= 0.98
    # The session, the first listing and the first task are no pipeline.
    assert times[0] == pytest.approx((2 + REQUESTS_A_TASK) * latency_s, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [("list", "ready/"), ("delete_many", "ready/"), ("put", "workers/"), ("list", "workers/")],
)
@virtual
async def test_no_claim_waits_for_a_listing_a_deletion_or_a_heartbeat(
    world: World, kind: str, prefix: str
) -> None:
    """One kind takes half a second here, every other request 20 ms: completions go on all the time."""

    def plan(asked: str, key: str) -> Slow:
        return Slow(0.5 if asked == kind and key.startswith(prefix) else 0.02)

    await submit_many(world.queue(), 8000)
    queue = world.queue(plan=plan)
    counting = requests(queue)
    counting.requests = []
    run = options(burst=True, with_monitor=True, heartbeat_interval_s=1.0)
    times = await completion_times(world, queue, 8000, run)
    assert sum(asked == kind and key.startswith(prefix) for asked, key in counting.requests) >= 4
    # How soon a page is used up is not known before the first; the last ones are short.
    steady = times[1500:-1500]
    pauses = [after - before for before, after in pairwise(steady)]
    assert max(pauses) < REQUESTS_A_TASK * 0.02 + 0.01, (
        "all slots in step: completions once in three requests"
    )
