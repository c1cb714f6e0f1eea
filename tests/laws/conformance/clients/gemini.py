"""Google's clients: a stream of events, and one that is an array."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.http import Response
from tests.laws.conformance.clients.heard import PNG, Client, Heard, HeardChoice, Turn


def hear_gemini(stream: bytes) -> Heard:
    """A stream of events. An error stands in it as JSON alone, as `@google/genai` before 2.0 wants it."""
    assert b"\r" not in stream
    heard = Heard()
    for piece in stream.decode().split("\n\n"):
        line = piece.strip("\n")
        if line:
            assert "\n" not in line
            _hear(heard, line.removeprefix("data: "), event=line.startswith("data: "))
    return heard


def hear_array(stream: bytes) -> Heard:
    """Item by item, as it arrives; it is complete with its last bracket."""
    heard = Heard()
    text = stream.decode().strip()
    if not text:
        return heard
    assert text.startswith("[\n")
    closed = text.endswith("\n]")
    for item in text[2:].removesuffix("\n]").split("\n,\n"):
        _hear(heard, item, event='"error":' not in item[:9])
    assert heard.complete == closed
    return heard


def _hear(heard: Heard, text: str, *, event: bool) -> None:
    assert not heard.complete, "something follows the finish reasons"
    assert heard.error is None, "something follows an error"
    said = json.loads(text)
    if not event:
        heard.error = said["error"]["message"]
        return
    assert said["modelVersion"]
    assert said["responseId"]
    for candidate in said["candidates"]:
        _hear_candidate(heard.of(candidate["index"]), candidate)
    if any("finishReason" in candidate for candidate in said["candidates"]):
        assert all("finishReason" in candidate for candidate in said["candidates"])
        heard.complete = True
    _hear_usage(heard, said)


def _hear_usage(heard: Heard, said: dict[str, Any]) -> None:
    if "usageMetadata" in said:
        usage = said["usageMetadata"]
        thoughts = usage.get("thoughtsTokenCount", 0)
        heard.usage = usage["promptTokenCount"], usage["candidatesTokenCount"] + thoughts
        assert usage["totalTokenCount"] == sum(heard.usage)


def _hear_candidate(choice: HeardChoice, said: dict[str, Any]) -> None:
    assert said["content"]["role"] == "model"
    assert said["content"]["parts"]
    for part in said["content"]["parts"]:
        if "functionCall" in part:
            call = part["functionCall"]
            assert isinstance(call["args"], dict)
            given = call["args"]
            text = given["_raw"] if given.keys() == {"_raw"} else json.dumps(given)
            choice.calls.append([call.get("id"), call["name"], text])
        elif part.get("thought"):
            choice.thinking += part["text"]
        else:
            choice.text += part["text"]
    measured = said.get("logprobsResult")
    if measured is not None:
        choice.logprobs += [[one["token"], one["logProbability"]] for one in measured["chosenCandidates"]]
        assert len(measured["topCandidates"]) == len(measured["chosenCandidates"])
    choice.finish = said.get("finishReason")


def read_gemini(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=True)
    assert reply["modelVersion"]
    assert reply["responseId"]
    for candidate in reply["candidates"]:
        _hear_candidate(heard.of(candidate["index"]), candidate)
    _hear_usage(heard, reply)
    return heard


def refused_google(response: Response) -> str:
    told = json.loads(response.body)["error"]
    assert told["code"] == response.status
    assert told["status"].isupper()
    assert isinstance(told["message"], str)
    return str(told["message"])


def _in_contents(body: dict[str, Any]) -> dict[str, Any]:
    """A body of OpenAI's words in those of Google's API."""
    config: dict[str, Any] = {"thinkingConfig": {"includeThoughts": True}}
    names = {"max_tokens": "maxOutputTokens", "n": "candidateCount", "logprobs": "responseLogprobs"}
    config |= {own: body[name] for name, own in names.items() if name in body}
    if "stop" in body:
        config["stopSequences"] = [body["stop"]] if isinstance(body["stop"], str) else body["stop"]
    contents = [{"role": "user", "parts": [{"text": one["content"]}]} for one in body["messages"]]
    found: dict[str, Any] = {"contents": contents, "generationConfig": config}
    if "tools" in body:
        tools = [tool["function"] for tool in body["tools"]]
        declared = [{"name": tool["name"], "parametersJsonSchema": tool.get("parameters") or {}} for tool in tools]
        found["tools"] = [{"functionDeclarations": declared}]
    return found


_GEMINI = {
    "stop": "it does not name the sequence that matched",
    "refusal": "a refusal is the candidate's text",
}
_ENDS = {"stop": "STOP", "stop_sequence": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}


def _client(name: str, query: bytes) -> Client:
    return Client(
        name,
        "gemini",
        "chat",
        "/v1beta/models/m:streamGenerateContent",
        "stream",
        hear_gemini if query else hear_array,
        read_gemini,
        refused_google,
        blind=_GEMINI,
        words={**_ENDS, "content_filter": "SAFETY"},
        asks_to_stream=False,
        params={"model": "m"},
        query=query,
        own=_in_contents,
    )


def write_turns(found: list[Turn]) -> dict[str, Any]:
    contents: list[dict[str, Any]] = []
    for kind, *rest in found:
        parts: list[dict[str, Any]] = [{"text": rest[0]}]
        if kind == "call":
            parts = [{"functionCall": {"id": f"c{rest[0]}", "name": "f", "args": {"a": rest[1]}}}]
        elif kind == "result":
            response: dict[str, Any] = {"id": f"c{rest[0]}", "name": "f", "response": {"output": rest[1]}}
            if rest[2]:
                response["parts"] = [{"inlineData": {"mimeType": "image/png", "data": PNG}}]
            parts = [{"functionResponse": response}]
        role = "model" if kind in ("say", "call") else "user"
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    return {"model": "m", "contents": contents}


CLIENTS: tuple[Client, ...] = (_client("gemini", b"alt=sse"), _client("gemini array", b""))
