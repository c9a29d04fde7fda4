"""What of a user's value JSON can hold, and how the rest is written.

| a value of type | is written as |
|---|---|
| dict (keys: exactly str), list, str, bool, int of 64 bits, finite float, None | itself |
| tuple | array |
| datetime | RFC 3339 text in UTC; without a time zone it is local time, as Python reads it |
| date | `2026-01-28` |
| UUID | its text |
| Decimal, if finite | its text, so that no digit is lost |
| Enum | its value |
| dataclass instance | an object of its fields |

Subclasses count as what they derive from. Anything else raises `TypeError`, and a value that a
type's rule excludes `ValueError`; the message names the path of the field and the cure.

Example::

    plain({"at": datetime(2026, 1, 28, 9, tzinfo=UTC), "size": (3, 4)})
    # {"at": "2026-01-28T09:00:00Z", "size": [3, 4]}
    plain({"items": [b"x"]})
    # TypeError: input.items[0] is bytes, which JSON cannot hold: ...
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    Trail = tuple["Trail | None", str | int]

_INT_MIN = -(1 << 63)
_INT_MAX = (1 << 64) - 1
_PATH_CHARS = 120
"""Longer paths are cut in the middle."""


def plain(value: object, *, max_depth: int = 100, where: str = "input") -> object:
    """Return a copy of a value that consists of plain JSON types only.

    Parameters
    ----------
    value:
        The value; it is not changed.
    max_depth:
        How many levels of objects and arrays may stand in each other.
    where:
        What messages call the value.

    Raises
    ------
    TypeError
        A part is of a type that JSON cannot hold.
    ValueError
        A part is NaN or infinite, an integer beyond 64 bits, text with a lone surrogate, or
        nested too deeply (as a value that contains itself is).
    """
    return _convert(value, max_depth, None, where)


# Where a value stands is passed on as the trail of the container around it, which is
# (its own container's trail, its own key), and the value's key in it. Only errors read it.


def _convert(value: Any, room: int, trail: Trail | None, key: str | int) -> object:
    """Convert what is of exactly a JSON type; `room` says how many levels may follow."""
    kind = type(value)
    if kind is str:
        return _text(value, trail, key)
    if value is None or kind is bool:
        return value
    if kind is int:
        return _integer(value, trail, key)
    if kind is float:
        return _number(value, trail, key)
    if kind is dict:
        return _object(value, room, trail, key)
    if kind is list or kind is tuple:
        return _array(value, room, trail, key)
    return _convert_other(value, room, trail, key)


def _convert_other(value: Any, room: int, trail: Trail | None, key: str | int) -> object:
    """Convert subclasses of JSON types, and the further types that are accepted."""
    if isinstance(value, Enum):
        return _convert(value.value, room, trail, key)
    if isinstance(value, (str, int, float)):
        return _convert(_base(value), room, trail, key)
    if isinstance(value, dict):
        return _object(value, room, trail, key)
    if isinstance(value, (list, tuple)):
        return _array(value, room, trail, key)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _object(fields, room, trail, key)
    return _as_text(value, trail, key)


def _base(value: str | float) -> str | float:
    """Return the value as exactly str, int or float, whatever its class makes of `__str__`."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value)


def _as_text(value: object, trail: Trail | None, key: str | int) -> str:
    if isinstance(value, datetime):
        return _moment(value, trail, key)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        return _decimal(value, trail, key)
    raise _bad_type(value, trail, key)


def _object(value: Any, room: int, trail: Trail | None, key: str | int) -> dict[str, object]:
    if room <= 0:
        raise _too_deep(trail, key)
    here = (trail, key)
    converted = {}
    for name, item in value.items():
        if type(name) is not str:
            raise TypeError(
                f"{_path(trail, key)} has the key {repr(name)[:40]} of type {type(name).__name__}: "
                "the keys of a JSON object are str, so convert it"
            )
        converted[_text(name, here, name)] = _convert(item, room - 1, here, name)
    return converted


def _array(value: Any, room: int, trail: Trail | None, key: str | int) -> list[object]:
    if room <= 0:
        raise _too_deep(trail, key)
    here = (trail, key)
    converted = []
    for index, item in enumerate(value):
        converted.append(_convert(item, room - 1, here, index))
    return converted


def _text(value: str, trail: Trail | None, key: str | int) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{_path(trail, key)} has a lone surrogate in its text, which UTF-8 cannot hold: "
                "decode the text properly where it comes from"
            ) from None
    return value


def _integer(value: int, trail: Trail | None, key: str | int) -> int:
    if not _INT_MIN <= value <= _INT_MAX:
        raise ValueError(f"{_path(trail, key)} is an integer beyond 64 bits: write it as text")
    return value


def _number(value: float, trail: Trail | None, key: str | int) -> float:
    if not isfinite(value):
        raise ValueError(f"{_path(trail, key)} is {value}, which JSON cannot hold: use None or text")
    return value


def _decimal(value: Decimal, trail: Trail | None, key: str | int) -> str:
    if not value.is_finite():
        raise ValueError(f"{_path(trail, key)} is {value}, which is no number: use None or text")
    return str(value)


def _moment(value: datetime, trail: Trail | None, key: str | int) -> str:
    try:
        moment = value.astimezone(UTC)
    except (OverflowError, OSError, ValueError):
        raise ValueError(
            f"{_path(trail, key)} is {value}, which in UTC is outside the years 1 to 9999: write it as text"
        ) from None
    return moment.isoformat().removesuffix("+00:00") + "Z"


def _bad_type(value: object, trail: Trail | None, key: str | int) -> TypeError:
    if isinstance(value, (bytes, bytearray, memoryview)):
        cure = "write it as text, for instance in base64"
    elif isinstance(value, (set, frozenset)):
        cure = "make it a list"
    else:
        cure = "write it as text or as a dict of its fields"
    return TypeError(f"{_path(trail, key)} is {type(value).__name__}, which JSON cannot hold: {cure}")


def _too_deep(trail: Trail | None, key: str | int) -> ValueError:
    levels = 0
    outer = trail
    while outer is not None:
        levels += 1
        outer = outer[0]
    return ValueError(f"{_path(trail, key)} is nested deeper than {levels} levels, or contains itself")


def _path(trail: Trail | None, key: str | int) -> str:
    """Return a path such as `input.items[3].price`."""
    parts = []
    while trail is not None:
        parts.append(_step(key))
        trail, key = trail
    parts.append(str(key))
    path = "".join(reversed(parts))
    if len(path) > _PATH_CHARS:
        path = f"{path[: _PATH_CHARS // 2]}...{path[-_PATH_CHARS // 2 :]}"
    return path


def _step(key: str | int) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{key!r}]"
