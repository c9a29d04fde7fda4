"""The protocol's decisions: every status against every marker, and what an attempt comes to."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import DUE, NOW, TASK_ID, outcome, pending, running

from buquet import RetryPolicy
from buquet._core import ident
from buquet._core.record import Record, claim, encode
from buquet._core.rfc3339 import format_ms, parse_ms
from buquet.errors import NewerLayout, PoisonRecord
from buquet.protocol.keys import MAX_ATTEMPT, Keys, Marker
from buquet.protocol.task import TaskStatus, history_of, task_of
from buquet.protocol.transitions import (
    Cancelled,
    Claimable,
    Deletable,
    LeaseLost,
    Leave,
    Merge,
    Void,
    Won,
    bears_nonce,
    cancelled,
    decode,
    holds_lease,
    judge,
    judge_refused,
    next_marker,
    next_moment_ms,
    retry_delay_ms,
    settled,
    shortened,
    taken_back,
)

KEYS = Keys()


# --- what a submission writes --------------------------------------------------------------


def test_a_new_record_says_all_there_is_to_say() -> None:
    assert json.loads(encode(pending())) == {
        "v": 1,
        "rev": 0,
        "nonce": "n0",
        "id": TASK_ID,
        "task_type": "mail",
        "status": "pending",
        "priority": 5,
        "created_at": "2027-01-15T07:59:59.990Z",
        "available_at": "2027-01-15T08:00:00.000Z",
        "updated_at": "2027-01-15T07:59:59.990Z",
        "completed_at": None,
        "timeout_seconds": 30,
        "max_retries": 3,
        "retry_policy": {
            "initial_interval_ms": 1000,
            "max_interval_ms": 60000,
            "multiplier": 2.0,
            "jitter_percent": 0.25,
        },
        "retry_count": 0,
        "attempt": 0,
        "first_due": "2027-01-15T08:00:00.000Z",
        "worker_id": None,
        "incarnation": None,
        "lease_id": None,
        "lease_expires_at": None,
        "cancel_requested_at": None,
        "requeue_of": None,
        "requeued_as": None,
        "deletion_marked_at": None,
        "last_error": None,
        "output": None,
        "log": [
            {
                "at": "2027-01-15T07:59:59.990Z",
                "status": "pending",
                "available_at": "2027-01-15T08:00:00.000Z",
            }
        ],
        "input": {"to": "x"},
    }


def test_a_new_record_is_what_its_first_marker_says() -> None:
    assert KEYS.marker_of(pending()) == KEYS.first_marker(TASK_ID) == next_marker(KEYS, pending())


# --- rules 1, 8, 9, 14: a marker and a ledger ------------------------------------------------

CLAIMED_BY = Marker(KEYS.shard(TASK_ID), 5, DUE, TASK_ID, 0)
OLDER = Marker(KEYS.shard(TASK_ID), 5, DUE - 1, TASK_ID, 0)
COMING = Marker(KEYS.shard(TASK_ID), 5, NOW + 1, TASK_ID, 1)
LEASE_END = NOW + 30_000 + 10_000

waiting = pending(attempt=1, available_at=format_ms(NOW + 1))
"""Pending again, after one attempt: `COMING` is its marker."""

TABLE = [
    (CLAIMED_BY, pending(), Claimable()),
    (CLAIMED_BY, pending(cancel_requested_at=format_ms(NOW)), Cancelled()),
    (CLAIMED_BY, pending(task_type="other"), Leave()),
    # A task nobody here handles is failed all the same when it was cancelled.
    (CLAIMED_BY, pending(task_type="other", cancel_requested_at=format_ms(NOW)), Cancelled()),
    (OLDER, pending(), Deletable()),
    (CLAIMED_BY, waiting, Deletable()),
    (COMING, waiting, Claimable()),
    (COMING, pending(), Leave(until_ms=NOW)),
    (Marker("0", 5, NOW, TASK_ID, 1), waiting, Deletable()),
    *((marker, running(), Leave(until_ms=LEASE_END + 5_000)) for marker in (CLAIMED_BY, OLDER)),
    *(
        (marker, running(status=status), Deletable())
        for status in ("completed", "failed", "archived")
        for marker in (CLAIMED_BY, OLDER, COMING)
    ),
]


@pytest.mark.parametrize(("marker", "ledger", "expected"), TABLE)
def test_what_may_be_done_about_a_marker(marker: Marker, ledger: Record, expected: object) -> None:
    assert judge(marker, ledger, now_ms=NOW, handles={"mail"}) == expected


def test_the_marker_of_a_retry_that_is_being_written_is_looked_at_again_soon() -> None:
    """Its owner writes the marker first, and the ledger a moment later."""
    found = judge(COMING, running(), now_ms=NOW, handles={"mail"})
    assert found == Leave(until_ms=NOW)


@pytest.mark.parametrize("marker", [CLAIMED_BY, OLDER, COMING])
def test_a_lease_is_void_five_seconds_after_its_end(marker: Marker) -> None:
    last = LEASE_END + 5_000
    assert isinstance(judge(marker, running(), now_ms=last, handles=()), Leave)
    assert judge(marker, running(), now_ms=last + 1, handles=()) == Void()


def test_every_status_has_a_judgement() -> None:
    for status, marker in itertools.product(TaskStatus, (CLAIMED_BY, OLDER, COMING)):
        assert judge(marker, running(status=status.value), now_ms=NOW, handles=()) is not None


# --- rules 9, 15, 18: the end of an attempt --------------------------------------------------


def test_a_completion() -> None:
    done = settled(running(), outcome("completed", output=b'{"ok":true}'))
    assert (done.status, bytes(done.output), done.last_error) == ("completed", b'{"ok":true}', None)
    assert done.completed_at == done.updated_at == format_ms(NOW + 5_000)
    assert (done.retry_count, done.attempt, done.rev, done.nonce) == (0, 1, 2, "n2")
    assert next_marker(KEYS, done) is None
    no_lease(done)


def test_a_failure_for_good_keeps_what_retries_are_left() -> None:
    failed = settled(running(), outcome("failed", error="PermanentError: no", traceback="trace"))
    assert (failed.status, failed.retry_count, failed.last_error) == ("failed", 0, "PermanentError: no")
    assert failed.log[-1].traceback == "trace"
    assert failed.output == msgspec.Raw(b"null")
    no_lease(failed)


def test_a_retry_waits_its_delay_under_a_new_marker() -> None:
    again = settled(running(), outcome(error="ValueError: x", delay_ms=750))
    assert (again.status, again.retry_count, again.attempt) == ("pending", 1, 1)
    assert parse_ms(again.available_at) == NOW + 5_750
    assert next_marker(KEYS, again) == Marker(KEYS.shard(TASK_ID), 5, NOW + 5_750, TASK_ID, 1)
    assert again.completed_at is None
    no_lease(again)


def test_three_retries_are_four_runs() -> None:
    record, runs = pending(), 0
    while record.status == "pending":
        runs += 1
        record = settled(
            claim(record, at_ms=NOW, lease_id="l", nonce="n", worker_id="w", incarnation="i"),
            outcome(error="ValueError: x"),
        )
    assert (record.status, runs, record.retry_count, record.attempt) == ("failed", 4, 3, 4)
    assert record.last_error == "ValueError: x"


def test_a_release_spends_no_retry_and_no_error() -> None:
    last_chance = running(retry_count=3, last_error="ValueError: before")
    released = settled(last_chance, outcome(counts_as_retry=False))
    assert (released.status, released.retry_count, released.attempt) == ("pending", 3, 1)
    assert released.last_error == "ValueError: before"
    assert parse_ms(released.available_at) == NOW + 5_000
    no_lease(released)


def test_a_take_back_is_due_at_once_names_the_worker_and_spends_a_retry() -> None:
    lost = taken_back(running(), at_ms=NOW + 50_000, nonce="n3")
    assert (lost.status, lost.retry_count, lost.attempt, lost.nonce) == ("pending", 1, 1, "n3")
    assert lost.available_at == running().updated_at
    assert lost.last_error == "WorkerLost: worker w was lost while it ran attempt 1"
    no_lease(lost)


def test_a_take_back_without_retries_left_fails() -> None:
    failed = taken_back(running(retry_count=3), at_ms=NOW + 50_000, nonce="n3")
    assert (failed.status, failed.retry_count) == ("failed", 3)
    assert failed.last_error is not None
    assert "worker w was lost" in failed.last_error
    assert next_marker(KEYS, failed) is None
    no_lease(failed)


CANCEL = {"cancel_requested_at": format_ms(NOW + 1)}


@pytest.mark.parametrize("counts", [True, False])
def test_a_cancelled_task_does_not_go_on(counts: bool) -> None:
    failed = settled(running(**CANCEL), outcome(error="E: x" if counts else None, counts_as_retry=counts))
    assert failed.status == "failed"
    assert failed.last_error == ("E: x" if counts else "Cancelled: cancellation was requested")
    assert taken_back(running(**CANCEL), at_ms=NOW, nonce="n").status == "failed"


def test_a_cancelled_task_that_was_completed_is_completed() -> None:
    assert settled(running(**CANCEL), outcome("completed", output=b"1")).status == "completed"


def test_a_cancelled_pending_task_fails() -> None:
    failed = cancelled(pending(**CANCEL), at_ms=NOW, nonce="n3")
    assert (failed.status, failed.last_error) == ("failed", "Cancelled: cancellation was requested")
    assert failed.completed_at == format_ms(NOW)


def test_attempts_end_where_their_four_digits_do() -> None:
    failed = settled(running(attempt=MAX_ATTEMPT), outcome(counts_as_retry=False))
    assert failed.status == "failed"
    assert failed.last_error is not None
    assert "after 65535 attempts" in failed.last_error
    assert settled(running(attempt=MAX_ATTEMPT - 1), outcome(counts_as_retry=False)).status == "pending"


def test_the_delay_is_the_policy_s() -> None:
    record = running(retry_count=2, retry_policy=RetryPolicy(initial_interval_ms=10).to_fields())
    assert retry_delay_ms(record, 0.5) == 40


def no_lease(record: Record) -> None:
    """Every exit from running clears lease and owner (rule 15)."""
    assert (record.worker_id, record.incarnation, record.lease_id, record.lease_expires_at) == (None,) * 4


@pytest.mark.parametrize(
    ("now_ms", "expected_ms"),
    [(NOW + 1, NOW + 1), (NOW, NOW), (NOW - 1, NOW), (NOW - 2000, NOW), (NOW - 2001, NOW - 2001)],
)
def test_times_do_not_go_back_by_a_clock_s_error_but_follow_its_jumps(now_ms: int, expected_ms: int) -> None:
    assert next_moment_ms(running(), now_ms) == expected_ms
    assert next_moment_ms(pending(available_at=format_ms(NOW)), now_ms) == expected_ms


# --- rule 15: a completion that was refused --------------------------------------------------


def archived(status: str) -> Record:
    return msgspec.structs.replace(settled(running(), outcome(status)), status="archived")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, LeaseLost()),
        (running(nonce="mine"), Won()),
        (pending(nonce="mine"), Won()),
        (running(), Merge()),
        (running(**CANCEL), Merge()),
        (running(lease_id="another"), LeaseLost()),
        (pending(lease_id="lease"), LeaseLost()),
        (running(status="completed"), LeaseLost()),
        (running(status="failed"), LeaseLost()),
        (archived("completed"), Won()),
        (archived("failed"), Won()),
        (archived("pending"), LeaseLost()),
        (running(status="archived"), LeaseLost()),
    ],
)
def test_what_a_refusal_means(found: Record | None, expected: object) -> None:
    assert judge_refused(found, lease_id="lease", nonce="mine") == expected


def test_own_writes_are_known_by_lease_and_nonce() -> None:
    body = encode(running())
    assert holds_lease("lease")(body)
    assert not holds_lease("n1")(body)
    assert bears_nonce("n1")(body)
    assert not bears_nonce("lease")(body)
    for junk in (b"", b"{}", b'{"v": 9}', b"\xff"):
        assert not holds_lease("lease")(junk)
        assert not bears_nonce("n1")(junk)


def test_a_long_or_odd_error_is_made_to_fit() -> None:
    assert shortened("é" * 2_000) == "é" * 2_000
    assert shortened("é" * 2_001) == "é" * 1_999 + "…"
    assert shortened("a\ud800b") == "a\\ud800b"


# --- reading what others wrote ---------------------------------------------------------------


def stored(**fields: Any) -> bytes:
    return json.dumps(json.loads(encode(running())) | fields).encode()


def test_what_was_written_is_read() -> None:
    assert decode(encode(running()), task_id=TASK_ID) == running(timeout_seconds=30.0)


def test_a_newer_layout_is_left_alone() -> None:
    with pytest.raises(NewerLayout, match=f"task {TASK_ID}: layout version 2.*; upgrade this program"):
        decode(b'{"v": 2}', task_id=TASK_ID)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b'{"v": 1}',
        stored(v=0),
        stored(status="done"),
        stored(status=None),
        stored(lease_expires_at=None),
        stored(lease_expires_at="soon"),
        stored(available_at="2027-01-15"),
        stored(updated_at=""),
        stored(created_at="x"),
        stored(updated_at="1969-12-31T23:59:59.999Z"),
        stored(available_at="0001-01-01T00:00:00.000Z"),
        stored(lease_expires_at="1969-12-31T23:59:59.999Z"),
        stored(created_at="9999-12-31T23:59:59.999-01:00"),
        stored(priority=10),
        stored(priority=-1),
        stored(attempt=-1),
        stored(attempt=MAX_ATTEMPT + 1),
        stored(retry_count=-1),
        stored(timeout_seconds=-1),
        stored(timeout_seconds=1e300),
        stored(max_retries=-1),
        stored(rev=2**63),
    ],
)
def test_a_record_that_makes_no_sense_is_poison(body: bytes) -> None:
    with pytest.raises(PoisonRecord, match=f"^task {TASK_ID}: "):
        decode(body, task_id=TASK_ID)


def test_a_record_about_another_task_is_poison() -> None:
    with pytest.raises(PoisonRecord, match="the record is about"):
        decode(encode(running()), task_id=ident.mint(DUE, 5, 1))


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["", "x", "pending", "running", "failed", "9999-12-31T23:59:59.999Z", "0001-01-01T00:00:00.000Z"]
    ),
    st.lists(st.integers()),
    st.dictionaries(st.sampled_from(["multiplier", "x"]), st.integers(-1, 1)),
)


@given(
    changes=st.dictionaries(st.sampled_from(sorted(json.loads(encode(running())))), odd, max_size=3),
    status=st.sampled_from(["pending", "running", "completed"]),
)
def test_no_record_raises_anything_but_poison(changes: dict[str, Any], status: str) -> None:
    """Whatever a record holds, a worker and a reader either understand it or leave it alone."""
    body = json.dumps(json.loads(encode(running())) | {"status": status, "id": TASK_ID} | changes).encode()
    try:
        record = decode(body, task_id=TASK_ID)
    except (PoisonRecord, NewerLayout):
        return
    with contextlib.suppress(PoisonRecord):
        task_of(record)
        history_of(record)
    match judge(COMING, record, now_ms=NOW, handles={record.task_type}):
        case Claimable():
            held = claim(record, at_ms=NOW, lease_id="l", nonce="n", worker_id="w", incarnation="i")
            for status_after in ("pending", "completed", "failed"):
                decode(encode(settled(held, outcome(status_after))), task_id=TASK_ID)
        case Void():
            decode(encode(taken_back(record, at_ms=NOW, nonce="n")), task_id=TASK_ID)
        case Cancelled():
            decode(encode(cancelled(record, at_ms=NOW, nonce="n")), task_id=TASK_ID)
