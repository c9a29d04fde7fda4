"""The store goes away under several workers and comes back: nothing is lost, and soon all is as before."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter

import pytest
from fleet import record_of, sessions
from virtual import World

from buquet import RetryPolicy, TaskContext, Worker, WorkerRunOptions
from buquet._core.record import lease_ends_ms
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.faulty import Busy, Fault, Late, Lost, LostReply, Slow

TASKS = 40
WORKERS = 3
WRITTEN_WITHIN_S = 7
"""The last request of the outage times out after 1 s, and then its back-off is 5 s at most."""


AWAY: list[Fault] = [Lost(), Busy(), LostReply(), Late(5.0)]
"""How requests fail at its onset, when some are still served; afterwards none is."""

ONSET_S = 0.5


class Outage:
    """A store that is away from one moment to another, for all clients at once.

    At other times every request takes a moment, so that the outage begins amid some.
    """

    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance
        self.began_at = 1e9
        self.ends_at = 1e9

    def __call__(self, kind: str, key: str) -> Fault:
        now = self._clock.monotonic()
        if not self.began_at <= now < self.ends_at:
            return Slow(self._chance.uniform(0, 0.2))
        return self._chance.choice(AWAY) if now < self.began_at + ONSET_S else Lost()


class Scenario:
    """One seed's run: workers with monitors, tasks of all lengths, and an outage amid them."""

    def __init__(self, clock: VirtualClock, seed: int, *, timeout_s: float) -> None:
        self.clock = clock
        self.world = World(clock)
        self.chance = random.Random(seed)
        self.timeout_s = timeout_s
        self.outage = Outage(clock, self.chance)
        self.ids: list[str] = []
        self.starts: dict[str, list[tuple[float, float]]] = {}
        """Of each run when it began and when its lease ended, Unix seconds."""
        self.ended_at: dict[str, float] = {}
        self.reader = self.world.queue()

    def worker(self, name: str) -> Worker:
        own = VirtualClock(self.clock.loop, f"{name} of {self.chance.random()}")
        worker = Worker(self.world.queue(plan=self.outage, clock=own), name, concurrency=4)

        @worker.task("do")
        async def handle(input: float, ctx: TaskContext) -> None:
            run = (self.clock.unix(), ctx.lease_expires_at.timestamp())
            self.starts.setdefault(ctx.task_id, []).append(run)
            await own.sleep(input)
            self.ended_at[ctx.task_id] = self.clock.monotonic()

        return worker

    async def play(self) -> None:
        workers = [self.worker(f"w{number}") for number in range(WORKERS)]
        running = []
        for worker in workers:
            running.append(asyncio.create_task(worker.run(WorkerRunOptions())))
            await self.clock.sleep(self.chance.uniform(0, 9))
        policy = RetryPolicy(initial_interval_ms=100)
        for _ in range(TASKS):
            length_s = min(self.chance.expovariate(1 / 20), self.timeout_s - 1)
            self.ids.append((await self.reader.submit("do", length_s, self.timeout_s, 5, policy)).id)
        await self.clock.sleep(self.chance.uniform(2, 30))
        before = set(sessions(self.world))
        self.outage.began_at = self.clock.monotonic()
        self.outage.ends_at = self.outage.began_at + self.chance.choice([10, 25, 35, 45, 60, 120, 600])
        await self.clock.sleep(self.outage.ends_at - self.clock.monotonic())
        finished = self.finished_under_a_live_lease()
        await self.clock.sleep(WRITTEN_WITHIN_S)
        written = {record_of(self.world, self.reader, task_id).status for task_id in finished}
        assert written <= {"completed"}, "an outcome is written as soon as the store is back"
        for task_id in self.ids:
            assert (await self.reader.wait(task_id, timeout_s=3600)).status == "completed"
        await self.clock.sleep(90)
        assert set(sessions(self.world)) == before, "no live session was declared dead"
        await asyncio.gather(*(worker.stop() for worker in workers))
        await asyncio.gather(*running)
        self.check_runs()
        assert self.world.keys("ready/") == self.world.keys("workers/") == []

    def finished_under_a_live_lease(self) -> list[str]:
        now_ms = int((self.clock.unix() + WRITTEN_WITHIN_S) * 1000)
        records = [
            record_of(self.world, self.reader, task_id)
            for task_id, ended_at in self.ended_at.items()
            if ended_at < self.clock.monotonic() - 1
        ]
        return [
            record.id for record in records if record.status != "running" or lease_ends_ms(record) > now_ms
        ]

    def check_runs(self) -> None:
        """Nothing ran twice but what outlived its lease meanwhile."""
        assert sorted(self.starts) == sorted(self.ids)
        for starts in self.starts.values():
            for (_, first_ended), (second_began, _) in itertools.pairwise(starts):
                assert second_began > first_ended


@pytest.mark.parametrize("timeout_s", [25, 3600])
@pytest.mark.parametrize("seed", range(40))
def test_an_outage_costs_nothing_but_time(
    seed: int, timeout_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "buquet")
    run_virtual(lambda clock: Scenario(clock, seed, timeout_s=timeout_s).play(), seed)
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    told = Counter(text.split(":")[0] for text in texts)
    assert told["waiting for the store"] == told["the store is back"] <= WORKERS
    assert not [text for text in texts if "dead" in text]
    assert len(texts) <= 2 * WORKERS + sum("lease lost" in text for text in texts)
