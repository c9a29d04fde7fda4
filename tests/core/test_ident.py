"""Task ids: their layout, bit by bit, and what is no id."""

import uuid
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

DUE_MS = st.integers(0, 2**48 - 1)
PRIORITY = st.integers(0, 9)
BITS = st.integers(0, 2**58 - 1)

V7 = "019c03d8-5880-7000-9523-456789abcdef"
V8 = "019c03d8-5880-8fff-bfff-456789abcdef"

# Stored in buckets: a change of any of these loses tasks.
LAYOUT = [
    (0, 0, 0, "00000000-0000-7000-8000-000000000000"),
    (0, 9, 0, "00000000-0000-7000-a400-000000000000"),
    (2**48 - 1, 0, 0, "ffffffff-ffff-7000-8000-000000000000"),
    (0, 0, 2**58 - 1, "00000000-0000-7000-83ff-ffffffffffff"),
    (0x19C03D85880, 5, 0x123456789ABCDEF, V7),
]


@pytest.mark.parametrize(("due_ms", "priority", "bits", "text"), LAYOUT)
def test_layout(core: SimpleNamespace, due_ms: int, priority: int, bits: int, text: str) -> None:
    assert core.ident.mint(due_ms, priority, bits) == text
    assert (core.ident.due_ms(text), core.ident.priority(text)) == (due_ms, priority)


@given(due_ms=DUE_MS, priority=PRIORITY, bits=BITS)
def test_an_id_is_a_uuid_of_version_7(core: SimpleNamespace, due_ms: int, priority: int, bits: int) -> None:
    text = core.ident.mint(due_ms, priority, bits)
    other = uuid.UUID(text)
    assert str(other) == text
    assert (other.version, other.variant) == (7, uuid.RFC_4122)
    assert core.ident.parse(text) == other.bytes
    assert core.ident.version(text) == 7
    assert core.ident.due_ms(text) == due_ms
    assert core.ident.priority(text) == priority
    assert other.int & (2**58 - 1) == bits


@given(first=DUE_MS, second=DUE_MS, bits=BITS)
def test_ids_sort_by_due_time(core: SimpleNamespace, first: int, second: int, bits: int) -> None:
    if first < second:
        assert core.ident.mint(first, 9, bits) < core.ident.mint(second, 0, 0)


def test_derive_takes_the_first_58_bits_of_the_digest(core: SimpleNamespace) -> None:
    digest = bytes.fromhex("0123456789abcdef") + b"rest"
    expected = core.ident.mint(1000, 3, 0x0123456789ABCDEF >> 6)
    assert core.ident.derive(1000, 3, digest) == expected
    assert core.ident.derive(1000, 3, digest[:8]) == expected
    assert core.ident.derive(1000, 3, b"\xff" * 8) == core.ident.mint(1000, 3, 2**58 - 1)


def test_derive_refuses_a_short_digest(core: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="7 bytes is too short"):
        core.ident.derive(1000, 3, b"1234567")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 5, 0), "due time -1"),
        ((2**48, 5, 0), "due time 281474976710656"),
        ((2**70, 5, 0), "due time"),
        ((0, -1, 0), "priority -1"),
        ((0, 10, 0), "priority 10"),
        ((0, 5, -1), "does not fit 58 bits"),
        ((0, 5, 2**58), "does not fit 58 bits"),
    ],
)
def test_mint_refuses(core: SimpleNamespace, arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        core.ident.mint(*arguments)


def test_version_8_has_no_due_time_and_no_priority(core: SimpleNamespace) -> None:
    assert core.ident.version(V8) == 8
    assert core.ident.parse(V8) == uuid.UUID(V8).bytes
    for read in (core.ident.due_ms, core.ident.priority):
        with pytest.raises(ValueError, match="version 8"):
            read(V8)


def test_a_foreign_uuid_of_version_7_has_no_priority(core: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="its priority would be 15"):
        core.ident.priority("019c03d8-5880-7abc-bfff-456789abcdef")


MALFORMED = [
    "",
    "x",
    V7.upper(),
    V7.replace("-", ""),
    f"{{{V7}}}",
    f"urn:uuid:{V7}",
    V7 + " ",
    " " + V7[:-1],
    V7[:-1],
    V7[:-1] + "g",
    V7[:-1] + "\u0661",
    V7[:-1] + "`",
    V7[:-1] + ":",
    "+" + V7[1:],
    *(V7.replace("-7", f"-{version}") for version in "01469f"),
    V7.replace("-9", "-7"),
    V7.replace("-9", "-c"),
    V7.replace("-", "_"),
    *(V7[:at] + "0" + V7[at + 1 :] for at in (8, 13, 18, 23)),
    "../../../../../../../../../etc/passwd",
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed(core: SimpleNamespace, text: str) -> None:
    for read in (core.ident.parse, core.ident.version, core.ident.due_ms, core.ident.priority):
        with pytest.raises(ValueError, match="is not a task id"):
            read(text)
