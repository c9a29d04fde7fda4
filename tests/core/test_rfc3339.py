"""Times as text, against Python's own datetime and the examples of the RFCs."""

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
OFFSETS = st.integers(-23 * 60 - 59, 23 * 60 + 59)


def unix_ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


# --- writing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_769_590_800_000, "2026-01-28T09:00:00.000Z"),
        (951_782_400_123, "2000-02-29T00:00:00.123Z"),
        (13_574_563_200_000, "2400-02-29T00:00:00.000Z"),
        (-62_167_219_200_000, "0000-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_format_ms_and_back(core: SimpleNamespace, ms: int, text: str) -> None:
    assert core.rfc3339.format_ms(ms) == text
    assert core.rfc3339.parse_ms(text) == ms


@pytest.mark.parametrize("ms", [-62_167_219_200_001, 253_402_300_800_000])
def test_format_refuses_years_beyond_four_digits(core: SimpleNamespace, ms: int) -> None:
    with pytest.raises(ValueError, match="outside the years 0000 to 9999"):
        core.rfc3339.format_ms(ms)
    with pytest.raises(ValueError, match="outside the years 0000 to 9999"):
        core.rfc3339.format_basic_s(ms // 1000)


@settings(max_examples=300, deadline=None)
@given(moment=MOMENTS)
def test_format_agrees_with_datetime(core: SimpleNamespace, moment: datetime) -> None:
    ms = unix_ms(moment)
    expected = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert core.rfc3339.format_ms(ms) == expected
    assert core.rfc3339.format_basic_s(ms // 1000) == f"{moment:%Y%m%dT%H%M%SZ}".rjust(16, "0")


# --- reading RFC 3339 ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        # The examples of RFC 3339 section 5.8, both leap seconds among them.
        ("1985-04-12T23:20:50.52Z", 482_196_050_520),
        ("1996-12-19T16:39:57-08:00", 851_042_397_000),
        ("1990-12-31T23:59:60Z", 662_688_000_000),
        ("1990-12-31T15:59:60-08:00", 662_688_000_000),
        ("1937-01-01T12:00:27.87+00:20", -1_041_337_172_130),
        ("2026-01-28t09:00:00z", 1_769_590_800_000),
        ("2026-01-28T09:00:00.9999999999999999999999Z", 1_769_590_800_999),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("2026-01-28T09:00:00-00:00", 1_769_590_800_000),
        ("0000-02-29T00:00:00+23:59", -62_162_121_600_000 - 86_340_000),
    ],
)
def test_parse_ms(core: SimpleNamespace, text: str, ms: int) -> None:
    assert core.rfc3339.parse_ms(text) == ms


@settings(max_examples=300, deadline=None)
@given(moment=MOMENTS, offset=OFFSETS)
def test_parse_agrees_with_datetime(core: SimpleNamespace, moment: datetime, offset: int) -> None:
    text = moment.astimezone(timezone(timedelta(minutes=offset))).isoformat()
    assert core.rfc3339.parse_ms(text) == unix_ms(moment)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-28",
        "2026-01-28T09:00:00",
        "2026-01-28T09:00Z",
        "2026-01-28 09:00:00Z",
        "2026-01-28T09:00:00ZZ",
        "2026-01-28T09:00:00.Z",
        "2026-01-28T09:00:00,5Z",
        "2026-01-28T09:00:00.5",
        "2026-01-28T09:00:00+0100",
        "2026-01-28T09:00:00+01:00:00",
        "2026-01-28T09:00:00+24:00",
        "2026-01-28T09:00:00+01:60",
        "2026-00-28T09:00:00Z",
        "2026-13-28T09:00:00Z",
        "2026-01-00T09:00:00Z",
        "2026-02-29T09:00:00Z",
        "1900-02-29T09:00:00Z",
        "2026-04-31T09:00:00Z",
        "2026-01-28T24:00:00Z",
        "2026-01-28T09:60:00Z",
        "2026-01-28T09:00:60Z",
        "2026-01-28T23:59:60+01:00",
        "2026-01-28T23:59:61Z",
        "2026/01/28T09:00:00Z",
        "2026-01-28T09.00.00Z",
        "+026-01-28T09:00:00Z",
        "2026-01-28T 9:00:00Z",
        "2026-01-0:T09:00:00Z",
        "2026-01-1/T09:00:00Z",
        "2026-1_-28T09:00:00Z",
        "2026-01-28T09:00:00.\u0661Z",
        "\u0662026-01-28T09:00:00Z",
    ],
)
def test_parse_refuses(core: SimpleNamespace, text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        core.rfc3339.parse_ms(text)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("0123456789-:.TZ+ "), min_size=18, max_size=32))
def test_any_text_is_read_or_refused(core: SimpleNamespace, text: str) -> None:
    for parse in (core.rfc3339.parse_ms, core.rfc3339.parse_http_date):
        try:
            parse(text)
        except ValueError:
            continue


# --- reading HTTP dates --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        # The three forms of RFC 9110 section 5.6.7.
        ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777_000),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 784_111_777_000),
        ("Sun Nov  6 08:49:37 1994", 784_111_777_000),
        ("Wed Nov 16 08:49:37 1994", 784_975_777_000),
        ("Wednesday, 28-Jan-26 09:00:00 GMT", 1_769_590_800_000),
        ("Friday, 02-Jan-70 00:00:00 GMT", 86_400_000),
        ("Sat, 31 Dec 2016 23:59:60 GMT", 1_483_228_800_000),
    ],
)
def test_parse_http_date(core: SimpleNamespace, text: str, ms: int) -> None:
    assert core.rfc3339.parse_http_date(text) == ms


@settings(max_examples=300, deadline=None)
@given(moment=MOMENTS)
def test_http_dates_agree_with_email_utils(core: SimpleNamespace, moment: datetime) -> None:
    second = moment.replace(microsecond=0)
    assert core.rfc3339.parse_http_date(format_datetime(second, usegmt=True)) == unix_ms(second)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sun, 06 Nov 1994 08:49:37 +00",
        "Son, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 nov 1994 08:49:37 GMT",
        "Sun, 31 Nov 1994 08:49:37 GMT",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:60 GMT",
        "Sun, 06-Nov-1994 08:49:37 GMT",
        "Sun, 06-Nov-94 08:49:37 GMT",
        "Sunday, 06 Nov 94 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 PST",
        "Sun Nov 06 08:49:37 94  ",
        "Sun Nov -6 08:49:37 1994",
    ],
)
def test_parse_http_date_refuses(core: SimpleNamespace, text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        core.rfc3339.parse_http_date(text)
