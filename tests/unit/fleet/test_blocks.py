"""What engines' events make known of their caches, in every form that vLLM has published them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.fleet.blocks import MOST_BYTES, Blocks, Malformed, chain

TOKENS = list(range(100, 116))
SIZE = 4


def stored(first: int, count: int, tokens: list[int], parent: int | None = None, **more: Any) -> dict[str, Any]:
    """The event of `count` blocks, which the engine names `first` and so on."""
    event = {"block_hashes": list(range(first, first + count)), "parent_block_hash": parent, "token_ids": tokens}
    return {"type": "BlockStored", **event, "block_size": SIZE, "lora_id": None, "medium": "GPU", **more}


def removed(*names: int, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


def told(*events: dict[str, Any], most: int = 100) -> Blocks:
    blocks = Blocks(most)
    blocks.arriving = True
    list(blocks.steps(0, batch(*events)))
    return blocks


def had(blocks: Blocks, tokens: list[int] = TOKENS, salt: str | None = None) -> int:
    """The tokens of a prompt that it has."""
    return blocks.match(chain(tokens, SIZE, salt))


@pytest.mark.parametrize(
    "payload",
    [
        # As of vLLM 0.10: arrays.
        [1.0, [["BlockStored", [1, 2], None, TOKENS[:8], SIZE, None, "GPU"]]],
        [1.0, [["BlockStored", [1, 2], None, TOKENS[:8], SIZE, None]], 0],
        # As of 0.32: a batch is an array, its events are maps.
        [1.0, [stored(1, 2, TOKENS[:8], lora_name=None, extra_keys=[None, None], group_idx=0)], 0],
        # And the batch a map, too.
        {"ts": 1.0, "events": [stored(1, 2, TOKENS[:8])]},
    ],
)
def test_every_form_is_read(payload: Any) -> None:
    blocks = Blocks()
    list(blocks.steps(7, msgspec.msgpack.encode(payload)))
    assert (had(blocks), blocks.size, blocks.last) == (8, SIZE, 7)


def test_hashes_may_be_bytes() -> None:
    event = {**stored(1, 1, TOKENS[:4]), "block_hashes": [b"\x01" * 32]}
    then = {**stored(1, 1, TOKENS[4:8]), "block_hashes": [b"\x02" * 32], "parent_block_hash": b"\x01" * 32}
    assert had(told(event, then)) == 8


def test_blocks_follow_each_other() -> None:
    blocks = told(stored(1, 2, TOKENS[:8]), stored(3, 1, TOKENS[8:12], parent=2))
    assert had(blocks) == 12
    assert had(blocks, [*TOKENS[:8], 7, 7, 7, 7]) == 8
    assert had(blocks, TOKENS[4:]) == 0, "the same tokens at another place are another block"
    assert had(blocks, TOKENS[:7]) == 4, "whole blocks count"


def test_what_is_removed_is_gone() -> None:
    blocks = told(stored(1, 4, TOKENS), removed(3))
    assert had(blocks) == 8
    list(blocks.steps(1, batch(stored(3, 1, TOKENS[8:12], parent=2))))
    assert had(blocks) == 16
    list(blocks.steps(2, batch(removed(1), removed(99))))
    assert had(blocks) == 0
    list(blocks.steps(3, batch(CLEARED)))
    assert len(blocks) == 0
    assert blocks.whole, "that is all that the engine has"


def test_what_is_told_again_counts_once() -> None:
    blocks = told(stored(1, 2, TOKENS[:8]), stored(1, 2, TOKENS[:8]), removed(1, 2))
    assert (had(blocks), len(blocks)) == (0, 0)


def test_a_block_behind_an_unknown_one_is_unknown() -> None:
    assert len(told(stored(5, 2, TOKENS[8:], parent=4))) == 0


def test_other_places_groups_and_sizes_do_not_count() -> None:
    inside = {**stored(9, 1, TOKENS[:2]), "block_size": 2}
    blocks = told(
        stored(1, 1, TOKENS[:4], group_idx=0),
        stored(1, 1, TOKENS[:4], group_idx=1),
        stored(2, 1, TOKENS[4:8], parent=1, medium="CPU", group_idx=0),
        {**inside, "group_idx": 0},
        removed(1, medium="CPU", group_idx=0),
        removed(1, group_idx=1),
    )
    assert (had(blocks), len(blocks)) == (4, 1)


def test_salts_and_adapters_keep_prompts_apart() -> None:
    blocks = told(
        stored(1, 2, TOKENS[:8], extra_keys=[["salty"], None]),
        stored(3, 1, TOKENS[:4], lora_name="sql", extra_keys=[["sql"]]),
        stored(4, 1, TOKENS[:4], lora_id=3),
    )
    assert had(blocks) == 0
    assert had(blocks, salt="salty") == 8
    assert had(blocks, salt="sql") == 4, "a salt like an adapter's name: a worse choice at most"
    assert blocks.covers("salty")
    old = told(stored(1, 2, TOKENS[:8]))
    assert old.covers(None)
    assert not old.covers("salty"), "an engine that names no salts cannot tell tenants apart"
    old.arriving = False
    assert not old.covers(None)


def test_memory_is_bounded() -> None:
    blocks = told(stored(1, 4, TOKENS), most=3)
    assert (had(blocks), len(blocks)) == (12, 3)
    list(blocks.steps(1, batch(removed(3), stored(3, 2, TOKENS[8:], parent=2))))
    assert (had(blocks), len(blocks)) == (12, 3)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode({"ts": 1.0}),
        batch({"type": "BlockStored"}),
        batch(stored(1, 2, TOKENS[:4])),
        batch({**stored(1, 1, TOKENS[:4]), "block_size": 0}),
        batch({**stored(1, 1, TOKENS[:4]), "block_hashes": [[1]]}),
        batch({**stored(1, 1, TOKENS[:4]), "block_hashes": [b"x" * 65]}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": [-1, 2, 3, 4]}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": ["a", 2, 3, 4]}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": 7}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": "a" * 40_000}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": ["a" * 40_000]}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": [1] * 40_000 + [-1]}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": [1 << 32] * 40_000}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": dict.fromkeys(range(40_000), 1)}),
        batch({**stored(1, 1, TOKENS[:4]), "token_ids": [1 << 32, 2, 3, 4]}),
        batch(stored(1, 1, [1] * 262_145)),
        batch(removed(*[1] * 65_537)),
        batch({**stored(1, 1, TOKENS[:4]), "extra_keys": []}),
        batch({"type": "BlockRemoved", "block_hashes": 7, "medium": None}),
        b"\x93\x00" + b"\x91" * 100_000 + b"\xc0\xc0",
        b"\x93\x00\x91" + b"\x91" * 100_000 + b"\xc0\xc0",
        batch() + bytes(MOST_BYTES),
        batch(*[CLEARED] * 32_769),
        # No object is made of what is too much: the rest of the array is not even there.
        b"\x93\x00\xdd" + (60 << 20).to_bytes(4, "big"),
    ],
)
def test_what_cannot_be_read_makes_all_unknown(payload: bytes) -> None:
    blocks = told(stored(1, 1, TOKENS[:4]))
    with pytest.raises(Malformed):
        list(blocks.steps(1, payload))
    assert (len(blocks), blocks.whole, blocks.last) == (0, False, 1)


def test_an_error_of_ours_leaves_nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = told(stored(1, 1, TOKENS[:4]))

    def fail(self: Blocks) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(Blocks, "_removed", lambda self, event: fail(self))
        with pytest.raises(RuntimeError):
            list(blocks.steps(1, batch(removed(1))))
    assert (len(blocks), blocks.whole, blocks.last, blocks.unreadable) == (0, False, 1, 1)


def test_large_batches_are_applied_bit_by_bit() -> None:
    for events in (
        [stored(1, 4_000, [1] * 16_000)],
        [removed(n) for n in range(5_000)],
        [stored(1, 1, TOKENS[:4]), removed(*range(5_000))],
    ):
        assert len(list(Blocks().steps(0, batch(*events)))) >= 4
    stopped = Blocks()
    next(stopped.steps(0, batch(stored(1, 4_000, [1] * 16_000))))
    assert (stopped.last, stopped.read) == (-1, 0)


_TOKEN = st.integers(0, (1 << 32) - 1) | st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1])


@given(st.lists(_TOKEN, min_size=1, max_size=40), st.integers(1, 6_000))
@example([1, 1 << 16], 60_000)
def test_tokens_of_any_size_are_read_whole_and_in_slices(some: list[int], times: int) -> None:
    tokens = some * times  # across the bounds of slices, at any offset
    blocks = Blocks()
    blocks.arriving = True
    steps = len(list(blocks.steps(0, batch({**stored(1, 1, tokens), "block_size": len(tokens)}))))
    assert blocks.match(chain(tokens, len(tokens), None)) == len(tokens)
    assert steps >= (len(tokens) - 1) // 32_768


@pytest.mark.parametrize("one", [b"\xd0\x01", b"\xd1\x00\x01", b"\xd2\0\0\0\x01", b"\xd3" + bytes(7) + b"\x01"])
@pytest.mark.parametrize("count", [4, 40_000])
def test_tokens_may_be_packed_with_a_sign(one: bytes, count: int) -> None:
    packed = msgspec.Raw(b"\xdd" + count.to_bytes(4, "big") + one * count)
    assert had(told({**stored(1, 1, TOKENS), "token_ids": packed}), [1, 1, 1, 1]) == 4


def test_unknown_events_are_passed_over() -> None:
    assert had(told({"type": "Compacted"}, stored(1, 1, TOKENS[:4]))) == 4
