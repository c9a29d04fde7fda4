"""The command line: `buquet`.

Commands are declared here and import what they need when they run, so that `--help` needs
neither the HTTP client nor the credential chain.

Example::

    buquet --version
    buquet demo --endpoint http://127.0.0.1:4566 --bucket buquet
"""

from __future__ import annotations

import sys

import click

from buquet import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="buquet")
def main() -> None:
    """Run a distributed task queue whose only backend is S3."""


@main.command("demo")
@click.option("--endpoint", help="A store to use instead of a temporary SQLite file.")
@click.option("--bucket", help="An existing bucket there; the demo removes what it wrote.")
@click.option("--tasks", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--timeout", "timeout_s", default=55.0, show_default=True, help="Give up after that, seconds.")
def _demo(endpoint: str | None, bucket: str | None, tasks: int, timeout_s: float) -> None:
    """Kill a worker amid its work and see that no task is lost.

    Exits with 0 only if every task was completed.
    """
    from buquet.cli.demo import run  # noqa: PLC0415

    sys.exit(run(endpoint, bucket, tasks=tasks, timeout_s=timeout_s))
