"""A fleet of simulated workers in virtual time, and what its work costs.

Example::

    fleet = SimulatedFleet(clock, seed=1, workers=64)
    await fleet.start()
    cost = await fleet.burst(2000)
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from virtual import World, requests

from budgets.tally import Tally
from buquet import Queue, TaskContext, Worker, WorkerRunOptions
from buquet._core import ident
from buquet.protocol.keys import Keys
from buquet.testing.clock import START, VirtualClock
from buquet.testing.faulty import Slow

REQUEST_S = 0.01
TASK_S = 0.05
STARTED_WITHIN_S = 1.0
SETTLED_WITHIN_S = 20.0
"""So long after the first start each worker has counted the others, and their monitors have settled."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What tasks took: requests, claims that others had won, and how long each waited for its claim."""

    tally: Tally
    lost_a_task: float
    waits_s: list[float]

    def wait_s(self, share: float) -> float:
        """How long that share of the tasks waited at most."""
        return sorted(self.waits_s)[int(share * (len(self.waits_s) - 1))]


class SimulatedFleet:
    """Workers that start within a second of one another, each with its own clock and chance.

    Parameters
    ----------
    clock:
        The clock of the world.
    seed:
        What chance comes from.
    workers:
        How many.
    keys:
        The queue's layout.
    options:
        Of each worker's run.
    """

    def __init__(
        self, clock: VirtualClock, seed: int, workers: int, keys: Keys | None = None, **options: Any
    ) -> None:
        self.world = World(clock)
        self._clock = clock
        self._seed = seed
        self._keys = keys
        self._options = options
        self._chance = random.Random(f"starts of {seed}")
        self._started: dict[str, float] = {}
        self._producer = self._queue("producer")
        self._queues = [self._queue(f"w{number}") for number in range(workers)]
        self._workers = [self._worker(number, queue) for number, queue in enumerate(self._queues)]
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return when all workers run, know of one another, and have been idle for a while."""
        self._running = [asyncio.create_task(self._run(worker)) for worker in self._workers]
        await self._clock.sleep(SETTLED_WITHIN_S)
        self.forget()

    async def stop(self) -> None:
        """End all workers."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        await asyncio.gather(*self._running)

    async def burst(self, tasks: int) -> Cost:
        """Submit tasks all at once; return what they cost until nothing is left of them in `ready/`."""
        return await self._cost([asyncio.create_task(self._submit()) for _ in range(tasks)])

    async def trickle(self, per_s: float, for_s: float) -> Cost:
        """Submit tasks one after the other."""
        submissions = []
        for _ in range(round(per_s * for_s)):
            submissions.append(asyncio.create_task(self._submit()))
            await self._clock.sleep(1 / per_s)
        return await self._cost(submissions)

    async def submit(self, tasks: int, task_type: str) -> None:
        """Submit tasks and leave it at that."""
        await asyncio.gather(*(self._submit(task_type) for _ in range(tasks)))

    def forget(self) -> list[tuple[str, str]]:
        """Begin to count anew; return what was counted."""
        sent = [one for queue in self._queues for one in requests(queue).requests or []]
        for queue in self._queues:
            requests(queue).requests = []
        self._started.clear()
        self._lost_before = self._lost()
        return sent

    # --- bits ------------------------------------------------------------------------------

    async def _cost(self, submissions: list[asyncio.Task[None]]) -> Cost:
        await asyncio.gather(*submissions)
        tasks = len(submissions)
        while len(self._started) < tasks or self.world.keys("ready/"):
            await self._clock.sleep(0.05)
        lost, waits_s = self._lost() - self._lost_before, list(self._started.values())
        return Cost(Tally.of(self.forget(), tasks), lost / tasks, waits_s)

    def _lost(self) -> int:
        return sum(worker.counters.claims_lost for worker in self._workers)

    def _queue(self, name: str) -> Queue:
        return self.world.queue(
            self._keys,
            plan=lambda _kind, _key: Slow(REQUEST_S),
            clock=VirtualClock(self._clock.loop, f"{name} of {self._seed}"),
        )

    def _worker(self, number: int, queue: Queue) -> Worker:
        worker = Worker(queue, f"w{number}")

        @worker.task("do")
        async def do(_input: object, ctx: TaskContext) -> None:
            due_s = ident.due_ms(ctx.task_id) / 1000 - START
            self._started[ctx.task_id] = self._clock.monotonic() - due_s
            await self._clock.sleep(TASK_S)

        return worker

    async def _run(self, worker: Worker) -> None:
        await self._clock.sleep(self._chance.uniform(0, STARTED_WITHIN_S))
        await worker.run(WorkerRunOptions(**self._options))

    async def _submit(self, task_type: str = "do") -> None:
        await self._producer.submit(task_type, None)
