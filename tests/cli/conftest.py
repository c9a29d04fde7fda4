"""The command line on new queues, of each kind of store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import servers
from command_line import JOBS, Cli, s3_environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder, with a module of handlers in it."""
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def local(folder: Path) -> Cli:
    """The command line on a new embedded store."""
    return Cli(folder, {"S3_ENDPOINT": f"local:{folder}/queue.db"})


@pytest.fixture(params=["local", pytest.param("seaweedfs", marks=pytest.mark.server)])
def cli(request: pytest.FixtureRequest, folder: Path, running: Callable[[str], servers.Server]) -> Cli:
    """The command line on an empty bucket, of each kind of store in turn."""
    if request.param == "local":
        return Cli(folder, {"S3_ENDPOINT": f"local:{folder}/queue.db"})
    return Cli(folder, s3_environment(running(request.param)))
