"""Whether a worker leaks: many tasks through one worker process, and its memory after each thousand.

Example::

    python bench/leak.py                        # 200,000 tasks, some twenty minutes
    python bench/leak.py --away                 # the same with the store away half the time
    python bench/leak.py --tasks 20000 --json

The store is a SeaweedFS in another process (`buquet dev`). This process submits, `--rate` tasks a second
and never more than `BACKLOG` ahead of the worker, so that the store keeps up: markers that it is slow to
delete are memory, too, so give a slow or busy machine a lower rate. It is also the line between worker
and store: to be away it refuses connections, or takes them and stays silent, by turns. The worker's
tasks are of all kinds: most are coroutines, some run in threads, some fail at first. Nothing is done to
make memory look well: no collection is forced, nothing is trimmed.

Exits with 1 if memory grows by more than 5 % after the first `SETTLED_AFTER` tasks, or if file
descriptors, threads or asyncio tasks gather. Compared are the medians of ten samples, because memory
differs by a MiB or two from one moment to the next: by the size of the page that was just listed.
Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from buquet import NewTask, RetryPolicy, TaskContext, Worker, connect

RATE = 200
"""How many tasks are submitted a second, at most, unless another rate is given."""

BACKLOG = 500
"""How many tasks may wait for the worker."""

SETTLED_AFTER = 10_000
"""Until then imports, caches and pools may still grow."""

MOST_GROWTH = 0.05

SAMPLE_EVERY = 1_000
WINDOW = 10
"""Samples whose median is compared."""

CONCURRENCY = 32
ROWS = 20

LOOK_EVERY_S = 0.02
STOP_S = 60.0

TURNS = ((None, 5.0), ("refuses", 5.0), (None, 20.0), ("silent", 20.0))
"""How the store is away half the time: long enough to be an outage, and for requests to time out."""

PLAIN_EVERY = 10
FAILS_FIRST_EVERY = 25


@dataclass(frozen=True, slots=True)
class Sample:
    """The worker process after so many tasks."""

    tasks: int
    seconds: float
    rss_kib: int
    descriptors: int
    threads: int
    asyncio_tasks: int


# --- the worker's process ------------------------------------------------------------------


async def work(total: int) -> None:
    """Work until `total` tasks are completed; print a line of JSON for every sample."""
    async with connect() as queue:
        worker = Worker(queue, "leak", concurrency=CONCURRENCY)

        @worker.task("coroutine")
        async def coroutine(given: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
            await asyncio.sleep(0.001)
            if given["fails_first"] and ctx.task.retry_count == 0:
                raise RuntimeError(f"task {given['number']} fails at first")
            return {"number": given["number"], "text": "x" * 100}

        @worker.task("plain")
        def plain(given: dict[str, Any]) -> int:
            return given["number"]

        running = asyncio.create_task(worker.run())
        began, sampled = time.monotonic(), 0
        while not running.done():
            await asyncio.sleep(LOOK_EVERY_S)
            completed = worker.counters.completed
            print(completed, flush=True)
            if completed - sampled >= SAMPLE_EVERY:
                sampled = completed - completed % SAMPLE_EVERY
                sample = _sample(completed, time.monotonic() - began)
                print(json.dumps(asdict(sample)), flush=True)
            if completed >= total:
                await worker.stop()
        await running


def _sample(completed: int, seconds: float) -> Sample:
    return Sample(
        completed,
        round(seconds, 1),
        _rss_kib(),
        len(list(Path("/proc/self/fd").iterdir())),
        len(list(Path("/proc/self/task").iterdir())),
        len(asyncio.all_tasks()),
    )


def _rss_kib() -> int:
    # Exact, unlike /proc/self/status, whose counters lag behind by some pages a CPU.
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/smaps_rollup has no Rss")


# --- the line between worker and store -----------------------------------------------------


class Line:
    """Passes bytes between the worker and the store, unless the store is away."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._host, self._port = parts.hostname, parts.port
        self._ends: set[asyncio.BaseTransport] = set()
        self._server: asyncio.Server | None = None
        self.is_silent = False
        self.port = 0

    async def open(self) -> None:
        """Take connections, on the same port each time."""
        self.is_silent = False
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Near(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Take no more connections, and break those that there are."""
        if self._server is not None:
            self._server.close()
        self.break_all()

    def break_all(self) -> None:
        for end in list(self._ends):
            end.abort()  # type: ignore[attr-defined]

    async def take_turns(self) -> None:
        """Be away half the time."""
        while True:
            for manner, length_s in TURNS:
                if manner == "refuses":
                    self.refuse()
                self.is_silent = manner == "silent"
                await asyncio.sleep(length_s)
                if manner == "silent":
                    self.break_all()
                if manner == "refuses":
                    await self.open()

    async def far(self, near: _Near) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: _Far(self, near), self._host, self._port)
        return transport

    def opened(self, end: asyncio.BaseTransport) -> None:
        self._ends.add(end)

    def closed(self, end: asyncio.BaseTransport) -> None:
        self._ends.discard(end)


class _End(asyncio.Protocol):
    """One side of a connection; what comes in goes out at the other."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.transport: asyncio.Transport | None = None
        self.other: asyncio.Transport | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.line.opened(transport)

    def data_received(self, data: bytes) -> None:
        if self.line.is_silent:
            return
        if self.other is None:
            self._waiting.append(data)
        else:
            self.other.write(data)

    def join(self, other: asyncio.Transport) -> None:
        self.other = other
        other.writelines(self._waiting)
        self._waiting.clear()

    def connection_lost(self, _error: Exception | None) -> None:
        self.line.closed(self.transport)  # type: ignore[arg-type]
        if self.other is not None:
            self.other.close()


class _Near(_End):
    """The worker's side."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._joining = asyncio.ensure_future(self._join())

    async def _join(self) -> None:
        try:
            far = await self.line.far(self)
        except OSError:
            self.transport.abort()  # type: ignore[union-attr]
            return
        self.join(far)
        if self.transport.is_closing():  # type: ignore[union-attr]
            far.close()


class _Far(_End):
    """The store's side."""

    def __init__(self, line: Line, near: _Near) -> None:
        super().__init__(line)
        self.other = near.transport


# --- this process: submits, and gathers the samples ---------------------------------------


class Run:
    """One measurement.

    Parameters
    ----------
    folder:
        Where the store keeps its data, and the worker its log.
    tasks:
        How many.
    rate:
        How many are submitted a second, at most.
    away:
        Whether the store is away half the time.
    """

    def __init__(self, folder: Path, tasks: int, *, rate: float, away: bool) -> None:
        self.samples: list[Sample] = []
        self._folder = folder
        self._tasks = tasks
        self._rate = rate
        self._away = away
        self._completed = 0
        self._moved = asyncio.Event()

    async def go(self) -> None:
        """Submit all tasks, and follow the worker until it has completed them."""
        async with _store(self._folder / "s3") as variables:
            line = Line(variables["S3_ENDPOINT"])
            seen = dict(variables)
            if self._away:
                await line.open()
                seen["S3_ENDPOINT"] = f"http://127.0.0.1:{line.port}"
            async with _worker(self._tasks, seen, self._log) as worker, asyncio.TaskGroup() as group:
                os.environ.update(variables)
                beside = [group.create_task(self._submit())]
                if self._away:
                    beside.append(group.create_task(line.take_turns()))
                await self._read(worker)
                for task in beside:
                    task.cancel()

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    async def _submit(self) -> None:
        async with connect() as queue:
            async for submitted in queue.submit_many(self._new_tasks()):
                submitted.result()

    async def _new_tasks(self) -> AsyncIterator[NewTask]:
        policy = RetryPolicy(initial_interval_ms=100)
        began = time.monotonic()
        for number in range(self._tasks):
            await asyncio.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            while number - self._completed >= BACKLOG:
                self._moved.clear()
                await self._moved.wait()
            task_type = "plain" if number % PLAIN_EVERY == 0 else "coroutine"
            value = {"number": number, "fails_first": number % FAILS_FIRST_EVERY == 1}
            yield NewTask(task_type, value, retry_policy=policy)

    async def _read(self, worker: Process) -> None:
        assert worker.stdout is not None
        async for said in worker.stdout:
            found = json.loads(said)
            if isinstance(found, int):
                self._completed = found
                self._moved.set()
            else:
                self.samples.append(Sample(**found))
                _tell(self.samples)
        await worker.wait()
        if self._completed < self._tasks:
            end = self._log.read_text()[-2000:]
            raise RuntimeError(f"the worker ended after {self._completed} tasks: {end}")


def _tell(samples: list[Sample]) -> None:
    """Show how far it is: in place to a person, now and then to a log."""
    sample = samples[-1]
    end = "\r" if sys.stderr.isatty() else "\n"
    if sys.stderr.isatty() or len(samples) % 10 == 0:
        text = f"{sample.tasks:,} tasks, {sample.seconds:,.0f} s, {sample.rss_kib / 1024:.1f} MiB"
        print(text, end=end, file=sys.stderr, flush=True)


@asynccontextmanager
async def _store(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Run SeaweedFS; give the variables that name its queue."""
    command = ("-m", "buquet", "dev", "--json", f"--port={_free_port()}", f"--folder={folder}")
    async with _process(*command, stdout=PIPE) as process:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readuntil(b"}"))


@asynccontextmanager
async def _worker(tasks: int, variables: dict[str, str], log: Path) -> AsyncIterator[Process]:
    with log.open("wb") as file:
        environment = os.environ | variables
        async with _process(__file__, f"--work={tasks}", stdout=PIPE, stderr=file, env=environment) as worker:
            yield worker


@asynccontextmanager
async def _process(*command: str, **options: Any) -> AsyncIterator[Process]:
    """Run Python; in the end it is told to stop."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", *command),
        start_new_session=True,  # Ctrl-C is for this program, which ends the others
        **options,
    )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


# --- what came of it -----------------------------------------------------------------------


def verdict(samples: list[Sample]) -> dict[str, Any]:
    """Compare the end with what was there after the first `SETTLED_AFTER` tasks."""
    settled_after = min(SETTLED_AFTER, samples[-1].tasks // 2)
    after = [sample for sample in samples if sample.tasks >= settled_after]
    few = max(1, min(WINDOW, len(after) // 2))
    first_kib, last_kib = _median_kib(after[:few]), _median_kib(after[-few:])
    most = max(after, key=lambda sample: sample.rss_kib)
    gathered = [
        name
        for name in ("descriptors", "threads", "asyncio_tasks")
        # What is busy at the moment may be as many as tasks run at once, a few times over; no more.
        if max(getattr(sample, name) for sample in after) > getattr(after[0], name) + 4 * CONCURRENCY
    ]
    growth = last_kib / first_kib - 1
    return {
        "settled_after": after[0].tasks,
        "first_kib": first_kib,
        "last_kib": last_kib,
        "growth": round(growth, 4),
        "most": asdict(most),
        "most_growth": round(most.rss_kib / first_kib - 1, 4),
        "bytes_a_task": round(_slope(after) * 1024, 1),
        "gathered": gathered,
        "is_flat": growth <= MOST_GROWTH and not gathered,
    }


def _median_kib(samples: list[Sample]) -> float:
    return statistics.median(sample.rss_kib for sample in samples)


def _slope(samples: list[Sample]) -> float:
    """KiB a task, by least squares."""
    mean_tasks = sum(sample.tasks for sample in samples) / len(samples)
    mean_rss = sum(sample.rss_kib for sample in samples) / len(samples)
    spread = sum((sample.tasks - mean_tasks) ** 2 for sample in samples)
    joint = sum((sample.tasks - mean_tasks) * (sample.rss_kib - mean_rss) for sample in samples)
    return joint / spread if spread else 0.0


def _print(samples: list[Sample], found: dict[str, Any]) -> None:
    print(f"{'tasks':>9} {'seconds':>8} {'RSS MiB':>8} {'fds':>5} {'threads':>8} {'asyncio tasks':>14}")
    step = max(1, len(samples) // ROWS)
    for sample in [*samples[:-1:step], samples[-1]]:
        print(
            f"{sample.tasks:>9,} {sample.seconds:>8.0f} {sample.rss_kib / 1024:>8.1f} "
            f"{sample.descriptors:>5} {sample.threads:>8} {sample.asyncio_tasks:>14}"
        )
    most = found["most"]
    print(
        f"\n{found['first_kib'] / 1024:.1f} MiB after {found['settled_after']:,} tasks, "
        f"{found['last_kib'] / 1024:.1f} MiB in the end: {found['growth']:+.1%}; "
        f"{most['rss_kib'] / 1024:.1f} MiB at most, after {most['tasks']:,}: {found['most_growth']:+.1%}; "
        f"{found['bytes_a_task']:+.1f} bytes a task"
    )
    for name in found["gathered"]:
        print(f"{name} have gathered")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=RATE, help=f"tasks a second; {RATE}, if not given")
    parser.add_argument("--away", action="store_true", help="the store is away half the time")
    parser.add_argument("--json", action="store_true", help="print the samples as JSON")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        asyncio.run(work(options.work))
        return 0
    if options.tasks < 2 * SAMPLE_EVERY:
        parser.error(f"a sample is taken every {SAMPLE_EVERY:,} tasks: give at least twice as many")
    with tempfile.TemporaryDirectory(prefix="buquet-leak-") as folder:
        run = Run(Path(folder), options.tasks, rate=options.rate, away=options.away)
        asyncio.run(run.go())
    found = verdict(run.samples)
    if options.json:
        print(json.dumps({"samples": [asdict(sample) for sample in run.samples], **found}))
    else:
        _print(run.samples, found)
    return 0 if found["is_flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
