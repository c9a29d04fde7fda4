"""`buquet stats` and `buquet workers`: what a queue holds, and who works on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from buquet.cli import output
from buquet.cli.options import Where, connected, json_flag, run
from buquet.cli.program import Verb

if TYPE_CHECKING:
    from buquet.cli.census import Census, Seen, TypeCount
    from buquet.queue import Queue

MOST_SHARDS = 16
"""Shards are shown to people up to so many; JSON has them all."""


@click.command(
    cls=Verb, examples=["buquet stats", "buquet stats --by-type", "buquet stats --json | jq .ready"]
)
@click.option("--by-type", is_flag=True, help="Also by type, from a random sample of at most 200 tasks.")
@click.option("--exact", is_flag=True, help="By type, from all tasks instead of a sample: a GET or two each.")
@json_flag
@connected
def stats(where: Where, *, by_type: bool, exact: bool, as_json: bool) -> None:
    """Count the tasks that wait, run or have failed, by shard, without reading them.

    A LIST a thousand tasks, and a GET a live process for what it runs. A task counts as running about
    a second after its claim.
    """

    async def count(queue: Queue) -> dict[str, Any]:
        from buquet.cli import census

        counted, requests = census.counting(queue)
        taken = await census.take(counted)
        types = await census.by_type(counted, taken, exact=exact) if by_type or exact else None
        return _facts(taken, types, dict(requests.counts))

    facts = run(where, count)
    if as_json:
        output.emit(facts)
    else:
        _print(facts)


def _facts(census: Census, types: Sequence[TypeCount] | None, requests: dict[str, int]) -> dict[str, Any]:
    facts = {
        **_counts(census.total, census.at_ms),
        "workers": sum(seen.state == "live" for seen in census.sessions),
        "by_shard": {shard: _counts(counts, census.at_ms) for shard, counts in census.by_shard.items()},
        "requests": requests,
    }
    if types is not None:
        facts["by_type"] = output.jsonable(list(types))
    return facts


def _counts(counts: Any, at_ms: int) -> dict[str, Any]:
    due_ms = counts.oldest_due_ms
    return {
        "ready": counts.ready,
        "delayed": counts.delayed,
        "running": counts.running,
        "failed": counts.failed,
        "oldest_waiting_s": None if due_ms is None else max(0, at_ms - due_ms) / 1000,
    }


def shown_wait(seconds: float | None) -> str:
    """Return how long the oldest task has waited, for people."""
    return "-" if seconds is None else output.shown_age(seconds)


def _print(facts: dict[str, Any]) -> None:
    columns = ["shard", "ready", "delayed", "running", "failed", "oldest waiting"]
    shards = facts["by_shard"]
    rows = [_row("all", facts)]
    if len(shards) <= MOST_SHARDS:
        rows += [_row(shard, counts) for shard, counts in shards.items() if any(counts.values())]
    output.table(columns, rows, right=columns[1:])
    if "by_type" in facts:
        click.echo()
        print_types(facts["by_type"])
    requests = ", ".join(f"{count:,} {kind.upper()}" for kind, count in sorted(facts["requests"].items()))
    click.echo(f"\n{facts['workers']:,} live processes; counted with {requests}")


def _row(shard: str, counts: dict[str, Any]) -> list[str]:
    numbers = [f"{counts[name]:,}" for name in ("ready", "delayed", "running", "failed")]
    return [shard, *numbers, shown_wait(counts["oldest_waiting_s"])]


def print_types(types: Iterable[dict[str, Any]]) -> None:
    """Print how many tasks of each state have which type."""
    rows = (
        [
            one["task_type"],
            one["state"],
            f"{one['count']:,}",
            f"± {one['error']:,}" if one["error"] else "exact",
        ]
        for one in types
    )
    output.table(["type", "state", "tasks", "error (95 %)"], rows, right=["tasks", "error (95 %)"])


@click.command(cls=Verb, examples=["buquet workers", "buquet workers --all --json"])
@click.option("--all", "show_all", is_flag=True, help="Also those that are stale or dead.")
@json_flag
@connected
def workers(where: Where, *, show_all: bool, as_json: bool) -> None:
    """Show who lives, what they handle and run, and how fast. A LIST, and a GET a process."""

    async def read(queue: Queue) -> list[Seen]:
        from buquet.cli import census

        return await census.read_sessions(queue)

    seen = [one for one in run(where, read) if show_all or one.state == "live"]
    if as_json:
        for one in seen:
            output.emit(session_facts(one))
    elif seen:
        output.table(SESSION_COLUMNS, map(session_row, seen), right=["tasks", "done", "per second"])
    else:
        output.nobody("no live workers: start one with `buquet worker MODULE:WORKER`")


SESSION_COLUMNS = ["worker", "state", "host", "up", "seen", "tasks", "done", "per second", "handles"]


def session_facts(seen: Seen) -> dict[str, Any]:
    """Return what is known of a process, for programs."""
    session = seen.session
    return {
        "worker_id": session.worker_id,
        "state": seen.state,
        "with_monitor": seen.role == "m",
        "host": session.host,
        "pid": session.pid,
        "started_at": session.started_at,
        "last_seen_s": seen.age_s,
        "task_types": session.task_types,
        "shards": session.shards,
        "running": [entry.task_id for entry in session.journal],
        "counters": session.counters,
        "per_second": round(seen.rate, 3),
    }


def session_row(seen: Seen) -> list[Any]:
    """Return what is known of a process, for people."""
    session = seen.session
    return [
        session.worker_id,
        output.status(seen.state),
        f"{session.host}:{session.pid}",
        output.shown_age(seen.lived_s + seen.age_s),
        f"{output.shown_age(seen.age_s)} ago",
        f"{len(session.journal):,}",
        f"{seen.done:,}",
        f"{seen.rate:.2f}",
        ", ".join(session.task_types) or "monitor only",
    ]
