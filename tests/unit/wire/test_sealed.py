"""A sealed text is opened for the caller that it was sealed for, and for nobody else."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sealing import Sealing, secret_name
from gateway.wire.sealed import Seal

CALLERS = {
    "one": Sealing("team one", b"a" * 32),
    "one's other secret": Sealing("team one", b"b" * 32),
    "another with the same secret": Sealing("key one", b"a" * 32),
    "nobody": Sealing("", b""),
}


def sealed_by(caller: str, use: bytes = b"use") -> Seal:
    return Seal(lambda: CALLERS[caller], use)


@given(st.text())
def test_it_comes_back(text: str) -> None:
    closed = sealed_by("one").close(text)
    assert closed.isascii()
    assert sealed_by("one").open(closed) == text
    assert closed == sealed_by("one").close(text)


def test_half_a_surrogate_pair_does_not_come_back() -> None:
    """It is not a character, and no worker could be sent it."""
    assert sealed_by("one").open(sealed_by("one").close("\ud83d")) is None


@pytest.mark.parametrize(("one", "two"), [*permutations(CALLERS, 2)])
def test_nobody_else_opens_it(one: str, two: str) -> None:
    assert sealed_by(two).open(sealed_by(one).close("secret")) is None


def test_its_owner_opens_it_by_any_secret_that_is_known_and_no_other_owner_does() -> None:
    closed = sealed_by("one").close("secret")
    known = {secret_name(b"a" * 32): b"a" * 32}
    assert Seal(lambda: Sealing("team one", b"new", known.get), b"use").open(closed) == "secret"
    assert Seal(lambda: Sealing("team two", b"new", known.get), b"use").open(closed) is None
    assert Seal(lambda: Sealing("team one", b"new", lambda name: None), b"use").open(closed) is None


def test_where_the_caller_is_not_known_only_that_opens_it() -> None:
    closed = Seal(None, b"use").close("secret")
    assert Seal(None, b"use").open(closed) == "secret"
    assert sealed_by("one").open(closed) is None


def test_who_seals_is_asked_for_only_when_something_is_sealed() -> None:
    def asked() -> Sealing:
        raise AssertionError

    assert Seal(asked, b"use").open("gAAAAA==") is None


def test_what_was_changed_or_is_for_another_use_is_not_opened() -> None:
    seal = sealed_by("one")
    closed = seal.close("secret")
    assert sealed_by("one", b"other use").open(closed) is None
    for place in range(5, len(closed)):
        letter = "A" if closed[place] != "A" else "B"
        changed = closed[:place] + letter + closed[place + 1 :]
        assert seal.open(changed) in (None, "secret")  # the last letters of base64 have unused bits
    for nonsense in ("", "dgs2.", "dgs2.%%%", "dgs2.é", "gAAAAA==", closed[:-5], closed + "AAAA", "dgs1." + closed[5:]):
        assert seal.open(nonsense) is None


def test_no_secret_is_shown() -> None:
    assert "canary" not in repr(Sealing("key a", b"canary"))
