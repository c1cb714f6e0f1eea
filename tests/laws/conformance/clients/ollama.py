"""Ollama's own clients."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from gateway.core.http import Response
from tests.laws.conformance.clients import openai
from tests.laws.conformance.clients.heard import PNG, Client, Heard, HeardChoice, Turn


def hear_ollama(stream: bytes) -> Heard:
    """As strictly as the strictest client: no blank line, each line whole, one last line or one error."""
    assert not stream or stream.endswith(b"\n")
    heard = Heard()
    for text in stream.decode().split("\n")[:-1]:
        assert text.strip(), "a blank line"
        line = json.loads(text)
        assert not heard.complete, "something follows done"
        assert heard.error is None, "something follows an error"
        if "error" in line:
            heard.error = line["error"]
            continue
        assert {"model", "created_at", "done"} <= set(line)
        hear_ollama_piece(heard.of(0), line)
        heard.complete = line["done"]
        if heard.complete:
            hear_ollama_end(heard, line)
    return heard


def hear_ollama_piece(choice: HeardChoice, said: dict[str, Any]) -> None:
    """A line of a stream, or a whole reply, of a chat or of a generation."""
    message = said["message"] if "message" in said else {**said, "content": said["response"]}
    choice.text += message["content"]
    choice.thinking += message.get("thinking", "")
    choice.logprobs += [[item["token"], item["logprob"]] for item in said.get("logprobs", ())]
    for call in message.get("tool_calls", ()):
        assert call["function"]["index"] == len(choice.calls)
        arguments = call["function"]["arguments"]
        text = arguments["_raw"] if "_raw" in arguments else json.dumps(arguments)
        choice.calls.append([call["id"], call["function"]["name"], text])


def hear_ollama_end(heard: Heard, said: dict[str, Any]) -> None:
    heard.of(0).finish = said["done_reason"]
    heard.usage = said["prompt_eval_count"], said["eval_count"]


def read_ollama(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=reply["done"])
    hear_ollama_piece(heard.of(0), reply)
    hear_ollama_end(heard, reply)
    return heard


def refused_ollama(response: Response) -> str:
    message = json.loads(response.body)["error"]
    assert isinstance(message, str)
    return message


def _for_ollama(body: dict[str, Any]) -> dict[str, Any]:
    """A body of OpenAI's words in those of Ollama's API. A prompt goes to the worker as it is."""
    names = {"stop": "stop", "max_tokens": "num_predict"}
    found = {name: value for name, value in body.items() if name not in (*names, "stream_options")}
    found["options"] = {own: body[name] for name, own in names.items() if name in body}
    found.setdefault("stream", False)
    if "prompt" in found:
        found["raw"] = True
    if type(found.get("logprobs")) is int:
        found["top_logprobs"] = found["logprobs"]
        found["logprobs"] = True
    return found


def write_turns(found: list[Turn]) -> dict[str, Any]:
    body = openai.write_turns(found)
    for message in body["messages"]:
        if isinstance(message["content"], list):
            message["content"], message["images"] = message["content"][0]["text"], [PNG]
    return body


_OLLAMA_ENDS = {"tool_calls": "stop", "content_filter": "stop"}


_OLLAMA = {
    "n": "a reply has one message",
    "stop": "it does not name the sequence that matched",
    "usage": "it always has counts: those that nobody told are 0",
    "refusal": "a refusal is the message's text",
}


_native = partial(
    Client,
    hear=hear_ollama,
    read=read_ollama,
    refused=refused_ollama,
    blind=_OLLAMA,
    words=_OLLAMA_ENDS,
    own=_for_ollama,
)
CLIENTS: tuple[Client, ...] = (
    _native("ollama chat", "ollama", "chat", "/api/chat", "chat"),
    _native("ollama generations", "ollama", "complete", "/api/generate", "generate"),
)
