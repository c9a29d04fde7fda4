"""Rule 6: what cannot be claimed hides nothing that can, at one LIST a poll where that is enough."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from virtual import World, requests, virtual

from buquet._core import ident
from buquet.errors import ForeignKey
from buquet.protocol.keys import Keys, Marker
from buquet.queue import Queue
from buquet.store.interface import Always
from buquet.testing.clock import START
from buquet.worker.finder import PAGES_A_LOOK, Finder, Seen

NOW_MS = int(START * 1000)
LATER_MS = NOW_MS + 3_600_000


def put_markers(
    world: World, keys: Keys, shard: str, count: int, *, priority: int = 5, due_ms: int = NOW_MS
) -> list[str]:
    """Put markers into a shard; it need not be their ids' own, which a finder does not look at."""
    made = []
    for number in range(count):
        task_id = ident.mint(due_ms, priority, number + 1)
        key = keys.marker_key(Marker(shard, priority, due_ms, task_id, 0))
        world.bucket.put(key, b"x", Always())
        made.append(key)
    return made


def finder_of(queue: Queue, shards: Iterable[str] | None = None) -> Finder:
    return Finder(queue.store, queue.keys, queue.keys.shards() if shards is None else list(shards))


def every(_seen: Seen) -> bool:
    return True


def but(hidden: Iterable[str]) -> Callable[[Seen], bool]:
    keys = set(hidden)
    return lambda seen: seen.key not in keys


async def look_until_found(
    finder: Finder, is_open: Callable[[Seen], bool] = every, most_looks: int = 3
) -> set[str]:
    for _ in range(most_looks):
        found = await finder.look(is_open)
        if found:
            return {seen.key for seen in found}
    return set()


# --- what hides nothing --------------------------------------------------------------------


@pytest.mark.parametrize("count", [999, 1000, 1001, 3500])
@virtual
async def test_future_markers_hide_no_due_task(world: World, count: int) -> None:
    queue = world.queue()
    put_markers(world, queue.keys, "0", count, priority=0, due_ms=LATER_MS)
    put_markers(world, queue.keys, "0", count, priority=3, due_ms=LATER_MS)
    due = put_markers(world, queue.keys, "0", 1, priority=4)
    requests(queue).counts.clear()
    assert await look_until_found(finder_of(queue)) == set(due)
    assert requests(queue).counts["list"] <= PAGES_A_LOOK


@pytest.mark.parametrize("count", [999, 1000, 1001, 3500])
@virtual
async def test_markers_that_cannot_be_claimed_hide_no_due_task(world: World, count: int) -> None:
    queue = world.queue()
    closed = put_markers(world, queue.keys, "0", count, priority=0)
    due = put_markers(world, queue.keys, "0", 1, priority=4)
    assert await look_until_found(finder_of(queue), but(closed)) == set(due)


@virtual
async def test_a_priority_full_of_future_markers_is_left_at_its_end(world: World) -> None:
    """Due markers stand before future ones at each priority, so nothing is skipped that is due."""
    queue = world.queue()
    closed = put_markers(world, queue.keys, "0", 500, priority=0)
    put_markers(world, queue.keys, "0", 2000, priority=0, due_ms=LATER_MS)
    due = put_markers(world, queue.keys, "0", 1, priority=1)
    requests(queue).counts.clear()
    assert await look_until_found(finder_of(queue), but(closed)) == set(due)
    assert requests(queue).counts["list"] == 2


@virtual
async def test_every_due_task_is_found_in_time(world: World) -> None:
    """One worker on a mix of everything finds all that is due, look by look."""
    queue = world.queue()
    expected, closed = set(), set()
    for number, shard in enumerate(queue.keys.shards()):
        put_markers(world, queue.keys, shard, 1100 * (number % 2), priority=2, due_ms=LATER_MS)
        closed.update(put_markers(world, queue.keys, shard, 700 * (number % 3), priority=4))
        expected.update(put_markers(world, queue.keys, shard, number * 30, priority=6))
    finder, found = finder_of(queue), set()
    for _ in range(60):
        found.update(
            seen.key
            for seen in await finder.look(lambda seen: seen.key not in closed and seen.key not in found)
        )
    assert found == expected


@virtual
async def test_a_whole_round_misses_nothing(world: World) -> None:
    queue = world.queue()
    finder = finder_of(queue, "02468ace")
    for shard in "02468ace":
        (due,) = put_markers(world, queue.keys, shard, 1)
        for _ in range(3):
            found = await finder.look(every, most_pages=sys.maxsize)
            assert {seen.key for seen in found} == {due}
        world.bucket.delete(due)
        assert await finder.look(every, most_pages=sys.maxsize) == []


# --- what it costs -------------------------------------------------------------------------


@pytest.mark.parametrize("shard_prefix_len", [1, 2])
@virtual
async def test_an_idle_look_at_all_shards_is_one_list(world: World, shard_prefix_len: int) -> None:
    queue = world.queue(Keys(shard_prefix_len=shard_prefix_len))
    finder = finder_of(queue)
    for looks in range(1, 6):
        assert await finder.look(every) == []
        assert requests(queue).counts == {"list": looks}
    put_markers(world, queue.keys, queue.keys.shards()[0], 400, due_ms=LATER_MS)
    put_markers(world, queue.keys, queue.keys.shards()[-1], 400, due_ms=LATER_MS)
    assert await finder.look(every) == []
    assert requests(queue).counts == {"list": 6}


@pytest.mark.parametrize(("shards", "lists"), [("0", 1), ("3456", 1), ("f", 1), ("01ef", 2), ("048c", 4)])
@virtual
async def test_neighbouring_shards_share_a_list(world: World, shards: str, lists: int) -> None:
    queue = world.queue()
    finder = finder_of(queue, shards)
    await finder.look(every)
    assert requests(queue).counts == {"list": lists}


@virtual
async def test_a_look_is_four_lists_at_most(world: World) -> None:
    queue = world.queue()
    closed = put_markers(world, queue.keys, "5", 6000)
    finder = finder_of(queue)
    for looks in range(1, 8):
        assert await finder.look(but(closed)) == []
        assert requests(queue).counts["list"] <= PAGES_A_LOOK * looks


# --- which shards, in which order ----------------------------------------------------------


@pytest.mark.parametrize("shards", ["0", "f", "37", "3456", "09af", "02468ace"])
@virtual
async def test_only_the_shards_that_were_asked_for(world: World, shards: str) -> None:
    queue = world.queue()
    of_shard = {shard: set(put_markers(world, queue.keys, shard, 3)) for shard in queue.keys.shards()}
    finder, found = finder_of(queue, reversed(shards)), set()
    for _ in range(10):
        found.update(seen.key for seen in await finder.look(every))
    assert found == set().union(*(of_shard[shard] for shard in shards))


@virtual
async def test_a_backlog_in_one_shard_starves_no_other(world: World) -> None:
    queue = world.queue()
    backlog = put_markers(world, queue.keys, "2", 9000)
    small = [put_markers(world, queue.keys, shard, 1, priority=9)[0] for shard in "0137f"]
    finder, seen_in = finder_of(queue), Counter[str]()
    for _ in range(40):
        for seen in await finder.look(every):
            seen_in[seen.key] += 1
    assert min(seen_in[key] for key in small) >= 5
    assert seen_in[backlog[0]] >= 5


@virtual
async def test_the_most_urgent_of_a_shard_come_first(world: World) -> None:
    """However long its backlog, a shard is entered at its top."""
    queue = world.queue()
    put_markers(world, queue.keys, "2", 5000, priority=5)
    finder = finder_of(queue)
    await finder.look(every)
    (urgent,) = put_markers(world, queue.keys, "2", 1, priority=0)
    assert urgent in {seen.key for _ in range(3) for seen in await finder.look(every)}


@virtual
async def test_a_marker_is_shown_as_it_is(world: World) -> None:
    queue = world.queue()
    (key,) = put_markers(world, queue.keys, "0", 1)
    empty = key.replace("-0000", "-0001")
    world.bucket.put(empty, b"", Always())
    found = await finder_of(queue).look(every)
    assert found == [
        Seen(key, queue.keys.parse_marker(key), has_body=True),
        Seen(empty, queue.keys.parse_marker(empty), has_body=False),
    ]


# --- what does not belong there ------------------------------------------------------------


@virtual
async def test_junk_is_passed_over(world: World) -> None:
    queue = world.queue()
    for number in range(1500):
        world.bucket.put(f"ready/0/0/junk-{number:04d}", b"", Always())
    for junk in ("ready/a", "ready/zzz", "ready/~", "ready/3/notes", "ready/3x/5/x", "ready/0/x/y"):
        world.bucket.put(junk, b"", Always())
    due = put_markers(world, queue.keys, "f", 1) + put_markers(world, queue.keys, "3", 1)
    finder, found = finder_of(queue), set()
    for _ in range(6):
        found.update(seen.key for seen in await finder.look(every))
    assert found == set(due)


@pytest.mark.parametrize(("own", "other"), [(1, 2), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("digit", "7f")
@virtual
async def test_a_key_of_another_layout_is_an_error(world: World, own: int, other: int, digit: str) -> None:
    queue = world.queue(Keys(shard_prefix_len=own))
    put_markers(world, Keys(shard_prefix_len=other), digit * other, 1)
    finder = finder_of(queue)
    with pytest.raises(ForeignKey, match=f"a shard of {other} digits, this queue has {own}"):
        await finder.look(every)


@virtual
async def test_another_queue_s_prefix_is_not_looked_at(world: World) -> None:
    put_markers(world, Keys("ready/", 2), "00", 5)
    queue = world.queue(Keys("other/"))
    assert await finder_of(queue).look(every) == []
