"""`buquet cost`: what workers and a load would cost a month, by the number of requests."""

from __future__ import annotations

from typing import Any

import click

from buquet.cli import output
from buquet.cli.options import Duration, json_flag
from buquet.cli.program import Verb

MONTH_S = 30 * 86_400.0

A_TASK = {"put": 3.0, "get": 1.0, "list": 0.1}
"""Submit, claim and complete; the claim reads its marker. The listings are those of a busy worker."""

A_RETRY = {"put": 3.0, "get": 1.0}
"""A marker and the way back to pending, then read and claimed again."""

HEARTBEAT_S = 10.0
CHECK_LISTS = 2
OTHER_MONITORS = 0.25
"""Monitors that are not the acting one look at every fourth turn."""

COUNT_S = 30.0
"""How often a worker counts the live sessions."""

SCHEDULER_S = 60.0


@click.command(
    cls=Verb,
    examples=[
        "buquet cost --tasks-per-day 100000 --workers 4",
        "buquet cost --workers 20 --poll-interval 5s",
    ],
)
@click.option("--tasks-per-day", default=10_000.0, type=click.FloatRange(min=0), help="The load.")
@click.option("--retries-per-task", default=0.0, type=click.FloatRange(min=0), help="On average.")
@click.option(
    "--workers", default=1, type=click.IntRange(min=0), help="Worker processes, each on all shards."
)
@click.option(
    "--poll-interval", "poll_s", default="1s", type=Duration(), help="`poll_interval_ms` of an idle worker."
)
@click.option(
    "--check-interval", "check_s", default="15s", type=Duration(), help="How often a monitor looks."
)
@click.option("--no-monitor", is_flag=True, help="Without a monitor in the workers.")
@click.option("--schedulers", default=0, type=click.IntRange(min=0), help="How many run.")
@json_flag
def cost(
    tasks_per_day: float,
    retries_per_task: float,
    workers: int,
    poll_s: float,
    check_s: float,
    schedulers: int,
    *,
    no_monitor: bool,
    as_json: bool,
) -> None:
    """Reckon what a month of 30 days costs in requests, on S3, S3 Express and R2.

    An upper bound for few workers: as if they polled all the time, though busy ones poll less. It
    asks no store. Storage and traffic are not in it.
    """
    from buquet.cli.prices import AS_OF, PRICES

    if min(poll_s, check_s) <= 0:
        raise click.UsageError("--poll-interval and --check-interval must be above 0")
    parts = _requests(
        tasks_per_day, retries_per_task, workers, poll_s, None if no_monitor else check_s, schedulers
    )
    costs = [(price, {name: price.cost(requests) for name, requests in parts.items()}) for price in PRICES]
    if as_json:
        months = {price.name: {**by_part, "total": sum(by_part.values())} for price, by_part in costs}
        output.emit({"requests_a_month": parts, "dollars_a_month": months, "prices_as_of": AS_OF})
        return
    rows: list[list[Any]] = [
        [
            name,
            *(f"{requests.get(kind, 0):,.0f}" for kind in ("put", "list", "get")),
            *(f"${by_part[name]:,.2f}" for _, by_part in costs),
        ]
        for name, requests in parts.items()
    ]
    rows.append(["total", "", "", "", *(f"${sum(by_part.values()):,.2f}" for _, by_part in costs)])
    columns = ["a month", "PUT", "LIST", "GET", *(price.name for price, _ in costs)]
    output.table(columns, rows, right=columns[1:])
    for price in PRICES:
        if price.note:
            click.echo(f"{price.name}: {price.note}")
    click.echo(f"prices of {AS_OF}, from {', '.join(price.source for price in PRICES)}")


def _requests(
    tasks_per_day: float,
    retries_per_task: float,
    workers: int,
    poll_s: float,
    check_s: float | None,
    schedulers: int,
) -> dict[str, dict[str, float]]:
    """Return the requests of a month by what makes them."""
    tasks = tasks_per_day * 30
    a_task = {kind: count + retries_per_task * A_RETRY.get(kind, 0) for kind, count in A_TASK.items()}
    parts = {
        "tasks": {kind: tasks * count for kind, count in a_task.items()},
        "polling": {"list": workers * MONTH_S / poll_s},
        "heartbeats": {"put": workers * MONTH_S / HEARTBEAT_S},
        "counting": {"list": 0.0 if check_s else workers * MONTH_S / COUNT_S},
        "monitors": {"list": 0.0},
        "schedulers": {"list": schedulers * MONTH_S / SCHEDULER_S},
    }
    if check_s and workers:
        acting = 1 + (workers - 1) * OTHER_MONITORS
        # The others list the sessions at every turn, to see whether it is theirs.
        parts["monitors"]["list"] = (acting + workers) * (CHECK_LISTS / 2) * MONTH_S / check_s
    return {name: requests for name, requests in parts.items() if any(requests.values())}
