"""`buquet tail`: transitions of tasks as they happen.

Nothing in the bucket is a stream, so it looks again and again: LISTs of the markers, of the
sessions and, shard by shard, of the ledgers of tasks that were due of late. A task for which one
of these shows something new is read, and what its log has gained is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from buquet.cli import output
from buquet.cli.options import Duration, Where, connected, json_flag, run
from buquet.cli.program import Verb
from buquet.cli.tasks import SIGNS, STATUSES

if TYPE_CHECKING:
    from buquet.cli.looks import Transition
    from buquet.queue import Queue


@click.command(
    cls=Verb, examples=["buquet tail --since 5m", "buquet tail -f --type resize --status failed --json"]
)
@click.option("--follow", "-f", is_flag=True, help="Go on until stopped.")
@click.option(
    "--since", "since_s", default="1m", type=Duration(), help="Begin with what happened so long ago."
)
@click.option("--type", "task_type", help="Only tasks of this type.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(STATUSES),
    help="Only transitions to it; may be given again.",
)
@click.option("--interval", "interval_s", default="2s", type=Duration(), help="How long between two looks.")
@json_flag
@connected
def tail(
    where: Where,
    since_s: float,
    task_type: str | None,
    statuses: Sequence[str],
    interval_s: float,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the transitions of tasks, live with -f.

    A look costs 2 LISTs and one for each shard, a GET for each process that has changed, and one or two
    for each task that has: at most 200 tasks a look, the others at the next one. The cost is printed
    on standard error at first.
    """

    async def watch(queue: Queue) -> None:
        from buquet.cli.looks import Looks

        looks = Looks(queue, since_s)
        if follow:
            _tell_cost(looks.lists_a_look, interval_s)
        while True:
            for transition in await looks.look():
                if task_type in (None, transition.task_type) and (
                    not statuses or transition.status in statuses
                ):
                    _show(transition, as_json=as_json)
            if not follow and not looks.has_more:
                return
            if follow and not looks.has_more:
                await queue.clock.sleep(interval_s)

    run(where, watch)


def _tell_cost(lists_a_look: int, interval_s: float) -> None:
    from buquet.cli.prices import S3

    lists_a_day = lists_a_look * 86_400 / interval_s
    click.echo(
        f"{lists_a_look} LISTs a look, {lists_a_day:,.0f} a day: ${S3.cost({'list': lists_a_day}):,.2f} a day"
        " at Amazon's prices, and a GET for what changes",
        err=True,
    )


def _show(transition: Transition, *, as_json: bool) -> None:
    if as_json:
        output.emit(transition)
        return
    fields: list[Any] = [
        output.shown_time(datetime.fromisoformat(transition.at)),
        SIGNS[transition.status],
        output.styled(f"{transition.status:<9}", output.STYLES[transition.status]),
        transition.id,
        output.styled(transition.task_type),
    ]
    if transition.error:
        fields.append(output.styled(transition.error))
    elif transition.worker_id and transition.status == "running":
        fields.append(output.styled(f"attempt {transition.attempt} by {transition.worker_id}"))
    output.console().print(*fields)
