"""Every dialect, whole and streamed, says what the engine itself says, and counts as it counts."""

from __future__ import annotations

import functools

import httpx
import pytest

from tests.acceptance.engine.ask import (
    CASES,
    MESSAGES,
    PROMPT,
    Answer,
    Way,
    chat_whole,
    drawn_cases,
    each_case,
    text_whole,
)

pytestmark = pytest.mark.engine


@functools.cache
def straight(engine: httpx.Client, kind: str, templated: bool, tokens: int) -> Answer:
    """What vLLM answers itself."""
    fields = {"model": "smollm2", "temperature": 0, "max_tokens": tokens}
    if templated:
        messages = MESSAGES if kind == "chat" else [{"role": "user", "content": PROMPT}]
        return chat_whole(engine.post("/v1/chat/completions", json={**fields, "messages": messages}).json())
    return text_whole(engine.post("/v1/completions", json={**fields, "prompt": PROMPT}).json())


@each_case
def test_the_same_words_as_the_engine(engine: httpx.Client, gateway: httpx.Client, way: Way, stream: bool) -> None:
    truth = straight(engine, way.kind, way.templated, 24)
    said = way.answer(way.ask(gateway, stream, temperature=0, max_tokens=24), stream)
    assert said.text.strip() == truth.text.strip()
    assert said.text
    if said.reason is not None:
        assert truth.reason is not None
        assert said.reason == way.client.words.get(truth.reason, truth.reason)
    if said.usage is not None:
        assert said.usage == truth.usage
    else:
        assert not way.client.tells("usage"), "its specification has a place for it"


@drawn_cases("length")
def test_a_length_limit_is_kept_and_said(gateway: httpx.Client, way: Way, stream: bool) -> None:
    said = way.answer(way.ask(gateway, stream, temperature=0, max_tokens=3), stream)
    assert said.usage is None or said.usage[1] == 3
    assert said.reason in (way.client.words.get("length", "length"), None)


def test_models_are_listed_with_what_the_worker_advertised(gateway: httpx.Client, engine: httpx.Client) -> None:
    (card,) = gateway.get("/openai/v1/models").json()["data"]
    assert card["id"] == "smollm2"
    longest = engine.get("/v1/models").json()["data"][0]["max_model_len"]
    assert card.get("max_model_len", longest) == longest


@pytest.mark.whole  # it asks in every way of every client
def test_what_the_logs_record_is_what_the_engine_counted(gateway: httpx.Client, engine: httpx.Client) -> None:
    def counted() -> tuple[float, float]:
        text = engine.get("/metrics").text
        found = []
        for name in ("prompt_tokens", "generation_tokens"):
            lines = [line for line in text.splitlines() if line.startswith(f"vllm:{name}_total{{")]
            found.append(sum(float(line.split()[-1]) for line in lines))
        return found[0], found[1]

    before = counted()
    told = [0, 0]
    for way, stream in CASES.values():
        assert way.answer(way.ask(gateway, stream, temperature=0, max_tokens=5), stream).text
    after = counted()
    text = gateway.get("/metrics").text
    for line in text.splitlines():
        if line.startswith("dragoman_tokens_total{") and 'source="engine"' in line:
            told["input" not in line] += int(float(line.split()[-1]))
    assert after[1] - before[1] == 5 * len(CASES)
    assert told[0] >= after[0] - before[0]
    assert told[1] >= after[1] - before[1]
