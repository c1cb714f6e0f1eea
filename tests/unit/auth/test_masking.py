"""Keys are recognised in texts: those of the request, those that were used lately, and those with a vendor's form."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import KnownKeys, masking
from gateway.core.http import Headers

KEY = "aZ3-no.vendors/form+0123=x"
TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"), min_size=8, max_size=60)
NOBODY: Headers = []


@given(TEXTS, st.text(max_size=40), st.text(max_size=40))
def test_a_used_key_is_found_wherever_it_stands(key: str, before: str, after: str) -> None:
    keys = KnownKeys()
    keys.add(key.encode())
    assert keys.in_id(before + key + after, NOBODY)
    assert key not in keys.masked(before + key + after, NOBODY)


@given(st.text(max_size=300))
def test_a_text_without_a_key_stays_as_it_is(text: str) -> None:
    keys = KnownKeys()
    keys.add(KEY.encode())
    keys.configured = {sha256(b"another-key").digest()}
    shown: Headers = [(b"authorization", b"Bearer " + KEY[::-1].encode())]
    assert keys.masked(text, shown) == text


def test_a_part_of_the_requests_own_key_is_found() -> None:
    key = "".join(map(chr, range(48, 110)))
    for begin, end in [(0, 16), *((one, other) for one in range(40) for other in range(one + 23, 63))]:
        part = key[begin:end]
        found = KnownKeys().masked(f"the model '{part}' does not exist", [(b"x-api-key", key.encode())])
        assert found == "the model '***' does not exist"


def test_several_keys_in_one_text_are_masked_each() -> None:
    keys = KnownKeys()
    for one in ("first-key-1", "second-key-2"):
        keys.add(one.encode())
    assert keys.masked("first-key-1second-key-2, first-key-1 and more", NOBODY) == "***, *** and more"


def test_a_configured_key_that_nobody_has_used_is_found_as_a_word() -> None:
    keys = KnownKeys()
    keys.configured = {sha256(KEY.encode()).digest()}
    assert keys.masked(f"unknown parameter '{KEY}'", NOBODY) == "unknown parameter '***'"
    assert keys.in_id(KEY, NOBODY)


@pytest.mark.parametrize("whose", ["configured", "admins"])
@pytest.mark.parametrize("mark", [*"-_.+/=~"])
@pytest.mark.parametrize("words", ["{0}a{0}{1}", "{1}{0}b", "a{0}{1}{0}b", "a{0}b{0}c{0}d{0}e{0}{1}", "metadata{0}{1}"])
def test_a_key_that_nobody_has_used_is_found_between_words(words: str, mark: str, whose: str) -> None:
    keys, key = KnownKeys(), "no-vendors_form.of=a/key"
    setattr(keys, whose, {sha256(key.encode()).digest()})
    text = words.format(mark, key)
    assert keys.in_id(text, NOBODY)
    assert key not in keys.masked(f"in {text}!", NOBODY)


def test_a_word_of_many_marks_is_searched_in_few_steps() -> None:
    assert len([*masking.pieces("abcdefgh." * 1000)]) < 80
    assert len([*masking.pieces("0f8c2b7a-91d3-4e65-b8a0-7c1d2e3f4a5b")]) == 1


@pytest.mark.parametrize("text", ["sk_id", "pk_column", "hf_token", "rk", "eyJ", "parallel_tool_calls", "bearer"])
def test_words_that_only_begin_like_keys_stay(text: str) -> None:
    assert KnownKeys().masked(f"unknown parameter '{text}'", NOBODY) == f"unknown parameter '{text}'"


@pytest.mark.parametrize("key", ["sk-proj-abcdefghijkl", "dgm_aaaa1111_" + "c" * 43, "eyJhbGciOiJSUzI1NiJ9.eyJ9.c2ln"])
def test_vendors_forms_are_masked_in_texts(key: str) -> None:
    assert KnownKeys().masked(f"there is no model {key}!", NOBODY) == "there is no model ***!"


def test_the_number_of_keys_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_MOST", 10)
    keys = KnownKeys()
    for number in range(30):
        keys.add(b"key-number-%d" % number)
        keys.add(b"key-number-%d" % number)
    found = [number for number in range(30) if keys.in_id(f"x-key-number-{number}", NOBODY)]
    assert found == list(range(20, 30))
    assert sum(sum(lengths.values()) for lengths in keys._lengths.values()) == 10  # a forgotten key leaves no length


def test_no_key_is_kept() -> None:
    keys = KnownKeys()
    keys.add(KEY.encode())
    assert KEY[:4] not in repr(vars(keys)) + repr(keys)
