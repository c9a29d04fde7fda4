"""Where the queue lives and who asks: settings from arguments over the environment.

Example::

    Settings.resolve(endpoint="http://localhost:4566", bucket="jobs").prefix   # ""
    Settings.resolve("localhost:4566", "jobs")      # BadEndpoint: did you mean http://localhost:4566?

Errors: `BadEndpoint`, `NoBucket`, `NoCredentials` (half a pair of keys) and `ConfigError`,
all of which name the setting and the cure. A secret never appears in a `repr` or an error.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, urlsplit

from buquet.errors import BadEndpoint, ConfigError, NoBucket, NoCredentials

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_LOCAL_BUCKET = "buquet"
"""The embedded stores need no bucket to be named."""

DEFAULT_MAX_PAYLOAD_BYTES = 1 << 20
MOST_PAYLOAD_BYTES = 1 << 30

_LOCAL = "local:"
_MEMORY = "memory:"
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_FOLDERS = {"ready", "tasks", "workers", "failed", "poison", "probe", "schedules", "schedule-runs"}
"""What a queue keeps under its prefix; another queue's objects in there would be in its way."""


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """A plain pair of keys, with the token that goes with a temporary one."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """What `connect` was told, completed from the environment.

    Parameters
    ----------
    kind:
        Which sort of store: `s3`, the embedded `local`, or `memory`.
    bucket:
        The bucket's name.
    endpoint:
        The URL of an S3 service; None for the driver's own.
    path:
        The file of a `local` store.
    region:
        None for the driver's default.
    driver:
        The name of the dialect; None to choose by the endpoint.
    prefix:
        Put before every key: empty, or ends in `/`.
    keys:
        Plain keys; None to ask botocore's chain of providers.
    profile:
        The profile that the chain of providers is to use.
    max_payload_bytes:
        The largest input or output of a task, bytes of JSON (`BUQUET_MAX_PAYLOAD_BYTES`).
    """

    kind: Literal["s3", "local", "memory"]
    bucket: str
    endpoint: str | None = None
    path: str | None = None
    region: str | None = None
    driver: str | None = None
    prefix: str = ""
    keys: AccessKeys | None = None
    profile: str | None = None
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES

    @classmethod
    def resolve(
        cls,
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
        env: Mapping[str, str] | None = None,
    ) -> Settings:
        """Complete the arguments of `connect` from the environment; an argument beats it.

        Parameters
        ----------
        endpoint, bucket, region, driver, prefix, profile:
            As in `Settings`; the endpoint may also be `local:PATH` or `memory:`.
        access_key_id, secret_access_key, session_token:
            Plain keys. They are taken from one source, never mixed with the environment's.
        env:
            The environment, `os.environ` unless given. Empty variables count as unset.
        """
        variables = _Environment(os.environ if env is None else env)
        endpoint = endpoint or variables.first("S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        kind, url, path = _locate(endpoint)
        given = _pair(access_key_id, secret_access_key, session_token, "access_key_id", "secret_access_key")
        bucket = _bucket(bucket or variables.first("S3_BUCKET"), kind)
        if url is not None and urlsplit(url).path.rstrip("/").rpartition("/")[2] == bucket:
            # It would be a folder of that name in the bucket: a second queue, which nobody meant.
            raise BadEndpoint(f"the endpoint {url!r} ends in the bucket's name: leave that out")
        return cls(
            kind=kind,
            bucket=bucket,
            endpoint=url,
            path=path,
            region=region or variables.first("S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"),
            driver=driver or variables.first("BUQUET_DRIVER"),
            prefix=_prefix(prefix or variables.first("BUQUET_PREFIX") or ""),
            # A profile that was asked for by argument beats keys that lie in the environment.
            keys=given or (None if profile else variables.keys()),
            profile=profile or variables.first("AWS_PROFILE"),
            max_payload_bytes=_size(variables.first("BUQUET_MAX_PAYLOAD_BYTES")),
        )


class _Environment:
    """Environment variables, of which the empty ones count as unset."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def first(self, *names: str) -> str | None:
        return next((value for name in names if (value := self._variables.get(name))), None)

    def keys(self) -> AccessKeys | None:
        names = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
        return _pair(self.first(names[0]), self.first(names[1]), self.first("AWS_SESSION_TOKEN"), *names)


def _pair(
    key_id: str | None, secret: str | None, token: str | None, id_name: str, name: str
) -> AccessKeys | None:
    if key_id and secret:
        return AccessKeys(key_id, secret, token or None)
    if key_id or secret:
        there, missing = (id_name, name) if key_id else (name, id_name)
        raise NoCredentials(f"{there} is set but {missing} is not: set both or neither")
    return None


def _locate(
    endpoint: str | None,
) -> tuple[Literal["s3", "local", "memory"], str | None, str | None]:
    """Tell the kind of store from the endpoint, with its URL or its path."""
    if endpoint is None:
        return "s3", None, None
    if endpoint == _MEMORY:
        return "memory", None, None
    if endpoint.startswith(_LOCAL):
        path = endpoint.removeprefix(_LOCAL)
        if not path:
            raise BadEndpoint("the endpoint 'local:' names no file: write local:PATH")
        return "local", None, path
    _check_url(endpoint)
    return "s3", endpoint, None


def _check_url(endpoint: str) -> None:
    # First, and anywhere: a secret may have a slash, and no message may quote it.
    if "@" in endpoint:
        raise BadEndpoint(
            "the endpoint holds a user name or a password: pass keys as access_key_id and secret_access_key"
        )
    url, _, query = endpoint.replace("#", "?").partition("?")
    if query:
        raise BadEndpoint(f"the endpoint must end before '?' or '#': write {url!r}")
    parts = _split(endpoint)
    if parts.scheme not in ("http", "https"):
        cure = f": did you mean http://{endpoint}?" if "://" not in endpoint else ""
        raise BadEndpoint(f"the endpoint {endpoint!r} is not an http(s) URL, local:PATH or memory:{cure}")
    if not parts.hostname:
        raise BadEndpoint(f"the endpoint {endpoint!r} names no host")


def _split(endpoint: str) -> SplitResult:
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError as error:
        raise BadEndpoint(f"the endpoint {endpoint!r} is not a URL: {error}") from None
    return parts


def _bucket(bucket: str | None, kind: str) -> str:
    if bucket is None:
        if kind != "s3":
            return DEFAULT_LOCAL_BUCKET
        raise NoBucket(
            "no bucket is configured: pass bucket=... or set S3_BUCKET (for a first try without a server, let"
            " S3_ENDPOINT be local:queue.db)"
        )
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{bucket!r} is not a bucket's name: 3 to 255 letters, digits, '-', '.' and '_'")
    if bucket.endswith("--x-s3"):
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-differences.html
        raise ConfigError(
            f"the bucket {bucket!r} is a directory bucket (S3 Express One Zone), which lists keys in no"
            " order: use a general purpose bucket"
        )
    return bucket


def _size(text: str | None) -> int:
    if text is None:
        return DEFAULT_MAX_PAYLOAD_BYTES
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= MOST_PAYLOAD_BYTES:
        raise ConfigError(
            f"BUQUET_MAX_PAYLOAD_BYTES is {text!r}: a number of bytes, 1 to {MOST_PAYLOAD_BYTES:,}"
        )
    return int(text)


def _prefix(prefix: str) -> str:
    path = prefix.strip("/")
    if not path:
        return ""
    # Only what no store spells another way in a URL: LocalStack 4.13 compares a `start-after` in
    # its quoted form, and a listing of such a prefix would never end.
    segments = path.split("/")
    if any(not _SEGMENT.fullmatch(segment) or segment in (".", "..") for segment in segments):
        raise ConfigError(
            f"the prefix {prefix!r} may have letters, digits, '-', '.' and '_', in segments parted by '/'"
        )
    if taken := _FOLDERS.intersection((segments[0], segments[-1])):
        raise ConfigError(
            f"the prefix {prefix!r} must not begin or end with {taken.pop()!r}: every queue has a folder of"
            " that name, and this queue could lie in another one's"
        )
    return f"{path}/"
