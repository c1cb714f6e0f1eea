"""The laws of Ollama's API, by their numbers in the notes on its recorded clients: what they send, and what they must
be answered."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway import backends, dialects
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.messages import Complete, ModelCard
from gateway.core.ports import Capabilities, Settings
from gateway.core.usage import Usage
from gateway.dialects.ollama_native.models import capabilities
from gateway.translation.offline import Refused, send
from tests.app.asking import FORGOTTEN, key
from tests.dialects.asking import HI
from tests.dialects.ollama_native.asking import (
    DIALECT,
    PNG,
    TOOL,
    body,
    chat_writer,
    crossing,
    heard,
    lines,
    scripted,
    sent,
)
from tests.harness import Stack

LAWS = 17
"""How many there are: tests/repo looks for a test of each."""

PROMPT_METRICS = {"total_duration", "load_duration", "prompt_eval_count"}
METRICS = {*PROMPT_METRICS, "prompt_eval_duration", "eval_count", "eval_duration"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(workers=({"itl_ms": 2},), config={"breaker": {"failures": 10_000}}) as found:
        yield found


def whole(client: httpx.Client, path: str, asked: dict[str, Any]) -> Any:
    reply = client.post(path, json={"stream": False, **asked})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/json")
    return reply.json()


def streamed(client: httpx.Client, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    reply = client.post(path, json=asked)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    return lines(reply.text)


def refused(client: httpx.Client, path: str, asked: Any, status: int = 400) -> str:
    reply = client.post(path, json=asked)
    assert reply.status_code == status, reply.text
    text = reply.json()["error"]
    assert isinstance(text, str)
    return text


TOOLS = [TOOL, {"type": "function", "function": {"name": "g"}}]
SCRIPTS: list[dict[str, Any]] = [
    {"text": "Hello there"},
    {"text": "Hello there", "reasoning": "let me see"},
    {"tool_calls": [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]},
    {"text": "So:", "tool_calls": [{"name": "f", "arguments": {"a": [1, 2]}}], "interleave": True},
]


# -- 1 to 5: streams, calls, histories --------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_law_1_every_line_is_whole_and_the_last_is_done(client: httpx.Client, script: dict[str, Any]) -> None:
    found = streamed(client, "/api/chat", {**scripted(**script), "tools": TOOLS})
    for line in found:
        assert line["model"] == "m"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", line["created_at"])
        assert line["message"]["role"] == "assistant"
        assert isinstance(line["message"]["content"], str)
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert found[-1]["done_reason"] == "stop"


@pytest.mark.parametrize("script", SCRIPTS)
def test_law_2_a_stream_and_a_whole_reply_say_the_same(client: httpx.Client, script: dict[str, Any]) -> None:
    asked = {**scripted(**script), "tools": TOOLS}
    one, other = heard(streamed(client, "/api/chat", asked)), whole(client, "/api/chat", asked)["message"]

    def plain(calls: list[dict[str, Any]]) -> list[Any]:
        return [call["function"] for call in calls]

    assert one["content"] == other["content"] == script.get("text", "")
    assert one["thinking"] == other.get("thinking", "") == script.get("reasoning", "")
    assert plain(one["tool_calls"]) == plain(other.get("tool_calls", []))
    assert [call["index"] for call in plain(one["tool_calls"])] == list(range(len(script.get("tool_calls", []))))


ARGUMENTS = '{"z": 1.0e2, "a": [12345678901234567890123, 2.50], "m": {"b": "\\u00e9"}}'


def call_line(*arguments: str) -> str:
    """The line for a call of which the arguments come in pieces."""
    pieces = [Delta(0, 0, piece) for piece in arguments]
    events: list[Event] = [Start("i", "m", 1), PartStart(0, 0, "tool", "c", "f"), *pieces, PartEnd(0, 0)]
    writer = chat_writer()
    out = b"".join(writer.write(event) for event in events)
    assert writer.buffered_bytes == 0, "a written call is not kept"
    return out.decode()


def test_law_3_arguments_keep_their_order_and_numbers_both_ways() -> None:
    """On the way back they are asked of a worker as the client wrote them."""
    line = call_line(ARGUMENTS[:9], ARGUMENTS[9:].replace(" [", "\n ["))
    compact = '"arguments":{"z":1.0e2,"a":[12345678901234567890123,2.50],"m":{"b":"\\u00e9"}}'
    assert compact in line
    call = '{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":%s}}]}]}'
    crossed = send(DIALECT, backends.create("vllm"), (call % ARGUMENTS).encode(), Capabilities("w"), route="chat")
    assert json.loads(crossed.outgoing.body)["messages"][0]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS


@pytest.mark.parametrize("broken", ['{"a":', "[1]", "so", '"x"'])
def test_law_3_what_is_no_object_is_kept_as_text_and_comes_back(broken: str) -> None:
    (line,) = lines(call_line(broken))
    arguments = line["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments == {"_raw": broken}
    back = sent(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}])
    told = json.loads(back["messages"][0]["tool_calls"][0]["function"]["arguments"])
    assert told == {"_raw": broken}, "templates want objects"


def called(*names: str, ids: tuple[str, ...] = ()) -> dict[str, Any]:
    calls: list[dict[str, Any]] = [{"function": {"name": name, "arguments": {}}} for name in names]
    for call, one in zip(calls, ids, strict=False):
        call["id"] = one
    return {"role": "assistant", "tool_calls": calls}


def result(content: str, **members: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, **members}


@pytest.mark.parametrize(
    ("turns", "answers"),
    [
        ([called("f"), result("0")], [0]),
        ([called("f", "g"), result("0"), result("1")], [0, 1]),
        ([called("f", "g"), result("1", tool_name="g"), result("0", tool_name="f")], [1, 0]),
        ([called("f", "g"), result("1", name="g"), result("0")], [1, 0]),
        ([called("f", "f"), result("0", tool_name="f"), result("1", tool_name="f")], [0, 1]),
        ([called("f", "g"), result("0", tool_call_id="unheard-of"), result("1", tool_call_id="of")], [0, 1]),
        ([called("f", "g", ids=("a", "b")), result("1", tool_call_id="b"), result("0", tool_call_id="a")], [1, 0]),
        ([called("f", ids=("a",)), result("0", tool_call_id="a"), called("f", ids=("a",)), result("1")], [0, 1]),
        ([called("f"), result("0"), called("f"), result("1")], [0, 1]),
    ],
)
def test_law_4_calls_and_results_find_each_other(turns: list[dict[str, Any]], answers: list[int]) -> None:
    told = sent(messages=[*HI, *turns])["messages"]
    ids = [call["id"] for message in told for call in message.get("tool_calls", [])]
    assert len(set(ids)) == len(ids)
    assert [ids.index(message["tool_call_id"]) for message in told if message["role"] == "tool"] == answers


def test_law_4_a_result_too_many_is_the_users() -> None:
    told = sent(messages=[*HI, called("f"), result("a"), result("b")])["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "user"]
    assert told[-1]["content"] == "b"


def test_law_5_a_null_is_as_if_absent(client: httpx.Client) -> None:
    options = dict.fromkeys(("temperature", "num_ctx", "stop", "mirostat", "seed"))
    nulls: dict[str, Any] = dict.fromkeys(("tools", "format", "think", "keep_alive", "logprobs", "truncate"))
    turn = {"role": "user", "content": "hi", "images": None, "tool_calls": None, "thinking": None}
    assert sent(messages=[turn], options=options, **nulls) == sent()
    assert crossing(messages=[turn], options=options, **nulls).op.dropped == ()
    assert sent(messages=[turn], options=None, **nulls) == sent()


def test_law_5_unknown_members_never_fail_and_are_named(client: httpx.Client) -> None:
    turn = {"role": "user", "content": "hi", "novel": 1}
    asked = body(
        messages=[turn], options={"novel": 1, "num_ctx": 5}, brand_new=[1], temperature=0.1, tool_choice="auto"
    )
    reply = client.post("/api/chat", json=asked)
    assert reply.status_code == 200, reply.text
    named = set(reply.headers["x-dragoman-dropped"].split(", "))
    assert named == {"messages[].novel", "options.novel", "options.num_ctx", "brand_new", "tool_choice"}


def test_strictness_is_about_what_is_unknown() -> None:
    strict, vllm = dialects.create("ollama_native", Settings(extras="error")), backends.create("vllm")
    asked = json.dumps(body(options={"num_ctx": 5})).encode()
    assert send(strict, vllm, asked, Capabilities("w"), route="chat").op.dropped == ("options.num_ctx",)
    with pytest.raises(Refused):
        send(strict, vllm, json.dumps(body(options={"novel": 5})).encode(), Capabilities("w"), route="chat")


def test_a_temperature_beside_the_options_is_the_second_choice() -> None:
    assert sent(temperature=0.25)["temperature"] == 0.25
    assert sent(temperature=0.25, options={"temperature": 0.5})["temperature"] == 0.5


@pytest.mark.parametrize(
    "members",
    [
        {"messages": [{"role": "user", "content": 5}]},
        {"options": []},
        {"options": {"temperature": "warm"}},
        {"think": "hard"},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]},
        {"messages": [{"role": "user", "content": "", "images": ["AAAA"]}]},
        {"messages": [{"role": "user", "content": "", "images": ["http://x/y.png"]}]},
        {"top_logprobs": 21, "logprobs": True},
        {"_debug_render_only": True},
    ],
)
def test_law_5_a_wrong_type_is_a_400(client: httpx.Client, members: dict[str, Any]) -> None:
    name, value = next(iter(members.items()))
    inner = next(iter(value), "") if isinstance(value, dict) else ""
    assert f"{name}.{inner}".rstrip(".") in refused(client, "/api/chat", body(**members))


def test_images_stand_before_the_text() -> None:
    (turn,) = sent(messages=[{"role": "user", "content": "what", "images": [PNG]}])["messages"]
    assert [part["type"] for part in turn["content"]] == ["image_url", "text"]
    assert turn["content"][0]["image_url"]["url"] == "data:image/png;base64," + PNG


# -- 6 and 7: models and metrics --------------------------------------------------------------------------------------


def test_law_6_m_and_m_latest_are_one_model(client: httpx.Client) -> None:
    for path in ("/api/chat", "/ollama/api/chat"):
        assert whole(client, path, body(model="m:latest"))["model"] == "m:latest"
    assert client.post("/api/show", json={"model": "m:latest"}).status_code == 200
    assert client.post("/api/show", json={"name": "m"}).status_code == 200


def test_law_6_a_model_configured_as_latest_is_found_without() -> None:
    config = {"models": {"m": {"aliases": ["q:latest"]}}}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:
        for name in ("q", "q:latest"):
            assert whole(client, "/api/chat", body(model=name))["model"] == name


def test_law_6_what_is_listed_can_be_shown_and_asked() -> None:
    secret, keys = key("app", models=["m", "e"])
    workers = ["http://127.0.0.1:10"]  # a list of its own: no YAML alias, which the configuration refuses
    models = {"m": {}, "e": {**FORGOTTEN, "workers": workers, "features": ["embeddings"]}, "secret": FORGOTTEN}
    config = {"auth": "keys", "keys": keys, "models": models}
    with (
        Stack(config=config) as stack,
        httpx.Client(base_url=stack.url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        listed = client.get("/api/tags").json()["models"]
        assert {card["model"] for card in listed} >= {"m", "e"}
        assert all(card["name"] == card["model"] and card["digest"] for card in listed)
        for card in listed:
            shown = client.post("/api/show", json={"model": card["model"]})
            assert shown.status_code == 200
            assert shown.json()["model_info"]["general.basename"] == card["model"]
            assert shown.json()["capabilities"] == card["capabilities"]
        assert {card["model"]: card["capabilities"] for card in listed}["e"] == ["embedding"]
        assert "secret" not in [card["model"] for card in listed]
        for path in ("/api/show", "/api/chat", "/api/pull"):
            assert refused(client, path, body(model="secret"), 404) == "model 'secret' not found"
        assert {card["model"] for card in client.get("/api/ps").json()["models"]} == {"m", "alias"}
        assert client.get("/api/tags", headers={"authorization": "Bearer x"}).status_code == 401


def check_metrics(found: dict[str, Any], usage: dict[str, int]) -> None:
    assert set(found) >= METRICS
    assert all(type(found[name]) is int and found[name] >= 0 for name in METRICS)
    assert found["prompt_eval_count"] == usage["prompt_tokens"]
    assert found["eval_count"] == usage["completion_tokens"]
    assert found["eval_duration"] >= 1
    parts = found["load_duration"] + found["prompt_eval_duration"] + found["eval_duration"]
    assert 1 <= parts <= found["total_duration"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_law_7_metrics_are_measured(client: httpx.Client, path: str) -> None:
    text = "sim:" + json.dumps({"text": "Hello there"})
    messages = [{"role": "user", "content": text}]
    asked = {"model": "m", "messages": messages} if path == "/api/chat" else {"model": "m", "prompt": text}
    usage = client.post("/v1/chat/completions", json={"model": "m", "messages": messages}).json()["usage"]
    check_metrics(streamed(client, path, asked)[-1], usage)
    check_metrics(whole(client, path, asked), usage)


def test_law_7_they_are_nanoseconds() -> None:
    """What passes between the first and the last token is the generation's time."""
    options = {"itl_ms": 20, "prefill_us_per_token": 5000}
    with Stack(workers=(options,)) as stack, httpx.Client(base_url=stack.url) as client:
        last = streamed(client, "/api/chat", scripted(text="one two three four five six"))[-1]
        assert last["prompt_eval_duration"] >= 5_000_000 * last["prompt_eval_count"] // 2
        assert last["eval_duration"] >= 20_000_000


def test_law_7_unknown_counts_are_numbers() -> None:
    writer = chat_writer()
    events: list[Event] = [Start("i", "m", 1), UsageReport(Usage()), Finish(0, "length", "length"), End()]
    (last,) = lines(b"".join(writer.write(event) for event in events).decode())
    assert last["eval_count"] == last["prompt_eval_count"] == 0
    assert last["done_reason"] == "length"


# -- 8 and 9: keep-alives and failures --------------------------------------------------------------------------------


def test_law_8_a_keep_alive_is_a_space_before_a_line() -> None:
    config = {"relay": {"keepalive_s": 0.05}}
    with Stack(workers=({"prefill_us_per_token": 20_000},), config=config) as stack:
        reply = httpx.post(stack.url + "/api/chat", json=scripted(text="Hello"), timeout=30)
    assert reply.text.startswith(" ")
    assert "\n\n" not in reply.text
    assert "\n " not in reply.text.rstrip("\n").replace('\n {"', "")
    assert heard(lines(reply.text))["content"] == "Hello"


@pytest.mark.parametrize("fault", ["eof@2", "reset@2"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_law_9_a_failure_in_a_stream_is_one_line_and_a_cut(client: httpx.Client, path: str, fault: str) -> None:
    asked = scripted(text="one two three four", fault=fault)
    if path == "/api/generate":
        asked = {"model": "m", "prompt": asked["messages"][0]["content"]}
    got: list[bytes] = []
    with client.stream("POST", path, json=asked) as reply, pytest.raises(httpx.RemoteProtocolError):
        got.extend(reply.iter_raw())
    *before, last = lines(b"".join(got).decode())
    assert set(last) == {"error", "code"}
    assert isinstance(last["error"], str)
    assert not any(line["done"] for line in before)
    assert before


# -- 10 to 14: formats, loading, options, thinking --------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}


@pytest.mark.parametrize("route", ["chat", "generate"])
def test_law_10_a_format_reaches_the_worker(route: str, client: httpx.Client) -> None:
    members: dict[str, Any] = {} if route == "chat" else {"prompt": "hi"}
    assert sent(route=route, format="json", **members)["response_format"] == {"type": "json_object"}
    schema = sent(route=route, format=SCHEMA, **members)["response_format"]["json_schema"]["schema"]
    assert json.dumps(schema) == json.dumps(SCHEMA)
    assert "response_format" not in sent(route=route, format="", **members)
    assert "format" in refused(client, f"/api/{route}", {**body(), **members, "format": "yaml"})


@pytest.mark.parametrize("keep_alive", [None, "5m", -1, 0, "0", "0s"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_law_11_nothing_to_say_asks_no_worker(stack: Stack, client: httpx.Client, path: str, keep_alive: Any) -> None:
    before = sum(entry.generation for entry in stack.sim.entries)
    asked: dict[str, Any] = {"model": "m:latest", "keep_alive": keep_alive}
    empty: dict[str, Any] = {"messages": []} if path == "/api/chat" else {"prompt": ""}
    for stream in ({}, {"stream": False}):
        for members in ({}, empty):
            (line,) = lines(client.post(path, json={**asked, **stream, **members}).text)
            assert line["done"] is True
            assert line["done_reason"] == ("unload" if keep_alive in (0, "0", "0s") else "load")
            assert line["model"] == "m:latest"
            assert set(line) >= METRICS
    assert sum(entry.generation for entry in stack.sim.entries) == before
    assert refused(client, path, {"model": "none"}, 404) == "model 'none' not found"
    assert refused(client, path, {}) == "model is required"


def test_law_12_what_a_runner_decides_changes_nothing() -> None:
    runner = {"num_ctx": 10**9, "num_gpu": 1, "num_batch": 4, "use_mmap": True, "mirostat": 2, "num_keep": 4}
    assert sent(options=runner, keep_alive="5m") == sent()
    assert sent(options={"num_ctx": "many"}, keep_alive=[1]) == sent()


@pytest.mark.parametrize(
    ("option", "value", "name", "told"),
    [
        ("num_predict", 5, "max_tokens", 5),
        ("num_predict", -1, "max_tokens", None),
        ("num_predict", -2, "max_tokens", None),
        ("num_predict", 0, "max_tokens", None),
        ("seed", 7, "seed", 7),
        ("seed", -1, "seed", None),
        ("repeat_penalty", 1.1, "repetition_penalty", 1.1),
        ("top_k", 40.0, "top_k", 40),
        ("stop", "END", "stop", ["END"]),
        ("stop", ["A", "B"], "stop", ["A", "B"]),
        ("stop", [], "stop", None),
    ],
)
def test_options_by_their_names(option: str, value: Any, name: str, told: Any) -> None:
    assert sent(options={option: value}).get(name) == told


def test_no_option_is_filled_in() -> None:
    assert set(sent(stream=False)) == {"model", "messages"}


@pytest.mark.parametrize("members", [{"context": [1]}, {"template": "{{ .Prompt }}"}, {"raw": True, "system": "s"}])
def test_law_13_what_would_be_lost_is_refused(client: httpx.Client, members: dict[str, Any]) -> None:
    text = refused(client, "/api/generate", {"model": "m", "prompt": "hi", **members})
    assert next(iter(members)) in text


def test_law_13_what_is_empty_is_not() -> None:
    plain = sent(route="generate", prompt="hi")
    assert sent(route="generate", prompt="hi", context=[], template="", system="", raw=False) == plain


def test_generations_are_chats_unless_raw() -> None:
    first = sent(route="generate", prompt="p", system="s", images=[PNG])["messages"][0]
    assert first == {"role": "system", "content": "s"}
    assert crossing(route="generate", prompt="p").outgoing.path == "/v1/chat/completions"
    raw = crossing(route="generate", prompt="p", raw=True)
    assert isinstance(raw.op, Complete)
    assert raw.outgoing.path == "/v1/completions"
    fill = sent(route="generate", prompt="a", suffix="b")
    assert (fill["prompt"], fill["suffix"]) == ("a", "b")


def test_a_generation_is_answered_in_its_own_form(client: httpx.Client) -> None:
    asked = {"model": "m", "prompt": "sim:" + json.dumps({"text": "Hello there", "reasoning": "hm"})}
    found = streamed(client, "/api/generate", asked)
    assert "".join(line["response"] for line in found) == "Hello there"
    assert "".join(line.get("thinking", "") for line in found) == "hm"
    assert found[-1]["context"] == []
    reply = whole(client, "/api/generate", asked)
    assert (reply["response"], reply["thinking"], reply["context"]) == ("Hello there", "hm", [])
    assert "message" not in reply


PLAIN = Capabilities("w", features=frozenset({"tools"}))


def test_law_14_thinking_is_asked_for_or_not(client: httpx.Client) -> None:
    assert sent(think=False)["reasoning_effort"] == "none"
    efforts = {True: "medium", "low": "low", "high": "high", "max": "high"}
    assert {word: sent(think=word)["reasoning_effort"] for word in efforts} == efforts
    assert "reasoning_effort" not in sent()
    asked = {**scripted(text="Hello", reasoning="hm"), "think": False}
    assert "thinking" not in json.dumps(streamed(client, "/api/chat", asked))
    assert "thinking" not in whole(client, "/api/chat", asked)["message"]
    assert heard(streamed(client, "/api/chat", asked))["content"] == "Hello"


def test_law_14_a_model_that_cannot_think() -> None:
    assert "reasoning_effort" not in sent(can=PLAIN, think=False)
    assert sent("tgi", think=False)
    with pytest.raises(Refused) as caught:
        sent(can=PLAIN, think=True)
    assert json.loads(caught.value.response.body)["error"] == '"m" does not support thinking'
    with pytest.raises(Refused) as caught:
        sent(can=Capabilities("w", features=frozenset()), tools=[TOOL])
    assert json.loads(caught.value.response.body)["error"] == '"m" does not support tools'


# -- 15 to 17: what the server says of itself, media types, embeddings -------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/ollama"])
def test_law_15_version_and_probes(client: httpx.Client, prefix: str) -> None:
    version = client.get(prefix + "/api/version").json()["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)
    assert client.get(prefix + "/").text == "Ollama is running"
    for path in ("/", "/api/version", "/api/tags"):
        probe = client.head(prefix + path)
        assert (probe.status_code, probe.content) == (200, b"")


def test_law_15_a_card_has_what_clients_read() -> None:
    with Stack(config={"models": {"m": {"max_context": 8192, "features": ["tools", "reasoning"]}}}) as stack:
        shown = httpx.post(stack.url + "/api/show", json={"model": "m"}).json()
    assert shown["model_info"]["general.basename"] == "m"
    assert shown["model_info"][shown["model_info"]["general.architecture"] + ".context_length"] == 8192
    assert shown["capabilities"] == ["completion", "tools", "thinking"]


@pytest.mark.parametrize(
    ("features", "lacks", "listed"),
    [
        (None, [], ["completion", "tools"]),
        (None, ["tools", "vision"], ["completion"]),
        (["tools", "vision"], ["tools"], ["completion", "vision"]),
        (["embeddings"], ["tools"], ["embedding"]),
    ],
)
def test_a_card_lists_nothing_that_a_worker_lacks(
    features: list[str] | None, lacks: list[str], listed: list[str]
) -> None:
    declared = None if features is None else frozenset(features)
    assert capabilities(ModelCard("m", 1, True, features=declared, lacks=frozenset(lacks))) == listed


def test_what_is_served_is_pulled_and_nothing_is_managed(client: httpx.Client) -> None:
    assert lines(client.post("/api/pull", json={"model": "m", "stream": True}).text) == [{"status": "success"}]
    assert refused(client, "/api/pull", {"name": "none"}, 404) == "model 'none' not found"
    for path in ("push", "create", "copy", "blobs/sha256:00"):
        assert "is not possible here" in refused(client, f"/api/{path}", {"model": "m"}, 403)
    assert client.request("DELETE", "/api/delete", json={"model": "m"}).status_code == 403


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_law_16_every_media_type_is_json(client: httpx.Client, kind: str | None) -> None:
    headers = {"content-type": kind} if kind is not None else {}
    reply = client.post("/api/chat", content=json.dumps(body(stream=False)), headers=headers)
    assert reply.status_code == 200, reply.text


def test_law_17_embeddings_keep_their_order_and_have_norm_1(client: httpx.Client) -> None:
    reply = whole(client, "/api/embed", {"model": "m", "input": ["a", "b", "a"]})
    one, two, three = reply["embeddings"]
    assert one == pytest.approx(three)
    assert one != pytest.approx(two)
    assert [math.hypot(*vector) for vector in (one, two)] == pytest.approx([1, 1])
    assert reply["total_duration"] > 0
    assert reply["load_duration"] == 0
    assert reply["prompt_eval_count"] > 0
    alone = whole(client, "/api/embed", {"model": "m", "input": "b", "options": {"num_ctx": None}})
    assert alone["embeddings"][0] == pytest.approx(two)
    plain = client.post("/v1/embeddings", json={"model": "m", "input": "b"}).json()["data"][0]["embedding"]
    assert whole(client, "/api/embeddings", {"model": "m", "prompt": "b"}) == {"embedding": plain}


def test_law_17_no_input_no_vectors(client: httpx.Client) -> None:
    empty = whole(client, "/api/embed", {"model": "m", "input": []})
    assert empty == {"model": "m", "embeddings": [], **dict.fromkeys(PROMPT_METRICS, 0)}
    assert whole(client, "/api/embeddings", {"model": "m", "prompt": ""}) == {"embedding": []}
    assert refused(client, "/api/embed", {"model": "m", "input": 5}) == "invalid input type"
    assert "at most 2048" in refused(client, "/api/embed", {"model": "m", "input": ["a"] * 2049})


def test_an_input_that_is_too_long_is_cut_unless_that_is_refused() -> None:
    assert sent(route="embed", input="x")["truncate_prompt_tokens"] == -1
    assert "truncate_prompt_tokens" not in sent(route="embed", input="x", truncate=False)
    assert "truncate_prompt_tokens" not in sent("llamacpp", route="embed", input="x")


def test_what_asks_no_worker_is_not_translated() -> None:
    with pytest.raises(ValueError, match="no worker is asked"):
        send(DIALECT, backends.create("vllm"), b'{"model":"m","messages":[]}', Capabilities("w"))
