"""`buquet top`: the counts of `buquet stats` and the processes of `buquet workers`, live."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from buquet.cli import output
from buquet.cli.options import Duration, Where, connected, json_flag, run
from buquet.cli.program import Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from buquet.cli.census import Census
    from buquet.queue import Queue


@click.command(cls=Verb, examples=["buquet top", "buquet top --interval 5s --looks 3 --json"])
@click.option("--interval", "interval_s", default="2s", type=Duration(), help="How long between two looks.")
@click.option("--looks", type=click.IntRange(min=1), help="Stop after so many looks.")
@json_flag
@connected
def top(where: Where, interval_s: float, looks: int | None, *, as_json: bool) -> None:
    """Watch a queue: its counts, its processes and its rate.

    Each look costs what `buquet stats` costs. Where nobody watches it prints a line a look.
    """

    async def watch(queue: Queue) -> None:
        from buquet.cli import census

        counted, requests = census.counting(queue)
        before: Census | None = None
        with _screen(as_json=as_json) as show:
            for look in itertools.count(1):
                requests.counts.clear()
                taken = await census.take(counted)
                show(taken, _facts(taken, before, requests.total))
                before = taken
                if look == looks:
                    return
                await queue.clock.sleep(interval_s)

    run(where, watch)


def _facts(now: Census, before: Census | None, requests: int) -> dict[str, Any]:
    return {
        "ready": now.total.ready,
        "delayed": now.total.delayed,
        "running": now.total.running,
        "failed": now.total.failed,
        "oldest_waiting_s": now.oldest_s,
        "workers": sum(seen.state == "live" for seen in now.sessions),
        "per_second": round(sum(seen.rate for seen in now.sessions if seen.state == "live"), 2),
        "ready_change": 0 if before is None else now.total.ready - before.total.ready,
        "requests": requests,
    }


@contextlib.contextmanager
def _screen(*, as_json: bool) -> Iterator[Callable[[Census, dict[str, Any]], None]]:
    """Yield what shows a look: on the whole terminal, or as a line."""
    if as_json:
        yield lambda _, facts: output.emit(facts)
        return
    if not sys.stdout.isatty():
        yield lambda _, facts: click.echo(" ".join(f"{name}={value}" for name, value in facts.items()))
        return
    from rich.live import Live

    with Live(console=output.console(), screen=True, auto_refresh=False) as live:
        yield lambda taken, facts: live.update(_page(taken, facts), refresh=True)


def _page(taken: Census, facts: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    from buquet.cli.stats import SESSION_COLUMNS, session_row, shown_wait

    numbers = {**facts, "oldest_waiting_s": shown_wait(facts["oldest_waiting_s"])}
    heads = [name.replace("_s", "").replace("_", " ") for name in numbers]
    counts = output.build_table(heads, [[str(value) for value in numbers.values()]], right=heads)
    sessions = output.build_table(SESSION_COLUMNS, map(session_row, taken.sessions), right=["tasks", "done"])
    return Group(counts, "", sessions, "", "Ctrl-C ends it")
