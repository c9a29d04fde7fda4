"""The queue's manifest: what every client of a bucket must agree on.

It is written once, by the client that creates the queue, and never changed.
"""

from __future__ import annotations

import msgspec

from buquet.errors import ManifestMismatch, NewerLayout, PoisonRecord
from buquet.protocol.keys import MAX_SHARD_PREFIX_LEN

LAYOUT = 1
DEFAULT_SHARD_PREFIX_LEN = 1


class Fitness(msgspec.Struct, frozen=True, kw_only=True):
    """By which version of the probe the store was found fit, and as which dialect.

    `checks_signatures`: whether it refused a signature that was too old.
    """

    driver: str
    probe: int
    checks_signatures: bool = True


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of a queue; `created_at` in RFC 3339."""

    v: int = LAYOUT
    shard_prefix_len: int
    created_at: str
    nonce: str
    fitness: Fitness


def encode(manifest: Manifest) -> bytes:
    """Write a manifest as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2)


def decode(body: bytes) -> Manifest:
    """Read a manifest.

    Raises
    ------
    NewerLayout
        The queue was created by a newer layout.
    PoisonRecord
        The object is no manifest.
    """
    try:
        version = msgspec.json.decode(body, type=_Layout).v
        if version > LAYOUT:
            raise NewerLayout(
                f"buquet.json: layout version {version}, this program knows {LAYOUT}; upgrade it"
            )
        if version < LAYOUT:
            raise ValueError(f"layout version {version} never existed")
        manifest = msgspec.json.decode(body, type=Manifest)
        check_shard_prefix_len(manifest.shard_prefix_len)
    except (ValueError, RecursionError) as error:
        raise PoisonRecord(f"buquet.json is not this queue's manifest: {error}") from error
    return manifest


class _Layout(msgspec.Struct):
    v: int


def check_shard_prefix_len(length: int) -> None:
    """Raise ValueError or TypeError unless `length` is 1 to 4."""
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(f"shard_prefix_len must be an integer, not {type(length).__name__}")
    if not 1 <= length <= MAX_SHARD_PREFIX_LEN:
        raise ValueError(f"shard_prefix_len must be 1 to {MAX_SHARD_PREFIX_LEN}, not {length}")


def check_agrees(manifest: Manifest, shard_prefix_len: int | None) -> None:
    """Raise ManifestMismatch if an explicit setting differs from the manifest's."""
    if shard_prefix_len not in (None, manifest.shard_prefix_len):
        raise ManifestMismatch(
            f"this queue was created with shard_prefix_len={manifest.shard_prefix_len}, not "
            f"{shard_prefix_len}: leave the setting out to take the queue's own"
        )
