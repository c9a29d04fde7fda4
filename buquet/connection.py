"""connect(): the one place where the parts are put together.

Example::

    async with connect(endpoint="http://localhost:8333", bucket="tasks") as queue:
        await queue.submit("send_email", {"to": "user@example.com"})

    queue = await connect()        # from S3_ENDPOINT, S3_BUCKET, AWS_... in the environment
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any

from buquet.clock import Clock, StoreClock, SystemClock, token
from buquet.config import Settings
from buquet.errors import OutcomeUnknown, Unavailable, UnfitStore
from buquet.protocol.keys import Keys
from buquet.protocol.manifest import (
    DEFAULT_SHARD_PREFIX_LEN,
    Fitness,
    Manifest,
    check_agrees,
    check_shard_prefix_len,
    decode,
    encode,
)
from buquet.queue import Queue
from buquet.store.interface import IfAbsent, Store
from buquet.store.pace import Paced
from buquet.store.probe import VERSION as PROBE_VERSION
from buquet.store.probe import probe
from buquet.store.retry import Retrying, RetryLimits

log = logging.getLogger("buquet")

HEARTBEAT_ATTEMPT_S = 5.0
"""A heartbeat that hangs is given up soon: two of them in a row must not cost the session its life."""

KNOCK = RetryLimits(attempts=3, total_s=2.0)
"""How often the first request is sent before the store counts as down."""

KNOCK_AGAIN_S = 1.0
"""The pause before `connect` looks again for a store that is down."""


class Connecting:
    """What `connect()` returns: await it for a queue, or use it in `async with`."""

    def __init__(
        self, settings: Settings, shard_prefix_len: int | None, *, create_bucket: bool, wait_s: float
    ) -> None:
        self._settings = settings
        self._shard_prefix_len = shard_prefix_len
        self._create_bucket = create_bucket
        self._wait_s = wait_s
        self._queue: Queue | None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"no {name!r} yet: write `queue = await connect(...)`, or `async with connect(...)`"
        )

    def __await__(self) -> Generator[Any, None, Queue]:
        return self._open().__await__()

    async def __aenter__(self) -> Queue:
        self._queue = await self._open()
        return self._queue

    async def __aexit__(self, *exc_info: object) -> None:
        if self._queue is not None:
            await self._queue.close()

    async def _open(self) -> Queue:
        store = open_store(self._settings, SystemClock())
        try:
            manifest = await self._agree(store)
        except BaseException:
            with contextlib.suppress(Exception):
                await store.close()
            raise
        keys = Keys(self._settings.prefix, manifest.shard_prefix_len)
        return Queue(
            store,
            keys,
            max_payload_bytes=self._settings.max_payload_bytes,
            open_store=lambda: open_store(self._settings, SystemClock(), attempt_s=HEARTBEAT_ATTEMPT_S),
        )

    async def _agree(self, store: Retrying) -> Manifest:
        """Read or create the manifest, after the bucket if that is wanted, once the store answers."""
        clock = store.time.clock
        knocking = Retrying(store.once, clock, KNOCK)
        where = self._settings.endpoint or f"bucket {self._settings.bucket}"
        began, waits = clock.monotonic(), False
        while True:
            try:
                if self._create_bucket:
                    await knocking.create_bucket()
                return await agree(store, self._settings.prefix, self._shard_prefix_len, first=knocking)
            except (Unavailable, OutcomeUnknown) as error:
                if clock.monotonic() - began >= self._wait_s:
                    raise Unavailable(
                        f"the store at {where} does not answer ({error.__cause__ or error}): start it, check"
                        " the endpoint, or let connect(wait_s=...) wait for it",
                        key=error.key,
                    ) from error
                if not waits:
                    log.warning("waiting up to %g s for the store at %s: %s", self._wait_s, where, error)
                    waits = True
            await clock.sleep(KNOCK_AGAIN_S)


def connect(
    endpoint: str | None = None,
    bucket: str | None = None,
    region: str | None = None,
    *,
    driver: str | None = None,
    prefix: str = "",
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    profile: str | None = None,
    shard_prefix_len: int | None = None,
    create_bucket: bool = False,
    wait_s: float = 0,
) -> Connecting:
    """Connect to the queue in a bucket; the first client creates it.

    Arguments beat the environment: `S3_ENDPOINT`, `S3_BUCKET`, `S3_REGION`, the `AWS_*`
    variables, `BUQUET_DRIVER`, `BUQUET_PREFIX`.

    Parameters
    ----------
    endpoint:
        The store's URL, `local:PATH` for a SQLite file, or `memory:`. AWS S3 if left out.
    bucket, region:
        The bucket, and the region that requests are signed for.
    driver:
        The dialect; chosen by the endpoint if left out.
    prefix:
        What all keys begin with, so that several queues may share a bucket.
    access_key_id, secret_access_key, session_token, profile:
        Credentials; by default those that botocore finds.
    shard_prefix_len:
        For the client that creates the queue: how many hex digits name a shard, 1 (16 shards)
        to 4. Others leave it out.
    create_bucket:
        Create the bucket if it is missing.
    wait_s:
        How long to wait for a store that does not answer, seconds. By default it is an error
        at once (after a second attempt or two).

    Returns
    -------
    Connecting
        Await it for a `Queue`, or enter it with `async with`.

    Raises
    ------
    ConfigError
        A setting is missing or wrong (a ValueError).
    UnfitStore
        The store does not honour conditional writes.
    ManifestMismatch
        The queue was created with another `shard_prefix_len`.
    Unavailable
        The store did not answer within `wait_s`; the message names the endpoint.
    StoreError
        The store refused: no such bucket, wrong credentials, and so on.
    """
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float):
        raise TypeError(f"wait_s must be a number, not {type(wait_s).__name__}")
    if not wait_s >= 0:
        raise ValueError(f"wait_s must not be negative, and is {wait_s}")
    if shard_prefix_len is not None:
        check_shard_prefix_len(shard_prefix_len)
    settings = Settings.resolve(
        endpoint,
        bucket,
        region,
        driver=driver,
        prefix=prefix,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        profile=profile,
    )
    return Connecting(settings, shard_prefix_len, create_bucket=create_bucket, wait_s=wait_s)


def open_store(settings: Settings, clock: Clock, *, attempt_s: float | None = None) -> Retrying:
    """Open the configured store, with its retry layer and, where its driver asks for it, pacing.

    The order from the outside in: retry, pace, store. A resend is paced like a first attempt.

    Parameters
    ----------
    settings, clock:
        What was configured, and the host's clock.
    attempt_s:
        The longest time of one exchange with a server, seconds; a client's default if left out.
    """
    # Imported here, so that the embedded stores start without aiohttp.
    store: Store
    if settings.kind == "local":
        from buquet.store.local import LocalStore  # noqa: PLC0415

        assert settings.path is not None  # noqa: S101 - a local endpoint has a path
        store = LocalStore(settings.path, clock, bucket=settings.bucket)
    elif settings.kind == "memory":
        from buquet.store.memory import MemoryStore, shared_bucket  # noqa: PLC0415

        store = MemoryStore(clock, shared_bucket(clock, "", settings.bucket))
    else:
        from buquet.s3.exchange import Limits  # noqa: PLC0415
        from buquet.store.s3 import open_store as open_s3  # noqa: PLC0415

        if attempt_s is None:
            store = open_s3(settings, StoreClock(clock))
        else:
            limits = Limits(connections=2, connect_s=attempt_s, read_s=attempt_s, total_s=attempt_s)
            store = open_s3(settings, StoreClock(clock), limits=limits)
    if store.capabilities.write_interval_s > 0:
        store = Paced(store, clock)
    return Retrying(store, clock)


async def agree(
    store: Retrying, prefix: str, shard_prefix_len: int | None, *, first: Retrying | None = None
) -> Manifest:
    """Read the queue's manifest; create it, after a probe of the store, if there is none yet.

    Two clients that create it at once agree: one wins, the other reads what it wrote. The first
    request is sent through `first`, if that is given.
    """
    key = Keys(prefix).manifest
    read_at = store.time.clock.monotonic()
    blob = await (first or store).get(key)
    if blob is None:
        await probe(store, prefix)
        manifest = Manifest(
            shard_prefix_len=shard_prefix_len or DEFAULT_SHARD_PREFIX_LEN,
            created_at=store.time.now(),
            nonce=token(store.time.clock),
            fitness=await _fitness(store, key),
        )
        if await store.put(key, encode(manifest), IfAbsent(read_at)) is not None:
            return manifest
        blob = await store.get(key)
        if blob is None:
            raise UnfitStore("the store refused to create buquet.json, and then had none", key=key)
    manifest = decode(blob.body)
    check_agrees(manifest, shard_prefix_len)
    if manifest.fitness.driver != store.capabilities.name:
        # The store was found fit, but in another dialect than the one that we speak to it.
        await probe(store, prefix, races=False)
    return manifest


async def _fitness(store: Retrying, key: str) -> Fitness:
    """Return what the manifest says of a store that the probe has passed; warn of what is amiss."""
    checks_signatures = await store.refuses_old_signatures(key)
    if not checks_signatures:
        log.warning(
            "this store takes signatures of any age: a request that was held up on its way for hours would"
            " still be applied, and could undo newer work. Use it for development only"
        )
    return Fitness(driver=store.capabilities.name, probe=PROBE_VERSION, checks_signatures=checks_signatures)
