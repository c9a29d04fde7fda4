"""Writes docs/cli.md from the command line itself.

Example::

    python -m buquet.cli.reference > docs/cli.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from buquet.cli import EPILOG, SECTIONS, main
from buquet.cli.options import PLACE
from buquet.cli.program import EXIT_CODES, Verb

HEAD = """\
# The command line

<!-- Written by `python -m buquet.cli.reference > docs/cli.md`: change the code, not this page. -->

`buquet`, or `python -m buquet`, runs, watches and repairs a queue without code. Verbs print for people
at a terminal, and JSON with `--json`: one object, or one object a line where there are many. Colour and
bars are for terminals alone.
"""

NOT_RUN = "<!-- not run: tests/cli runs the verbs on queues of their own -->"


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *_settings(), *_exit_codes(), *_overview(), *_verbs()]).rstrip() + "\n"


def _settings() -> Iterator[str]:
    yield "## Settings\n"
    yield EPILOG + "\n"
    yield "These say where the queue is; all verbs that need one have them.\n"
    yield "| flag | variable | key of a file | meaning |\n|---|---|---|---|"
    for name, (variables, text) in PLACE.items():
        named = ", ".join(f"`{variable}`" for variable in variables)
        yield f"| `--{name}` | {named} | `{name}` | {text} |"
    yield ""


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    yield "| code | meaning |\n|---|---|"
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"
    yield "\nAn error is one line on standard error, with what to do about it.\n"


def _overview() -> Iterator[str]:
    yield "## Verbs\n"
    context = click.Context(main, info_name="buquet")
    for section, names in SECTIONS.items():
        yield f"**{section}**\n"
        for name in names:
            command = main.get_command(context, name)
            assert command is not None  # noqa: S101 - it is in the table
            yield f"- [`buquet {name}`](#buquet-{name}): {command.get_short_help_str(limit=200)}"
        yield ""


def _verbs() -> Iterator[str]:
    context = click.Context(main, info_name="buquet")
    for names in SECTIONS.values():
        for name in names:
            command = main.get_command(context, name)
            assert command is not None  # noqa: S101 - it is in the table
            yield from _verb(command, f"buquet {name}")


def _verb(command: click.Command, path: str) -> Iterator[str]:
    yield f"## {path}\n"
    yield f"{_prose(command.help or '')}\n"
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from _verb(one, f"{path} {name}")
        return
    arguments = " ".join(
        param.make_metavar(click.Context(command))
        for param in command.params
        if isinstance(param, click.Argument)
    )
    examples = list(command.examples) if isinstance(command, Verb) else []
    lines = [f"{path} [OPTIONS] {arguments}".rstrip(), *(["", *examples] if examples else [])]
    yield "\n".join([NOT_RUN, "```sh", *lines, "```", ""])
    yield from _options(command, path)


def _prose(text: str) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(paragraphs)


def _options(command: click.Command, path: str) -> Iterator[str]:
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    own = [param for param in options if param.name not in PLACE or "where" not in _parameters(command)]
    if len(own) < len(options):
        yield "Also the flags that say [where the queue is](#settings).\n"
    if not own:
        return
    yield "| flag | variable | default | meaning |\n|---|---|---|---|"
    for param in own:
        flags = ", ".join(f"`{flag}`" for flag in (*param.opts, *param.secondary_opts))
        default = (
            "" if param.is_flag or not isinstance(param.default, str | int | float) else f"`{param.default}`"
        )
        choices = (
            f": {', '.join(map(str, param.type.choices))}" if isinstance(param.type, click.Choice) else ""
        )
        text = (param.help or "").rstrip(".").replace("|", "\\|")
        yield f"| {flags} | `{_variable(param, path)}` | {default} | {text}{choices} |"
    yield ""


def _parameters(command: click.Command) -> set[str]:
    """The names that a verb's function takes, through its decorators."""
    return set() if command.callback is None else set(inspect.signature(command.callback).parameters)


def _variable(param: click.Option, path: str) -> str:
    if param.envvar:
        return param.envvar if isinstance(param.envvar, str) else param.envvar[0]
    return f"{path} {param.name}".upper().replace(" ", "_").replace("-", "_")


if __name__ == "__main__":
    click.echo(page(), nl=False)
