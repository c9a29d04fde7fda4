"""Who signs: plain keys, or whatever botocore's chain of providers finds.

The chain (profiles, SSO, assumed roles, container and instance roles) is slow, so it runs in
a worker thread and is imported only where there are no plain keys. Temporary keys are
renewed in the background while they still work; only keys about to expire make requests
wait. However many wait, one renewal serves them all.

Example::

    source = credentials_for(settings.keys, settings.profile, clock)
    keys = await source.get()

Errors: `NoCredentials`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from buquet.config import AccessKeys
from buquet.errors import NoCredentials

if TYPE_CHECKING:
    from buquet.clock import Clock

RENEW_S = 15 * 60.0
"""Temporary keys are renewed this long before they expire, as botocore does."""

URGENT_S = 30.0
"""AccessKeys that expire sooner than this are not used before a renewal was tried."""

PAUSE_S = 60.0
"""Background renewals start this far apart: some providers hand out the old keys for a while."""

_log = logging.getLogger("buquet")


class Credentials(Protocol):
    """A source of keys. It belongs to one event loop."""

    @property
    def generation(self) -> int:
        """Counts the renewals, so that a request knows which keys it was signed with."""

    async def get(self) -> AccessKeys:
        """Return keys that are good now."""

    async def renew(self, refused: int) -> bool:
        """Replace the keys of generation `refused`, which the store calls expired.

        Returns whether there are newer ones.
        """


class StaticCredentials:
    """AccessKeys that were given and stay.

    Parameters
    ----------
    keys:
        The keys.
    """

    generation = 0

    def __init__(self, keys: AccessKeys) -> None:
        self._keys = keys

    async def get(self) -> AccessKeys:
        """Return the keys."""
        return self._keys

    async def renew(self, refused: int) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: there is no other pair."""
        return False


class ChainCredentials:
    """AccessKeys from botocore's chain of providers.

    Parameters
    ----------
    profile:
        The profile to use; None for the default.
    clock:
        Paces the background renewals.
    """

    def __init__(self, profile: str | None, clock: Clock) -> None:
        self.generation = 0
        self._profile = profile
        self._clock = clock
        self._keys: AccessKeys | None = None
        self._provided: Any = None
        self._renewal: asyncio.Task[AccessKeys] | None = None
        self._started_at = clock.monotonic()

    async def get(self) -> AccessKeys:
        """Return keys that are good now; waits only for the first and for urgent ones."""
        keys = self._keys
        if keys is None or self._expires_within(URGENT_S):
            return await self._renewed(fresh=False)
        if self._expires_within(RENEW_S) and self._clock.monotonic() - self._started_at > PAUSE_S:
            self._start(fresh=False)
        return keys

    async def renew(self, refused: int) -> bool:
        """Ask the whole chain anew, unless that has happened since generation `refused`."""
        if self.generation == refused:
            await self._renewed(fresh=True)
        return self.generation > refused

    def _expires_within(self, seconds: float) -> bool:
        # AccessKeys without an end are of a class that has no such method.
        needed = getattr(self._provided, "refresh_needed", None)
        return needed is not None and bool(needed(refresh_in=seconds))

    async def _renewed(self, *, fresh: bool) -> AccessKeys:
        # Shielded: a request that is cancelled must not take the others' renewal with it.
        return await asyncio.shield(self._start(fresh=fresh))

    def _start(self, *, fresh: bool) -> asyncio.Task[AccessKeys]:
        if self._renewal is None or self._renewal.done():
            self._started_at = self._clock.monotonic()
            self._renewal = asyncio.create_task(self._ask(fresh=fresh))
            self._renewal.add_done_callback(self._report)
        return self._renewal

    async def _ask(self, *, fresh: bool) -> AccessKeys:
        provided = None if fresh else self._provided
        self._provided, keys = await asyncio.to_thread(_ask, provided, self._profile)
        if keys != self._keys:
            self._keys = keys
            self.generation += 1
        return keys

    def _report(self, renewal: asyncio.Task[AccessKeys]) -> None:
        if not renewal.cancelled() and (error := renewal.exception()) and self._keys is not None:
            _log.warning("the credentials could not be renewed, the old ones stay in use: %s", error)


def credentials_for(keys: AccessKeys | None, profile: str | None, clock: Clock) -> Credentials:
    """Return the source for plain keys if there are any, else the chain of providers."""
    return ChainCredentials(profile, clock) if keys is None else StaticCredentials(keys)


def _ask(provided: Any, profile: str | None) -> tuple[Any, AccessKeys]:
    """Get keys from what the chain provided earlier, or from the chain; blocks."""
    # Importing botocore takes longer than many a program that has plain keys.
    import botocore.session  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        if provided is None:
            provided = botocore.session.Session(profile=profile).get_credentials()
        if provided is None:
            raise NoCredentials(
                "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (any values will"
                " do for an emulator), choose a profile, or run where a role is attached"
            )
        frozen = provided.get_frozen_credentials()
    except (BotoCoreError, ClientError) as error:
        raise NoCredentials(f"the credentials could not be read: {error}") from error
    return provided, AccessKeys(frozen.access_key, frozen.secret_key, frozen.token)
