"""Verbs that run until they are stopped: worker, monitor, scheduler, tail, top, dev."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import servers
from command_line import JOBS, Cli, until

FIRST_WORDS = {
    "worker": ["worker", "jobs:worker"],
    "monitor": ["monitor"],
    "schedule run": ["schedule", "run"],
}


def first_object(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    return json.loads(line)


@pytest.mark.parametrize("name", FIRST_WORDS)
def test_ctrl_c_ends_it_quietly_and_sigterm_is_success(local: Cli, name: str) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        with local.started(*FIRST_WORDS[name], "--json") as process:
            assert first_object(process)["event"] == "started"
            os.killpg(process.pid, number)
            _, complaints = process.communicate(timeout=20)
        assert (process.returncode, complaints) == (code, "")
    assert local.json("workers", "--all") == [], "each has taken its session away"


SLOW = """\
import asyncio, pathlib
from buquet import Worker

worker = Worker()


@worker.task("nap")
async def nap(input):
    pathlib.Path("begun").touch()
    await asyncio.sleep(1)
"""


def test_a_stop_says_what_it_waits_for(local: Cli) -> None:
    (local.folder / "slow.py").write_text(SLOW)
    local("submit", "nap")
    with local.started("worker", "slow:worker") as process:
        until((local.folder / "begun").exists)
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "stopping: 1 tasks may go on for up to" in said


def test_ctrl_c_ends_what_looks_on(local: Cli) -> None:
    task_id = local("submit", "echo").stdout.strip()
    for arguments in (["tail", "-f", "--json"], ["top", "--json"], ["wait", task_id]):
        with local.started(*arguments) as process:
            if arguments[0] == "wait":
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1.5)
            else:
                first_object(process)
            os.killpg(process.pid, signal.SIGINT)
            _, complaints = process.communicate(timeout=20)
        assert process.returncode == 130
        assert complaints == "" or "LISTs a look" in complaints


def test_workers_and_their_rate(cli: Cli) -> None:
    arguments = ["--name", "w1", "--concurrency", "3", "--shards", "0,1", "--no-monitor", "--with-scheduler"]
    with cli.started("worker", "jobs:worker", *arguments, "--json") as process:
        told = first_object(process)
        assert (told["worker"], told["shards"], told["concurrency"]) == ("w1", "2 of 16", 3)
        assert told["beside"] == ["scheduler"]
        (seen,) = until(lambda: cli.json("workers"))
        assert (seen["worker_id"], seen["state"], seen["with_monitor"]) == ("w1", "live", False)
        assert seen["task_types"] == ["broken", "echo", "rude"]
        assert "w1" in cli("workers").stdout
        (look,) = cli.json("top", "--looks", "1")
        assert look["workers"] == 1
        process.terminate()
        assert process.wait(20) == 0
    assert cli("workers").stderr.startswith("no live workers: start one with")


def test_processes_are_started_anew_and_none_is_left_behind(local: Cli) -> None:
    with local.started("worker", "jobs:worker", "--processes", "2") as supervisor:
        seen = until(lambda: len(found := local.json("workers")) == 2 and found)
        os.kill(seen[0]["pid"], signal.SIGKILL)
        pids = {one["pid"] for one in seen}
        fresh = until(lambda: {one["pid"] for one in local.json("workers")} - pids)
        assert len(fresh) == 1
        supervisor.kill()
        children = [seen[1]["pid"], *fresh]
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        _, complaints = supervisor.communicate()
    assert complaints == "worker 0 died (-9) and is started anew\n" or "worker 1 died (-9)" in complaints


def test_processes_that_cannot_start_end_the_rest(local: Cli) -> None:
    result = local("worker", "nowhere:worker", "--processes", "2", code=2)
    assert "there is no module 'nowhere'" in result.stderr
    assert local("worker", "jobs:make", "--processes", "2", "--burst").returncode == 0


def test_a_changed_file_starts_the_worker_anew(local: Cli) -> None:
    with local.started("worker", "jobs:worker", "--reload") as supervisor:
        (before,) = until(lambda: local.json("workers"))
        changed = JOBS + "\n\nworker.task('new')(echo)\n"
        (local.folder / "jobs.py").write_text(changed)
        (after,) = until(lambda: [one for one in local.json("workers") if "new" in one["task_types"]])
        assert after["pid"] != before["pid"]
        (local.folder / "jobs.py").write_text("1 / 0\n")
        assert supervisor.stderr is not None
        complaints = [supervisor.stderr.readline() for _ in range(4)]
        assert "ZeroDivisionError" in complaints[2]
        assert complaints[3] == "worker 0 ended with 2: waiting for a change\n"
        (local.folder / "jobs.py").write_text(changed)
        until(lambda: local.json("workers"))
        os.killpg(supervisor.pid, signal.SIGINT)
        _, last = supervisor.communicate(timeout=20)
    assert (supervisor.returncode, last) == (130, "a file has changed: workers are started anew\n")


def test_tail_follows(cli: Cli) -> None:
    cli("init")
    with cli.started("tail", "-f", "--interval", "300ms", "--type", "echo", "--json") as tail:
        cli("submit", "broken", "--retries", "0")
        task_id = cli("submit", "echo").stdout.strip()
        told = [first_object(tail)]
        with cli.started("worker", "jobs:worker"):
            told += [first_object(tail) for _ in range(2)]
        tail.kill()
        _, cost = tail.communicate()
    assert [one["status"] for one in told] == ["pending", "running", "completed"]
    assert {one["id"] for one in told} == {task_id}
    assert cost == (
        "18 LISTs a look, 5,184,000 a day: $25.92 a day at Amazon's prices, and a GET for what changes\n"
    )


def test_schedules(cli: Cli) -> None:
    (made,) = cli.json("schedule", "create", "s1", "echo", "*/5 * * * *", '{"n": 1}', "--overlap", "skip")
    assert (made["overlap"], made["enabled"]) == ("skip", True)
    assert cli.refused("schedule", "create", "s1", "echo", "@daily").endswith("--replace replaces it")
    cli("schedule", "create", "s1", "echo", "* * * * *", "--replace", "--retries", "1")
    assert len(cli.json("schedule", "next", "s1", "-n", "3")) == 3
    cli("schedule", "disable", "s1")
    (shown,) = cli.json("schedule", "get", "s1")
    assert (shown["enabled"], shown["next_run_at"], shown["last_task_id"]) == (False, None, None)
    (task,) = cli.json("schedule", "trigger", "s1")
    assert task["max_retries"] == 1
    (listed,) = cli.json("schedule", "list")
    assert listed["last_task_id"] == task["id"]
    assert "disabled" in cli("schedule", "list").stdout
    cli("schedule", "enable", "s1")
    assert cli.json("schedule", "get", "s1")[0]["next_run_at"] is not None
    cli("schedule", "delete", "s1")
    assert cli("schedule", "list").stderr == "no schedules\n"


@pytest.mark.server
def test_dev_is_a_queue_with_data_that_stay(local: Cli) -> None:
    (port,) = servers.free_ports(1)
    arguments = ["dev", "--port", str(port), "--bucket", "jobs", "--json"]
    task_id = None
    for _ in range(2):
        with local.started(*arguments) as dev:
            variables = first_object(dev)
            cli = Cli(local.folder, {name: str(value) for name, value in variables.items()})
            if task_id is None:
                task_id = cli("submit", "echo").stdout.strip()
                assert f"port {port} is taken" in local.refused("dev", "--port", str(port))
            assert cli.json("get", task_id)[0]["status"] == "pending"
            os.killpg(dev.pid, signal.SIGINT)
            _, complaints = dev.communicate(timeout=30)
        assert (dev.returncode, complaints) == (130, "")
    assert not list(Path("/tmp").glob(f"seaweedfs-*-{port}.sock"))
