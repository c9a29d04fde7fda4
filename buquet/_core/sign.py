"""Signature Version 4 for S3, in the `Authorization` header.

Only S3's variant is made: the path is signed as it is sent, encoded once and not normalised,
and the hash of the payload is a header of its own. `encode_path` and `canonical_query` give
the two halves of a URL in just the form that is signed; send exactly these.
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html

Text with lone surrogates raises `ValueError`.

Example::

    signer = Signer(access_key_id, secret_access_key, "eu-central-1")
    path = f"/{bucket}/{encode_path(key)}"
    headers = {"if-none-match": "*"}
    headers |= signer.sign("PUT", host, path, (), headers, payload_hash(body), unix_s)
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

from .rfc3339 import format_basic_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

UNSIGNED = "UNSIGNED-PAYLOAD"
"""Stands for the payload's hash where the payload is not signed."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_is_plain = re.compile(r"[A-Za-z0-9._~/-]*").fullmatch

_BLOCK = 64
"""The block of SHA-256, in bytes."""


def payload_hash(body: bytes) -> str:
    """Return the SHA-256 of a request's body in hex, as `Signer.sign` takes it."""
    return sha256(body).hexdigest()


def encode_path(key: str) -> str:
    """Return an object's key as it stands in a URL's path: all but `A-Za-z0-9-._~/` is escaped."""
    # Most keys need no escape, and to look costs a fraction of `quote`.
    return key if _is_plain(key) else quote(key, safe="/")


def canonical_query(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a query in signing order, without the `?`: all but `A-Za-z0-9-._~` is escaped.

    Parameters
    ----------
    pairs:
        Names and values, not escaped. A name without a value has the value "".
    """
    encoded = sorted([(quote(name, safe=""), quote(value, safe="")) for name, value in pairs])
    return "&".join([f"{name}={value}" for name, value in encoded])


class Signer:
    """Signs requests with one set of credentials for one region.

    May be shared by threads.

    Parameters
    ----------
    access_key_id, secret_access_key:
        The credentials. No representation of a signer shows the secret.
    region:
        The region that the signature is for.
    session_token:
        What temporary credentials carry beside the two keys.
    service:
        The service that the signature is for.
    """

    def __init__(
        self,
        access_key_id: str,
        secret_access_key: str,
        region: str,
        session_token: str | None = None,
        service: str = "s3",
    ) -> None:
        self.access_key_id = access_key_id
        self.region = region
        self._secret = secret_access_key
        self._session_token = session_token
        self._service = service
        self._key = _DayKey(-1, "", b"")

    def __repr__(self) -> str:
        return f"Signer(access_key_id={self.access_key_id!r}, region={self.region!r})"

    def sign(
        self,
        method: str,
        host: str,
        path: str,
        query: Iterable[tuple[str, str]],
        headers: Mapping[str, str],
        payload_hash: str,
        unix_s: float,
    ) -> dict[str, str]:
        """Return the headers that sign a request, to be sent beside those that were given.

        Parameters
        ----------
        method:
            The HTTP method, in capitals.
        host:
            The `Host` header as it will be sent, with the port where it is not the default.
        path:
            The absolute path, escaped (see `encode_path`).
        query:
            Names and values, not escaped (see `canonical_query`).
        headers:
            Further headers to sign, their names in lower case.
        payload_hash:
            What the function of that name returns for the body, or `UNSIGNED`.
        unix_s:
            The time of signing, Unix seconds.

        Returns
        -------
        dict
            `x-amz-date`, `x-amz-content-sha256`, `authorization` and, with a session token,
            `x-amz-security-token`.
        """
        seconds = int(unix_s)
        key = self._key
        if key.day != seconds // 86_400:
            key = self._key = self._key_of_day(seconds)
        date = format_basic_s(seconds)
        extra = {"x-amz-date": date, "x-amz-content-sha256": payload_hash}
        if self._session_token is not None:
            extra["x-amz-security-token"] = self._session_token
        signed = {name: _tidy(value) for name, value in headers.items()}
        signed["host"] = host
        signed.update(extra)
        names = sorted(signed)
        lines = "".join([f"{name}:{signed[name]}\n" for name in names])
        listed = ";".join(names)
        request = f"{method}\n{path}\n{canonical_query(query)}\n{lines}\n{listed}\n{payload_hash}"
        signature = key.mac(f"{_ALGORITHM}\n{date}\n{key.scope}\n{sha256(request.encode()).hexdigest()}")
        extra["authorization"] = (
            f"{_ALGORITHM} Credential={self.access_key_id}/{key.scope}, "
            f"SignedHeaders={listed}, Signature={signature}"
        )
        return extra

    def _key_of_day(self, seconds: int) -> _DayKey:
        date = format_basic_s(seconds)[:8]
        key = f"AWS4{self._secret}".encode()
        for part in (date, self.region, self._service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return _DayKey(seconds // 86_400, f"{date}/{self.region}/{self._service}/aws4_request", key)


def _tidy(value: str) -> str:
    """Return a header's value as it is signed: no spaces around it, single ones inside."""
    value = value.strip()
    return " ".join(value.split()) if "  " in value else value


class _DayKey:
    """The key of one day, its credential scope, and the HMAC with it.

    The hash of HMAC's two pads (RFC 2104) is kept, which makes a signature more than twice as
    fast as `hmac.digest`.
    """

    def __init__(self, day: int, scope: str, key: bytes) -> None:
        self.day = day
        self.scope = scope
        padded = key.ljust(_BLOCK, b"\0")
        self._inner = sha256(bytes([byte ^ 0x36 for byte in padded]))
        self._outer = sha256(bytes([byte ^ 0x5C for byte in padded]))

    def mac(self, text: str) -> str:
        """Return the HMAC-SHA256 of a text in hex."""
        inner = self._inner.copy()
        inner.update(text.encode())
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest()
