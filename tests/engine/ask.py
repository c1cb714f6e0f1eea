"""How each dialect is asked the same thing, and what it answers: text, usage, why it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx

from tests.harness import sse_data

QUESTION = "What is the capital of France?"
PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": QUESTION}]


class Answer(NamedTuple):
    """usage is (prompt tokens, completion tokens) or None where the dialect has no place for it."""

    text: str
    reason: str | None
    usage: tuple[int, int] | None


def _usage(found: dict[str, Any] | None) -> tuple[int, int] | None:
    return (found["prompt_tokens"], found["completion_tokens"]) if found else None


def chat_whole(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    return Answer(choice["message"]["content"], choice["finish_reason"], _usage(body.get("usage")))


def text_whole(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    return Answer(choice["text"], choice["finish_reason"], _usage(body.get("usage")))


def chunks(content: bytes) -> list[dict[str, Any]]:
    """The chunks of OpenAI's stream, its terminal mark checked."""
    data = list(sse_data(content))
    assert data[-1] == b"[DONE]"
    return [json.loads(one) for one in data[:-1]]


def chat_stream(content: bytes) -> Answer:
    text, reason, usage = "", None, None
    for chunk in chunks(content):
        usage = _usage(chunk.get("usage")) or usage
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            reason = choice.get("finish_reason") or reason
    return Answer(text, reason, usage)


def text_stream(content: bytes) -> Answer:
    text, reason, usage = "", None, None
    for chunk in chunks(content):
        usage = _usage(chunk.get("usage")) or usage
        for choice in chunk["choices"]:
            text += choice["text"]
            reason = choice.get("finish_reason") or reason
    return Answer(text, reason, usage)


def payload_parts(content: bytes) -> bytes:
    """What stands in the event-stream frames of InvokeEndpointWithResponseStream."""
    out = b""
    while content:
        total, head = int.from_bytes(content[:4], "big"), int.from_bytes(content[4:8], "big")
        headers = content[12 : 12 + head]
        assert b"PayloadPart" in headers, headers
        out += content[12 + head : total - 4]
        content = content[total:]
    return out


def ollama_lines(content: bytes) -> Answer:
    lines = [json.loads(line) for line in content.splitlines() if line]
    assert lines[-1]["done"] is True
    assert not any(line["done"] for line in lines[:-1])
    return Answer("".join(line["message"]["content"] for line in lines), None, None)


def ollama_whole(body: dict[str, Any]) -> Answer:
    if "choices" in body:
        return chat_whole(body)
    return Answer(body["message"]["content"], body.get("done_reason"), _usage(body.get("usage")))


def friendli_events(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(one) for one in sse_data(content)]


def friendli_stream(content: bytes) -> Answer:
    *sampled, last = friendli_events(content)
    assert last["event"] == "complete"
    text = "".join(event["text"] for event in sampled)
    assert last["choices"][0]["text"] == text
    return Answer(text, last["choices"][0]["finish_reason"], _usage(last["usage"]))


class Way(NamedTuple):
    """One route of a dialect. kind is chat or complete; stream reads the bytes, whole the JSON."""

    path: str
    kind: str
    fixed: dict[str, Any]
    whole: Callable[[dict[str, Any]], Answer] | None
    stream: Callable[[bytes], Answer] | None

    def ask(self, client: httpx.Client, stream: bool, **fields: Any) -> httpx.Response:
        body = {**self.fixed, **({"messages": MESSAGES} if self.kind == "chat" else {"prompt": PROMPT}), **fields}
        body["stream"] = stream
        if stream and self.fixed.get("include_usage"):
            body["stream_options"] = {"include_usage": True}
        body.pop("include_usage", None)
        return client.post(self.path, json=body)

    def answer(self, response: httpx.Response, stream: bool) -> Answer:
        assert response.status_code == 200, response.text
        if stream:
            assert self.stream is not None
            return self.stream(response.content)
        assert self.whole is not None
        return self.whole(response.json())


MODEL = {"model": "smollm2"}
USAGE = {**MODEL, "include_usage": True}
AZURE = "?api-version=2024-05-01-preview"
ENDPOINT = "/sagemaker/endpoints/smollm2"

WAYS: dict[str, Way] = {
    "openai chat": Way("/openai/v1/chat/completions", "chat", USAGE, chat_whole, chat_stream),
    "openai text": Way("/openai/v1/completions", "complete", USAGE, text_whole, text_stream),
    "sagemaker chat": Way("/sagemaker/invocations", "chat", USAGE, chat_whole, chat_stream),
    "sagemaker text": Way("/sagemaker/invocations", "complete", USAGE, text_whole, text_stream),
    "sagemaker endpoint": Way(f"{ENDPOINT}/invocations", "chat", MODEL, chat_whole, None),
    "sagemaker endpoint stream": Way(
        f"{ENDPOINT}/invocations-response-stream",
        "chat",
        USAGE,
        None,
        lambda content: chat_stream(payload_parts(content)),
    ),
    "azure": Way(f"/azure/chat/completions{AZURE}", "chat", {}, chat_whole, chat_stream),
    "ollama": Way("/ollama/chat/completions", "chat", MODEL, ollama_whole, ollama_lines),
    "friendli text": Way("/friendli/v1/completions", "complete", {}, text_whole, friendli_stream),
    "friendli chat": Way("/friendli/v1/chat/completions", "chat", USAGE, chat_whole, chat_stream),
}
