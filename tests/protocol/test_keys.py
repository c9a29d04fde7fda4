"""Keys: how they are spelled, what is read back, and what is nobody's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buquet._core import ident
from buquet._core.shard import shard_of
from buquet.errors import ForeignKey, PoisonRecord
from buquet.protocol.keys import Keys, Marker, expand_shards

TASK_ID = "018bcfe5-6800-7000-9400-0000000000ab"
"""Due at 0x18bcfe56800 ms, priority 5."""

SHARD = shard_of(TASK_ID, 1)


def test_the_layout_is_spelled_like_this() -> None:
    keys = Keys()
    first = keys.first_marker(TASK_ID)
    assert first == Marker(SHARD, 5, 0x018BCFE56800, TASK_ID, 0)
    assert keys.marker_key(first) == f"ready/{SHARD}/5/018bcfe56800-{TASK_ID}-0000"
    assert keys.ledger(TASK_ID) == f"tasks/{SHARD}/{TASK_ID}.json"
    assert keys.manifest == "buquet.json"


def test_a_prefix_stands_before_every_key() -> None:
    keys = Keys("team/a/", 2)
    shard = shard_of(TASK_ID, 2)
    assert keys.marker_key(keys.first_marker(TASK_ID)).startswith(f"team/a/ready/{shard}/5/")
    assert keys.ledger(TASK_ID) == f"team/a/tasks/{shard}/{TASK_ID}.json"
    assert keys.manifest == "team/a/buquet.json"


@given(
    prefix=st.sampled_from(["", "a/", "ready/", "x/ready/"]),
    shard_prefix_len=st.integers(1, 4),
    due_ms=st.integers(0, 2**48 - 1),
    marker_due_ms=st.integers(0, 2**48 - 1),
    priority=st.integers(0, 9),
    bits=st.integers(0, 2**58 - 1),
    attempt=st.integers(0, 0xFFFF),
)
def test_what_is_written_is_read_back(
    prefix: str,
    shard_prefix_len: int,
    due_ms: int,
    marker_due_ms: int,
    priority: int,
    bits: int,
    attempt: int,
) -> None:
    keys = Keys(prefix, shard_prefix_len)
    task_id = ident.mint(due_ms, priority, bits)
    marker = Marker(keys.shard(task_id), priority, marker_due_ms, task_id, attempt)
    assert keys.parse_marker(keys.marker_key(marker)) == marker
    assert keys.parse_ledger(keys.ledger(task_id)) == task_id
    assert keys.parse_marker(keys.marker_key(keys.first_marker(task_id))) == keys.first_marker(task_id)


def test_markers_sort_by_priority_then_due() -> None:
    keys = Keys()
    markers = [
        Marker("3", priority, due_ms, TASK_ID, 0) for priority in (0, 5, 9) for due_ms in (1, 16, 2**48 - 1)
    ]
    spelled = [keys.marker_key(marker) for marker in markers]
    assert spelled == sorted(spelled)


JUNK_MARKERS = [
    "",
    "readme.txt",
    f"{SHARD}/5/018bcfe56800-{TASK_ID}-0000.bak",
    f"{SHARD}/5/018bcfe56800-{TASK_ID}-0000\n",
    f"{SHARD}/5/018bcfe56800-{TASK_ID}-000",
    f"{SHARD}/5/018bcfe56800-{TASK_ID}-00000",
    f"{SHARD}/5/018BCFE56800-{TASK_ID}-0000",
    f"{SHARD}/5/018bcfe56800-{TASK_ID.upper()}-0000",
    f"{SHARD}/a/018bcfe56800-{TASK_ID}-0000",
    f"{SHARD}/55/018bcfe56800-{TASK_ID}-0000",
    f"g/5/018bcfe56800-{TASK_ID}-0000",
    f"/5/018bcfe56800-{TASK_ID}-0000",
    f"{SHARD}/5/018bcfe56800-018bcfe5-6800-4000-9400-0000000000ab-0000",
    f"{SHARD}/5/018bcfe56800-018bcfe5-6800-7000-1400-0000000000ab-0000",
    f"{SHARD}/5/018bcfe56800-٠18bcfe5-6800-7000-9400-0000000000ab-0000",
]


@pytest.mark.parametrize("junk", JUNK_MARKERS)
def test_what_is_no_marker_is_poison(junk: str) -> None:
    with pytest.raises(PoisonRecord, match="is not a marker"):
        Keys("p/").parse_marker(f"p/ready/{junk}")


@pytest.mark.parametrize(
    "junk", ["x", f"{SHARD}/{TASK_ID}", f"{SHARD}/{TASK_ID}.json.gz", f"x/{TASK_ID}.json"]
)
def test_what_is_no_ledger_is_poison(junk: str) -> None:
    with pytest.raises(PoisonRecord, match="is not a ledger"):
        Keys().parse_ledger(f"tasks/{junk}")


@pytest.mark.parametrize("shard", ["aa", "aaa", "aaaa", "aaaaa"])
def test_a_shard_of_another_length_is_another_layout(shard: str) -> None:
    with pytest.raises(ForeignKey, match=f"a shard of {len(shard)} digits, this queue has 1"):
        Keys().parse_marker(f"ready/{shard}/5/018bcfe56800-{TASK_ID}-0000")
    with pytest.raises(ForeignKey, match="two clients with different settings"):
        Keys().parse_ledger(f"tasks/{shard}/{TASK_ID}.json")


def test_shards_are_all_and_in_order() -> None:
    assert "".join(Keys().shards()) == "0123456789abcdef"
    pairs = Keys(shard_prefix_len=2).shards()
    assert (len(pairs), pairs[0], pairs[-1], pairs == sorted(pairs)) == (256, "00", "ff", True)


def test_a_shorter_name_selects_by_prefix() -> None:
    keys = Keys(shard_prefix_len=2)
    assert expand_shards(["a"], keys) == [f"a{digit}" for digit in "0123456789abcdef"]
    assert expand_shards(["a1", "0f", "a1"], keys) == ["0f", "a1"]
    assert len(expand_shards(["a", "a1", "b"], keys)) == 32


@pytest.mark.parametrize("name", ["", "g", "A", "00", " 0", "0/", 0, None])
def test_what_is_no_shard_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="is not a shard: use 1 to 1 lower-case hex digits"):
        expand_shards(["0", name], Keys())  # type: ignore[list-item]


def test_no_shard_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        expand_shards([], Keys())
