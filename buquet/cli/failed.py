"""`buquet failed` and `buquet requeue`: dead letters, and doing work again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from buquet.cli import output
from buquet.cli.options import Duration, Where, connected, dry_run_flag, json_flag, run, yes_flag
from buquet.cli.program import NEGATIVE, NOT_FOUND, Verb, VerbGroup

if TYPE_CHECKING:
    from buquet.protocol.task import Task
    from buquet.queue import Queue

ALL = 1_000_000


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the flags that select failed tasks."""
    flags = (
        click.option("--type", "task_type", help="Only tasks of this type."),
        click.option("--error", help="Only tasks whose last error has this text in it."),
        click.option("--older-than", "older_s", type=Duration(), help="Only tasks that failed so long ago."),
        click.option("--limit", default=ALL, type=click.IntRange(min=1), help="At most so many."),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


@click.group(cls=VerbGroup)
def failed() -> None:
    """List, show, requeue and purge failed tasks."""


@failed.command("list", examples=["buquet failed list --type resize --error MemoryError --json"])
@filters
@json_flag
@connected
def failed_list(where: Where, *, as_json: bool, **selection: Any) -> None:
    """List failed tasks. One GET each, and a LIST a thousand."""
    tasks = run(where, lambda queue: _selected(queue, **selection))
    if as_json:
        for task in tasks:
            output.emit(task)
        return
    if not tasks:
        output.nobody("no failed tasks")
        return
    rows = (
        [
            task.id,
            task.task_type,
            f"{task.attempt}",
            output.shown_time(task.completed_at),
            output.safe(task.last_error or "", 100),
        ]
        for task in tasks
    )
    output.table(["id", "type", "attempts", "failed at", "last error"], rows, right=["attempts"])


async def _selected(
    queue: Queue, *, task_type: str | None, error: str | None, older_s: float | None, limit: int
) -> list[Task]:
    from datetime import datetime, timedelta

    now = datetime.fromisoformat(await queue.now())
    horizon = None if older_s is None else now - timedelta(seconds=older_s)
    chosen = [
        task
        for task in await queue.list_failed(ALL, task_type)
        if (error is None or error in (task.last_error or ""))
        and (horizon is None or (task.completed_at or task.updated_at) <= horizon)
    ]
    return chosen[:limit]


@failed.command("show", examples=["buquet failed show 01a228b4-8bdd-7000-9548-987c2d22c58b"])
@click.argument("task_id", metavar="ID")
@json_flag
@connected
def failed_show(where: Where, task_id: str, *, as_json: bool) -> int:
    """Show a failed task, with the errors of all attempts and the last traceback."""

    async def read(queue: Queue) -> tuple[Task, list[dict[str, Any]]]:
        from buquet.cli.tasks import find

        task = await find(queue, task_id)
        record = await queue.ledger.find(task_id)
        errors = [
            {"at": entry.at, "attempt": entry.attempt, "error": entry.error, "traceback": entry.traceback}
            for entry in (() if record is None else record.log)
            if entry.error is not None
        ]
        return task, errors

    task, errors = run(where, read)
    if as_json:
        output.emit({**output.jsonable(task), "errors": errors})
        return 0
    if task.status != "failed":
        click.echo(f"task {task.id} is {task.status}, not failed (see `buquet get`)", err=True)
        return NEGATIVE
    from buquet.cli.tasks import show

    show(task)
    for error in errors:
        click.echo(f"\nattempt {error['attempt']}, {error['at']}: {output.safe(error['error'], 2000)}")
    for line in (errors[-1]["traceback"] or "").splitlines() if errors else ():
        click.echo(f"  {output.safe(line)}")
    return 0


@failed.command(
    "requeue",
    examples=["buquet failed requeue --type resize --error Timeout --dry-run", "buquet failed requeue --yes"],
)
@filters
@dry_run_flag
@yes_flag
@json_flag
@connected
def failed_requeue(where: Where, *, dry_run: bool, yes: bool, as_json: bool, **selection: Any) -> int:
    """Do the work of failed tasks again, as new tasks; the old ones are archived."""

    async def act(queue: Queue) -> int:
        tasks = await _selected(queue, **selection)
        if not _shall(tasks, "requeue", dry_run=dry_run, yes=yes, as_json=as_json):
            return 0
        return await _requeue(queue, [task.id for task in tasks], as_json=as_json)

    return run(where, act)


@failed.command("purge", examples=["buquet failed purge --older-than 30d --dry-run"])
@filters
@dry_run_flag
@yes_flag
@json_flag
@connected
def failed_purge(where: Where, *, dry_run: bool, yes: bool, as_json: bool, **selection: Any) -> int:
    """Archive failed tasks: they keep their record, and stand among the dead letters no more."""

    async def act(queue: Queue) -> int:
        tasks = await _selected(queue, **selection)
        if not _shall(tasks, "archive", dry_run=dry_run, yes=yes, as_json=as_json):
            return 0
        with output.progress("archiving", len(tasks)) as advance:
            for task in tasks:
                done = await queue.archive(task.id)
                advance(1)
                if as_json:
                    output.emit({"id": done.id, "status": done.status})
        await queue.list_failed(1)  # drops the entries that have had their day
        if not as_json:
            click.echo(f"{len(tasks):,} failed tasks archived")
        return 0

    return run(where, act)


def _shall(tasks: Sequence[Task], what: str, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Say what would be done, or ask whether to do it; return whether to go on."""
    if not tasks:
        output.nobody("no such tasks")
        return False
    if dry_run:
        for task in tasks:
            if as_json:
                output.emit({"id": task.id, "would": what})
            else:
                click.echo(f"would {what} {task.id} {output.safe(task.task_type)}")
        return False
    if not output.agreed(len(tasks), what, yes=yes):
        output.nobody("nothing done")
        return False
    return True


@click.command(cls=Verb, examples=["buquet requeue 01a228b4-8bdd-7000-9548-987c2d22c58b"])
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@dry_run_flag
@yes_flag
@json_flag
@connected
def requeue(where: Where, task_ids: Sequence[str], *, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Do the work of ended tasks again, as new tasks, and print their ids.

    The old tasks are archived. Doing it twice makes one task.
    """

    async def act(queue: Queue) -> int:
        if dry_run:
            from buquet.cli.tasks import find

            tasks = [await find(queue, task_id) for task_id in task_ids]
            _shall(tasks, "requeue", dry_run=True, yes=yes, as_json=as_json)
            return 0
        if not output.agreed(len(task_ids), "requeue", yes=yes):
            output.nobody("nothing done")
            return 0
        return await _requeue(queue, task_ids, as_json=as_json)

    return run(where, act)


async def _requeue(queue: Queue, task_ids: Sequence[str], *, as_json: bool) -> int:
    code = 0
    with output.progress("requeueing", len(task_ids)) as advance:
        async for task_id, outcome in queue.requeue_many(task_ids):
            advance(1)
            if isinstance(outcome, Exception):
                if not isinstance(outcome, LookupError | ValueError):
                    raise outcome
                code = NOT_FOUND if isinstance(outcome, LookupError) else code or NEGATIVE
                click.echo(f"Error: {outcome}", err=True)
            elif as_json:
                output.emit({"id": outcome.id, "requeue_of": task_id})
            else:
                click.echo(outcome.id)
    return code
