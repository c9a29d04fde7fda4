"""Which fault befalls which request: a pure function of the seed, the process and the request's number.

So a fault can be left out without any other being drawn differently, and a failing run can be
shrunk to the few that it needs.

Example::

    plan = Plan(seed=7, weather=weather_of(7), until_s=600)
    fault = plan.draw("w1.1", 12, "PUT ledger (CAS)", now=30.0)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

LOST = "lost request"
LOST_REPLY = "lost reply"
LATE = "late write"
CONFLICT = "409"
BUSY = "503"
STALE = "stale LIST"
PAUSE = "pause"
CRASH = "crash"
CLOCK = "clock off"
SLOW = "slow"

COLUMNS = (LOST, LOST_REPLY, LATE, CONFLICT, BUSY, STALE, PAUSE, CRASH, CLOCK)
"""The columns of the table; a slow reply is no fault worth one."""

GET_LEDGER = "GET ledger"
GET_MARKER = "GET marker"
GET_SESSION = "GET session"
GET_MANIFEST = "GET manifest"
PUT_SUBMIT = "PUT marker (submit)"
PUT_MARKER = "PUT marker (empty)"
PUT_CREATE = "PUT ledger (create)"
PUT_CAS = "PUT ledger (CAS)"
PUT_BIRTH = "PUT session (create)"
PUT_BEAT = "PUT session (heartbeat)"
PUT_TOMB = "PUT session (tombstone)"
PUT_FAILED = "PUT failed"
LIST_READY = "LIST ready"
LIST_WORKERS = "LIST workers"
DELETE_MARKERS = "DELETE markers"
DELETE_TOMB = "DELETE tombstone"
LIST_TASKS = "LIST tasks"
DELETE_LEDGER = "DELETE ledger"
DELETE_FAILED = "DELETE failed"

CONDITIONAL = frozenset({PUT_SUBMIT, PUT_MARKER, PUT_CREATE, PUT_CAS, PUT_BIRTH, PUT_BEAT, PUT_TOMB})
WRITES = CONDITIONAL | {PUT_FAILED, DELETE_MARKERS, DELETE_TOMB, DELETE_LEDGER, DELETE_FAILED}
ROWS = (
    GET_LEDGER, GET_MARKER, GET_SESSION, GET_MANIFEST, PUT_SUBMIT, PUT_MARKER, PUT_CREATE, PUT_CAS,
    PUT_BIRTH, PUT_BEAT, PUT_TOMB, PUT_FAILED, LIST_READY, LIST_WORKERS, DELETE_MARKERS, DELETE_TOMB,
    LIST_TASKS, DELETE_LEDGER, DELETE_FAILED,
)  # fmt: skip

LONGEST_LATE_S = 900.0
"""Stores refuse signatures that are older."""


def impossible(row: str, column: str) -> str | None:
    """Why a fault cannot befall a kind of request; None if it can."""
    if column == LATE and row not in WRITES:
        return "a read has no effect that could come late"
    if column == CONFLICT and row not in CONDITIONAL:
        return "409 answers conditional writes only"
    if column == STALE and not row.startswith("LIST"):
        return "only a listing lags"
    return None


def kind_of(method: str, key: str, body: bytes = b"", *, is_create: bool = False) -> str:
    """Name the kind of a request: its row in the table."""
    folder = key.partition("/")[0]
    if method == "PUT" and folder == "workers":
        if is_create:
            return PUT_BIRTH
        return PUT_TOMB if b'"state":"tombstone"' in body else PUT_BEAT
    if method == "PUT" and folder == "ready":
        return PUT_SUBMIT if body else PUT_MARKER
    if method == "PUT" and folder == "tasks":
        return PUT_CREATE if is_create else PUT_CAS
    names = {
        ("GET", "tasks"): GET_LEDGER, ("GET", "ready"): GET_MARKER, ("GET", "workers"): GET_SESSION,
        ("GET", "buquet.json"): GET_MANIFEST, ("PUT", "failed"): PUT_FAILED,
        ("LIST", "ready"): LIST_READY, ("LIST", "workers"): LIST_WORKERS,
        ("DELETE", "ready"): DELETE_MARKERS, ("DELETE", "workers"): DELETE_TOMB,
        ("LIST", "tasks"): LIST_TASKS, ("DELETE", "tasks"): DELETE_LEDGER,
        ("DELETE", "failed"): DELETE_FAILED,
    }  # fmt: skip
    return names.get((method, folder), f"{method} {folder}")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and its particulars.

    `at` is (process, number of its request). `seconds` is how long a pause lasts, a reply takes,
    a client waits for one that is lost, or a late write is late. `after`: a pause or crash comes
    after the request was sent, not before.
    """

    at: tuple[str, int]
    what: str
    seconds: float = 0.0
    after: bool = False

    def __str__(self) -> str:
        place = f" {'after' if self.after else 'before'} it is sent" if self.what in {PAUSE, CRASH} else ""
        length = f" {self.seconds:.3f} s" if self.seconds else ""
        return f"{self.at[0]} request {self.at[1]}: {self.what}{length}{place}"


@dataclass(frozen=True, slots=True)
class Weather:
    """How likely which fault is, for each request; `(row, fault)` before `fault` alone."""

    odds: dict[str, float]
    special: dict[tuple[str, str], float] = field(default_factory=dict)
    longest_pause_s: float = 60.0

    def chance(self, row: str, what: str) -> float:
        """The probability of a fault."""
        usual = self.odds.get(what, 0.0) * (RARE_BOOST if row in RARE else 1.0)
        return self.special.get((row, what), usual)


RARE = frozenset({GET_MARKER, GET_SESSION, GET_MANIFEST, PUT_SUBMIT, PUT_MARKER, PUT_CREATE, PUT_BIRTH,
                  PUT_TOMB, PUT_FAILED, DELETE_TOMB, DELETE_LEDGER, DELETE_FAILED})  # fmt: skip
RARE_BOOST = 4.0
"""What is seldom asked for meets its faults more often, so that the table fills."""

CALM = {LOST: 0.004, LOST_REPLY: 0.008, LATE: 0.006, CONFLICT: 0.01, BUSY: 0.006, STALE: 0.02,
        PAUSE: 0.0025, CRASH: 0.0015, SLOW: 0.01}  # fmt: skip

THEMES: dict[str, dict[tuple[str, str], float]] = {
    "calm": {},
    "deaf": {(row, LOST_REPLY): 0.2 for row in WRITES},
    "late": {(row, LATE): 0.15 for row in WRITES},
    "conflicts": {(row, CONFLICT): 0.2 for row in CONDITIONAL},
    "lagging": {(row, STALE): 0.3 for row in (LIST_READY, LIST_WORKERS)},
    "faint hearts": {(PUT_BEAT, LOST): 0.2, (PUT_BEAT, LOST_REPLY): 0.15, (PUT_BEAT, SLOW): 0.3},
    "slow settling": {(PUT_CAS, SLOW): 0.3, (PUT_CAS, LOST): 0.15, (PUT_MARKER, SLOW): 0.2},
    "hard births": {(PUT_BIRTH, LATE): 0.4, (PUT_BIRTH, LOST_REPLY): 0.2, (PUT_BIRTH, CRASH): 0.1},
    "sleepy": {(row, PAUSE): 0.03 for row in ROWS if row not in (LIST_READY, PUT_BEAT)},
    "sleepy monitors": {(row, PAUSE): 0.25 for row in (GET_SESSION, PUT_TOMB, DELETE_TOMB)},
    "mortal": {(row, CRASH): 0.02 for row in ROWS if row not in (LIST_READY, LIST_WORKERS, PUT_BEAT)},
}
"""What a seed may have more of than others: combinations that even odds would hardly ever make."""


def weather_of(chance: random.Random) -> tuple[list[str], Weather]:
    """Draw a seed's weather: one or two themes on top of calm, all more or less severe."""
    names = chance.sample(list(THEMES), k=chance.choice((1, 2, 2)))
    severity = chance.choice((0.3, 1.0, 1.0, 2.0))
    special: dict[tuple[str, str], float] = {}
    for name in names:
        special |= THEMES[name]
    longest = chance.choice((20.0, 60.0, 150.0, 400.0))
    return names, Weather({what: odds * severity for what, odds in CALM.items()}, special, longest)


WEEK_WEATHER = Weather(
    {what: odds / 3 for what, odds in CALM.items()},
    {
        **{(DELETE_LEDGER, what): 0.1 for what in COLUMNS if what != CLOCK},
        (PUT_CREATE, LATE): 0.9,
        (DELETE_MARKERS, LOST): 0.7,  # so that markers are left over which are tried a week later
    },
    longest_pause_s=400.0,
)
"""For seeds that remove old tasks: an archiver that crashed often would never come to it."""


@dataclass
class Plan:
    """The faults of one run.

    Parameters
    ----------
    seed:
        The run's seed.
    weather:
        How likely which fault is.
    until_s:
        When all faults stop.
    allowed:
        If given, only the faults at these requests happen.
    """

    seed: int
    weather: Weather
    until_s: float
    allowed: frozenset[tuple[str, int]] | None = None
    happened: list[Fault] = field(default_factory=list)
    table: Counter[tuple[str, str]] = field(default_factory=Counter)

    def chances(self, name: str, number: int) -> tuple[float, ...]:
        """Five numbers in [0, 1) that belong to one request."""
        digest = blake2b(f"{self.seed}/{name}/{number}".encode(), digest_size=40).digest()
        return tuple(int.from_bytes(digest[i : i + 8], "big") / 2**64 for i in range(0, 40, 8))

    def draw(self, at: tuple[str, int], row: str, chances: Iterable[float], *, now: float) -> Fault | None:
        """Return the fault of a request, None if there is none."""
        if now >= self.until_s or (self.allowed is not None and at not in self.allowed):
            return None
        which, length, place, *_ = chances
        for what in (*COLUMNS, SLOW):
            odds = 0.0 if impossible(row, what) else self.weather.chance(row, what)
            if which < odds:
                return Fault(at, what, self._seconds(what, length), after=place < 0.5)
            which -= odds
        return None

    def happens(self, fault: Fault, row: str) -> None:
        """Note that a fault was met."""
        self.happened.append(fault)
        self.table[row, fault.what] += 1

    def _seconds(self, what: str, chance: float) -> float:
        match what:
            case "late write":
                return float(LONGEST_LATE_S**chance)
            case "pause":
                return float(0.1 * (10 * self.weather.longest_pause_s) ** chance)
            case "slow":
                return float(0.1 * 60**chance)
            case "lost request" | "lost reply":
                return (0.02, 1.0, 5.0)[int(chance * 3)]
            case _:
                return 0.0
