"""README and docs: their code blocks run, their tables agree with the code, their links lead somewhere.

A block of Python that calls `asyncio.run` is a program and runs as a process of its own; all
others of a page run in one namespace, one after another, with `queue` and `worker` given. A
block of shell commands runs in the root of the tree. A block that cannot run in a test is
preceded by `<!-- not run: the reason -->`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import buquet
from buquet import Queue, Task, TaskContext, Worker, WorkerRunOptions, connect
from buquet._core import record
from buquet.protocol import manifest, transitions
from buquet.store.registry import names as driver_names

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])

BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S
)
PROGRAM = "asyncio.run("
FOREVER_S = 1.0
"""How long a `worker.run()` in a page goes on before it is stopped."""


class Block(NamedTuple):
    language: str
    code: str
    line: int
    not_run: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(found["language"], found["code"], text.count("\n", 0, found.start("code")), found["reason"])
        for found in BLOCK.finditer(text)
    ]


def table_names(page: str, heading: str) -> set[str]:
    """The names in code quotes that begin the rows of the table whose first heading cell is this."""
    text = (ROOT / page).read_text()
    table = text[text.index(f"\n| {heading} |") :].split("\n\n", 1)[0]
    cells = [row.split("|")[1] for row in table.strip().splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def page_id(page: Path) -> str:
    return page.name


# --- code blocks ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_is_found_and_of_a_known_language(page: Path) -> None:
    assert page.read_text().count("```") == 2 * len(blocks(page))
    assert {block.language for block in blocks(page)} <= {"python", "sh", "json", "toml"}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=page_id)
async def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT", f"local:{tmp_path}/queue.db")
    async with connect() as queue:
        given: dict[str, Any] = {"queue": queue, "worker": Worker(queue), "download": _download}
        for block in blocks(page):
            if block.language != "python" or block.not_run:
                continue
            if PROGRAM in block.code:
                await _run_program(block, queue)
            else:
                await _run_here(block, page, given)


async def _download(url: str) -> bytes:
    return url.encode()


async def _run_here(block: Block, page: Path, given: dict[str, Any]) -> None:
    tree = ast.parse(block.code, str(page))
    ast.increment_lineno(tree, block.line)
    outcome = eval(compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), given)
    if not inspect.isawaitable(outcome):
        return
    stop = asyncio.create_task(_stop_soon(given["worker"]))
    try:
        await outcome
    finally:
        stop.cancel()


async def _stop_soon(worker: Worker) -> None:
    await asyncio.sleep(FOREVER_S)
    await worker.stop()


async def _run_program(block: Block, queue: Queue) -> None:
    """Run a program; one that works until it is stopped is stopped when it has done all tasks."""
    process = subprocess.Popen(
        [sys.executable, "-c", block.code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        if "worker.run(" in block.code:
            await _until_done(queue)
            process.send_signal(signal.SIGTERM)
        _, said = await asyncio.to_thread(process.communicate, timeout=30)
    finally:
        process.kill()
    complaints = [line for line in said.splitlines() if not line.startswith("INFO:")]
    assert (process.returncode, complaints) == (0, [])


async def _until_done(queue: Queue) -> None:
    tasks = [task for shard in queue.keys.shards() for task in await queue.list(shard)]
    assert tasks, "no block before this one has submitted any"
    for task in tasks:
        assert (await queue.wait(task.id, timeout_s=30)).status == "completed"


SHELL = [
    pytest.param(block, id=f"{page.name}:{block.line}")
    for page in PAGES
    for block in blocks(page)
    if block.language == "sh" and not block.not_run
]


@pytest.mark.parametrize("block", SHELL)
def test_shell_blocks_run(block: Block) -> None:
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", "-eu", "-c", block.code], cwd=ROOT, env=environment, check=True, timeout=60)


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    mentioned = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / "README.md").read_text(), re.M))
    assert {"demo", "test"} <= mentioned <= targets


def test_json_blocks_are_what_the_protocol_page_calls_them() -> None:
    a_manifest, a_record = [
        block.code for block in blocks(ROOT / "docs/protocol.md") if block.language == "json"
    ]
    assert json.loads(manifest.encode(manifest.decode(a_manifest.encode()))) == json.loads(a_manifest)
    task_id = json.loads(a_record)["id"]
    decoded = transitions.decode(a_record.encode(), task_id=task_id)
    assert json.loads(record.encode(decoded)) == json.loads(a_record)


# --- tables --------------------------------------------------------------------------------


def test_every_field_of_a_record_is_described() -> None:
    assert table_names("docs/protocol.md", "field") == set(record.Record.__struct_fields__)
    assert table_names("docs/protocol.md", "field of an entry") == set(record.LogEntry.__struct_fields__)


@pytest.mark.parametrize(
    ("page", "heading", "described"),
    [
        ("docs/tasks.md", "field of `Task`", Task),
        ("docs/workers.md", "field of `ctx`", TaskContext),
        ("docs/workers.md", "option", WorkerRunOptions),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field_of_a_class_is_described(page: str, heading: str, described: type) -> None:
    assert table_names(page, heading) == {field.name for field in fields(described)}


def _defaults(page: str, heading: str) -> dict[str, str]:
    text = (ROOT / page).read_text()
    table = text[text.index(f"\n| {heading} | default |") :].split("\n\n", 1)[0]
    rows = [row.split("|")[1:3] for row in table.strip().splitlines()[2:]]
    pairs = [(re.findall(r"`(\w+)`", names), values.strip().split(", ")) for names, values in rows]
    return {name: value for names, values in pairs for name, value in zip(names, values, strict=True)}


def test_the_defaults_of_the_options_are_as_described() -> None:
    described = _defaults("docs/workers.md", "option")
    assert described == {field.name: str(field.default) for field in fields(WorkerRunOptions)}


def test_the_arguments_of_submit_are_as_described() -> None:
    described = _defaults("docs/tasks.md", "argument")
    parameters = list(inspect.signature(Queue.submit).parameters.values())[1:]
    assert list(described) == [parameter.name for parameter in parameters]
    for parameter in parameters:
        if isinstance(parameter.default, int):
            assert described[parameter.name] == str(parameter.default)


def test_every_variable_is_in_the_readme() -> None:
    read = re.findall(r'"((?:S3|AWS|BUQUET)_\w+)"', (ROOT / "buquet/config.py").read_text())
    readme = (ROOT / "README.md").read_text()
    assert set(read) == set(re.findall(r"`((?:S3|AWS|BUQUET)_\w+)`", readme))


def test_every_argument_of_connect_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    parameters = set(inspect.signature(buquet.connect).parameters) - {"shard_prefix_len"}
    assert not {name for name in parameters if f"`{name}" not in readme}


def test_every_driver_is_described() -> None:
    assert table_names("docs/stores.md", "driver") == set(driver_names())


def test_the_rules_are_all_there_and_all_known() -> None:
    """The code refers to rules by number."""
    text = (ROOT / "docs/protocol.md").read_text()
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", text, re.M)]
    assert numbers == list(range(1, 23))
    sources = [*(ROOT / "buquet").rglob("*.py"), *(ROOT / "drivers").glob("*.py")]
    used = {int(number) for file in sources for number in re.findall(r"\brules? (\d+)", file.read_text())}
    assert used <= set(numbers)


# --- links ---------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
