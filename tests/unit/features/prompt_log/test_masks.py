"""Masks: what they find, what is refused as a pattern, and how long they may take."""

from __future__ import annotations

import time

import pytest

from gateway.auth import KnownKeys
from gateway.config.prompt_log import PromptLog
from gateway.config.prompt_log_checks import pattern_fault
from gateway.features.prompt_log.masks import Masks, TooLong


def masked(text: str, **patterns: str) -> str:
    return Masks(PromptLog(directory="/x", patterns=patterns), KnownKeys()).begin().masked(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("to a.b+c@mail.example.org.", "to [email]."),
        ("not@home, a@b", "not@home, a@b"),
        ("4111111111111111", "[card]"),
        ("4111-1111-1111-1111 and 5500 0000 0000 0004", "[card] and [card]"),
        ("4111111111111112", "4111111111111112"),
        ("order 123456789012345678901234", "order 123456789012345678901234"),
        ('{"key": "sk-' + "a1" * 20 + '"}', '{"key": "***"}'),
    ],
)
def test_a_mask_finds_forms(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize("at", [*range(440, 580, 7), 15_990, 16_010])
def test_a_match_across_windows_is_found(at: int) -> None:
    pad = "x" * (at - 1) + " "
    found = masked(pad + "me@example.com 4111 1111 1111 1111 P-1234 sk-" + "a1b2" * 8 + " end", part=r"\bP-[0-9]{4}\b")
    assert found == pad + "[email] [card] [part] *** end"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "not a regular expression"),
        ("a*", "empty"),
        ("a+", "at most 256 characters"),
        ("a{257}", "at most 256 characters"),
        ("(?:a|aa){1,100}", "too many ways"),
        ("(?:a?){1,64}b", "too many ways"),
        ("(?:[a-z]{0,9}[a-z]{0,9}){5}!", "too many ways"),
        ("(?=a)b", "look around"),
        (r"(a)\1", "refer to a group"),
        ("^a", "begin or end"),
        ("a$", "begin or end"),
        ("(" * 2000 + "a" + ")" * 2000, "not a regular expression"),
    ],
)
def test_a_pattern_that_could_take_long_is_refused(pattern: str, words: str) -> None:
    assert words in (pattern_fault(pattern) or "")


@pytest.mark.parametrize("pattern", [r"E-[0-9]{5}", r"(?i)\b(?:alice|bob)\b", "[a-z]{1,64}@[a-z]{1,64}", ".{3}x?"])
def test_ordinary_patterns_are_taken(pattern: str) -> None:
    assert pattern_fault(pattern) is None


def test_masking_ends_in_time_whatever_the_text_is() -> None:
    pattern = "a{1,90}a{1,90}b"
    assert pattern_fault(pattern) is None
    masking = Masks(PromptLog(directory="/x", patterns={"p": pattern}), KnownKeys()).begin()
    began = time.thread_time()
    with pytest.raises(TooLong):
        masking.masked("a" * 1_000_000)
    assert time.thread_time() - began < 5
