"""One run: a seed's cast, its faults, and what came of it.

Example::

    result = run(7)
    if result.breach is not None:
        raise result.breach
"""

from __future__ import annotations

import logging
import random
import signal
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from buquet._core.rfc3339 import format_ms
from buquet.protocol.manifest import Fitness, Manifest, encode
from buquet.store.interface import Always
from buquet.store.memory import MemoryBucket
from buquet.testing.clock import START
from buquet.worker import WorkerRunOptions
from simulation import actors
from simulation.actors import KINDS, Spec, draw_spec, may_end
from simulation.faults import WEEK_WEATHER, Plan, weather_of
from simulation.oracle import NOT_QUIET, RUNAWAY, Breach, Oracle
from simulation.process import Agenda, Process
from simulation.wire import Network, Outage

TASKS = 20
LEAST_REQUESTS = 2000
MOST_REQUESTS = 100_000
LOOK_EVERY_S = 5.0
WAIT_LIMIT_S = 15 * 60.0
"""Once the faults have stopped, no due task may wait longer."""

REST_LIMIT_S = 60 * 60.0
"""So long after the faults all must be at rest."""

OUTAGE = -1
"""The outage's number among a seed's events."""

WEEK_S = 8 * 24 * 3600.0
"""How long all is dark in a seed that also removes old tasks."""

DARKEN_WITHIN_S = 20.0
LEFTOVERS = 10
"""It gets dark when so many tasks have ended whose markers still stand, or so long after it should."""

REMOVING_S = 6000.0
"""How long such a seed goes on with its faults afterwards: a task is archived, an hour later its marker
is deleted, 25 minutes later its record."""

CROWD_DUE_S = 25 * 60.0
"""When the tasks of a crowd become due, after the faults: later than any other may wait."""


@dataclass(frozen=True, slots=True)
class Sabotage:
    """What shall happen, by the names of its parts; None: all that the seed has drawn."""

    faults: frozenset[tuple[str, int]]
    events: frozenset[int]
    stop_at_s: float
    """The run ends here, if it has not failed before."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to a process at a time: SIGTERM, or a pause."""

    number: int
    at_s: float
    role: str
    what: str
    seconds: float = 0.0

    def __str__(self) -> str:
        length = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.role}: {self.what} at {self.at_s:.0f} s{length}"


@dataclass(frozen=True, slots=True)
class Role:
    """A place in the cast; whoever holds it is replaced when it crashes.

    `known_as` is the worker's or monitor's id: two may share one.
    """

    name: str
    main: str
    known_as: str = ""
    shards: list[str] | None = None
    options: WorkerRunOptions = field(default_factory=WorkerRunOptions)


@dataclass(frozen=True)
class Script:
    """All that a seed has drawn."""

    seed: int
    themes: list[str]
    until_s: float
    shard_prefix_len: int
    resolution_ms: int
    max_keys: int
    roles: list[Role]
    specs: list[Spec]
    outages: list[Outage]
    events: list[Event]
    plan: Plan
    dark_at_s: float | None
    """When everything stops for eight days, in a seed that also removes old tasks."""


@dataclass
class Result:
    """What came of a run."""

    seed: int
    breach: Breach | None
    requests: int
    steps: int
    ended_s: float
    script: Script
    trace: list[tuple[float, str]]

    def digest(self) -> str:
        """A hash of the trace."""
        return sha256("\n".join(f"{at:.6f} {line}" for at, line in self.trace).encode()).hexdigest()


# --- what a seed draws -----------------------------------------------------------------------


def write_script(seed: int, sabotage: Sabotage | None = None) -> Script:
    """Draw a run."""
    chance = random.Random(f"script/{seed}")
    themes, weather = weather_of(chance)
    until_s = chance.uniform(250, 600)
    is_crowded = chance.random() < 0.08
    dark_at_s = until_s * 0.9 if not is_crowded and chance.random() < 0.1 else None
    shard_prefix_len = chance.choice((1, 1, 1, 2))
    events = _draw_events(chance, until_s, weather.longest_pause_s)
    outages = [_draw_outage(chance, until_s)]
    if sabotage is not None:
        events = [event for event in events if event.number in sabotage.events]
        outages = outages if OUTAGE in sabotage.events else []
    roles = _draw_roles(chance, shard_prefix_len, poll_ms=5000 if is_crowded or dark_at_s else 2000)
    specs = _draw_specs(chance, until_s, is_crowded=is_crowded)
    if dark_at_s is not None:
        themes, weather, shard_prefix_len = ["week"], WEEK_WEATHER, 1
        specs += [
            draw_spec(chance, "quick", after_s=dark_at_s - 1, before_s=dark_at_s + 3) for _ in range(32)
        ]
        until_s += WEEK_S + REMOVING_S
        roles.append(Role("a", "archiver"))
    return Script(
        seed=seed,
        themes=[*themes, *(["crowd"] if is_crowded else [])],
        until_s=until_s,
        shard_prefix_len=shard_prefix_len,
        resolution_ms=chance.choice((1, 1000)),
        max_keys=5 if is_crowded else chance.choice((20, 1000)),
        roles=roles,
        specs=specs,
        outages=outages,
        events=events,
        plan=Plan(seed, weather, until_s, None if sabotage is None else sabotage.faults),
        dark_at_s=dark_at_s,
    )


def _draw_roles(chance: random.Random, shard_prefix_len: int, *, poll_ms: int) -> list[Role]:
    roles = []
    for number in range(chance.choice((3, 3, 4))):
        options = WorkerRunOptions(
            poll_interval_ms=poll_ms,
            with_monitor=chance.random() < 0.4,
            shutdown_timeout_s=chance.choice((0, 5, 30)),
        )
        digits = None
        if number > 0 and chance.random() < 0.2:
            digits = sorted(chance.sample("0123456789abcdef", 8))
        name = f"w{number + 1}"
        roles.append(Role(name, "worker", "w1" if number == 3 else name, digits, options))
    return [*roles, Role("m1", "monitor", "m1"), Role("m2", "monitor", "m2"), Role("s", "submitter"),
            Role("x", "meddler"), Role("y", "meddler")]  # fmt: skip


def _draw_specs(chance: random.Random, until_s: float, *, is_crowded: bool) -> list[Spec]:
    before_s = until_s * chance.choice((0.1, 0.6, 0.9))
    kinds = [chance.choice(KINDS) for _ in range(TASKS)]
    if chance.random() < 0.3:
        kinds[0] = "killer"
    specs = [draw_spec(chance, kind, after_s=0, before_s=before_s) for kind in kinds]
    if is_crowded:
        specs += [_late(draw_spec(chance, "quick", after_s=0, before_s=20), until_s) for _ in range(150)]
    return sorted(specs, key=lambda spec: spec.at_s)


def _late(spec: Spec, until_s: float) -> Spec:
    fields = {name: getattr(spec, name) for name in Spec.__slots__}
    return Spec(**{**fields, "priority": 0, "delay_s": until_s + CROWD_DUE_S})


def _draw_outage(chance: random.Random, until_s: float) -> Outage:
    start_s = chance.uniform(20, until_s - 150)
    return Outage(start_s, start_s + chance.choice((chance.uniform(2, 20), chance.uniform(35, 120))))


def _draw_events(chance: random.Random, until_s: float, longest_pause_s: float) -> list[Event]:
    events = []
    for number, role in enumerate(("w1", "w2", "w3", "m1", "m2")):
        at_s = chance.uniform(10, until_s)
        if chance.random() < 0.35:
            events.append(Event(number, at_s, role, "SIGTERM"))
        elif chance.random() < 0.5:
            events.append(Event(number, at_s, role, "pause", chance.uniform(0.1, 1) * longest_pause_s))
    return events


# --- the run ---------------------------------------------------------------------------------


class Run:
    """The world of one run."""

    def __init__(self, script: Script, stop_at_s: float | None = None) -> None:
        self.script = script
        self._stop_at_s = stop_at_s
        self.specs = script.specs
        self.until_s = script.until_s
        self.submitted = 0
        self.kinds: dict[str, str] = {}
        self.agenda = Agenda()
        server = Process(self.agenda, "server", seed="server")
        server.discard()
        bucket = MemoryBucket(server.clock)
        self.oracle = Oracle(self.agenda, bucket, script.shard_prefix_len)
        self.network = Network(
            self.agenda,
            bucket,
            script.plan,
            self.oracle,
            outages=script.outages,
            resolution_ms=script.resolution_ms,
            max_keys=script.max_keys,
        )
        self.processes: dict[int, Process] = {}
        self._lives: Counter[str] = Counter()
        self._dark_until_s = 0.0
        self._bucket = bucket

    def go(self) -> Result:
        """Run to the end."""
        manifest = Manifest(
            shard_prefix_len=self.script.shard_prefix_len,
            created_at=format_ms(int(START * 1000)),
            nonce="0" * 32,
            fitness=Fitness(driver="simulated", probe=1),
        )
        self._bucket.put("buquet.json", encode(manifest), Always())
        for place, role in enumerate(self.script.roles):
            self._begin(place, role)
        for event in self.script.events:
            self.agenda.at(event.at_s, lambda event=event: self._happen(event))
        if self.script.dark_at_s is not None:
            self.agenda.at(self.script.dark_at_s, self._darken)
        self.agenda.at(0, self._look)
        self.agenda.run(until_s=self._stop_at_s or self.until_s + REST_LIMIT_S)
        if self._stop_at_s is None and self.oracle.breach is None and not self.agenda.is_over:
            self.oracle.fail(NOT_QUIET, "at the end", ", ".join(self.oracle.unrest()[:5]))
        for process in self.processes.values():
            process.discard()
        return Result(
            self.script.seed,
            self.oracle.breach,
            self.network.requests,
            self.oracle.steps,
            self.agenda.now,
            self.script,
            self.oracle.trace,
        )

    def _begin(self, place: int, role: Role) -> None:
        """Start a process in a role."""
        self._lives[role.name] += 1
        name = f"{role.name}.{self._lives[role.name]}"
        # From its name alone: what the others do must not change it, or no run could be shrunk.
        chance = random.Random(f"{self.script.seed}/{name}")
        skew_s = chance.choice((0, -3600, 0.5, 7200))
        process = Process(self.agenda, name, seed=f"{self.script.seed}/{name}", skew_s=skew_s)
        process.date_error_ms = chance.choice((0, 0, 500, -500, 2000, -2000))
        pause_s = chance.uniform(0.1, 40)
        process.on_end = lambda: self._ended(place, role, process, pause_s)
        process.after_turn = lambda: self.oracle.after_turn(process)
        self.processes[place] = process
        self.oracle.note(f"{name} starts")
        process.start(self._main(process, role))

    def _main(self, process: Process, role: Role) -> Coroutine[Any, Any, None]:
        match role.main:
            case "worker":
                return actors.worker_main(process, self, role.known_as, role.shards, role.options)
            case "monitor":
                return actors.monitor_main(process, self, role.known_as)
            case "submitter":
                return actors.submitter_main(process, self)
            case "archiver":
                return actors.archiver_main(process, self)
            case _:
                return actors.meddler_main(process, self)

    def _darken(self) -> None:
        """Let every process crash; those that follow begin eight days later.

        At a bad moment: while markers of tasks that have ended wait to be deleted.
        """
        assert self.script.dark_at_s is not None
        if self.oracle.leftovers() < LEFTOVERS and self.agenda.now < self.script.dark_at_s + DARKEN_WITHIN_S:
            self.agenda.at(self.agenda.now + 0.1, self._darken)
            return
        self._dark_until_s = self.agenda.now + WEEK_S
        for process in self.processes.values():
            if not process.is_dying:
                process.crash()

    def _ended(self, place: int, role: Role, process: Process, pause_s: float) -> None:
        self.oracle.ended(process)
        is_done = process.has_finished and role.main in {"submitter", "meddler", "archiver"}
        if not is_done and not self.agenda.is_over:
            start_s = max(self.agenda.now, self._dark_until_s) + pause_s
            self.agenda.at(start_s, lambda: self._begin(place, role))

    def _happen(self, event: Event) -> None:
        role = next(place for place, role in enumerate(self.script.roles) if role.name == event.role)
        process = self.processes[role]
        if process.is_dying:
            return
        self.oracle.note(str(event))
        if event.what == "pause":
            process.pause(event.seconds)
        else:
            process.signal(signal.SIGTERM)

    def _look(self) -> None:
        """See whether all is at rest; if not, whether anything waits for too long."""
        now = self.agenda.now
        if self.network.requests > MOST_REQUESTS:
            self.oracle.fail(RUNAWAY, "the run", f"{self.network.requests} requests by {now:.0f} s")
        is_done = now >= self.until_s and self.submitted == len(self.specs) and not self.network.late
        if is_done and self.network.requests >= LEAST_REQUESTS and not self.oracle.unrest():
            self.oracle.check_ends(lambda record: may_end(record.task_type, record))
            self.agenda.stop()
            return
        if now > self.until_s + WAIT_LIMIT_S:
            self.oracle.check_waiting(due_before_ms=int((START + now - WAIT_LIMIT_S) * 1000))
        self.agenda.at(now + LOOK_EVERY_S, self._look)


def run(seed: int, sabotage: Sabotage | None = None) -> Result:
    """Run one seed, with all faults that it draws or only with those of `sabotage`."""
    logger = logging.getLogger("buquet")
    before = logger.disabled, logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        return Run(write_script(seed, sabotage), sabotage and sabotage.stop_at_s).go()
    finally:
        logger.disabled, logger.level = before
