"""`buquet schedule`: recurring tasks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from buquet.cli import output
from buquet.cli.options import Duration, Where, connected, json_flag, place, read_json, run
from buquet.cli.program import VerbGroup

if TYPE_CHECKING:
    from buquet.protocol.schedule import Schedule, ScheduleLastRun
    from buquet.queue import Queue


@click.group(cls=VerbGroup)
def schedule() -> None:
    """Create, watch and run recurring schedules."""


@schedule.command(
    "create",
    examples=[
        "buquet schedule create nightly report '0 3 * * *' --timezone Europe/Berlin",
        """buquet schedule create ping ping '*/5 * * * *' '{"host": "example.com"}' --overlap skip""",
    ],
)
@click.argument("schedule_id", metavar="ID")
@click.argument("task_type", metavar="TYPE")
@click.argument("cron")
@click.argument("value", metavar="[JSON|@FILE|-]", required=False)
@click.option("--timezone", default="UTC", help="The IANA name of the zone that CRON is meant in.")
@click.option(
    "--catch-up",
    default="latest",
    type=click.Choice(["latest", "all", "none"]),
    help="What of missed occurrences to submit.",
)
@click.option(
    "--overlap",
    default="allow",
    type=click.Choice(["allow", "skip"]),
    help="Whether to submit while the last task goes on.",
)
@click.option("--timeout", "timeout_s", type=Duration(), help="How long an attempt may run; 5m by default.")
@click.option("--retries", type=click.IntRange(min=0), help="Attempts after the first one; 3 by default.")
@click.option("--replace", is_flag=True, help="Replace a schedule of this id.")
@json_flag
@connected
def create(
    where: Where,
    schedule_id: str,
    task_type: str,
    cron: str,
    value: str | None,
    timezone: str,
    catch_up: str,
    overlap: str,
    timeout_s: float | None,
    retries: int | None,
    *,
    replace: bool,
    as_json: bool,
) -> None:
    """Create a schedule; it does not fire for the past.

    CRON has five fields, as crontab(5) has them, or is one of @hourly, @daily, @weekly, @monthly and
    @yearly. Some scheduler must run: `buquet schedule run`, or `buquet worker --with-scheduler`.
    """
    given = read_json(value)

    async def make(queue: Queue) -> tuple[Schedule, list[datetime]]:
        made = await queue.create_schedule(
            schedule_id,
            task_type,
            given,
            cron,
            timeout_s,
            retries,
            timezone=timezone,
            catch_up=catch_up,
            overlap=overlap,
            replace=replace,
        )
        return made, await queue.next_runs(schedule_id, 1)

    made, coming = run(where, make)
    if as_json:
        output.emit({**output.jsonable(made), "next_run_at": coming[0] if coming else None})
    else:
        click.echo(f"{output.safe(made.id)}: next on {coming[0].isoformat() if coming else 'no day'}")


@schedule.command("list", examples=["buquet schedule list", "buquet schedule list --json | jq -r .id"])
@json_flag
@connected
def list_schedules(where: Where, *, as_json: bool) -> None:
    """List all schedules. Two GETs each."""

    async def read(queue: Queue) -> list[tuple[Schedule, ScheduleLastRun | None, list[datetime]]]:
        return [await _read(queue, one) for one in await queue.list_schedules()]

    found = run(where, read)
    if as_json:
        for one in found:
            output.emit(_as_json(*one))
        return
    if not found:
        output.nobody("no schedules")
        return
    rows = (
        [
            made.id,
            made.task_type,
            made.cron,
            made.timezone,
            output.styled("enabled", "green") if made.enabled else output.styled("disabled", "dim"),
            "never" if last is None else output.shown_time(last.last_run_at),
            coming[0].isoformat() if coming else "-",
        ]
        for made, last, coming in found
    )
    output.table(["name", "type", "cron", "zone", "state", "last run", "next run"], rows)


async def _read(queue: Queue, one: Schedule) -> tuple[Schedule, ScheduleLastRun | None, list[datetime]]:
    last = await queue.get_schedule_last_run(one.id)
    return one, last, await queue.next_runs(one.id, 1) if one.enabled else []


def _as_json(made: Schedule, last: ScheduleLastRun | None, coming: list[datetime]) -> dict[str, Any]:
    return {
        **output.jsonable(made),
        "last_run_at": None if last is None else output.jsonable(last.last_run_at),
        "last_task_id": None if last is None else last.last_task_id,
        "next_run_at": output.jsonable(coming[0]) if coming else None,
    }


@schedule.command("get", examples=["buquet schedule get nightly"])
@click.argument("schedule_id", metavar="ID")
@json_flag
@connected
def get(where: Where, schedule_id: str, *, as_json: bool) -> None:
    """Show a schedule, its last run and its next one."""

    async def read(queue: Queue) -> tuple[Schedule, ScheduleLastRun | None, list[datetime]]:
        made = await queue.get_schedule(schedule_id)
        if made is None:
            raise LookupError(f"there is no schedule {schedule_id!r}: `buquet schedule list` shows them")
        return await _read(queue, made)

    found = run(where, read)
    if as_json:
        output.emit(_as_json(*found))
        return
    output.facts(
        (
            name.replace("_", " "),
            "-" if value is None else value if isinstance(value, str) else output.shown_json(value),
        )
        for name, value in _as_json(*found).items()
    )


def _act(where: Where, schedule_id: str, method: str, done: str, *, as_json: bool) -> None:
    async def act(queue: Queue) -> None:
        await getattr(queue, method)(schedule_id)

    run(where, act)
    if as_json:
        output.emit({"id": schedule_id, "done": done})
    else:
        click.echo(f"{output.safe(schedule_id)}: {done}")


@schedule.command("enable", examples=["buquet schedule enable nightly"])
@click.argument("schedule_id", metavar="ID")
@json_flag
@connected
def enable(where: Where, schedule_id: str, *, as_json: bool) -> None:
    """Let a schedule fire again, but not for what it missed."""
    _act(where, schedule_id, "enable_schedule", "enabled", as_json=as_json)


@schedule.command("disable", examples=["buquet schedule disable nightly"])
@click.argument("schedule_id", metavar="ID")
@json_flag
@connected
def disable(where: Where, schedule_id: str, *, as_json: bool) -> None:
    """Let a schedule fire no more until it is enabled."""
    _act(where, schedule_id, "disable_schedule", "disabled", as_json=as_json)


@schedule.command("delete", examples=["buquet schedule delete nightly"])
@click.argument("schedule_id", metavar="ID")
@json_flag
@connected
def delete(where: Where, schedule_id: str, *, as_json: bool) -> None:
    """Delete a schedule; the tasks that it has submitted stay. A missing one is no error."""
    _act(where, schedule_id, "delete_schedule", "deleted", as_json=as_json)


@schedule.command("trigger", examples=["buquet schedule trigger nightly"])
@click.argument("schedule_id", metavar="ID")
@json_flag
@connected
def trigger(where: Where, schedule_id: str, *, as_json: bool) -> None:
    """Submit a schedule's task now, and print its id. The next occurrence stays where it is."""
    task = run(where, lambda queue: queue.trigger_schedule(schedule_id))
    if as_json:
        output.emit(task)
    else:
        click.echo(task.id)


@schedule.command("next", examples=["buquet schedule next nightly --count 10"])
@click.argument("schedule_id", metavar="ID")
@click.option("--count", "-n", default=5, type=click.IntRange(1, 10_000), help="How many.")
@json_flag
@connected
def next_runs(where: Where, schedule_id: str, count: int, *, as_json: bool) -> None:
    """Print the next occurrences of a schedule, in its zone."""
    for moment in run(where, lambda queue: queue.next_runs(schedule_id, count)):
        if as_json:
            output.emit({"id": schedule_id, "at": moment})
        else:
            click.echo(moment.isoformat())


@schedule.command("run", examples=["buquet schedule run"])
@click.option(
    "--interval", "interval_s", default="60s", type=Duration(), help="How often to look for new schedules."
)
@click.option("-v", "--verbose", is_flag=True, help="Tell what is submitted.")
@json_flag
@connected
def run_scheduler(where: Where, interval_s: float, *, verbose: bool, as_json: bool) -> None:
    """Submit what schedules ask for, until stopped. Any number may run."""
    from buquet.cli import service

    async def serve(queue: Queue) -> None:
        from buquet.scheduler import Scheduler

        service.announce({"scheduler": place(where.settings()), "interval_s": interval_s}, as_json=as_json)
        await Scheduler(queue).run(interval_s)

    service.log_to_stderr(verbose=verbose, as_json=as_json)
    service.run(where, serve)
