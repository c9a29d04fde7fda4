"""`make demo` and the command line, as a user starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from buquet import __version__
from buquet.cli.demo import Runs

PYTHON = (sys.executable, "-m")


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, *arguments], check=False, capture_output=True, text=True, timeout=100, **options
    )


def rows(table: str) -> dict[str, str]:
    """Read the demo's table."""
    lines = [line.strip("│ ").split("│") for line in table.splitlines() if line.startswith("│")]
    return {name.strip(): value.strip() for name, value in lines}


# --- the demo ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its temporary folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def workers_of(folder: Path) -> list[str]:
    """The command lines of the demo's workers that still run (they name a file in its folder)."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            commands.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has just ended
    return [command for command in commands if str(folder) in command]


def test_a_killed_worker_loses_nothing(folder: Path) -> None:
    began = time.monotonic()
    demo = run("buquet.cli.demo")
    assert time.monotonic() - began < 60
    assert (demo.returncode, demo.stderr) == (0, "")
    shown = rows(demo.stdout)
    assert shown["submitted"] == shown["completed"] == "1,000"
    assert shown["lost"] == "0"
    assert int(shown["duplicates started"]) > 0, "the killed worker had tasks in flight"
    assert int(shown["retried"]) >= 50, "every twentieth is made to fail, or is lost in flight"
    assert 4 < float(shown["requests a task"]) < 7
    assert "worker-1 killed (SIGKILL)" in demo.stdout
    assert "waiting for the leases of the killed worker" in demo.stdout
    assert "━" not in demo.stdout, "no progress bar where nobody watches"
    assert not workers_of(folder)
    assert not list(folder.iterdir())


def test_the_demo_fails_if_tasks_are_missing(folder: Path) -> None:
    """The leases of the killed worker do not end in so short a time."""
    demo = run("buquet", "demo", "--tasks", "100", "--timeout", "5", "--json")
    shown = json.loads(demo.stdout)
    missing = shown["lost"]
    assert missing > 0
    assert shown["completed"] == 100 - missing
    assert demo.returncode == 1
    assert demo.stderr == f"demo failed: {missing} tasks not completed in 5 s\n"
    assert not workers_of(folder)


def test_the_demo_says_why_it_cannot_start(folder: Path) -> None:
    demo = run("buquet", "demo", "--endpoint", "localhost:4566", "--bucket", "buquet")
    assert demo.returncode == 1
    assert demo.stderr.startswith("demo failed: the endpoint 'localhost:4566' is not an http(s) URL")


@pytest.mark.server
def test_the_demo_leaves_a_bucket_as_it_was(seaweedfs: object, folder: Path) -> None:
    bucket = seaweedfs.new_bucket()
    keys = {"AWS_ACCESS_KEY_ID": "devkey", "AWS_SECRET_ACCESS_KEY": "devsecret123"}
    arguments = ["--endpoint", seaweedfs.endpoint, "--bucket", bucket, "--tasks", "40", "--timeout", "3"]
    demo = run("buquet", "demo", *arguments, env=os.environ | keys)
    assert 20 <= int(rows(demo.stdout)["completed"]) <= 40
    assert "Contents" not in seaweedfs.client.list_objects_v2(Bucket=bucket)


def until(condition: Callable[[], object], demo: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert demo.poll() is None, "it has ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)


MOMENTS: dict[str, Callable[[Path, subprocess.Popen[str]], object]] = {
    "begun": lambda folder, demo: list(folder.glob("buquet-demo-*")),
    "workers starting": lambda folder, demo: len(workers_of(folder)) == 2,
    "worker killed": lambda folder, demo: "killed" in demo.stdout.readline(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_ends_the_demo_quietly(folder: Path, moment: str) -> None:
    with subprocess.Popen(
        [*PYTHON, "buquet.cli.demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        until(lambda: MOMENTS[moment](folder, demo), demo)
        os.killpg(demo.pid, signal.SIGINT)  # a terminal signals the whole group
        _, complaints = demo.communicate(timeout=20)
    assert (demo.returncode, complaints) == (130, "")
    assert not workers_of(folder)
    assert not list(folder.iterdir())


def test_a_killed_demo_leaves_no_worker_behind(folder: Path) -> None:
    with subprocess.Popen([*PYTHON, "buquet.cli.demo"], stdout=subprocess.DEVNULL, text=True) as demo:
        until(lambda: len(workers_of(folder)) == 2, demo)
        demo.kill()
    deadline = time.monotonic() + 20
    while workers_of(folder):
        assert time.monotonic() < deadline, "its workers go on"
        time.sleep(0.05)


def test_duplicates_are_runs_that_nothing_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "runs.log"
    runs = Runs(log)
    log.write_text(
        "started w1 3 a\n"
        "done w1 4 a\n"
        "started w1 5 b\nfailed w1 6 b\nstarted w2 2 b\ndone w2 3 b\n"  # asked for by its failure
        "started w1 7 c\nstarted w2 8 c\ndone w2 9 c\n"
    )
    runs.read()
    runs.close()
    assert runs.done == {"a", "b", "c"}
    assert runs.duplicates == 1
    assert runs.requests == 7 + 9


# --- the command ---------------------------------------------------------------------------


def test_help_and_version_import_nothing_heavy() -> None:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "buquet", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "demo" in shown.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in shown.stderr.splitlines()}
    assert not imported & {"aiohttp", "botocore", "msgspec", "rich", "croniter"}


def test_the_console_script_is_the_command() -> None:
    script = Path(sys.executable).with_name("buquet")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"buquet, version {__version__}\n"
