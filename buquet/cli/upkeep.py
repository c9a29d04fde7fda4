"""`buquet archive`, `verify`, `monitor` and `init`: what keeps a queue in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buquet.cli import output
from buquet.cli.options import Duration, Where, connected, json_flag, place, run
from buquet.cli.program import NEGATIVE, Verb

if TYPE_CHECKING:
    from buquet.audit import Report
    from buquet.queue import Queue

LEAST_S = 7 * 86_400
"""The archiver's `LEAST_RETENTION_S`, told before anything is imported."""


@click.command(
    cls=Verb, examples=["buquet archive --older-than 30d", "buquet archive --older-than 90d --every 1h"]
)
@click.option(
    "--older-than",
    "older_s",
    required=True,
    type=Duration(),
    help="How long an ended task is kept: 7d or more.",
)
@click.option("--every", "every_s", type=Duration(), help="Go on: look again after so long, until stopped.")
@json_flag
@connected
def archive(where: Where, older_s: float, every_s: float | None, *, as_json: bool) -> None:
    """Archive ended tasks by their age, and remove what was archived long ago.

    Reads every task. Removing takes several looks over more than an hour, so that no worker can run
    a removed task again: run it with --every.
    """

    if older_s < LEAST_S:
        raise click.UsageError(
            "--older-than must be 7d or more: a scheduler may submit what is younger again"
        )

    async def sweep(queue: Queue) -> None:
        from buquet.archiver import Archiver

        archiver = Archiver(queue.ledger, queue.store, retention_s=older_s)
        while True:
            acted = await archiver.sweep()
            if as_json:
                output.emit({"at": queue.store.time.now(), "archived_or_removed": acted})
            else:
                click.echo(f"{acted:,} tasks archived or removed")
            if every_s is None:
                return
            await queue.clock.sleep(every_s)

    run(where, sweep)


@click.command(cls=Verb, examples=["buquet verify", "buquet verify --repair --json"])
@click.option("--repair", is_flag=True, help="Mend what can be mended; safe beside live workers.")
@json_flag
@connected
def verify(where: Where, *, repair: bool, as_json: bool) -> int:
    """Walk the whole bucket and report what breaks the protocol's invariant.

    Costs a GET a task and a LIST a thousand objects. Exits with 1 if a task is at risk.
    """

    async def audit(queue: Queue) -> Report:
        return await queue.verify(repair=repair)

    report = run(where, audit)
    if as_json:
        output.emit({**output.jsonable(report), "is_sound": report.is_sound})
    else:
        _print_report(report)
    return 0 if report.is_sound else NEGATIVE


def _print_report(report: Report) -> None:
    total = sum(report.by_status.values())
    statuses = ", ".join(f"{count:,} {name}" for name, count in sorted(report.by_status.items()))
    output.facts(
        [
            ("tasks", f"{total:,}" + (f" ({statuses})" if statuses else "")),
            ("markers", f"{report.markers:,}"),
            ("sessions", f"{report.live_sessions:,} live, {report.tombstones:,} tombstones"),
            ("sound", output.styled("yes", "green") if report.is_sound else output.styled("no", "bold red")),
        ]
    )
    if report.findings:
        rows = (
            [finding.fault.value, finding.key, finding.detail, "yes" if finding.repaired else "no"]
            for finding in report.findings
        )
        output.table(["found", "key", "detail", "mended"], rows)
    if not report.is_sound:
        click.echo("`buquet verify --repair` mends lost markers and dead letters", err=True)


@click.command(cls=Verb, examples=["buquet monitor", "buquet monitor --interval 5s"])
@click.option("--interval", "interval_s", default="15s", type=Duration(), help="How often to look.")
@click.option("--name", help="A name for people; made of host and process id by default.")
@click.option("-v", "--verbose", is_flag=True, help="Tell what is recovered.")
@json_flag
@connected
def monitor(where: Where, interval_s: float, name: str | None, *, verbose: bool, as_json: bool) -> None:
    """Recover the tasks of dead workers, until stopped.

    Workers run a monitor themselves; a separate one suits a fleet that comes and goes.
    """
    from buquet.cli import service

    async def watch(queue: Queue) -> None:
        from buquet.monitor import Monitor

        service.announce({"monitor": place(where.settings()), "interval_s": interval_s}, as_json=as_json)
        await Monitor(queue, name).run(check_interval_s=interval_s)

    service.log_to_stderr(verbose=verbose, as_json=as_json)
    service.run(where, watch)


@click.command(cls=Verb, examples=["buquet init --bucket jobs", "buquet init --shards 256"])
@click.option(
    "--shards",
    type=click.Choice(["16", "256", "4096", "65536"]),
    help="Into how many parts the keys are split; for ever. 16 by default.",
)
@json_flag
@connected
def init(where: Where, shards: str | None, *, as_json: bool) -> None:
    """Create the bucket, if it is missing, and the queue in it, after a probe of the store.

    Doing it again changes nothing.
    """
    from buquet.cli.loop import run_async

    digits = None if shards is None else {"16": 1, "256": 2, "4096": 3, "65536": 4}[shards]

    from buquet.errors import ManifestMismatch

    async def create() -> int:
        async with where.connect(create_bucket=True, shard_prefix_len=digits) as queue:
            return len(queue.keys.shards())

    try:
        count = run_async(create())
    except ManifestMismatch as error:
        cure = "leave --shards out, or take another --prefix"
        raise click.UsageError(f"the queue was created with another number of shards: {cure}") from error
    address = place(where.settings())
    if as_json:
        output.emit({"queue": address, "shards": count})
    else:
        click.echo(f"the queue is ready: {address}, {count:,} shards")
