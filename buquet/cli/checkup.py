"""The checks of `buquet doctor`, in the order in which one needs the other.

Example::

    is_well = await check_up(where, print)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from buquet.audit import verify
from buquet.cli.options import Where, place
from buquet.clock import SystemClock, token
from buquet.config import Settings
from buquet.connection import KNOCK, open_store
from buquet.errors import (
    AccessDenied,
    BucketMissing,
    BuquetError,
    ClockSkewed,
    ConfigError,
    ExpiredCredentials,
    OutcomeUnknown,
    StoreError,
    Unavailable,
    UnfitStore,
    UnknownAccessKey,
    WrongRegion,
    WrongSecret,
)
from buquet.ledger import Ledger
from buquet.protocol import manifest
from buquet.protocol.keys import Keys
from buquet.store.interface import IfAbsent, IfMatches
from buquet.store.probe import probe
from buquet.store.retry import Retrying

SKEW_S = 2.0
"""A local clock that is off by more is worth a word; the queue goes by the store's all the same."""

SAMPLED = 1000
"""A shard is audited if it has no more tasks than this."""

CULPRITS: dict[type[BuquetError], tuple[str, str]] = {
    UnknownAccessKey: ("credentials", "check AWS_ACCESS_KEY_ID, or the profile"),
    WrongSecret: ("credentials", "check AWS_SECRET_ACCESS_KEY, or the profile"),
    ExpiredCredentials: ("credentials", "log in again (`aws sso login`), or get a new session token"),
    ClockSkewed: ("clock", "set this machine's clock (`timedatectl set-ntp true`)"),
    WrongRegion: ("region", "set --region or S3_REGION to the bucket's"),
    BucketMissing: ("bucket", "create it with `buquet init`, or check --bucket"),
    Unavailable: ("address", "check --endpoint and the network, and that the store runs"),
    OutcomeUnknown: ("address", "check the network: replies get lost"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: `state` is ok, bad, advice or skipped; `cure` says what to do."""

    state: str
    what: str
    found: str
    cure: str = ""


async def check_up(where: Where, show: Callable[[Line], None]) -> bool:
    """Make all checks that can be made; return whether nothing is bad.

    Parameters
    ----------
    where:
        The queue.
    show:
        Called with each finding as soon as there is one.
    """
    is_well = True
    async for line in _lines(where):
        show(line)
        is_well &= line.state != "bad"
    return is_well


async def _lines(where: Where) -> AsyncIterator[Line]:
    try:
        settings = where.settings()
    except ConfigError as error:
        yield Line("bad", "configuration", str(error), "`buquet config` shows what holds")
        return
    yield Line("ok", "configuration", place(settings))
    try:
        store = open_store(settings, SystemClock())
    except BuquetError as error:
        yield Line("bad", "configuration", str(error), "`buquet config` shows what holds")
        return
    try:
        async for line in _store_lines(settings, store):
            yield line
    finally:
        await store.close()


async def _store_lines(settings: Settings, store: Retrying) -> AsyncIterator[Line]:
    clock = store.time.clock
    knocking = Retrying(store.once, clock, KNOCK)
    key = Keys(settings.prefix).manifest
    try:
        blob = await knocking.get(key)
    except AccessDenied as error:
        yield Line("bad", "permissions", str(error), "allow s3:GetObject and s3:ListBucket")
        return
    except BuquetError as error:
        what, cure = CULPRITS.get(type(error), ("store", "see docs/stores.md"))
        if isinstance(error, ConfigError):
            what, cure = "credentials", "`buquet config` shows where they come from"
        yield Line("bad", what, str(error), cure)
        return
    if settings.kind == "s3":
        yield Line("ok", "credentials", "the store takes them")
    yield Line("ok", "address", f"{settings.endpoint or settings.path or settings.kind} answers")
    yield Line("ok", "bucket", f"{settings.bucket} is there")
    yield _clock_line(store)
    trial = _Permissions(store, settings.prefix)
    async for line in trial.lines():
        yield line
    if trial.complete:
        yield await _probe_line(store, settings.prefix)
        yield await _signature_line(store, key)
    if settings.kind == "s3":
        for line in await asyncio.to_thread(_bucket_lines, settings, store.capabilities.name):
            yield line
    async for line in _queue_lines(store, settings.prefix, None if blob is None else blob.body):
        yield line


def _clock_line(store: Retrying) -> Line:
    off_s = store.time.clock.unix() - store.time.now_ms() / 1000
    error_s = store.time.error_ms / 1000
    found = f"this machine's is {abs(off_s):.1f} s {'ahead' if off_s > 0 else 'behind'} (± {error_s:.1f} s)"
    if abs(off_s) - error_s > SKEW_S:
        return Line(
            "advice", "clock", found, "the queue goes by the store's; set it (`timedatectl set-ntp true`)"
        )
    return Line("ok", "clock", found)


class _Permissions:
    """Tries each action that a queue needs, on an object of its own."""

    def __init__(self, store: Retrying, prefix: str) -> None:
        self.complete = True
        """Whether every action was allowed."""
        self._store = store
        self._prefix = f"{prefix}probe/"
        self._key = f"{self._prefix}{token(store.time.clock)}-doctor"
        self._etag = ""

    async def lines(self) -> AsyncIterator[Line]:
        """Yield a line for what is allowed, and one for each action that is not."""
        allowed = []
        for name, action in {
            "s3:PutObject": self._create,
            "s3:GetObject": self._read,
            "s3:PutObject with If-Match": self._replace,
            "s3:ListBucket": self._list,
            "s3:DeleteObject": self._delete,
            "s3:DeleteObject in batches": self._delete_many,
        }.items():
            try:
                await action()
            except StoreError as error:
                self.complete = False
                yield Line(
                    "bad", "permissions", f"{name}: {error}", f"allow {name.split()[0]} to these credentials"
                )
            else:
                allowed.append(name)
        if self.complete:
            yield Line("ok", "permissions", "; ".join(allowed))

    async def _create(self) -> None:
        written = await self._store.put(self._key, b"1", IfAbsent(self._now()))
        self._etag = "" if written is None else written.etag

    async def _read(self) -> None:
        await self._store.get(self._key)
        await self._store.head(self._key)

    async def _replace(self) -> None:
        await self._store.put(self._key, b"2", IfMatches(self._etag))

    async def _list(self) -> None:
        await self._store.list(self._prefix, limit=1)

    async def _delete(self) -> None:
        await self._store.delete(self._key, read_at=self._now())

    async def _delete_many(self) -> None:
        failed = await self._store.delete_many([self._key], read_at=self._now())
        if failed:
            raise AccessDenied("the store did not delete what a batch named", key=self._key)

    def _now(self) -> float:
        return self._store.time.clock.monotonic()


async def _probe_line(store: Retrying, prefix: str) -> Line:
    try:
        await probe(store, prefix)
    except UnfitStore as error:
        return Line("bad", "probe", str(error), "use another store")
    except StoreError as error:
        return Line("bad", "probe", str(error), "try again when the store is less busy")
    return Line("ok", "probe", "the store honours conditional writes, also when they race")


async def _signature_line(store: Retrying, key: str) -> Line:
    try:
        if await store.refuses_old_signatures(key):
            return Line("ok", "signatures", "an old one is refused")
    except StoreError as error:
        return Line("skipped", "signatures", str(error))
    if store.capabilities.name in {"local", "memory"}:
        return Line("ok", "signatures", "not needed here")
    return Line("advice", "signatures", "the store takes old ones", "use it for development only")


# --- the bucket's settings -----------------------------------------------------------------


def _bucket_lines(settings: Settings, driver: str) -> list[Line]:
    """Look at versioning and life-cycle; blocks. botocore asks, because the queue itself never does."""
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    from buquet.store.registry import load

    dialect = load(driver)
    region = settings.region or dialect.default_region
    endpoint = settings.endpoint or (dialect.default_endpoint or "").format(region=region) or None
    keys = settings.keys
    client = botocore.session.Session(profile=settings.profile).create_client(
        "s3",
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=keys and keys.access_key_id,
        aws_secret_access_key=keys and keys.secret_access_key,
        aws_session_token=keys and keys.session_token,
        config=Config(
            connect_timeout=5,
            read_timeout=10,
            retries={"max_attempts": 0},
            s3={"addressing_style": "path" if dialect.path_style else "virtual"},
        ),
    )

    def ask(method: str) -> dict[str, Any] | Exception:
        try:
            return dict(getattr(client, method)(Bucket=settings.bucket))
        except (BotoCoreError, ClientError) as error:
            failure: Exception = error
            return failure

    rules = ask("get_bucket_lifecycle_configuration")
    return [_versioning_line(ask("get_bucket_versioning"), rules), _life_cycle_line(rules, settings.prefix)]


def _code(error: Exception) -> str:
    response: dict[str, Any] = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def _rules(answer: dict[str, Any] | Exception) -> list[dict[str, Any]]:
    if isinstance(answer, Exception):
        return []
    return [rule for rule in answer.get("Rules", []) if rule.get("Status") == "Enabled"]


def _versioning_line(answer: dict[str, Any] | Exception, rules: dict[str, Any] | Exception) -> Line:
    if isinstance(answer, Exception):
        return Line("skipped", "versioning", f"the store does not say: {answer}")
    if answer.get("Status") != "Enabled":
        return Line("ok", "versioning", "off, as a queue wants it")
    if any("NoncurrentVersionExpiration" in rule for rule in _rules(rules)):
        return Line("ok", "versioning", "on, and old versions expire")
    return Line(
        "advice",
        "versioning",
        "on: each task leaves several versions, which are billed for ever",
        "turn it off, or add a life-cycle rule that expires noncurrent versions after a day",
    )


def _life_cycle_line(answer: dict[str, Any] | Exception, prefix: str) -> Line:
    if isinstance(answer, Exception) and _code(answer) != "NoSuchLifecycleConfiguration":
        return Line("skipped", "life cycle", f"the store does not say: {answer}")
    for rule in _rules(answer):
        filtered = rule.get("Filter", {})
        begins = rule.get("Prefix", filtered.get("Prefix", filtered.get("And", {}).get("Prefix", "")))
        if ("Expiration" in rule or "Transitions" in rule) and _touches(begins, prefix):
            return Line(
                "bad",
                "life cycle",
                f"the rule {rule.get('ID', begins)!r} expires or moves the queue's objects",
                "take the queue's prefix out of it: `buquet archive` removes what is old",
            )
    return Line("ok", "life cycle", "no rule touches the queue's objects")


def _touches(begins: str, prefix: str) -> bool:
    return begins.startswith(prefix) or prefix.startswith(begins)


# --- the queue -----------------------------------------------------------------------------


async def _queue_lines(store: Retrying, prefix: str, body: bytes | None) -> AsyncIterator[Line]:
    if body is None:
        yield Line(
            "advice", "layout", "there is no queue yet", "`buquet init`, or the first client, creates it"
        )
        return
    try:
        found = manifest.decode(body)
    except BuquetError as error:
        yield Line("bad", "layout", str(error), "upgrade buquet, or take another --prefix")
        return
    yield Line(
        "ok", "layout", f"version {found.v}, {16**found.shard_prefix_len:,} shards, since {found.created_at}"
    )
    keys = Keys(prefix, found.shard_prefix_len)
    shard = keys.shards()[store.time.clock.bits(16) % 16**found.shard_prefix_len]
    try:
        if (await store.list(f"{keys.tasks}{shard}/")).truncated:
            many = f"shard {shard} has more than {SAMPLED:,} tasks"
            yield Line("skipped", "invariant", many, "`buquet verify` reads them all")
            return
        report = await verify(Ledger(store, keys), shards=[shard])
    except BuquetError as error:
        yield Line("bad", "invariant", str(error), "see docs/protocol.md")
        return
    total = sum(report.by_status.values())
    if report.is_sound:
        yield Line("ok", "invariant", f"holds for the {total:,} tasks of shard {shard}")
    else:
        finding = next(one for one in report.findings)
        yield Line("bad", "invariant", f"{finding.fault.value}: {finding.key}", "`buquet verify --repair`")
