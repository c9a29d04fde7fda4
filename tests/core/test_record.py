"""Records: what is written, what a lease changes, and how long a log may grow."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

NOW = 1_800_000_000_000
TASK_ID = "018bcfe5-6800-7000-9400-0000000000ab"


def make(core: SimpleNamespace, **changes: Any) -> Any:
    fields = {
        "rev": 0,
        "nonce": "n0",
        "id": TASK_ID,
        "task_type": "mail",
        "status": "pending",
        "priority": 5,
        "created_at": "2027-01-15T08:00:00.000Z",
        "available_at": "2027-01-15T08:00:00.000Z",
        "updated_at": "2027-01-15T08:00:00.000Z",
        "timeout_seconds": 30.0,
        "max_retries": 3,
        "first_due": "2027-01-15T08:00:00.000Z",
        "input": msgspec.Raw(b'{"to": "x"}'),
        "log": [core.record.LogEntry(at="2027-01-15T08:00:00.000Z", status="pending")],
    }
    return core.record.Record(**fields | changes)


def claimed(core: SimpleNamespace, record: Any = None, at_ms: int = NOW, lease: str = "lease") -> Any:
    return core.record.claim(
        record or make(core), at_ms=at_ms, lease_id=lease, nonce=f"n-{lease}", worker_id="w", incarnation="i"
    )


def retried(core: SimpleNamespace, record: Any, at_ms: int = NOW, **details: Any) -> Any:
    arguments = {"counts_as_retry": True, "error": "E: x"} | details
    return core.record.to_pending(record, at_ms=at_ms, available_ms=at_ms + 5, nonce="n2", **arguments)


def test_what_is_written_is_read_back(core: SimpleNamespace) -> None:
    for record in (make(core), claimed(core), retried(core, claimed(core))):
        assert core.record.decode(core.record.encode(record)) == record


def test_the_input_is_passed_on_as_it_was_spelled(core: SimpleNamespace) -> None:
    spelled = msgspec.Raw(b'{"n": 1e2, "u": "\\u00e9", "n": 10000000000000000000000}')
    record = claimed(core, make(core, input=spelled))
    body = core.record.encode(core.record.decode(core.record.encode(record)))
    assert bytes(spelled) in body


def test_later_fields_are_passed_over(core: SimpleNamespace) -> None:
    body = json.loads(core.record.encode(make(core))) | {"colour": "blue"}
    assert core.record.decode(json.dumps(body).encode()) == make(core)


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"{}", b'{"v": 1}', b'{"v": 0}', b'"\xff"', b'{"v":"2"}'])
def test_what_is_no_record_is_a_value_error(core: SimpleNamespace, body: bytes) -> None:
    with pytest.raises(ValueError):
        core.record.decode(body)


def test_an_error_names_the_field(core: SimpleNamespace) -> None:
    body = json.loads(core.record.encode(make(core))) | {"max_retries": "3"}
    with pytest.raises(ValueError, match=r"\$\.max_retries"):
        core.record.decode(json.dumps(body).encode())


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_layout_is_told_apart_whatever_it_holds(core: SimpleNamespace, version: int) -> None:
    whole = json.loads(core.record.encode(make(core))) | {"v": version}
    for body in (whole, {"v": version}, {"v": version, "id": 7}):
        with pytest.raises(NotImplementedError, match=f"layout version {version}, this program knows 1"):
            core.record.decode(json.dumps(body).encode())


def test_depth_without_end_is_a_value_error(core: SimpleNamespace) -> None:
    with pytest.raises(ValueError):
        core.record.decode(b'{"v":1,"x":' + b"[" * 100_000)


def test_a_claim_changes_this_and_nothing_else(core: SimpleNamespace) -> None:
    before = make(core, retry_count=1, last_error="E: before")
    after = claimed(core, before, at_ms=NOW + 7)
    assert changes(before, after) == {
        "rev": 1,
        "nonce": "n-lease",
        "status": "running",
        "attempt": 1,
        "updated_at": "2027-01-15T08:00:00.007Z",
        "worker_id": "w",
        "incarnation": "i",
        "lease_id": "lease",
        "lease_expires_at": "2027-01-15T08:00:40.007Z",
    }
    assert core.record.lease_ends_ms(after) == NOW + 40_007
    assert msgspec.structs.asdict(after.log[-1]) == {
        "at": "2027-01-15T08:00:00.007Z",
        "status": "running",
        "attempt": 1,
        "retry_count": 1,
        "available_at": before.available_at,
        "worker_id": "w",
        "lease_id": "lease",
        "error": None,
        "traceback": None,
        "dropped": 0,
    }
    assert before.log == make(core).log, "a record is never changed in place"


def test_a_lease_without_an_end_is_a_value_error(core: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="lease_expires_at"):
        core.record.lease_ends_ms(make(core))


def test_a_record_leaves_running_without_lease_and_owner(core: SimpleNamespace) -> None:
    held = claimed(core)
    terminal = {
        status: core.record.to_terminal(
            held, at_ms=NOW + 9, status=status, nonce="n2", output=b"1", error="E"
        )
        for status in ("completed", "failed")
    }
    for after in (retried(core, held), *terminal.values()):
        assert (after.worker_id, after.incarnation, after.lease_id, after.lease_expires_at) == (None,) * 4
        assert (after.log[-1].worker_id, after.log[-1].lease_id) == ("w", "lease"), "the log remembers"
        assert (after.rev, after.nonce, after.attempt) == (2, "n2", 1)
    assert {after.completed_at for after in terminal.values()} == {"2027-01-15T08:00:00.009Z"}


def test_only_a_counted_return_spends_a_retry(core: SimpleNamespace) -> None:
    held = claimed(core, make(core, last_error="E: old"))
    assert retried(core, held).retry_count == 1
    released = retried(core, held, counts_as_retry=False, error=None)
    assert (released.retry_count, released.last_error) == (0, "E: old")


def test_two_writes_are_never_equal_bytes(core: SimpleNamespace) -> None:
    """Equal bodies have equal ETags, and then an old If-Match would fit a new object."""
    held = claimed(core)
    released = retried(core, held, counts_as_retry=False, error=None)
    bodies = {core.record.encode(record) for record in (make(core), held, released, claimed(core, lease="b"))}
    assert len(bodies) == 4


# --- the log -------------------------------------------------------------------------------


def grown(core: SimpleNamespace, rounds: int, traceback: str | None = None) -> Any:
    record = make(core)
    for number in range(1, rounds + 1):
        record = claimed(core, record, lease=f"l{number}")
        record = retried(core, record, traceback=traceback and f"{number}: {traceback}")
    return record


@pytest.mark.parametrize(
    ("rounds", "length", "dropped"), [(24, 49, 0), (25, 51, 0), (26, 51, 2), (100, 51, 150), (1000, 51, 1950)]
)
def test_the_first_and_the_last_fifty_entries_stay(
    core: SimpleNamespace, rounds: int, length: int, dropped: int
) -> None:
    log = grown(core, rounds).log
    assert len(log) == length
    assert (log[0].status, log[0].attempt) == ("pending", 0)
    assert log[0].dropped == 0
    assert log[1].dropped == dropped
    assert sum(entry.dropped for entry in log) == dropped
    assert len(log) + dropped == 1 + 2 * rounds
    assert [entry.attempt for entry in log[-4:]] == [rounds - 1, rounds - 1, rounds, rounds]


def test_the_last_five_tracebacks_stay(core: SimpleNamespace) -> None:
    traces = [entry.traceback for entry in grown(core, 40, "x").log if entry.traceback is not None]
    assert traces == ["36: x", "37: x", "38: x", "39: x", "40: x"]


def test_a_traceback_keeps_its_end_in_two_kib(core: SimpleNamespace) -> None:
    held = claimed(core)
    for text in ("é" * 5000 + "last line", "a\ud800" * 3000 + "last line", "x" * 2048):
        for record in (
            retried(core, held, traceback=text),
            core.record.to_terminal(held, at_ms=NOW, status="failed", nonce="n", traceback=text),
        ):
            kept = record.log[-1].traceback
            assert 2040 <= len(kept.encode()) <= 2048
            assert kept[-8:] == text[-8:]
            assert core.record.decode(core.record.encode(record)) == record


def test_a_record_stays_small_whatever_happens(core: SimpleNamespace) -> None:
    body = core.record.encode(grown(core, 1000, "x" * 5000))
    assert len(body) < 51 * 300 + 5 * 2100 + 1000


def changes(before: Any, after: Any) -> dict[str, Any]:
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    return {name: new[name] for name in new if new[name] != old[name] and name != "log"}
