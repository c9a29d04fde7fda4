"""Help: quick, complete, and the source of docs/cli.md."""

from __future__ import annotations

import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from buquet.cli import SECTIONS, main, reference
from buquet.cli.program import EXIT_CODES, Verb

ROOT = Path(__file__).resolve().parents[2]

HEAVY = {"aiohttp", "botocore", "msgspec", "rich", "croniter", "asyncio"}


def verbs() -> list[tuple[list[str], click.Command]]:
    """Every command line that is a verb, without its arguments."""
    context = click.Context(main, info_name="buquet")
    found: list[tuple[list[str], click.Command]] = []
    for names in SECTIONS.values():
        for name in names:
            command = main.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                found += [([name, sub], one) for sub, one in command.commands.items()]
            else:
                found.append(([name], command))
    return found


VERBS = verbs()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "buquet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_no_help_imports_what_takes_long() -> None:
    code = (
        "import sys\n"
        "from buquet.cli import main\n"
        f"for path in {[path for path, _ in VERBS]!r}:\n"
        "    try: main([*path, '--help'], prog_name='buquet')\n"
        "    except SystemExit as end: assert end.code == 0, path\n"
        f"    found = {HEAVY!r} & set(sys.modules)\n"
        "    assert not found, (path, found)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.count("Examples:") == len(VERBS)


@pytest.mark.parametrize("path", [[], ["submit"], ["worker"], ["schedule", "create"]], ids=" ".join)
def test_help_is_there_at_once(path: list[str]) -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        run(*path, "--help")
        times.append(time.perf_counter() - began)
    assert statistics.median(times) < 0.4


@pytest.mark.parametrize(("path", "command"), VERBS, ids=[" ".join(path) for path, _ in VERBS])
def test_each_verb_is_explained(path: list[str], command: click.Command) -> None:
    assert isinstance(command, Verb)
    assert command.help
    assert command.examples
    names = {param.name for param in command.params}
    assert "as_json" in names
    if path[0] not in {"demo", "completions", "cost", "dev"}:
        assert {"endpoint", "bucket", "region", "driver", "prefix", "profile"} <= names
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert not [param.name for param in options if not param.help and not param.hidden]


@pytest.mark.parametrize(("path", "command"), VERBS, ids=[" ".join(path) for path, _ in VERBS])
def test_the_examples_are_calls_that_the_parser_takes(
    path: list[str], command: click.Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert isinstance(command, Verb)
    monkeypatch.chdir(tmp_path)
    for example in command.examples:
        call = re.split(r" +# | \| | [<>] ", example.removeprefix('eval "$(').replace(')" ', " "))[0]
        words = shlex.split(re.sub(r"\$\(.*\)", "ID", call))
        assert words[: len(path) + 1] == ["buquet", *path], example
        command.make_context("buquet", words[len(path) + 1 :])  # raises what is wrong


def test_the_page_is_what_the_command_line_says() -> None:
    written = (ROOT / "docs/cli.md").read_text()
    assert written == reference.page(), "run `python -m buquet.cli.reference > docs/cli.md`"
    for code in EXIT_CODES:
        assert f"\n| {code} | " in written


def test_the_module_is_the_program() -> None:
    shown = run("--help").stdout
    assert all(f"\n  {name} " in shown for names in SECTIONS.values() for name in names)


def test_a_call_without_a_verb_shows_the_help() -> None:
    shown = subprocess.run([sys.executable, "-m", "buquet"], capture_output=True, text=True, check=False)
    assert "Submit and read:" in shown.stdout + shown.stderr
