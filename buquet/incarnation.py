"""One run of a process as the protocol sees it: its name, and the leases it holds.

Shared by the event loop that claims and the thread that sends heartbeats, hence the lock.

Example::

    me = Incarnation(worker_id="worker-1", id=mint_incarnation("m", token(clock)))
    me.enter(task_id, lease_id, lease_expires_at, now=clock.monotonic())
    me.leave(lease_id)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from buquet.protocol.session import Entry


class Incarnation:
    """The owner of leases. In flight is keyed by lease id (rule 10).

    Parameters
    ----------
    worker_id:
        The worker's name.
    id:
        What tells this run from all others; the first letter is its role.
    """

    def __init__(self, worker_id: str, id: str) -> None:  # noqa: A002 - it is the id
        self.worker_id = worker_id
        self.id = id
        self.is_alive = False
        """Whether its session stands in the bucket: only then may it claim."""
        self.on_unjournaled: Callable[[], None] = lambda: None
        """Called when a lease enters while all others are journaled."""
        self._lock = threading.Lock()
        self._in_flight: dict[str, Entry] = {}
        self._unjournaled: dict[str, float] = {}
        self._claiming: set[str] = set()

    def __len__(self) -> int:
        return len(self._in_flight)

    def begin_claim(self, lease_id: str) -> None:
        """Note that a claim under this lease is being sent."""
        with self._lock:
            self._claiming.add(lease_id)

    def end_claim(self, lease_id: str) -> None:
        """Note that its outcome is known, or will not be asked for any more."""
        with self._lock:
            self._claiming.discard(lease_id)

    def enter(self, task_id: str, lease_id: str, lease_expires_at: str, *, now: float) -> None:
        """Note that a claim is known to be won; `now` is `clock.monotonic()`."""
        with self._lock:
            first = not self._unjournaled
            self._in_flight[lease_id] = Entry(task_id, lease_id, lease_expires_at)
            self._unjournaled[lease_id] = now
        if first:
            self.on_unjournaled()

    def leave(self, lease_id: str) -> None:
        """Note that the ledger is known not to be running under this lease."""
        with self._lock:
            self._in_flight.pop(lease_id, None)
            self._unjournaled.pop(lease_id, None)

    def knows(self, lease_id: str | None) -> bool:
        """Whether we hold this lease or are settling a claim of it; else it is void (rule 9)."""
        with self._lock:
            return lease_id in self._in_flight or lease_id in self._claiming

    def snapshot(self) -> list[Entry]:
        """The leases in flight now, as a heartbeat carries them (rule 12)."""
        with self._lock:
            return list(self._in_flight.values())

    def unjournaled_since(self) -> float | None:
        """When the oldest lease entered that no acknowledged heartbeat carries, if there is one."""
        with self._lock:
            return next(iter(self._unjournaled.values()), None)

    def acknowledge(self, leases: Collection[str]) -> list[str]:
        """Note that a journal of exactly these leases stands; return those that are new in it."""
        with self._lock:
            return [lease_id for lease_id in leases if self._unjournaled.pop(lease_id, None) is not None]
