"""Several workers on a store that misbehaves at random: every task ends, none runs twice at once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest
from virtual import World

from buquet import PermanentError, RetryPolicy, TaskContext, Worker, WorkerRunOptions
from buquet._core.record import decode
from buquet.errors import OutcomeUnknown
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.faulty import Busy, Conflict, Fault, Late, Lost, LostReply, Slow, Stale, at_random

TASKS = 60
WORKERS = 3
ODDS: dict[Fault, float] = {
    Lost(): 0.03,
    LostReply(): 0.04,
    Late(2.0): 0.02,
    Late(40.0): 0.01,
    Conflict(): 0.02,
    Busy(): 0.02,
    Slow(0.3): 0.2,
    Stale(): 0.02,
}


class Scenario:
    """One seed's run. `running` are the tasks whose handlers are at work, by (task, lease)."""

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        self.world = World(clock)
        self.seed = seed
        self.clock = clock
        self.runs: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.overlaps: list[str] = []

    def clock_of(self, name: str) -> VirtualClock:
        """Every process has its own chance, and a wall clock that is wrong."""
        clock = VirtualClock(self.clock.loop, f"{self.seed}-{name}")
        clock.skew_s = 20 * clock.uniform() - 10
        return clock

    def worker(self, name: str) -> Worker:
        clock = self.clock_of(name)
        queue = self.world.queue(plan=at_random(clock, ODDS), clock=clock)
        worker = Worker(queue, name, concurrency=4)

        @worker.task("do")
        async def handle(input: int, ctx: TaskContext) -> str:
            self.runs[ctx.task_id] += 1
            self.running[ctx.task_id] += 1
            if self.running[ctx.task_id] > 1:
                self.overlaps.append(ctx.task_id)
            try:
                await clock.sleep(clock.uniform() * 3)
            finally:
                self.running[ctx.task_id] -= 1
            match input % 4:
                case 0 if ctx.task.retry_count < 2:
                    raise ValueError("again")
                case 1:
                    raise PermanentError("never")
            return name

        return worker

    async def submit(self) -> set[str]:
        """Submit through a store with the same faults; what is undecided is asked for afterwards."""
        clock = self.clock_of("producer")
        queue = self.world.queue(plan=at_random(clock, ODDS), clock=clock)
        policy = RetryPolicy(initial_interval_ms=200)
        ids = set()
        for number in range(TASKS):
            try:
                task = await queue.submit("do", number, 30, 5, policy, priority=number % 10)
                ids.add(task.id)
            except OutcomeUnknown as error:
                ids.add(str(error.task_id))
        await clock.sleep(120)  # late requests have arrived
        reader = self.world.queue()
        return {task_id for task_id in ids if await reader.get(task_id) is not None}

    async def play(self) -> None:
        ids = await self.submit()
        assert len(ids) > TASKS // 2
        workers = [self.worker(f"w{number}") for number in range(WORKERS)]
        runs = [asyncio.create_task(worker.run(WorkerRunOptions(with_monitor=False))) for worker in workers]
        await self.clock.sleep(7)
        runs[0].cancel()  # one is torn down in the middle of its work
        reader = self.world.queue()
        for task_id in sorted(ids):
            await reader.wait(task_id, timeout_s=3600)
        await self.clock.sleep(180)
        await asyncio.gather(*(worker.stop() for worker in workers[1:]))
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * (WORKERS - 1)
        assert set(self.runs) == ids, "every task ran, and no other"
        for key in self.world.keys("tasks/"):
            record = decode(self.world.bucket.get(key).body)  # type: ignore[union-attr]
            number = int(bytes(record.input))
            assert record.status == ("failed" if number % 4 == 1 else "completed"), record
            assert record.retry_count <= record.attempt - 1
        await self.sweep()
        assert self.overlaps == []
        assert self.world.keys("ready/") == []

    async def sweep(self) -> None:
        """Let a fresh worker on a sound store look at what is left: by then it is garbage."""
        queue = self.world.queue()
        worker = Worker(queue)
        worker.task("do")(lambda _input: None)
        await worker.run(WorkerRunOptions(with_monitor=False, burst=True))


@pytest.mark.parametrize("seed", range(12))
def test_every_task_ends_and_none_runs_twice_at_once(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    run_virtual(lambda clock: Scenario(clock, seed).play(), seed)
    assert caplog.messages == []
