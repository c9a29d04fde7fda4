"""Where things are in the bucket: keys, and markers as keys spell them.

Example::

    keys = Keys(prefix="", shard_prefix_len=1)
    marker = keys.first_marker(task_id)
    keys.marker_key(marker)     # ready/3/5/019b...-<task id>-0000
    keys.ledger(task_id)        # tasks/3/<task id>.json
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from buquet._core import ident
from buquet._core.record import Record
from buquet._core.rfc3339 import parse_ms
from buquet._core.shard import shard_of
from buquet.errors import ForeignKey, PoisonRecord

SHARD_DIGITS = "0123456789abcdef"
MAX_SHARD_PREFIX_LEN = 4
MAX_ATTEMPT = 0xFFFF
LOWEST_PRIORITY = 9

MAX_NAME_BYTES = 180
"""A longer encoded name is replaced by its hash in keys; the body has the name."""

_MARKER = re.compile(
    r"([0-9a-f]+)/([0-9])/([0-9a-f]{12})-"
    r"([0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})-([0-9a-f]{4})"
)
_LEDGER = re.compile(
    r"([0-9a-f]+)/([0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})\.json"
)


class Marker(NamedTuple):
    """A key under `ready/`: the task wants attention at `due_ms` (Unix ms). Never used twice."""

    shard: str
    priority: int
    due_ms: int
    task_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Keys:
    """The layout of one queue.

    Parameters
    ----------
    prefix:
        What all keys begin with: "" or text that ends in `/`.
    shard_prefix_len:
        How many hex digits name a shard, 1 to 4.
    """

    prefix: str = ""
    shard_prefix_len: int = 1
    ready: str = field(init=False)
    """The prefix of all markers."""
    tasks: str = field(init=False)
    """The prefix of all ledgers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ready", f"{self.prefix}ready/")
        object.__setattr__(self, "tasks", f"{self.prefix}tasks/")

    @property
    def manifest(self) -> str:
        """The key of the queue's manifest."""
        return f"{self.prefix}buquet.json"

    def shard(self, task_id: str) -> str:
        """The shard of a task."""
        return shard_of(task_id, self.shard_prefix_len)

    def shards(self) -> list[str]:
        """All shards, in key order."""
        return [f"{number:0{self.shard_prefix_len}x}" for number in range(16**self.shard_prefix_len)]

    def ledger(self, task_id: str) -> str:
        """The key of a task's ledger."""
        return f"{self.tasks}{self.shard(task_id)}/{task_id}.json"

    @property
    def sessions(self) -> str:
        """The prefix of all sessions."""
        return f"{self.prefix}workers/"

    @property
    def all_failed(self) -> str:
        """The prefix of the index of dead letters."""
        return f"{self.prefix}failed/"

    def failed(self, task_id: str) -> str:
        """The key of a task's entry in the index of dead letters."""
        return f"{self.prefix}failed/{self.shard(task_id)}/{task_id}"

    def poison(self, task_id: str) -> str:
        """The key that says why a task's record cannot be read."""
        return f"{self.prefix}poison/{self.shard(task_id)}/{task_id}"

    @property
    def schedules(self) -> str:
        """The prefix of all schedules."""
        return f"{self.prefix}schedules/"

    def schedule(self, schedule_id: str) -> str:
        """The key of a schedule."""
        return f"{self.schedules}{encoded_name(schedule_id)}.json"

    def schedule_run(self, schedule_id: str) -> str:
        """The key of what is known of a schedule's last run."""
        return f"{self.prefix}schedule-runs/{encoded_name(schedule_id)}.json"

    def first_marker(self, task_id: str) -> Marker:
        """The marker of a task that was never claimed; it follows from the id alone."""
        return Marker(self.shard(task_id), ident.priority(task_id), ident.due_ms(task_id), task_id, 0)

    def marker_of(self, record: Record) -> Marker:
        """The marker that makes a pending record valid."""
        due_ms = parse_ms(record.available_at)
        return Marker(self.shard(record.id), record.priority, due_ms, record.id, record.attempt)

    def marker_key(self, marker: Marker) -> str:
        """The key of a marker."""
        return (
            f"{self.ready}{marker.shard}/{marker.priority}/"
            f"{marker.due_ms:012x}-{marker.task_id}-{marker.attempt:04x}"
        )

    def parse_marker(self, key: str) -> Marker:
        """Read a marker's key.

        Raises
        ------
        PoisonRecord
            The key is no marker.
        ForeignKey
            It has a shard of another length: the layout is not this queue's.
        """
        found = _MARKER.fullmatch(key, len(self.ready))
        if found is None:
            raise PoisonRecord(
                f"{key!r} is not a marker; nothing but this queue may write under {self.ready!r}"
            )
        shard, priority, due, task_id, attempt = found.groups()
        if len(shard) != self.shard_prefix_len:
            raise self._foreign(shard, key)
        return Marker(shard, int(priority), int(due, 16), task_id, int(attempt, 16))

    def parse_ledger(self, key: str) -> str:
        """Read the task id out of a ledger's key.

        Raises
        ------
        PoisonRecord
            The key is no ledger.
        ForeignKey
            It has a shard of another length: the layout is not this queue's.
        """
        found = _LEDGER.fullmatch(key, len(self.tasks))
        if found is None:
            raise PoisonRecord(
                f"{key!r} is not a ledger; nothing but this queue may write under {self.tasks!r}"
            )
        if len(found[1]) != self.shard_prefix_len:
            raise self._foreign(found[1], key)
        return found[2]

    def parse_failed(self, key: str) -> str:
        """Read the task id out of a dead letter's key; errors as `parse_ledger`."""
        return self.parse_ledger(f"{self.tasks}{key.removeprefix(self.all_failed)}.json")

    def _foreign(self, shard: str, key: str) -> ForeignKey:
        return ForeignKey(
            f"{key!r} has a shard of {len(shard)} digits, this queue has {self.shard_prefix_len}: "
            "two clients with different settings write to one bucket; stop the wrong one"
        )


def encoded_name(name: str) -> str:
    """Spell a name of any characters so that it is one plain key segment.

    Letters, digits, `-` and `_` stay; the rest is percent-encoded, and a dot too, because
    dots part the fields of a key. Above 180 bytes it is the name's SHA-256.
    """
    encoded = quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(encoded) <= MAX_NAME_BYTES:
        return encoded
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def expand_shards(selected: list[str], keys: Keys) -> list[str]:
    """Return the full shards that `selected` names; a shorter name selects by prefix.

    Raises
    ------
    ValueError
        A name is no shard and no prefix of one.
    """
    if not selected:
        raise ValueError("shards must name at least one shard; leave it out to work on all")
    for name in selected:
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= keys.shard_prefix_len
            or set(name) - set(SHARD_DIGITS)
        ):
            raise ValueError(
                f"{name!r} is not a shard: use 1 to {keys.shard_prefix_len} lower-case hex digits"
            )
    return [shard for shard in keys.shards() if shard.startswith(tuple(selected))]
