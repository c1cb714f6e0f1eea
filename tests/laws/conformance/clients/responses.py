"""Clients of the Responses API."""

from __future__ import annotations

import json
from typing import Any

from tests.laws.conformance.clients.heard import PNG, Client, Heard, Turn, events
from tests.laws.conformance.clients.openai import refused_openai


class _Response:
    """A response as the strictest of its clients accumulates it: every item is added, filled and done, at its index;
    what is told whole is what its pieces were."""

    def __init__(self) -> None:
        self.id = ""
        self.items: list[dict[str, Any]] = []
        self.texts: dict[tuple[str, str], str] = {}
        self.done: list[dict[str, Any]] = []
        self.heard = Heard()

    def hear(self, said: dict[str, Any]) -> None:
        kind = said["type"]
        if "response" in said:
            self.id = self.id or said["response"]["id"]
            assert said["response"]["id"] == self.id
        if kind == "response.output_item.added":
            assert said["output_index"] == len(self.items)
            self.items.append(said["item"])
        elif kind == "response.output_item.done":
            self._done(said)
        elif kind.endswith(".delta"):
            item = self.items[said["output_index"]]
            assert said["item_id"] == item["id"]
            assert item["status"] == "in_progress"
            key = item["id"], kind.removesuffix(".delta")
            self.texts[key] = self.texts.get(key, "") + said["delta"]
            if said.get("logprobs"):
                self.heard.of(0).logprobs += [[one["token"], one["logprob"]] for one in said["logprobs"]]
        elif kind.endswith(("_part.done", "_part.added")):
            assert said["item_id"] == self.items[said["output_index"]]["id"]
        elif kind.endswith(".done"):
            whole = [said[name] for name in ("text", "refusal", "arguments", "input") if name in said]
            assert whole == [self.texts.get((said["item_id"], kind.removesuffix(".done")), "")]
        elif kind in ("response.completed", "response.incomplete"):
            assert said["response"]["output"] == self.done
            assert len(self.done) == len(self.items)
            heard = read_response(said["response"])
            logprobs = self.heard.of(0).logprobs
            assert heard.of(0).logprobs == logprobs
            self.heard = heard
        else:
            assert kind in ("response.created", "response.in_progress", "response.failed", "error"), kind

    def _done(self, said: dict[str, Any]) -> None:
        begun, whole = self.items[said["output_index"]], said["item"]
        assert {begun[name] for name in ("id", "type")} == {whole[name] for name in ("id", "type")}
        assert begun.get("call_id") == whole.get("call_id")
        begun["status"] = whole.get("status")  # a summary has none
        self.done.append(whole)


def hear_responses(stream: bytes) -> Heard:
    """Numbered events, created first, one end."""
    response = _Response()
    over = False
    for number, (kind, data) in enumerate(events(stream)):
        said = json.loads(data)
        assert said["type"] == kind
        assert said["sequence_number"] == number
        assert (kind == "response.created") == (number == 0)
        assert not over, "something follows the end"
        response.hear(said)
        if kind == "error":
            response.heard.error = said["error"]["message"]
        elif kind == "response.failed":
            assert said["response"]["error"]["message"].startswith(response.heard.error or "?")
            over = True
        elif kind in ("response.completed", "response.incomplete"):
            assert response.heard.error is None
            over = True
        assert response.heard.error is None or kind in ("error", "response.failed")
    return response.heard


def read_response(reply: dict[str, Any]) -> Heard:
    heard = Heard(complete=True)
    choice = heard.of(0)
    for item in reply["output"]:
        if item["type"] == "function_call":
            choice.calls.append([item["call_id"], item["name"], item["arguments"]])
            continue
        for part in item.get("content") or ():
            if part["type"] == "reasoning_text":
                choice.thinking += part["text"]
            elif part["type"] == "refusal":
                choice.refusal += part["refusal"]
            else:
                choice.text += part["text"]
                choice.logprobs += [[one["token"], one["logprob"]] for one in part["logprobs"]]
    details = reply["incomplete_details"]
    choice.finish = details["reason"] if details else reply["status"]
    heard.usage = reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]
    return heard


def read_responses(body: bytes) -> Heard:
    return read_response(json.loads(body))


def _in_responses(body: dict[str, Any]) -> dict[str, Any]:
    """A body of OpenAI's words for chats in those of the Responses API."""
    names = {"messages": "input", "max_tokens": "max_output_tokens"}
    found = {names.get(name, name): value for name, value in body.items() if name != "stream_options"}
    if "tools" in found:
        found["tools"] = [{"type": "function", **tool["function"]} for tool in found["tools"]]
    if found.pop("logprobs", None):
        found["include"] = ["message.output_text.logprobs"]
    return found


_RESPONSES = {
    "n": "a reply is one",
    "stop": "it has no stop sequences",
    "stop sequences": "it has none",
    "usage": "it always has counts: those that nobody told are 0",
}


_RESPONSES_ENDS = {
    "stop": "completed",
    "stop_sequence": "completed",
    "tool_calls": "completed",
    "length": "max_output_tokens",
}


def write_turns(found: list[Turn]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for kind, *rest in found:
        if kind in ("user", "system", "say"):
            role = {"say": "assistant", "system": "developer"}.get(kind, kind)
            items.append({"type": "message", "role": role, "content": rest[0]})
        elif kind == "call":
            arguments = json.dumps({"a": rest[1]})
            items.append({"type": "function_call", "call_id": f"c{rest[0]}", "name": "f", "arguments": arguments})
        else:
            image = [{"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]
            output = [{"type": "input_text", "text": rest[1]}, *(image if rest[2] else [])]
            items.append({"type": "function_call_output", "call_id": f"c{rest[0]}", "output": output})
    return {"model": "m", "input": items}


CLIENTS: tuple[Client, ...] = (
    Client(
        "responses",
        "responses",
        "chat",
        "/v1/responses",
        "chat",
        hear_responses,
        read_responses,
        refused_openai,
        blind=_RESPONSES,
        words=_RESPONSES_ENDS,
        own=_in_responses,
    ),
)
