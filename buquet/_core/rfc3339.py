"""Times as text: RFC 3339 in records, HTTP dates in responses, the basic form in signatures.

A time is an integer of Unix milliseconds (seconds where the name says `_s`). Text that is
not a time raises `ValueError`.

Example::

    format_ms(1_769_590_800_000)                      # "2026-01-28T09:00:00.000Z"
    parse_ms("2026-01-28T10:00:00+01:00")             # 1769590800000
    parse_http_date("Wed, 28 Jan 2026 09:00:00 GMT")  # 1769590800000
"""

from __future__ import annotations

_FIRST_MS = -62_167_219_200_000
"""0000-01-01T00:00:00.000Z: RFC 3339 writes years with four digits."""

_LAST_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z."""

_MONTHS = {
    "Jan": 1,
    "Feb": 2,
    "Mar": 3,
    "Apr": 4,
    "May": 5,
    "Jun": 6,
    "Jul": 7,
    "Aug": 8,
    "Sep": 9,
    "Oct": 10,
    "Nov": 11,
    "Dec": 12,
}
_DAYS = frozenset(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
_LONG_DAYS = frozenset(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"])


def format_ms(ms: int) -> str:
    """Return a time as RFC 3339 text in UTC, with milliseconds.

    Parameters
    ----------
    ms:
        Unix milliseconds, within the years 0000 to 9999 (else `ValueError`).
    """
    _check_range(ms)
    time = ms % 86_400_000
    year, month, day = _civil(ms // 86_400_000)
    hour = time // 3_600_000
    minute = time // 60_000 % 60
    second = time // 1000 % 60
    milli = time % 1000
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}.{milli:03d}Z"


def format_basic_s(seconds: int) -> str:
    """Return a time in ISO 8601's basic form, as signatures carry it: `20260128T090000Z`.

    Parameters
    ----------
    seconds:
        Unix seconds, within the years 0000 to 9999 (else `ValueError`).
    """
    _check_range(seconds * 1000)
    time = seconds % 86_400
    year, month, day = _civil(seconds // 86_400)
    hour = time // 3600
    minute = time // 60 % 60
    second = time % 60
    return f"{year:04d}{month:02d}{day:02d}T{hour:02d}{minute:02d}{second:02d}Z"


def parse_ms(text: str) -> int:
    """Read RFC 3339 text with any offset and any number of digits in the fraction.

    Parameters
    ----------
    text:
        The time, for instance `2026-01-28T10:00:00.5+01:00`.

    Returns
    -------
    int
        Unix milliseconds, cut off below the millisecond. A leap second is read as the
        second after it.
    """
    size = len(text)
    if size < 20 or text[4] != "-" or text[7] != "-" or text[10] not in "Tt":
        raise _not_a_time(text)
    days = _days(text, _number(text, 0, 4), _number(text, 5, 7), _number(text, 8, 10))
    seconds = days * 86_400 + _time_of_day(text, 11)
    at = 19
    milli = 0
    if text[19] == ".":
        at = _end_of_digits(text, 20)
        milli = _milliseconds(text, at)
    seconds -= _offset_s(text, at)
    _check_leap(text, 17, seconds)
    return seconds * 1000 + milli


def parse_http_date(text: str) -> int:
    """Read a `Date` header in any of the three forms of RFC 9110 section 5.6.7.

    Parameters
    ----------
    text:
        The header, for instance `Wed, 28 Jan 2026 09:00:00 GMT`. The two-digit year of the
        obsolete RFC 850 form is read as one of 1970 to 2069.

    Returns
    -------
    int
        Unix milliseconds.
    """
    if len(text) == 29 and text[3] == ",":
        return _fixdate(text)
    if len(text) == 24 and text[3] == " ":
        return _asctime(text)
    return _rfc850(text)


def _fixdate(text: str) -> int:
    """Read `Sun, 06 Nov 1994 08:49:37 GMT`."""
    if (
        text[:3] not in _DAYS
        or text[4] != " "
        or text[7] != " "
        or text[11] != " "
        or text[16] != " "
        or text[25:] != " GMT"
    ):
        raise _not_a_time(text)
    days = _days(text, _number(text, 12, 16), _month(text, 8), _number(text, 5, 7))
    return _utc_ms(text, days, 17)


def _asctime(text: str) -> int:
    """Read `Sun Nov  6 08:49:37 1994`."""
    if text[:3] not in _DAYS or text[7] != " " or text[10] != " " or text[19] != " ":
        raise _not_a_time(text)
    day = _number(text, 9 if text[8] == " " else 8, 10)
    days = _days(text, _number(text, 20, 24), _month(text, 4), day)
    return _utc_ms(text, days, 11)


def _rfc850(text: str) -> int:
    """Read `Sunday, 06-Nov-94 08:49:37 GMT`."""
    name, _, rest = text.partition(", ")
    if name not in _LONG_DAYS or len(rest) != 22 or rest[2] != "-" or rest[6] != "-" or rest[9] != " ":
        raise _not_a_time(text)
    if rest[18:] != " GMT":
        raise _not_a_time(text)
    year = _number(rest, 7, 9)
    year += 1900 if year >= 70 else 2000
    days = _days(text, year, _month(rest, 3), _number(rest, 0, 2))
    return _utc_ms(rest, days, 10)


def _utc_ms(text: str, days: int, at: int) -> int:
    seconds = days * 86_400 + _time_of_day(text, at)
    _check_leap(text, at + 6, seconds)
    return seconds * 1000


def _check_range(ms: int) -> None:
    if not _FIRST_MS <= ms <= _LAST_MS:
        raise ValueError(f"{ms} ms after 1970 is outside the years 0000 to 9999")


def _civil(days: int) -> tuple[int, int, int]:
    """Return the Gregorian (year, month, day) of a day counted from 1970-01-01.

    Years are taken to begin in March, which puts the leap day last, and are grouped by 400
    (146,097 days): http://howardhinnant.github.io/date_algorithms.html
    """
    days += 719_468
    era = days // 146_097
    day_of_era = days % 146_097
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    return era * 400 + year + (1 if month <= 2 else 0), month, day


def _days(text: str, year: int, month: int, day: int) -> int:
    """Return the day counted from 1970-01-01, the inverse of `_civil`."""
    if not 1 <= month <= 12 or not 1 <= day <= _month_length(year, month):
        raise _not_a_time(text)
    if month <= 2:
        year -= 1
    era = year // 400
    year_of_era = year % 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _month_length(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _time_of_day(text: str, at: int) -> int:
    """Read `hh:mm:ss` at a position; 60 seconds are for `_check_leap` to judge."""
    hour = _number(text, at, at + 2)
    minute = _number(text, at + 3, at + 5)
    second = _number(text, at + 6, at + 8)
    if hour > 23 or minute > 59 or second > 60 or text[at + 2] != ":" or text[at + 5] != ":":
        raise _not_a_time(text)
    return hour * 3600 + minute * 60 + second


def _check_leap(text: str, at: int, seconds: int) -> None:
    """Let `:60` at a position stand only in the last minute of a UTC day."""
    if text[at] == "6" and seconds % 86_400 != 0:
        raise _not_a_time(text)


def _offset_s(text: str, at: int) -> int:
    """Read `Z` or `+hh:mm`, which must end the text."""
    size = len(text)
    if size == at + 1 and text[at] in "Zz":
        return 0
    if size != at + 6 or text[at] not in "+-" or text[at + 3] != ":":
        raise _not_a_time(text)
    hour = _number(text, at + 1, at + 3)
    minute = _number(text, at + 4, at + 6)
    if hour > 23 or minute > 59:
        raise _not_a_time(text)
    offset = hour * 3600 + minute * 60
    return -offset if text[at] == "-" else offset


def _end_of_digits(text: str, start: int) -> int:
    at = start
    size = len(text)
    while at < size and "0" <= text[at] <= "9":
        at += 1
    if at == start:
        raise _not_a_time(text)
    return at


def _milliseconds(text: str, end: int) -> int:
    """Read the fraction at position 20, of which only three digits count."""
    digits = min(end - 20, 3)
    milli = _number(text, 20, 20 + digits)
    while digits < 3:
        milli *= 10
        digits += 1
    return milli


def _month(text: str, at: int) -> int:
    month = _MONTHS.get(text[at : at + 3])
    if month is None:
        raise _not_a_time(text)
    return month


def _number(text: str, start: int, end: int) -> int:
    """Read ASCII digits; `int()` would take signs, spaces, underscores and other scripts."""
    number = 0
    for at in range(start, end):
        digit = ord(text[at]) - 48
        if not 0 <= digit <= 9:
            raise _not_a_time(text)
        number = number * 10 + digit
    return number


def _not_a_time(text: str) -> ValueError:
    return ValueError(f"{text!r} is not a time")
