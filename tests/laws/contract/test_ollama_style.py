"""The Ollama-style API as plain HTTP clients and EventSource use it: every sample of its specification, as bytes.

Blanks and comments in the printed samples are for the reader, as the specification says; compared is its "actual"
form, with the values of the sample put into the simulated worker's mouth.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack

PIECES = ["I'm ", "doing well", ", thank you!"]
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer your_api_key"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    plain = {"backend": "vllm", "workers": ["http://127.0.0.1:9"], "features": []}
    config = {"models": {"m": {"aliases": ["model-name"]}, "plain": plain}}
    # A token takes time, so that what follows it is not in the same packet.
    with Stack(workers=({"itl_ms": 20.0},), config=config) as running:
        yield running


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url + "/ollama", headers=HEADERS) as client:
        yield client


def chat(script: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"model": "model-name", "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}], **members}


def said(**members: Any) -> dict[str, Any]:
    """The sample's reply. Its last text comes with the finish reason, as when max_tokens ends it."""
    return {"pieces": PIECES, "finish": "length", **members}


# -- samples --------------------------------------------------------------------------------------------------------


def test_regular(http: httpx.Client) -> None:
    text = "I'm doing well, thank you for asking! How can I help you today?"
    reply = http.post("/chat/completions", json=chat({"text": text}, stream=False, temperature=0.7))
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    sample = (
        '{"id":"cmpl-123abc","model":"model-name","created":1678048938,"message":{"role":"assistant","content":'
        '"I\'m doing well, thank you for asking! How can I help you today?"},"done":true}'
    )
    # Only the id and the time are the worker's own.
    found = re.sub(r'"cmpl-[^"]+"', '"cmpl-123abc"', reply.text)
    assert re.sub(r'"created":\d+', '"created":1678048938', found) == sample


def test_json_stream(http: httpx.Client) -> None:
    reply = http.post("/chat/completions", json=chat(said(), stream=True))
    assert reply.content == (
        b'{"message":{"role":"assistant","content":"I\'m "},"done":false,"index":0}\n'
        b'{"message":{"role":"assistant","content":"doing well"},"done":false,"index":1}\n'
        b'{"message":{"role":"assistant","content":", thank you!"},"done":true,"index":2}\n'
    )
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["transfer-encoding"] == "chunked"
    assert reply.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_sse_stream(http: httpx.Client, finish: str) -> None:
    reply = http.post("/chat/sse", json=chat(said(finish=finish)))
    assert reply.content == (
        b'data: {"message":{"role":"assistant","content":"I\'m "},"done":false,"index":0}\n\n'
        b'data: {"message":{"role":"assistant","content":"doing well"},"done":false,"index":1}\n\n'
        b'data: {"message":{"role":"assistant","content":", thank you!"},"done":false,"index":2}\n\n'
        b"data: [END]\n\n"
    )
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"


def test_json_stream_of_a_worker_that_ends_with_an_empty_chunk(http: httpx.Client) -> None:
    reply = http.post("/chat/completions", json=chat(said(finish="stop"), stream=True))
    lines = reply.content.splitlines()
    assert len(lines) == 4
    assert lines[2] == b'{"message":{"role":"assistant","content":", thank you!"},"done":false,"index":2}'
    assert lines[3] == b'{"message":{"role":"assistant","content":""},"done":true,"index":3}'


ERROR = '{"message":"%s","type":"%s","code":"%s"}'
CUT = ERROR % ("the worker's reply ended before it was complete", "server_error", "upstream_truncated")


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/sse"])
@pytest.mark.parametrize("stream", [False, True])
def test_regular_error(http: httpx.Client, path: str, stream: bool) -> None:
    """Before anything is streamed an error has its status, and the form of the reply that was asked for."""
    reply = http.post(path, json=chat(said(), model="nobody", stream=stream))
    message = "the model 'nobody' does not exist or you do not have access to it"
    message += "; GET /v1/models lists the models that you may use"
    assert reply.status_code == 404
    told = ERROR % (message, "invalid_request_error", "model_not_found")
    if path == "/chat/sse":
        assert reply.text == f"event: error\ndata: {told}\n\ndata: [END]\n\n"
        assert reply.headers["content-type"] == "text/event-stream"
        return
    assert reply.text == '{"error":' + told + (',"done":true}\n' if stream else "}")
    assert reply.headers["content-type"] == "application/json"


def test_json_stream_error(http: httpx.Client) -> None:
    reply = http.post("/chat/completions", json=chat(said(fault="eof@2"), stream=True))
    assert reply.text == (
        '{"message":{"role":"assistant","content":"I\'m "},"done":false,"index":0}\n'
        '{"message":{"role":"assistant","content":"doing well"},"done":false,"index":1}\n'
        '{"error":' + CUT + ',"done":true}\n'
    )


def test_sse_error(http: httpx.Client) -> None:
    reply = http.post("/chat/sse", json=chat(said(fault="eof@2")))
    assert reply.text.endswith("\n\nevent: error\ndata: " + CUT + "\n\ndata: [END]\n\n")
    assert reply.text.count("[END]") == 1


def test_curl_samples(http: httpx.Client) -> None:
    """The three calls of "Example Usage", with their own bodies."""
    body = '{\n    "model": "model-name",\n    "messages": [{"role": "user", "content": "Hello, world!"}]%s\n  }'
    regular = http.post("/chat/completions", content=body % ',\n    "stream": false')
    assert list(regular.json()) == ["id", "model", "created", "message", "done"]
    lines = http.post("/chat/completions", content=body % ',\n    "stream": true').content.splitlines()
    assert all(list(json.loads(line)) == ["message", "done", "index"] for line in lines)
    assert [json.loads(line)["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    events = http.post("/chat/sse", content=body % "").text.split("\n\n")
    assert events[-2:] == ["data: [END]", ""]


def test_the_printed_request_is_not_json(http: httpx.Client) -> None:
    """With its comments and its last comma the printed sample is no JSON, and is refused."""
    body = '{"model": "model-name", // Required\n "messages": [],}'
    assert http.post("/chat/completions", content=body).json()["error"]["code"] == "invalid_json"


# -- EventSource ----------------------------------------------------------------------------------------------------


def test_event_source_is_told_405(stack: Stack) -> None:
    """`new EventSource('/chat/sse')` sends a GET without a body: it stops at a 405, and does not connect again."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
    reply = httpx.get(stack.url + "/ollama/chat/sse", headers=headers)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["error"]["code"] == "method_not_allowed"


# -- what is not in the samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/sse"])
@pytest.mark.parametrize("fault", ["reset@2", "fin@2", "eof@2", "error-frame@2", "bad-json@2"])
def test_every_failed_stream_says_so_and_ends_in_order(http: httpx.Client, path: str, fault: str) -> None:
    # httpx raises when a chunked body is cut: that it does not is the orderly end.
    text = http.post(path, json=chat(said(fault=fault, finish="stop"), stream=True)).text
    if path == "/chat/sse":
        assert text.count("event: error\n") == 1
        assert text.endswith("\n\ndata: [END]\n\n")
        assert '"done":true' not in text
    else:
        last = json.loads(text.splitlines()[-1])
        assert (list(last), last["done"]) == (["error", "done"], True)
        assert text.count('"done":true') == 1


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/sse"])
def test_a_worker_that_fails_at_once_is_a_status(http: httpx.Client, path: str) -> None:
    reply = http.post(path, json=chat(said(fault="error-frame"), stream=True))
    assert reply.status_code == 502
    error = json.loads(reply.text.splitlines()[1].removeprefix("data: ")) if path == "/chat/sse" else None
    assert list(error or reply.json()["error"]) == ["message", "type", "code"]


def test_keepalives() -> None:
    """A blank line between events; nothing between lines of JSON, where it would be one that is none."""
    slow = said(fault="stall:0.3@1")
    with Stack(config={"relay": {"keepalive_s": 0.05}}) as stack:
        url = stack.url + "/ollama"
        assert b"\n\n\n" in httpx.post(url + "/chat/sse", json=chat(slow, model="m"), timeout=30).content
        lines = httpx.post(url + "/chat/completions", json=chat(slow, model="m", stream=True), timeout=30).content
    assert [bool(line) for line in lines.split(b"\n")] == [True, True, True, False]


def test_what_is_dropped_is_named(stack: Stack, http: httpx.Client) -> None:
    options = {"num_ctx": 2048, "num_predict": 2}
    reply = http.post("/chat/completions", json=chat({"text": "a b c"}, keep_alive="5m", options=options))
    assert reply.headers["x-dragoman-dropped"] == "keep_alive, options.num_ctx"
    sent = json.loads(stack.sim.entries[-1].body)
    assert (sent["max_tokens"], sorted(sent)) == (2, ["max_tokens", "messages", "model"])


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"n": 2}, "'n' must be 1"),
        ({"format": "json", "model": "plain"}, "'format': this model cannot be held"),
        ({"stop": ["a"] * 5}, "at most 4 items"),
    ],
)
def test_what_cannot_be_done_is_a_400(http: httpx.Client, members: dict[str, Any], what: str) -> None:
    reply = http.post("/chat/completions", json=chat({"text": "a"}, **members))
    assert reply.status_code == 400
    assert what in reply.json()["error"]["message"]


def test_thinking_and_tools(http: httpx.Client) -> None:
    script = {"reasoning": "hm", "tool_calls": [{"name": "f", "arguments": {"x": 1}, "id": "t"}]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    whole = http.post("/chat/completions", json=chat(script, tools=tools)).json()["message"]
    call = {"id": "t", "function": {"name": "f", "arguments": {"x": 1}}}
    assert whole == {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]}
    lines = http.post("/chat/completions", json=chat(script, tools=tools, stream=True)).content.splitlines()
    messages = [json.loads(line)["message"] for line in lines]
    assert "".join(message.get("thinking", "") for message in messages) == "hm"
    assert [message["tool_calls"] for message in messages if "tool_calls" in message] == [[call]]


def test_leaving_a_stream_frees_the_worker() -> None:
    with Stack(workers=({"itl_ms": 5.0},)) as running:
        with (
            httpx.Client(headers=HEADERS) as client,
            client.stream(
                "POST",
                running.url + "/ollama/chat/sse",
                json=chat({"text": "a ", "repeat": 5000}, model="m"),
            ) as reply,
        ):
            next(reply.iter_bytes())
        running.run(running.sim.wait(aborted=1))


def test_a_connection_is_kept(stack: Stack) -> None:
    """The specification's `Connection: keep-alive` is what HTTP/1.1 does unsaid: a second request on one socket."""
    body = json.dumps(chat(said(), stream=True)).encode()
    head = "POST /ollama/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    asked = head.encode() + b"%d\r\n\r\n%b" % (len(body), body)
    port = int(stack.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for _ in range(2):
            connection.sendall(asked)
            found = b""
            while not found.endswith(b"\r\n0\r\n\r\n"):
                found += connection.recv(65536)
            assert found.startswith(b"HTTP/1.1 200")
