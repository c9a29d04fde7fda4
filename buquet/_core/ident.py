"""Task ids: UUIDs (RFC 9562) that carry when a task is first due, and how urgent it is.

An id of version 7, as this module makes them, is laid out as

    48 bits   the due time, Unix milliseconds, so that ids sort by it
     4 bits   the version
    12 bits   0, reserved
     2 bits   the variant, binary 10
     4 bits   the priority, 0 (most urgent) to 9
    58 bits   random, or taken from a hash

The layout is part of what is stored: fixed vectors in the tests guard it. An id of version 8
has its own meaning for all other bits, and neither a due time nor a priority. Anything but the
canonical text of one of the two, and any argument out of range, raises `ValueError`.

Example::

    task_id = mint(1_769_590_800_000, 5, bits)
    due_ms(task_id), priority(task_id)        # 1769590800000, 5
"""

from __future__ import annotations

from struct import Struct

RANDOM_BITS = 58
"""How many bits of an id are random."""

_MAX_DUE_MS = (1 << 48) - 1
_MAX_BITS = (1 << RANDOM_BITS) - 1
_MAX_PRIORITY = 9

_pack = Struct(">QQ").pack


def mint(due_ms: int, priority: int, random_bits: int) -> str:
    """Return a new id of version 7.

    Parameters
    ----------
    due_ms:
        When the task is first due, Unix milliseconds, at most 48 bits.
    priority:
        0 (most urgent) to 9.
    random_bits:
        A random number of `RANDOM_BITS` bits.
    """
    if not 0 <= due_ms <= _MAX_DUE_MS:
        raise ValueError(f"due time {due_ms} ms does not fit 48 bits")
    if not 0 <= priority <= _MAX_PRIORITY:
        raise ValueError(f"priority {priority} is not one of 0 to 9")
    if not 0 <= random_bits <= _MAX_BITS:
        raise ValueError(f"the random number does not fit {RANDOM_BITS} bits")
    return _format(due_ms, priority, random_bits)


def derive(due_ms: int, priority: int, digest: bytes) -> str:
    """Return the id of version 7 whose random bits are the first ones of a hash.

    Parameters
    ----------
    due_ms, priority:
        As for `mint`.
    digest:
        The hash, at least 8 bytes. Equal arguments make equal ids.
    """
    if len(digest) < 8:
        raise ValueError(f"a digest of {len(digest)} bytes is too short, 8 are needed")
    return mint(due_ms, priority, int.from_bytes(digest[:8], "big") >> (64 - RANDOM_BITS))


def parse(text: str) -> bytes:
    """Return the 16 bytes of an id of version 7 or 8.

    Parameters
    ----------
    text:
        The id in canonical form: lower case, with hyphens.
    """
    high, low = halves(text)
    return _pack(high, low)


def halves(text: str) -> tuple[int, int]:
    """Return an id of version 7 or 8 as two numbers of 64 bits, the leading one first."""
    if len(text) != 36 or text[8] != "-" or text[13] != "-" or text[18] != "-" or text[23] != "-":
        raise _not_an_id(text)
    if text[14] not in "78" or text[19] not in "89ab":
        raise _not_an_id(text)
    high = _hex(text, 0, 8) << 32 | _hex(text, 9, 13) << 16 | _hex(text, 14, 18)
    low = _hex(text, 19, 23) << 48 | _hex(text, 24, 36)
    return high, low


def version(task_id: str) -> int:
    """Return an id's version, 7 or 8."""
    high, _ = halves(task_id)
    return high >> 12 & 0xF


def due_ms(task_id: str) -> int:
    """Return the due time of an id of version 7, Unix milliseconds."""
    high, _ = _halves_of_v7(task_id)
    return high >> 16


def priority(task_id: str) -> int:
    """Return the priority of an id of version 7, 0 to 9."""
    _, low = _halves_of_v7(task_id)
    value = low >> RANDOM_BITS & 0xF
    if value > _MAX_PRIORITY:
        raise ValueError(f"{task_id!r} was not made here: its priority would be {value}")
    return value


def _halves_of_v7(task_id: str) -> tuple[int, int]:
    high, low = halves(task_id)
    if high >> 12 & 0xF != 7:
        raise ValueError(f"{task_id!r} is of version 8, which has neither due time nor priority")
    return high, low


def _format(due_ms: int, priority: int, random_bits: int) -> str:
    low = 0x8000 | priority << 10 | random_bits >> 48
    return f"{due_ms >> 16:08x}-{due_ms & 0xFFFF:04x}-7000-{low:04x}-{random_bits & 0xFFFF_FFFF_FFFF:012x}"


def _hex(text: str, start: int, end: int) -> int:
    """Read lower-case hex digits; `int()` would take signs, spaces, underscores and upper case."""
    number = 0
    for at in range(start, end):
        code = ord(text[at])
        if 48 <= code <= 57:
            number = number << 4 | code - 48
        elif 97 <= code <= 102:
            number = number << 4 | code - 87
        else:
            raise _not_an_id(text)
    return number


def _not_an_id(text: str) -> ValueError:
    return ValueError(f"{text!r} is not a task id: a UUID of version 7 or 8 in lower case, with hyphens")
