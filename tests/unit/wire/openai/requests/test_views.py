"""What is known of the objects in a body of OpenAI's wire, where their own members decide on that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.wire.openai.requests.views import CHAT_MEMBERS, FORMS, TEXT_MEMBERS, ImageIn, SchemaIn, part_form


def members(given: dict[str, Any]) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value).encode()) for name, value in given.items()}


@pytest.mark.parametrize(
    ("part", "known"),
    [
        ({"type": "text", "image_url": {}}, {"type": None, "text": None}),
        ({"type": "image_url"}, {"type": None, "image_url": ImageIn}),
        # Kept whole.
        ({"type": "video_url", "text": "a"}, None),
        ({"text": "a"}, None),
        ({"type": None}, None),
    ],
)
def test_a_part_is_what_its_type_says(part: dict[str, Any], known: Any) -> None:
    assert part_form(members(part)) == known
    assert FORMS["content"] is part_form


@pytest.mark.parametrize(
    ("message", "known"),
    [
        ({}, True),
        ({"reasoning": "a"}, True),
        ({"reasoning": "a", "reasoning_content": "a"}, True),
        ({"reasoning": "", "reasoning_content": "a"}, True),
        ({"reasoning": None, "reasoning_content": "a"}, True),
        ({"reasoning": "b", "reasoning_content": "a"}, False),
    ],
)
def test_of_two_words_for_thinking_one_is_known(message: dict[str, Any], known: bool) -> None:
    found = FORMS["messages"](members(message))
    assert found is not None
    assert ("reasoning" in found) is known
    assert {"role", "content", "reasoning_content"} < set(found)


@pytest.mark.parametrize(
    ("type_", "known"),
    [
        ("text", {"type": None}),
        ("json_object", {"type": None}),
        ("json_schema", {"type": None, "json_schema": SchemaIn}),
        ("other", {"type": None, "json_schema": SchemaIn}),
    ],
)
def test_a_schema_belongs_to_its_own_format(type_: str, known: Any) -> None:
    assert FORMS["response_format"](members({"type": type_})) == known


def test_what_has_a_canonical_place_in_one_and_not_the_other() -> None:
    assert {"messages", "tools", "max_completion_tokens"} <= CHAT_MEMBERS - TEXT_MEMBERS
    assert {"prompt", "echo", "suffix", "best_of"} <= TEXT_MEMBERS - CHAT_MEMBERS
