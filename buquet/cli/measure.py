"""The measurements of `buquet bench`.

Example::

    result = await measure(where, Load(tasks=1000, concurrency=32, workers=1, payload_bytes=100, latency_s=0))
"""

from __future__ import annotations

import asyncio
import itertools
import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buquet.cli import output
from buquet.cli.options import Where, place
from buquet.cli.prices import PRICES
from buquet.clock import SystemClock, token
from buquet.connection import agree, open_store
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.interface import Blob, Condition, Entry, Page, Store, Written
from buquet.store.retry import Retrying
from buquet.submissions import NewTask
from buquet.testing.counting import CountingStore
from buquet.worker import Worker, WorkerRunOptions

TASK_TYPE = "bench"

ONE_BY_ONE = 200
"""So many tasks are submitted one after the other at most."""

TIMED = 200
"""So many tasks are timed from end to end at most."""

BARS = 10


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: how many tasks, and how; `latency_s` is added to each request."""

    tasks: int
    concurrency: int
    workers: int
    payload_bytes: int
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured."""

    store: str
    tasks: int
    submit_one_by_one_per_s: float
    submit_concurrent_per_s: float
    drain_per_s: float
    latency_ms: dict[str, float]
    histogram: list[tuple[float, int]]
    """Of the latencies: up to how many ms, and how many tasks."""
    requests_a_task: dict[str, float]
    dollars_a_million: dict[str, float]
    cpu_ms_a_task: float
    memory_mib: float


class Meter(CountingStore):
    """A store that counts, is as slow as asked for, and notes when each ledger was written last.

    Parameters
    ----------
    store:
        The store below.
    latency_s:
        What each request takes longer, seconds.
    """

    def __init__(self, store: Store, latency_s: float) -> None:
        super().__init__(store)
        self.written_at: dict[str, float] = {}
        """`clock.monotonic()` of the last write to a key."""
        self.writes: Counter[str] = Counter()
        """How often each key was written."""
        self._latency_s = latency_s

    async def get(self, key: str) -> Blob | None:
        """Read an object."""
        await self._linger()
        return await super().get(key)

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry."""
        await self._linger()
        return await super().head(key)

    async def put(
        self, key: str, body: bytes, condition: Condition, *, ours: Callable[[bytes], bool] | None = None
    ) -> Written | None:
        """Write an object, and note when."""
        await self._linger()
        written = await super().put(key, body, condition, ours=ours)
        if written is not None:
            self.written_at[key] = self.time.clock.monotonic()
            self.writes[key] += 1
        return written

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object."""
        await self._linger()
        await super().delete(key, read_at=read_at)

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete objects."""
        await self._linger()
        return await super().delete_many(keys, read_at=read_at)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys."""
        await self._linger()
        return await super().list(prefix, after=after, limit=limit)

    async def _linger(self) -> None:
        if self._latency_s:
            await self.time.clock.sleep(self._latency_s)


async def measure(where: Where, load: Load) -> Result:
    """Run the load on the configured store, under a prefix that is emptied in the end.

    Raises
    ------
    BuquetError
        The store cannot be used.
    """
    settings = where.settings()
    clock = SystemClock()
    prefix = f"{settings.prefix}bench-{token(clock)[:12]}/"
    store = open_store(settings, clock)
    try:
        found = await agree(store, prefix, None)
        meters: list[Meter] = []

        def metered(opened: Retrying) -> Retrying:
            meters.append(Meter(opened.once, load.latency_s))
            return Retrying(meters[-1], clock)

        keys = Keys(prefix, found.shard_prefix_len)
        queue = Queue(
            metered(store),
            keys,
            max_payload_bytes=settings.max_payload_bytes,
            open_store=lambda: metered(open_store(settings, clock)),
        )
        return await _Bench(queue, meters, load).run(place(settings))
    finally:
        await _empty(store, prefix)
        await store.close()


async def _empty(store: Retrying, prefix: str) -> None:
    while keys := [entry.key for entry in (await store.list(prefix)).entries]:
        await store.delete_many(keys, read_at=store.time.clock.monotonic())


class _Bench:
    """One run; `meters[0]` is that of the queue, the others are those of heartbeats."""

    def __init__(self, queue: Queue, meters: list[Meter], load: Load) -> None:
        self._queue = queue
        self._meters = meters
        self._load = load
        self._clock = queue.clock
        self._input = {"payload": "x" * load.payload_bytes}

    async def run(self, store: str) -> Result:
        load = self._load
        cpu_s = time.process_time()
        timed = min(TIMED, load.tasks // 5)
        slow = min(ONE_BY_ONE, load.tasks // 5)
        fast = load.tasks - timed - slow
        with output.progress("measuring", load.tasks * 2 - timed) as advance:
            one_by_one_s = await self._submit(slow, 1, advance)
            concurrent_s = await self._submit(fast, load.concurrency, advance)
            drain_s = await self._drain(advance, slow + fast)
            requests = self._requests()
            latencies = await self._time(timed, advance)
        cpu_s = time.process_time() - cpu_s
        a_task = {kind: count / (slow + fast) for kind, count in sorted(requests.items())}
        return Result(
            store=store,
            tasks=load.tasks,
            submit_one_by_one_per_s=slow / one_by_one_s,
            submit_concurrent_per_s=fast / concurrent_s,
            drain_per_s=(slow + fast) / drain_s,
            latency_ms={f"p{share}": _percentile(latencies, share) for share in (50, 95, 99)},
            histogram=_histogram(latencies),
            requests_a_task=a_task,
            dollars_a_million={price.name: price.cost(a_task) * 1e6 for price in PRICES},
            cpu_ms_a_task=cpu_s * 1000 / load.tasks,
            memory_mib=_memory_mib(),
        )

    async def _submit(self, count: int, at_once: int, advance: Callable[[int], None]) -> float:
        """Submit tasks; return how long it took, seconds."""
        began = self._clock.monotonic()
        tasks = itertools.repeat(NewTask(TASK_TYPE, self._input), count)
        async for submitted in self._queue.submit_many(tasks, concurrency=at_once):
            submitted.result()
            advance(1)
        return self._clock.monotonic() - began

    async def _drain(self, advance: Callable[[int], None], count: int) -> float:
        """Run all tasks; return how long it took until the last was completed, seconds."""
        began = self._clock.monotonic()
        options = WorkerRunOptions(burst=True)
        workers = [self._worker(number) for number in range(self._load.workers)]
        await asyncio.gather(*(worker.run(options) for worker in workers))
        advance(count)
        ledgers = [
            at for key, at in self._meters[0].written_at.items() if key.startswith(self._queue.keys.tasks)
        ]
        return max(ledgers, default=began) - began

    def _worker(self, number: int) -> Worker:
        worker = Worker(self._queue, f"bench-{number}", concurrency=self._load.concurrency)

        @worker.task(TASK_TYPE)
        async def nothing(_input: Any) -> None:
            pass

        return worker

    async def _time(self, count: int, advance: Callable[[int], None]) -> list[float]:
        """Submit tasks to waiting workers, now and then; return how long each took, ms, sorted."""
        workers = [self._worker(number) for number in range(self._load.workers)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        latencies = []
        try:
            await self._clock.sleep(1)
            for _ in range(count):
                began = self._clock.monotonic()
                task = await self._queue.submit(TASK_TYPE, self._input)
                ended = await self._completed(task.id, running)
                latencies.append((ended - began) * 1000)
                advance(1)
                await self._clock.sleep(self._clock.uniform() * 0.05)
        finally:
            await asyncio.gather(*(worker.stop() for worker in workers))
            await asyncio.gather(*running)
        return sorted(latencies)

    async def _completed(self, task_id: str, running: Sequence[asyncio.Task[None]]) -> float:
        """Wait until a task's ledger was written twice: claimed, then completed. Return when."""
        key, meter = self._queue.keys.ledger(task_id), self._meters[0]
        while meter.writes[key] < 2:
            for worker in running:
                if worker.done():
                    worker.result()
            await self._clock.sleep(0.001)
        return meter.written_at[key]

    def _requests(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for meter in self._meters:
            total += meter.counts
        return total


def _percentile(ordered: Sequence[float], share: int) -> float:
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def _histogram(ordered: Sequence[float]) -> list[tuple[float, int]]:
    """Count latencies in bars of equal width; the last one has the slowest hundredth as well."""
    low, high = ordered[0], _percentile(ordered, 99)
    width = max(1.0, (high - low) / BARS)
    counts = Counter(min(BARS - 1, int((latency - low) / width)) for latency in ordered)
    return [(low + (bar + 1) * width, counts[bar]) for bar in range(BARS)]


def _memory_mib() -> float:
    """The most memory that this process has had, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
