"""From an unmodified client to a real model and back: `dragoman serve` and `dragoman worker embedded` as processes."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.long
def test_a_real_model_streams_an_answer(gateway: str) -> None:
    with OpenAI(base_url=gateway + "/v1", api_key="none") as client:
        chunks = list(
            client.chat.completions.create(
                model="smollm2",
                messages=QUESTION,
                temperature=0,
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        whole = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=24)
    assert len(text.split()) > 3
    assert whole.choices[0].message.content == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    assert {chunk.model for chunk in chunks} == {"smollm2"}


@pytest.mark.long
def test_a_real_model_answers_whole(gateway: str) -> None:
    with OpenAI(base_url=gateway + "/openai/v1", api_key="none") as client:
        chat = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Say hi."}], max_tokens=8, temperature=0
        )
        assert chat.choices[0].message.content
        assert chat.choices[0].finish_reason in ("stop", "length")
        text = client.completions.create(model="smollm2", prompt="Once upon a time", max_tokens=8, temperature=0)
        assert text.choices[0].text
        assert text.usage is not None
        assert text.usage.completion_tokens == 8


def test_context_overflow_is_the_callers_error(gateway: str) -> None:
    long = "word " * 20_000
    with (
        OpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": long}], max_tokens=8)
    assert caught.value.code == "context_length_exceeded"


def test_models(gateway: str) -> None:
    with OpenAI(base_url=gateway + "/v1", api_key="none") as client:
        assert "smollm2" in {model.id for model in client.models.list()}
