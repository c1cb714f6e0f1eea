"""Lists within lists are in no request of Gemini's API, and are not read level by level."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.dialects.test_linear import decoded_again, nested

CONTENT = {"parts": [{"text": "a", "zz": 1}]}


@pytest.mark.parametrize(
    ("member", "inner"), [("contents", CONTENT), ("tools", {"functionDeclarations": []})], ids=["contents", "tools"]
)
def test_lists_within_lists_are_not_decoded_for_each_level(member: str, inner: Any) -> None:
    assert not decoded_again("gemini", {"contents": [CONTENT], member: nested("[INNER]", inner)})
