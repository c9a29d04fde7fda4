"""Every error that buquet raises, under one root.

A message says what happened, to which key or setting, and what to do about it. Where a
standard type is true of an error it is inherited as well, so `except ConnectionError`
catches a store that cannot be reached and `except ValueError` a bad argument.

Example::

    try:
        task = await queue.submit("send_email", {"to": "user@example.com"})
    except OutcomeUnknown as error:
        task = await queue.get(error.task_id)
"""

from __future__ import annotations


class BuquetError(Exception):
    """Root of all errors of this package."""


# --- raised by handlers ------------------------------------------------------------------


class RetryableError(BuquetError):
    """Raised by a handler: this attempt failed, try again by the task's retry policy."""


class PermanentError(BuquetError):
    """Raised by a handler: the task cannot succeed, fail it now whatever retries are left."""


# --- configuration -----------------------------------------------------------------------


class ConfigError(BuquetError, ValueError):
    """A setting is missing or makes no sense."""


class NoBucket(ConfigError):
    """No bucket was configured."""


class NoCredentials(ConfigError):
    """No credentials were found for a store that asks for them."""


class BadEndpoint(ConfigError):
    """The endpoint is not an http(s) URL, `local:PATH` or `memory:`."""


class UnknownDriver(ConfigError):
    """No driver of that name is installed."""


class ManifestMismatch(ConfigError):
    """A setting differs from what the queue in this bucket was created with."""


# --- the store ---------------------------------------------------------------------------


class StoreError(BuquetError):
    """The store answered with an error that no resend mends.

    Parameters
    ----------
    message:
        What happened and what to do.
    key:
        The object's key, if the request named one.
    status, code, request_id:
        The HTTP status, the S3 error code and the store's request id, as answered.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.status = status
        self.code = code
        self.request_id = request_id


class BucketMissing(StoreError, LookupError):
    """The bucket does not exist."""


class AccessDenied(StoreError, PermissionError):
    """The credentials are valid but may not do this."""


class UnknownAccessKey(StoreError, PermissionError):
    """The store does not know the access key id."""


class WrongSecret(StoreError, PermissionError):
    """The store knows the access key id, but the signature does not match."""


class ExpiredCredentials(StoreError, PermissionError):
    """The session token has expired and could not be refreshed."""


class ClockSkewed(StoreError):
    """The local clock is too far from the store's, even after one correction."""


class WrongRegion(StoreError):
    """The bucket lives in another region; the message names it."""


class UnfitStore(StoreError):
    """The store does not honour conditional writes, so a queue on it would lose tasks."""


class Unavailable(StoreError, ConnectionError):
    """The store could not be reached, or kept answering that it is busy."""


class OutcomeUnknown(StoreError):
    """A write was sent, but no reply told whether it was applied.

    `task_id` names the task that it was about: `await queue.get(task_id)` settles it.
    """

    task_id: str | None = None


# --- records -----------------------------------------------------------------------------


class PoisonRecord(BuquetError, ValueError):
    """An object in the bucket cannot be decoded as what its key says it is."""


class NewerLayout(BuquetError):
    """A record was written by a newer layout version than this program knows."""


class ForeignKey(BuquetError):
    """A listed key has a shard of another length: somebody writes another layout to this bucket."""


# --- programming errors ------------------------------------------------------------------


class InvalidInput(BuquetError, ValueError):
    """A value cannot be stored as JSON, or breaks a limit; the message has the field's path."""


class InvalidInputType(BuquetError, TypeError):
    """A value's type cannot be stored as JSON; the message has the field's path."""
