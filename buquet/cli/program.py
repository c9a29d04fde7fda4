"""The program itself: verbs that are imported when they are used, exit codes, errors of one line.

Example::

    main = Program(name="buquet", sections={"Run": {"worker": "worker:worker"}})
    main()          # exits: 0 done, 1 a negative result, 2 a wrong call, 3 the store, ...
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from buquet.errors import (
    BuquetError,
    ConfigError,
    InvalidInput,
    InvalidInputType,
)

NEGATIVE = 1
"""The answer is no: a task failed, a queue is unsound, a check found something."""
USAGE = 2
"""The call, an argument or the configuration is wrong; nothing was done."""
STORE = 3
"""The store could not be reached, refused, or holds what cannot be read."""
NOT_FOUND = 4
"""There is no such task or schedule."""
TOO_LATE = 5
"""What was waited for did not happen in time."""
INTERRUPTED = 130
"""Ctrl-C: 128 and the signal's number."""

EXIT_CODES = {
    0: "done",
    NEGATIVE: "a negative result: a task failed, the queue is unsound, a check found something",
    USAGE: "the call or the configuration is wrong; nothing was done",
    STORE: "the store could not be reached, refused, or holds what cannot be read",
    NOT_FOUND: "there is no such task or schedule",
    TOO_LATE: "what was waited for did not happen in time",
    INTERRUPTED: "interrupted by Ctrl-C",
}

DEBUG_VARIABLE = "BUQUET_DEBUG"


class Verb(click.Command):
    """A command whose help ends in examples.

    Parameters
    ----------
    examples:
        Whole command lines.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, unwrapped, so that they can be copied."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class VerbGroup(click.Group):
    """A verb that has verbs of its own."""

    command_class = Verb


class Program(click.Group):
    """The command line as a whole.

    Parameters
    ----------
    sections:
        The verbs by section of the help: name, and `module:attribute` inside `buquet.cli`.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self._homes = {name: home for verbs in sections.values() for name, home in verbs.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the verbs, in the order of the help."""
        return list(self._homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of a verb."""
        home = self._homes.get(cmd_name)
        if home is None:
            return None
        module, attribute = home.split(":")
        command: click.Command = getattr(importlib.import_module(f"buquet.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, section by section."""
        width = max(map(len, self._homes))
        for section, names in self.sections.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None  # noqa: S101 - it is in the table
                rows.append((name.ljust(width), command.get_short_help_str(limit=90)))
            with formatter.section(section):
                formatter.write_dl(rows)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run, and exit with a code of `EXIT_CODES`."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except (click.ClickException, click.Abort) as error:
            code = report(error)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; what it raises becomes a message of one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            return INTERRUPTED
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except BrokenPipeError:
            raise  # click ends quietly
        except Exception as error:
            if os.environ.get(DEBUG_VARIABLE):
                raise
            return report(error)


def report(error: BaseException) -> int:
    """Print an error in one line on standard error; return the exit code that stands for it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, click.Abort):
        return INTERRUPTED
    if isinstance(error, click.UsageError) and type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USAGE
    message, code = _explained(error)
    click.echo(f"Error: {' '.join(message.split())}", err=True)
    return code


def _explained(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        path = "buquet" if error.ctx is None else error.ctx.command_path
        return f"{error.format_message().rstrip('.')} (see `{path} --help`)", USAGE
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, ConfigError | InvalidInput | InvalidInputType):
        return worded(str(error)), USAGE
    if isinstance(error, BuquetError):
        return worded(str(error)), STORE
    if isinstance(error, LookupError) and not isinstance(error, KeyError | IndexError):
        return str(error), NOT_FOUND
    if isinstance(error, TimeoutError):
        return str(error) or "not in time", TOO_LATE
    if isinstance(error, ValueError):
        return str(error), USAGE
    cure = f"this is a fault of buquet or of your code, and {DEBUG_VARIABLE}=1 shows where"
    return f"unexpected {type(error).__name__}: {error}; {cure}", NEGATIVE


def worded(message: str) -> str:
    """Name flags where an error of the library names arguments of `connect`."""
    for argument, flag in _FLAGS.items():
        message = message.replace(argument, flag)
    return message


_FLAGS = {
    "pass bucket=...": "pass --bucket",
    "pass endpoint=...": "pass --endpoint",
    "check the endpoint, or let connect(wait_s=...) wait for it": "or check --endpoint",
    "connect(create_bucket=True)": "`buquet init`",
    "replace=True": "--replace",
}
