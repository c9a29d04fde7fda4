"""The published description's recurring schedules: its code blocks run word for word."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from test_seed import run_block

from buquet import Queue, Schedule, ScheduleLastRun, connect

RECURRING = """\
# Create a schedule (runs every day at 9am)
schedule = await queue.create_schedule(
    "daily-report",
    "generate_report",
    {"type": "daily"},
    "0 9 * * *"
)

# List all schedules
schedules = await queue.list_schedules()
for s in schedules:
    print(f"{s.id}: {s.cron} (enabled={s.enabled})")

# Get a specific schedule
schedule = await queue.get_schedule("daily-report")

# Enable/disable
await queue.disable_schedule("daily-report")
await queue.enable_schedule("daily-report")

# Trigger immediately (outside normal schedule)
task = await queue.trigger_schedule("daily-report")

# Delete
await queue.delete_schedule("daily-report")
"""


async def test_recurring_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with connect(f"local:{tmp_path}/queue.db") as queue:
        names = await run_block(RECURRING, queue=queue)
        assert capsys.readouterr().out == "daily-report: 0 9 * * * (enabled=True)\n"
        task = await queue.get(names["task"].id)
        assert task is not None
        assert (task.task_type, task.input, task.status) == ("generate_report", {"type": "daily"}, "pending")
        assert await queue.list_schedules() == []


async def test_a_schedule_and_its_last_run_have_the_published_properties(tmp_path: Path) -> None:
    async with connect(f"local:{tmp_path}/queue.db") as queue:
        schedule = await queue.create_schedule("s", "report", {"type": "daily"}, "0 9 * * *", 60, 5)
        assert isinstance(schedule, Schedule)
        assert (schedule.id, schedule.task_type, schedule.input) == ("s", "report", {"type": "daily"})
        assert (schedule.cron, schedule.enabled) == ("0 9 * * *", True)
        assert (schedule.timeout_seconds, schedule.max_retries) == (60, 5)
        now = datetime.now(UTC)
        for moment in (schedule.created_at, schedule.updated_at):
            assert abs(moment - now) < timedelta(seconds=5)
        assert await queue.get_schedule_last_run("s") is None
        task = await queue.trigger_schedule("s")
        run = await queue.get_schedule_last_run("s")
        assert isinstance(run, ScheduleLastRun)
        assert (run.schedule_id, run.last_task_id) == ("s", task.id)
        assert abs(run.last_run_at - now) < timedelta(seconds=5)
        assert run.next_run_at is not None
        assert (run.next_run_at.hour, run.next_run_at.minute) == (9, 0)
        assert now < run.next_run_at <= now + timedelta(days=1, seconds=5)


PUBLISHED = {
    "create_schedule": "id, task_type, input, cron, timeout_seconds=None, max_retries=None",
    "get_schedule": "id",
    "list_schedules": "",
    "delete_schedule": "id",
    "enable_schedule": "id",
    "disable_schedule": "id",
    "trigger_schedule": "id",
    "get_schedule_last_run": "id",
}


@pytest.mark.parametrize(("method", "published"), PUBLISHED.items())
def test_calls_are_as_published(method: str, published: str) -> None:
    parameters: list[Any] = list(inspect.signature(getattr(Queue, method)).parameters.values())[1:]
    positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    ours = [each.name if each.default is each.empty else f"{each.name}={each.default}" for each in positional]
    assert ", ".join(ours) == published
