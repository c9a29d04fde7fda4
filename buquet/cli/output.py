"""What verbs print: JSON for programs; tables, colour and bars for people at a terminal.

Example::

    with progress("submitting", total=1000) as advance:
        advance(1)
    table(["id", "status"], [[task.id, status(task.status)]])
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDE = 500
"""Columns where the output is no terminal: nothing is cut there."""

STYLES = {
    "pending": "yellow",
    "running": "cyan",
    "completed": "green",
    "failed": "bold red",
    "archived": "dim",
    "live": "green",
    "stale": "yellow",
    "tombstone": "red",
}


# --- JSON ----------------------------------------------------------------------------------


def jsonable(value: Any) -> Any:
    """Return a value as JSON has it: times in RFC 3339 with milliseconds, dataclasses as objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        text = value.isoformat(timespec="milliseconds")
        return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def emit(value: Any) -> None:
    """Print a value as one line of JSON, at once."""
    click.echo(json.dumps(jsonable(value), ensure_ascii=False))
    sys.stdout.flush()


# --- text ----------------------------------------------------------------------------------


def safe(text: str, most: int = 200) -> str:
    """Return text of a task that no terminal takes for a command, in one line, cut to a length."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def shown_time(moment: datetime | None) -> str:
    """Return a time in UTC for people to read."""
    if moment is None:
        return "-"
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{moment.microsecond // 1000:03d}"


def shown_age(seconds: float) -> str:
    """Return a duration in its one or two largest units."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if minutes < 60:
        return f"{int(minutes)} min {int(seconds % 60)} s"
    return f"{int(hours)} h {int(minutes % 60)} min" if hours < 48 else f"{int(days)} d {int(hours % 24)} h"


def shown_json(value: Any) -> str:
    """Return a value as a line of JSON."""
    return json.dumps(jsonable(value), ensure_ascii=False)


def since(later: datetime, earlier: datetime) -> str:
    """Return how long it was from one time to another."""
    return shown_age(max(timedelta(0), later - earlier).total_seconds())


# --- the terminal --------------------------------------------------------------------------


def console(*, stderr: bool = False) -> Console:
    """Return rich's console; where nobody watches it has neither colour nor an end of the line."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else WIDE, highlight=False, markup=False)


def styled(text: str, style: str = "", *, most: int = 200) -> Text:
    """Return text of a task or a person, which is never read as markup, cut to a length."""
    from rich.text import Text

    return Text(safe(text, most), style=style)


def status(name: str) -> Text:
    """Return a status in its colour."""
    return styled(str(name), STYLES.get(str(name), ""))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Print a table; cells are text or rich's."""
    made = build_table(columns, rows, right=right)
    console().print(made)


def build_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> Table:
    """Make a table; `right` names the columns of numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column == "id"
        )
    for row in rows:
        made.add_row(*(cell if not isinstance(cell, str) else styled(cell) for cell in row))
    return made


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value if not isinstance(value, str) else styled(value, ""))
    console().print(made)


@contextlib.contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while the block runs, if that is a terminal.

    Yields
    ------
    Callable
        Moves the bar on by so many.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console(stderr=True), transient=True) as bars:
        bar = bars.add_task(what, total=total)
        yield lambda count: bars.advance(bar, count)


def agreed(count: int, what: str, *, yes: bool) -> bool:
    """Ask before acting on more than one task; without a terminal `--yes` must have been said.

    Parameters
    ----------
    count:
        How many tasks.
    what:
        What would be done to them: "archive", say.
    yes:
        That the person has agreed already.

    Raises
    ------
    click.UsageError
        There is nobody to ask.
    """
    if yes or count <= 1:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would {what} {count:,} tasks: say --yes to do it, or --dry-run to see them"
        )
    return click.confirm(f"{what.capitalize()} {count:,} tasks?", err=True)


def nobody(what: str) -> None:
    """Say on standard error that there is nothing to show."""
    click.echo(what, err=True)
