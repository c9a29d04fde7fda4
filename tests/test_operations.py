"""docs/operations.md on a queue that has the troubles it speaks of; the log lines it quotes are real."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import test_docs

from buquet import PermanentError, Queue, TaskStatus, Worker, WorkerRunOptions, connect
from buquet.audit import Fault
from buquet.store.interface import Always

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/operations.md"


async def run_section(heading: str, queue: Queue) -> None:
    """Run the Python blocks of one section."""
    text = PAGE.read_text()
    first = text.count("\n", 0, text.index(f"\n## {heading}\n"))
    following = re.compile(r"^## ", re.M).search(text, text.index(f"\n## {heading}\n") + 4)
    last = text.count("\n", 0, following.start() if following else len(text))
    given: dict[str, Any] = {"queue": queue, "worker": Worker(queue), "connect": connect}
    some = [block for block in test_docs.blocks(PAGE) if first < block.line < last]
    assert some, heading
    for block in some:
        if block.language == "python" and not block.not_run:
            await test_docs._run_here(block, PAGE, given)


async def failed_tasks(queue: Queue) -> list[str]:
    worker = Worker(queue)

    @worker.task("send_email")
    async def send_email(input: int) -> None:
        raise PermanentError("no such mailbox")

    ids = [(await queue.submit("send_email", number)).id for number in range(3)]
    await worker.run(WorkerRunOptions(burst=True, with_monitor=False))
    return ids


@pytest.fixture
def queue(runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("S3_ENDPOINT", f"local:{tmp_path}/queue.db")

    async def opened() -> Queue:
        return await connect()

    queue = runner.run(opened())
    yield queue
    runner.run(queue.close())


async def test_dead_letters_are_requeued(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    ids = await failed_tasks(queue)
    await run_section("Growing dead letters", queue)
    for task_id in ids:
        task = await queue.get(task_id)
        assert task is not None
        assert task.status is TaskStatus.Archived
        assert task.requeued_as is not None
    assert await queue.list_failed() == []
    assert "no such mailbox" in capsys.readouterr().out


async def test_poison_is_shown(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    [task_id, *_] = await failed_tasks(queue)
    await queue.store.put(queue.keys.ledger(task_id), b"not JSON", Always())
    await queue.ledger.note_poison(task_id, "it is not JSON")
    await run_section("Poison", queue)
    assert capsys.readouterr().out == f"{queue.keys.poison(task_id)} it is not JSON\n"


async def test_findings_are_shown_and_mended(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    [task_id, *_] = await failed_tasks(queue)
    await queue.store.delete(queue.keys.failed(task_id), read_at=None)
    await run_section("What to look at", queue)
    assert f"{Fault.UNLISTED} {queue.keys.failed(task_id)}" in capsys.readouterr().out
    await run_section("Restore", queue)


def test_every_finding_is_described() -> None:
    text = PAGE.read_text()
    table = text[text.index("\n| finding |") :].split("\n\n", 1)[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.M)) == {fault.value for fault in Fault}


def test_the_log_lines_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    table = text[text.index("\n| line | level |") :].split("\n\n", 1)[0]
    source = "\n".join(file.read_text() for file in (ROOT / "buquet").rglob("*.py"))
    lines = re.findall(r"^\| `([^`]+)` \| (\w+)", table, re.M)
    assert len(lines) == len(table.strip().splitlines()) - 2
    for line, level in lines:
        for words in re.split(r"\.\.\.|\d+", line):
            assert words.strip() in source, (line, level)
