"""Backend llamacpp: a real llama.cpp behind a gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack, sse_data


@pytest.fixture(scope="module")
def gateway() -> Iterator[httpx.Client]:
    """A gateway in front of a real llama.cpp; two slots of 256 tokens."""
    flags = ("--port", "0", "--context", "256", "--parallel", "2")
    with subprocess.Popen(
        (sys.executable, "-m", "workers.embedded", *flags), stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            address = worker.stdout.readline().split()[-1]
            models = {"smollm2": {"backend": "llamacpp", "workers": [address], "max_context": 256}}
            named = {name: {"default_model": "smollm2"} for name in ("friendli", "openai")}
            with (
                Stack((), {"models": models, "dialects": named}) as stack,
                httpx.Client(base_url=stack.url, timeout=120) as client,
            ):
                yield client
        finally:
            worker.terminate()


def ask(gateway: httpx.Client, **members: Any) -> Any:
    response = gateway.post("/friendli/v1/completions", json=members)
    assert response.status_code == 200, response.text
    return response.json()


def stream(gateway: httpx.Client, **members: Any) -> list[Any]:
    response = gateway.post("/friendli/v1/completions", json={**members, "stream": True})
    assert response.status_code == 200, response.text
    return [json.loads(data) for data in sse_data(response.content)]


FRANCE = "The capital of France is"


def test_real_token_ids_stream_and_add_up(gateway: httpx.Client) -> None:
    whole = ask(gateway, prompt=FRANCE, max_tokens=8, temperature=0, seed=1)
    (*sampled, complete_) = stream(gateway, prompt=FRANCE, max_tokens=8, temperature=0, seed=1)
    (choice,) = complete_["choices"]
    assert "Paris" in choice["text"]
    assert complete_["choices"] == whole["choices"]
    assert complete_["usage"] == whole["usage"]
    assert "".join(event["text"] for event in sampled) == choice["text"]
    assert [event["token"] for event in sampled] == choice["tokens"]
    assert len(sampled) == whole["usage"]["completion_tokens"] == 8


ASKED = {
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "max_tokens": 30,
    "temperature": 0,
}
# Dialects whose replies name the phrase that was met: path, body, the member with the phrases.
PHRASES: list[tuple[str, dict[str, Any], str]] = [
    ("/anthropic/v1/messages", {"model": "smollm2", **ASKED}, "stop_sequences"),
    ("/sagemaker/endpoints/smollm2/invocations", ASKED, "stop"),
    (
        "/sagemaker/endpoints/smollm2/invocations",
        {"prompt": "The capital of Japan is", "max_tokens": 30, "temperature": 0},
        "stop",
    ),
]


def told(body: Any) -> set[tuple[str, Any]]:
    """What a reply, or an event of one, says of its end."""
    places = [body, body.get("delta") or {}, *body.get("choices", ())]
    names = ("stop_reason", "stop_sequence")
    return {(name, place[name]) for place in places if isinstance(place, dict) for name in names if place.get(name)}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body", "member"), PHRASES)
def test_a_real_stop_phrase_is_told(
    path: str, body: dict[str, Any], member: str, streamed: bool, gateway: httpx.Client
) -> None:
    for phrases, met in ((["zzz", "Tokyo"], "Tokyo"), (["zzz"], None)):
        response = gateway.post(path, json={**body, member: phrases, "stream": streamed})
        assert response.status_code == 200, response.text
        texts = [line.removeprefix(b"data: ") for line in response.content.splitlines()]
        found = set[tuple[str, Any]]().union(*(told(json.loads(text)) for text in texts if text.startswith(b"{")))
        if path.startswith("/anthropic"):
            ended = {("stop_reason", "stop_sequence"), ("stop_sequence", met)}
            assert found == (ended if met else {("stop_reason", "end_turn")})
        else:
            assert found == ({("stop_reason", met)} if met else set())
        assert b"__verbose" not in response.content


@pytest.mark.parametrize("streamed", [False, True])
def test_a_real_stop_phrase_is_no_news_to_a_client_of_openai(streamed: bool, gateway: httpx.Client) -> None:
    response = gateway.post(
        "/v1/chat/completions", json={"model": "smollm2", **ASKED, "stop": "Tokyo", "n": 2, "stream": streamed}
    )
    assert response.status_code == 200
    assert b"__verbose" not in response.content
    assert b"stopping_word" not in response.content


# Every dialect that takes a text: path, body, the member of a choice with its text.
EMPTY: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": "smollm2", "prompt": "", "max_tokens": 4}),
    ("/v1/completions", {"model": "smollm2", "prompt": ["", "1, 2,"], "max_tokens": 4}),
    ("/openai/deployments/smollm2/completions?api-version=2024-10-21", {"prompt": "", "max_tokens": 4}),
    ("/sagemaker/endpoints/smollm2/invocations", {"prompt": "", "max_tokens": 4}),
    ("/friendli/v1/completions", {"prompt": "", "max_tokens": 4}),
    ("/api/generate", {"model": "smollm2", "prompt": "", "raw": True, "options": {"num_predict": 4}}),
    ("/v1/chat/completions", {"model": "smollm2", "messages": [{"role": "user", "content": ""}], "max_tokens": 4}),
    ("/anthropic/v1/messages", {"model": "smollm2", "messages": [{"role": "user", "content": ""}], "max_tokens": 4}),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), EMPTY)
def test_an_empty_text_is_answered(path: str, body: dict[str, Any], streamed: bool, gateway: httpx.Client) -> None:
    response = gateway.post(path, json={**body, "stream": streamed})
    # Friendli's specification has no empty prompt; an error is the caller's, and is not the worker's.
    assert response.status_code == 200 or (response.status_code in (400, 422) and "friendli" in path), response.text
    assert b"upstream" not in response.content


def test_operators_advice_is_not_for_callers(gateway: httpx.Client) -> None:
    response = gateway.post("/v1/embeddings", json={"model": "smollm2", "input": "hi"})
    assert 400 <= response.status_code < 500
    assert "--" not in response.json()["error"]["message"]


def test_real_token_prompts(gateway: httpx.Client) -> None:
    first = ask(gateway, prompt=FRANCE, max_tokens=4, temperature=0)["choices"][0]
    # What it generated, fed back as ids, is a prompt of that many tokens.
    reply = ask(gateway, tokens=first["tokens"], max_total_tokens=10, temperature=0)
    assert reply["usage"]["prompt_tokens"] == len(first["tokens"])
    assert reply["usage"]["total_tokens"] == 10


@pytest.mark.long
@pytest.mark.parametrize("said", [FRANCE, "<|im_start|>user\nHi<|im_end|>\n"])
def test_real_totals_of_a_text(gateway: httpx.Client, said: str) -> None:
    for reply in (
        ask(gateway, prompt=said, max_total_tokens=16, seed=1),
        stream(gateway, prompt=said, max_total_tokens=16, seed=1)[-1],
    ):
        (choice,) = reply["choices"]
        assert choice["finish_reason"] == "length"
        assert reply["usage"]["total_tokens"] == 16


@pytest.mark.long
def test_real_seeds_reproduce_what_they_drew(gateway: httpx.Client) -> None:
    drawn = ask(gateway, prompt="Once upon a time", max_tokens=12, n=2)["choices"]
    assert drawn[0]["seed"] + 1 == drawn[1]["seed"]
    assert drawn[0]["tokens"] != drawn[1]["tokens"]
    for choice in drawn:
        (again,) = ask(gateway, prompt="Once upon a time", max_tokens=12, seed=choice["seed"])["choices"]
        assert (again["seed"], again["tokens"]) == (choice["seed"], choice["tokens"])
    listed = stream(gateway, prompt="Once upon a time", max_tokens=12, n=2, seed=[choice["seed"] for choice in drawn])
    assert [choice["tokens"] for choice in listed[-1]["choices"]] == [choice["tokens"] for choice in drawn]


@pytest.mark.long
def test_real_ends_are_no_tokens(gateway: httpx.Client) -> None:
    said = "<|im_start|>user\nSay yes or no.<|im_end|>\n<|im_start|>assistant\n"
    regex = {"type": "regex", "schema": "(yes|no)"}
    whole = ask(gateway, prompt=said, response_format=regex, seed=5)["choices"][0]
    streamed = stream(gateway, prompt=said, response_format=regex, seed=5)
    assert whole["text"] in ("yes", "no")
    assert whole["finish_reason"] == "stop"
    assert streamed[-1]["choices"] == [whole]
    assert streamed[-1]["usage"]["completion_tokens"] == len(whole["tokens"]) + 1, "the engine counts the end too"


def test_real_schemas(gateway: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    reply = ask(
        gateway,
        prompt="A JSON object:",
        max_tokens=40,
        temperature=0,
        response_format={"type": "json_object", "schema": json.dumps(schema)},
    )
    assert list(json.loads(reply["choices"][0]["text"])) == ["ok"]


@pytest.mark.long
def test_real_bans_stops_and_logprobs(gateway: httpx.Client) -> None:
    paris = ask(gateway, prompt=FRANCE, max_tokens=1, temperature=0)["choices"][0]["tokens"]
    other = ask(gateway, prompt=FRANCE, max_tokens=1, temperature=0, bad_word_tokens=[{"tokens": paris}])
    assert other["choices"][0]["tokens"] != paris
    counted = ask(
        gateway, prompt="1, 2, 3, 4,", max_tokens=20, temperature=0, stop=["7"], include_output_logprobs=True
    )["choices"][0]
    assert counted["text"].endswith("6, ")
    assert counted["finish_reason"] == "stop"
    # Of the tokens of a stop phrase, which no text shows, it tells the ids only.
    assert "".join(counted["logprobs"]["tokens"]) == counted["text"]


def test_real_limits_are_told(gateway: httpx.Client) -> None:
    def status(**members: Any) -> tuple[int, str | None]:
        response = gateway.post("/friendli/v1/completions", json=members)
        return response.status_code, response.json()["error"]["param"]

    assert status(prompt="hi", n=3) == (422, "n")
    assert status(prompt="hi", num_beams=2) == (422, "num_beams")
    assert status(prompt="hi", stop_tokens=[{"tokens": [1]}]) == (422, "stop_tokens")
    assert status(prompt="word " * 300) == (400, None)
    assert status(tokens=[999_999]) == (400, None)
    assert status(prompt="Tell me a story.", timeout_microseconds=1000) == (429, "timeout_microseconds")


@pytest.mark.long
def test_real_generation_goes_to_the_end_of_the_context(gateway: httpx.Client) -> None:
    reply = ask(gateway, prompt="word " * 245, temperature=0)
    assert reply["usage"]["total_tokens"] == 256
    assert reply["choices"][0]["finish_reason"] == "length"


def test_real_text_completions_of_openais_wire_are_counted_whole(gateway: httpx.Client) -> None:
    body = {"prompt": [FRANCE, "x"], "n": 2, "max_tokens": 3, "temperature": 0, "logprobs": 1}
    reply = gateway.post("/v1/completions", json=body).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["completion_tokens"] == 12
    assert reply["usage"]["prompt_tokens"] == 6
    assert reply["choices"][0]["logprobs"]["tokens"][0] == " Paris"
    refused = gateway.post("/v1/completions", json={"prompt": "x", "echo": True}).json()
    assert refused["error"]["param"] == "echo"


def test_real_chats_share_openais_wire(gateway: httpx.Client) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    said = []
    for path in ("/v1/chat/completions", "/friendli/v1/chat/completions"):
        reply = gateway.post(path, json={"messages": messages, "max_tokens": 12, "temperature": 0}).json()
        assert reply["usage"]["completion_tokens"] == 12
        said.append(reply["choices"][0]["message"]["content"])
    assert said[0] == said[1] != ""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/friendli/v1/chat/completions"])
def test_real_chats_have_all_their_choices(gateway: httpx.Client, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "n": 2}
    assert [choice["index"] for choice in gateway.post(path, json=body).json()["choices"]] == [0, 1]
    *_, mark = sse_data(gateway.post(path, json={**body, "stream": True}).content)
    assert mark == b"[DONE]"


def test_real_tools_are_refused_where_the_template_has_no_words_for_them(gateway: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for choice in ("auto", "required", {"type": "function", "function": {"name": "f"}}):
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice}
        answer = gateway.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize("stream", [False, True])
def test_real_chats_of_several_choices_have_one_usage(gateway: httpx.Client, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "n": 2, "stream": stream}
    if stream:
        answer = gateway.post("/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}})
        chunks = [json.loads(data) for data in sse_data(answer.content) if data != b"[DONE]"]
        assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
        (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    else:
        usage = gateway.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["completion_tokens"] == 8
