"""Bad input: one line with the cure, the documented exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess

import pytest
import servers
from command_line import Cli, s3_environment

UNKNOWN = "01a228b4-8bdd-7000-9548-987c2d22c58b"

BAD = [
    (["nonsense"], 2, "No such command 'nonsense' (see `buquet --help`)"),
    (["submit"], 2, "Missing argument 'TYPE' (see `buquet submit --help`)"),
    (["submit", "echo", "{"], 2, "the input is not JSON"),
    (["submit", "echo", "NaN"], 2, "NaN is not JSON"),
    (["submit", "echo", "@missing.json"], 2, "missing.json cannot be read"),
    (["submit", "echo", "--lines", "missing.ndjson"], 2, "missing.ndjson cannot be read"),
    (["submit", "echo", "--lines", "-", "--wait"], 2, "--lines goes with neither"),
    (["submit", "echo", "--in", "soon"], 2, "'soon' is not a duration: write for instance 90s"),
    (["submit", "echo", "--at", "noon"], 2, "'noon' is not a time: write for instance 2027"),
    (["submit", "echo", "--at", "2030-01-01", "--in", "1h"], 2, "--at and --in exclude each other"),
    (["submit", "echo", "--priority", "11"], 2, "11 is not in the range 0<=x<=9"),
    (["submit", " "], 2, "task_type must have 1 to 200 characters"),
    (["get", "nonsense"], 2, "'nonsense' is not a task id"),
    (["get", UNKNOWN], 4, f"there is no task {UNKNOWN}: check --bucket and --prefix"),
    (["history", UNKNOWN], 4, f"there is no task {UNKNOWN}"),
    (["wait", UNKNOWN], 4, f"there is no task {UNKNOWN}"),
    (["requeue", UNKNOWN], 4, f"there is no ended task {UNKNOWN}"),
    (["failed", "show", UNKNOWN], 4, f"there is no task {UNKNOWN}"),
    (["list", "--shard", "z"], 2, "'z' is not a shard"),
    (["list", "--status", "lost"], 2, "'lost' is not one of 'pending'"),
    (["archive", "--older-than", "1d"], 2, "--older-than must be 7d or more"),
    (["schedule", "get", "nope"], 4, "there is no schedule 'nope': `buquet schedule list` shows them"),
    (["schedule", "trigger", "nope"], 4, "there is no schedule 'nope'"),
    (["schedule", "next", "nope"], 4, "there is no schedule 'nope'"),
    (["schedule", "create", "s", "echo", "not a cron"], 2, "cron"),
    (["schedule", "create", "s", "echo", "* * * * *", "--timezone", "Mars/Base"], 2, "Mars/Base"),
    (["worker", "nowhere:worker"], 2, "there is no module 'nowhere'"),
    (["worker", "jobs:nobody"], 2, "the module 'jobs' has no 'nobody'; it has worker"),
    (["worker", "jobs:number"], 2, "jobs:number is of type int"),
    (["worker", "wrong:worker"], 2, "wrong.py, line 2: ZeroDivisionError"),
    (["worker", "jobs:worker", "--shards", "x"], 2, "'x' is not a shard"),
    (["worker", "nowhere:worker", "--processes", "1", "--concurrency", "0"], 2, "0 is not in the range"),
    (["cost", "--poll-interval", "0"], 2, "--poll-interval and --check-interval must be above 0"),
    (["init", "--endpoint", "localhost:8333"], 2, "did you mean http://localhost:8333?"),
    (
        ["init", "--endpoint", "https://example.com"],
        2,
        "no bucket is configured: pass --bucket or set S3_BUCKET",
    ),
    (["init", "--endpoint", "local:missing/queue.db"], 2, "missing"),
    (["submit", "echo", "--endpoint", "memory:", "--bucket", "jobs"], 2, "use local:PATH instead"),
    (["stats", "--endpoint", "http://127.0.0.1:9", "--bucket", "jobs"], 3, "start it, or check --endpoint"),
    (
        ["bench", "--endpoint", "http://127.0.0.1:9", "--bucket", "jobs", "--driver", "no"],
        2,
        "no driver 'no'",
    ),
    (["completions", "tcsh"], 2, "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_bad_input_is_told_in_one_line(local: Cli, arguments: list[str], code: int, said: str) -> None:
    (local.folder / "wrong.py").write_text("def f():\n    return 1 / 0\nworker = f()\n")
    local.environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    assert said in local.refused(*arguments, code=code)


@pytest.mark.server
def test_what_a_store_refuses(seaweedfs: servers.Server, local: Cli) -> None:
    good = s3_environment(seaweedfs)
    cli = Cli(local.folder, good)
    assert "bucket" in cli.refused("stats", "--bucket", "no-such-bucket", code=3).lower()
    wrong_key = {"AWS_ACCESS_KEY_ID": "nobody"}
    wrong_secret = {"AWS_SECRET_ACCESS_KEY": "mistyped"}
    for wrong in (wrong_key, wrong_secret):
        cli.refused("stats", code=3, env=wrong)
        (*_, line) = cli.json("doctor", code=1, env=wrong)
        assert (line["state"], line["what"]) == ("bad", "credentials")
        assert line["cure"].startswith("check AWS_")
    (*_, line) = cli.json("doctor", "--bucket", "no-such-bucket", code=1)
    assert (line["what"], line["cure"]) == ("bucket", "create it with `buquet init`, or check --bucket")
    assert cli("init", "--bucket", "no-such-bucket").stdout.startswith("the queue is ready")
    assert "leave --shards out" in cli.refused("init", "--bucket", "no-such-bucket", "--shards", "256")
    (*_, line) = cli.json("doctor", "--endpoint", "http://127.0.0.1:9", code=1)
    assert (line["state"], line["what"]) == ("bad", "address")


def test_a_closed_pipe_is_no_error(local: Cli) -> None:
    command = " ".join(local.command("cost", "--json")) + " | true"
    result = subprocess.run(
        ["/bin/sh", "-c", command],
        env=os.environ | local.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.stderr == ""


def test_an_error_of_many_at_once_is_one_line(local: Cli) -> None:
    small = {"BUQUET_MAX_PAYLOAD_BYTES": "50"}
    assert "the limit is 50" in local.refused("bench", "--tasks", "20", env=small)
