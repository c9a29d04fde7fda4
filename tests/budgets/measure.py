"""The budgets, each with its measurement; tests hold them, `python -m budgets` prints them.

Example::

    for figure in of_a_fleet(seed=1):
        assert figure.is_met, figure
"""

from __future__ import annotations

from collections.abc import Iterator

from budgets.real import Site
from budgets.simulated import Cost, SimulatedFleet
from budgets.tally import Figure, Tally
from buquet.protocol.keys import Keys
from buquet.testing.clock import VirtualClock, run_virtual

TASKS = 1000
SEEDS = (1, 2, 3)

WORKERS = 64
FEW_WORKERS = 8
BURST = 2000
TRICKLE_PER_S = 20
TRICKLE_S = 20
STRANGERS = 100
UNHEARD_S = 15
IDLE_S = 300
SETTLED_S = 3
"""A fleet is idle again so long after a burst."""


# --- at the socket of a real server --------------------------------------------------------------


async def at_the_socket(site: Site) -> list[Figure]:
    """Measure real producers and workers."""
    submit = await site.submit(TASKS)
    one = await site.one_worker(TASKS)
    many = await site.many_workers(FEW_WORKERS, TASKS)
    few, lots = await site.idle_workers()
    return [
        Figure("submit: any request a task", submit.any_a_task, 1.0),
        *_of_a_busy_worker(one),
        *_of_busy_workers(many),
        Figure("idle on 16 shards: LIST a poll", few.a_task("list", about="ready"), 1.0),
        Figure("idle on 256 shards: LIST a poll", lots.a_task("list", about="ready"), 1.0),
    ]


def _of_a_busy_worker(tally: Tally) -> list[Figure]:
    return [
        Figure("one busy worker: GET a task", tally.a_task("get", about="ready"), 1.0),
        Figure("one busy worker: PUT a task", tally.a_task("put", about="tasks"), 2.0),
        Figure("one busy worker: other billed requests a task", tally.rest_a_task, 0.1),
        Figure("one busy worker: billed requests a task", tally.billed_a_task, 3.1),
        Figure("one busy worker: any request a task", tally.any_a_task, 3.2),
    ]


def _of_busy_workers(tally: Tally) -> list[Figure]:
    return [
        Figure(f"{FEW_WORKERS} busy workers: billed requests a task", tally.billed_a_task, 3.8),
        Figure(f"{FEW_WORKERS} busy workers: any request a task", tally.any_a_task, 3.8),
    ]


# --- in virtual time -------------------------------------------------------------------------


def of_busy_workers(seed: int) -> list[Figure]:
    """Measure one simulated worker, and then eight, on a thousand tasks."""

    async def scenario(clock: VirtualClock, workers: int) -> Tally:
        fleet = SimulatedFleet(clock, seed, workers)
        await fleet.start()
        cost = await fleet.burst(TASKS)
        await fleet.stop()
        return cost.tally

    one = run_virtual(lambda clock: scenario(clock, 1), seed)
    few = run_virtual(lambda clock: scenario(clock, FEW_WORKERS), seed)
    return [*_of_a_busy_worker(one), *_of_busy_workers(few)]


def of_a_fleet(seed: int) -> list[Figure]:
    """Measure 64 simulated workers: a burst of tasks, and then a trickle, at an idle fleet each."""

    async def scenario(clock: VirtualClock) -> tuple[Cost, Cost]:
        fleet = SimulatedFleet(clock, seed, WORKERS)
        await fleet.start()
        burst = await fleet.burst(BURST)
        await clock.sleep(SETTLED_S)
        fleet.forget()
        trickle = await fleet.trickle(TRICKLE_PER_S, TRICKLE_S)
        await fleet.stop()
        return burst, trickle

    burst, trickle = run_virtual(scenario, seed)
    return [
        *_of_a_cost(f"{WORKERS} workers, {BURST:,} tasks at once", burst, 6.0, 0.3),
        *_of_a_cost(f"{WORKERS} workers, {TRICKLE_PER_S} tasks/s for {TRICKLE_S} s", trickle, 15.0, None),
    ]


def _of_a_cost(name: str, cost: Cost, most: float, most_lost: float | None) -> Iterator[Figure]:
    yield Figure(f"{name}: GET + PUT a task", cost.tally.a_task("get", "put"), most)
    yield Figure(f"{name}: lost claims a task", cost.lost_a_task, most_lost)
    yield Figure(f"{name}: LIST a task", cost.tally.a_task("list"))
    yield Figure(f"{name}: s from due to claim, half of them", cost.wait_s(0.5))
    yield Figure(f"{name}: s from due to claim, 95 %", cost.wait_s(0.95))
    yield Figure(f"{name}: s from due to claim, all", cost.wait_s(1))


def of_idle_workers() -> list[Figure]:
    """Measure a worker that finds nothing, and one that finds what nobody handles."""

    async def idle(clock: VirtualClock, shard_prefix_len: int) -> Tally:
        fleet = SimulatedFleet(clock, 1, 1, Keys(shard_prefix_len=shard_prefix_len), with_monitor=False)
        await fleet.start()
        await clock.sleep(IDLE_S)
        tally = Tally.of(fleet.forget(), IDLE_S)  # it polls once a second
        await fleet.stop()
        return tally

    async def strangers(clock: VirtualClock, workers: int) -> tuple[Tally, Tally]:
        fleet = SimulatedFleet(clock, 1, workers, with_monitor=False)
        await fleet.start()
        await fleet.submit(STRANGERS, "unheard of")
        await clock.sleep(SETTLED_S)
        first = fleet.forget()
        await clock.sleep(UNHEARD_S)
        later = fleet.forget()
        await fleet.stop()
        return Tally.of(first, STRANGERS * workers), Tally.of(later, STRANGERS * workers)

    figures = []
    for length in (1, 2):
        tally = run_virtual(lambda clock, length=length: idle(clock, length))
        lists = tally.a_task("list", about="ready")
        figures.append(Figure(f"idle on {16**length} shards: LIST a poll", lists, 1.0))
    for workers in (1, WORKERS):
        first, later = run_virtual(lambda clock, workers=workers: strangers(clock, workers))
        looks = first.a_task("get", about="ready") + first.a_task("get", about="tasks")
        name = f"{STRANGERS} waiting tasks of a strange type, {workers} workers"
        figures.append(Figure(f"{name}: first looks a task and worker", looks, 1.0))
        own = sum(later.a_task("get", "put", about=about) for about in ("ready", "tasks"))
        figures.append(Figure(f"{name}: their requests after that", own, 0.0))
    return figures
