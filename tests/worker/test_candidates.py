"""Rule 7 in a worker: in which order a page is tried, and what is left alone for how long."""

from __future__ import annotations

import math

from virtual import World, virtual

from buquet._core import ident
from buquet.protocol.choice import fraction, is_nearest
from buquet.protocol.keys import Keys, Marker
from buquet.testing.clock import START
from buquet.worker.candidates import FRESH_S, GRACE_S, MOST_TAKEN, Candidates
from buquet.worker.finder import Seen
from buquet.worker.recent import REMEMBERED, Recent

NOW_MS = int(START * 1000)


def seen(number: int, *, priority: int = 5, due_ms: int = NOW_MS, attempt: int = 0) -> Seen:
    task_id = ident.mint(NOW_MS, priority, number)
    marker = Marker("0", priority, due_ms, task_id, attempt)
    return Seen(Keys().marker_key(marker), marker, has_body=True)


def popped(candidates: Candidates) -> list[Seen]:
    found = []
    while (one := candidates.pop()) is not None:
        found.append(one)
    return found


@virtual
async def test_urgent_ones_first_and_each_worker_in_its_own_order(world: World) -> None:
    page = [seen(number, priority=number % 3) for number in range(90)]
    orders = []
    for identity in ("a", "b"):
        candidates = Candidates(identity, world.clock)
        candidates.refill(page, now_ms=NOW_MS)
        orders.append(popped(candidates))
    for order in orders:
        assert sorted(order, key=lambda one: one.key) == sorted(page, key=lambda one: one.key)
        assert [one.marker.priority for one in order] == [0] * 30 + [1] * 30 + [2] * 30
    assert orders[0] != orders[1]


@virtual
async def test_two_markers_of_one_task_on_one_page_are_no_tie(world: World) -> None:
    """The old marker of a retried task may still be there beside the new one."""
    page = [seen(1), seen(1, attempt=1, due_ms=NOW_MS - 5)]
    candidates = Candidates("a", world.clock)
    candidates.refill(page, now_ms=NOW_MS)
    assert len(popped(candidates)) == 2


@virtual
async def test_among_many_workers_a_fresh_task_ripens(world: World) -> None:
    candidates = Candidates("a", world.clock)
    candidates.workers = 64
    page = [seen(number) for number in range(640)]
    candidates.refill(page, now_ms=NOW_MS)
    tried = [len(popped(candidates))]
    for _ in range(5):
        assert 0 < candidates.next_in_s() <= 0.25
        await world.clock.sleep(0.25)
        tried.append(len(popped(candidates)))
    assert sum(tried) == 640
    assert 10 <= tried[0] <= 30
    assert tried[0] < tried[2] < tried[4]
    assert candidates.next_in_s() == math.inf


@virtual
async def test_waiting_counts_from_when_it_was_first_seen_not_from_each_listing(world: World) -> None:
    candidates = Candidates("a", world.clock)
    candidates.workers = 1000
    page = [seen(number, due_ms=NOW_MS - 3_600_000) for number in range(100)]
    candidates.refill(page, now_ms=NOW_MS)
    assert len(popped(candidates)) < 10, "an old backlog is as contended as a fresh task"
    for _ in range(24):
        await world.clock.sleep(0.1)
        candidates.refill(page, now_ms=NOW_MS)
    assert len(popped(candidates)) == 100


# --- among others ----------------------------------------------------------------------------


def page_for(*workers: str, count: int = 100) -> tuple[list[Seen], list[list[str]]]:
    """Return a page, and for each worker the keys that it is nearest to, nearest first."""
    page = [seen(number) for number in range(count)]

    def own(me: str) -> list[str]:
        shares = {one.key: fraction(me, one.marker.task_id) for one in page}
        rivals = [worker for worker in workers if worker != me]
        mine = [one.key for one in page if is_nearest(shares[one.key], one.marker.task_id, rivals)]
        return sorted(mine, key=shares.__getitem__)

    return page, [own(worker) for worker in workers]


def beside_another(world: World) -> tuple[Candidates, list[str], list[str]]:
    """Return the candidates of the worker "a" beside "b", and what each is nearest to."""
    candidates = Candidates("not known yet", world.clock)
    candidates.meet("a", ["a", "b"])
    page, (own, others) = page_for("a", "b")
    candidates.refill(page, now_ms=NOW_MS)
    return candidates, own, others


@virtual
async def test_its_own_come_first_and_of_the_others_one_at_a_time(world: World) -> None:
    candidates, own, others = beside_another(world)
    assert 30 < len(own) < 70
    assert [one.key for one in popped(candidates)] == [*own, others[-1]]
    assert candidates.pop() is None
    candidates.tried(own[0], is_taken=False)
    assert candidates.pop() is None, "this says nothing about the others"
    candidates.tried(others[-1], is_taken=False)
    # First those to which the other worker comes last.
    assert [one.key for one in popped(candidates)] == others[-2::-1]


@virtual
async def test_that_the_others_are_free_is_known_until_one_was_taken(world: World) -> None:
    candidates, own, others = beside_another(world)
    popped(candidates)
    candidates.tried(others[-1], is_taken=False)
    page, _ = page_for("a", "b")
    candidates.refill(page, now_ms=NOW_MS)
    await world.clock.sleep(2 * FRESH_S)
    assert len(popped(candidates)) == len(page)
    candidates.tried(others[0], is_taken=True)
    candidates.refill(page, now_ms=NOW_MS)
    assert len(popped(candidates)) == len(own) + 1


@virtual
async def test_an_urgent_one_of_the_others_does_not_hold_up_ones_own(world: World) -> None:
    candidates = Candidates("a", world.clock)
    candidates.meet("a", ["a", "b"])
    page = [seen(number, priority=0 if number < 50 else 5) for number in range(100)]
    candidates.refill(page, now_ms=NOW_MS)
    own = [one for one in page if is_nearest(fraction("a", one.marker.task_id), one.marker.task_id, ["b"])]
    urgent = [one for one in own if one.marker.priority == 0]
    found = popped(candidates)
    assert {one.key for one in own} < {one.key for one in found}
    probe = next(one for one in found if one not in own)
    assert (probe.marker.priority, found.index(probe)) == (0, len(urgent))
    candidates.refill(page, now_ms=NOW_MS)
    for _ in urgent:
        candidates.pop()
    probe = candidates.pop()
    assert probe is not None
    candidates.tried(probe.key, is_taken=True)
    assert {one.key for one in popped(candidates)} == {one.key for one in own if one not in urgent}


@virtual
async def test_a_task_that_waits_much_longer_than_ones_own_becomes_everybodys(world: World) -> None:
    """Its own worker may be busy, or handle other types."""
    candidates, own, others = beside_another(world)
    page, _ = page_for("a", "b")
    await world.clock.sleep(GRACE_S)
    later_ms = NOW_MS + int(GRACE_S * 1000)
    candidates.refill(page, now_ms=later_ms)
    assert len(popped(candidates)) == len(own) + 1, "a backlog: ones own wait as long"
    fresh = [seen(number, due_ms=later_ms) for number in range(100, 200)]
    candidates.refill([*fresh, *(one for one in page if one.key in others)], now_ms=later_ms)
    assert set(others) < {one.key for one in popped(candidates)}


@virtual
async def test_a_page_is_out_of_date_when_one_of_the_others_was_taken(world: World) -> None:
    candidates, _, others = beside_another(world)
    popped(candidates)
    candidates.tried(others[-1], is_taken=True)
    assert candidates.pop() is None
    assert candidates.next_in_s() == math.inf


@virtual
async def test_a_page_is_out_of_date_when_some_of_its_own_were_taken(world: World) -> None:
    candidates, _, _ = beside_another(world)
    for _ in range(MOST_TAKEN):
        one = candidates.pop()
        assert one is not None
        candidates.tried(one.key, is_taken=True)
    assert candidates.pop() is None
    page, _ = page_for("a", "b")
    candidates.refill(page, now_ms=NOW_MS)
    assert candidates.pop() is not None


@virtual
async def test_the_others_are_not_tried_from_an_old_page(world: World) -> None:
    candidates, own, _ = beside_another(world)
    await world.clock.sleep(1.1 * FRESH_S)
    assert [one.key for one in popped(candidates)] == own


@virtual
async def test_a_session_that_is_gone_leaves_its_tasks_to_the_rest(world: World) -> None:
    candidates, own, others = beside_another(world)
    candidates.meet("a", ["a"])
    page, _ = page_for("a", "b")
    candidates.refill(page, now_ms=NOW_MS)
    assert (candidates.workers, len(popped(candidates))) == (1, len(own) + len(others))


# --- what is left alone ----------------------------------------------------------------------


@virtual
async def test_what_is_left_is_not_tried_until_then(world: World) -> None:
    candidates = Candidates("a", world.clock)
    one, other = seen(1), seen(2)
    candidates.leave(one.key, for_s=2)
    candidates.leave(other.key)
    candidates.refill([one, other], now_ms=NOW_MS)
    assert candidates.pop() is None
    assert not candidates.is_open(one)
    await world.clock.sleep(2)
    assert candidates.is_open(one)
    assert not candidates.is_open(other)
    candidates.refill([one, other], now_ms=NOW_MS)
    assert popped(candidates) == [one]


@virtual
async def test_what_was_left_after_the_listing_is_not_tried(world: World) -> None:
    candidates = Candidates("a", world.clock)
    one, other = seen(1), seen(2)
    candidates.refill([one, other], now_ms=NOW_MS)
    candidates.leave(one.key)
    assert popped(candidates) == [other]


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    recent = Recent()
    for number in range(REMEMBERED + 10):
        recent.put(str(number), number)
        recent.put("kept", 1)
    assert "kept" in recent
    assert "0" not in recent
    assert str(REMEMBERED + 9) in recent
    assert len(recent) == REMEMBERED
