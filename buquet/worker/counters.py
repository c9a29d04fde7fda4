"""What a worker has done: `Counters`."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Counts of one run."""

    claimed: int = 0
    claims_lost: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    released: int = 0
    lease_lost: int = 0
    taken_back: int = 0
    leftover: int = 0
    """Plain handlers that go on after their attempt has timed out."""

    def __str__(self) -> str:
        counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in asdict(self).items() if count]
        return ", ".join(counts) or "nothing claimed"
