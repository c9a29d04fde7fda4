"""The command line as its users start it: as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import servers

JOBS = """\
from buquet import PermanentError, RetryPolicy, Worker

worker = Worker()


@worker.task("echo")
async def echo(input):
    return {"got": input}


@worker.task("broken")
async def broken(input):
    raise PermanentError("no such photo: cat.png")


@worker.task("rude")
async def rude(input):
    raise PermanentError("\\x1b[31mred\\x07")


def make(queue):
    made = Worker(queue, concurrency=2)
    made.task("echo")(echo)
    return made


number = 7
"""

Result = subprocess.CompletedProcess


class Cli:
    """Runs `buquet` in a folder, on the queue that the environment names."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    def __call__(
        self, *arguments: str, code: int = 0, stdin: str = "", env: dict[str, str] | None = None
    ) -> Result[str]:
        """Run a verb to its end; it must exit with `code`, and never with a traceback."""
        result = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=os.environ | self.environment | (env or {}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback (most recent" not in result.stderr, result.stderr
        assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
        return result

    def json(self, *arguments: str, code: int = 0, **options: Any) -> list[Any]:
        """Run a verb with `--json`; return the objects that it prints."""
        printed = self(*arguments, "--json", code=code, **options).stdout
        return [json.loads(line) for line in printed.splitlines()]

    def refused(self, *arguments: str, code: int = 2, **options: Any) -> str:
        """Run a verb that must fail with one line; return what it says after `Error: `."""
        result = self(*arguments, code=code, **options)
        assert result.stderr.startswith("Error: "), result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr.removeprefix("Error: ").rstrip("\n")

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a verb that goes on; it is killed if it has not ended when the block does."""
        with subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "buquet", *arguments]


def until(condition: Callable[[], Any], timeout_s: float = 20) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def s3_environment(server: servers.Server) -> dict[str, str]:
    """The variables that name a new bucket of a server."""
    return {
        "S3_ENDPOINT": server.endpoint,
        "S3_BUCKET": server.new_bucket(),
        "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": servers.SECRET_ACCESS_KEY,
    }
