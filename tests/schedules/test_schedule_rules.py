"""What is due of a schedule, and how its objects are read: pure functions."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from buquet._core import ident
from buquet._core.rfc3339 import format_ms
from buquet.errors import NewerLayout, PoisonRecord
from buquet.protocol import schedule as rules
from buquet.protocol.keys import Keys
from buquet.protocol.schedule import Definition, Run, due, occurrence, occurrence_id

HOUR_MS = 3_600_000
NOW_MS = int(datetime(2026, 6, 15, 12, 30, tzinfo=UTC).timestamp() * 1000)
CREATED_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def definition(**fields: object) -> Definition:
    created_at = format_ms(CREATED_MS)
    given = {"id": "s", "task_type": "do", "cron": "0 * * * *", "input": msgspec.Raw(b"{}")}
    times = {"created_at": created_at, "updated_at": created_at, "starts_at": created_at}
    return Definition(**{**given, **times, **fields})


def run(until_ms: int | None = None, **fields: object) -> Run:
    until = None if until_ms is None else format_ms(until_ms)
    return Run(schedule_id="s", schedule_created_at=format_ms(CREATED_MS), fired_until=until, **fields)


def hours_ago(found: list[int]) -> list[float]:
    return [(NOW_MS - at_ms) / HOUR_MS for at_ms in found]


def due_now(schedule: Definition, schedule_run: Run | None = None, late_ms: int = 120_000) -> list[float]:
    return hours_ago(due(schedule, schedule_run, now_ms=NOW_MS, late_ms=late_ms))


# --- what is due ---------------------------------------------------------------------------


def test_of_missed_occurrences_the_latest_one_is_due() -> None:
    assert due_now(definition(), run(NOW_MS - 5 * HOUR_MS)) == [0.5]


def test_of_missed_occurrences_all_are_due_in_order() -> None:
    assert due_now(definition(catch_up="all"), run(NOW_MS - 3 * HOUR_MS)) == [2.5, 1.5, 0.5]


def test_of_missed_occurrences_none_is_due_that_is_late() -> None:
    every_minute = definition(catch_up="none", cron="* * * * *")
    late = definition(catch_up="none")
    assert due_now(late, run(NOW_MS - 5 * HOUR_MS)) == []
    assert due_now(late, run(NOW_MS - 5 * HOUR_MS), late_ms=HOUR_MS) == [0.5]
    assert due_now(every_minute, run(NOW_MS - HOUR_MS)) == [0]


def test_an_occurrence_that_is_done_with_is_not_due() -> None:
    assert due_now(definition(), run(NOW_MS - HOUR_MS // 2)) == []
    assert due_now(definition(catch_up="all"), run(NOW_MS)) == []


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_nothing_is_due_from_before_the_start(catch_up: str) -> None:
    schedule = definition(catch_up=catch_up, starts_at=format_ms(NOW_MS - HOUR_MS // 2))
    assert due_now(schedule, late_ms=HOUR_MS) == []
    assert due_now(schedule, run(NOW_MS - 9 * HOUR_MS), late_ms=HOUR_MS) == []


def test_nothing_is_due_of_a_disabled_schedule() -> None:
    assert due_now(definition(enabled=False), run(NOW_MS - 9 * HOUR_MS)) == []


def test_none_older_than_seven_days_is_due() -> None:
    """Its task may have been archived and removed: it would run once more."""
    all_of_them = due_now(definition(catch_up="all"))
    assert all_of_them[0] == 7 * 24 - 0.5
    assert len(all_of_them) == 7 * 24
    yearly = definition(cron="0 12 8 6 *")
    assert due_now(yearly) == []
    assert hours_ago(due(yearly, None, now_ms=NOW_MS - HOUR_MS, late_ms=0)) == [7 * 24 + 0.5]


def test_a_thousand_at_a_time_are_due() -> None:
    schedule = definition(catch_up="all", cron="* * * * *")
    first = due(schedule, None, now_ms=NOW_MS, late_ms=0)
    assert len(first) == 1000
    second = due(schedule, run(first[-1]), now_ms=NOW_MS, late_ms=0)
    assert second[0] == first[-1] + 60_000


def test_where_tasks_must_not_overlap_one_at_most_is_due() -> None:
    assert due_now(definition(catch_up="all", overlap="skip"), run(NOW_MS - 3 * HOUR_MS)) == [0.5]


# --- an occurrence's task --------------------------------------------------------------------


def test_an_occurrence_has_one_id() -> None:
    """Fixed, because it is what makes occurrences fire once: also across versions of this package."""
    task_id = occurrence_id("daily-report", 1_769_590_800_000)
    assert task_id == "019c03d4-be80-7000-95fa-bd440c303ccd"
    assert (ident.due_ms(task_id), ident.priority(task_id)) == (1_769_590_800_000, 5)


def test_occurrences_and_schedules_have_ids_of_their_own() -> None:
    ids = {occurrence_id(name, at_ms) for name in ("a", "b", "a b") for at_ms in range(0, 600_000, 60_000)}
    assert len(ids) == 30


def test_the_task_of_an_occurrence() -> None:
    schedule = definition(timeout_seconds=7, max_retries=0, input=msgspec.Raw(b'{"n":1}'))
    record = occurrence(schedule, NOW_MS, now_ms=NOW_MS + 5000, nonce="n")
    assert record.id == occurrence_id("s", NOW_MS)
    assert (record.task_type, record.status, record.priority) == ("do", "pending", 5)
    assert record.available_at == record.first_due == format_ms(NOW_MS)
    assert record.created_at == format_ms(NOW_MS + 5000)
    assert (record.timeout_seconds, record.max_retries) == (7, 0)
    assert msgspec.json.decode(record.input) == {"n": 1}
    assert Keys().marker_of(record) == Keys().first_marker(record.id)


def test_the_defaults_of_a_schedules_tasks_are_those_of_submit() -> None:
    record = occurrence(definition(), NOW_MS, now_ms=NOW_MS, nonce="n")
    assert (record.timeout_seconds, record.max_retries) == (300, 3)


# --- runs ----------------------------------------------------------------------------------

FIRST_MS = NOW_MS - 2 * HOUR_MS
SECOND_MS = FIRST_MS + HOUR_MS


def test_a_run_only_moves_forward() -> None:
    schedule = definition()
    first = rules.fired(schedule, None, FIRST_MS, at_ms=FIRST_MS + 9)
    assert first is not None
    assert (first.last_task_id, first.last_run_at) == (occurrence_id("s", FIRST_MS), format_ms(FIRST_MS + 9))
    second = rules.fired(schedule, first, SECOND_MS, at_ms=SECOND_MS)
    assert second is not None
    assert rules.fired(schedule, second, FIRST_MS, at_ms=NOW_MS) is None
    assert rules.fired(schedule, second, SECOND_MS, at_ms=NOW_MS) is None
    assert rules.skipped(schedule, second, SECOND_MS, busy_task_id=first.last_task_id or "") is None


def test_a_trigger_does_not_move_the_next_occurrence() -> None:
    schedule = definition()
    task_id = ident.mint(NOW_MS, 5, 1)
    noted = rules.triggered(schedule, run(FIRST_MS), task_id, at_ms=NOW_MS)
    assert (noted.last_task_id, noted.fired_until) == (task_id, format_ms(FIRST_MS))
    assert rules.fired(schedule, noted, FIRST_MS, at_ms=NOW_MS) is None, "a latecomer does not undo it"
    assert rules.triggered(schedule, None, task_id, at_ms=NOW_MS).fired_until is None


def test_an_announced_task_is_noted_though_others_have_left_it_out() -> None:
    schedule = definition(overlap="skip")
    announced = rules.starting(schedule, run(FIRST_MS), occurrence_id("s", SECOND_MS))
    left_out = rules.skipped(schedule, announced, SECOND_MS, busy_task_id=occurrence_id("s", FIRST_MS))
    assert left_out is not None
    noted = rules.fired(schedule, left_out, SECOND_MS, at_ms=NOW_MS)
    assert noted is not None
    assert (noted.last_task_id, noted.starting_task_id) == (occurrence_id("s", SECOND_MS), None)


def test_a_task_that_a_crash_left_announced_becomes_the_last_when_it_is_found() -> None:
    schedule = definition(overlap="skip")
    task_id = occurrence_id("s", FIRST_MS)
    crashed = rules.starting(schedule, run(FIRST_MS - HOUR_MS), task_id)
    noted = rules.skipped(schedule, crashed, SECOND_MS, busy_task_id=task_id)
    assert noted is not None
    assert (noted.last_task_id, noted.last_run_at) == (task_id, format_ms(FIRST_MS))
    assert noted.fired_until == format_ms(SECOND_MS)


def test_the_run_of_a_deleted_schedule_of_the_same_name_is_not_ours() -> None:
    assert rules.run_of(definition(), run(FIRST_MS)) == run(FIRST_MS)
    assert rules.run_of(definition(created_at=format_ms(CREATED_MS + 1)), run(FIRST_MS)) is None
    assert rules.run_of(definition(), None) is None


# --- what a user sees ------------------------------------------------------------------------


def test_next_runs_are_in_the_schedules_zone() -> None:
    schedule = definition(cron="30 2 * * *", timezone="Europe/Berlin")
    after_ms = int(datetime(2026, 3, 28, tzinfo=UTC).timestamp() * 1000)
    found = rules.next_runs(schedule, 3, after_ms=after_ms)
    assert [moment.isoformat() for moment in found] == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_the_next_run_is_that_of_the_cron_of_now() -> None:
    done = run(FIRST_MS, last_run_at=format_ms(FIRST_MS), last_task_id=occurrence_id("s", FIRST_MS))
    seen = rules.last_run_of(definition(), done, now_ms=NOW_MS)
    assert dataclasses.asdict(seen) == {
        "schedule_id": "s",
        "last_run_at": datetime(2026, 6, 15, 10, 30, tzinfo=UTC),
        "last_task_id": occurrence_id("s", FIRST_MS),
        "next_run_at": datetime(2026, 6, 15, 13, 0, tzinfo=UTC),
    }
    changed = rules.last_run_of(definition(cron="45 * * * *"), done, now_ms=NOW_MS)
    assert changed.next_run_at == datetime(2026, 6, 15, 12, 45, tzinfo=UTC)
    disabled = rules.last_run_of(definition(enabled=False), done, now_ms=NOW_MS)
    assert disabled.next_run_at is None
    assert rules.last_run_of(definition(), run(), now_ms=NOW_MS) is None


# --- what stands in the bucket ---------------------------------------------------------------


def body(**fields: object) -> bytes:
    good = msgspec.json.decode(rules.encode(definition()))
    return msgspec.json.encode({**good, **fields})


def test_a_schedule_reads_back_as_it_was_written() -> None:
    assert rules.decode_definition(body()) == definition()
    assert rules.decode_definition(body(of_a_later_version=1)) == definition()


@pytest.mark.parametrize(
    "fields",
    [
        {"v": "1"},
        {"id": ""},
        {"id": "x" * 201},
        {"id": 5},
        {"cron": "0 0 30 2 *"},
        {"cron": None},
        {"timezone": "Mars/Olympus"},
        {"catch_up": "some"},
        {"overlap": "maybe"},
        {"timeout_seconds": -1},
        {"max_retries": 1.5},
        {"task_type": ""},
        {"created_at": "yesterday"},
        {"starts_at": ""},
        {"starts_at": "1969-12-31T23:59:59.999Z"},
        {"starts_at": "9999-12-31T23:59:59.999Z"},
        {"enabled": "yes"},
    ],
)
def test_a_broken_schedule_is_poison(fields: dict[str, object]) -> None:
    with pytest.raises(PoisonRecord):
        rules.decode_definition(body(**fields))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'{"v": 1}', b'{"v": 1, "x": ' + b"[" * 200_000])
def test_what_is_no_schedule_is_poison(text: bytes) -> None:
    for decode in (rules.decode_definition, rules.decode_run):
        with pytest.raises(PoisonRecord):
            decode(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"fired_until": "soon"},
        {"fired_until": "9999-12-31T23:59:59.999Z"},
        {"last_task_id": "x"},
        {"last_run_at": 5},
        {"last_run_at": "0000-01-01T00:00:00.000Z"},
    ],
)
def test_a_broken_run_is_poison(fields: dict[str, object]) -> None:
    good = msgspec.json.decode(rules.encode(run()))
    assert rules.decode_run(msgspec.json.encode(good)) == run()
    with pytest.raises(PoisonRecord):
        rules.decode_run(msgspec.json.encode({**good, **fields}))


def test_a_later_layout_is_left_alone() -> None:
    for decode in (rules.decode_definition, rules.decode_run):
        with pytest.raises(NewerLayout):
            decode(b'{"v": 2, "all": "else"}')


def test_seven_days_fit_what_the_archiver_keeps() -> None:
    from buquet.archiver import LEAST_RETENTION_S

    assert timedelta(milliseconds=rules.OLDEST_MS) <= timedelta(seconds=LEAST_RETENTION_S)
