"""Submitting, reading, running, repairing: the whole life of tasks, by verbs alone."""

from __future__ import annotations

import asyncio
import json
import re

from command_line import Cli

from buquet import connect
from buquet._core.rfc3339 import format_ms
from buquet.protocol.session import LIVE, TOMBSTONE, Entry, Session, encode, session_key
from buquet.store.interface import Always

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def test_the_life_of_tasks(cli: Cli) -> None:
    assert "16 shards" in cli("init").stdout
    good = cli("submit", "echo", '{"n": 1}').stdout.strip()
    assert ID.fullmatch(good)
    (bad,) = cli.json("submit", "broken", "-", "--retries", "0", stdin='{"photo": "cat.png"}')
    (cli.folder / "input.json").write_text('["a", null]')
    later = cli("submit", "echo", "@input.json", "--in", "1h", "--timeout", "90s", "--priority", "0").stdout
    (delayed,) = cli.json("get", later.strip())
    assert delayed["input"] == ["a", None]
    assert (delayed["timeout_seconds"], delayed["priority"]) == (90, 0)

    (stats,) = cli.json("stats", "--by-type")
    assert (stats["ready"], stats["delayed"], stats["running"], stats["failed"]) == (2, 1, 0, 0)
    assert stats["requests"] == {"list": 3, "get": 3}
    assert {(one["task_type"], one["count"], one["error"]) for one in stats["by_type"]} == {
        ("echo", 1, 0),
        ("broken", 1, 0),
    }
    assert (
        cli("wait", good, "--timeout", "200ms", code=5).stderr == "Error: 1 of 1 tasks not ended in 0.2 s\n"
    )

    worker = cli("worker", "jobs:worker", "--burst", "-v")
    assert f"task {good} (echo) completed" in worker.stderr
    assert f"warning: task {bad['id']} (broken) failed: PermanentError" in worker.stderr
    assert "broken, echo, rude" in worker.stdout

    assert cli("wait", good).stdout == f'{good} completed {{"got": {{"n": 1}}}}\n'
    (ended,) = cli.json("wait", bad["id"], code=1)
    assert ended["last_error"] == "PermanentError: no such photo: cat.png"
    assert [snapshot["status"] for snapshot in cli.json("history", good)] == [
        "pending",
        "running",
        "completed",
    ]
    line = cli("history", bad["id"]).stdout.splitlines()[-1]
    assert re.search(r"✗ failed +after \d+ ms: PermanentError: no such photo: cat.png", line)

    listed = cli.json("list")
    assert {task["id"] for task in listed} == {good, bad["id"], later.strip()}
    assert [task["id"] for task in cli.json("list", "--status", "failed")] == [bad["id"]]
    assert [task["id"] for task in cli.json("list", "--type", "echo", "--status", "completed")] == [good]
    assert len(cli.json("list", "--limit", "2")) == 2
    assert good in cli("list").stdout

    told = cli.json("tail", "--since", "1h")
    assert [one["status"] for one in told if one["id"] == good] == ["pending", "running", "completed"]
    assert [one["id"] for one in cli.json("tail", "--since", "1h", "--status", "failed")] == [bad["id"]]

    _repair(cli, good, bad["id"])


def _repair(cli: Cli, good: str, bad: str) -> None:
    assert [task["id"] for task in cli.json("failed", "list", "--error", "no such photo")] == [bad]
    assert cli.json("failed", "list", "--type", "echo") == []
    assert cli.json("failed", "list", "--older-than", "1h") == []
    shown = cli("failed", "show", bad).stdout
    assert "attempt 1" in shown
    assert 'raise PermanentError("no such photo: cat.png")' in shown
    assert (
        cli("failed", "show", good, code=1).stderr
        == f"task {good} is completed, not failed (see `buquet get`)\n"
    )
    assert cli.json("failed", "requeue", "--dry-run") == [{"id": bad, "would": "requeue"}]
    (again,) = cli.json("requeue", bad)
    assert again["requeue_of"] == bad
    assert cli.json("get", bad)[0]["requeued_as"] == again["id"]
    cli("worker", "jobs:worker", "--burst", "--max-tasks", "1")
    assert cli("failed", "purge").stdout == "1 failed tasks archived\n"
    assert cli("failed", "list").stderr == "no failed tasks\n"
    assert cli.json("stats")[0]["failed"] == 0
    (report,) = cli.json("verify")
    assert report["is_sound"]
    assert report["by_status"] == {"archived": 2, "completed": 1, "pending": 1}
    assert "0 tasks archived or removed" in cli("archive", "--older-than", "7d").stdout


def test_many_lines_at_once(local: Cli) -> None:
    lines = [json.dumps({"n": number}) for number in range(70)]
    lines[33] = "{"
    (local.folder / "in.ndjson").write_text("\n".join([*lines, ""]))
    submitted = local("submit", "echo", "--lines", "in.ndjson", code=1)
    assert len(set(ID.findall(submitted.stdout))) == 69
    assert submitted.stderr.startswith("Error: line 34 is not JSON")
    assert len(local.json("submit", "broken", "--lines", "-", "--retries", "0", stdin="1\n\n2\n3\n")) == 3
    (stats,) = local.json("stats")
    assert (stats["ready"], stats["requests"]) == (72, {"list": 3})
    assert sum(shard["ready"] for shard in stats["by_shard"].values()) == 72

    local("worker", "jobs:worker", "--burst")
    assert "say --yes to do it, or --dry-run" in local.refused("failed", "requeue")
    assert len(local.json("failed", "list", "--limit", "2")) == 2
    assert len(local("failed", "requeue", "--yes", "--limit", "2").stdout.split()) == 2
    assert local("failed", "purge", "--yes").stdout == "1 failed tasks archived\n"
    ids = [task["id"] for task in local.json("list", "--type", "broken", "--status", "pending")]
    result = local("requeue", "--yes", *ids, "01a228b4-8bdd-7000-9548-987c2d22c58b", code=4)
    assert result.stderr.count("Error: ") == 3


def test_more_than_a_thousand_are_counted_by_lists_alone(local: Cli) -> None:
    (local.folder / "in.ndjson").write_text("1\n" * 1001)
    local("submit", "echo", "--lines", "in.ndjson")
    (stats,) = local.json("stats")
    assert (stats["ready"], stats["requests"]) == (1001, {"list": 4})
    (sampled,) = local.json("stats", "--by-type")
    assert sampled["requests"] == {"list": 4, "get": 200}
    assert sampled["by_type"] == [{"state": "ready", "task_type": "echo", "count": 1001, "error": 1}]
    (exact,) = local.json("stats", "--exact")
    assert exact["requests"] == {"list": 4, "get": 1001}
    assert exact["by_type"][0]["error"] == 0
    assert "1,001" in local("stats").stdout


def test_submit_and_wait(local: Cli) -> None:
    with local.started("worker", "jobs:worker") as worker:
        done = local("submit", "echo", '"hello"', "--wait")
        assert json.loads(done.stdout) == {"got": "hello"}
        failed = local("submit", "broken", "--wait", code=1)
        assert failed.stderr.endswith("failed: PermanentError: no such photo: cat.png\n")
        worker.terminate()
        assert worker.wait(20) == 0


def test_what_a_task_says_cannot_command_a_terminal(local: Cli) -> None:
    task_id = local("submit", "rude").stdout.strip()
    assert "red" in local("worker", "jobs", "--burst").stderr
    for verb, code in ((["get"], 0), (["wait"], 1), (["history"], 0), (["failed", "show"], 0)):
        shown = local(*verb, task_id, code=code).stdout
        assert "[31mred" in shown
        assert "\x1b" not in shown
        assert "\x07" not in shown
    for verb in (["list"], ["failed", "list"], ["tail", "--since", "1h"]):
        assert "\x1b" not in local(*verb).stdout


def test_a_dead_workers_tasks_run_only_until_they_are_taken_back(local: Cli) -> None:
    ids = [line["id"] for line in local.json("submit", "echo", "--lines", "-", stdin="1\n2\n3\n")]
    lost = "019b0000-0000-7000-8000-000000000000"

    async def die() -> None:
        """Leave sessions of three workers: one lives, one has died, one was buried."""
        async with connect(local.environment["S3_ENDPOINT"], local.environment.get("S3_BUCKET")) as queue:
            for number, (state, lifetime_s) in enumerate([(LIVE, 60), (LIVE, 1e-9), (TOMBSTONE, 60)]):
                name, at = f"w{number}", format_ms(queue.store.time.now_ms())
                session = Session(
                    nonce=name,
                    state=state,
                    worker_id=name,
                    incarnation=name,
                    started_at=at,
                    beat_at=at,
                    lifetime_s=lifetime_s,
                    journal=[Entry(ids[number], name, at), *[Entry(lost, name, at)] * (number == 1)],
                )
                await queue.store.put(session_key("", name, name), encode(session), Always())

    asyncio.run(die())
    (stats,) = local.json("stats")
    assert (stats["ready"], stats["running"], stats["workers"]) == (2, 2, 1)
