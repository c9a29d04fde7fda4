"""`buquet bench`: how fast the user's own store is as a queue, and what a task costs there."""

from __future__ import annotations

from typing import Any

import click

from buquet.cli import output
from buquet.cli.options import Where, connected, json_flag
from buquet.cli.program import Verb


@click.command(
    cls=Verb,
    examples=["buquet bench", "buquet bench --tasks 5000 --workers 4 --latency-ms 20 --json"],
)
@click.option("--tasks", default=1000, type=click.IntRange(10, 1_000_000), help="How many, in all.")
@click.option(
    "--concurrency",
    default=32,
    type=click.IntRange(1, 1024),
    help="Submissions, and tasks of a worker, at once.",
)
@click.option("--workers", default=1, type=click.IntRange(1, 64), help="Workers, in this one process.")
@click.option("--payload-bytes", default=100, type=click.IntRange(0, 1_000_000), help="The size of an input.")
@click.option("--latency-ms", default=0.0, type=click.FloatRange(0, 10_000), help="Added to each request.")
@json_flag
@connected
def bench(
    where: Where,
    tasks: int,
    concurrency: int,
    workers: int,
    payload_bytes: int,
    latency_ms: float,
    *,
    as_json: bool,
) -> None:
    """Measure a queue on your store: submitting, draining, latency, requests, dollars, CPU.

    The tasks do nothing, so what is measured is the queue. They stand under a prefix of their own,
    which is emptied in the end. It costs about 4 requests a task, at your store's prices.
    """
    from buquet.cli.loop import run_async
    from buquet.cli.measure import Load, measure

    load = Load(tasks, concurrency, workers, payload_bytes, latency_ms / 1000)
    result = run_async(measure(where, load))
    if as_json:
        output.emit(result)
    else:
        _print(result)


def _print(result: Any) -> None:
    latency = result.latency_ms
    requests = ", ".join(f"{count:.2f} {kind.upper()}" for kind, count in result.requests_a_task.items())
    output.facts(
        [
            ("store", result.store),
            ("submit, one by one", f"{result.submit_one_by_one_per_s:,.0f} tasks/s"),
            ("submit, concurrent", f"{result.submit_concurrent_per_s:,.0f} tasks/s"),
            ("drain", f"{result.drain_per_s:,.0f} tasks/s"),
            (
                "end to end",
                f"p50 {latency['p50']:.0f} ms, p95 {latency['p95']:.0f} ms, p99 {latency['p99']:.0f} ms",
            ),
            ("requests a task", requests),
            (
                "a million tasks",
                ", ".join(f"${dollars:,.2f} on {name}" for name, dollars in result.dollars_a_million.items()),
            ),
            ("client CPU a task", f"{result.cpu_ms_a_task:.2f} ms"),
            ("memory, at most", f"{result.memory_mib:.0f} MiB"),
        ]
    )
    click.echo("\nend-to-end latency, by tasks:")
    most = max(count for _, count in result.histogram)
    for up_to_ms, count in result.histogram:
        click.echo(f"{up_to_ms:>8,.0f} ms {'█' * round(40 * count / most)} {count}")
