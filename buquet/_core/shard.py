"""Which shard a task belongs to: the first hex digits of a hash of its id.

The hash is XXH64 with seed 0, over the id's 16 bytes. It is part of what is stored: fixed
vectors in the tests guard it. Its definition:
https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md

A malformed id and a prefix length out of range raise `ValueError`.

Example::

    shard_of("019c03d8-5880-7000-9400-000000000000", 1)        # "0"
"""

from __future__ import annotations

from .ident import halves

MAX_PREFIX_LEN = 4
"""The longest shard prefix, in hex digits: 65,536 shards."""

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_PRIME_1 = 0x9E37_79B1_85EB_CA87
_PRIME_2 = 0xC2B2_AE3D_27D4_EB4F
_PRIME_3 = 0x1656_67B1_9E37_79F9
_PRIME_4 = 0x85EB_CA77_C2B2_AE63
_PRIME_5 = 0x27D4_EB2F_1656_67C5


def shard_of(task_id: str, prefix_len: int) -> str:
    """Return the shard of a task.

    Parameters
    ----------
    task_id:
        The task's id in canonical form.
    prefix_len:
        How many hex digits name a shard, 1 to `MAX_PREFIX_LEN`.
    """
    if not 1 <= prefix_len <= MAX_PREFIX_LEN:
        raise ValueError(f"a shard prefix of {prefix_len} digits is not one of 1 to {MAX_PREFIX_LEN}")
    high, low = halves(task_id)
    digest = _step(_step(_PRIME_5 + 16, _swap(high)), _swap(low))
    digits = f"{_avalanche(digest) >> 48:04x}"
    return digits[:prefix_len]


def xxh64(data: bytes, seed: int = 0) -> int:
    """Return the XXH64 hash of some bytes.

    Parameters
    ----------
    data:
        What to hash, of any length.
    seed:
        An unsigned number of 64 bits.
    """
    size = len(data)
    at = 0
    if size >= 32:
        at = size - size % 32
        digest = _stripes(data, at, seed)
    else:
        digest = (seed + _PRIME_5) & _MASK
    digest = (digest + size) & _MASK
    while at + 8 <= size:
        digest = _step(digest, _word(data, at, 8))
        at += 8
    if at + 4 <= size:
        digest ^= _word(data, at, 4) * _PRIME_1 & _MASK
        digest = (_rotate(digest, 23) * _PRIME_2 + _PRIME_3) & _MASK
        at += 4
    while at < size:
        digest ^= _word(data, at, 1) * _PRIME_5 & _MASK
        digest = _rotate(digest, 11) * _PRIME_1 & _MASK
        at += 1
    return _avalanche(digest)


def _stripes(data: bytes, end: int, seed: int) -> int:
    """Hash the leading stripes of 32 bytes, in four lanes."""
    lane_1 = (seed + _PRIME_1 + _PRIME_2) & _MASK
    lane_2 = (seed + _PRIME_2) & _MASK
    lane_3 = seed
    lane_4 = (seed - _PRIME_1) & _MASK
    for at in range(0, end, 32):
        lane_1 = _round(lane_1, _word(data, at, 8))
        lane_2 = _round(lane_2, _word(data, at + 8, 8))
        lane_3 = _round(lane_3, _word(data, at + 16, 8))
        lane_4 = _round(lane_4, _word(data, at + 24, 8))
    digest = _rotate(lane_1, 1) + _rotate(lane_2, 7) + _rotate(lane_3, 12) + _rotate(lane_4, 18)
    digest = _merge(digest & _MASK, lane_1)
    digest = _merge(digest, lane_2)
    digest = _merge(digest, lane_3)
    return _merge(digest, lane_4)


def _merge(digest: int, lane: int) -> int:
    return ((digest ^ _round(0, lane)) * _PRIME_1 + _PRIME_4) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _PRIME_2) & _MASK, 31) * _PRIME_1 & _MASK


def _rotate(word: int, count: int) -> int:
    return (word << count | word >> (64 - count)) & _MASK


def _step(digest: int, word: int) -> int:
    """Hash one of the words that fill no stripe."""
    return (_rotate(digest ^ _round(0, word), 27) * _PRIME_1 + _PRIME_4) & _MASK


def _avalanche(digest: int) -> int:
    digest = (digest ^ digest >> 33) * _PRIME_2 & _MASK
    digest = (digest ^ digest >> 29) * _PRIME_3 & _MASK
    return digest ^ digest >> 32


def _word(data: bytes, at: int, size: int) -> int:
    """Read `size` bytes, the lowest first."""
    word = 0
    for index in range(size):
        byte = data[at + index]
        word |= byte << 8 * index
    return word


def _swap(word: int) -> int:
    """Reverse the eight bytes: the hash reads its input lowest byte first."""
    swapped = 0
    for _ in range(8):
        swapped = swapped << 8 | word & 0xFF
        word >>= 8
    return swapped
