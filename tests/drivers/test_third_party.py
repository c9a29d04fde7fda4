"""docs/drivers.md, followed to the letter: a driver of one's own, installed, selected and tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import servers

from buquet.store.driver import Driver, Verdict

PAGE = (Path(__file__).resolve().parents[2] / "docs/drivers.md").read_text()

USE = """
import asyncio
from buquet import Worker, WorkerRunOptions, connect

async def main():
    async with connect() as queue:
        task = await queue.submit("double", 21)
        worker = Worker(queue)
        worker.task("double")(lambda number: 2 * number)
        await worker.run(WorkerRunOptions(burst=True))
        manifest = await queue.store.get("buquet.json")
        output = (await queue.get(task.id)).output
        print(type(queue.store.once._driver).__name__, output, manifest.body.decode())

asyncio.run(main())
"""


def blocks(language: str) -> list[str]:
    return re.findall(f"```{language}\n(.*?)```", PAGE, re.DOTALL)


def run(*command: object, **env: str) -> str:
    """Run a Python with these arguments; return what it printed, or fail with all it said."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the page's package is installed."""
    source, target = tmp_path_factory.mktemp("acme"), tmp_path_factory.mktemp("installed")
    (source / "acme_s3.py").write_text(blocks("python")[0])
    (source / "pyproject.toml").write_text(blocks("toml")[0])
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    run("-m", "pip", "install", *options, "--target", target, source)
    return target


@pytest.fixture
def environment(installed: Path, seaweedfs: servers.Server) -> dict[str, str]:
    return {
        "PYTHONPATH": str(installed),
        "BUQUET_DRIVER": "acme",
        "S3_ENDPOINT": seaweedfs.endpoint,
        "S3_BUCKET": seaweedfs.new_bucket(),
        "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": servers.SECRET_ACCESS_KEY,
    }


@pytest.mark.server
def test_an_installed_driver_is_used(environment: dict[str, str]) -> None:
    driver, output, manifest = run("-c", USE, **environment).split(maxsplit=2)
    assert (driver, output) == ("AcmeDriver", "42")
    assert '"driver":"acme"' in manifest.replace(" ", "")


@pytest.mark.server
def test_the_contract_suite_runs_as_the_page_has_it(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_acme.py").write_text(blocks("python")[1])
    said = run("-m", "pytest", "-q", "-k", "write", f"--rootdir={tmp_path}", tmp_path, **environment)
    assert re.search(r"\b[1-9]\d* passed", said), said


def test_a_driver_that_is_not_installed_is_an_error_that_lists_the_others(
    environment: dict[str, str],
) -> None:
    script = "import buquet.store.registry as r\ntry: r.load('ecma')\nexcept ValueError as e: print(e)"
    assert "there are acme, aws, ceph" in run("-c", script, **environment)


def test_all_the_data_is_described() -> None:
    defaults = {
        field.name: "" if field.default is MISSING else str(field.default) for field in fields(Driver)
    }
    table = PAGE[PAGE.index("| field of a driver |") :].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip(" `") for cell in row.split("|")] for row in table]
    assert {name: default for _, name, default, *_ in cells} == defaults


def test_all_the_verdicts_are_described() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE) == [verdict.name for verdict in Verdict]
