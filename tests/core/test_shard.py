"""The shard's hash, against published vectors and those of the layout."""

import random
from types import SimpleNamespace

import pytest

PRIME32 = 2_654_435_761
PRIME64 = 11_400_714_785_074_694_797


def sanity_buffer(size: int) -> bytes:
    """Return the input of the vectors below, as the reference implementation makes it."""
    data = bytearray()
    generator = PRIME32
    for _ in range(size):
        data.append(generator >> 56)
        generator = generator * PRIME64 % 2**64
    return bytes(data)


@pytest.mark.parametrize(
    ("size", "seed", "digest"),
    [
        # https://github.com/Cyan4973/xxHash/blob/v0.8.1/cli/xsum_sanity_check.c
        (0, 0, 0xEF46DB3751D8E999),
        (0, PRIME32, 0xAC75FDA2929B17EF),
        (1, 0, 0xE934A84ADB052768),
        (1, PRIME32, 0x5014607643A9B4C3),
        (4, 0, 0x9136A0DCA57457EE),
        (14, 0, 0x8282DCC4994E35C8),
        (14, PRIME32, 0xC3BD6BF63DEB6DF0),
        (222, 0, 0xB641AE8CB691C174),
        (222, PRIME32, 0x20CB8AB7AE10C14A),
    ],
)
def test_published_vectors(core: SimpleNamespace, size: int, seed: int, digest: int) -> None:
    assert core.shard.xxh64(sanity_buffer(size), seed) == digest


def test_every_length_agrees_with_the_xxhash_package(core: SimpleNamespace) -> None:
    xxhash = pytest.importorskip("xxhash")
    for size in range(130):
        data = random.Random(size).randbytes(size)
        for seed in (0, 1, 2**64 - 1):
            assert core.shard.xxh64(data, seed) == xxhash.xxh64_intdigest(data, seed), size


# Stored in buckets: a change of any of these loses tasks.
LAYOUT = [
    ("00000000-0000-7000-8000-000000000000", "48db"),
    ("019c03d8-5880-7000-9400-000000000000", "0365"),
    ("019c03d8-5880-7000-9523-456789abcdef", "43c8"),
    ("019c03d8-5880-8fff-bfff-456789abcdef", "10f2"),
    ("ffffffff-ffff-7000-a7ff-ffffffffffff", "d43b"),
]


@pytest.mark.parametrize(("task_id", "shard"), LAYOUT)
@pytest.mark.parametrize("prefix_len", [1, 2, 3, 4])
def test_layout(core: SimpleNamespace, task_id: str, shard: str, prefix_len: int) -> None:
    assert core.shard.shard_of(task_id, prefix_len) == shard[:prefix_len]


def test_a_shard_is_the_start_of_the_hash_of_the_ids_bytes(core: SimpleNamespace) -> None:
    for seed in range(200):
        task_id = core.ident.mint(seed, seed % 10, random.Random(seed).getrandbits(58))
        digest = core.shard.xxh64(core.ident.parse(task_id))
        assert core.shard.shard_of(task_id, 4) == f"{digest:016x}"[:4]


def test_shards_fill_evenly(core: SimpleNamespace) -> None:
    """Ids of one millisecond and priority, as a burst makes them, spread over all shards."""
    bits = random.Random(1)
    shards = [core.shard.shard_of(core.ident.mint(1000, 5, bits.getrandbits(58)), 1) for _ in range(3200)]
    counts = [shards.count(digit) for digit in "0123456789abcdef"]
    assert sum(counts) == 3200
    assert min(counts) > 140
    assert max(counts) < 260


@pytest.mark.parametrize("prefix_len", [-1, 0, 5])
def test_refuses_a_prefix_length(core: SimpleNamespace, prefix_len: int) -> None:
    with pytest.raises(ValueError, match="not one of 1 to 4"):
        core.shard.shard_of(LAYOUT[0][0], prefix_len)


@pytest.mark.parametrize("task_id", ["", "x", "019C03D8-5880-7000-9400-000000000000"])
def test_refuses_what_is_no_id(core: SimpleNamespace, task_id: str) -> None:
    with pytest.raises(ValueError, match="is not a task id"):
        core.shard.shard_of(task_id, 1)
