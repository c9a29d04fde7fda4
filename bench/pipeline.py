"""How busy a worker keeps its slots: against what a slow store allows, and against a bare client.

Example::

    python bench/pipeline.py                    # all of it, some two minutes
    python bench/pipeline.py --rounds 1 --json

*Far*: on the memory store each request takes some milliseconds longer. A task is three requests,
one after the other, so 64 slots can complete 64 / (3 x latency) tasks a second at most.

*Duel*: on a SeaweedFS (`buquet dev`) that shares this machine a worker, and a bare client that sends
the same mix of requests and thinks nothing of it, take turns; so do `submit` and bare PUTs. Only the
ratio within a round is worth anything: the machine has better and worse minutes.

*CPU* is what this process spends, the thread of the heartbeat included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from buquet import RetryPolicy, Worker
from buquet._core import ident
from buquet._core.record import Record, claim, encode, to_terminal
from buquet.cli.measure import Meter
from buquet.clock import SystemClock, token
from buquet.config import Settings
from buquet.connection import open_store
from buquet.protocol.keys import Keys
from buquet.protocol.transitions import submitted
from buquet.queue import Queue
from buquet.s3.client import S3Client
from buquet.s3.credentials import StaticCredentials
from buquet.s3.endpoint import Endpoint
from buquet.s3.xml import parse_listing
from buquet.store.memory import MemoryStore
from buquet.store.retry import Retrying

CONCURRENCY = 64
FLUSH_S = 1.0
"""How often the bare client deletes; a worker does so as often."""

PAGE = 1000
LATENCIES_S = (0.0, 0.020, 0.050)
INPUT = {"to": "user@example.com", "subject": "A few words", "body": "x" * 100}
START_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Far:
    """A worker on the memory store whose requests take longer; `share` is that of the ideal."""

    latency_ms: float
    tasks: int
    tasks_per_s: float
    share: float | None
    cpu_us_a_task: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One client's turn."""

    seconds: float
    cpu_s: float


class Stopwatch:
    """Runs from when it is made, on the wall and on this process's CPUs."""

    def __init__(self) -> None:
        self._cpu_s, self._began = time.process_time(), time.perf_counter()

    def turn(self) -> Turn:
        """What has passed."""
        return Turn(time.perf_counter() - self._began, time.process_time() - self._cpu_s)


@dataclass(frozen=True, slots=True)
class Round:
    """A round of the duel: worker and bare client, `submit` and bare PUTs."""

    worker: Turn
    bare: Turn
    submit: Turn
    puts: Turn


@dataclass(frozen=True, slots=True)
class Duel:
    """All rounds: medians of each; the ratios are medians of the rounds' ratios."""

    tasks: int
    worker_per_s: float
    bare_per_s: float
    worker_ratio: float
    worker_ratios: list[float]
    worker_cpu_us_a_task: float
    bare_cpu_us_a_task: float
    submit_per_s: float
    puts_per_s: float
    submit_ratio: float
    submit_ratios: list[float]
    submit_cpu_us_a_task: float
    put_cpu_us: float


# --- a worker --------------------------------------------------------------------------------


async def drain(queue: Queue, tasks: int) -> Turn:
    """Let a worker run all tasks; measure until the last one is completed."""
    worker = Worker(queue, "bench", concurrency=CONCURRENCY)

    @worker.task("nothing")
    async def nothing(_input: Any) -> None:
        pass

    watch = Stopwatch()
    running = asyncio.create_task(worker.run())
    while worker.counters.completed < tasks and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # the counters tell nobody when they change
    turn = watch.turn()
    await worker.stop()
    await running
    return turn


async def submit(queue: Queue, tasks: int) -> Turn:
    """Submit tasks, as many at once as a worker has slots."""
    return await timed(lambda: at_once(queue.submit("nothing", INPUT) for _ in range(tasks)))


async def at_once(calls: Iterable[Awaitable[object]]) -> None:
    """Await all, `CONCURRENCY` at once."""
    shared = iter(calls)

    async def one_by_one() -> None:
        for call in shared:
            await call

    await asyncio.gather(*(one_by_one() for _ in range(CONCURRENCY)))


async def timed(work: Callable[[], Awaitable[object]]) -> Turn:
    """Measure some work."""
    watch = Stopwatch()
    await work()
    return watch.turn()


# --- far: the memory store, with latency -------------------------------------------------------


async def far(latency_s: float, tasks: int) -> Far:
    """Run tasks on the memory store, each request of which takes `latency_s` longer."""
    clock = SystemClock()
    store = MemoryStore(clock)
    await submit(Queue(Retrying(store, clock), Keys()), tasks)
    below = Meter(store, latency_s) if latency_s else store
    turn = await drain(Queue(Retrying(below, clock), Keys()), tasks)
    per_s = tasks / turn.seconds
    share = per_s * 3 * latency_s / CONCURRENCY if latency_s else None
    return Far(latency_s * 1000, tasks, per_s, share, turn.cpu_s / tasks * 1e6)


# --- the bare client -----------------------------------------------------------------------------


class Bare:
    """Sends what a worker and its submitter send, and does nothing else.

    Parameters
    ----------
    settings:
        The bucket.
    prefix:
        What the keys begin with.
    """

    def __init__(self, settings: Settings, prefix: str) -> None:
        assert settings.endpoint is not None
        assert settings.keys is not None
        assert settings.region is not None
        endpoint = Endpoint.resolve(settings.endpoint, settings.bucket, path_style=True)
        self._client = S3Client(endpoint, settings.region, StaticCredentials(settings.keys))
        self._prefix = prefix
        self._keys: list[str] = []
        self._bodies = list(_bodies())

    async def submit(self, tasks: int) -> Turn:
        """PUT the first markers."""
        clock, keys = SystemClock(), Keys(self._prefix)
        now_ms = int(clock.unix() * 1000)
        ids = [ident.mint(now_ms, 5, clock.bits(58)) for _ in range(tasks)]
        self._keys = [keys.marker_key(keys.first_marker(task_id)) for task_id in ids]
        return await timed(lambda: at_once(self._create(key, self._bodies[0]) for key in self._keys))

    async def drain(self) -> Turn:
        """For each marker: GET it, PUT a ledger and PUT it again; LIST and delete the markers."""
        return await timed(self._drain)

    async def close(self) -> None:
        await self._client.close()

    async def _drain(self) -> None:
        listed: deque[str] = deque()
        done: list[str] = []
        await self._list(listed, "")
        listing = asyncio.create_task(self._list_on(listed))
        deleting = asyncio.create_task(self._delete_often(done))

        async def take() -> None:
            while listed or not listing.done():
                if listed:
                    key = listed.popleft()
                    await self._carry(key)
                    done.append(key)
                else:
                    await asyncio.sleep(0)

        await asyncio.gather(*(take() for _ in range(CONCURRENCY)))
        deleting.cancel()
        await listing

    async def _carry(self, marker: str) -> None:
        assert (await self._client.get(marker, time.time)).status == 200
        ledger = marker.replace("ready/", "tasks/")
        etag = await self._create(ledger, self._bodies[1])
        answer = await self._client.put(ledger, self._bodies[2], {"if-match": etag}, time.time)
        assert answer.status == 200

    async def _create(self, key: str, body: bytes) -> str:
        answer = await self._client.put(key, body, {"if-none-match": "*"}, time.time)
        assert answer.status == 200
        return answer.headers["ETag"]

    async def _list(self, listed: deque[str], after: str) -> str | None:
        answer = await self._client.list(f"{self._prefix}ready/", after, PAGE, time.time)
        page = parse_listing(answer.body)
        listed.extend(key for key, *_ in page.objects)
        return listed[-1] if page.truncated else None

    async def _list_on(self, listed: deque[str]) -> None:
        after: str | None = listed[-1]
        while after is not None:
            after = await self._list(listed, after)

    async def _delete_often(self, done: list[str]) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            while done:
                batch, done[:PAGE] = done[:PAGE], []
                assert (await self._client.delete_many(batch, time.time)).status == 200


def _bodies() -> Iterator[bytes]:
    """A record as it is submitted, claimed and completed."""
    clock = SystemClock()
    at_ms = int(clock.unix() * 1000)
    record: Record = submitted(
        task_id=ident.mint(at_ms, 5, clock.bits(58)),
        task_type="nothing",
        input_json=json.dumps(INPUT).encode(),
        priority=5,
        created_ms=at_ms,
        due_ms=at_ms,
        timeout_seconds=300,
        max_retries=3,
        retry_policy=RetryPolicy(),
        nonce=token(clock),
    )
    yield encode(record)
    lease = {"lease_id": token(clock), "worker_id": "bench", "incarnation": f"m{token(clock)}"}
    record = claim(record, at_ms=at_ms, nonce=token(clock), **lease)
    yield encode(record)
    yield encode(to_terminal(record, at_ms=at_ms, status="completed", nonce=token(clock), output=b"null"))


# --- the duel ----------------------------------------------------------------------------------


async def duel(settings: Settings, *, tasks: int, rounds: int) -> Duel:
    """Let worker and bare client take turns, in changing order; the first round is not counted."""
    played = [await _round(settings, tasks, number) for number in range(rounds + 1)][1:]
    worker_ratios = [one.bare.seconds / one.worker.seconds for one in played]
    submit_ratios = [one.puts.seconds / one.submit.seconds for one in played]

    def per_s(turns: Iterable[Turn]) -> float:
        return statistics.median(tasks / turn.seconds for turn in turns)

    def cpu_us(turns: Iterable[Turn]) -> float:
        return statistics.median(turn.cpu_s / tasks * 1e6 for turn in turns)

    return Duel(
        tasks=tasks,
        worker_per_s=per_s(one.worker for one in played),
        bare_per_s=per_s(one.bare for one in played),
        worker_ratio=statistics.median(worker_ratios),
        worker_ratios=worker_ratios,
        worker_cpu_us_a_task=cpu_us(one.worker for one in played),
        bare_cpu_us_a_task=cpu_us(one.bare for one in played),
        submit_per_s=per_s(one.submit for one in played),
        puts_per_s=per_s(one.puts for one in played),
        submit_ratio=statistics.median(submit_ratios),
        submit_ratios=submit_ratios,
        submit_cpu_us_a_task=cpu_us(one.submit for one in played),
        put_cpu_us=cpu_us(one.puts for one in played),
    )


def queue_on(settings: Settings, prefix: str) -> Queue:
    """A queue in a bucket, with a second client for the heartbeat's thread, as `connect` makes it."""
    return Queue(
        open_store(settings, SystemClock()),
        Keys(prefix),
        open_store=lambda: open_store(settings, SystemClock()),
    )


async def _round(settings: Settings, tasks: int, number: int) -> Round:
    prefix = token(SystemClock())[:12]
    queue = queue_on(settings, f"{prefix}-worker/")
    bare = Bare(settings, f"{prefix}-bare/")
    try:
        submissions = await _by_turns(number, lambda: submit(queue, tasks), lambda: bare.submit(tasks))
        drains = await _by_turns(number, lambda: drain(queue, tasks), bare.drain)
    finally:
        await bare.close()
        await queue.close()
    return Round(*drains, *submissions)


async def _by_turns(
    number: int, ours: Callable[[], Awaitable[T]], theirs: Callable[[], Awaitable[T]]
) -> tuple[T, T]:
    if number % 2:
        return await ours(), await theirs()
    last = await theirs()
    return await ours(), last


@contextmanager
def seaweedfs() -> Iterator[Settings]:
    """Run a SeaweedFS of its own on this machine; give its settings."""
    with tempfile.TemporaryDirectory(prefix="buquet-bench-") as folder:
        command = ("-m", "buquet", "dev", "--json", "--port", str(_free_port()), "--folder", f"{folder}/s3")
        server = subprocess.Popen(
            (sys.executable, "-P", *command), stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            said = server.stdout
            assert said is not None
            variables = "".join(iter(lambda: said.read(1), "}")) + "}"  # it goes on to write when it ends
            yield Settings.resolve(env=json.loads(variables))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(START_S)


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


# --- the table -----------------------------------------------------------------------------------


def print_far(found: Sequence[Far]) -> None:
    """Print what `far` found."""
    print(f"{'memory store':<24} {'tasks/s':>9} {'of 64 / (3 x latency)':>22} {'CPU us/task':>12}")
    for one in found:
        share = "" if one.share is None else f"{one.share:.0%}"
        name = f"+ {one.latency_ms:g} ms a request"
        print(f"{name:<24} {one.tasks_per_s:>9,.0f} {share:>22} {one.cpu_us_a_task:>12.0f}")


def print_duel(found: Duel) -> None:
    """Print what `duel` found."""
    print(f"{'SeaweedFS':<24} {'tasks/s':>9} {'bare/s':>9} {'ratio':>7} {'CPU us/task':>12} {'bare':>6}")
    rows = [
        ("worker", found.worker_per_s, found.bare_per_s, found.worker_ratio, found.worker_ratios),
        ("submit", found.submit_per_s, found.puts_per_s, found.submit_ratio, found.submit_ratios),
    ]
    cpu = [
        (found.worker_cpu_us_a_task, found.bare_cpu_us_a_task),
        (found.submit_cpu_us_a_task, found.put_cpu_us),
    ]
    for (name, ours, bare, ratio, ratios), (our_us, bare_us) in zip(rows, cpu, strict=True):
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(
            f"{name:<24} {ours:>9,.0f} {bare:>9,.0f} {ratio:>7.2f} {our_us:>12.0f} {bare_us:>6.0f}  {spread}"
        )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("far", "duel"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    if arguments.only != "duel":
        distances = [asyncio.run(far(latency_s, arguments.tasks)) for latency_s in LATENCIES_S]
        result["far"] = [asdict(one) for one in distances]
        if not arguments.json:
            print_far(distances)
    if arguments.only != "far":
        with seaweedfs() as settings:
            found = asyncio.run(duel(settings, tasks=arguments.tasks, rounds=arguments.rounds))
        result["duel"] = asdict(found)
        if not arguments.json:
            print_duel(found)
    if arguments.json:
        print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
