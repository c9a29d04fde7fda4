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
from simulation.faults import Fault, Plan, weather_of
from simulation.oracle import DIED, NOT_QUIET, Breach, Oracle
from simulation.process import Agenda, Process
from simulation.wire import Network, Outage

LEAST_REQUESTS = 2000
LOOK_EVERY_S = 5.0
WAIT_LIMIT_S = 15 * 60.0
"""Once the faults have stopped, no due task may wait longer."""

REST_LIMIT_S = 60 * 60.0
"""So long after the faults all must be at rest."""

CROWD_DUE_S = 25 * 60.0
"""When the tasks of a crowd become due, after the faults: later than any other may wait."""


@dataclass(frozen=True, slots=True)
class Sabotage:
    """What shall happen, by the names of its parts; None: all that the seed has drawn."""

    faults: frozenset[tuple[str, int]]
    events: frozenset[int]


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
    """A place in the cast; whoever holds it is replaced when it crashes."""

    name: str
    main: str
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
    shard_prefix_len = chance.choice((1, 1, 1, 2))
    events = _draw_events(chance, until_s, weather.longest_pause_s)
    outages = [_draw_outage(chance, until_s)]
    if sabotage is not None:
        events = [event for event in events if event.number in sabotage.events]
        outages = outages if -1 in sabotage.events else []
    return Script(
        seed=seed,
        themes=[*themes, *(["crowd"] if is_crowded else [])],
        until_s=until_s,
        shard_prefix_len=shard_prefix_len,
        resolution_ms=chance.choice((1, 1000)),
        max_keys=5 if is_crowded else chance.choice((20, 1000)),
        roles=_draw_roles(chance, shard_prefix_len, poll_ms=5000 if is_crowded else 2000),
        specs=_draw_specs(chance, until_s, is_crowded=is_crowded),
        outages=outages,
        events=events,
        plan=Plan(seed, weather, until_s, None if sabotage is None else sabotage.faults),
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
        # Two workers may share a name.
        name = "w1" if number == 3 else f"w{number + 1}"
        roles.append(Role(name, "worker", digits, options))
    return [*roles, Role("m1", "monitor"), Role("m2", "monitor"), Role("s", "submitter"), Role("x", "meddler")]


def _draw_specs(chance: random.Random, until_s: float, *, is_crowded: bool) -> list[Spec]:
    before_s = until_s * chance.choice((0.1, 0.6, 0.9))
    kinds = [chance.choice(KINDS) for _ in range(20)]
    if chance.random() < 0.3:
        kinds[0] = "killer"
    specs = [draw_spec(chance, kind, before_s=before_s) for kind in kinds]
    if is_crowded:
        specs += [_late(draw_spec(chance, "quick", before_s=20), until_s) for _ in range(150)]
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

    def __init__(self, script: Script) -> None:
        self.script = script
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
        self._chance = random.Random(f"run/{script.seed}")
        self._runs = 0
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
        self.agenda.at(self.until_s, self._look)
        self.agenda.run(until_s=self.until_s + REST_LIMIT_S)
        if self.oracle.breach is None and not self.agenda.is_over:
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
        self._runs += 1
        name = f"{role.name}.{self._runs}"
        skew_s = self._chance.choice((0, -3600, 0.5, 7200))
        process = Process(self.agenda, name, seed=f"{self.script.seed}/{name}", skew_s=skew_s)
        process.date_error_ms = self._chance.choice((0, 0, 500, -500, 2000, -2000))
        process.on_end = lambda: self._ended(place, role, process)
        process.after_turn = lambda: self.oracle.after_turn(process)
        self.processes[place] = process
        self.oracle.note(f"{name} starts")
        process.start(self._main(process, role))

    def _main(self, process: Process, role: Role) -> Coroutine[Any, Any, None]:
        match role.main:
            case "worker":
                shards = self._shards(role)
                return actors.worker_main(process, self, role.name, shards, role.options)
            case "monitor":
                return actors.monitor_main(process, self, role.name)
            case "submitter":
                return actors.submitter_main(process, self)
            case _:
                return actors.meddler_main(process, self)

    def _shards(self, role: Role) -> list[str] | None:
        """A worker that has crashed a lot leaves its share of the shards to all."""
        return role.shards

    def _ended(self, place: int, role: Role, process: Process) -> None:
        self.oracle.ended(process)
        is_done = process.has_finished and role.main in {"submitter", "meddler"}
        if not is_done and not self.agenda.is_over:
            self.agenda.at(self.agenda.now + self._chance.uniform(0.1, 40), lambda: self._begin(place, role))

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
        is_done = self.submitted == len(self.specs) and not self.network.late
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
        return Run(write_script(seed, sabotage)).go()
    finally:
        logger.disabled, logger.level = before


def faults_of(result: Result) -> list[Fault]:
    """The faults that a run met, in their order."""
    return result.script.plan.happened


__all__ = ["DIED", "Result", "Sabotage", "faults_of", "run", "write_script"]
