"""How long a failed task waits before its next attempt.

Example::

    RetryPolicy(initial_interval_ms=1000, multiplier=2.0).delay_ms(retry_count=0, chance=0.5)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from buquet.errors import PoisonRecord

MAX_INTERVAL_MS = 30 * 24 * 3600 * 1000

_ENOUGH = 2 * math.log(MAX_INTERVAL_MS)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter.

    The delay after the n-th failure (n from 0) is uniform in base * (1 ± jitter_percent) with
    base = min(initial_interval_ms * multiplier ** n, max_interval_ms), and never above
    `max_interval_ms`.

    Parameters
    ----------
    initial_interval_ms, max_interval_ms:
        First delay and cap, milliseconds, 0 to 30 days.
    multiplier:
        Growth from one delay to the next, 1 to 1000.
    jitter_percent:
        Share of randomness, 0 to 1.

    Raises
    ------
    ValueError, TypeError
        A value is out of range or no number.
    """

    initial_interval_ms: int = 1000
    max_interval_ms: int = 60_000
    multiplier: float = 2.0
    jitter_percent: float = 0.25

    def __post_init__(self) -> None:
        _check("initial_interval_ms", self.initial_interval_ms, 0, MAX_INTERVAL_MS)
        _check("max_interval_ms", self.max_interval_ms, 0, MAX_INTERVAL_MS)
        _check("multiplier", self.multiplier, 1, 1000)
        _check("jitter_percent", self.jitter_percent, 0, 1)

    def delay_ms(self, retry_count: int, chance: float) -> int:
        """Return the delay before the next attempt.

        Parameters
        ----------
        retry_count:
            How many retries have been spent before this one.
        chance:
            A random number in [0, 1).
        """
        # Growth beyond the largest cap need not be computed, nor could a float hold it.
        steps = min(retry_count, _ENOUGH / math.log(self.multiplier)) if self.multiplier > 1 else 0
        base = min(self.initial_interval_ms * self.multiplier**steps, self.max_interval_ms)
        spread = 1 + self.jitter_percent * (2 * chance - 1)
        return min(int(base * spread), int(self.max_interval_ms))

    def to_fields(self) -> dict[str, float]:
        """Return the policy as it stands in a record."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_fields(cls, stored: dict[str, float] | None) -> RetryPolicy:
        """Return the policy of a record; fields of later versions are ignored.

        Raises
        ------
        PoisonRecord
            A stored value is out of range.
        """
        if stored is None:
            return cls()
        try:
            return cls(**{name: stored[name] for name in _FIELDS if name in stored})  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            raise PoisonRecord(f"retry_policy: {error}") from error


_FIELDS = tuple(field.name for field in fields(RetryPolicy))


def _check(name: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not least <= value <= most:  # also true of NaN
        raise ValueError(f"{name} must be between {least} and {most}, not {value}")
