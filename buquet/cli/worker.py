"""`buquet worker`: runs the handlers of a module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from buquet.cli.options import Duration, Where, connected, json_flag, place
from buquet.cli.program import Verb

if TYPE_CHECKING:
    from buquet.queue import Queue
    from buquet.worker import Worker, WorkerRunOptions


def _split(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> list[str] | None:  # noqa: ARG001
    """Read names that are given one by one, or several with commas."""
    return [name for text in value for name in text.replace(",", " ").split()] or None


@click.command(
    cls=Verb,
    examples=[
        "buquet worker tasks:worker -v",
        "buquet worker tasks:worker --processes 4 --concurrency 32 --with-scheduler",
        "buquet worker tasks:worker --burst        # a batch job: ends when no task is due",
        "buquet worker tasks:worker --reload       # starts anew when a file changes",
    ],
)
@click.argument("target", metavar="MODULE:WORKER")
@click.option("--concurrency", type=click.IntRange(min=1), help="How many tasks run at once in a process.")
@click.option("--shards", multiple=True, callback=_split, help="Only these shards: 0,1,2. All by default.")
@click.option("--name", help="A name for people; made of host and process id by default.")
@click.option("--burst", is_flag=True, help="Stop when no task is due.")
@click.option("--max-tasks", type=click.IntRange(min=1), help="Stop after so many attempts.")
@click.option(
    "--poll-interval", "poll_s", default="1s", type=Duration(), help="The longest pause of an idle worker."
)
@click.option("--processes", default=1, type=click.IntRange(1, 1024), help="How many processes to run.")
@click.option("--reload", is_flag=True, help="Start anew when a Python file of the working folder changes.")
@click.option("--no-monitor", is_flag=True, help="Leave dead workers to the monitors of others.")
@click.option("--with-scheduler", is_flag=True, help="Submit the tasks of recurring schedules too.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each task.")
@click.option("--supervised", is_flag=True, hidden=True)
@json_flag
@connected
def worker(
    where: Where,
    target: str,
    concurrency: int | None,
    shards: list[str] | None,
    name: str | None,
    max_tasks: int | None,
    poll_s: float,
    processes: int,
    *,
    burst: bool,
    reload: bool,
    no_monitor: bool,
    with_scheduler: bool,
    verbose: bool,
    supervised: bool,
    as_json: bool,
) -> int | None:
    """Run tasks with the handlers of a module, until stopped.

    MODULE:WORKER names a `Worker()` at the top of a module, or a function that makes one from a
    queue. The working folder is looked at first. SIGTERM and Ctrl-C let running tasks finish; the
    second one hands them back at once.
    """
    if poll_s < 0.001:
        raise click.UsageError("--poll-interval must be a millisecond at least")
    if (reload or processes > 1) and not supervised:
        from buquet.cli.supervisor import Supervisor

        return Supervisor(sys.argv[1:], processes, reload=reload).run()
    from buquet.cli import service
    from buquet.worker import WorkerRunOptions

    service.log_to_stderr(verbose=verbose, as_json=as_json)
    options = WorkerRunOptions(
        poll_interval_ms=round(poll_s * 1000),
        burst=burst,
        max_tasks=max_tasks,
        with_monitor=not no_monitor,
        with_scheduler=with_scheduler,
    )

    async def serve(queue: Queue) -> None:
        from buquet.cli.target import load_worker

        found = await load_worker(target, queue)
        found.concurrency = concurrency or found.concurrency
        found.shards = shards or found.shards
        found.worker_id = name or found.worker_id
        _announce(found, queue, where, options, as_json=as_json)
        if supervised:
            from buquet.cli.supervisor import stop_at_end_of_input

            stop_at_end_of_input(found)
        await found.run(options, queue=queue)

    service.run(where, serve)
    return None


def _announce(found: Worker, queue: Queue, where: Where, options: WorkerRunOptions, *, as_json: bool) -> None:
    from buquet.cli import service
    from buquet.protocol.keys import expand_shards

    every = queue.keys.shards()
    shards = every if found.shards is None else expand_shards(found.shards, queue.keys)
    beside = [
        name for name, on in (("monitor", options.with_monitor), ("scheduler", options.with_scheduler)) if on
    ]
    service.announce(
        {
            "worker": found.worker_id,
            "handles": found.task_types,
            "queue": place(where.settings()),
            "shards": f"{len(shards):,} of {len(every):,}",
            "concurrency": found.concurrency,
            "beside": beside or ["nothing"],
        },
        as_json=as_json,
    )
