"""Clients as readers of bytes: what each dialect's own client would understand of a reply, streamed and whole.

Strict where the strictest recorded client is. Another dialect is another entry, or several, in `CLIENTS`; a test fails
while one is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from gateway.core.http import Headers, Request, Response
from gateway.wire import awsevent
from tests.conformance.scenarios import Operation, Scenario

HI = [{"role": "user", "content": "hi"}]


class HeardChoice(Struct):
    """calls are (id, name, arguments); logprobs (token, logprob); finish and stop as the client reads them."""

    text: str = ""
    thinking: str = ""
    refusal: str = ""
    calls: list[list[str | None]] = field(default_factory=list)
    logprobs: list[list[Any]] = field(default_factory=list)
    finish: str | None = None
    stop: Any = None


class Heard(Struct):
    """What a client made of a reply. complete: it saw the mark by which its wire says so, and no error; usage is
    (input, output)."""

    choices: dict[int, HeardChoice] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    error: str | None = None
    complete: bool = False

    def of(self, choice: int) -> HeardChoice:
        return self.choices.setdefault(choice, HeardChoice())


class Client(Struct, frozen=True):
    """One way to call one dialect.

    hear, read  a stream and a whole reply, as understood
    refused     the message of an error answer
    speaks      the backend wire that its streams also are, or None
    blind       what its wire has no word for, and why: fields of `HeardChoice`, "usage", or `Scenario.needs`
    words       its own words for why a choice ended, where they differ from OpenAI's
    own     makes a body in OpenAI's words one in those of the dialect
    asks_to_stream  whether `stream` in the body asks for it, or the path does
    """

    name: str
    dialect: str
    operation: Operation
    path: str
    route: str
    hear: Callable[[bytes], Heard]
    read: Callable[[bytes], Heard]
    refused: Callable[[Response], str]
    speaks: str | None = None
    blind: Mapping[str, str] = {}
    words: Mapping[str, str] = {}
    asks_to_stream: bool = True
    params: Mapping[str, str] = {}
    query: bytes = b""
    headers: Headers = []
    own: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def ask(self, scenario: Scenario, *, stream: bool) -> Request:
        content = {"messages": HI} if scenario.operation == "chat" else {"prompt": "hi"}
        # To be blind to `stop` is not to be told which one matched: it may be asked for all the same.
        asks = {name: value for name, value in scenario.asks.items() if name == "stop" or name not in self.blind}
        body: dict[str, Any] = {"model": "m", **content, **asks}
        if stream:
            if self.asks_to_stream:
                body["stream"] = True
            if scenario.usage != "absent" and self.tells("usage"):
                body["stream_options"] = {"include_usage": True}
        headers = [(b"content-type", b"application/json"), *self.headers]
        data = json.dumps(self.own(body)).encode()
        return Request("POST", self.path, headers, data, self.query, self.route, dict(self.params), "r")

    def tells(self, what: str) -> bool:
        return what not in self.blind


# -- server-sent events ---------------------------------------------------------------------------------------------


def events(stream: bytes) -> list[tuple[str, str]]:
    """(type, data) of each event, in the one form that all recorded clients read: LF only, one space, one line."""
    assert b"\r" not in stream
    found = []
    assert not stream or stream.endswith(b"\n\n"), stream[-80:]
    for piece in stream.decode().split("\n\n"):
        lines = [line for line in piece.split("\n") if line]
        if not lines:
            continue
        kind = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else ""
        assert len(lines) == 1, piece
        assert lines[0].startswith("data: "), piece
        found.append((kind, lines[0][6:]))
    return found


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


def refused_azure(response: Response) -> str:
    body = json.loads(response.body)
    assert body["status"] == response.status
    assert response.header(b"x-ms-error-code")
    message = body["message"]
    assert isinstance(message, str)
    return message


# -- sagemaker's framed streams -------------------------------------------------------------------------------------


def hear_framed(stream: bytes) -> Heard:
    reader = awsevent.Reader()
    frames = reader.feed(stream)
    reader.eof()
    payloads, error = b"", None
    for frame in frames:
        assert error is None, "something follows an exception"
        if frame.headers[":message-type"] == "exception":
            error = json.loads(frame.payload)["Message"]
        else:
            assert frame.headers[":event-type"] == "PayloadPart"
            payloads += frame.payload
    heard = hear_openai(payloads)
    if error is not None:
        assert not heard.complete
        heard.error = error
    return heard


def refused_aws(response: Response) -> str:
    assert response.header(b"x-amzn-errortype")
    body = json.loads(response.body)
    message = body.get("message") or body["Message"]
    assert isinstance(message, str)
    return message


# -- ollama ---------------------------------------------------------------------------------------------------------


def hear_ollama_lines(stream: bytes) -> Heard:
    assert not stream or stream.endswith(b"\n")
    heard = Heard()
    for line in stream.decode().split("\n")[:-1]:
        hear_ollama_chunk(heard, json.loads(line))
    return heard


def hear_ollama_sse(stream: bytes) -> Heard:
    heard = Heard()
    ended = False
    for kind, data in events(stream):
        assert not ended, "something follows [END]"
        if data == "[END]":
            ended = True
            heard.complete = heard.error is None
        elif kind:
            assert kind == "error"
            heard.error = json.loads(data)["message"]
        else:
            chunk = json.loads(data)
            assert chunk["done"] is False
            hear_ollama_chunk(heard, chunk)
    assert ended or heard.error is None, "an error is followed by [END]"
    return heard


def hear_ollama_chunk(heard: Heard, chunk: dict[str, Any]) -> None:
    assert not heard.complete, "something follows done"
    assert heard.error is None, "something follows an error"
    choice = heard.of(0)
    if "error" in chunk:
        assert chunk["done"] is True
        heard.error = chunk["error"]["message"]
        return
    heard.complete = chunk["done"]
    hear_ollama_message(choice, chunk["message"])


def hear_ollama_message(choice: HeardChoice, message: dict[str, Any]) -> None:
    choice.text += message["content"]
    choice.thinking += message.get("thinking", "")
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        choice.calls.append([call["id"], call["function"]["name"], text])


def read_ollama(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=reply["done"])
    hear_ollama_message(heard.of(0), reply["message"])
    return heard


# -- friendli -------------------------------------------------------------------------------------------------------


def hear_friendli(stream: bytes) -> Heard:
    """As friendli-client: whatever comes before `complete` is a token, and `complete` says all once more."""
    heard = Heard()
    for kind, data in events(stream):
        assert not kind
        assert not heard.complete, "something follows complete"
        assert heard.error is None, "something follows an error"
        said = json.loads(data)
        if said["event"] == "token_sampled":
            assert set(said) == {"event", "index", "text", "token"}
            heard.of(said["index"]).text += said["text"]
        elif said["event"] == "error":
            heard.error = said["message"]
        else:
            assert said["event"] == "complete"
            assert "token" not in said
            whole = read_friendli(data.encode())
            for index, choice in whole.choices.items():
                assert choice.text == heard.of(index).text
            heard = whole
    return heard


def read_friendli(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=True)
    heard.usage = reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]
    for found in reply["choices"]:
        assert isinstance(found["seed"], int)
        assert all(isinstance(token, int) for token in found["tokens"])
        choice = heard.of(found["index"])
        choice.text, choice.finish = found["text"], found["finish_reason"]
    return heard


# -- anthropic ------------------------------------------------------------------------------------------------------


def hear_anthropic(stream: bytes) -> Heard:
    """As strictly as the strictest client: one begin, one block open at a time, indices without gaps, one end."""
    heard = Heard()
    choice = heard.of(0)
    begun = over = False
    opened = -1
    block: str | None = None
    for kind, data in events(stream):
        said = json.loads(data)
        assert said["type"] == kind
        assert not over, "something follows message_stop"
        assert heard.error is None, "something follows an error"
        if kind == "error":
            heard.error = said["error"]["message"]
        elif kind == "message_start":
            assert not begun
            begun = True
            assert {"input_tokens", "output_tokens"} <= set(said["message"]["usage"])
        elif kind == "content_block_start":
            assert begun
            assert block is None, "two blocks are open"
            opened, block = opened + 1, said["content_block"]["type"]
            assert said["index"] == opened
            if block == "tool_use":
                choice.calls.append([said["content_block"]["id"], said["content_block"]["name"], ""])
        elif kind == "content_block_delta":
            assert said["index"] == opened
            assert block is not None
            _hear_anthropic_delta(choice, block, said["delta"])
        elif kind == "content_block_stop":
            assert said["index"] == opened
            block = None
        elif kind == "message_delta":
            _hear_anthropic_end(heard, {**said["delta"], "usage": said["usage"]})
        elif kind == "message_stop":
            assert block is None
            assert choice.finish is not None
            over = heard.complete = True
    return heard


def _hear_anthropic_delta(choice: HeardChoice, block: str, delta: dict[str, Any]) -> None:
    if delta["type"] == "text_delta":
        assert block == "text"
        choice.text += delta["text"]
    elif delta["type"] == "thinking_delta":
        assert block == "thinking"
        choice.thinking += delta["thinking"]
    elif delta["type"] == "input_json_delta":
        assert block == "tool_use"
        choice.calls[-1][2] = (choice.calls[-1][2] or "") + delta["partial_json"]
    else:
        assert delta["type"] == "signature_delta"
        assert delta["signature"]


def _hear_anthropic_end(heard: Heard, said: dict[str, Any]) -> None:
    choice, usage = heard.of(0), said["usage"]
    choice.finish, choice.stop = said["stop_reason"], said["stop_sequence"]
    cached = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    heard.usage = usage["input_tokens"] + cached, usage["output_tokens"]


def read_anthropic(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=True)
    choice = heard.of(0)
    assert reply["content"]
    for block in reply["content"]:
        if block["type"] == "text":
            choice.text += block["text"]
        elif block["type"] == "thinking":
            choice.thinking += block["thinking"]
        else:
            given = block["input"]
            text = given["__unparsedToolInput"]["raw"] if "__unparsedToolInput" in given else json.dumps(given)
            choice.calls.append([block["id"], block["name"], text])
    _hear_anthropic_end(heard, reply)
    return heard


def _in_messages(body: dict[str, Any]) -> dict[str, Any]:
    """A body of OpenAI's words in those of the Messages API."""
    names = {"stop": "stop_sequences"}
    found = {names.get(name, name): value for name, value in body.items() if name != "stream_options"}
    if isinstance(found.get("stop_sequences"), str):
        found["stop_sequences"] = [found["stop_sequences"]]
    if "tools" in found:
        tools = [tool["function"] for tool in found["tools"]]
        found["tools"] = [{"name": tool["name"], "input_schema": tool.get("parameters") or {}} for tool in tools]
    if "tool_choice" in found:
        choice = found["tool_choice"]
        words = {"auto": "auto", "required": "any", "none": "none"}
        found["tool_choice"] = (
            {"type": words[choice]} if isinstance(choice, str) else {"type": "tool", "name": choice["function"]["name"]}
        )
    found.setdefault("max_tokens", 64)
    return found


# -- the table ------------------------------------------------------------------------------------------------------

_NO_STOP = {"stop": "OpenAI's wire does not name the sequence that matched"}
_OLLAMA = {
    "n": "a reply has one message",
    "finish": "no chunk says why it ended",
    "stop": "no chunk says why it ended",
    "usage": "the specification has no counts",
    "logprobs": "the specification has no logprobs",
    "refusal": "a refusal is the message's text",
}
_AZURE = {**_NO_STOP, "usage": "stream_options is no parameter of the specification"}
_AZURE_QUERY = b"api-version=2024-05-01-preview"

_ANTHROPIC = {
    "n": "a reply has one message",
    "finish": "it has words of its own: tests/dialects/anthropic/test_laws.py",
    "stop": "of tokens that matched it has no word",
    "usage": "it always has counts: those that nobody told are 0",
    "logprobs": "it has no logprobs",
    "refusal": "a refusal is the message's text",
}

CLIENTS: tuple[Client, ...] = (
    Client(
        "openai chat",
        "openai",
        "chat",
        "/v1/chat/completions",
        "chat",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
        _NO_STOP,
    ),
    Client(
        "openai completions",
        "openai",
        "complete",
        "/v1/completions",
        "complete",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
        _NO_STOP,
    ),
    Client(
        "azure",
        "azure",
        "chat",
        "/chat/completions",
        "chat",
        hear_openai,
        read_openai,
        refused_azure,
        "openai",
        _AZURE,
        query=_AZURE_QUERY,
        headers=[(b"extra-parameters", b"pass-through")],
    ),
    Client(
        "sagemaker chat",
        "sagemaker",
        "chat",
        "/invocations",
        "invocations",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
    ),
    Client(
        "sagemaker completions",
        "sagemaker",
        "complete",
        "/invocations",
        "invocations",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
    ),
    Client(
        "sagemaker endpoint",
        "sagemaker",
        "chat",
        "/endpoints/m/invocations-response-stream",
        "endpoint_stream",
        hear_framed,
        read_openai,
        refused_aws,
        params={"name": "m"},
        asks_to_stream=False,
    ),
    Client(
        "sagemaker endpoint completions",
        "sagemaker",
        "complete",
        "/endpoints/m/invocations-response-stream",
        "endpoint_stream",
        hear_framed,
        read_openai,
        refused_aws,
        params={"name": "m"},
        asks_to_stream=False,
    ),
    Client(
        "ollama lines",
        "ollama",
        "chat",
        "/chat/completions",
        "chat",
        hear_ollama_lines,
        read_ollama,
        refused_openai,
        blind=_OLLAMA,
    ),
    Client(
        "ollama sse",
        "ollama",
        "chat",
        "/chat/sse",
        "sse",
        hear_ollama_sse,
        read_ollama,
        refused_openai,
        blind=_OLLAMA,
        asks_to_stream=False,
    ),
    Client(
        "friendli chat",
        "friendli",
        "chat",
        "/v1/chat/completions",
        "chat",
        hear_openai,
        read_openai,
        refused_openai,
        "openai",
        _NO_STOP,
        {"content_filter": "stop"},
    ),
    Client(
        "friendli completions",
        "friendli",
        "complete",
        "/v1/completions",
        "complete",
        hear_friendli,
        read_friendli,
        refused_openai,
        blind={
            **_NO_STOP,
            "usage": "it is always there: what no worker told is counted",
            "logprobs": "asked by another name, and never streamed",
        },
        words={"content_filter": "stop"},
    ),
    Client(
        "anthropic",
        "anthropic",
        "chat",
        "/v1/messages",
        "chat",
        hear_anthropic,
        read_anthropic,
        refused_openai,
        blind=_ANTHROPIC,
        own=_in_messages,
    ),
    Client(
        "friendli completions in chunks",
        "friendli",
        "complete",
        "/serverless/v1/completions",
        "chunks",
        hear_openai,
        read_friendli,
        refused_openai,
        blind={
            **_NO_STOP,
            "usage": "a whole reply always has it, and a stream cannot ask for it",
            "logprobs": "asked by another name",
        },
        words={"content_filter": "stop"},
    ),
)
