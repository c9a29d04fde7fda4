"""The proxy itself, and what a client makes of each of its faults in a single request."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fault_proxy import (
    CONDITIONAL,
    WRITES,
    BusyKey,
    DelayReply,
    Drip,
    DropReply,
    FaultProxy,
    Instead,
    Late,
    Refuse,
    Reset,
    Rule,
    Skew,
    StaleList,
    Truncate,
    WrongLength,
)

from buquet.clock import StoreClock, SystemClock
from buquet.errors import ExpiredCredentials, StoreError, WrongRegion
from buquet.s3.client import S3Client
from buquet.s3.exchange import Limits
from buquet.store.driver import Operation
from buquet.store.interface import Always, IfAbsent, IfMatches, Undecided
from buquet.store.retry import Retrying
from buquet.store.s3 import S3Store
from buquet.store.s3 import open_store as open_s3
from buquet.testing import contract

pytestmark = pytest.mark.server

CLOCK = SystemClock()
SHORT = Limits(read_s=0.5, total_s=1)
NOW = IfAbsent(None)
BODY = b'{"a": "body that is long enough to be cut"}'


@pytest.fixture
def open_proxied(seaweedfs, runner):
    """Opens a proxy with rules, and a client of it that makes single attempts."""
    stores, proxies = [], []

    async def open_both(*rules: Rule, server=seaweedfs, limits=SHORT) -> tuple[FaultProxy, S3Store]:
        proxy = FaultProxy(server.endpoint, *rules)
        proxies.append(await proxy.__aenter__())
        settings = replace(server.settings(server.new_bucket()), endpoint=proxy.endpoint)
        stores.append(open_s3(settings, StoreClock(CLOCK), limits))
        return proxy, stores[-1]

    yield open_both
    for thing in (*stores, *proxies):
        runner.run(thing.close() if isinstance(thing, S3Store) else thing.__aexit__())


# --- without rules -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check",
    [
        contract.every_view_shows_one_version,
        contract.delete_many_takes_what_is_there,
        contract.bodies_come_back_whole,
        contract.keys_may_hold_any_character,
        contract.one_create_wins,
        contract.no_increment_is_lost,
    ],
    ids=lambda check: check.__name__,
)
async def test_without_rules_nothing_is_changed(check, open_proxied):
    proxy, store = await open_proxied(limits=Limits())
    await check(Retrying(store, CLOCK))
    assert [seen for seen in proxy.seen if seen.status is None or seen.status >= 500] == []
    assert 1 <= proxy.most_sockets <= 64


# --- writes: what the client is told, and what the store holds -----------------------------------


@pytest.mark.parametrize(
    ("fault", "applied", "error"),
    [
        (Refuse(409, "ConditionalRequestConflict"), False, {"applied": None, "reread": False}),
        (Refuse(500, "InternalError"), False, {"applied": None}),
        (Refuse(500, "InternalError", applied=True), True, {"applied": None}),
        (Refuse(503, "SlowDown"), False, {"applied": None}),
        (Refuse(503, "SlowDown", applied=True), True, {"applied": None}),
        (Refuse(429, "TooManyRequests", headers={"Retry-After": "7"}), False, {"retry_after_s": 7.0}),
        (DropReply(), True, {"applied": None}),
        (DelayReply(0.7), True, {"applied": None}),
        (Late(0.2), True, {"applied": None}),
        (Late(0.2, Refuse(503, "SlowDown")), True, {"applied": None}),
        (Reset(), True, {"applied": None}),
        (Truncate(), True, {"applied": None}),
        (WrongLength(+9), True, {"applied": None}),
        (Drip(1, 0.05), True, {"applied": None}),
    ],
    ids=str,
)
async def test_a_write_is_undecided(fault, applied, error, open_proxied):
    proxy, store = await open_proxied(Rule(fault, WRITES))
    with pytest.raises(Undecided) as caught:
        await store.put("a/1", BODY, NOW)
    assert {name: getattr(caught.value, name) for name in error} == error
    await proxy.settle()
    blob = await store.get("a/1")
    assert (blob is not None) == applied
    assert proxy.fired == {type(fault).__name__: 1}


async def test_a_resend_finds_its_own_write_and_the_late_one_changes_nothing(open_proxied):
    proxy, store = await open_proxied(Rule(Late(0.6), CONDITIONAL, times=2))
    written = await Retrying(store, CLOCK).put("a/1", b"first", NOW)
    replaced = await Retrying(store, CLOCK).put("a/1", b"second", IfMatches(written.etag))
    assert replaced is not None
    assert await Retrying(store, CLOCK).put("a/1", b"third", IfMatches(replaced.etag)) is not None
    await proxy.settle()
    assert (await store.get("a/1")).body == b"third"
    assert [seen.status for seen in proxy.seen if seen.fault] == [412, 412]


async def test_a_key_is_busy_for_a_while_and_others_are_not(open_proxied):
    _, store = await open_proxied(Rule(BusyKey(0.3), WRITES))
    await store.put("a/1", b"", Always())
    with pytest.raises(Undecided) as caught:
        await store.put("a/1", b"", Always())
    assert caught.value.applied is False
    await store.put("a/2", b"", Always())
    await asyncio.sleep(0.3)
    await store.put("a/1", b"", Always())


@pytest.mark.parametrize(("name", "status"), [("seaweedfs", 412), ("ministack", 404)])
@pytest.mark.parametrize(("of", "told", "code"), [(404, 412, "PreconditionFailed"), (412, 404, "NoSuchKey")])
async def test_404_and_412_both_mean_lost(name, status, of, told, code, running, open_proxied):
    proxy, store = await open_proxied(Rule(Instead(of, told, code)), server=running(name))
    assert await store.put("a/1", b"", IfMatches("0" * 32)) is None
    assert await Retrying(store, CLOCK).put("a/1", b"", IfMatches("0" * 32)) is None
    assert {seen.status for seen in proxy.seen} == {status}


# --- reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [Reset(), Truncate(), WrongLength(+9), WrongLength(-9), Drip(1, 0.05), DelayReply(0.7)], ids=str
)
@pytest.mark.parametrize("operation", [Operation.GET, Operation.LIST], ids=str)
async def test_a_read_that_is_cut_or_slow_is_not_believed(operation, fault, open_proxied):
    proxy, store = await open_proxied(Rule(fault, [operation], every=2))
    read = store.get if operation is Operation.GET else store.list
    key = "a/1" if operation is Operation.GET else "a/"
    await store.put("a/1", BODY, NOW)
    whole = await read(key)
    with pytest.raises(Undecided):
        await read(key)
    again = await Retrying(store, CLOCK).get("a/1")
    assert again.body == BODY
    assert whole is not None
    assert proxy.fired


async def test_a_slow_drip_in_time_is_an_answer(open_proxied):
    _, store = await open_proxied(Rule(Drip(50, 0.01)))
    await store.put("a/1", BODY, NOW)
    assert (await store.get("a/1")).body == BODY


async def test_a_stale_listing_has_a_date_of_now(open_proxied):
    proxy, store = await open_proxied(Rule(StaleList()))
    assert (await store.list("a/")).entries == ()
    await store.put("a/1", b"", NOW)
    await asyncio.sleep(1.1)
    stale = await store.list("a/")
    assert stale.entries == ()
    assert abs(stale.date_ms - CLOCK.unix() * 1000) < 1100
    proxy.rules.clear()
    assert len((await store.list("a/")).entries) == 1


# --- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_s", [3600, -3600])
async def test_a_jump_of_the_date_counts_once_three_answers_agree(by_s, open_proxied):
    proxy, store = await open_proxied()

    async def off_s() -> int:
        await store.get("a/1")
        return round((store.time.now_ms() / 1000 - CLOCK.unix()) / 60) * 60

    assert await off_s() == 0
    proxy.rules = [Rule(Skew(by_s))]
    assert [await off_s() for _ in range(3)] == [0, 0, by_s]
    proxy.rules = []
    assert [await off_s() for _ in range(3)][-1] == 0
    proxy.rules = [Rule(Skew(by_s), every=2)]
    assert [await off_s() for _ in range(10)] == [0] * 10


# --- refusals ----------------------------------------------------------------------------------------


async def test_a_redirect_to_another_region_is_an_error_that_names_it_and_is_not_followed(open_proxied):
    async with FaultProxy("http://127.0.0.1:1") as elsewhere:
        redirect = Refuse(
            307,
            "TemporaryRedirect",
            headers={"Location": f"{elsewhere.endpoint}/jobs", "x-amz-bucket-region": "eu-west-1"},
        )
        proxy, store = await open_proxied(Rule(redirect))
        for store_or_retrying in (store, Retrying(store, CLOCK)):
            with pytest.raises(WrongRegion, match=r"in the region 'eu-west-1', not in 'us-east-1'"):
                await store_or_retrying.put("a/1", BODY, NOW)
        assert len(proxy.seen) == 2, "no resend mends it"
        assert elsewhere.seen == []


async def test_a_redirect_without_a_region_names_where_to(open_proxied):
    redirect = Refuse(307, "TemporaryRedirect", headers={"Location": "https://elsewhere/a?signature=x"})
    _, store = await open_proxied(Rule(redirect))
    with pytest.raises(StoreError, match=r"a redirect to https://elsewhere/a: set the endpoint"):
        await Retrying(store, CLOCK).get("a/1")


@pytest.mark.parametrize("status", [400, 403])
async def test_an_expired_token_of_plain_keys_is_an_error_after_one_request(status, open_proxied):
    proxy, store = await open_proxied(Rule(Refuse(status, "ExpiredToken")))
    with pytest.raises(ExpiredCredentials, match="renew it"):
        await Retrying(store, CLOCK).put("a/1", BODY, NOW)
    assert len(proxy.seen) == 1


# --- rules -------------------------------------------------------------------------------------------


async def test_rules_choose_their_requests(open_proxied):
    proxy, store = await open_proxied(
        Rule(Refuse(500, "A"), [Operation.GET], key="^a/", every=2, times=2),
        Rule(Refuse(500, "B"), [Operation.HEAD], header=("host", "nowhere")),
    )

    async def told(call) -> bool:
        try:
            await call
        except Undecided:
            return False
        return True

    assert [await told(store.get("a/1")) for _ in range(6)] == [True, False, True, False, True, True]
    assert [await told(store.get("b/a/1")) for _ in range(3)] == [True] * 3
    assert await told(store.head("a/1"))
    assert proxy.fired == {"Refuse": 2}


async def test_one_seed_gives_one_series_of_faults(open_proxied):
    proxy, store = await open_proxied()
    series = []
    for seed in (1, 1, 2):
        async with FaultProxy(proxy.endpoint, Rule(Refuse(500, "A"), odds=0.5), seed=seed) as other:
            address = replace(store._client.endpoint, host=other.endpoint.removeprefix("http://"))
            store._client = S3Client(address, store._client.region, store._client.credentials)
            for _ in range(20):
                try:
                    await store.get("a/1")
                except Undecided:
                    continue
        series.append([seen.fault is None for seen in other.seen])
    assert series[0] == series[1] != series[2]
    assert {True, False} <= set(series[0])
