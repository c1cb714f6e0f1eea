"""Google's own client for Python, unmodified, against the gateway: the Gemini API at both prefixes, and Vertex AI."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import errors, types
from google.oauth2 import credentials as oauth2

from tests.support.harness import Stack
from tests.unit.ratelimit.asking import made

LONG = "This is cut off somewhere."
PNG = bytes.fromhex("89504e470d0a1a0a") + bytes(range(200, 256))


def look(at: str) -> str:
    """Looks.

    Args:
      at: where
    """
    return f"seen {at}"


_Credentials: Any = oauth2.Credentials


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    workers = ({"itl_ms": 5, "reasoning": True},)
    with Stack(workers=workers, config={"breaker": {"failures": 10_000}, "retry": {"attempts": 1}}) as running:
        yield running


@pytest.fixture(scope="module", params=["", "/gemini", "vertex"])
def client(stack: Stack, request: pytest.FixtureRequest) -> Any:
    if request.param == "vertex":
        there: Any = {"project": "p", "location": "l", "credentials": _Credentials("ya29.any")}
        return genai.Client(vertexai=True, http_options={"base_url": stack.url}, **there)
    return genai.Client(api_key="any", http_options={"base_url": stack.url + request.param})


def asking(**script: Any) -> dict[str, Any]:
    return {"model": "m", "contents": "sim:" + json.dumps(script)}


def test_chats(client: Any) -> None:
    reply = client.models.generate_content(**asking(text="Hello there", reasoning="hm"))
    assert reply.text == "Hello there"
    (candidate,) = reply.candidates
    assert candidate.finish_reason == types.FinishReason.STOP
    assert reply.usage_metadata.total_token_count > reply.usage_metadata.prompt_token_count > 0
    assert (reply.model_version, bool(reply.response_id)) == ("m", True)
    chunks = list(client.models.generate_content_stream(**asking(text="Hello there")))
    assert "".join(chunk.text or "" for chunk in chunks) == "Hello there"
    assert len(chunks) > 2
    assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP
    assert chunks[-1].usage_metadata.candidates_token_count


def test_thoughts(client: Any) -> None:
    config = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True))
    asked = asking(text="42", reasoning="Hm, so")
    whole = client.models.generate_content(**asked, config=config).candidates[0].content.parts
    assert [(part.text, bool(part.thought)) for part in whole] == [("Hm, so", True), ("42", False)]
    pieces = [
        part
        for chunk in client.models.generate_content_stream(**asked, config=config)
        for part in chunk.candidates[0].content.parts
    ]
    assert "".join(part.text for part in pieces if part.thought) == "Hm, so"
    hidden = client.models.generate_content(**asked).candidates[0].content.parts
    assert [part.text for part in hidden] == ["42"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_tools(stack: Stack, client: Any, stream: bool) -> None:
    """By the client itself; the thinking comes back to the worker with the calls."""
    calls = [{"name": "look", "arguments": {"at": name}} for name in "ab"]
    rounds = [{"reasoning": "I must look.", "tool_calls": calls}, {"text": "All seen."}]
    chat = client.chats.create(model="m", config=types.GenerateContentConfig(tools=[look]))
    prompt = "Go on. sim:" + json.dumps({"rounds": rounds})
    if stream:
        said = "".join(chunk.text or "" for chunk in chat.send_message_stream(prompt))
    else:
        said = chat.send_message(prompt).text
    assert said == "All seen."
    sent = json.loads(stack.sim.entries[-1].body)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert sent[1]["reasoning_content"] == "I must look."
    assert [json.loads(one["content"]) for one in sent[2:]] == [{"result": "seen a"}, {"result": "seen b"}]
    assert [one["tool_call_id"] for one in sent[2:]] == [call["id"] for call in sent[1]["tool_calls"]]


def test_what_the_worker_gets(stack: Stack, client: Any) -> None:
    config = types.GenerateContentConfig(
        system_instruction="be brief",
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        max_output_tokens=20,
        stop_sequences=["END"],
        seed=7,
        presence_penalty=0.25,
        frequency_penalty=0.5,
        response_mime_type="application/json",
        response_schema={"type": "OBJECT", "properties": {"a": {"type": "INTEGER", "nullable": True}}},
        thinking_config=types.ThinkingConfig(thinking_budget=1024),
    )
    picture = types.Part.from_bytes(data=PNG, mime_type="image/png")
    client.models.generate_content(model="m", contents=["what is it?", picture], config=config)
    sent = json.loads(stack.sim.entries[-1].body)
    assert sent["messages"][0] == {"role": "system", "content": "be brief"}
    image = sent["messages"][1]["content"][1]["image_url"]["url"]
    assert base64.b64decode(image.removeprefix("data:image/png;base64,"), validate=True) == PNG
    schema = sent["response_format"]["json_schema"]["schema"]
    assert schema == {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}}
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "max_tokens": 20, "stop": ["END"], "seed": 7}
    wanted |= {"presence_penalty": 0.25, "frequency_penalty": 0.5, "reasoning_effort": "low"}
    assert {name: sent.get(name) for name in wanted} == wanted


def test_candidates_and_logprobs(client: Any) -> None:
    config = types.GenerateContentConfig(candidate_count=2, response_logprobs=True, logprobs=1)
    reply = client.models.generate_content(**asking(text="Hello there"), config=config)
    assert [candidate.index or 0 for candidate in reply.candidates] == [0, 1]
    chosen = reply.candidates[1].logprobs_result.chosen_candidates
    assert "".join(one.token for one in chosen) == "Hello there"
    assert reply.candidates[0].avg_logprobs < 0
    pieces: dict[int, str] = {}
    for chunk in client.models.generate_content_stream(**asking(text="Hello there"), config=config):
        for candidate in chunk.candidates:
            text = "".join(part.text or "" for part in candidate.content.parts)
            pieces[candidate.index or 0] = pieces.get(candidate.index or 0, "") + text
    assert pieces == {0: "Hello there", 1: "Hello there"}


def test_counts_and_models(client: Any) -> None:
    assert client.models.count_tokens(model="m", contents="one two three").total_tokens > 2
    assert any((one.name or "").endswith("models/m") for one in client.models.list())
    assert client.models.get(model="m").name.endswith("models/m")
    with pytest.raises(errors.ClientError) as told:
        client.models.get(model="nobody")
    assert told.value.code == 404


def test_embeddings(client: Any) -> None:
    config = types.EmbedContentConfig(output_dimensionality=8, task_type="RETRIEVAL_QUERY")
    found = client.models.embed_content(model="m", contents=["a", "b"], config=config).embeddings
    assert [len(one.values) for one in found] == [8, 8]


def test_errors(client: Any) -> None:
    with pytest.raises(errors.ClientError) as told:
        client.models.generate_content(model="nobody", contents="hi")
    assert (told.value.code, told.value.status) == (404, "NOT_FOUND")
    assert "nobody" in (told.value.message or "")
    code = types.GenerateContentConfig(tools=[types.Tool(code_execution=types.ToolCodeExecution())])
    with pytest.raises(errors.ClientError, match="codeExecution") as refused:
        client.models.generate_content(model="m", contents="hi", config=code)
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
    with pytest.raises(errors.ServerError) as failed:
        client.models.generate_content(**asking(fault="status:500"))
    assert (failed.value.code, failed.value.status) == (502, "UNAVAILABLE")


def test_the_model_answers_without_a_search_but_for_gemini_cli(client: Any) -> None:
    search: Any = {"tools": [types.Tool(google_search=types.GoogleSearch())]}
    assert client.models.generate_content(**asking(text="Not much"), config=search).text == "Not much"
    search["http_options"] = {"headers": {"user-agent": "GeminiCLI/0.61.0/m (linux; x64; terminal)"}}
    with pytest.raises(errors.ClientError, match="googleSearch") as refused:
        client.models.generate_content(**asking(text="Not much"), config=search)
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("fault", ["reset@3", "eof@3", "error-frame@3"])
def test_a_cut_stream_is_an_error(client: Any, fault: str) -> None:
    """With our words, status and code."""
    chunks = client.models.generate_content_stream(**asking(text=LONG, fault=fault))
    pieces: list[str] = []
    with pytest.raises(errors.ServerError) as told:
        pieces.extend(chunk.text or "" for chunk in chunks)
    assert (told.value.code, told.value.status) == (502, "UNAVAILABLE")
    assert "worker" in (told.value.message or "")


@pytest.mark.parametrize("alt", ["?alt=sse", ""])
def test_the_error_of_a_cut_stream_is_read_alone(stack: Stack, alt: str) -> None:
    """By a reader that is busy for as long as Node's is. Node's client reads the error of such a block only."""
    body = json.dumps({"contents": [{"parts": [{"text": asking(text=LONG, fault="eof@3")["contents"]}]}]}).encode()
    head = f"POST /v1beta/models/m:streamGenerateContent{alt} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n"
    address = stack.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=20) as connection:
        connection.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        blocks = []
        while block := connection.recv(1 << 16):
            blocks.append(block)
            time.sleep(0.03)
    *_, text, last = blocks
    assert b'"text"' in text
    assert b'"text"' not in last
    document = last.partition(b"\r\n")[2].removesuffix(b"\r\n").lstrip(b",\n")
    assert json.loads(document)["error"]["status"] == "UNAVAILABLE"


def test_a_key_in_the_query_is_used_and_seen_nowhere() -> None:
    key, entry = made("team")
    other, _ = made("other")
    body = {"contents": [{"parts": [{"text": "sim:" + json.dumps({"text": "Hello"})}]}]}
    with Stack(config={"auth": "keys", "keys": entry, "log": {"level": "debug"}}) as stack:
        url = stack.url + "/v1beta/models/m:generateContent"
        assert httpx.post(url, params={"key": key}, json=body).status_code == 200
        assert httpx.post(url, params={"key": key}, headers={"x-goog-api-key": key}, json=body).status_code == 200
        assert httpx.post(url, params={"key": other}, json=body).status_code == 401
        assert httpx.post(url, params={"key": other}, headers={"x-goog-api-key": key}, json=body).status_code == 401
        assert httpx.post(url, json=body).status_code == 401
        assert httpx.get(stack.url + "/gemini/v1/models", params={"key": key}).json()["models"]
        # Other client APIs have no such parameter.
        assert httpx.get(stack.url + "/v1/models", params={"key": key}).status_code == 401
        client = genai.Client(api_key=key, http_options={"base_url": stack.url})
        assert client.models.generate_content(model="m", contents=body["contents"][0]["parts"][0]["text"]).text
        records = stack.records()
        metrics = httpx.get(stack.url + "/metrics").text
        sent = [f"{entry.path} {entry.headers} {entry.body!r}" for entry in stack.sim.ledger.entries]
    assert [record["key"] for record in records[:2]] == ["team", "team"]
    for text in (json.dumps(records), metrics, *sent):
        assert key not in text
        assert other not in text
