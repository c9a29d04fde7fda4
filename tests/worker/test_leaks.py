"""A worker keeps nothing of a task that has ended; `python bench/leak.py` shows it with 200,000.

Counted are the blocks that Python has allocated, exactly: one list entry, one key, one nonce a
task that is never let go of would show.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import end, start, until, worker_of
from virtual import World, virtual

from buquet import NewTask, Queue, RetryPolicy, TaskContext, Worker
from buquet._core import ident
from buquet.protocol.keys import Keys, Marker
from buquet.store.memory import MemoryStore
from buquet.store.retry import Retrying
from buquet.testing.faulty import Busy, Fault, FaultyStore, Lost, LostReply
from buquet.worker.candidates import DELETED_S, Candidates
from buquet.worker.finder import Seen
from buquet.worker.recent import Recent

BENCH = Path(__file__).resolve().parents[2] / "bench"

ROUND = 500
WARM_UP, ROUNDS = 4, 6

MOST_A_TASK = 0.1
"""Blocks. What is remembered for a while differs from one round's end to the next by some dozens."""

REST_S = 120.0
"""After this a worker has forgotten the markers of a round."""


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """pytest would keep what is logged."""
    logger = logging.getLogger("buquet")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


class Bench:
    """Workers, and a producer that has a client of its own.

    Parameters
    ----------
    world:
        The bucket.
    away_s:
        How long the workers' store is away at a time, and then there; never if 0.
    workers:
        How many.
    """

    def __init__(self, world: World, away_s: float = 0.0, workers: int = 1) -> None:
        self.world = world
        self.plan = self._take_turns
        self.running: list[asyncio.Task[None]] = []
        self._away_s = away_s
        self._producer = world.queue()
        self._stores: list[FaultyStore] = []
        self._workers = [self._start() for _ in range(workers)]
        self._submitted = 0
        self._others = 0

    def _start(self) -> Worker:
        clock, memory = self.world.clock, MemoryStore(self.world.clock, self.world.bucket)
        faulty = FaultyStore(memory, clock, self._plan_of_now, timeout_s=1.0)
        worker = worker_of(Queue(Retrying(faulty, clock), Keys()), concurrency=32)

        @worker.task("fail")
        async def fail(_input: Any, ctx: TaskContext) -> None:
            if ctx.task.retry_count == 0 or ctx.task.max_retries == 0:
                raise RuntimeError(f"task {ctx.task_id} fails")

        self._stores.append(faulty)
        self.running.append(start(worker))
        return worker

    def _plan_of_now(self, kind: str, key: str) -> Fault | None:
        return self.plan(kind, key)

    def _take_turns(self, _kind: str, _key: str) -> Fault | None:
        if not self._away_s or int(self.world.clock.monotonic() / self._away_s) % 2:
            return None
        self._others += 1
        return LostReply() if self._others % 2 else Lost()

    async def round(self) -> int:
        """Run some tasks of each kind to their end; return how many blocks are allocated then."""
        policy = RetryPolicy(initial_interval_ms=100)
        tasks = [
            *(NewTask("do", {"number": number}) for number in range(ROUND * 8 // 10)),
            *(NewTask("fail", {}, 60, 1, policy) for _ in range(ROUND // 10)),
            *(NewTask("fail", {}, 60, 0) for _ in range(ROUND // 10)),
        ]
        async for submitted in self._producer.submit_many(tasks):
            submitted.result()
        self._submitted += ROUND
        await until(self.world, lambda: self._ended() == self._submitted, within_s=3600)
        await self.world.clock.sleep(REST_S)
        while self.plan("get", ""):
            await self.world.clock.sleep(1)
        await self.world.clock.sleep(self._away_s / 4)  # the store is there, and all is told
        return self.counted()

    def _ended(self) -> int:
        return sum(worker.counters.completed + worker.counters.failed for worker in self._workers)

    async def after(self, fault: Fault | None, hours: float) -> int:
        """Let every request meet a fault for some hours; return how many blocks are allocated then."""
        self.plan = lambda _kind, _key: fault
        await self.world.clock.sleep(hours * 3600)
        return self.counted()

    def counted(self) -> int:
        # What the store keeps in this process is not the worker's.
        assert not self.world.keys("ready/")
        for prefix in ("tasks/", "failed/"):
            for key in self.world.keys(prefix):
                self.world.bucket.delete(key)
        for faulty in self._stores:
            faulty._listed.clear()
        gc.collect()
        return sys.getallocatedblocks()


@pytest.mark.parametrize(("away_s", "workers"), [(0.0, 1), (40.0, 1), (0.0, 2)])
@virtual
async def test_nothing_is_kept_of_a_task(world: World, away_s: float, workers: int) -> None:
    bench = Bench(world, away_s, workers)
    for _ in range(WARM_UP):
        await bench.round()
    tasks = len(asyncio.all_tasks())
    counted = [await bench.round() for _ in range(ROUNDS)]
    assert len(asyncio.all_tasks()) <= tasks + 2 * workers
    assert _growth(counted) < MOST_A_TASK * ROUND, counted
    await end(*bench.running)


def _growth(counted: list[int]) -> float:
    """Blocks a round, by the median of all pairs, which one odd round does not move."""
    pairs = itertools.combinations(enumerate(counted), 2)
    return statistics.median((late - early) / (j - i) for (i, early), (j, late) in pairs)


@virtual
async def test_a_long_outage_gathers_nothing(world: World) -> None:
    """What a worker tries in vain is as much after hours as after minutes."""
    bench = Bench(world)
    await bench.round()
    counted = [await bench.after(Busy(), hours) for hours in (1, 4)]
    assert counted[1] - counted[0] < 200
    # Of heartbeats that may yet turn out to have been applied it must know the nonces.
    counted += [await bench.after(Lost(), 4)]
    assert counted[2] - counted[0] < 4 * 1000
    counted += [await bench.after(None, 0.1)]
    assert counted[3] - counted[0] < 200
    await end(*bench.running)


@pytest.mark.server
def test_the_long_run_works() -> None:
    """`bench/leak.py`, with too few tasks to say much of the memory."""
    command = [sys.executable, "-P", str(BENCH / "leak.py"), "--tasks", "2000", "--away", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    found = json.loads(ran.stdout)
    assert ran.returncode == (0 if found["is_flat"] else 1), ran.stderr
    assert (found["samples"][-1]["tasks"], found["gathered"]) == (2000, [])
    assert found["growth"] < 0.2


# --- what is remembered of markers -----------------------------------------------------------


def test_what_is_past_is_forgotten_soon() -> None:
    recent = Recent()
    for number in range(1000):
        recent.put(f"lasting {number % 10}", math.inf)
        recent.put(str(number), number)
        recent.forget_up_to(number - 50)
    assert all(f"lasting {number}" in recent for number in range(10))
    assert all(str(number) in recent for number in range(950, 1000))
    assert sum(str(number) in recent for number in range(1000)) <= 2 * (50 + 10)
    for _ in range(20):  # also by those that note nothing any more
        recent.forget_up_to(math.inf)
    assert len(recent) == 0


@virtual
async def test_a_deleted_marker_is_left_alone_for_a_moment_and_forgotten(world: World) -> None:
    candidates = Candidates("a", world.clock)
    task_id = ident.mint(0, 5, 7)
    marker = Marker("0", 5, 0, task_id, 0)
    seen = Seen(Keys().marker_key(marker), marker, has_body=True)
    candidates.refill([seen], now_ms=0)
    candidates.leave(seen.key)
    candidates.forget(seen.key)
    await world.clock.sleep(DELETED_S - 0.1)
    assert not candidates.is_open(seen)
    await world.clock.sleep(0.2)
    assert candidates.is_open(seen)
    candidates.leave("another")
    candidates.refill([], now_ms=0)
    assert (len(candidates._left), len(candidates._first_seen)) == (1, 0)
