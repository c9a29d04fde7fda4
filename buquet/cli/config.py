"""`buquet config` and `buquet completions`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from buquet.cli import output
from buquet.cli.options import PLACE, Where, connected, json_flag
from buquet.cli.program import Verb

if TYPE_CHECKING:
    from buquet.cli.settings import Files


@click.command(cls=Verb, examples=["buquet config", "buquet config --json | jq -r .bucket.value"])
@json_flag
@connected
@click.pass_context
def config(ctx: click.Context, where: Where, *, as_json: bool) -> None:
    """Show where the queue is, and what says so: a file, a variable or a flag.

    No secret is shown, only where the keys come from. Exits with 2, after all, if something is wrong.
    """
    files: Files = ctx.obj
    rows = {name: _origin(ctx, files, where, name) for name in PLACE}
    rows["credentials"] = _credentials(where)
    for verb, table in files.by_verb.items():
        for key, value in table.items():
            rows[f"{verb}.{key}"] = (value, str(files.origins[f"{verb}.{key}"]))
    if as_json:
        output.emit({name: {"value": value, "from": origin} for name, (value, origin) in rows.items()})
    else:
        output.table(
            ["setting", "value", "from"],
            ([name, _shown(value), origin] for name, (value, origin) in rows.items()),
        )
    where.settings()  # raises what is wrong or missing


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _origin(ctx: click.Context, files: Files, where: Where, name: str) -> tuple[Any, str]:
    variables = PLACE[name][0]
    variable = next((variable for variable in variables if os.environ.get(variable)), None)
    source = ctx.get_parameter_source(name)
    value = getattr(where, name)
    if source is ParameterSource.COMMANDLINE:
        return value, f"--{name}"
    if source is ParameterSource.ENVIRONMENT and variable is not None:
        return os.environ[variable], variable
    if source is ParameterSource.DEFAULT_MAP:
        return value, str(files.origins[name])
    return None, ""


def _credentials(where: Where) -> tuple[Any, str]:
    if (where.endpoint or "").startswith(("local:", "memory:")):
        return None, "not needed"
    if where.profile:
        return None, f"the profile {where.profile}"
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return None, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if os.environ.get("AWS_PROFILE"):
        return None, f"the profile {os.environ['AWS_PROFILE']}"
    return None, "what the AWS tools find: files, container or instance role"


@click.command(
    cls=Verb,
    examples=[
        'eval "$(buquet completions bash)"        # in ~/.bashrc',
        'eval "$(buquet completions zsh)"         # in ~/.zshrc',
        "buquet completions fish > ~/.config/fish/completions/buquet.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_flag
@click.pass_context
def completions(ctx: click.Context, shell: str, *, as_json: bool) -> None:
    """Print the code that completes verbs and flags in a shell."""
    from click.shell_completion import get_completion_class

    completing = get_completion_class(shell)
    assert completing is not None  # noqa: S101 - click has these three
    root = ctx.find_root().command
    # click asks bash for its version, and complains below 4.4: that is for the reader's shell to say.
    template = completing(root, {}, "buquet", "_BUQUET_COMPLETE")
    script = template.source_template % template.source_vars()
    if as_json:
        output.emit({"shell": shell, "script": script})
    else:
        click.echo(script)
