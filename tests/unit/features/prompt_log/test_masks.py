"""Masks: what they find, what is refused as a pattern, and how long they may take."""

from __future__ import annotations

import random
import re
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
        ("-" * 80 + "me@example.org" + "-" * 80, "-" * 18 + "[email]" + "-" * 51),
        ("4111111111111111", "[card]"),
        ("4111-1111-1111-1111 and 5500 0000 0000 0004", "[card] and [card]"),
        ("4111111111111112", "4111111111111112"),
        ("4111 1111 1111 1111 12/26, 4111 1111 1111 1111 123", "[card] 12/26, [card] 123"),
        ("12 4111111111111111; 20-4111-1111-1111-1111-20", "12 [card]; 20-[card]-20"),
        ("1 2 3 4111 1111 1111 1111 4 5 6", "1 2 3 [card] 4 5 6"),
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


@pytest.mark.parametrize("length", [13, 14, 15, 16, 17, 18, 19])
def test_a_card_is_found_however_it_is_grouped_and_whatever_stands_beside(length: int) -> None:
    draw = random.Random(length)
    for _ in range(200):
        body = "".join(str(draw.randrange(10)) for _ in range(length - 1))
        card = next(body + str(last) for last in range(10) if _luhn(body + str(last)))
        grouped = "".join(digit + draw.choice(("", "", "", " ", "-")) for digit in card).rstrip(" -")
        before, after = (draw.choice(("", "12 ", "7-", "2026 11 ", "x", "(")) for _ in range(2))
        text = before + grouped + after[::-1]
        assert all(group not in masked(text) for group in re.findall("[0-9]{4,}", grouped)), text


def _luhn(digits: str) -> bool:
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(digit - 9 if digit > 9 else digit for digit in doubled) % 10 == 0


@pytest.mark.parametrize("mark", ";:&=|(}/+~ ")
@pytest.mark.parametrize("at", [15_970, 15_990, 15_999])
def test_no_mark_between_words_lets_a_key_be_split(mark: str, at: int) -> None:
    pad = (("ab" + mark) * 6000)[: at - 1] + mark
    assert "a1b2" not in masked(pad + "sk-" + "a1b2" * 8 + mark + "end")


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


@pytest.mark.parametrize("text", ["1 ", "1-", "12 34 ", "1", "a", "a@", "a.b-", "a1_", "x@y.", "sk-"])
def test_no_ordinary_text_takes_so_long_that_it_is_left_out(text: str) -> None:
    most = PromptLog(directory="/x").max_entry_bytes
    began = time.thread_time()
    masked(text * (most // len(text)))
    assert time.thread_time() - began < 0.2


def test_masking_ends_in_time_whatever_the_text_is() -> None:
    pattern = "a{1,90}a{1,90}b"
    assert pattern_fault(pattern) is None
    masking = Masks(PromptLog(directory="/x", patterns={"p": pattern}), KnownKeys()).begin()
    began = time.thread_time()
    with pytest.raises(TooLong):
        masking.masked("a" * 1_000_000)
    assert time.thread_time() - began < 5
