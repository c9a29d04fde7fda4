"""What a user sees: statuses, tasks and their history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from samples import NOW, outcome, pending, running

from buquet import RetryPolicy, TaskStatus
from buquet._core.record import LogEntry, Record, claim
from buquet.errors import PoisonRecord
from buquet.protocol.task import history_of, task_of
from buquet.protocol.transitions import settled, taken_back

START = datetime(2027, 1, 15, 8, 1, tzinfo=UTC)
"""`NOW` as a datetime."""


def test_a_status_is_a_string() -> None:
    assert TaskStatus.Pending == "pending"
    assert {TaskStatus.Failed: 1}["failed"] == 1
    assert [f"{status}" for status in TaskStatus] == ["pending", "running", "completed", "failed", "archived"]
    assert TaskStatus("running") is TaskStatus.Running
    assert [status.is_terminal for status in TaskStatus] == [False, False, True, True, True]


def test_a_task_is_its_record() -> None:
    task = task_of(running())
    assert (task.status, task.task_type, task.input, task.output) == (
        TaskStatus.Running,
        "mail",
        {"to": "x"},
        None,
    )
    assert task.created_at == datetime(2027, 1, 15, 7, 59, 59, 990_000, UTC)
    assert task.available_at == START - timedelta(minutes=1)
    assert (task.worker_id, task.attempt, task.retry_count) == ("w", 1, 0)
    assert task.lease_expires_at == START + timedelta(seconds=40)
    assert task.retry_policy == RetryPolicy()
    assert task.completed_at is None


@pytest.mark.parametrize("wire", [b"1", b"[1,2]", b'"x"', b"null", b'{"a":18446744073709551615}'])
def test_any_json_may_be_an_input(wire: bytes) -> None:
    task = task_of(pending(input=msgspec.Raw(wire)))
    assert msgspec.json.encode(task.input) == wire


@pytest.mark.parametrize("wire", [b'"\xff"', b"1e999", b"01"])
def test_an_input_that_is_no_json_is_poison(wire: bytes) -> None:
    with pytest.raises(PoisonRecord, match="record of task"):
        task_of(pending(input=msgspec.Raw(wire)))


def test_a_retry_policy_out_of_range_is_poison() -> None:
    with pytest.raises(PoisonRecord, match="retry_policy: multiplier"):
        task_of(pending(retry_policy={"multiplier": 0}))


@pytest.mark.parametrize(
    "entry", [LogEntry(at="x", status="pending"), LogEntry(at="2027-01-15T08:00:00.000Z", status="odd")]
)
def test_a_log_that_makes_no_sense_is_poison(entry: LogEntry) -> None:
    with pytest.raises(PoisonRecord, match="log: "):
        history_of(pending(log=[entry]))


@pytest.mark.parametrize("at", ["0000-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"])
def test_a_time_that_no_calendar_has_is_poison(at: str) -> None:
    """A year before 1, and a lease that would end after 9999."""
    with pytest.raises(PoisonRecord, match="log: "):
        history_of(running(log=[LogEntry(at=at, status="running")]))


def test_a_record_of_the_year_0_is_poison() -> None:
    with pytest.raises(PoisonRecord, match="record of task"):
        task_of(pending(updated_at="0000-01-01T00:00:00.000Z"))


@pytest.mark.parametrize("aware", [True, False])
def test_helpers_take_text_and_datetimes(aware: bool) -> None:
    def at(seconds: float) -> Any:
        moment = START + timedelta(seconds=seconds)
        return moment if aware else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    waiting, busy = task_of(pending()), task_of(running())
    assert not waiting.is_available_at(at(-60.001))
    assert waiting.is_available_at(at(-60))
    assert not busy.is_available_at(at(0))
    assert not busy.is_lease_expired_at(at(39.999))
    assert busy.is_lease_expired_at(at(40))
    assert not waiting.is_lease_expired_at(at(10**6))
    assert waiting.age_at(at(0)) == timedelta(seconds=60.01)


def test_helpers_refuse_local_time_and_junk() -> None:
    with pytest.raises(ValueError, match=r"aware datetime; use `await queue\.now"):
        task_of(pending()).is_available_at(datetime(2027, 1, 15))
    with pytest.raises(ValueError, match="tomorrow"):
        task_of(pending()).age_at("tomorrow")


# --- history -------------------------------------------------------------------------------


def again(record: Record, at_ms: int) -> Record:
    return claim(record, at_ms=at_ms, lease_id=f"l{at_ms}", nonce="n", worker_id="w2", incarnation="i")


def test_a_history_has_one_snapshot_a_transition() -> None:
    failed_once = settled(running(), outcome(error="ValueError: x", delay_ms=1000))
    lost = taken_back(again(failed_once, NOW + 10_000), at_ms=NOW + 60_000, nonce="n")
    done = settled(again(lost, NOW + 70_000), outcome("completed", output=b'"fine"'))
    history = history_of(done)
    assert [(task.status.value, task.attempt, task.retry_count, task.worker_id) for task in history] == [
        ("pending", 0, 0, None),
        ("running", 1, 0, "w"),
        ("pending", 1, 1, None),
        ("running", 2, 1, "w2"),
        ("pending", 2, 2, None),
        ("running", 3, 2, "w2"),
        ("completed", 3, 2, None),
    ]
    assert [task.last_error for task in history] == [
        None,
        None,
        "ValueError: x",
        "ValueError: x",
        *["WorkerLost: worker w2 was lost while it ran attempt 2"] * 3,
    ]
    assert [task.output for task in history] == [None] * 6 + ["fine"]
    assert history[1].lease_expires_at == START + timedelta(seconds=40)
    assert [task.lease_expires_at is None for task in history] == [
        True,
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    assert history[2].available_at == START + timedelta(seconds=6)
    assert history[1].available_at == history[0].available_at == START - timedelta(minutes=1)
    assert [task.completed_at for task in history[:-1]] == [None] * 6
    assert history[-1] == task_of(done)
    assert {task.id for task in history} == {done.id}


def test_snapshots_are_what_was_seen_at_the_time() -> None:
    steps = [pending()]
    steps.append(again(steps[-1], NOW))
    steps.append(settled(steps[-1], outcome(error="E: 1", delay_ms=50)))
    steps.append(again(steps[-1], NOW + 9000))
    steps.append(settled(steps[-1], outcome(counts_as_retry=False)))
    steps.append(again(steps[-1], NOW + 9500))
    steps.append(settled(steps[-1], outcome("failed", error="E: 2")))
    assert history_of(steps[-1]) == [task_of(step) for step in steps]


def test_a_task_that_was_never_claimed_has_one_snapshot() -> None:
    assert history_of(pending()) == [task_of(pending())]


def test_a_record_without_a_log_is_its_own_history() -> None:
    assert history_of(pending(log=[])) == [task_of(pending())]


def test_a_long_history_keeps_both_ends() -> None:
    record = pending(max_retries=1000)
    for round_number in range(100):
        record = settled(again(record, NOW + round_number * 10_000), outcome(error=f"E: {round_number}"))
    history = history_of(record)
    assert len(history) == 51
    assert history[0].attempt == 0
    assert [task.attempt for task in history[-2:]] == [100, 100]
    assert history[-1] == task_of(record)
