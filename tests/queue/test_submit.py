"""submit(): one durable request, and every bad argument named."""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
import math
import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from virtual import World, requests, virtual

from buquet import OutcomeUnknown, RetryPolicy, TaskStatus, Unavailable
from buquet._core import ident
from buquet.errors import BuquetError, InvalidInput, InvalidInputType
from buquet.protocol.keys import Keys
from buquet.testing.clock import START
from buquet.testing.faulty import Busy, Lost, LostReply, scripted

NOW = datetime.fromtimestamp(START, UTC)


@virtual
async def test_a_submission_is_one_request(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("mail", {"to": "x"})
    assert requests(queue).counts == {"put": 1}
    assert world.keys() == [queue.keys.marker_key(queue.keys.first_marker(task.id))]
    assert await queue.get(task.id) == task


@virtual
async def test_a_task_says_what_was_asked_for(world: World) -> None:
    policy = RetryPolicy(initial_interval_ms=5)
    task = await world.queue().submit("mail", [1, None], 2.5, 7, policy, NOW + timedelta(hours=1), priority=0)
    assert (task.task_type, task.input, task.output, task.status) == ("mail", [1, None], None, "pending")
    assert (task.timeout_seconds, task.max_retries, task.retry_policy, task.priority) == (2.5, 7, policy, 0)
    assert (task.retry_count, task.attempt, task.worker_id, task.last_error) == (0, 0, None, None)
    assert task.status is TaskStatus.Pending
    assert (task.created_at, task.available_at) == (NOW, NOW + timedelta(hours=1))
    assert ident.due_ms(task.id) == (START + 3600) * 1000
    assert ident.priority(task.id) == 0


@virtual
async def test_the_defaults_are_the_published_ones(world: World) -> None:
    task = await world.queue().submit("mail", {})
    assert (task.timeout_seconds, task.max_retries, task.retry_policy, task.priority) == (
        300,
        3,
        RetryPolicy(),
        5,
    )
    assert task.available_at == task.created_at == NOW


@virtual
async def test_keys_stand_under_the_prefix(world: World) -> None:
    await world.queue(Keys("team/")).submit("mail", {})
    assert world.keys()[0].startswith("team/ready/")


@virtual
async def test_ids_are_new_and_sort_by_due_time(world: World) -> None:
    queue = world.queue()
    ids = []
    for _ in range(50):
        ids.append((await queue.submit("mail", {})).id)
        await world.clock.sleep(0.002)
    assert ids == sorted(ids)
    same_moment = {(await queue.submit("mail", {})).id for _ in range(1000)}
    assert len(same_moment) == 1000


# --- schedule_at ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule_at", "available_at"),
    [
        (NOW + timedelta(days=400), NOW + timedelta(days=400)),
        (NOW.astimezone(timezone(timedelta(hours=9))) + timedelta(hours=1), NOW + timedelta(hours=1)),
        (NOW - timedelta(days=1), NOW),
        (datetime(1970, 1, 1, tzinfo=UTC), NOW),
        (datetime(1, 1, 1, tzinfo=UTC), NOW),
        (NOW + timedelta(milliseconds=1), NOW + timedelta(milliseconds=1)),
        (NOW + timedelta(microseconds=1), NOW + timedelta(milliseconds=1)),
        *(
            (NOW + timedelta(milliseconds=odd), NOW + timedelta(milliseconds=odd))
            for odd in (123, 257, 1001, 4099)
        ),
    ],
)
@virtual
async def test_schedule_at_is_exact_and_never_early(
    world: World, schedule_at: datetime, available_at: datetime
) -> None:
    task = await world.queue().submit("mail", {}, schedule_at=schedule_at)
    assert task.available_at == available_at


@virtual
async def test_a_naive_schedule_at_is_local_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        task = await world.queue().submit("mail", {}, schedule_at=datetime(2027, 2, 1, 9))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert task.available_at == datetime(2027, 2, 1, 14, tzinfo=UTC)


# --- bad arguments -------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Order:
    price: Decimal
    sizes: tuple[int, ...]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@virtual
async def test_python_values_become_json(world: World) -> None:
    task = await world.queue().submit(
        "mail",
        {
            "at": datetime(2027, 1, 1, 9, tzinfo=UTC),
            "day": date(2027, 1, 1),
            "id": UUID(int=1),
            "colour": Colour.RED,
            "order": Order(Decimal("1.50"), (1, 2)),
            "big": [2**64 - 1, -(2**63)],
        },
    )
    assert task.input == {
        "at": "2027-01-01T09:00:00Z",
        "day": "2027-01-01",
        "id": "00000000-0000-0000-0000-000000000001",
        "colour": "red",
        "order": {"price": "1.50", "sizes": [1, 2]},
        "big": [2**64 - 1, -(2**63)],
    }


WRONG_VALUE: list[tuple[dict[str, Any], str]] = [
    ({"input": {"a": [math.nan]}}, r"input\.a\[0\] is nan"),
    ({"input": -math.inf}, "input is -inf"),
    ({"input": {"s": "\ud800"}}, r"input\.s has a lone surrogate"),
    ({"input": {"\ud800": 1}}, "lone surrogate"),
    ({"input": [2**64]}, r"input\[0\] is an integer beyond 64 bits"),
    ({"input": nested(101)}, "nested deeper than 100 levels"),
    ({"input": "x" * (1 << 20)}, r"input is 1,048,578 bytes of JSON, the limit is 1,048,576"),
    ({"task_type": ""}, "task_type must have 1 to 200 characters"),
    ({"task_type": " "}, "task_type must have 1 to 200"),
    ({"task_type": "x" * 201}, "task_type must have 1 to 200 characters, not 201"),
    ({"task_type": "a\nb"}, "task_type must be printable"),
    ({"task_type": "\ud800"}, "task_type must be printable"),
    ({"timeout_seconds": 0}, "timeout_seconds must be between"),
    ({"timeout_seconds": -1}, "timeout_seconds must be between"),
    ({"timeout_seconds": math.inf}, "timeout_seconds must be between"),
    ({"timeout_seconds": math.nan}, "timeout_seconds must be between"),
    ({"timeout_seconds": 10**400}, "timeout_seconds must be between"),
    ({"timeout_seconds": 31 * 86400}, "timeout_seconds must be between"),
    ({"max_retries": -1}, "max_retries must be between 0"),
    ({"max_retries": 10**9}, "max_retries must be between 0"),
    ({"priority": -1}, "priority must be between 0 and 9"),
    ({"priority": 10}, "priority must be between 0 and 9"),
    ({"schedule_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "schedule_at"),
]

WRONG_TYPE: list[tuple[dict[str, Any], str]] = [
    ({"input": {"a": b"x"}}, r"input\.a is bytes"),
    ({"input": {1: "x"}}, "input has the key 1 of type int"),
    ({"input": {"a": {"b": {1, 2}}}}, r"input\.a\.b is set"),
    ({"input": object()}, "input is object"),
    ({"task_type": None}, "task_type must be a string, not NoneType"),
    ({"task_type": b"mail"}, "task_type must be a string, not bytes"),
    ({"timeout_seconds": "5"}, "timeout_seconds must be a number, not str"),
    ({"timeout_seconds": True}, "timeout_seconds must be a number, not bool"),
    ({"timeout_seconds": None}, "timeout_seconds must be a number, not NoneType"),
    ({"max_retries": 1.0}, "max_retries must be an integer, not float"),
    ({"max_retries": True}, "max_retries must be an integer, not bool"),
    ({"priority": "5"}, "priority must be an integer, not str"),
    ({"retry_policy": {"multiplier": 2}}, "retry_policy must be a RetryPolicy, not dict"),
    ({"schedule_at": "2027-01-01"}, "schedule_at must be a datetime, not str"),
    ({"schedule_at": date(2027, 1, 1)}, "schedule_at must be a datetime, not date"),
    ({"schedule_at": 1_800_000_000}, "schedule_at must be a datetime, not int"),
]


@pytest.mark.parametrize(
    ("arguments", "message", "kind"),
    [(*case, InvalidInput) for case in WRONG_VALUE] + [(*case, InvalidInputType) for case in WRONG_TYPE],
)
@virtual
async def test_a_bad_argument_is_named_and_nothing_stored(
    world: World, arguments: dict[str, Any], message: str, kind: type[BuquetError]
) -> None:
    queue = world.queue()
    with pytest.raises(kind, match=message) as caught:
        await queue.submit(**({"task_type": "mail", "input": {}} | arguments))
    assert isinstance(caught.value, ValueError if kind is InvalidInput else TypeError)
    assert requests(queue).total == 0


class Seconds(float):
    """As `numpy.float64` is one."""


class Kind(str):
    __slots__ = ()


@virtual
async def test_numbers_and_text_of_derived_types_are_stored_as_what_they_are(world: World) -> None:
    queue = world.queue()
    policy = RetryPolicy(multiplier=Seconds(1.5))
    task = await queue.submit(Kind("mail"), {}, Seconds(2.5), retry_policy=policy)
    stored = await queue.get(task.id)
    assert stored is not None
    assert (stored.task_type, stored.timeout_seconds, stored.retry_policy.multiplier) == ("mail", 2.5, 1.5)
    assert (type(stored.task_type), type(stored.timeout_seconds)) == (str, float)


@virtual
async def test_the_limits_are_the_ones_that_are_told(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("x" * 200, "x" * ((1 << 20) - 2))
    assert await queue.get(task.id) == task
    assert (await queue.submit("mail", nested(100), 0.001, 0)).input == nested(100)
    assert (await queue.submit("ünï-cødé 日本", None, 30 * 86400, 10_000)).input is None


@virtual
async def test_the_size_limit_can_be_raised_and_lowered(world: World) -> None:
    await world.queue(max_payload_bytes=2 << 20).submit("mail", "x" * (1 << 20))
    with pytest.raises(InvalidInput, match="the limit is 10"):
        await world.queue(max_payload_bytes=10).submit("mail", "x" * 9)


@virtual
async def test_a_size_counts_bytes_not_characters(world: World) -> None:
    with pytest.raises(InvalidInput, match="input is 32 bytes"):
        await world.queue(max_payload_bytes=30).submit("mail", "é" * 15)


# --- a store that misbehaves ---------------------------------------------------------------


@pytest.mark.parametrize("fault", [Lost(), LostReply(), Busy()])
@virtual
async def test_a_submission_is_sent_again_until_it_stands(world: World, fault: Any) -> None:
    queue = world.queue(plan=scripted([fault, fault]))
    task = await queue.submit("mail", {})
    assert len(world.keys()) == 1, "one task, however often it was sent"
    assert await queue.get(task.id) == task


@pytest.mark.parametrize(("fault", "stored"), [(Lost(), False), (LostReply(), True)])
@virtual
async def test_an_unknown_outcome_names_the_task(world: World, fault: Any, stored: bool) -> None:
    queue = world.queue(plan=lambda kind, _key: fault if kind == "put" else None)
    with pytest.raises(OutcomeUnknown) as caught:
        await queue.submit("mail", {"to": "x"})
    assert caught.value.task_id is not None
    task = await queue.get(caught.value.task_id)
    assert (task is not None) == stored
    if task is not None:
        assert task.input == {"to": "x"}


@virtual
async def test_a_store_that_refuses_all_is_unavailable(world: World) -> None:
    queue = world.queue(plan=lambda _kind, _key: Busy())
    with pytest.raises(Unavailable, match="check that it is up"):
        await queue.submit("mail", {})
    assert world.keys() == []


@virtual
async def test_no_input_reaches_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await world.queue(plan=scripted([Lost()])).submit("mail", {"password": "hunter2"})
    assert "hunter2" not in caplog.text


@virtual
async def test_a_person_can_read_the_record(world: World) -> None:
    await world.queue().submit("mail", {"to": "é"})
    body = json.loads(world.bucket.get(world.keys()[0]).body)
    assert body["input"] == {"to": "é"}
    assert body["status"] == "pending"
    assert body["created_at"] == "2027-01-15T08:00:00.000Z"
