"""The demo: two worker processes, one of them killed amid its work, and no task lost.

What its table says is measured from outside: the runs of handlers by a file that the workers
append to, everything else by reading each task in the end.

Example::

    python -m buquet.cli.demo
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from buquet.cli import output
from buquet.cli.demo_worker import TASK_TYPE
from buquet.cli.loop import run_async
from buquet.clock import SystemClock, token
from buquet.connection import connect
from buquet.errors import BuquetError
from buquet.protocol.retry_policy import RetryPolicy
from buquet.protocol.task import Task, TaskStatus
from buquet.queue import Queue
from buquet.store.retry import Retrying
from buquet.submissions import NewTask
from buquet.testing.counting import CountingStore

if TYPE_CHECKING:
    from buquet.store.interface import Store

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended: 128 and the signal's number."""

TASK_TIMEOUT_S = 2
"""Short, because a killed worker's tasks are taken back when their leases have ended."""

LEASES_VOID_S = TASK_TIMEOUT_S + 10 + 5
"""How long after a claim that is: the time-out, each lease's grace, the slack for clock errors."""

FAILS_FIRST_EVERY = 20
AT_ONCE = 64
LOOK_EVERY_S = 0.1
LOOKS_IN_VAIN = 15
STOP_TIMEOUT_S = 10


def run(
    endpoint: str | None, bucket: str | None, *, tasks: int, timeout_s: float, as_json: bool = False
) -> int:
    """Run the demo and print its table.

    Parameters
    ----------
    endpoint, bucket:
        The store; a temporary SQLite file if no endpoint is given.
    tasks:
        How many tasks to submit.
    timeout_s:
        How long the workers may take, in seconds.
    as_json:
        Print the figures as one JSON object, and nothing else.

    Returns
    -------
    int
        The exit code: 0 if every task was completed, 1 if not, 130 after Ctrl-C.
    """
    console = Console(quiet=as_json)
    try:
        result = run_async(_in_a_folder(console, endpoint, bucket, tasks, timeout_s))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BuquetError, WorkerEnded) as error:
        return _failed(str(error))
    if as_json:
        output.emit(result)
    console.print(result.table())
    if result.completed < result.submitted:
        return _failed(f"{result.submitted - result.completed:,} tasks not completed in {timeout_s:g} s")
    return 0


def _failed(why: str) -> int:
    click.echo(f"demo failed: {why}", err=True)
    return 1


class WorkerEnded(Exception):  # noqa: N818 - how the demo ends
    """A worker that was to go on has ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the demo came to."""

    submitted: int
    completed: int
    retried: int
    lost: int
    duplicates: int
    seconds: float
    requests: int

    def table(self) -> Table:
        """Return it as a table for people."""
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_row("submitted", f"{self.submitted:,}")
        table.add_row("completed", f"{self.completed:,}")
        table.add_row("retried", f"{self.retried:,}")
        table.add_row("lost", f"{self.lost:,}", style="bold red" if self.lost else "bold green")
        table.add_row("duplicates started", f"{self.duplicates:,}")
        table.add_row("time", f"{self.seconds:.1f} s")
        table.add_row("requests a task", f"{self.requests / self.submitted:.2f}")
        return table


class Runs:
    """What the workers have written to the log of handler runs.

    Parameters
    ----------
    path:
        The file.
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        self.path = path
        self.done: set[str] = set()
        """The tasks that a handler has run to the end."""
        self._file = path.open(encoding="ascii")
        self.lines = 0
        """How many lines have been read."""
        self._started: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._requests: dict[str, int] = {}

    @property
    def requests(self) -> int:
        """How many requests the workers have made."""
        return sum(self._requests.values())

    @property
    def duplicates(self) -> int:
        """How many runs were started that neither a new task nor a failed run asked for."""
        return sum(max(0, runs - 1 - self._failed[task_id]) for task_id, runs in self._started.items())

    def read(self) -> None:
        """Read what has been added."""
        for line in self._file:
            event, worker_id, requests, task_id = line.split()
            self.lines += 1
            self._requests[worker_id] = int(requests)
            if event == "started":
                self._started[task_id] += 1
            elif event == "failed":
                self._failed[task_id] += 1
            elif event == "done":
                self.done.add(task_id)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


async def _in_a_folder(
    console: Console, endpoint: str | None, bucket: str | None, tasks: int, timeout_s: float
) -> Result:
    """Run the demo on its store, under a prefix that is emptied in the end."""
    with tempfile.TemporaryDirectory(prefix="buquet-demo-") as folder:
        endpoint = endpoint or f"local:{folder}/queue.db"
        prefix = f"demo-{token(SystemClock())[:12]}/"
        async with connect(endpoint, bucket, prefix=prefix) as queue:
            environment = {"S3_ENDPOINT": endpoint, "S3_BUCKET": bucket or "", "BUQUET_PREFIX": prefix}
            runs = Runs(Path(folder, "runs.log"))
            try:
                return await _Demo(console, queue, runs, environment).play(tasks, timeout_s)
            finally:
                runs.close()
                await _empty(queue.store, prefix)


async def _empty(store: Store, prefix: str) -> None:
    while keys := [entry.key for entry in (await store.list(prefix)).entries]:
        await store.delete_many(keys, read_at=store.time.clock.monotonic())


class _Demo:
    """One run of the demo."""

    def __init__(self, console: Console, queue: Queue, runs: Runs, environment: dict[str, str]) -> None:
        self._counted = CountingStore(queue.store.once)
        self._queue = Queue(Retrying(self._counted, queue.clock), queue.keys)
        self._runs = runs
        self._environment = environment
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("tasks completed")

    async def play(self, count: int, timeout_s: float) -> Result:
        clock = self._queue.clock
        began = clock.monotonic()
        with self._progress:
            task_ids = await self._submit(count)
            submit_requests = self._counted.total
            async with self._worker("worker-1") as victim, self._worker("worker-2") as survivor:
                with contextlib.suppress(TimeoutError):  # what is missing then, the table tells
                    async with asyncio.timeout(timeout_s):
                        await self._kill_midway(victim, survivor, count)
                        await self._finish(survivor, task_ids)
                seconds = clock.monotonic() - began
        self._runs.read()
        tasks = await self._read_all(task_ids)
        return Result(
            submitted=count,
            completed=sum(task.status is TaskStatus.Completed for task in tasks),
            retried=sum(task.retry_count for task in tasks),
            lost=count - sum(task.status.is_terminal for task in tasks),
            duplicates=self._runs.duplicates,
            seconds=seconds,
            requests=submit_requests + self._runs.requests,
        )

    async def _submit(self, count: int) -> list[str]:
        policy = RetryPolicy(initial_interval_ms=200)
        values = (
            {"number": number, "fails_first": number % FAILS_FIRST_EVERY == 0} for number in range(count)
        )
        tasks = (NewTask(TASK_TYPE, value, TASK_TIMEOUT_S, retry_policy=policy) for value in values)
        task_ids = [submitted.result().id async for submitted in self._queue.submit_many(tasks)]
        self._progress.update(self._bar, total=count)
        self._say(f"{count:,} tasks submitted, two workers run them")
        return task_ids

    async def _kill_midway(self, victim: Process, survivor: Process, count: int) -> None:
        while len(self._runs.done) < count / 2:
            await self._look(victim, survivor)
        victim.kill()
        await victim.wait()
        self._say(f"worker-1 killed (SIGKILL) after {len(self._runs.done):,} tasks, worker-2 goes on")

    async def _finish(self, survivor: Process, task_ids: Sequence[str]) -> None:
        """Wait until every task has been run to the end, and its outcome stands."""
        looks_in_vain = 0
        while len(self._runs.done) < len(task_ids):
            lines = self._runs.lines
            await self._look(survivor)
            looks_in_vain = looks_in_vain + 1 if self._runs.lines == lines else 0
            if looks_in_vain == LOOKS_IN_VAIN:
                self._say(f"waiting for the leases of the killed worker, {LEASES_VOID_S} s from their claims")
        for start in range(0, len(task_ids), AT_ONCE):
            await asyncio.gather(*map(self._queue.wait, task_ids[start : start + AT_ONCE]))

    async def _look(self, *needed: Process) -> None:
        """Bring the bar up to date, a little later.

        Raises
        ------
        WorkerEnded
            A worker that is needed has ended.
        """
        await self._queue.clock.sleep(LOOK_EVERY_S)
        self._runs.read()
        self._progress.update(self._bar, completed=len(self._runs.done))
        for process in needed:
            if process.returncode is not None:
                raise WorkerEnded(f"a worker has ended by itself, with exit code {process.returncode}")

    async def _read_all(self, task_ids: Sequence[str]) -> list[Task]:
        tasks: list[Task | None] = []
        for start in range(0, len(task_ids), AT_ONCE):
            tasks += await asyncio.gather(*map(self._queue.get, task_ids[start : start + AT_ONCE]))
        return [task for task in tasks if task is not None]

    @contextlib.asynccontextmanager
    async def _worker(self, worker_id: str) -> AsyncIterator[Process]:
        """Start a worker process; in the end it is told to stop."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # what lies in the working directory must not be imported
            *("-m", "buquet.cli.demo_worker", worker_id, str(self._runs.path)),
            stdin=PIPE,
            env=os.environ | self._environment,
            start_new_session=True,  # Ctrl-C is for the demo, which stops its workers itself
        )
        try:
            yield process
        finally:
            await _stop(process)

    def _say(self, what: str) -> None:
        self._progress.console.print(what)


async def _stop(process: Process) -> None:
    """End a worker: by the end of its input, or by force if it does not heed that."""
    assert process.stdin is not None  # noqa: S101 - it was started with a pipe
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    from buquet.cli import main

    main(["demo", *sys.argv[1:]], prog_name="python -m buquet.cli.demo")
