"""Places of tokens in their text, for each way in which vocabularies spell."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.token_spans import _LETTERS, spans_of

SHOWN = {byte: letter for letter, byte in _LETTERS.items()}
LETTERS = st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" ▁Ġ中é😀<"))
TEXTS = st.text(LETTERS, min_size=1, max_size=30)


def letters(piece: bytes) -> str:
    return "".join(SHOWN[byte] for byte in piece)


@given(TEXTS, st.lists(st.integers(0, 200), max_size=12))
def test_tokens_cut_anywhere_are_found(text: str, cuts: list[int]) -> None:
    """By letters and by bytes also within a character, which is then a part of both tokens."""
    data = text.encode()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    wanted = tuple(
        (len(data[:start].decode(errors="ignore")), len(data[:end].decode(errors="replace")))
        for start, end in itertools.pairwise(places)
    )
    assert spans_of(text, pieces) == wanted
    found = spans_of(text, [letters(piece) for piece in pieces])
    assert found == wanted
    assert spans_of(text, ["<|begin|>", *map(letters, pieces), "</s>"])[1:-1] == wanted  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "pieces", "spans"),
    [
        ("Hi you", ["<s>", "▁Hi", "▁you"], ((0, 0), (0, 2), (2, 6))),
        (" Hi", ["<s>", "▁▁", "Hi"], ((0, 0), (0, 1), (1, 3))),
        (" Hi", ["▁", "▁Hi"], ((0, 0), (0, 3))),
        ("a", ["▁", "a"], ((0, 0), (0, 1))),
        ("a\n中", ["▁a", "<0x0A>", "<0xE4>", "<0xB8>", "<0xAD>"], ((0, 1), (1, 2), (2, 3), (2, 3), (2, 3))),
        ("a▁b", ["a", "▁b"], ((0, 1), (1, 3))),
        ("Ġ", ["Ä", "ł"], ((0, 1), (0, 1))),
        ("Hello", ["[CLS]", "hell", "##o"], None),
        ("a b", ["a", " b", "c"], ((0, 1), (1, 3), (3, 3))),
    ],
)
def test_ways_to_spell(text: str, pieces: list[str], spans: object) -> None:
    assert spans_of(text, pieces) == spans


@pytest.mark.long
def test_the_work_is_linear() -> None:
    began = time.process_time()
    assert spans_of("ab" * 100_000, ["a", "b"] * 100_000)
    assert spans_of("ab" * 100_000, ["c"] * 200_000) is None
    assert time.process_time() - began < 5
