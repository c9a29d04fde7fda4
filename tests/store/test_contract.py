"""The contract suite on every store that can run here, and on stores that break it."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from broken_stores import ChecksThenWrites, CreatesOnIfMatches, IgnoresIfAbsent, IgnoresIfMatches, SaysItLost

from buquet.clock import StoreClock, SystemClock
from buquet.store.interface import IfAbsent, Page, Store, Written
from buquet.store.local import LocalStore
from buquet.store.memory import MemoryStore
from buquet.store.retry import Retrying
from buquet.store.s3 import open_store as open_s3_store
from buquet.testing import contract

every_check = pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)


@every_check
async def test_contract(check: contract.Check, store: Store) -> None:
    await check(store)


@every_check
async def test_contract_with_times_in_whole_seconds(check: contract.Check) -> None:
    await check(MemoryStore(SystemClock(), resolution_ms=1000))


# --- the local store between threads and processes ------------------------------------------

WORKERS = 4
CREATED = [f"contract/{number:04d}" for number in range(200)]


def executor(kind: str) -> Executor:
    if kind == "threads":
        return ThreadPoolExecutor(WORKERS)
    return ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn"))


async def _count(path: Path) -> None:
    store = LocalStore(path, SystemClock())
    await contract.increment(store, "contract/counter", contract.INCREMENTS // WORKERS)
    await store.close()


def count(path: Path) -> None:
    asyncio.run(_count(path))


async def _create_all(path: Path, body: bytes) -> list[str]:
    store = LocalStore(path, SystemClock())
    now = store.time.clock.monotonic()
    created = [key for key in CREATED if await store.put(key, body, IfAbsent(read_at=now))]
    await store.close()
    return created


def create_all(path: Path, body: bytes) -> list[str]:
    return asyncio.run(_create_all(path, body))


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_local_store_loses_no_increment_between(kind: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "queue.db", SystemClock())
    await contract.start_counter(store, "contract/counter")
    with executor(kind) as pool:
        list(pool.map(count, [tmp_path / "queue.db"] * WORKERS))
    assert await contract.read_counter(store, "contract/counter") == contract.INCREMENTS
    await store.close()


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_local_store_lets_one_create_win_between(kind: str, tmp_path: Path) -> None:
    bodies = [str(number).encode() for number in range(WORKERS)]
    with executor(kind) as pool:
        created = list(pool.map(create_all, [tmp_path / "queue.db"] * WORKERS, bodies))
    assert sorted(key for keys in created for key in keys) == [
        f"contract/{number:04d}" for number in range(200)
    ]
    store = LocalStore(tmp_path / "queue.db", SystemClock())
    for body, keys in zip(bodies, created, strict=True):
        for key in keys:
            blob = await store.get(key)
            assert blob is not None
            assert blob.body == body
    await store.close()


# --- the suite finds what it is there to find -----------------------------------------------


class ReturnsAnotherEtag(MemoryStore):
    async def put(self, key, body, condition, **options):
        written = await super().put(key, body, condition)
        return written and Written("0" * 32)


class LosesTheLastByte(MemoryStore):
    async def get(self, key):
        blob = await super().get(key)
        return blob and blob._replace(body=blob.body[:1048575])


class ListsBackwards(MemoryStore):
    async def list(self, prefix, *, after="", limit=1000):
        page = await super().list(prefix, after=after, limit=limit)
        return Page(page.entries[::-1], page.truncated, page.date_ms)


class ForgetsTheRest(MemoryStore):
    async def list(self, prefix, *, after="", limit=1000):
        page = await super().list(prefix, after=after, limit=limit)
        return page._replace(truncated=False)


class IncludesTheStart(MemoryStore):
    async def list(self, prefix, *, after="", limit=1000):
        return await super().list(prefix, after=after[:-1], limit=limit)


class KeepsWhatIsDeleted(MemoryStore):
    async def delete_many(self, keys, *, read_at):
        return []


class HasNoFence(MemoryStore):
    async def delete_many(self, keys, *, read_at):
        return await super().delete_many(keys, read_at=None)


class StandsStill(MemoryStore):
    async def get(self, key):
        blob = await super().get(key)
        return blob and blob._replace(modified_ms=blob.date_ms // 10_000 * 10_000)


class CountsSeconds(MemoryStore):
    async def get(self, key):
        blob = await super().get(key)
        return blob and blob._replace(date_ms=blob.date_ms // 1000)


FAULTS = {
    IgnoresIfAbsent: {"create_writes_once", "one_create_wins"},
    IgnoresIfMatches: {"replace_needs_the_current_version", "one_replace_wins", "no_increment_is_lost"},
    CreatesOnIfMatches: {"replace_never_creates"},
    ChecksThenWrites: {"one_create_wins", "one_replace_wins", "no_increment_is_lost"},
    SaysItLost: {"replace_needs_the_current_version", "no_increment_is_lost"},
    ReturnsAnotherEtag: {"every_view_shows_one_version", "one_create_wins"},
    LosesTheLastByte: {"bodies_come_back_whole"},
    ListsBackwards: {"keys_may_hold_any_character", "listings_are_complete_and_in_order"},
    ForgetsTheRest: {"listings_are_complete_and_in_order"},
    IncludesTheStart: {"listings_are_complete_and_in_order"},
    KeepsWhatIsDeleted: {"delete_is_idempotent", "delete_many_takes_what_is_there"},
    HasNoFence: {"old_decisions_are_not_sent"},
    StandsStill: {"times_advance_with_the_store"},
    CountsSeconds: {"times_advance_with_the_store"},
}

CHECKS = {check.__name__: check for check in contract.CHECKS}


@pytest.mark.parametrize(
    ("fault", "name"),
    [(fault, name) for fault, names in FAULTS.items() for name in sorted(names)],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_contract_finds(fault: type[MemoryStore], name: str) -> None:
    with pytest.raises(contract.ContractBroken):
        await CHECKS[name](fault(SystemClock()))


@pytest.mark.server
@pytest.mark.parametrize(
    "name", ["create_writes_once", "replace_needs_the_current_version", "one_create_wins"]
)
async def test_contract_refuses_a_server_that_ignores_conditions(name: str, rclone) -> None:
    clock = SystemClock()
    once = open_s3_store(rclone.settings(rclone.new_bucket()), StoreClock(clock))
    store = Retrying(once, clock)
    with pytest.raises(contract.ContractBroken):
        await CHECKS[name](store)
    await store.close()
