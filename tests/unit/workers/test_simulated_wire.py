"""The simulated worker's bytes are vLLM 0.33's, field by field."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.unit.workers.speaking import CHAT, frames


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
