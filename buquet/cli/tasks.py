"""`buquet get`, `list`, `history` and `wait`: reading tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import click

from buquet.cli import output
from buquet.cli.options import Duration, Where, connected, json_flag, run
from buquet.cli.program import NEGATIVE, Verb

if TYPE_CHECKING:
    from buquet.protocol.task import Task
    from buquet.queue import Queue

STATUSES = ("pending", "running", "completed", "failed", "archived")

SIGNS = {"pending": "○", "running": "▶", "completed": "✓", "failed": "✗", "archived": "▪"}


@click.command(cls=Verb, examples=["buquet get 01a228b4-8bdd-7000-9548-987c2d22c58b --json"])
@click.argument("task_id", metavar="ID")
@json_flag
@connected
def get(where: Where, task_id: str, *, as_json: bool) -> None:
    """Show a task. One GET, two for a task that was never claimed."""
    task = run(where, lambda queue: find(queue, task_id))
    if as_json:
        output.emit(task)
    else:
        show(task)


async def find(queue: Queue, task_id: str) -> Task:
    """Read a task; `LookupError` if there is none."""
    task = await queue.get(task_id)
    if task is None:
        raise LookupError(f"there is no task {task_id}: check --bucket and --prefix, or it is long archived")
    return task


def show(task: Task) -> None:
    """Print a task for people."""
    rows = [
        ("id", task.id),
        ("type", task.task_type),
        ("status", output.status(task.status)),
        ("submitted", output.shown_time(task.created_at)),
        ("due", output.shown_time(task.available_at)),
        ("updated", output.shown_time(task.updated_at)),
        ("ended", None if task.completed_at is None else output.shown_time(task.completed_at)),
        ("attempts", f"{task.attempt}, {task.retry_count} of {task.max_retries} retries used"),
        ("time-out", output.shown_age(task.timeout_seconds)),
        ("priority", str(task.priority)),
        ("worker", task.worker_id),
        ("lease ends", None if task.lease_expires_at is None else output.shown_time(task.lease_expires_at)),
        ("requeue of", task.requeue_of),
        ("requeued as", task.requeued_as),
        ("input", output.safe(output.shown_json(task.input), 2000)),
        ("output", None if task.output is None else output.safe(output.shown_json(task.output), 2000)),
        ("last error", task.last_error),
    ]
    output.facts((name, value) for name, value in rows if value is not None)


@click.command(
    "list",
    cls=Verb,
    examples=[
        "buquet list --status pending --limit 20",
        "buquet list --shard a --type resize --json | jq -r .id",
    ],
)
@click.option("--shard", "shards", multiple=True, help="Only this shard; may be given again. All by default.")
@click.option("--status", type=click.Choice(STATUSES), help="Only tasks of this status.")
@click.option("--type", "task_type", help="Only tasks of this type.")
@click.option("--limit", default=100, type=click.IntRange(min=1), help="At most so many.")
@json_flag
@connected
def list_tasks(
    where: Where,
    shards: Sequence[str],
    status: str | None,
    task_type: str | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    """List tasks, shard by shard, by the time they were due first.

    Costs a GET for each task that is looked at, and tasks that are filtered out are looked at too.
    `buquet stats` counts without reading them.
    """

    async def collect(queue: Queue) -> list[Task]:
        found = []
        async for task in _matching(queue, shards or queue.keys.shards(), status, task_type):
            found.append(task)
            if as_json:
                output.emit(task)
            if len(found) == limit:
                break
        return found

    tasks = run(where, collect)
    if not as_json:
        print_tasks(tasks)


PAGE = 100


async def _matching(
    queue: Queue, shards: Sequence[str], status: str | None, task_type: str | None
) -> AsyncIterator[Task]:
    for shard in shards:
        after = None
        while page := await queue.list(shard, status, PAGE, after):
            for task in page:
                if task_type in (None, task.task_type):
                    yield task
            after = page[-1].id
            if len(page) < PAGE:
                break


def print_tasks(tasks: Sequence[Task]) -> None:
    """Print tasks as a table."""
    if not tasks:
        output.nobody("no such tasks")
        return
    rows = (
        [
            task.id,
            task.task_type,
            output.status(task.status),
            f"{task.attempt}",
            output.shown_time(task.available_at),
            output.shown_time(task.updated_at),
            output.safe(task.last_error or "", 60),
        ]
        for task in tasks
    )
    columns = ["id", "type", "status", "attempts", "due", "updated", "last error"]
    output.table(columns, rows, right=["attempts"])


@click.command(cls=Verb, examples=["buquet history 01a228b4-8bdd-7000-9548-987c2d22c58b"])
@click.argument("task_id", metavar="ID")
@json_flag
@connected
def history(where: Where, task_id: str, *, as_json: bool) -> None:
    """Show what a task has gone through, as a time line.

    With --json, a snapshot of the task for each transition. A long history keeps its first and its
    last 50 transitions.
    """

    async def read(queue: Queue) -> list[Task]:
        return await queue.get_history(task_id)

    snapshots = run(where, read)
    if not snapshots:
        raise LookupError(f"there is no task {task_id}: check --bucket and --prefix, or it is long archived")
    if as_json:
        for snapshot in snapshots:
            output.emit(snapshot)
        return
    click.echo(f"{snapshots[0].id}  {output.safe(snapshots[0].task_type)}")
    console = output.console()
    for before, snapshot in zip([None, *snapshots], snapshots, strict=False):
        console.print(
            f"{output.shown_time(snapshot.updated_at)}  {SIGNS[snapshot.status]}",
            output.styled(f"{snapshot.status:<9}", output.STYLES[snapshot.status]),
            output.styled(_what_happened(before, snapshot)),
        )


def _what_happened(before: Task | None, now: Task) -> str:
    """Say in words what a transition was."""
    if now.status == "running":
        waited = output.since(now.updated_at, now.available_at)
        return f"attempt {now.attempt} by {now.worker_id}, {waited} after it was due"
    took = "" if before is None else f"after {output.since(now.updated_at, before.updated_at)}"
    if now.status == "completed":
        return took
    if now.status == "failed":
        return f"{took}: {now.last_error}"
    if now.status == "archived":
        return f"requeued as {now.requeued_as}" if now.requeued_as else ""
    if before is None:
        delay = (now.available_at - now.updated_at).total_seconds()
        return f"submitted, due in {output.shown_age(delay)}" if delay > 0.001 else "submitted, due at once"
    if now.retry_count == before.retry_count:
        return f"{took} handed back, no retry used"
    due_in = output.since(now.available_at, now.updated_at)
    return f"{took} retry {now.retry_count} of {now.max_retries}, due in {due_in}: {now.last_error}"


@click.command(
    cls=Verb,
    examples=[
        "buquet wait 01a228b4-8bdd-7000-9548-987c2d22c58b --timeout 5m",
        "buquet wait --json $(buquet submit resize --lines photos.ndjson)",
    ],
)
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--timeout", "timeout_s", type=Duration(), help="How long for all of them; for ever if not given."
)
@json_flag
@connected
def wait(where: Where, task_ids: Sequence[str], timeout_s: float | None, *, as_json: bool) -> int:
    """Wait until tasks have ended, and print them in the order given.

    Exits with 1 if one of them failed, with 5 if one has not ended in time.
    """

    async def until_ended(queue: Queue) -> list[str]:
        import asyncio

        statuses = []
        try:
            async with asyncio.timeout(timeout_s):
                for task_id in task_ids:
                    task = await queue.wait(task_id)
                    statuses.append(str(task.status))
                    if as_json:
                        output.emit(task)
                    else:
                        outcome = (
                            task.last_error if task.status == "failed" else output.shown_json(task.output)
                        )
                        click.echo(f"{task.id} {task.status} {output.safe(outcome or '', 2000)}".rstrip())
        except TimeoutError:
            left = len(task_ids) - len(statuses)
            raise TimeoutError(f"{left} of {len(task_ids)} tasks not ended in {timeout_s:g} s") from None
        return statuses

    return NEGATIVE if "failed" in run(where, until_ended) else 0
