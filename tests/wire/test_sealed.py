"""A sealed text is opened for the caller that it was sealed for, and for nobody else."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import new_key
from gateway.core.http import Headers
from gateway.wire import sealed
from gateway.wire.sealed import Seal

KEY, OTHER = (new_key("app")[0].encode() for _ in range(2))
SIGNATURE = b"AWS4-HMAC-SHA256 Credential=%b/20260101/eu-west-1/x/aws4_request, SignedHeaders=host, Signature=%b"
CALLERS: dict[str, Headers] = {
    "a key": [(b"authorization", b"Bearer " + KEY)],
    "another": [(b"authorization", b"Bearer " + OTHER)],
    "a weak one": [(b"authorization", b"Bearer sk-1")],
    "another weak one": [(b"api-key", b"sk-2")],
    "a signature": [(b"authorization", SIGNATURE % (b"AKIA1", b"0"))],
    "another signature": [(b"authorization", SIGNATURE % (b"AKIA2", b"0"))],
    "nobody": [],
}


@given(st.text())
def test_it_comes_back(text: str) -> None:
    seal = Seal(CALLERS["a key"], b"use")
    closed = seal.close(text)
    assert closed.isascii()
    assert seal.open(closed) == text
    assert closed == Seal(CALLERS["a key"], b"use").close(text)


def test_half_a_surrogate_pair_does_not_come_back() -> None:
    """It is no character, and no worker could be sent it."""
    seal = Seal(CALLERS["a key"], b"use")
    assert seal.open(seal.close("\ud83d")) is None


@pytest.mark.parametrize(("one", "two"), [*permutations(CALLERS, 2)])
def test_nobody_else_opens_it(one: str, two: str) -> None:
    assert Seal(CALLERS[two], b"use").open(Seal(CALLERS[one], b"use").close("secret")) is None


def test_a_caller_is_the_same_by_any_header() -> None:
    closed = Seal([(b"authorization", b"Bearer " + KEY)], b"use").close("secret")
    for headers in ([(b"api-key", KEY)], [(b"x-api-key", KEY)], [(b"authorization", b"bearer: " + KEY)]):
        assert Seal(headers, b"use").open(closed) == "secret"
    again = Seal([(b"authorization", SIGNATURE % (b"AKIA1", b"1"))], b"use")
    assert again.open(Seal(CALLERS["a signature"], b"use").close("secret")) == "secret"


@pytest.mark.parametrize("name", CALLERS)
def test_another_process_opens_only_what_a_strong_key_sealed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Seal(CALLERS[name], b"use").close("secret")
    monkeypatch.setattr(sealed, "_OWN", b"x" * 32)
    opened = Seal(CALLERS[name], b"use").open(closed)
    assert opened == ("secret" if name in ("a key", "another") else None)


def test_what_was_changed_or_is_for_another_use_is_not_opened() -> None:
    seal = Seal(CALLERS["a key"], b"use")
    closed = seal.close("secret")
    assert Seal(CALLERS["a key"], b"other use").open(closed) is None
    for place in range(5, len(closed)):
        letter = "A" if closed[place] != "A" else "B"
        changed = closed[:place] + letter + closed[place + 1 :]
        assert seal.open(changed) in (None, "secret")  # the last letters of base64 have unused bits
    for nonsense in ("", "dgs1.", "dgs1.%%%", "dgs1.é", "gAAAAA==", closed[:-5], closed + "AAAA"):
        assert seal.open(nonsense) is None
