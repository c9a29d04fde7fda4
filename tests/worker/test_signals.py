"""SIGTERM and SIGINT, in a real process on a real file."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from buquet import Worker, WorkerRunOptions, connect

SCRIPT = r"""
import asyncio, logging, sys, time
from buquet import Worker, WorkerRunOptions, connect

logging.basicConfig(level=logging.INFO, stream=sys.stderr)

async def main():
    queue = await connect(sys.argv[1])
    worker = Worker(queue, "w", concurrency=4)

    @worker.task("async")
    async def asynchronous(seconds):
        print("started\n", end="", flush=True)  # one write: two threads print
        await asyncio.sleep(seconds)
        return "finished"

    @worker.task("plain")
    def plain(seconds):
        print("started\n", end="", flush=True)  # one write: two threads print
        time.sleep(seconds)
        return "finished"

    await worker.run(WorkerRunOptions(shutdown_timeout_s=float(sys.argv[2]), with_monitor=False))
    print("ended", flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def a_worker(endpoint: str, shutdown_timeout_s: float) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), endpoint, str(shutdown_timeout_s)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(process: asyncio.subprocess.Process) -> str:
    """Wait for a good end, and return the log."""
    assert process.stdout is not None
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, out) == (0, b"ended\n"), err.decode()
    assert b"Traceback" not in err
    return err.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_handlers_finish(tmp_path: Path, number: signal.Signals) -> None:
    endpoint = f"local:{tmp_path}/queue.db"
    async with connect(endpoint) as queue, a_worker(endpoint, 20) as process:
        tasks = [await queue.submit(kind, 0.7) for kind in ("async", "plain")]
        assert process.stdout is not None
        for _ in tasks:
            assert await process.stdout.readline() == b"started\n"
        process.send_signal(number)
        log = await ended(process)
        assert "INFO:buquet.worker.stop:stopping: 2 tasks may go on for up to 20 s" in log
        assert "worker w stopped: 2 claimed, 2 completed" in log
        for task in tasks:
            done = await queue.get(task.id)
            assert done is not None
            assert (done.status, done.output, done.attempt) == ("completed", "finished", 1)


@pytest.mark.parametrize(("shutdown_timeout_s", "signals"), [(0.1, 1), (60, 2)])
async def test_what_goes_on_is_released_at_the_time_out_or_the_second_signal(
    tmp_path: Path, shutdown_timeout_s: float, signals: int
) -> None:
    endpoint = f"local:{tmp_path}/queue.db"
    async with connect(endpoint) as queue, a_worker(endpoint, shutdown_timeout_s) as process:
        tasks = [await queue.submit(kind, 600, timeout_seconds=900) for kind in ("async", "plain")]
        assert process.stdout is not None
        for _ in tasks:
            assert await process.stdout.readline() == b"started\n"
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
        log = await ended(process)
        assert "stopped: 2 claimed, 2 released" in log
        for task in tasks:
            released = await queue.get(task.id)
            assert released is not None
            assert (released.status, released.attempt, released.retry_count) == ("pending", 1, 0)


async def test_an_idle_worker_ends_at_once(tmp_path: Path) -> None:
    endpoint = f"local:{tmp_path}/queue.db"
    async with connect(endpoint) as queue, a_worker(endpoint, 60) as process:
        task = await queue.submit("async", 0)
        await queue.wait(task.id, timeout_s=20)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGTERM)
        await ended(process)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


async def test_one_signal_stops_every_worker_of_a_process_and_handlers_are_put_back() -> None:
    before = handlers()
    async with connect("memory:") as queue:
        workers = [Worker(queue, f"w{number}") for number in range(3)]
        running = []
        for worker in workers:
            worker.task("x")(print)
            running.append(asyncio.create_task(worker.run(WorkerRunOptions(with_monitor=False))))
            await asyncio.sleep(0.02)
        assert handlers() != before
        await workers[0].stop()
        assert handlers() != before
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*running), 10)
    assert handlers() == before


async def test_a_worker_outside_the_main_thread_leaves_signals_alone() -> None:
    async def work() -> None:
        async with connect("memory:") as queue:
            worker = Worker(queue)
            worker.task("x")(print)
            await worker.run(WorkerRunOptions(with_monitor=False, burst=True))

    before = signal.getsignal(signal.SIGTERM)
    await asyncio.to_thread(asyncio.run, work())
    assert signal.getsignal(signal.SIGTERM) == before
