"""OpenAI's clients."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.http import Response
from tests.laws.conformance.clients.heard import PNG, Client, Heard, Turn, events


def write_turns(found: list[Turn]) -> dict[str, Any]:
    """Every other turn of the system is the developer's."""
    messages: list[dict[str, Any]] = []
    for index, (kind, *rest) in enumerate(found):
        if kind == "system":
            messages.append({"role": "developer" if index % 2 else "system", "content": rest[0]})
        elif kind == "user":
            messages.append({"role": "user", "content": rest[0]})
        elif kind == "result":
            text = {"type": "text", "text": rest[1]}
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
            content = [text, image] if rest[2] else rest[1]
            messages.append({"role": "tool", "tool_call_id": f"c{rest[0]}", "content": content})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            if kind == "say":
                messages[-1]["content"] += rest[0]
            else:
                called = {"name": "f", "arguments": json.dumps({"a": rest[1]})}
                calls = messages[-1].setdefault("tool_calls", [])
                calls.append({"id": f"c{rest[0]}", "type": "function", "function": called})
    return {"model": "m", "messages": messages}


def hear_openai(stream: bytes) -> Heard:
    heard = Heard()
    for kind, data in events(stream):
        assert not kind
        assert not heard.complete, "something follows [DONE]"
        if data == "[DONE]":
            heard.complete = heard.error is None
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            heard.error = chunk["error"]["message"]
            continue
        hear_chunk(heard, chunk)
    return heard


def hear_chunk(heard: Heard, chunk: dict[str, Any]) -> None:
    assert {"id", "object", "created", "model", "choices"} <= set(chunk)
    if chunk.get("usage"):
        heard.usage = chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]
    for found in chunk["choices"]:
        new = found["index"] not in heard.choices
        choice = heard.of(found["index"])
        assert choice.finish is None, "something follows finish_reason"
        choice.finish = found["finish_reason"]
        choice.stop = found.get("stop_reason")
        if "text" in found:
            choice.text += found["text"]
            if found.get("logprobs"):
                assert found["logprobs"]["text_offset"][0] == sum(len(token) for token, _ in choice.logprobs)
            choice.logprobs += text_logprobs(found.get("logprobs"))
            continue
        delta = found["delta"]
        assert ("role" in delta) == new, "the role belongs to the first delta only"
        choice.text += delta.get("content") or ""
        choice.thinking += delta.get("reasoning_content") or ""
        choice.refusal += delta.get("refusal") or ""
        choice.logprobs += chat_logprobs(found.get("logprobs"))
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            if call["index"] == len(choice.calls):
                choice.calls.append([call["id"], function["name"], ""])
            own = choice.calls[call["index"]]
            own[2] = (own[2] or "") + (function.get("arguments") or "")


def chat_logprobs(found: Any) -> list[list[Any]]:
    return [[item["token"], item["logprob"]] for item in (found or {}).get("content") or ()]


def text_logprobs(found: Any) -> list[list[Any]]:
    found = found or {"tokens": [], "token_logprobs": []}
    return [list(pair) for pair in zip(found["tokens"], found["token_logprobs"], strict=True)]


def read_openai(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=True)
    if reply.get("usage"):
        heard.usage = reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]
    for found in reply["choices"]:
        choice = heard.of(found["index"])
        choice.finish, choice.stop = found["finish_reason"], found.get("stop_reason")
        if "text" in found:
            choice.text = found["text"]
            choice.logprobs = text_logprobs(found.get("logprobs"))
            continue
        message = found["message"]
        choice.text = message["content"] or ""
        choice.thinking = message.get("reasoning_content") or ""
        choice.refusal = message.get("refusal") or ""
        choice.logprobs = chat_logprobs(found.get("logprobs"))
        for call in message.get("tool_calls") or ():
            choice.calls.append([call["id"], call["function"]["name"], call["function"]["arguments"]])
    return heard


def refused_openai(response: Response) -> str:
    message = json.loads(response.body)["error"]["message"]
    assert isinstance(message, str)
    return message


NO_STOP = {"stop": "OpenAI's wire does not name the sequence that matched"}
OPENAI = (hear_openai, read_openai, refused_openai, "openai", NO_STOP)
"""How its clients read, whatever its paths are."""

CLIENTS: tuple[Client, ...] = (
    Client("openai chat", "openai", "chat", "/v1/chat/completions", "chat", *OPENAI),
    Client("openai completions", "openai", "complete", "/v1/completions", "complete", *OPENAI),
)
