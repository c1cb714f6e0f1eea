"""Names by pattern: which of several a name means, and which names may match at all."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Aliases

ALIASES = Aliases(
    {"claude-*": "small", "claude-opus*": "large", "claude-opus-4": "exact", "gpt-4o*": "other", "gpt-4o-m*": "mini"}
)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-haiku-4-5-20251001", "small"),
        ("claude-", "small"),
        ("claude-*", "small"),
        ("claude-opus-4", "exact"),
        ("claude-opus-4-1", "large"),
        ("claude-opus", "large"),
        ("claude-opu", "small"),
        ("claude", None),
        ("xclaude-haiku", None),
        ("Claude-haiku", None),
        ("gpt-4o", "other"),
        ("gpt-4o-mini", "mini"),
        ("", None),
        ("claude-" + "x" * 193, "small"),
        ("claude-" + "x" * 194, None),
        ("claude- haiku", None),
        ("claude-haiku\n", None),
    ],
)
def test_a_whole_name_wins_then_the_longest_pattern(name: str, model: str | None) -> None:
    assert ALIASES.find(name) == model


def test_a_star_alone_takes_every_name_that_may_be_one() -> None:
    aliases = Aliases({"*": "any", "claude-*": "small"})
    assert [aliases.find(name) for name in ("gpt", "claude-x", "*", "", "a b")] == ["any", "small", "any", None, None]


def test_a_look_up_takes_no_longer_for_more_patterns_of_the_same_lengths_and_keeps_nothing() -> None:
    looked: list[str] = []

    class Begins(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            looked.append(key)
            return super().get(key, default)

    aliases = Aliases({f"{number:05d}*": "m" for number in range(10_000)} | {"abc*": "n"})
    aliases._begins = begins = Begins(aliases._begins)  # counts look-ups
    for stranger in range(100):
        assert aliases.find(f"stranger-{stranger}") is None
    assert looked[:2] == ["stran", "str"]
    assert len(looked) == 200
    assert len(begins) == 10_001
