"""What of a user's value is written, how, and what is refused with which words."""

import dataclasses
import enum
import json
import re
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from time import tzset
from types import SimpleNamespace
from typing import ClassVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st


@dataclasses.dataclass
class Item:
    kind: ClassVar[str] = "item"
    price: object
    tags: tuple[str, ...] = ()


@dataclasses.dataclass
class Box:
    inner: object


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Whole(int):
    def __int__(self) -> int:
        return -1


class Real(float):
    def __float__(self) -> float:
        return -1.0


class Colour(enum.Enum):
    RED = ("r", 1)


class Level(enum.IntEnum):
    HIGH = 3


class Status(enum.StrEnum):
    DONE = "done"


Point = namedtuple("Point", "x y")

ACCEPTED = {
    "text": ("é🙂\0", "é🙂\0"),
    "none": (None, None),
    "true": (True, True),
    "smallest int": (-(2**63), -(2**63)),
    "largest int": (2**64 - 1, 2**64 - 1),
    "float": (1e308, 1e308),
    "tuple": ((1, (2,)), [1, [2]]),
    "empty": ([{}, [], ()], [{}, [], []]),
    "ordered dict": (OrderedDict(b=1, a=(2,)), {"b": 1, "a": [2]}),
    "named tuple": (Point(1, 2), [1, 2]),
    "str subclass": (Text("x"), "x"),
    "int subclass": (Whole(7), 7),
    "float subclass": (Real(0.5), 0.5),
    "enum": (Colour.RED, ["r", 1]),
    "int enum": (Level.HIGH, 3),
    "str enum": (Status.DONE, "done"),
    "dataclass": (Item(Decimal("1.50"), ("a",)), {"price": "1.50", "tags": ["a"]}),
    "decimal": (Decimal("-1E+3"), "-1E+3"),
    "uuid": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "date": (date(2026, 1, 28), "2026-01-28"),
    "utc": (datetime(2026, 1, 28, 9, tzinfo=UTC), "2026-01-28T09:00:00Z"),
    "offset": (
        datetime(2026, 1, 28, 9, 0, 0, 5, timezone(timedelta(hours=1))),
        "2026-01-28T08:00:00.000005Z",
    ),
    # An offset with seconds, which RFC 3339 could not write.
    "old local time": (
        datetime(1880, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32))),
        "1879-12-31T23:40:28Z",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(core: SimpleNamespace, name: str) -> None:
    value, expected = ACCEPTED[name]
    written = core.value.plain({"field": value})
    assert written == {"field": expected}
    assert type(written["field"]) is type(expected)
    assert core.value.plain(value) == expected


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    tzset()
    yield
    monkeypatch.undo()
    tzset()


@pytest.mark.usefixtures("in_new_york")
def test_a_naive_datetime_is_local_time(core: SimpleNamespace) -> None:
    assert core.value.plain(datetime(2026, 1, 28, 9)) == "2026-01-28T14:00:00Z"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(value=JSON)
def test_json_is_copied_as_it_is(core: SimpleNamespace, value: object) -> None:
    copied = core.value.plain(value)
    assert copied == value
    assert json.dumps(copied) == json.dumps(value)


def test_the_callers_value_stays_untouched(core: SimpleNamespace) -> None:
    value = {"items": [{"size": (1, 2), "item": Item(1)}], "at": date(2026, 1, 28)}
    before = deepcopy(value)
    copied = core.value.plain(value)
    copied["items"][0]["size"].append(3)
    copied["items"].append(4)
    assert value == before


WRONG_TYPE = {
    "bytes": ([b"x"], "input[0] is bytes, which JSON cannot hold: write it as text, for instance in base64"),
    "set": ({"a": {1}}, "input.a is set, which JSON cannot hold: make it a list"),
    "frozenset": (frozenset(), "input is frozenset, which JSON cannot hold: make it a list"),
    "object": (
        {"items": [0, 1, 2, {"price": Fraction(1, 3)}]},
        "input.items[3].price is Fraction, which JSON cannot hold: write it as text or as a dict",
    ),
    "class": (Item, "input is type, which JSON cannot hold"),
    "time": (time(9), "input is time, which JSON cannot hold"),
    "timedelta": (timedelta(1), "input is timedelta, which JSON cannot hold"),
    "complex": (1j, "input is complex, which JSON cannot hold"),
    "generator": ((x for x in ()), "input is generator, which JSON cannot hold"),
    "in a dataclass": ({"a b": Item(b"")}, "input['a b'].price is bytes"),
    "in an enum's value": ([enum.Enum("Odd", {"A": b""}).A], "input[0] is bytes"),
    "int key": ({"a": {1: 2}}, "input.a has the key 1 of type int: the keys of a JSON object are str"),
    "None key": ({None: 2}, "input has the key None of type NoneType"),
    "enum key": ({Status.DONE: 2}, "input has the key <Status.DONE: 'done'> of type Status"),
}


@pytest.mark.parametrize("name", WRONG_TYPE)
def test_wrong_type(core: SimpleNamespace, name: str) -> None:
    value, message = WRONG_TYPE[name]
    with pytest.raises(TypeError, match="^" + re.escape(message)):
        core.value.plain(value)


WRONG_VALUE = {
    "nan": ({"a": float("nan")}, "input.a is nan, which JSON cannot hold: use None or text"),
    "inf": ([float("inf")], "input[0] is inf"),
    "-inf": (Real("-inf"), "input is -inf"),
    "decimal nan": (Decimal("NaN"), "input is NaN, which is no number: use None or text"),
    "decimal inf": (Decimal("-Infinity"), "input is -Infinity, which is no number"),
    "too large": ({"n": 2**64}, "input.n is an integer beyond 64 bits: write it as text"),
    "too small": ({"n": -(2**63) - 1}, "input.n is an integer beyond 64 bits"),
    "longer than Python prints": ({"n": 10**5000}, "input.n is an integer beyond 64 bits"),
    "surrogate": (["a\ud800"], "input[0] has a lone surrogate in its text"),
    "surrogate key": ({"a\ud800": 1}, "input['a\\ud800'] has a lone surrogate in its text"),
    "too early": (
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        "input is 0001-01-01 00:00:00+01:00",
    ),
}


@pytest.mark.parametrize("name", WRONG_VALUE)
def test_wrong_value(core: SimpleNamespace, name: str) -> None:
    value, message = WRONG_VALUE[name]
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        core.value.plain(value)


def nested(levels: int, wrap: object) -> object:
    value: object = "core"
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, Box])
def test_nesting(core: SimpleNamespace, wrap: object) -> None:
    core.value.plain(nested(100, wrap))
    core.value.plain(nested(3, wrap), max_depth=3)
    with pytest.raises(ValueError, match="is nested deeper than 100 levels, or contains itself"):
        core.value.plain(nested(101, wrap))
    with pytest.raises(ValueError, match="is nested deeper than 3 levels"):
        core.value.plain(nested(4, wrap), max_depth=3)


def test_a_circle(core: SimpleNamespace) -> None:
    circle: dict[str, object] = {}
    circle["self"] = [circle]
    with pytest.raises(ValueError, match=r"^input\.self\[0\]\.self.{1,140} is nested deeper than 100 levels"):
        core.value.plain(circle)


def test_where_names_the_value(core: SimpleNamespace) -> None:
    with pytest.raises(TypeError, match=r"^output\[1\] is bytes"):
        core.value.plain([0, b""], where="output")
