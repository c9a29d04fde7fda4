"""The examples run as they stand, as processes of their own, against whatever the environment names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import servers

from buquet.config import Settings

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

Environment = dict[str, str]


@pytest.fixture(params=["local", pytest.param("seaweedfs", marks=pytest.mark.server)])
def environment(
    request: pytest.FixtureRequest, running: Callable[[str], servers.Server], tmp_path: Path
) -> Environment:
    """The variables that name an empty queue, of each kind of store in turn."""
    if request.param == "local":
        return {"S3_ENDPOINT": f"local:{tmp_path}/queue.db"}
    server = running(request.param)
    return {
        "S3_ENDPOINT": server.endpoint,
        "S3_BUCKET": server.new_bucket(),
        "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": servers.SECRET_ACCESS_KEY,
    }


@contextmanager
def process(name: str, environment: Environment) -> Iterator[subprocess.Popen[str]]:
    """Run an example; it is killed if it has not ended by itself."""
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / name)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def test_the_worker_runs_what_the_producer_submits(environment: Environment) -> None:
    with process("worker.py", environment) as worker, process("producer.py", environment) as producer:
        printed, complaints = producer.communicate(timeout=60)
        worker.send_signal(signal.SIGTERM)
        sent, logged = worker.communicate(timeout=30)
    assert (producer.returncode, complaints) == (0, "")
    ids = [line.split()[1] for line in printed.splitlines() if line.startswith("submitted")]
    outcomes = [line for line in printed.splitlines() if not line.startswith("submitted")]
    assert outcomes == [
        f"completed {ids[0]} after 1 runs: {{'sent': True}}",
        f"completed {ids[1]} after 2 runs: {{'name': 'cat.png', 'width': 640}}",
        f"failed {ids[2]} after 1 runs: PermanentError: cat.txt is no image",
        f"completed {ids[3]} after 1 runs: {{'sent': True}}",
    ]
    assert sent.splitlines() == [
        "sending 'Hello!' to user@example.com",
        "sending 'Later' to user@example.com",
    ]
    assert worker.returncode == 0, logged
    assert "stopped: 5 claimed, 3 completed, 1 failed, 1 retried" in logged
    assert "Traceback" not in logged


def test_the_example_environment_names_a_queue() -> None:
    shown = subprocess.run(
        ["/bin/sh", "-c", ". ./.env.example; env"],
        cwd=EXAMPLES,
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    variables = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    settings = Settings.resolve(env=variables)
    assert (settings.endpoint, settings.bucket) == ("http://127.0.0.1:4566", "buquet")
    assert settings.driver == "localstack"
    assert settings.keys is not None
