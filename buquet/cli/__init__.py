"""The command line: `buquet`.

Verbs are declared in modules that import the rest of the package, aiohttp and rich only when they
run: `--help` needs neither the HTTP client nor the credential chain.

Example::

    buquet worker tasks:worker
    buquet submit send_email '{"to": "user@example.com"}' --wait
"""

from __future__ import annotations

from pathlib import Path

import click

from buquet import __version__
from buquet.cli import settings
from buquet.cli.program import Program

SECTIONS = {
    "Submit and read": {
        "submit": "submit:submit",
        "get": "tasks:get",
        "list": "tasks:list_tasks",
        "history": "tasks:history",
        "wait": "tasks:wait",
        "tail": "tail:tail",
    },
    "Repair": {
        "requeue": "failed:requeue",
        "failed": "failed:failed",
        "archive": "upkeep:archive",
        "verify": "upkeep:verify",
    },
    "Run": {
        "worker": "worker:worker",
        "monitor": "upkeep:monitor",
        "schedule": "schedule:schedule",
    },
    "Watch": {
        "stats": "stats:stats",
        "top": "top:top",
        "workers": "stats:workers",
    },
    "Set up and try": {
        "init": "upkeep:init",
        "doctor": "doctor:doctor",
        "dev": "dev:dev",
        "demo": "demo_verb:demo",
        "bench": "bench:bench",
        "cost": "cost:cost",
        "config": "config:config",
        "completions": "config:completions",
    },
}

EPILOG = """\
Every flag can be set by a variable: BUQUET_SUBMIT_RETRIES is --retries of `submit`, and S3_ENDPOINT,
S3_BUCKET, S3_REGION, AWS_PROFILE, BUQUET_DRIVER and BUQUET_PREFIX say where the queue is. Files do as
well: buquet.toml, beaten by [tool.buquet] in pyproject.toml, by variables, and by flags. `buquet config`
shows what holds."""


@click.group(
    cls=Program,
    sections=SECTIONS,
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "BUQUET",
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="buquet")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run, watch and repair a task queue whose only backend is S3."""
    verb = ctx.invoked_subcommand
    command = None if verb is None else main.get_command(ctx, verb)
    if verb is None or command is None:
        return
    files = settings.load(Path.cwd())
    settings.check(files, command, verb)
    ctx.obj = files
    ctx.default_map = {verb: settings.defaults(files, command, verb)}
