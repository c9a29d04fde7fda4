"""`buquet submit`: one task, or one for each line of NDJSON."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buquet.cli import output
from buquet.cli.options import Duration, Moment, Where, connected, json_flag, parse_json, read_json, run
from buquet.cli.program import NEGATIVE, Verb

if TYPE_CHECKING:
    from buquet.protocol.task import Task
    from buquet.queue import Queue
    from buquet.submissions import NewTask, Submitted


@click.command(
    cls=Verb,
    examples=[
        """buquet submit send_email '{"to": "user@example.com"}'""",
        "buquet submit resize @photo.json --in 10m --retries 5 --timeout 30s",
        "buquet submit report - --wait --json < input.json",
        "buquet submit send_email --lines addresses.ndjson",
    ],
)
@click.argument("task_type", metavar="TYPE")
@click.argument("value", metavar="[JSON|@FILE|-]", required=False)
@click.option(
    "--lines",
    metavar="FILE",
    help="NDJSON: a task for each line, whose JSON is the input. - for standard input.",
)
@click.option("--at", "at", type=Moment(), help="Not before this time; without a zone it is local.")
@click.option("--in", "delay_s", type=Duration(), help="Not before so long from now: 90s, 10m, 1h30m, 7d.")
@click.option("--retries", default=3, type=click.IntRange(min=0), help="Attempts after the first one.")
@click.option("--timeout", "timeout_s", default="5m", type=Duration(), help="How long an attempt may run.")
@click.option("--priority", default=5, type=click.IntRange(0, 9), help="0 is the most urgent.")
@click.option("--wait", is_flag=True, help="Wait until the task has ended, and print it.")
@json_flag
@connected
def submit(
    where: Where,
    task_type: str,
    value: str | None,
    lines: str | None,
    at: datetime | None,
    delay_s: float | None,
    retries: int,
    timeout_s: float,
    priority: int,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit a task, or many, and print their ids.

    A task is durable when its id is printed. With --wait the exit code is 1 if it failed.
    """
    if at is not None and delay_s is not None:
        raise click.UsageError("--at and --in exclude each other: give one of them")
    if lines is not None and (value is not None or wait):
        raise click.UsageError("--lines goes with neither an input nor --wait: the lines are the inputs")
    how = {"timeout_seconds": timeout_s, "max_retries": retries, "priority": priority}
    if lines is not None:
        return run(where, lambda queue: _submit_lines(queue, task_type, lines, how, at, delay_s, as_json))
    given = read_json(value)
    return run(where, lambda queue: _submit_one(queue, task_type, given, how, at, delay_s, wait, as_json))


async def _submit_one(
    queue: Queue,
    task_type: str,
    given: Any,
    how: dict[str, Any],
    at: datetime | None,
    delay_s: float | None,
    wait: bool,  # noqa: FBT001 - the verb's flags
    as_json: bool,  # noqa: FBT001
) -> int:
    task = await queue.submit(task_type, given, schedule_at=await _due(queue, at, delay_s), **how)
    if wait:
        if not as_json:
            click.echo(task.id, err=True)
        task = await queue.wait(task.id)
    if as_json:
        output.emit(task)
    elif wait:
        _tell_outcome(task)
    else:
        click.echo(task.id)
    return NEGATIVE if task.status == "failed" else 0


def _tell_outcome(task: Task) -> None:
    if task.status == "failed":
        click.echo(f"failed: {output.safe(task.last_error or '', 2000)}", err=True)
    else:
        click.echo(output.shown_json(task.output))


async def _due(queue: Queue, at: datetime | None, delay_s: float | None) -> datetime | None:
    """Return when a task is due; a delay counts from the store's time, not from a wrong local clock."""
    if delay_s is None:
        return at
    from datetime import timedelta

    now = datetime.fromisoformat(await queue.now())
    return now + timedelta(seconds=delay_s)


async def _submit_lines(
    queue: Queue,
    task_type: str,
    lines: str,
    how: dict[str, Any],
    at: datetime | None,
    delay_s: float | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    due = await _due(queue, at, delay_s)
    told = _Told(as_json=as_json)
    with _opened(lines) as (numbered, total), output.progress("submitting", total) as advance:
        new_tasks = told.new_tasks(numbered, task_type, schedule_at=due, **how)
        async for submitted in queue.submit_many(new_tasks):
            told.tell(submitted)
            advance(1)
    if told.ended_by is not None:
        raise told.ended_by
    return NEGATIVE if told.refused else 0


class _Told:
    """Tells what becomes of each line. After an error that is not the line's own no more are taken."""

    def __init__(self, *, as_json: bool) -> None:
        self.refused = 0
        self.ended_by: Exception | None = None
        self._as_json = as_json
        self._taken: deque[int] = deque()
        """The numbers of the lines that are being submitted, in order."""

    def new_tasks(
        self, numbered: Iterator[tuple[int, str]], task_type: str, **arguments: Any
    ) -> Iterator[NewTask]:
        from buquet.submissions import NewTask

        for number, line in numbered:
            if self.ended_by is not None:
                return
            try:
                given = parse_json(line, f"line {number}")
            except click.UsageError as error:
                self._complain(error.format_message())
                continue
            self._taken.append(number)
            yield NewTask(task_type, given, **arguments)

    def tell(self, submitted: Submitted) -> None:
        from buquet.errors import InvalidInput, InvalidInputType, OutcomeUnknown

        number = self._taken.popleft()
        match submitted.error:
            case None if self._as_json:
                output.emit({"line": number, "id": submitted.result().id})
            case None:
                click.echo(submitted.result().id)
            case OutcomeUnknown(task_id=task_id):
                self._complain(f"line {number}: task {task_id} may stand or not: ask `buquet get {task_id}`")
            case error:
                self._complain(f"line {number}: {error}")
                if not isinstance(error, InvalidInput | InvalidInputType):
                    self.ended_by = self.ended_by or error

    def _complain(self, what: str) -> None:
        self.refused += 1
        click.echo(f"Error: {what}", err=True)


class _opened:  # noqa: N801 - it reads as a function
    """The lines of a file that are not empty, with their numbers; and how many lines it has, if known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> tuple[Iterator[tuple[int, str]], int | None]:
        if self._name == "-":
            self._file, total = sys.stdin, None
        else:
            path = Path(self._name)
            try:
                with path.open("rb") as counted:
                    total = sum(1 for line in counted if line.strip())
                self._file = path.open(encoding="utf-8")
            except OSError as error:
                raise click.UsageError(f"{self._name} cannot be read: {error}") from error
        return ((number, line) for number, line in enumerate(self._file, 1) if line.strip()), total

    def __exit__(self, *exc_info: object) -> None:
        if self._file is not sys.stdin:
            self._file.close()
