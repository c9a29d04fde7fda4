"""What every store must do, as checks that any test runner can call.

`CHECKS` are coroutine functions of one argument, a `Store` that nobody else uses. Each works
under a prefix of its own, so one bucket serves them all, and removes what it wrote. With
pytest, for a store of one's own::

    @pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        asyncio.run(check(MyStore(...)))

Run them on the store as the queue would use it, wrapped in `retry.Retrying` if it makes one
attempt a call.

Errors: `ContractBroken`, which says what the store did and what it should have done.
"""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from buquet.clock import token
from buquet.store.interface import (
    FENCE_S,
    Always,
    Blob,
    Entry,
    FenceExpired,
    IfAbsent,
    IfMatches,
    Store,
    Written,
)

T = TypeVar("T")

CONCURRENCY = 64
"""Requests in flight at once; also how many writers take part in a race."""

ROUNDS = 20
"""How often a race is run."""

INCREMENTS = 160
INCREMENTERS = 16

LISTED_KEYS = 2500

KEY_CHARACTERS = "".join(sorted(set(string.printable) - set(string.whitespace) - set("/\\"))) + " éß€漢🙂"
"""What may stand in a key: the layout needs letters, digits and `-._`, a queue's prefix any of these."""

DATE_TOLERANCE_MS = 3000
"""How far two times of one store may part that were taken at about the same moment."""


class ContractBroken(AssertionError):  # noqa: N818 - it reads as what happened
    """The store does not do what the interface promises."""


Check = Callable[[Store], Awaitable[None]]

CHECKS: list[Check] = []
"""All checks, from the simple to the slow."""


def _check(function: Check) -> Check:
    CHECKS.append(function)
    return function


# --- single requests -----------------------------------------------------------------------


@_check
async def missing_key_reads_as_none(store: Store) -> None:
    """GET and HEAD of a missing key are no errors."""
    key = _prefix(store) + "missing"
    _expect(await store.get(key) is None, "get() of a missing key must return None")
    _expect(await store.head(key) is None, "head() of a missing key must return None")


@_check
async def create_writes_once(store: Store) -> None:
    """`IfAbsent` writes over nothing, and only over nothing."""
    key = _prefix(store) + "object"
    _expect(await _create(store, key, b"first") is not None, "IfAbsent on a missing key must write")
    _expect(await _create(store, key, b"second") is None, "IfAbsent on an existing key must return None")
    await _expect_body(store, key, b"first")
    await _remove(store, [key])
    _expect(await _create(store, key, b"third") is not None, "IfAbsent on a deleted key must write")
    await _remove(store, [key])


@_check
async def replace_needs_the_current_version(store: Store) -> None:
    """`IfMatches` writes over the version it names, and over no other."""
    key = _prefix(store) + "object"
    stale = _written(await store.put(key, b"first", Always()))
    current = await store.put(key, b"second", IfMatches(stale.etag))
    current = _written(current, "IfMatches with the current ETag must write")
    refused = await store.put(key, b"third", IfMatches(stale.etag))
    _expect(refused is None, "IfMatches with a stale ETag must return None")
    await _expect_body(store, key, b"second")
    again = await store.put(key, b"fourth", IfMatches(current.etag))
    _expect(again is not None, "what a put returned must serve as the next condition")
    await _remove(store, [key])


@_check
async def replace_never_creates(store: Store) -> None:
    """`IfMatches` on a missing key writes nothing."""
    key = _prefix(store) + "object"
    written = _written(await store.put(key, b"first", Always()))
    await _remove(store, [key])
    refused = await store.put(key, b"second", IfMatches(written.etag))
    _expect(refused is None, "IfMatches on a missing key must return None")
    _expect(await store.get(key) is None, "IfMatches on a missing key must not create it")


@_check
async def always_overwrites(store: Store) -> None:
    """`Always` writes whatever is there."""
    key = _prefix(store) + "object"
    for body in (b"first", b"second"):
        _written(await store.put(key, body, Always()))
        await _expect_body(store, key, body)
    await _remove(store, [key])


@_check
async def every_view_shows_one_version(store: Store) -> None:
    """PUT, GET, HEAD and LIST agree on ETag, size and time."""
    prefix = _prefix(store)
    key = prefix + "object"
    written = _written(await store.put(key, b"12345", Always()))
    blob = _found(await store.get(key), key)
    head = _found(await store.head(key), key)
    listed = (await store.list(prefix)).entries
    _expect_equal([(entry.key, entry.size) for entry in listed], [(key, 5)], "the listing")
    _expect_equal((head.key, head.size), (key, 5), "the HEAD")
    _expect_equal({written.etag, blob.etag, head.etag, listed[0].etag}, {written.etag}, "the ETags")
    times = [blob.modified_ms, head.modified_ms, listed[0].modified_ms]
    # One view may have milliseconds where another has whole seconds.
    _expect(max(times) - min(times) < 1000, f"GET, HEAD and LIST disagree on the time: {times}")
    await _remove(store, [key])


@_check
async def delete_is_idempotent(store: Store) -> None:
    """A deleted object is gone from every view, and can be deleted again."""
    prefix = _prefix(store)
    key = prefix + "object"
    _written(await store.put(key, b"", Always()))
    for _ in range(2):
        await store.delete(key, read_at=_now(store))
        _expect(await store.get(key) is None, "a deleted object must be gone")
    _expect_equal((await store.list(prefix)).entries, (), "the listing after the DELETE")


@_check
async def delete_many_takes_what_is_there(store: Store) -> None:
    """A batch deletes the objects that it names and no others; missing ones are no failures."""
    prefix = _prefix(store)
    gone, kept, missing = (f"{prefix}{name}" for name in ("gone & <1>", "kept", "missing"))
    for key in (gone, kept):
        _written(await store.put(key, b"", Always()))
    failed = await store.delete_many([gone, missing], read_at=_now(store))
    _expect_equal(failed, [], "the keys that delete_many() could not delete")
    _expect_equal(await _keys(store, prefix), [kept], "the keys that are left")
    await _remove(store, [kept])


@_check
async def bodies_come_back_whole(store: Store) -> None:
    """Empty bodies, every byte, and 1 MiB."""
    prefix = _prefix(store)
    every_byte = bytes(range(256))
    for name, body in (("empty", b""), ("bytes", every_byte), ("large", every_byte * 4096)):
        key = prefix + name
        _written(await _create(store, key, body))
        await _expect_body(store, key, body)
        _expect_equal(_found(await store.head(key), key).size, len(body), f"the size of {name}")
        await _remove(store, [key])


@_check
async def keys_may_hold_any_character(store: Store) -> None:
    """Each character survives in a key and in a prefix, and the listing is in the order of bytes."""
    prefix = _prefix(store)
    keys = [f"{prefix}a{character}z/object" for character in KEY_CHARACTERS]
    await _each(keys, lambda key: _create(store, key, key.encode()))
    _expect_equal(await _keys(store, prefix), sorted(keys, key=str.encode), "the listed keys")
    for key in keys:
        await _expect_body(store, key, key.encode())
        _expect_equal(await _keys(store, key.removesuffix("object")), [key], "the keys of one prefix")
    await _remove(store, keys)


@_check
async def old_decisions_are_not_sent(store: Store) -> None:
    """The fence: no create and no DELETE is sent long after the read that it rests on."""
    key = _prefix(store) + "object"
    old = _now(store) - FENCE_S - 1
    await _expect_fenced(store.put(key, b"", IfAbsent(read_at=old)), "create")
    _expect(await store.get(key) is None, "a fenced create must not be sent")
    _written(await store.put(key, b"", IfAbsent(read_at=None)), "a create without a fence must be sent")
    await _expect_fenced(store.delete(key, read_at=old), "delete")
    await _expect_fenced(store.delete_many([key], read_at=old), "delete_many")
    _expect(await store.get(key) is not None, "a fenced DELETE must not be sent")
    await _remove(store, [key])


@_check
async def times_advance_with_the_store(store: Store) -> None:
    """`Date` and `LastModified` are the store's time, to a second or so, and move with it."""
    prefix = _prefix(store)
    earlier_ms = await _written_at(store, prefix + "earlier")
    await store.time.clock.sleep(1.1)
    later_ms = await _written_at(store, prefix + "later")
    _expect(later_ms > earlier_ms, f"1.1 s later LastModified went from {earlier_ms} to {later_ms}")
    await _remove(store, [prefix + "earlier", prefix + "later"])


async def _written_at(store: Store, key: str) -> int:
    """Write an object and return its `LastModified`, once all its times are found to be sound."""
    _written(await store.put(key, b"", Always()))
    blob = _found(await store.get(key), key)
    page = await store.list(key.rpartition("/")[0] + "/")
    now_ms = store.time.now_ms()
    seen = {"GET's Date": blob.date_ms, "LIST's Date": page.date_ms, "LastModified": blob.modified_ms}
    for what, moment_ms in seen.items():
        off_ms = moment_ms - now_ms
        _expect(abs(off_ms) <= DATE_TOLERANCE_MS, f"{what} is off by {off_ms} ms from the store's time")
    return blob.modified_ms


# --- listings ------------------------------------------------------------------------------


@_check
async def listings_are_complete_and_in_order(store: Store) -> None:
    """Prefixes with 0, 1, 999, 1,000, 1,001 and 2,500 keys, from the start and from within.

    One set of keys serves all of them: `0/` holds 1,001 keys, of which `0/0/` holds 1,000, and
    so on.
    """
    prefix = _prefix(store)
    groups = {"0/0/0/": 999, "0/0/1/": 1, "0/1/0/": 1, "1/0/0/": LISTED_KEYS - 1001}
    keys = [f"{prefix}{group}{number:04d}" for group, size in groups.items() for number in range(size)]
    await _each(keys, lambda key: _create(store, key, b""))
    sizes = {"2/": 0, "0/0/1/": 1, "0/0/0/": 999, "0/0/": 1000, "0/": 1001, "": LISTED_KEYS}
    for group, size in sizes.items():
        expected = [key for key in keys if key.startswith(prefix + group)]
        _expect_equal(len(expected), size, "the number of keys that the check wrote")
        await _expect_listing(store, prefix + group, expected)
    await _expect_start_after(store, prefix, keys)
    await _remove(store, keys)
    _expect_equal(await _keys(store, prefix), [], "the keys after all were deleted")


async def _expect_listing(store: Store, prefix: str, keys: list[str]) -> None:
    """Walk the pages; each but the last must be full, and the last must say that it is."""
    per_page = min(1000, store.capabilities.max_keys)
    listed: list[str] = []
    while True:
        page = await store.list(prefix, after=listed[-1] if listed else "")
        listed += [entry.key for entry in page.entries]
        _expect_equal(page.truncated, len(listed) < len(keys), f"`truncated` after {len(listed)} keys")
        if not page.truncated:
            break
        _expect_equal(len(page.entries), per_page, "the length of a page that is not the last")
    _expect_equal(listed, keys, f"the keys under {prefix!r}")


async def _expect_start_after(store: Store, prefix: str, keys: list[str]) -> None:
    for index in (0, 998, 999, 1000, LISTED_KEYS - 2, LISTED_KEYS - 1):
        page = await store.list(prefix, after=keys[index], limit=7)
        expected = keys[index + 1 : index + 8]
        _expect_equal([entry.key for entry in page.entries], expected, f"the keys after number {index}")
        _expect_equal(page.truncated, index + 8 < LISTED_KEYS, f"`truncated` after number {index}")
    between = await store.list(prefix, after=keys[5] + "-", limit=1)
    _expect_equal(
        [entry.key for entry in between.entries], [keys[6]], "the key after one that does not exist"
    )


# --- races ---------------------------------------------------------------------------------


@_check
async def one_create_wins(store: Store) -> None:
    """Of 64 creates of one key at once exactly one is told that it wrote, and its body stands."""
    prefix = _prefix(store)
    for number in range(ROUNDS):
        key = f"{prefix}{number:02d}"
        await _race(store, key, IfAbsent(read_at=_now(store)))
    await _remove(store, [f"{prefix}{number:02d}" for number in range(ROUNDS)])


@_check
async def one_replace_wins(store: Store) -> None:
    """Of 64 writes over one version exactly one is told that it wrote, and its body stands."""
    key = _prefix(store) + "object"
    etag = _written(await store.put(key, b"", Always())).etag
    for _ in range(ROUNDS):
        etag = (await _race(store, key, IfMatches(etag))).etag
    await _remove(store, [key])


async def _race(store: Store, key: str, condition: IfAbsent | IfMatches) -> Written:
    bodies = [token(store.time.clock).encode() for _ in range(CONCURRENCY)]
    results = await asyncio.gather(*(store.put(key, body, condition) for body in bodies))
    winners = [(body, won) for body, won in zip(bodies, results, strict=True) if won is not None]
    _expect_equal(len(winners), 1, f"the winners of {CONCURRENCY} puts with one {type(condition).__name__}")
    body, won = winners[0]
    _expect_equal(await _expect_body(store, key, body), won.etag, "the ETag of what the winner wrote")
    return won


@_check
async def no_increment_is_lost(store: Store) -> None:
    """160 increments of one counter by 16 writers, each by compare-and-swap, add up to 160."""
    key = _prefix(store) + "counter"
    each = INCREMENTS // INCREMENTERS
    await start_counter(store, key)
    await asyncio.gather(*(increment(store, key, each) for _ in range(INCREMENTERS)))
    _expect_equal(await read_counter(store, key), INCREMENTS, "the counter")
    await _remove(store, [key])


async def start_counter(store: Store, key: str) -> None:
    """Create the counter that `increment` counts, at 0."""
    _written(await _create(store, key, _counter(store, 0)))


async def increment(store: Store, key: str, times: int) -> None:
    """Add one to a counter, `times` times, each by compare-and-swap.

    Public so that several processes can be set on one counter.

    Raises
    ------
    ContractBroken
        A thousand attempts in a row were refused.
    """
    for _ in range(times):
        for _ in range(1000):
            blob = _found(await store.get(key), key)
            count = json.loads(blob.body)["count"]
            if await store.put(key, _counter(store, count + 1), IfMatches(blob.etag)) is not None:
                break
        else:
            raise ContractBroken("IfMatches with the ETag of a GET was refused a thousand times in a row")


async def read_counter(store: Store, key: str) -> int:
    """Return where a counter stands."""
    return int(json.loads(_found(await store.get(key), key).body)["count"])


def _counter(store: Store, count: int) -> bytes:
    # Equal bodies have equal ETags, and a retry layer knows its own write by the body.
    return json.dumps({"count": count, "nonce": token(store.time.clock)}).encode()


# --- helpers -------------------------------------------------------------------------------


def _prefix(store: Store) -> str:
    return f"contract/{token(store.time.clock)}/"


def _now(store: Store) -> float:
    return store.time.clock.monotonic()


async def _create(store: Store, key: str, body: bytes) -> Written | None:
    return await store.put(key, body, IfAbsent(read_at=_now(store)))


async def _remove(store: Store, keys: list[str]) -> None:
    per_batch = min(1000, store.capabilities.max_keys)
    for first in range(0, len(keys), per_batch):
        failed = await store.delete_many(keys[first : first + per_batch], read_at=_now(store))
        _expect_equal(failed, [], "the keys that delete_many() could not delete")


async def _keys(store: Store, prefix: str) -> list[str]:
    page = await store.list(prefix)
    return [entry.key for entry in page.entries]


async def _each(items: Iterable[T], act: Callable[[T], Awaitable[object]]) -> None:
    """Call `act` for each item, `CONCURRENCY` of them at a time."""
    rest = iter(items)

    async def work() -> None:
        for item in rest:
            await act(item)

    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


def _expect(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - what assert takes
    if not condition:
        raise ContractBroken(otherwise)


def _expect_equal(seen: object, wanted: object, what: str) -> None:
    if seen != wanted:
        raise ContractBroken(f"{what}: {_short(seen)}, should be {_short(wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:150]} ... {text[-150:]}"


async def _expect_body(store: Store, key: str, body: bytes) -> str:
    blob = _found(await store.get(key), key)
    _expect_equal((blob.key, blob.body), (key, body), f"what get({key!r}) returned")
    return blob.etag


async def _expect_fenced(request: Awaitable[object], what: str) -> None:
    try:
        await request
    except FenceExpired:
        return
    raise ContractBroken(f"a {what} that rests on a read {FENCE_S + 1:.0f} s ago must raise FenceExpired")


V = TypeVar("V", Blob, Entry)


def _found(view: V | None, key: str) -> V:
    if view is None:
        raise ContractBroken(f"{key!r} was written, and reads as missing")
    return view


def _written(result: Written | None, otherwise: str = "a put whose condition holds must write") -> Written:
    if result is None:
        raise ContractBroken(otherwise)
    return result
