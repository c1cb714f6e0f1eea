"""The laws of Ollama's API, by their numbers in the notes on its recorded clients: what they send, and what they must
be answered."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from gateway import backends, dialects
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.ports import Capabilities, Settings
from gateway.core.usage import Usage
from gateway.translation.offline import Refused, send
from tests.support.harness import Stack
from tests.unit.dialects.asking import HI
from tests.unit.dialects.ollama.asking import (
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
from tests.unit.dialects.ollama.posted import METRICS, refused, streamed, whole

LAWS = 17
"""How many there are: tests/repo looks for a test of each."""
TOOLS = [TOOL, {"type": "function", "function": {"name": "g"}}]

SCRIPTS: list[dict[str, Any]] = [
    {"text": "Hello there"},
    {"text": "Hello there", "reasoning": "let me see"},
    {"tool_calls": [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]},
    {"text": "So:", "tool_calls": [{"name": "f", "arguments": {"a": [1, 2]}}], "interleave": True},
]


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
    strict, vllm = dialects.create("ollama", Settings(extras="error")), backends.create("vllm")
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


SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}


@pytest.mark.parametrize("route", ["chat", "generate"])
def test_law_10_a_format_reaches_the_worker(route: str, client: httpx.Client) -> None:
    members: dict[str, Any] = {} if route == "chat" else {"prompt": "hi"}
    assert sent(route=route, format="json", **members)["response_format"] == {"type": "json_object"}
    schema = sent(route=route, format=SCHEMA, **members)["response_format"]["json_schema"]["schema"]
    assert json.dumps(schema) == json.dumps(SCHEMA)
    assert "response_format" not in sent(route=route, format="", **members)
    assert "format" in refused(client, f"/api/{route}", {**body(), **members, "format": "yaml"})
