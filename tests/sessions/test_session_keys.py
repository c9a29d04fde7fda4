"""Session keys hold names of any characters; a session's body is read with suspicion."""

from __future__ import annotations

import hashlib
from urllib.parse import unquote

import pytest
from fleet import OWNER, leave_session, start, worker_of
from virtual import World, virtual

from buquet import WorkerRunOptions, connect
from buquet._core import ident
from buquet.errors import NewerLayout, PoisonRecord
from buquet.protocol.session import (
    Entry,
    Session,
    buried,
    decode,
    encode,
    encoded_name,
    mint_incarnation,
    parse_session_key,
    session_key,
)

TASK_ID = ident.mint(1_800_000_000_000, 5, 1)
NAMES = ["worker-1", "a.b.c", "a/b\\c", "..", "~", "%2E", "wörker ✓", "名前", "m.x", "a b+c", "x" * 180]
LONG = ["x" * 181, "ü" * 40, "." * 61, "/" * 200]


@pytest.mark.parametrize("name", NAMES + LONG)
@pytest.mark.parametrize("role", ["m", "w"])
def test_a_name_is_one_plain_segment_of_bounded_length(name: str, role: str) -> None:
    incarnation = mint_incarnation(role, "0f" * 16)
    key = session_key("some/prefix/", name, incarnation)
    segment = key.removeprefix("some/prefix/workers/")
    assert segment.isascii()
    assert len(segment) <= 255
    assert not set(segment) & set("/\\~ +")
    found = parse_session_key("some/prefix/", key)
    assert (found.role, found.incarnation) == (role, incarnation)
    assert found.name == encoded_name(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_short_name_can_be_read_from_the_key(name: str) -> None:
    assert unquote(encoded_name(name)) == name


@pytest.mark.parametrize("name", LONG)
def test_a_long_one_is_hashed(name: str) -> None:
    assert encoded_name(name) == hashlib.sha256(name.encode()).hexdigest()


def test_no_two_names_share_a_key() -> None:
    assert len({encoded_name(name) for name in NAMES + LONG}) == len(NAMES + LONG)


@pytest.mark.parametrize(
    "key", ["workers/x", "workers/m.a.b.c.json", "workers/s.a.b.json", "workers/m.a.json", "workers/"]
)
def test_a_key_that_is_no_session_s_is_told(key: str) -> None:
    with pytest.raises(PoisonRecord):
        parse_session_key("", key)


@virtual
async def test_a_tombstone_keeps_everything_but_its_state(world: World) -> None:
    key = leave_session(world, world.queue(), counters={"claimed": 5})
    live = decode(world.bucket.get(key).body)  # type: ignore[union-attr]
    dead = buried(live, nonce="n")
    assert (dead.state, dead.nonce, dead.rev) == ("tombstone", "n", live.rev + 1)
    assert (dead.journal, dead.counters, dead.worker_id) == (live.journal, {"claimed": 5}, OWNER.worker_id)
    assert decode(encode(dead)) == dead


def test_a_newer_layout_is_told_apart() -> None:
    session = Session(nonce="n", worker_id="w", incarnation="wx", started_at="", beat_at="", lifetime_s=30)
    assert decode(encode(session)) == session
    with pytest.raises(NewerLayout):
        decode(b'{"v":2,"anything":[]}')
    with pytest.raises(PoisonRecord):
        decode(b'{"v":"1"}')


@pytest.mark.parametrize("ends_at", ["", "1969-12-31T23:59:59.999Z", "0000-01-01T00:00:00.000Z"])
def test_a_journal_that_makes_no_sense_is_poison(ends_at: str) -> None:
    lease = Entry(TASK_ID, "lease", ends_at)
    session = Session(
        nonce="n", worker_id="w", incarnation="wx", started_at="", beat_at="", lifetime_s=30, journal=[lease]
    )
    with pytest.raises(PoisonRecord, match="its journal"):
        decode(encode(session))


def test_a_body_nested_too_deeply_is_poison() -> None:
    with pytest.raises(PoisonRecord):
        decode(b'{"v":1,"x":' + b"[" * 200_000)


@virtual
async def test_a_worker_of_any_name_is_seen_by_its_monitor(world: World) -> None:
    for name in ("wörker ✓/..", "x" * 200, "名" * 200):
        worker = worker_of(world.queue(), worker_id=name)
        running = start(worker)
        await world.clock.sleep(3)
        (key,) = world.keys("workers/")
        session = decode(world.bucket.get(key).body)  # type: ignore[union-attr]
        assert session.worker_id == name
        assert worker._run is not None
        assert worker._run._watch.live_sessions == 1
        await worker.stop()
        await running
        assert world.keys("workers/") == []


@pytest.mark.parametrize("name", ["wörker ✓/../a.b%20", "名" * 100])
@pytest.mark.server
async def test_a_real_server_takes_such_keys(name: str, seaweedfs: object) -> None:
    settings = seaweedfs.settings(seaweedfs.new_bucket())  # type: ignore[attr-defined]
    async with connect(
        settings.endpoint,
        settings.bucket,
        settings.region,
        access_key_id=settings.keys.access_key_id,
        secret_access_key=settings.keys.secret_access_key,
    ) as queue:
        task = await queue.submit("do", None)
        listed: list[str] = []

        async def look(_input: object) -> None:
            page = await queue.store.list("workers/")
            listed.extend(entry.key for entry in page.entries)

        worker = worker_of(queue, look, worker_id=name)
        await worker.run(WorkerRunOptions(max_tasks=1))
        assert len(listed) == 1
        assert parse_session_key("", listed[0]).name == encoded_name(name)
        assert (await queue.store.list("workers/")).entries == ()
        assert (await queue.wait(task.id)).status == "completed"
