"""`buquet doctor`: what may be wrong, each with its cure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buquet.cli import output
from buquet.cli.options import Where, connected, json_flag
from buquet.cli.program import NEGATIVE, Verb, worded

if TYPE_CHECKING:
    from buquet.cli.checkup import Line

MARKS = {"ok": ("✓", "green"), "bad": ("✗", "bold red"), "advice": ("!", "yellow"), "skipped": ("-", "dim")}


@click.command(cls=Verb, examples=["buquet doctor", "buquet doctor --endpoint local:queue.db --json"])
@json_flag
@connected
def doctor(where: Where, *, as_json: bool) -> int:
    """Check configuration, credentials, address, clock, bucket, permissions, store and queue.

    It writes, and deletes again, a few objects under `probe/`. A line begins with ✓, with ✗ and then
    says the cure, with ! for advice, or with - for what could not be looked at. Exits with 1 if there
    is a ✗.
    """
    from buquet.cli.checkup import check_up
    from buquet.cli.loop import run_async

    console = output.console()

    def show(line: Line) -> None:
        if as_json:
            output.emit(line)
            return
        mark, style = MARKS[line.state]
        found = worded(line.found)
        console.print(output.styled(mark, style), f"{line.what:<14}", output.styled(found, most=2000))
        if line.cure:
            console.print(" " * 16, output.styled(f"→ {line.cure}", most=2000))

    is_well = run_async(check_up(where, show))
    return 0 if is_well else NEGATIVE
