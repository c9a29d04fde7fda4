"""Credentials: plain ones, profiles, and a container role whose keys run out."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from liar import Liar, answer

from buquet.clock import SystemClock
from buquet.config import AccessKeys, Settings
from buquet.errors import NoCredentials
from buquet.s3.credentials import PAUSE_S, ChainCredentials, StaticCredentials, credentials_for


class LaterClock(SystemClock):
    """A clock that can be moved on."""

    later = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later


def role(number: int, *, lasts_s: float) -> bytes:
    """Return what a container's metadata service answers."""
    keys = {
        "AccessKeyId": f"id-{number}",
        "SecretAccessKey": f"secret-{number}",
        "Token": f"token-{number}",
        "Expiration": (datetime.now(UTC) + timedelta(seconds=lasts_s)).isoformat(),
    }
    return answer(200, json.dumps(keys).encode(), connection="close")


@pytest.fixture
def container(monkeypatch):
    """Return a function that points the chain of providers to a metadata service."""

    def use(service: Liar) -> None:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.endpoint}/role")

    return use


async def test_plain_keys():
    settings = Settings.resolve("http://host", "jobs", access_key_id="a", secret_access_key="b", env={})
    source = credentials_for(settings.keys, settings.profile, SystemClock())
    assert isinstance(source, StaticCredentials)
    assert await source.get() == AccessKeys("a", "b")
    assert not await source.renew(source.generation)


async def test_a_profile(tmp_path: Path, monkeypatch):
    file = tmp_path / "credentials"
    file.write_text("[ops]\naws_access_key_id = a\naws_secret_access_key = b\naws_session_token = c\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    source = credentials_for(None, "ops", SystemClock())
    assert await source.get() == AccessKeys("a", "b", "c")
    # What another program writes into the file is read once the store calls the old keys expired.
    file.write_text(file.read_text().replace("= c", "= d"))
    assert await source.get() == AccessKeys("a", "b", "c")
    assert await source.renew(source.generation)
    assert await source.get() == AccessKeys("a", "b", "d")


async def test_a_profile_that_does_not_exist():
    with pytest.raises(NoCredentials, match="nobody"):
        await ChainCredentials("nobody", SystemClock()).get()


async def test_none_anywhere():
    with pytest.raises(NoCredentials, match="AWS_ACCESS_KEY_ID"):
        await ChainCredentials(None, SystemClock()).get()


async def test_a_failed_search_is_not_final(tmp_path: Path, monkeypatch):
    source = ChainCredentials(None, SystemClock())
    with pytest.raises(NoCredentials):
        await source.get()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert await source.get() == AccessKeys("a", "b")


async def test_a_burst_asks_once(container):
    async with Liar(role(1, lasts_s=3600)) as service:
        container(service)
        source = ChainCredentials(None, SystemClock())
        burst = await asyncio.gather(*(source.get() for _ in range(50)))
    assert set(map(repr, burst)) == {"AccessKeys()"}
    assert burst == [AccessKeys("id-1", "secret-1", "token-1")] * 50
    assert len(service.requests) == 1


async def test_keys_about_to_expire_are_not_used(container):
    async with Liar(role(1, lasts_s=20), role(1, lasts_s=20), role(2, lasts_s=3600)) as service:
        container(service)
        source = ChainCredentials(None, SystemClock())
        # botocore itself renews what it has just got, because it lasts less than 15 minutes.
        assert (await source.get()).access_key_id == "id-1"
        burst = await asyncio.gather(*(source.get() for _ in range(50)))
    assert burst == [AccessKeys("id-2", "secret-2", "token-2")] * 50
    assert len(service.requests) == 3


async def test_keys_are_renewed_in_the_background_before_they_expire(container):
    clock = LaterClock()
    async with Liar(role(1, lasts_s=600), role(1, lasts_s=600), role(2, lasts_s=3600)) as service:
        container(service)
        source = ChainCredentials(None, clock)
        await source.get()
        assert (await source.get()).access_key_id == "id-1"
        await asyncio.sleep(0.2)
        assert len(service.requests) == 2, "renewed again at once"
        clock.later = PAUSE_S + 1
        assert (await source.get()).access_key_id == "id-1", "a request waited for the renewal"
        async with asyncio.timeout(5):
            while (await source.get()).access_key_id == "id-1":
                await asyncio.sleep(0.01)
    assert len(service.requests) == 3
    assert source.generation == 2


async def test_a_failed_renewal_leaves_the_old_keys(container, caplog):
    clock = LaterClock()
    caplog.set_level(logging.WARNING)
    async with Liar(
        role(1, lasts_s=600), role(1, lasts_s=590), answer(500, b"{}", connection="close")
    ) as service:
        container(service)
        source = ChainCredentials(None, clock)
        await source.get()
        clock.later = PAUSE_S + 1
        await source.get()
        async with asyncio.timeout(20):
            while "stay in use" not in caplog.text:
                await asyncio.sleep(0.05)
        assert (await source.get()).access_key_id == "id-1"
    assert "secret-1" not in caplog.text
    assert "token-1" not in caplog.text


async def test_expired_keys_are_replaced_once_for_all(container):
    async with Liar(role(1, lasts_s=3600), role(2, lasts_s=3600)) as service:
        container(service)
        source = ChainCredentials(None, SystemClock())
        await source.get()
        refused = source.generation
        assert await asyncio.gather(*(source.renew(refused) for _ in range(50))) == [True] * 50
        assert (await source.get()).access_key_id == "id-2"
        assert await source.renew(refused), "a late word about the old keys"
    assert len(service.requests) == 2


async def test_the_loop_goes_on_while_keys_are_fetched(container):
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(role(1, lasts_s=3600))
        await writer.drain()

    async with Liar(slow) as service:
        container(service)
        fetch = asyncio.create_task(ChainCredentials(None, SystemClock()).get())
        longest = 0.0
        while not fetch.done():
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)
    assert fetch.result().access_key_id == "id-1"
    # The service runs in this loop, so that a blocked loop would not even get an answer.
    assert longest < 0.3


async def test_a_cancelled_request_does_not_cancel_the_others(container):
    async with Liar(role(1, lasts_s=3600)) as service:
        container(service)
        source = ChainCredentials(None, SystemClock())
        first, second = (asyncio.create_task(source.get()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).access_key_id == "id-1"
