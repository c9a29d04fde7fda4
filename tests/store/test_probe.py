"""The probe and what `connect` makes of it: who is refused, what it costs, what is remembered."""

from __future__ import annotations

import asyncio
import logging

import pytest
import servers
from broken_stores import (
    ChecksThenCreates,
    ChecksThenReplaces,
    ChecksThenWrites,
    CreatesOnIfMatches,
    IgnoresIfAbsent,
    IgnoresIfMatches,
    SaysItLost,
)
from fault_proxy import FaultProxy, Refuse, Rule

from buquet import connect
from buquet.clock import SystemClock
from buquet.connection import agree
from buquet.errors import BucketMissing, ManifestMismatch, Unavailable, UnfitStore
from buquet.protocol.manifest import decode
from buquet.store.interface import Capabilities, IfAbsent, Undecided
from buquet.store.memory import MemoryBucket, MemoryStore
from buquet.store.pace import Paced
from buquet.store.probe import PAUSE_S, RACERS, probe
from buquet.store.retry import Retrying
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.counting import CountingStore
from buquet.testing.faulty import Busy, FaultyStore, LostReply

CREATED = {"get": 4, "put": 6 + 2 * RACERS, "delete": 1, "delete_many": 1}
"""What the client that creates a queue asks of the store: the probe, and the manifest."""


def retrying(store) -> Retrying:
    return store if isinstance(store, Retrying) else Retrying(store, store.time.clock)


def options(server: servers.Server, **others) -> dict[str, str]:
    """The arguments of `connect` for a server."""
    return {
        "endpoint": server.endpoint,
        "region": servers.REGION,
        "access_key_id": servers.ACCESS_KEY_ID,
        "secret_access_key": servers.SECRET_ACCESS_KEY,
        **others,
    }


# --- who passes ------------------------------------------------------------------------------


async def test_fit_stores_pass_and_nothing_is_left(store):
    await probe(retrying(store), "a/")
    assert (await store.list("a/")).entries == ()


@pytest.mark.parametrize(
    ("broken", "did"),
    [
        (IgnoresIfAbsent, r"overwrote an object although If-None-Match: \* forbade it; it should answer 412"),
        (IgnoresIfMatches, r"although If-Match named an older ETag; it should answer 412"),
        (CreatesOnIfMatches, r"although If-Match named one that is gone; it should answer 404 or 412"),
        (SaysItLost, r"refused an If-Match with the current ETag; it should accept it .*BUQUET_DRIVER=ceph"),
        (ChecksThenWrites, rf"let {RACERS} of {RACERS} racing creates succeed; it should let exactly one"),
        (ChecksThenCreates, rf"let {RACERS} of {RACERS} racing creates succeed; it should let exactly one"),
        (ChecksThenReplaces, rf"let {RACERS} of {RACERS} racing If-Match writes succeed"),
    ],
)
async def test_unfit_stores_are_refused_by_what_they_did(broken, did):
    store = broken(SystemClock())
    with pytest.raises(UnfitStore, match=did):
        await agree(retrying(store), "", None)
    assert (await store.list("")).entries == (), "no manifest, and nothing of the probe"


@pytest.mark.server
async def test_a_server_that_ignores_conditions_is_refused(rclone):
    bucket = rclone.new_bucket()
    with pytest.raises(UnfitStore, match=r"If-None-Match: \* forbade it; it should answer 412"):
        await connect(**options(rclone, bucket=bucket))
    assert "Contents" not in rclone.client.list_objects_v2(Bucket=bucket)


# --- races -----------------------------------------------------------------------------------


class OneWriteASecond(MemoryStore):
    """429 to a second write of a key within a second, as R2 answers."""

    capabilities = Capabilities(name="r2", write_interval_s=1.0)

    def __init__(self, clock):
        super().__init__(clock)
        self.busy = 0
        self._writable_at = {}

    async def put(self, key, body, condition, **options):
        await self._clock.sleep(0.01)
        now = self._clock.monotonic()
        if now < self._writable_at.get(key, 0.0):
            self.busy += 1
            raise Undecided("429", applied=False)
        self._writable_at[key] = now + 1
        return await super().put(key, body, condition)


def test_racers_are_not_paced_and_a_429_is_no_winner():
    async def scenario(clock: VirtualClock) -> int:
        store = OneWriteASecond(clock)
        await probe(Retrying(Paced(store, clock), clock), "")
        return store.busy

    assert run_virtual(scenario) >= 2 * (RACERS - 1)


class Telling(FaultyStore):
    """A store of whose racers none is told how it went: the plan begins with the first race."""

    def __init__(self, clock, *faults):
        self.script = [fault for fault in faults for _ in range(RACERS)]
        super().__init__(MemoryStore(clock), clock, self.plan_of_race)

    def plan_of_race(self, kind, key):
        return self.script.pop(0) if self.script and kind == "put" and key.endswith("raced") else None


@pytest.mark.parametrize(
    "faults",
    [[LostReply()], [Busy()], [Busy(), Busy()], [Busy(), LostReply(), Busy(), Busy()]],
    ids=["won by what stands", "again", "again and again", "both races"],
)
def test_a_race_that_tells_nothing_is_settled_by_what_stands_or_run_again(faults):
    async def scenario(clock: VirtualClock) -> int:
        store = Telling(clock, *faults)
        await probe(Retrying(store, clock), "")
        return len(store.script)

    assert run_virtual(scenario) == 0


def test_a_store_that_never_tells_is_not_called_unfit():
    async def scenario(clock: VirtualClock) -> float:
        with pytest.raises(Unavailable, match="answered none of 16 racing creates: try again later"):
            await probe(Retrying(Telling(clock, Busy(), Busy(), Busy()), clock), "")
        return clock.monotonic()

    assert run_virtual(scenario) >= 2 * PAUSE_S


def test_a_racer_that_was_not_told_can_be_the_second_winner():
    class LosesTheLastReply(ChecksThenCreates):
        async def put(self, key, body, condition, **options):
            written = await super().put(key, body, condition)
            if key.endswith("raced") and isinstance(condition, IfAbsent):
                self.racers += 1
                if self.racers == RACERS:
                    raise Undecided("lost")
                return written if self.racers == 1 else None
            return written

        racers = 0

    async def scenario(clock: VirtualClock) -> None:
        with pytest.raises(UnfitStore, match=rf"let 2 of {RACERS} racing creates succeed"):
            await probe(Retrying(LosesTheLastReply(clock), clock), "")

    run_virtual(scenario)


# --- what it costs, and what is remembered -----------------------------------------------------


async def test_the_first_client_pays_for_the_probe_and_later_ones_one_get():
    clock = SystemClock()
    bucket = MemoryBucket(clock)
    first, second = (CountingStore(MemoryStore(clock, bucket)) for _ in range(2))
    created = await agree(Retrying(first, clock), "q/", 2)
    assert first.counts == CREATED
    assert await agree(Retrying(second, clock), "q/", None) == created
    assert second.counts == {"get": 1}


@pytest.mark.server
async def test_a_later_connect_is_one_request_on_the_wire(seaweedfs):
    arguments = options(seaweedfs, bucket=seaweedfs.new_bucket())
    await (await connect(**arguments)).close()
    async with FaultProxy(seaweedfs.endpoint) as proxy:
        await (await connect(**{**arguments, "endpoint": proxy.endpoint})).close()
    assert [(seen.request.method, seen.request.key) for seen in proxy.seen] == [("GET", "buquet.json")]


async def test_clients_that_create_it_at_once_agree(open_store):
    stores = [retrying(open_store()) for _ in range(3)]
    manifests = await asyncio.gather(*(agree(store, "", None) for store in stores))
    assert manifests == [decode((await stores[0].get("buquet.json")).body)] * 3


async def test_of_clients_that_create_it_differently_at_once_one_prevails(open_store):
    outcomes = await asyncio.gather(
        *(agree(retrying(open_store()), "", length) for length in (1, 2)), return_exceptions=True
    )
    (manifest,) = (outcome for outcome in outcomes if not isinstance(outcome, Exception))
    (refused,) = (outcome for outcome in outcomes if isinstance(outcome, Exception))
    assert isinstance(refused, ManifestMismatch)
    assert f"created with shard_prefix_len={manifest.shard_prefix_len}" in str(refused)


async def test_the_shard_prefix_is_the_manifests(tmp_path):
    endpoint = f"local:{tmp_path / 'queue.db'}"
    async with connect(endpoint, shard_prefix_len=2) as queue:
        assert queue.keys.shard_prefix_len == 2
    async with connect(endpoint) as queue:
        assert queue.keys.shard_prefix_len == 2
    with pytest.raises(ManifestMismatch, match="created with shard_prefix_len=2, not 1: leave the setting"):
        await connect(endpoint, shard_prefix_len=1)


# --- signatures --------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize(
    ("name", "checks"), [("seaweedfs", True), ("localstack", False), ("ministack", False)]
)
async def test_a_store_that_takes_old_signatures_is_reported(name, checks, running, caplog):
    server = running(name)
    bucket = server.new_bucket()
    async with connect(**options(server, bucket=bucket)) as queue:
        manifest = decode((await queue.store.get("buquet.json")).body)
    assert manifest.fitness.checks_signatures is checks
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == (not checks)
    assert all("takes signatures of any age" in warning for warning in warnings)


@pytest.mark.server
async def test_an_answer_that_is_open_says_nothing_of_signatures(seaweedfs):
    bucket = seaweedfs.new_bucket()
    busy = Rule(Refuse(503, "SlowDown"), key="buquet", every=2, times=1)
    async with (
        FaultProxy(seaweedfs.endpoint, busy) as proxy,
        connect(**{**options(seaweedfs, bucket=bucket), "endpoint": proxy.endpoint}) as queue,
    ):
        manifest = decode((await queue.store.get("buquet.json")).body)
    assert proxy.fired
    assert manifest.fitness.checks_signatures


# --- dialects ----------------------------------------------------------------------------------

BARE_ONLY = Rule(Refuse(412, "PreconditionFailed"), header=("if-match", '"'))
"""Ceph compares `If-Match` with the bare ETag, so that the quoted form never matches."""


@pytest.mark.server
async def test_a_store_of_bare_etags_is_refused_with_the_cure(seaweedfs):
    bucket = seaweedfs.new_bucket()
    async with FaultProxy(seaweedfs.endpoint, BARE_ONLY) as proxy:
        arguments = {**options(seaweedfs, bucket=bucket), "endpoint": proxy.endpoint}
        with pytest.raises(
            UnfitStore, match=r"refused an If-Match with the current ETag.*BUQUET_DRIVER=ceph"
        ):
            await connect(**arguments)
        async with connect(**arguments, driver="ceph") as queue:
            manifest = decode((await queue.store.get("buquet.json")).body)
            assert manifest.fitness.driver == "ceph"
        # Without its driver a client would take every refused write for a lost one.
        with pytest.raises(UnfitStore, match="BUQUET_DRIVER=ceph"):
            await connect(**arguments)


async def test_another_dialect_than_the_manifests_is_tried_without_a_race():
    class Other(MemoryStore):
        capabilities = Capabilities(name="other")

    clock = SystemClock()
    bucket = MemoryBucket(clock)
    created = await agree(Retrying(MemoryStore(clock, bucket), clock), "", None)
    other = CountingStore(Other(clock, bucket))
    assert await agree(Retrying(other, clock), "", None) == created
    assert other.counts == {"get": 1, "put": 5, "delete": 1, "delete_many": 1}


# --- the bucket ----------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("name", ["seaweedfs", "localstack", "ministack"])
async def test_connect_creates_a_missing_bucket_if_asked(name, running):
    server = running(name)
    arguments = options(server, bucket="made-by-connect")
    with pytest.raises(BucketMissing, match="create_bucket=True"):
        await connect(**arguments)
    for _ in range(2):
        async with connect(**arguments, create_bucket=True) as queue:
            assert await queue.get("01a228b2-118b-7000-9419-63ccf436ba37") is None


@pytest.mark.parametrize("endpoint", ["memory:", "local:queue.db"])
async def test_embedded_stores_need_no_bucket_to_be_created(endpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with connect(endpoint, bucket="made-by-connect", create_bucket=True) as queue:
        assert await queue.store.get("buquet.json") is not None


@pytest.mark.server
async def test_a_bucket_is_created_through_lost_replies_and_pacing(seaweedfs):
    refused = Rule(Refuse(503, "SlowDown", applied=True), header=("x-amz-date", ""), times=2)
    async with FaultProxy(seaweedfs.endpoint, refused) as proxy:
        arguments = {**options(seaweedfs, bucket="made-at-last"), "endpoint": proxy.endpoint, "driver": "r2"}
        async with connect(**arguments, create_bucket=True) as queue:
            assert await queue.store.get("buquet.json") is not None
    assert proxy.fired["Refuse"] == 2
