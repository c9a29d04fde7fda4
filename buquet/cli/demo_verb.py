"""`buquet demo`: declared here, done in `buquet.cli.demo`."""

from __future__ import annotations

import click

from buquet.cli.options import json_flag
from buquet.cli.program import Verb


@click.command(cls=Verb, examples=["buquet demo", "buquet demo --endpoint http://127.0.0.1:8333 --bucket b"])
@click.option("--endpoint", help="A store to use instead of a temporary SQLite file.")
@click.option("--bucket", help="An existing bucket there; the demo removes what it wrote.")
@click.option("--tasks", default=1000, type=click.IntRange(min=1), help="How many tasks.")
@click.option("--timeout", "timeout_s", default=55.0, help="Give up after that, seconds.")
@json_flag
def demo(endpoint: str | None, bucket: str | None, tasks: int, timeout_s: float, *, as_json: bool) -> int:
    """Kill a worker amid its work and see that no task is lost.

    Exits with 0 only if every task was completed.
    """
    from buquet.cli.demo import run

    return run(endpoint, bucket, tasks=tasks, timeout_s=timeout_s, as_json=as_json)
