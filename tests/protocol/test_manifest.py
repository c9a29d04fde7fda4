"""The manifest: what clients of a bucket agree on."""

import json

import pytest

from buquet.errors import ManifestMismatch, NewerLayout, PoisonRecord
from buquet.protocol.manifest import (
    Fitness,
    Manifest,
    check_agrees,
    check_shard_prefix_len,
    decode,
    encode,
)

MANIFEST = Manifest(
    shard_prefix_len=2,
    created_at="2027-01-15T08:00:00.000Z",
    nonce="00ff",
    fitness=Fitness(driver="s3", probe=1),
)


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(encode(MANIFEST)) | fields).encode()


def test_a_person_can_read_it() -> None:
    assert decode(encode(MANIFEST)) == MANIFEST
    assert b'\n  "shard_prefix_len": 2' in encode(MANIFEST)
    assert json.loads(encode(MANIFEST))["v"] == 1


def test_later_fields_are_passed_over() -> None:
    assert decode(changed(colour="blue")) == MANIFEST


def test_a_newer_layout_is_told_apart() -> None:
    with pytest.raises(NewerLayout, match="layout version 2, this program knows 1; upgrade"):
        decode(b'{"v": 2, "all_else": "differs"}')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b"{}",
        b'{"v": "1"}',
        b"\xff",
        b'{"v": 1, "x": ' + b"[" * 200_000,
        changed(shard_prefix_len="2"),
        changed(shard_prefix_len=0),
        changed(shard_prefix_len=5),
        changed(v=0),
    ],
)
def test_what_is_no_manifest_is_poison(body: bytes) -> None:
    with pytest.raises(PoisonRecord, match=r"buquet\.json is not this queue's manifest"):
        decode(body)


def test_only_an_explicit_setting_can_disagree() -> None:
    check_agrees(MANIFEST, None)
    check_agrees(MANIFEST, 2)
    with pytest.raises(
        ManifestMismatch, match="created with shard_prefix_len=2, not 1: leave the setting out"
    ):
        check_agrees(MANIFEST, 1)


@pytest.mark.parametrize("length", [0, 5, -1])
def test_a_length_out_of_range(length: int) -> None:
    with pytest.raises(ValueError, match="shard_prefix_len must be 1 to 4"):
        check_shard_prefix_len(length)


@pytest.mark.parametrize("length", [True, 1.0, "1"])
def test_a_length_that_is_no_integer(length: object) -> None:
    with pytest.raises(TypeError, match="shard_prefix_len must be an integer"):
        check_shard_prefix_len(length)  # type: ignore[arg-type]
