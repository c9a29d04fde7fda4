"""Colour, bars and questions: at a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import termios

from command_line import Cli


def at_a_terminal(cli: Cli, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Run a verb whose input and output are a terminal; return its exit code and what was shown."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 160))
    environment = os.environ | cli.environment | {"TERM": "xterm"}
    process = subprocess.Popen(
        cli.command(*arguments), cwd=cli.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    return process.wait(30), shown.decode()


def test_a_terminal_gets_colour_and_bars_a_pipe_does_not(local: Cli) -> None:
    (local.folder / "in.ndjson").write_text("1\n" * 50)
    code, shown = at_a_terminal(local, "submit", "echo", "--lines", "in.ndjson")
    assert code == 0
    assert "submitting" in shown
    assert "━" in shown
    code, shown = at_a_terminal(local, "list")
    assert "\x1b[33mpending" in shown
    code, shown = at_a_terminal(local, "list", "--json")
    assert "\x1b" not in shown
    assert "\x1b" not in local("list").stdout
    code, shown = at_a_terminal(local, "top", "--looks", "1")
    assert "Ctrl-C ends it" in shown


def test_a_person_is_asked_before_many_are_touched(local: Cli) -> None:
    local("submit", "broken", "--lines", "-", stdin="1\n2\n")
    local("worker", "jobs:worker", "--burst")
    code, shown = at_a_terminal(local, "failed", "purge", typed="n\n")
    assert code == 0
    assert "Archive 2 tasks? [y/N]" in shown
    assert "nothing done" in shown
    assert local.json("stats")[0]["failed"] == 2
    assert at_a_terminal(local, "failed", "purge", typed="y\n")[0] == 0
    assert local.json("stats")[0]["failed"] == 0
