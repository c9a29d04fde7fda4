"""What grows and what does not: with the backlog, with the shards, with the processes, with idle time.

Example::

    python bench/scale.py                       # all of it, some ten minutes
    python bench/scale.py --only idle --json

*Waiting*: a worker runs `TASKS` tasks out of a backlog of 1,000 and of 100,000, and out of a queue in
which 100,000 more are due only tomorrow. *Shards*: the same with 16 and 256 shards. *Processes*: 1, 2, 4
and 8 worker processes share a backlog, on the store as it is and with `FAR_S` added to each request, as
a distant store has it. These three run on a SeaweedFS (`buquet dev`) that shares the machine. *Idle*: a
day without a task, in virtual time, by the number of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline import INPUT, seaweedfs

from buquet import NewTask, Worker, WorkerRunOptions
from buquet.cli.loop import run_async
from buquet.cli.measure import Meter
from buquet.cli.prices import S3
from buquet.clock import SystemClock, token
from buquet.config import Settings
from buquet.connection import open_store
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.memory import MemoryBucket, MemoryStore
from buquet.store.retry import Retrying
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.counting import CountingStore

TASKS = 1_000
MANY = 100_000
CONCURRENCY = 16
FAR_S = 0.05
LISTS = 9
ROUNDS = 3
DAY_S = 86_400
AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Run:
    """Some tasks run by one or more workers, and what each of them took."""

    what: str
    tasks: int
    seconds: float
    requests_a_task: dict[str, float]
    list_ms: float | None = None

    @property
    def tasks_per_s(self) -> float:
        """How many tasks were completed in a second."""
        return self.tasks / self.seconds


@dataclass(frozen=True, slots=True)
class Idle:
    """What a day without a task takes, all workers together."""

    workers: int
    shards: int
    requests: dict[str, int]
    dollars: float


# --- queues ------------------------------------------------------------------------------------


class Metered:
    """A queue in an empty prefix, or in the given one, whose requests are counted."""

    def __init__(self, settings: Settings, keys: Keys, latency_s: float = 0.0) -> None:
        self._settings = settings
        self._latency_s = latency_s
        self._meters: list[Meter] = []
        self.queue = Queue(self._open(), keys, open_store=self._open)

    def counts(self) -> Counter[str]:
        """Return what was asked of the store since the last call."""
        total: Counter[str] = Counter()
        for meter in self._meters:
            total += meter.counts
            meter.counts.clear()
        return total

    def _open(self) -> Retrying:
        clock = SystemClock()
        self._meters.append(Meter(open_store(self._settings, clock).once, self._latency_s))
        return Retrying(self._meters[-1], clock)


def fresh_keys(shard_prefix_len: int = 1) -> Keys:
    """Return keys under a prefix that was never used."""
    return Keys(f"scale-{token(SystemClock())[:12]}/", shard_prefix_len)


async def fill(queue: Queue, count: int, schedule_at: datetime | None = None) -> None:
    """Submit `count` tasks."""
    tasks = (NewTask("nothing", INPUT, schedule_at=schedule_at) for _ in range(count))
    async for submitted in queue.submit_many(tasks, concurrency=AT_ONCE):
        submitted.result()


def worker_of(queue: Queue) -> Worker:
    """Return a worker on no-ops."""
    worker = Worker(queue, f"scale-{token(queue.clock)[:8]}", concurrency=CONCURRENCY)

    @worker.task("nothing")
    async def nothing(_input: Any) -> None:
        pass

    return worker


async def drained(what: str, metered: Metered, tasks: int) -> Run:
    """Let one worker run `tasks` tasks and stop."""
    list_ms = statistics.median([await _timed_ms(metered.queue) for _ in range(LISTS)])
    metered.counts()
    began = time.perf_counter()
    await worker_of(metered.queue).run(WorkerRunOptions(max_tasks=tasks))
    seconds = time.perf_counter() - began
    return Run(what, tasks, seconds, _a_task(metered.counts(), tasks), list_ms)


async def _timed_ms(queue: Queue) -> float:
    began = time.perf_counter()
    await queue.store.list(queue.keys.ready)
    return (time.perf_counter() - began) * 1000


def _a_task(counts: Counter[str], tasks: int) -> dict[str, float]:
    return {kind: count / tasks for kind, count in sorted(counts.items())}


# --- waiting, shards ---------------------------------------------------------------------------


async def waiting(settings: Settings, many: int) -> list[Run]:
    """A thousand tasks at a time out of a small, a large and a far-away backlog, by turns."""
    queues = {
        name: Metered(settings, fresh_keys())
        for name in (f"{TASKS:,} waiting", f"{many:,} waiting", f"{TASKS:,} + {many:,} later")
    }
    _, large, later = queues.values()
    await fill(large.queue, many)
    await fill(later.queue, many, datetime.now(UTC) + timedelta(days=1))
    return await _by_turns(queues)


async def shards(settings: Settings) -> list[Run]:
    """A thousand tasks at a time on 16 and on 256 shards, by turns."""
    queues = {f"{16**length} shards": Metered(settings, fresh_keys(length)) for length in (1, 2)}
    return await _by_turns(queues)


async def _by_turns(queues: dict[str, Metered]) -> list[Run]:
    runs: dict[str, list[Run]] = {name: [] for name in queues}
    for _ in range(ROUNDS):
        for name, metered in queues.items():
            await fill(metered.queue, TASKS)
            runs[name].append(await drained(name, metered, TASKS))
    for metered in queues.values():
        await metered.queue.close()
    return [_median(found) for found in runs.values()]


def _median(runs: Sequence[Run]) -> Run:
    """Return the run that took the median time, with the median of the listings."""
    middle = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
    return replace(middle, list_ms=statistics.median(run.list_ms or 0.0 for run in runs))


# --- processes -----------------------------------------------------------------------------------


async def processes(settings: Settings, latency_s: float) -> list[Run]:
    """A backlog shared by 1, 2, 4 and 8 worker processes."""
    runs = []
    for count in (1, 2, 4, 8):
        metered = Metered(settings, fresh_keys())
        tasks = TASKS * 2
        await fill(metered.queue, tasks)
        spec = {"settings": _plain(settings), "prefix": metered.queue.keys.prefix, "latency_s": latency_s}
        children = [await _child(spec) for _ in range(count)]
        for child in children:  # connected, and waiting for the word
            await child.stdout.readline()
        began = time.perf_counter()
        for child in children:
            child.stdin.write(b"go\n")
        reports = [json.loads((await child.communicate())[0]) for child in children]
        ended = max(report["ended"] for report in reports) - time.time() + time.perf_counter()
        assert sum(report["completed"] for report in reports) >= tasks
        total: Counter[str] = Counter()
        for report in reports:
            total += Counter(report["requests"])
        name = f"{count} processes" + (f", + {latency_s * 1000:g} ms" if latency_s else "")
        runs.append(Run(name, tasks, ended - began, _a_task(total, tasks)))
        await metered.queue.close()
    return runs


async def _child(spec: dict[str, Any]) -> Any:
    arguments = (sys.executable, __file__, "--child", json.dumps(spec))
    return await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE)


def _plain(settings: Settings) -> dict[str, str]:
    keys = settings.keys
    assert keys is not None
    return {
        "S3_ENDPOINT": settings.endpoint or "",
        "S3_BUCKET": settings.bucket,
        "S3_REGION": settings.region or "",
        "AWS_ACCESS_KEY_ID": keys.access_key_id,
        "AWS_SECRET_ACCESS_KEY": keys.secret_access_key,
    }


async def child(spec: dict[str, Any]) -> None:
    """Be one of the worker processes: run the backlog down, and report."""
    settings = Settings.resolve(env=spec["settings"])
    metered = Metered(settings, Keys(spec["prefix"]), spec["latency_s"])
    worker = worker_of(metered.queue)
    await metered.queue.store.list(metered.queue.keys.ready, limit=1)
    metered.counts()
    print("ready", flush=True)
    sys.stdin.readline()
    running = asyncio.create_task(worker.run(WorkerRunOptions(burst=True)))
    ended = time.time()
    done = 0
    while not running.done():
        await asyncio.sleep(0.01)
        if worker.counters.completed > done:
            done, ended = worker.counters.completed, time.time()
    await running
    await metered.queue.close()
    print(json.dumps({"completed": done, "ended": ended, "requests": metered.counts()}))


# --- idle ----------------------------------------------------------------------------------------


def idle(workers: int, shard_prefix_len: int) -> Idle:
    """Let workers wait for a day of virtual time."""

    async def day(clock: VirtualClock) -> Counter[str]:
        bucket = MemoryBucket(clock)
        stores = [CountingStore(MemoryStore(clock, bucket)) for _ in range(workers)]
        keys = Keys("", shard_prefix_len)
        running = [asyncio.create_task(worker_of(Queue(Retrying(s, clock), keys)).run()) for s in stores]
        await clock.sleep(DAY_S)
        counts = sum((store.counts for store in stores), Counter[str]())
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return counts

    counts = run_virtual(day)
    return Idle(workers, 16**shard_prefix_len, dict(sorted(counts.items())), S3.cost(counts))


# --- the tables ------------------------------------------------------------------------------------


KINDS = ("get", "put", "list", "delete_many")


def print_runs(title: str, runs: Sequence[Run]) -> None:
    """Print what the runs took."""
    print(f"{title:<24} {'tasks/s':>8} {'LIST ms':>8} {'GET':>6} {'PUT':>6} {'LIST':>6} {'POST':>6}  a task")
    for run in runs:
        list_ms = "" if run.list_ms is None else f"{run.list_ms:.1f}"
        counts = " ".join(f"{run.requests_a_task.get(kind, 0):6.3f}" for kind in KINDS)
        print(f"{run.what:<24} {run.tasks_per_s:>8,.0f} {list_ms:>8} {counts}")


def print_idle(days: Sequence[Idle]) -> None:
    """Print what a day without a task takes."""
    print(f"{'idle for 24 h':<24} {'LIST':>8} {'PUT':>8} {'GET':>6} {'S3, a day':>10} {'a month':>9}")
    for day in days:
        name = f"{day.workers} workers, {day.shards} shards"
        lists, puts, gets = (day.requests.get(kind, 0) for kind in ("list", "put", "get"))
        counts = f"{lists:>8,} {puts:>8,} {gets:>6,}"
        print(f"{name:<24} {counts} {day.dollars:>9.2f}$ {day.dollars * 30:>8.2f}$")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=("waiting", "shards", "processes", "idle"))
    parser.add_argument("--waiting", type=int, default=MANY, help="the large backlog")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_async(child(json.loads(arguments.child)))
        return
    with seaweedfs() as settings:
        on_s3: dict[str, Callable[[], Awaitable[list[Run]]]] = {
            "waiting": lambda: waiting(settings, arguments.waiting),
            "shards": lambda: shards(settings),
            "processes": lambda: _both(settings),
        }
        result: dict[str, list[Any]] = {}
        for name, measure in on_s3.items():
            if arguments.only in (None, name):
                runs = result[name] = asyncio.run(measure())  # type: ignore[arg-type]
                if not arguments.json:
                    print_runs(name, runs)
    if arguments.only in (None, "idle"):
        days = result["idle"] = [idle(workers, length) for workers in (1, 8) for length in (1, 2)]
        if not arguments.json:
            print_idle(days)
    if arguments.json:
        print(json.dumps({name: [asdict(one) for one in found] for name, found in result.items()}))


async def _both(settings: Settings) -> list[Run]:
    return [*await processes(settings, 0.0), *await processes(settings, FAR_S)]


if __name__ == "__main__":
    main()
