"""Sessions of real processes: signals, crashes, blocked loops, zombies."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import servers

from buquet import Task, connect
from buquet.queue import Queue

SCRIPT = str(Path(__file__).with_name("session_worker.py"))
LIFETIME_S = 2


class Place:
    """A queue, and the processes that work on it. `where` is what `connect` is given."""

    def __init__(self, queue: Queue, where: dict[str, str], directory: Path) -> None:
        self.queue = queue
        self.where = where
        self.effects = directory / "effects"
        self.effects.touch()
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, worker_id: str = "w", *before: str, **options: Any) -> asyncio.subprocess.Process:
        arguments = {
            "where": self.where,
            "worker_id": worker_id,
            "effects": str(self.effects),
            **options,
        }
        process = await asyncio.create_subprocess_exec(
            *(*before, sys.executable, "-W", "error", SCRIPT, json.dumps(arguments)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    async def sessions(self) -> list[str]:
        return [entry.key for entry in (await self.queue.store.list("workers/")).entries]

    def runs(self, task: Task) -> list[str]:
        lines = [line.split() for line in self.effects.read_text().splitlines()]
        return [f"{worker} {attempt}" for worker, task_id, attempt in lines if task_id == task.id]

    async def read(self, task: Task) -> Task:
        found = await self.queue.get(task.id)
        assert found is not None
        return found


@asynccontextmanager
async def place_in(directory: Path, where: dict[str, str] | None = None) -> AsyncIterator[Place]:
    where = where or {"endpoint": f"local:{directory}/queue.db"}
    async with connect(**where) as queue:  # type: ignore[arg-type]
        place = Place(queue, where, directory)
        try:
            yield place
        finally:
            for process in place.processes:
                if process.returncode is None:
                    process.kill()
            for process in place.processes:
                await process.communicate()


async def started(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 20) == b"started\n"


async def ended(process: asyncio.subprocess.Process, within_s: float = 15) -> dict[str, Any]:
    """Wait for a good end: exit code 0, no noise, nothing left behind; return the counters."""
    out, err = await asyncio.wait_for(process.communicate(), within_s)
    assert process.returncode == 0, err.decode()
    assert b"Traceback" not in err, err.decode()
    told = json.loads(out.splitlines()[-1])
    assert told["left"] == []
    counters: dict[str, Any] = told["counters"]
    return counters


async def until(condition: Callable[[], Any], within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.1)


# --- a handler that blocks -----------------------------------------------------------------


async def test_a_handler_that_blocks_the_loop_keeps_its_task(tmp_path: Path) -> None:
    """For three session lifetimes, while another worker's monitor looks on; it runs once."""
    async with place_in(tmp_path) as place:
        blocked = await place.start("blocked")
        task = await place.queue.submit("block", 3 * LIFETIME_S + 0.5)
        await started(blocked)
        other = await place.start("other")
        done = await place.queue.wait(task.id, timeout_s=30)
        assert (done.status, done.attempt, done.retry_count) == ("completed", 1, 0)
        assert place.runs(task) == ["blocked 1"]
        for process in (blocked, other):
            process.send_signal(signal.SIGTERM)
        counters = await ended(blocked)
        assert (counters["completed"], counters["lease_lost"]) == (1, 0)
        await ended(other)
        assert await place.sessions() == []


# --- crashes -------------------------------------------------------------------------------


async def test_a_task_that_kills_its_worker_ends_failed(tmp_path: Path) -> None:
    async with place_in(tmp_path) as place:
        task = await place.queue.submit("exit", None, max_retries=1)
        for _ in range(2):
            killed = await place.start("doomed")
            await asyncio.wait_for(killed.communicate(), 40)
            assert killed.returncode == 17
        survivor = await place.start("doomed")
        failed = await place.queue.wait(task.id, timeout_s=40)
        survivor.send_signal(signal.SIGTERM)
        await ended(survivor)
        assert (failed.status, failed.attempt, failed.retry_count) == ("failed", 2, 1)
        assert failed.last_error == "WorkerLost: worker doomed was lost while it ran attempt 2"
        assert place.runs(task) == ["doomed 1", "doomed 2"]
        assert [dead.id for dead in await place.queue.list_failed()] == [task.id]
        assert await place.sessions() == []


async def test_a_killed_worker_s_tasks_run_elsewhere(tmp_path: Path) -> None:
    """SIGKILL has the same outcome as SIGTERM, only later, and at the cost of a retry."""
    async with place_in(tmp_path) as place:
        doomed = await place.start("doomed")
        tasks = [await place.queue.submit(kind, 600, timeout_seconds=900) for kind in ("sleep", "plain")]
        for _ in tasks:
            await started(doomed)
        await asyncio.sleep(2)
        doomed.kill()
        other = await place.start("other")
        for _ in tasks:
            await started(other)
        for task in tasks:
            again = await place.read(task)
            assert (again.status, again.attempt, again.retry_count) == ("running", 2, 1)
        other.send_signal(signal.SIGTERM)
        other.send_signal(signal.SIGTERM)


@pytest.mark.server
async def test_a_zombie_drops_its_outcome_and_goes_on(tmp_path: Path, seaweedfs: servers.Server) -> None:
    """On a server: one that is stopped amid a transaction would keep a file locked."""
    where = {
        "endpoint": seaweedfs.endpoint,
        "bucket": seaweedfs.new_bucket(),
        "region": servers.REGION,
        "access_key_id": servers.ACCESS_KEY_ID,
        "secret_access_key": servers.SECRET_ACCESS_KEY,
    }
    async with place_in(tmp_path, where) as place:
        zombie = await place.start("zombie")
        task = await place.queue.submit("sleep", 3)
        await started(zombie)
        await asyncio.sleep(1.5)
        (first,) = await place.sessions()
        zombie.send_signal(signal.SIGSTOP)
        other = await place.start("other")
        await started(other)
        other.send_signal(signal.SIGTERM)  # it finishes the task before it ends
        await ended(other)
        done = await place.read(task)
        assert (done.status, done.attempt, done.retry_count) == ("completed", 2, 1)
        zombie.send_signal(signal.SIGCONT)
        next_task = await place.queue.submit("sleep", 0)
        await place.queue.wait(next_task.id, timeout_s=20)
        (again,) = await place.sessions()
        assert again != first
        zombie.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(zombie.communicate(), 15)
        assert zombie.returncode == 0, err.decode()
        counters = json.loads(out.splitlines()[-1])["counters"]
        assert (counters["lease_lost"], counters["completed"]) == (1, 1)
        assert f"task {task.id}: lease lost, outcome completed dropped" in err.decode()
        assert place.runs(task) == ["zombie 1", "other 2"]
        assert await place.sessions() == []


# --- shutdown ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_whole_group(tmp_path: Path, number: signal.Signals) -> None:
    """What ends in time is completed, the rest is handed back at once; the session is gone."""
    async with place_in(tmp_path) as place:
        process = await place.start(shutdown_timeout_s=1.5)
        quick = await place.queue.submit("sleep", 1)
        slow = [await place.queue.submit(kind, 600, timeout_seconds=900) for kind in ("sleep", "plain")]
        for _ in range(3):
            await started(process)
        os.killpg(process.pid, number)
        counters = await ended(process)
        assert (counters["completed"], counters["released"], counters["retried"]) == (1, 2, 0)
        assert (await place.read(quick)).status == "completed"
        for task in slow:
            released = await place.read(task)
            assert (released.status, released.attempt, released.retry_count) == ("pending", 1, 0)
        assert await place.sessions() == []


async def test_a_second_signal_hands_back_at_once(tmp_path: Path) -> None:
    async with place_in(tmp_path) as place:
        process = await place.start(shutdown_timeout_s=600)
        tasks = [await place.queue.submit(kind, 600, timeout_seconds=900) for kind in ("sleep", "plain")]
        for _ in tasks:
            await started(process)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        assert (await ended(process, 8))["released"] == 2
        for task in tasks:
            released = await place.read(task)
            assert (released.status, released.retry_count) == ("pending", 0)
        assert await place.sessions() == []


def _can_unshare() -> bool:
    tool = shutil.which("unshare")
    command = ["unshare", "--pid", "--fork", "true"]
    return tool is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="needs the right to make a PID namespace")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_as_pid_1(tmp_path: Path, number: signal.Signals) -> None:
    """The kernel gives PID 1 no default action for signals, as in a container without an init."""
    async with place_in(tmp_path) as place:
        unshare = await place.start(
            "one", "unshare", "--pid", "--fork", "--kill-child", shutdown_timeout_s=0.5
        )
        task = await place.queue.submit("sleep", 600, timeout_seconds=900)
        await started(unshare)
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
        os.kill(int(children[0]), number)
        assert (await ended(unshare))["released"] == 1
        assert (await place.read(task)).status == "pending"
        assert await place.sessions() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_monitor_alone_recovers_and_ends_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    async with place_in(tmp_path) as place:
        doomed = await place.start("doomed", with_monitor=False)
        task = await place.queue.submit("sleep", 600, timeout_seconds=900)
        await started(doomed)
        await asyncio.sleep(1.5)
        doomed.kill()
        monitor = await place.start("monitor", monitor_alone=True)
        await started(monitor)

        async def is_recovered() -> bool:
            return (await place.read(task)).status == "pending" and len(await place.sessions()) == 1

        await until(is_recovered)
        monitor.send_signal(number)
        out, err = await asyncio.wait_for(monitor.communicate(), 15)
        assert (monitor.returncode, out) == (0, b"ended\n"), err.decode()
        assert await place.sessions() == []
