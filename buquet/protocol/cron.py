"""Cron expressions: the five fields of crontab(5), and the instants that they mean in a time zone.

croniter reads the fields. Which instants they mean is decided here, because croniter fires
02:30 twice in the night in which clocks are put back. What the hour field says tells two kinds
apart:

- *Fixed* hours, for instance `30 2 * * *`: a time that clocks skip that day is moved to just
  after the gap, one that they show twice counts the first time, so each fires once.
- `*` or `*/n` hours go by elapsed time, counted from the day's midnight. So they neither stop
  nor double while clocks are changed, whatever these show.

Errors: `InvalidInput` and `InvalidInputType`, which name the field.

Example::

    next(occurrences("0 9 * * mon-fri", "Europe/Berlin", after_ms=now_ms))
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from buquet.errors import InvalidInput, InvalidInputType
from buquet.protocol.task import EPOCH

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

MAX_CRON_CHARS = 500

WEEKDAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_ONE_DAY = timedelta(days=1)

_ITEM = re.compile(
    r"(?:(?P<star>\*)|(?P<low>[0-9]{1,2}|[a-z]{3})(?:-(?P<high>[0-9]{1,2}|[a-z]{3}))?)(?:/(?P<step>[0-9]{1,2}))?"
)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def number(self, value: str) -> int:
        """Read a number or a name."""
        number = self.names.index(value) + self.low if value in self.names else int(value)
        if not self.low <= number <= self.high:
            raise ValueError
        return number


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, MONTH_NAMES),
    _Field("day of week", 0, 7, WEEKDAY_NAMES),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression that was read. `hour_step` is that of an hour field `*` or `*/n`, else None.

    `needs_both`: a day must match both the day of month and the day of week, as crontab(5) has
    it where one of these begins with `*`; otherwise either will do.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    needs_both: bool
    hour_step: int | None

    def occurrences(self, zone: tzinfo, *, after_ms: int) -> Iterator[int]:
        """Yield the occurrences after a time, in order; all times in Unix ms."""
        last_ms = after_ms
        day = (EPOCH + timedelta(milliseconds=after_ms)).astimezone(zone).date()
        while day < date.max - _ONE_DAY:
            if self.falls_on(day):
                for at_ms in self._times_of(day, zone):
                    # Several times, even of two days, may be moved to just after one gap.
                    if at_ms > last_ms:
                        yield at_ms
                        last_ms = at_ms
            day += _ONE_DAY

    def falls_on(self, day: date) -> bool:
        """Whether there are occurrences on a day."""
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (in_month and in_week) if self.needs_both else (in_month or in_week)

    def _times_of(self, day: date, zone: tzinfo) -> list[int]:
        midnight = datetime.combine(day, datetime.min.time())
        start_ms, end_ms = first_instant_ms(midnight, zone), first_instant_ms(midnight + _ONE_DAY, zone)
        length_ms = end_ms - start_ms
        if self.hour_step is not None:
            hours = range(0, math.ceil(length_ms / _HOUR_MS), self.hour_step)
            since_midnight = [ms for ms in self._offsets_ms(hours) if ms < length_ms]
        else:
            since_midnight = self._offsets_ms(self.hours)
            if length_ms != _DAY_MS:
                walls = (midnight + timedelta(milliseconds=ms) for ms in since_midnight)
                return [first_instant_ms(wall, zone) for wall in walls]
        return [start_ms + ms for ms in since_midnight]

    def _offsets_ms(self, hours: tuple[int, ...] | range) -> list[int]:
        pairs = itertools.product(hours, self.minutes)
        return [hour * _HOUR_MS + minute * _MINUTE_MS for hour, minute in pairs]


def occurrences(cron: str, timezone: str, *, after_ms: int) -> Iterator[int]:
    """Yield the occurrences of an expression after a time, in order; all times in Unix ms.

    Raises
    ------
    InvalidInput, InvalidInputType
        The expression or the zone makes no sense.
    """
    return parse(cron).occurrences(zone_of(timezone), after_ms=after_ms)


def first_instant_ms(wall: datetime, zone: tzinfo) -> int:
    """Return when clocks first show a naive time, Unix ms; where they skip it, just after the gap."""
    while True:
        instant = wall.replace(tzinfo=zone).astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None) == wall:
            return (instant - EPOCH) // timedelta(milliseconds=1)
        wall += timedelta(minutes=1)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name.

    Raises
    ------
    InvalidInput, InvalidInputType
        This machine knows no such zone.
    """
    if not isinstance(name, str):
        raise InvalidInputType(f"timezone must be a string, not {type(name).__name__}")
    if name == "UTC":
        return UTC  # also where no time zone database is installed
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidInput(f"timezone: this machine knows no zone {name!r}") from error


# --- reading -------------------------------------------------------------------------------


def parse(text: str) -> Cron:
    """Read an expression: five fields as crontab(5) has them, or `@hourly` to `@yearly`.

    Raises
    ------
    InvalidInput, InvalidInputType
        It makes no sense, or could never fire; the message names the field.
    """
    if not isinstance(text, str):
        raise InvalidInputType(f"cron must be a string, not {type(text).__name__}")
    if len(text) > MAX_CRON_CHARS:
        raise InvalidInput(f"cron: at most {MAX_CRON_CHARS} characters, not {len(text)}")
    return _parse(text)


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> Cron:
    fields = _fields_of(text)
    minutes, hours, days, months, weekdays = (
        _values(field, field_text) for field, field_text in zip(_FIELDS, fields, strict=True)
    )
    cron = Cron(
        minutes=minutes,
        hours=hours,
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(weekdays),
        needs_both=fields[2].startswith("*") or fields[4].startswith("*"),
        hour_step=_hour_step(fields[1]),
    )
    if not _ever_fires(cron):
        raise InvalidInput(
            f"cron {text!r}: day of month {fields[2]!r} is in no month of {fields[3]!r}: it would never fire"
        )
    return cron


def _fields_of(text: str) -> list[str]:
    lowered = text.strip().lower()
    if lowered.startswith("@"):
        if lowered not in ALIASES:
            raise InvalidInput(f"cron {text!r}: unknown; there are {', '.join(ALIASES)}")
        lowered = ALIASES[lowered]
    fields = lowered.split()
    if len(fields) < len(_FIELDS):
        missing = ", ".join(field.name for field in _FIELDS[len(fields) :])
        raise InvalidInput(f"cron {text!r}: 5 fields are needed, {missing} missing")
    if len(fields) > len(_FIELDS):
        raise InvalidInput(
            f"cron {text!r}: there is {fields[5]!r} after day of week: it has 5 fields, none for seconds"
        )
    return fields


def _values(field: _Field, text: str) -> tuple[int, ...]:
    """Return the values that a field lists, in order."""
    # Deferred, so that a queue without schedules need not import it.
    from croniter import CroniterError, croniter  # noqa: PLC0415

    items = ",".join(_checked(field, item) for item in text.split(","))
    place = _FIELDS.index(field)
    alone = ["*"] * len(_FIELDS)
    alone[place] = items
    try:
        values = croniter.expand(" ".join(alone))[0][place]
    except CroniterError as error:
        raise _refused(field, text) from error
    if "*" in values:
        return tuple(
            range(field.low, min(field.high, 6) + 1 if field.names is WEEKDAY_NAMES else field.high + 1)
        )
    return tuple(sorted(values))


def _checked(field: _Field, item: str) -> str:
    """Return an item of a field as croniter shall read it: it accepts more than crontab(5) has."""
    found = _ITEM.fullmatch(item)
    if found is None:
        raise _refused(field, item)
    low, high, step = found["low"], found["high"], found["step"]
    try:
        if step is not None and (int(step) == 0 or (low is not None and high is None)):
            raise ValueError
        if low is not None and field.number(low) > field.number(high or low):
            raise ValueError
    except ValueError as error:
        raise _refused(field, item) from error
    # croniter takes 5-5 for the whole field.
    return low if high is not None and field.number(low) == field.number(high) else item


def _refused(field: _Field, text: str) -> InvalidInput:
    names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    return InvalidInput(
        f"cron: {field.name} {text!r}: there are *, {field.low} to {field.high}{names}, ranges low-high, "
        "steps after * or a range, and lists of these"
    )


def _hour_step(text: str) -> int | None:
    found = _ITEM.fullmatch(text)
    if found is None or found["star"] is None:
        return None
    return int(found["step"] or 1)


def _ever_fires(cron: Cron) -> bool:
    """In 28 years every weekday has been on every date, the 29th of February included."""
    start = date(2000, 1, 1)
    return any(cron.falls_on(start + timedelta(days=number)) for number in range(28 * 366))
