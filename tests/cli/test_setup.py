"""Setting up, checking, measuring, reckoning."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from contextlib import closing

import pytest
from command_line import Cli

from buquet.cli import prices, upkeep
from buquet.cli.checkup import _life_cycle_line, _versioning_line


def test_a_healthy_queue(cli: Cli) -> None:
    (first,) = [line for line in cli.json("doctor") if line["what"] == "layout"]
    assert (first["state"], first["found"]) == ("advice", "there is no queue yet")
    cli("init", "--shards", "256")
    cli("submit", "echo")
    lines = {line["what"]: line for line in cli.json("doctor")}
    assert {name for name, line in lines.items() if line["state"] == "bad"} == set()
    expected = {"configuration", "address", "bucket", "clock", "permissions", "probe", "signatures", "layout"}
    assert expected | {"invariant"} <= set(lines)
    assert "256 shards" in lines["layout"]["found"]
    assert (cli.environment["S3_ENDPOINT"].startswith("local:")) != (
        {"versioning", "life cycle"} <= set(lines)
    )
    shown = cli("doctor").stdout
    assert shown.count("✓") >= len(expected)
    assert "✗" not in shown


def test_a_lost_marker_is_found_and_mended(local: Cli) -> None:
    (local.folder / "in.ndjson").write_text("1\n" * 60)
    (local.folder / "slow.py").write_text(
        "from buquet import RetryableError, Worker\nworker = Worker()\n"
        "@worker.task('echo')\nasync def echo(input):\n    raise RetryableError('later')\n"
    )
    local("submit", "echo", "--lines", "in.ndjson")
    local("worker", "slow:worker", "--max-tasks", "60")
    with closing(sqlite3.connect(local.folder / "queue.db")) as db, db:
        db.execute("DELETE FROM objects WHERE key LIKE 'ready/%'")
    (report,) = local.json("verify", code=1)
    assert {finding["fault"] for finding in report["findings"]} == {"lost marker"}
    assert [line["what"] for line in local.json("doctor", code=1) if line["state"] == "bad"] == ["invariant"]
    assert "`buquet verify --repair` mends" in local("verify", code=1).stderr
    (report,) = local.json("verify", "--repair")
    assert report["is_sound"]
    assert local.json("verify")[0]["findings"] == []


@pytest.mark.parametrize(
    ("versioning", "rules", "state"),
    [
        ({}, [], "ok"),
        ({"Status": "Suspended"}, [], "ok"),
        ({"Status": "Enabled"}, [], "advice"),
        ({"Status": "Enabled"}, [{"Status": "Disabled", "NoncurrentVersionExpiration": {}}], "advice"),
        ({"Status": "Enabled"}, [{"Status": "Enabled", "NoncurrentVersionExpiration": {}}], "ok"),
        (OSError("denied"), [], "skipped"),
    ],
)
def test_versioning_advice(versioning: object, rules: list[object], state: str) -> None:
    assert _versioning_line(versioning, {"Rules": rules}).state == state


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ({"Status": "Enabled", "Prefix": "", "Expiration": {"Days": 30}}, "bad"),
        ({"Status": "Enabled", "Filter": {"Prefix": "jobs/tasks/"}, "Transitions": [{}]}, "bad"),
        ({"Status": "Enabled", "Filter": {"And": {"Prefix": "jobs"}}, "Expiration": {}}, "bad"),
        ({"Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {}}, "ok"),
        ({"Status": "Disabled", "Prefix": "", "Expiration": {}}, "ok"),
        ({"Status": "Enabled", "Prefix": "", "AbortIncompleteMultipartUpload": {}}, "ok"),
    ],
)
def test_life_cycle_advice(rule: dict[str, object], state: str) -> None:
    assert _life_cycle_line({"Rules": [rule]}, "jobs/").state == state


def test_bench_measures_and_cleans_up(cli: Cli) -> None:
    (result,) = cli.json("bench", "--tasks", "50", "--workers", "2")
    assert min(result[name] for name in result if name.endswith("_per_s")) > 0
    assert result["latency_ms"]["p50"] <= result["latency_ms"]["p95"] <= result["latency_ms"]["p99"]
    assert sum(count for _, count in result["histogram"]) == 10
    assert 3 <= result["requests_a_task"]["put"] < 5, "submit, claim, complete, and some heartbeats"
    assert 15 < result["dollars_a_million"]["S3 Standard, us-east-1"] < 40
    assert result["memory_mib"] > 10
    assert cli.json("stats")[0]["ready"] == 0


def test_bench_of_a_slow_store(local: Cli) -> None:
    shown = local("bench", "--tasks", "10", "--latency-ms", "50").stdout
    assert int(re.search(r"one by one +(\d+) tasks/s", shown)[1]) <= 20
    assert "end-to-end latency" in shown
    with closing(sqlite3.connect(local.folder / "queue.db")) as db:
        assert db.execute("SELECT count(*) FROM objects").fetchone() == (0,)


def test_cost_adds_up(local: Cli) -> None:
    (reckoned,) = local.json("cost", "--tasks-per-day", "1000", "--workers", "0")
    assert reckoned["requests_a_month"] == {"tasks": {"put": 90_000, "get": 30_000, "list": 3_000}}
    month = reckoned["dollars_a_month"]["S3 Standard, us-east-1"]["total"]
    assert month == pytest.approx((93_000 * 5 + 30_000 * 0.4) / 1e6)
    arguments = ["--tasks-per-day", "0", "--poll-interval", "2s", "--no-monitor"]
    (idle,) = local.json("cost", *arguments)
    assert idle["requests_a_month"]["polling"] == {"list": 1_296_000}
    assert set(idle["requests_a_month"]) == {"polling", "heartbeats", "counting"}
    shown = local("cost").stdout
    assert prices.AS_OF in shown
    assert all(price.source in shown for price in prices.PRICES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(local: Cli, shell: str) -> None:
    script = local("completions", shell).stdout
    assert "_BUQUET_COMPLETE" in script
    assert json.loads(local("completions", shell, "--json").stdout) == {"shell": shell, "script": script[:-1]}
    asked = {"_BUQUET_COMPLETE": "bash_complete", "COMP_WORDS": "buquet sch", "COMP_CWORD": "1"}
    assert local(env=asked).stdout == "plain,schedule\n"
    if shell == "bash":
        script = local("completions", "bash").stdout
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_least_age_is_the_archivers() -> None:
    from buquet import archiver

    assert upkeep.LEAST_S == archiver.LEAST_RETENTION_S
