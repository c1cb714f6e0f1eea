"""The simulated worker's bytes are vLLM 0.33's, field by field."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from tests.simulated import Simulated

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Tell me something."}]}


@pytest.fixture
async def sim() -> AsyncIterator[Simulated]:
    async with Simulated(models=("sim", "alias"), max_model_len=1024) as worker:
        yield worker


@pytest.fixture
async def http(sim: Simulated) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=sim.url) as client:
        yield client


@pytest.fixture
async def sdk(sim: Simulated) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def scripted(**script: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}]}


async def test_a_scripted_conversation(http: httpx.AsyncClient) -> None:
    """The reply follows from how many assistant messages were answered; words around the script are allowed."""
    rounds = [{"tool_calls": [{"name": "look"}]}, {"tool_calls": [{"name": "gone"}]}, {"text": "the end"}]
    script = "sim:" + json.dumps({"rounds": rounds, "asked": {"sum it up": {"text": "all in all"}}})
    start = [{"role": "assistant", "content": "before"}, {"role": "user", "content": f"please {script} now"}]
    cut = {"role": "assistant", "content": "x"}
    looked = cut, {"role": "tool", "tool_call_id": "1", "content": "seen"}
    said = cut, {"role": "user", "content": "go on"}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    async def reply(*more: dict[str, str]) -> dict[str, Any]:
        body = {"model": "sim", "messages": [*start, *more], "tools": tools}
        found = await http.post("/v1/chat/completions", json=body)
        message: dict[str, Any] = found.json()["choices"][0]["message"]
        return message

    assert [call["function"]["name"] for call in (await reply())["tool_calls"]] == ["look"]
    assert (await reply(cut))["tool_calls"], "a reply that broke before its call is asked for again"
    assert (await reply(*said))["tool_calls"]
    assert (await reply(*looked))["content"] == "ok", "a tool that is not offered is not called"
    assert (await reply(*looked, *said))["content"] == "the end"
    assert (await reply(*looked, *said, *said))["content"] == "the end"
    assert (await reply({"role": "user", "content": "now sum it up"}))["content"] == "all in all"
    broken = {"model": "sim", "messages": [{"role": "user", "content": 'sim:{"rounds": 5}'}]}
    assert (await http.post("/v1/chat/completions", json=broken)).status_code == 400


def frames(text: str) -> list[Any]:
    """The events of a stream; [DONE] must be the last."""
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


async def test_plain_chat_is_a_full_dump(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json=scripted(text="Hello"), headers={"X-Request-Id": "r-1"})
    assert answer.headers["content-type"] == "application/json"
    created = answer.json()["created"]
    assert answer.text == (
        '{"id":"chatcmpl-r-1","object":"chat.completion","created":'
        + str(created)
        + ',"model":"sim","choices":[{"index":0,'
        '"message":{"role":"assistant","content":"Hello","refusal":null,"annotations":null,"audio":null,'
        '"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"stop","stop_reason":null,'
        '"token_ids":null,"routed_experts":null,"weight_versions":null}],"service_tier":null,'
        '"system_fingerprint":"vllm-0.33.0-51d5ca7e","usage":{"prompt_tokens":11,"total_tokens":14,'
        '"completion_tokens":3,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,'
        '"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    )


async def test_streamed_chat(http: httpx.AsyncClient) -> None:
    body = {**scripted(text="Hello"), "stream": True, "stream_options": {"include_usage": True}, "request_id": "r2"}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    head = '{"id":"chatcmpl-r2","object":"chat.completion.chunk","created":%d,"model":"sim","choices":['
    role, first, second, finish, usage = frames(answer.text)
    head %= role["created"]
    assert answer.text.split("\n\n")[:5] == [
        f'data: {head}{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],'
        '"prompt_token_ids":null,"prompt_text":null}',
        *[
            f'data: {head}{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null,'
            '"token_ids":null,"weight_versions":null}]}'
            for text in ("Hell", "o")
        ],
        f'data: {head}{{"index":0,"delta":{{"content":""}},"logprobs":null,"finish_reason":"stop","stop_reason":null,'
        '"token_ids":null,"weight_versions":null}]}',
        f'data: {head}],"usage":{{"prompt_tokens":11,"total_tokens":14,"completion_tokens":3}},'
        '"system_fingerprint":"vllm-0.33.0-51d5ca7e"}',
    ]
    assert (first["choices"][0]["delta"], second["choices"][0]["delta"]) == ({"content": "Hell"}, {"content": "o"})
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []


async def test_streams_without_usage_carry_the_fingerprint_on_the_finish_chunk(http: httpx.AsyncClient) -> None:
    events = frames((await http.post("/v1/chat/completions", json={**CHAT, "stream": True})).text)
    assert "system_fingerprint" in events[-1]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert not any("usage" in event for event in events)


async def test_continuous_usage(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**CHAT, "stream": True, "stream_options": options, "max_tokens": 3}
    events = frames((await http.post("/v1/chat/completions", json=body)).text)
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("extra", [{}, {"max_tokens": 300, "ignore_eos": True}, {"n": 3}, {"stop": ["o", "e"]}])
async def test_a_stream_and_a_plain_reply_say_the_same(sdk: openai.AsyncOpenAI, extra: dict[str, Any]) -> None:
    extra_body = {"return_token_ids": True, "ignore_eos": extra.pop("ignore_eos", False)}
    request: dict[str, Any] = {**CHAT, **extra, "extra_body": extra_body, "logprobs": True}
    plain = await sdk.chat.completions.create(**request)
    said: dict[int, list[Any]] = {choice.index: ["", None, [], []] for choice in plain.choices}
    async for chunk in await sdk.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            row = said[choice.index]
            row[0] += choice.delta.content or ""
            row[1] = choice.finish_reason or row[1]
            row[2] += getattr(choice, "token_ids", None) or []
            row[3] += (choice.logprobs and choice.logprobs.content) or []
    for choice in plain.choices:
        text, finish, ids, probs = said[choice.index]
        assert (text, finish, ids) == (choice.message.content, choice.finish_reason, choice.token_ids)
        assert choice.logprobs is not None
        assert probs == choice.logprobs.content
    assert len({choice.message.content for choice in plain.choices}) == len(plain.choices)


async def test_text_is_drawn_from_prompt_and_seed(http: httpx.AsyncClient) -> None:
    async def said(**extra: Any) -> str:
        answer = await http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 50, **extra})
        return str(answer.json()["choices"][0]["text"])

    assert await said() == await said()
    assert await said(seed=5) == await said(seed=5) != await said(seed=6)
    # Stable across processes and releases, or recorded transcripts would rot.
    assert (await said(seed=7))[:20] == " veg ohw pbd lco fpe"


async def test_reasoning_then_text_then_tools(sdk: openai.AsyncOpenAI) -> None:
    script = scripted(
        reasoning="Hmm...",
        text="So: ",
        tool_calls=[{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "weather"}],
    )
    plain = await sdk.chat.completions.create(**script, tools=TOOLS)
    message = plain.choices[0].message
    assert plain.choices[0].finish_reason == "tool_calls"
    assert (message.reasoning, message.content) == ("Hmm...", "So: ")
    made = message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in made] == [
        ("weather", '{"city":"Oslo"}'),
        ("weather", ""),
    ]
    order, arguments = [], {0: "", 1: ""}
    async for chunk in await sdk.chat.completions.create(**script, tools=TOOLS, stream=True):
        delta = chunk.choices[0].delta
        if getattr(delta, "reasoning", None):
            order.append("reasoning")
        elif delta.tool_calls:
            call = delta.tool_calls[0]
            assert call.function is not None
            order.append(f"call{call.index}" if call.id else f"args{call.index}")
            arguments[call.index] += call.function.arguments or ""
        elif delta.content:
            order.append("text")
    assert list(dict.fromkeys(order)) == ["reasoning", "text", "call0", "args0", "call1"]
    assert arguments == {0: '{"city":"Oslo"}', 1: ""}


async def test_tool_calls_can_interleave(http: httpx.AsyncClient) -> None:
    calls = [{"name": "weather", "arguments": "12345678"}, {"name": "weather", "arguments": "abcdefgh"}]
    body = {**scripted(tool_calls=calls, interleave=True), "tools": TOOLS, "stream": True}
    events = frames((await http.post("/v1/chat/completions", json=body)).text)
    indices = [c["index"] for event in events for c in event["choices"][0]["delta"].get("tool_calls", [])]
    assert indices == [0, 1, 0, 1, 0, 1]
    plain = (await http.post("/v1/chat/completions", json={**body, "stream": False})).json()["choices"][0]["message"]
    assert plain["content"] is None
    assert plain["tool_calls"][0]["id"].startswith("chatcmpl-tool-")


@pytest.mark.parametrize(
    ("choice", "finish"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop"), ("none", "stop")],
)
async def test_unscripted_tool_choice(http: httpx.AsyncClient, choice: Any, finish: str) -> None:
    body = {**CHAT, "tools": TOOLS, "tool_choice": choice}
    reply = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert reply["finish_reason"] == finish
    calls = reply["message"].get("tool_calls", [])
    assert [call["function"]["arguments"] for call in calls] == ([] if choice == "none" else ['{"city":""}'])


async def test_parallel_tool_calls_off_keeps_the_first(http: httpx.AsyncClient) -> None:
    body = {**scripted(tool_calls=[{"name": "a"}, {"name": "b"}]), "tools": TOOLS, "parallel_tool_calls": False}
    reply = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert [call["function"]["name"] for call in reply["message"]["tool_calls"]] == ["a"]


async def test_logprobs(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.chat.completions.create(**scripted(text="é!"), logprobs=True, top_logprobs=2)
    assert reply.choices[0].logprobs is not None
    first = (reply.choices[0].logprobs.content or [])[0]
    assert (first.token, first.bytes) == ("é", list("é".encode()))
    assert len(first.top_logprobs) == 2
    assert first.top_logprobs[0].token == first.token
    assert first.top_logprobs[1].logprob < first.logprob
    text = await sdk.completions.create(model="sim", prompt="sim:" + json.dumps({"text": "abcdefg"}), logprobs=1)
    probs = text.choices[0].logprobs
    assert probs is not None
    assert (probs.tokens, probs.text_offset) == (["abcd", "efg", ""], [0, 4, 7])


async def test_prompts_of_every_form(http: httpx.AsyncClient) -> None:
    ids = (await http.post("/tokenize", json={"prompt": "one two"})).json()["tokens"]
    expected: dict[str, str] = {}
    for prompt, count in (("one two", 1), (ids, 1), (["one two", "three"], 2), ([ids, ids, ids], 3)):
        body = {"prompt": prompt, "n": 2, "return_token_ids": True, "ignore_eos": True}
        reply = (await http.post("/v1/completions", json=body)).json()
        assert [choice["index"] for choice in reply["choices"]] == list(range(2 * count))
        assert reply["choices"][0]["prompt_token_ids"] == ids
        assert len(reply["choices"][0]["token_ids"]) == 16
        assert reply["choices"][0]["text"] == expected.setdefault("text", reply["choices"][0]["text"])
        streamed = dict.fromkeys(range(2 * count), "")
        events = frames((await http.post("/v1/completions", json={**body, "stream": True})).text)
        for event in events:
            streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert list(streamed.values()) == [choice["text"] for choice in reply["choices"]]
        assert [event["choices"][0]["index"] for event in events[: 2 * count]] == list(range(2 * count))


async def test_echo(http: httpx.AsyncClient) -> None:
    reply = (await http.post("/v1/completions", json={"prompt": "abcd", "echo": True, "max_tokens": 1})).json()
    assert reply["choices"][0]["text"].startswith("abcd ")
    for stream in (False, True):
        answer = await http.post(
            "/v1/completions", json={"prompt": "ab", "echo": True, "max_tokens": 0, "stream": stream}
        )
        choice = (frames(answer.text)[0] if stream else answer.json())["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("ab", "length")


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings(http: httpx.AsyncClient, keep: bool, stream: bool) -> None:
    prompt = "sim:" + json.dumps({"text": "The quick brown fox"})
    body = {"prompt": prompt, "stop": ["brown", "k b"], "include_stop_str_in_output": keep, "stream": stream}
    answer = await http.post("/v1/completions", json=body)
    choices = [event["choices"][0] for event in frames(answer.text)] if stream else answer.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == ("The quick b" if keep else "The quic")
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "k b")


async def test_stop_token_ids(http: httpx.AsyncClient) -> None:
    ids = (await http.post("/tokenize", json={"prompt": "abcdefghijkl"})).json()["tokens"]
    prompt = "sim:" + json.dumps({"tokens": ids})
    choice = (await http.post("/v1/completions", json={"prompt": prompt, "stop_token_ids": [ids[1]]})).json()[
        "choices"
    ][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("abcd", "stop", ids[1])


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"response_format": {"type": "json_object"}}, "{}"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["b", "a"]}}}},
            '"b"',
        ),
        ({"structured_outputs": {"json": TOOLS[0]["function"]["parameters"]}}, '{"city":""}'),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes"),
        ({"structured_outputs": {"regex": r"[a-c]{3}-\d+x?"}}, "aaa-0"),
    ],
)
async def test_structured_outputs(http: httpx.AsyncClient, extra: dict[str, Any], said: str) -> None:
    answer = await http.post("/v1/chat/completions", json={**CHAT, **extra})
    assert answer.json()["choices"][0]["message"]["content"] == said


@pytest.mark.parametrize(
    "broken",
    [{"type": "object", "properties": "x"}, {"type": "string", "minLength": "1"}, {"enum": 5}, {"anyOf": {"a": 1}}],
)
async def test_what_is_no_schema_is_refused_and_nothing_is_left_running(
    http: httpx.AsyncClient, broken: dict[str, Any]
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": broken}}
    for extra in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": broken}}},
        {"structured_outputs": {"json": broken}},
        {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ):
        answer = await http.post("/v1/chat/completions", json={**CHAT, **extra})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("Invalid JSON schema")
    assert (await http.get("/sim/counters")).json()["running"] == 0


async def test_embeddings(sdk: openai.AsyncOpenAI) -> None:
    packed = await sdk.embeddings.create(model="sim", input=["a", "b"])  # the client asks for base64 by itself
    plain = await sdk.embeddings.create(model="sim", input="a", encoding_format="float")
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert packed.data[0].embedding != packed.data[1].embedding
    assert sum(x * x for x in plain.data[0].embedding) == pytest.approx(1)
    assert plain.usage.prompt_tokens == 1


async def test_models_and_small_endpoints(sdk: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    models = await sdk.models.list()
    assert [(m.id, m.max_model_len, m.root, m.parent) for m in models.data] == [  # type: ignore[attr-defined]
        ("sim", 1024, "sim", None),
        ("alias", 1024, "sim", None),
    ]
    for path in ("/health", "/ping"):
        assert (await http.get(path)).status_code == 200
    assert (await http.get("/version")).json() == {"version": "0.33.0"}
    assert (await http.get("/load")).json() == {"server_load": 0}
    assert (await http.get("/nope")).status_code == 404
    assert (await http.get("/v1/completions")).status_code == 405
    text = "Grüße 👩‍💻 ok"
    tokens = (await http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert (await http.post("/detokenize", json={"tokens": tokens["tokens"]})).json() == {"prompt": text}


async def test_replies_use_the_first_name(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/chat/completions", json={**CHAT, "model": "alias"})).json()["model"] == "sim"


@pytest.mark.parametrize(
    ("extra", "kind", "param", "part"),
    [
        ({"tools": []}, "Bad Request", "tools", "`tools` must not be an empty array"),
        ({"tool_choice": "auto"}, "Bad Request", "tool_choice", "When using `tool_choice`, `tools` must be set."),
        (
            {"stream_options": {"include_usage": True}},
            "Bad Request",
            "stream_options",
            "only be defined when `stream=True`",
        ),
        ({"stop": list("abcde")}, "Bad Request", "stop", "at most 4 items"),
        ({"temperature": 2.5}, "BadRequestError", "temperature", "temperature must be in [0, 2], got 2.5."),
        ({"n": 2, "temperature": 0}, "BadRequestError", "n", "n must be 1 when using greedy sampling, got 2."),
        ({"logprobs": True, "top_logprobs": 21}, "BadRequestError", "logprobs", "greater than max allowed: 20"),
        ({"top_logprobs": 1}, "Bad Request", "top_logprobs", "`logprobs` must be set to true"),
        ({"max_tokens": 0}, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got 0."),
        ({"priority": 1}, "BadRequestError", "priority", "Priority scheduling is not enabled"),
        ({"messages": "hi"}, "Bad Request", None, "Expected `array`, got `str`"),
        ({"messages": []}, "Bad Request", "messages", "at least 1 item"),
        ({"sim_fault": "explode"}, "Bad Request", "sim_fault", "unknown fault"),
    ],
)
async def test_what_vllm_refuses(
    http: httpx.AsyncClient, extra: dict[str, Any], kind: str, param: str | None, part: str
) -> None:
    answer = await http.post("/v1/chat/completions", json={**CHAT, **extra})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (400, 400, kind, param)
    assert part in error["message"]


async def test_nulls_and_unknown_fields_are_ignored(http: httpx.AsyncClient) -> None:
    names = ("tools", "stop", "n", "stream", "temperature", "seed", "max_tokens", "logit_bias", "tool_choice")
    answer = await http.post("/v1/chat/completions", json={**CHAT, **dict.fromkeys(names), "guided_json": {}})
    assert answer.status_code == 200


async def test_unknown_model(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.chat.completions.create(**{**CHAT, "model": "gpt"})  # type: ignore[call-overload]
    assert caught.value.body == {
        "message": "The model `gpt` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


async def test_context(http: httpx.AsyncClient) -> None:
    long = {"prompt": "a" * 4 * 1024}
    answer = await http.post("/v1/completions", json=long)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(
        "This model's maximum context length is 1024 tokens. However, you"
    )
    body = {"prompt": "a" * 4 * 1020, "max_tokens": 100, "ignore_eos": True}
    assert (await http.post("/v1/completions", json=body)).json()["usage"]["completion_tokens"] == 4
    async with Simulated(max_model_len=1024, strict_context=True) as strict:
        assert (await http.post(f"{strict.url}/v1/completions", json=body)).status_code == 400


async def test_bodies_that_are_no_json(http: httpx.AsyncClient) -> None:
    for content, kind in ((b"{", "application/json"), (b"{}", "text/plain")):
        answer = await http.post("/v1/chat/completions", content=content, headers={"content-type": kind})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")


async def test_reasoning_mode() -> None:
    async with Simulated(reasoning=True) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        reply = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert reply["choices"][0]["message"]["reasoning"]
        thought = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < thought < reply["usage"]["completion_tokens"]
        hidden = (await client.post("/v1/chat/completions", json={**CHAT, "include_reasoning": False})).json()
        assert hidden["choices"][0]["message"]["reasoning"] is None
        body = {**CHAT, "include_reasoning": False, "stream": True}
        events = frames((await client.post("/v1/chat/completions", json=body)).text)
        assert not any("reasoning" in event["choices"][0]["delta"] for event in events)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Two workers with KV connectors."""
    async with (
        Simulated(kv_transfer=True) as one,
        Simulated(kv_transfer=True) as other,
        httpx.AsyncClient(base_url=one.url) as first,
        httpx.AsyncClient(base_url=other.url) as second,
    ):
        yield first, second


async def kv_of(first: httpx.AsyncClient, **members: Any) -> Any:
    body = {**CHAT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}, **members}
    return await first.post("/v1/chat/completions", json=body)


async def test_a_computed_prompt_is_read_by_another_worker(pair: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    first, second = pair
    places = (await kv_of(first)).json()["kv_transfer_params"]
    assert places["do_remote_prefill"] is True
    assert places["remote_port"] == first.base_url.port
    body = {**CHAT, "kv_transfer_params": places}
    plain = (await first.post("/v1/chat/completions", json=CHAT)).json()
    read = (await second.post("/v1/chat/completions", json=body)).json()
    assert read["choices"] == plain["choices"]
    assert read["kv_transfer_params"] is None
    again = await second.post("/v1/chat/completions", json=body)
    assert again.status_code == 400
    assert "read before" in again.json()["error"]["message"]


@pytest.mark.parametrize("members", [{"max_tokens": 2}, {"stream": True}, {"n": 2}, {"kv_transfer_params": {"x": 1}}])
async def test_wrong_first_steps_are_refused(
    pair: tuple[httpx.AsyncClient, httpx.AsyncClient], members: dict[str, Any]
) -> None:
    assert (await kv_of(pair[0], **members)).status_code == 400


async def test_wrong_second_steps_are_refused(pair: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    first, second = pair
    places = (await kv_of(first)).json()["kv_transfer_params"]
    other = {"messages": [{"role": "user", "content": "Something else."}]}
    for client, members, changed, said in (
        (first, {}, {}, "own"),
        (second, other, {}, "another prompt"),
        (second, {}, {"remote_host": None}, "remote_host"),
        (second, {}, {"do_remote_decode": True}, "exactly one"),
    ):
        body = {**CHAT, **members, "kv_transfer_params": {**places, **changed}}
        reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 400
        assert said in reply.json()["error"]["message"]


async def test_without_a_connector_nothing_is_handed_over(http: httpx.AsyncClient) -> None:
    """As in vLLM, which warns in its log alone."""
    assert (await kv_of(http)).json()["kv_transfer_params"] is None


async def test_adapters_are_loaded_and_unloaded(http: httpx.AsyncClient) -> None:
    async def change(action: str, name: str = "sql") -> httpx.Response:
        return await http.post(f"/v1/{action}_lora_adapter", json={"lora_name": name, "lora_path": "/a"})

    assert (await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})).status_code == 404
    assert (await change("load")).text == "Success: LoRA adapter 'sql' added successfully."
    assert (await change("load")).status_code == 400
    assert (await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})).json()["model"] == "sql"
    (card,) = [one for one in (await http.get("/v1/models")).json()["data"] if one["id"] == "sql"]
    assert (card["parent"], card["max_model_len"]) == ("sim", None)
    assert (await change("unload")).status_code == 200
    assert (await change("unload")).status_code == 400
    assert (await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})).status_code == 404


async def test_plain_replies_tell_the_load_to_who_asks(http: httpx.AsyncClient) -> None:
    """As `entrypoints/serve/utils/orca_metrics.py` has it; a format that it does not know is ignored."""

    async def told(form: str, stream: bool = False) -> str | None:
        headers = {"endpoint-load-metrics-format": form}
        reply = await http.post("/v1/chat/completions", json={**CHAT, "stream": stream}, headers=headers)
        said: str | None = reply.headers.get("endpoint-load-metrics")
        return said

    text = await told("TEXT")
    assert text is not None
    assert re.fullmatch(r"TEXT named_metrics.kv_cache_usage_perc=\S+, named_metrics.num_requests_waiting=0.0", text)
    said = await told("json")
    assert said is not None
    assert json.loads(said.removeprefix("JSON "))["named_metrics"]["num_requests_waiting"] == 0.0
    assert await told("xml") is None
    assert await told("TEXT", stream=True) is None
