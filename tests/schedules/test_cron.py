"""Cron expressions: what is read, what is refused, and when they fire where clocks are changed."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from cronsim import CronSim

from buquet.errors import InvalidInput, InvalidInputType
from buquet.protocol.cron import occurrences, parse, zone_of

BERLIN = "Europe/Berlin"
NEW_YORK = "America/New_York"
LORD_HOWE = "Australia/Lord_Howe"
TOKYO = "Asia/Tokyo"
ZONES = (BERLIN, NEW_YORK, LORD_HOWE, TOKYO)


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def between(cron: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Occurrences from `start` on and before `end`, in the zone."""
    coming = occurrences(cron, zone, after_ms=ms(start) - 1)
    moments = (datetime.fromtimestamp(at_ms / 1000, zone_of(zone)) for at_ms in coming)
    return list(itertools.takewhile(lambda moment: moment.astimezone(UTC) < end.astimezone(UTC), moments))


def day(cron: str, zone: str, date: str) -> str:
    """The occurrences of one local day, as clocks show them."""
    start = datetime.fromisoformat(date).replace(tzinfo=zone_of(zone))
    return " ".join(f"{moment:%H:%M%z}" for moment in between(cron, zone, start, start + timedelta(days=1)))


# --- what is read --------------------------------------------------------------------------

UTC_2026 = [
    ("0 9 * * *", "2026-01-05T09:00 2026-01-06T09:00 2026-01-07T09:00"),
    ("  0\t9 * * *  ", "2026-01-05T09:00 2026-01-06T09:00"),
    ("*/20 8-9 * * *", "2026-01-05T08:00 2026-01-05T08:20 2026-01-05T08:40 2026-01-05T09:00"),
    ("5,35 0-12/6 * * *", "2026-01-05T00:05 2026-01-05T00:35 2026-01-05T06:05 2026-01-05T06:35"),
    ("0 0 * * 0", "2026-01-11T00:00 2026-01-18T00:00"),
    ("0 0 * * 7", "2026-01-11T00:00 2026-01-18T00:00"),
    ("0 0 * * 5-7", "2026-01-09T00:00 2026-01-10T00:00 2026-01-11T00:00 2026-01-16T00:00"),
    ("0 0 * * MON,Wed", "2026-01-07T00:00 2026-01-12T00:00"),
    ("0 0 1 jan-mar,Dec *", "2026-02-01T00:00 2026-03-01T00:00 2026-12-01T00:00 2027-01-01T00:00"),
    ("0 0 * * mon-fri/2", "2026-01-07T00:00 2026-01-09T00:00 2026-01-12T00:00"),
    ("5-5 0 * * *", "2026-01-05T00:05 2026-01-06T00:05"),
    ("0 0 29 2 *", "2028-02-29T00:00 2032-02-29T00:00"),
    ("0 0 13 * fri", "2026-01-09T00:00 2026-01-13T00:00 2026-01-16T00:00"),  # either will do
    ("0 0 13 * 0-6", "2026-01-06T00:00 2026-01-07T00:00"),
    ("0 0 */2 * mon", "2026-01-19T00:00 2026-02-09T00:00"),  # both, as one begins with *
    ("0 0 31 2 1", "2026-02-02T00:00 2026-02-09T00:00"),
    ("@hourly", "2026-01-05T01:00 2026-01-05T02:00"),
    ("@daily", "2026-01-06T00:00 2026-01-07T00:00"),
    ("@midnight", "2026-01-06T00:00 2026-01-07T00:00"),
    ("@weekly", "2026-01-11T00:00 2026-01-18T00:00"),
    ("@monthly", "2026-02-01T00:00 2026-03-01T00:00"),
    ("@yearly", "2027-01-01T00:00 2028-01-01T00:00"),
    ("@Annually", "2027-01-01T00:00 2028-01-01T00:00"),
]


@pytest.mark.parametrize(("cron", "expected"), UTC_2026, ids=[cron for cron, _ in UTC_2026])
def test_occurrences_in_utc(cron: str, expected: str) -> None:
    """From Monday, 5 January 2026, 00:00 on, which itself is past."""
    coming = occurrences(cron, "UTC", after_ms=ms(datetime(2026, 1, 5, tzinfo=UTC)))
    wanted = expected.split()
    found = [datetime.fromtimestamp(next(coming) / 1000, UTC) for _ in wanted]
    assert [f"{moment:%Y-%m-%dT%H:%M}" for moment in found] == wanted


REFUSED = {
    "day of week": ["* * * * 8", "* * * * fri-mon", "* * * * 1#2", "* * * * l5", "* * * * xyz", "* * * * ?"],
    "month": ["* * * 0 *", "* * * 13 *", "* * * janfeb *", "* * * mon *", "* * * R *"],
    "day of month": [
        *("* * 0 * *", "* * 32 * *", "* * l * *", "* * L * *", "* * 15W * *", "* * ? * *", "* * mon * *"),
        *("0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 30-31 feb *"),
    ],
    "hour": ["* 24 * * *", "* H * * *", "* h(0-5) * * *", "* 5-1 * * *", "* */0 * * *", "* 1//2 * * *"],
    "minute": [
        *(
            "60 * * * *",
            "-1 * * * *",
            "R * * * *",
            "H/5 * * * *",
            "0/5 * * * *",
            "1,,2 * * * *",
            "1-2-3 * * * *",
        ),
        *(
            "*-5 * * * *",
            "*5 * * * *",
            "1.5 * * * *",
            "٣ * * * *",
            "five * * * *",
            "*/ * * * *",
            "/5 * * * *",
        ),
    ],
    "after day of week": ["* * * * * *", "0 0 1 1 0 2030"],
    "day of week missing": ["* * * *"],
    "minute, hour, day of month, month, day of week missing": ["", "   "],
    "@reboot": ["@reboot"],
    "at most 500 characters": ["0 " * 300],
}


@pytest.mark.parametrize(
    ("field", "cron"), [(field, cron) for field, crons in REFUSED.items() for cron in crons]
)
def test_what_is_refused_and_why(field: str, cron: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        parse(cron)


@pytest.mark.parametrize("cron", [None, 5, ["0", "9", "*", "*", "*"], b"* * * * *"])
def test_only_text_is_an_expression(cron: object) -> None:
    with pytest.raises(InvalidInputType):
        parse(cron)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../etc/passwd", "Europe", "Europe/Berlin\0", "+02:00"])
def test_unknown_zones_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="timezone"):
        zone_of(name)


# --- where clocks are changed --------------------------------------------------------------

CHANGES = [
    # The hour from 02:00 on is skipped: once, just after the gap.
    (BERLIN, "2026-03-29", "30 2 * * *", "03:00+0200"),
    (BERLIN, "2026-03-29", "0 2 * * *", "03:00+0200"),
    (BERLIN, "2026-03-29", "*/15 2 * * *", "03:00+0200"),
    (BERLIN, "2026-03-29", "0 1-4 * * *", "01:00+0100 03:00+0200 04:00+0200"),
    (BERLIN, "2026-03-29", "30 1,3 * * *", "01:30+0100 03:30+0200"),
    (NEW_YORK, "2026-03-08", "30 2 * * *", "03:00-0400"),
    (LORD_HOWE, "2026-10-04", "15 2 * * *", "02:30+1100"),
    (LORD_HOWE, "2026-10-04", "45 2 * * *", "02:45+1100"),
    (TOKYO, "2026-03-29", "30 2 * * *", "02:30+0900"),
    ("America/Havana", "2026-03-08", "30 0 * * *", "01:00-0400"),  # midnight itself is skipped
    # It is there twice: the first time only.
    (BERLIN, "2026-10-25", "30 2 * * *", "02:30+0200"),
    (BERLIN, "2026-10-25", "*/30 2 * * *", "02:00+0200 02:30+0200"),
    (BERLIN, "2026-10-25", "0 1-4 * * *", "01:00+0200 02:00+0200 03:00+0100 04:00+0100"),
    (NEW_YORK, "2026-11-01", "30 1 * * *", "01:30-0400"),
    (LORD_HOWE, "2026-04-05", "45 1 * * *", "01:45+1100"),
    (LORD_HOWE, "2026-04-05", "15 1,2 * * *", "01:15+1100 02:15+1030"),
    ("America/Havana", "2026-11-01", "30 0 * * *", "00:30-0400"),
]


@pytest.mark.parametrize(("zone", "date", "cron", "expected"), CHANGES)
def test_fixed_times_fire_once(zone: str, date: str, cron: str, expected: str) -> None:
    assert day(cron, zone, date) == expected


def test_a_gap_that_spans_midnight() -> None:
    """In Toronto, 1919, 23:30 was followed by 00:30: times of both days fire once, just after."""
    zone = zone_of("America/Toronto")
    start = datetime(1919, 3, 30, 23, 0, tzinfo=zone)
    found = between("15,45 0,23 * * *", "America/Toronto", start, start + timedelta(hours=3))
    assert [f"{moment:%d %H:%M}" for moment in found] == ["30 23:15", "31 00:30", "31 00:45"]


CHANGE_DAYS = {
    BERLIN: (datetime(2026, 3, 29), datetime(2026, 10, 25)),
    NEW_YORK: (datetime(2026, 3, 8), datetime(2026, 11, 1)),
    LORD_HOWE: (datetime(2026, 10, 4), datetime(2026, 4, 5)),
    "America/Havana": (datetime(2026, 3, 8), datetime(2026, 11, 1)),
    TOKYO: (datetime(2026, 3, 29), datetime(2026, 10, 25)),
}


@pytest.mark.parametrize("step", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    ("zone", "change"), [(zone, change) for zone, days in CHANGE_DAYS.items() for change in days]
)
def test_hours_of_an_asterisk_go_by_elapsed_time(zone: str, change: datetime, step: int) -> None:
    """Through the day of the change they are equally far apart; the next begins with its midnight."""
    start = change.replace(tzinfo=zone_of(zone))
    end = start + timedelta(days=1)
    found = [moment.astimezone(UTC) for moment in between(f"0 */{step} * * *", zone, start, end)]
    # Where midnight is skipped, the day begins just after it.
    assert found[0] == start.astimezone(UTC)
    assert {later - earlier for earlier, later in itertools.pairwise(found)} == {timedelta(hours=step)}
    rest = end.astimezone(UTC) - found[-1]
    assert timedelta(0) < rest <= timedelta(hours=step)


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, TOKYO])
@pytest.mark.parametrize(("cron", "minutes"), [("0 * * * *", 60), ("*/15 * * * *", 15), ("@hourly", 60)])
def test_an_hourly_job_never_stops_nor_doubles(zone: str, cron: str, minutes: int) -> None:
    found = between(cron, zone, datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    instants = [moment.astimezone(UTC) for moment in found]
    gaps = {later - earlier for earlier, later in itertools.pairwise(instants)}
    assert gaps == {timedelta(minutes=minutes)}


def test_the_example_of_the_docs() -> None:
    assert day("0 */2 * * *", BERLIN, "2026-03-29").startswith("00:00+0100 03:00+0200 05:00+0200")
    assert day("0 */2 * * *", BERLIN, "2026-10-25").startswith("00:00+0200 02:00+0200 03:00+0100 05:00+0100")
    assert day("0 */2 * * *", BERLIN, "2026-10-26").startswith("00:00+0100 02:00+0100 04:00+0100")


# --- against a second implementation ---------------------------------------------------------

ALIKE = [
    *("0 9 * * *", "30 2 * * *", "15 2 * * 0", "0 0 1 * *", "59 23 * * *", "0 12 * * mon-fri"),
    *("*/15 * * * *", "*/15 9-17 * * 1-5", "0 4 13 * 5", "0 4 */2 * 1", "0 3 1-7 */3 sat", "30 1 29 2 *"),
    *("10 2 28-31 3,10 *", "0 22 31 * *", "0,30 2 * * *"),
]
"""These agree with cronsim in every zone."""


def theirs(cron: str, zone: str) -> list[datetime]:
    start = datetime(2026, 1, 1, tzinfo=zone_of(zone))
    coming = CronSim(cron, start - timedelta(minutes=1))
    return [at.astimezone(UTC) for at in itertools.takewhile(lambda moment: moment.year < 2027, coming)]


def ours(cron: str, zone: str) -> list[datetime]:
    start = datetime(2026, 1, 1, tzinfo=zone_of(zone))
    return [at.astimezone(UTC) for at in between(cron, zone, start, start.replace(year=2027))]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", ALIKE)
def test_a_year_is_as_cronsim_has_it(cron: str, zone: str) -> None:
    assert ours(cron, zone) == theirs(cron, zone)


BY_THE_CLOCK = "cronsim goes by what clocks show where the hour begins with *, we by elapsed time"
STAR_MINUTE = "cronsim takes a minute that begins with * like such an hour: not at all, or twice"
HALF_AN_HOUR = "besides, it steps over the half hour in whole ones, and misses full hours after it"

UNLIKE = [
    (BERLIN, "0 */12 * * *", BY_THE_CLOCK, "03-29T13:00+0200 10-25T11:00+0100 10-25T23:00+0100",
     "03-29T12:00+0200 10-25T12:00+0100"),
    (LORD_HOWE, "0 */12 * * *", f"{BY_THE_CLOCK}; {HALF_AN_HOUR}",
     "04-05T11:30+1030 04-05T23:30+1030 10-04T12:30+1100", ""),
    (BERLIN, "*/30 2 * * *", STAR_MINUTE, "03-29T03:00+0200", "10-25T02:00+0100 10-25T02:30+0100"),
    (NEW_YORK, "*/30 1 * * *", STAR_MINUTE, "", "11-01T01:00-0500 11-01T01:30-0500"),
    (LORD_HOWE, "*/20 2 * * *", f"{STAR_MINUTE}; {HALF_AN_HOUR}",
     "04-05T02:00+1030 04-05T02:20+1030 10-04T02:30+1100", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "cron", "why", "only_ours", "only_theirs"), UNLIKE, ids=[f"{row[0]} {row[1]}" for row in UNLIKE]
)
def test_where_a_year_differs_from_cronsim(
    zone: str, cron: str, why: str, only_ours: str, only_theirs: str
) -> None:
    def shown(moments: set[datetime]) -> str:
        local = (at.astimezone(zone_of(zone)) for at in sorted(moments))
        return " ".join(f"{moment:%m-%dT%H:%M%z}" for moment in local)

    mine, others = set(ours(cron, zone)), set(theirs(cron, zone))
    assert shown(mine - others) == only_ours, why
    assert shown(others - mine) == only_theirs, why
