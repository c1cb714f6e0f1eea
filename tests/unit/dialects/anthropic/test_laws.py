"""The laws of the Messages API, by their numbers in the notes on its recorded clients: what they send, and what they
must be answered."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Chat, ServerTool
from gateway.core.ports import Capabilities
from gateway.dialects.anthropic.errors import message_of
from tests.support.harness import Stack
from tests.unit.dialects.anthropic.asking import DIALECT, TOOL, body, crossing, read, roles, scripted, sent
from tests.unit.dialects.anthropic.posted import post
from tests.unit.dialects.asking import HI, keyed

LAWS = 20
"""How many there are: tests/repo looks for a test of each."""
OURS = {"anthropic-version": "2023-06-01"}


def test_law_1_one_key_in_any_of_its_headers_suffices() -> None:
    key, config = keyed()
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:
        for headers in (
            {"x-api-key": key},
            {"authorization": f"Bearer {key}"},
            {"api-key": key, "x-api-key": key},
            {"authorization": f"Bearer {key}", "x-api-key": key},
        ):
            assert client.post("/v1/messages", json=body(), headers=headers).status_code == 200, list(headers)
        refused = client.post("/v1/messages", json=body())
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        assert refused.headers["x-should-retry"] == "false"
        assert refused.headers["request-id"] == refused.json()["request_id"]


UNKNOWN: dict[str, Any] = {
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "diagnostics": {"x": 1},
    "brand_new": [1],
    "cache_control": {"type": "ephemeral"},
    "service_tier": "auto",
    "mcp_servers": [],
}


def test_law_2_unknown_members_are_no_error_and_are_named(client: httpx.Client) -> None:
    block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}, "novel": 1}
    turn = {"role": "user", "content": [block], "output_config": {"effort": "low"}}
    headers = {"anthropic-beta": "never-heard-of-2027-01-01", "anthropic-version": "2099-01-01"}
    tools = [{**TOOL, "cache_control": {"type": "ephemeral"}, "surprise": True}]
    asked = body(**UNKNOWN, messages=[turn], tools=tools)
    reply = client.post("/v1/messages?beta=true", json=asked, headers=headers)
    assert reply.status_code == 200, reply.text
    named = set(reply.headers["x-dragoman-dropped"].split(", "))
    assert named >= set(UNKNOWN) | {"messages[].content[].novel", "messages[].output_config", "tools[].surprise"}


def test_law_2_an_image_without_a_place_is_named() -> None:
    image = {"type": "image", "source": PNG}
    content = [image, {"type": "text", "text": "x"}]
    results = [{"type": "search_result", "source": "s", "title": "t", "content": content}]
    named = crossing(system=[image, {"type": "text", "text": "Be brief."}]).op.dropped
    assert "system[].image" in named
    for turn in ({"role": "system", "content": [image]}, {"role": "user", "content": results}):
        assert "messages[].content[].image" in crossing(messages=[*HI, turn]).op.dropped
    assert not crossing(messages=[{"role": "user", "content": [image]}]).op.dropped


def test_law_3_a_system_turn_stays_or_is_folded_and_never_comes_first() -> None:
    turns = [*HI, {"role": "system", "content": "now"}, {"role": "assistant", "content": "yes"}, *HI]
    folded = sent(messages=turns, system="be brief")["messages"]
    assert roles(folded) == ["system", "user", "assistant", "user"]
    assert folded[0]["content"] == "be brief"
    assert folded[1]["content"] == "hi\n\nnow"
    takes = Capabilities("w", system="keep")
    stayed = roles(sent(can=takes, messages=turns, system="be brief")["messages"])
    assert stayed == ["system", "user", "system", "assistant", "user"]


def test_law_4_the_billing_header_never_reaches_a_worker() -> None:
    def asked(version: str) -> Any:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version};"}
        system = [header, {"type": "text", "text": "You are."}, {"type": "text", "text": "More."}]
        return sent(system=system, messages=[*HI, {"role": "system", "content": [header]}])

    assert asked("1") == asked("2")
    assert asked("1")["messages"] == [{"role": "system", "content": "You are.\n\nMore."}, *HI]


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ("LINE\nYou are.\nMore.", "You are.\nMore."),
        ("LINE You are.", "You are."),
        ("LINEYou are: a=b, c.", "You are: a=b, c."),
        ("You are.\nLINE\nMore.", "You are.\nMore."),
        ("You are.\nLINE", "You are.\n"),
        ("Never write LINE.", "Never write LINE."),
    ],
)
@pytest.mark.parametrize("block", [False, True])
def test_law_4_only_the_billing_header_is_left_out(system: str, told: str, block: bool) -> None:
    """Wherever it stands; a sentence that has it in its midst is the user's own."""
    line = "x-anthropic-billing-header: cc_version=2.1.330.d01; cc_entrypoint=sdk-cli;"
    text = system.replace("LINE", line)
    messages = sent(system=[{"type": "text", "text": text}] if block else text, messages=HI)["messages"]
    assert messages == [{"role": "system", "content": told.replace("LINE", line)}, *HI]


PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def test_law_5_results_follow_their_calls_and_images_follow_the_results() -> None:
    calls = [{"type": "tool_use", "id": f"c{i}", "name": "f", "input": {"i": i}} for i in (1, 2)]
    results = [
        {"type": "text", "text": "before"},
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "image", "source": PNG}]},
        {"type": "text", "text": "between"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "no such file", "is_error": True},
        {"type": "text", "text": "after"},
    ]
    turns = [
        *HI,
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *calls]},
        {"role": "system", "content": "mind the gap"},
        {"role": "user", "content": results},
    ]
    messages = sent(messages=turns, tools=[TOOL])["messages"]
    assert roles(messages) == ["user", "assistant", "tool", "tool", "user"]
    assert [message["tool_call_id"] for message in messages[2:4]] == ["c1", "c2"]
    assert [call["function"]["arguments"] for call in messages[1]["tool_calls"]] == ['{"i": 1}', '{"i": 2}']
    assert messages[3]["content"] == "Error: no such file"
    shown = messages[4]["content"]
    texts = [part.get("text", part["type"]) for part in shown]
    assert texts == ["mind the gap", "image_url", "before", "between", "after"]
    assert shown[1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize("stream", [False, True])
def test_law_6_and_17_what_exceeds_the_context_is_cut_and_named(stream: bool) -> None:
    config = {"models": {"m": {"max_context": 200}}}
    with Stack(workers=({"max_model_len": 200, "strict_context": True},), config=config) as stack:
        reply = httpx.post(stack.url + "/v1/messages", json=body(max_tokens=32000, stream=stream))
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-dragoman-dropped"] == "max_tokens"
        reply = httpx.post(stack.url + "/v1/messages", json=body(max_tokens=20, stream=stream))
        assert "x-dragoman-dropped" not in reply.headers
        long = [{"role": "user", "content": "word " * 2000}]
        refused = httpx.post(stack.url + "/v1/messages", json=body(max_tokens=32000, messages=long, stream=stream))
        assert refused.status_code == 400
        told = refused.json()["error"]
        assert told["type"] == "invalid_request_error"
        assert told["message"].startswith("prompt is too long: ")
        assert told["message"].endswith(" tokens > 200 maximum")


LENGTH = "This model's maximum context length is"
CUT = "decrease input length or `max_tokens` and try again"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            f"{LENGTH} 4096 tokens. However, you requested 0 output tokens and your prompt contains 5000 input tokens, "
            "for a total of 5000 tokens.",
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        (
            f"{LENGTH} 40000 tokens. However, you requested 32000 output tokens and your prompt contains at least "
            "30000 input tokens, for a total of at least 62000 tokens.",
            f"input length and `max_tokens` exceed context limit: 30000 + 32000 > 40000, {CUT}",
        ),
        (
            f"{LENGTH} 100 tokens. However, you requested 120 tokens (90 in the messages, 30 in the completion).",
            f"input length and `max_tokens` exceed context limit: 90 + 30 > 100, {CUT}",
        ),
        (
            "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        ("`inputs` must have less than 1023 tokens. Given: 2000", "prompt is too long: 2000 tokens > 1023 maximum"),
        ("the context size is exceeded", "prompt is too long: the context size is exceeded"),
    ],
)
def test_law_6_engines_words_become_those_that_clients_act_on(said: str, told: str) -> None:
    assert message_of(said) == told
    response, _ = DIALECT.refuse(GatewayError(Kind.CONTEXT_LENGTH, said, upstream=400), None, None)
    assert json.loads(response.body)["error"]["message"] == told


SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
LATER = {"name": "Later", "input_schema": {"type": "object"}, "defer_loading": True}


def test_law_16_tools_that_nobody_here_executes_are_left_out_and_named() -> None:
    found = crossing(tools=[SEARCH, LATER, TOOL], tool_choice={"type": "tool", "name": "web_search"})
    told = json.loads(found.outgoing.body)
    assert [tool["function"]["name"] for tool in told["tools"]] == ["f"]
    assert told["tool_choice"] == "auto"
    assert {"tools.web_search", "tools.Later", "tool_choice.name"} <= set(found.op.dropped)
    other = {"type": "code_execution_20250825", "name": "code_execution"}
    alone = crossing(tools=[other], tool_choice={"type": "tool", "name": "code_execution"})
    assert {"tools", "tool_choice"}.isdisjoint(json.loads(alone.outgoing.body))
    assert "tool_choice" in alone.op.dropped


def unavailable(**asked: Any) -> ServerTool | None:
    op = read(**asked)
    assert isinstance(op, Chat)
    return op.server_tools[0] if op.server_tools and not op.tools else None


@pytest.mark.parametrize("version", ["web_search_20250305", "web_search_20260209", "web_fetch_20250910"])
@pytest.mark.parametrize(
    "asked",
    [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "it"}},
        {"messages": [{"role": "user", "content": "Perform a web search for the query: weather"}]},
    ],
    ids=str,
)
def test_law_16_a_request_for_nothing_but_a_result_of_the_web_is_not_made_up(
    version: str, asked: dict[str, Any]
) -> None:
    tool = {"type": version, "name": "it"}
    assert unavailable(tools=[tool], **asked) == ServerTool("search" if "search" in version else "fetch", "it")
    assert unavailable(tools=[{"type": "code_execution_20250825", "name": "c"}, tool], **asked) is not None


@pytest.mark.parametrize(
    "asked",
    [
        {"tools": [SEARCH]},
        {"tools": [SEARCH], "tool_choice": {"type": "auto"}},
        {"tools": [SEARCH], "tool_choice": {"type": "none"}},
        {"tools": [SEARCH, TOOL]},
        {"tools": [SEARCH, LATER]},
        {"tools": [TOOL]},
        {"tools": []},
        {"tools": [{**SEARCH, "input_schema": {"type": "object"}}]},
    ],
)
def test_law_16_any_other_request_goes_on_without_the_tool(asked: dict[str, Any]) -> None:
    assert unavailable(**asked) is None
    if SEARCH in asked["tools"]:
        assert "tools.web_search" in crossing(**asked).op.dropped


def test_law_16_a_deferred_tool_is_shown_once_a_result_names_it() -> None:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    shown = {"type": "tool_reference", "tool_name": "Later"}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [shown]}
    turns = [*HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    told = sent(tools=[TOOL, LATER], messages=turns)
    assert [tool["function"]["name"] for tool in told["tools"]] == ["f", "Later"]
    assert told["messages"][-1]["content"] == "Tool: Later"


def test_law_18_counts_are_requests_use_no_tokens_and_agree_with_usage() -> None:
    requests = {"name": "few", "kind": "requests", "limit": 25, "per_s": 3600}
    tokens = {"name": "little", "kind": "tokens", "limit": 1000, "per_s": 3600}
    config = {"limits": [requests, tokens]}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:
        asked = {"model": "m", "messages": HI, "system": "be brief", "tools": []}

        def count(_: int) -> int:
            return int(post(client, asked, "/v1/messages/count_tokens")["input_tokens"])

        with ThreadPoolExecutor(24) as pool:
            counts = set(pool.map(count, range(24)))
        assert len(counts) == 1
        whole = post(client, body(system="be brief"))
        assert counts == {whole["usage"]["input_tokens"]}
        assert client.post("/v1/messages", json=body()).status_code == 429


def test_law_18_where_no_worker_can_count_the_path_is_not_there() -> None:
    with Stack(config={"models": {"m": {"backend": "openai"}}}) as stack:
        reply = httpx.post(stack.url + "/v1/messages/count_tokens", json={"model": "m", "messages": HI})
    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "not_found_error"


def test_law_18_a_busy_worker_is_asked_all_the_same() -> None:
    with Stack(workers=({},), config={"models": {"m": {"max_in_flight": 1}}}) as stack:

        async def both() -> int:
            async with httpx.AsyncClient(base_url=stack.url) as client:
                waiting = asyncio.create_task(client.post("/v1/messages", json=scripted(fault="stall"), timeout=60))
                await asyncio.to_thread(stack.run, stack.sim.ledger.wait(received=1))
                reply = await client.post("/v1/messages/count_tokens", json={"model": "m", "messages": HI})
                waiting.cancel()
                return reply.status_code

        assert asyncio.run(both()) == 200


@pytest.mark.parametrize("path", ["/", "/api/hello", "/anthropic", "/anthropic/", "/anthropic/api/hello"])
def test_law_19_probes_are_answered_without_a_key(path: str) -> None:
    with Stack(config=keyed()[1]) as stack:
        assert httpx.head(stack.url + path).status_code == 200


def test_law_20_models_are_told_in_the_form_of_who_asks(client: httpx.Client) -> None:
    page = client.get("/v1/models?limit=1000", headers=OURS).json()
    assert page["has_more"] is False
    assert (page["first_id"], page["last_id"]) == ("m", "alias")
    for card in page["data"]:
        assert card["type"] == "model"
        assert card["created_at"].endswith("Z")
        assert card["display_name"] == card["id"]
    assert client.get("/v1/models/m", headers=OURS).json()["type"] == "model"
    assert client.get("/anthropic/v1/models").json()["has_more"] is False
    assert client.get("/v1/models").json()["object"] == "list"
    first = client.get("/v1/models?limit=1", headers=OURS).json()
    assert (first["has_more"], [card["id"] for card in first["data"]]) == (True, ["m"])
    rest = client.get("/v1/models?limit=1&after_id=m", headers=OURS).json()
    assert (rest["has_more"], [card["id"] for card in rest["data"]]) == (False, ["alias"])
    back = client.get("/v1/models?before_id=alias", headers=OURS).json()
    assert [card["id"] for card in back["data"]] == ["m"]
    for query in ("limit=0", "limit=x", "after_id=none", "&".join(f"a{i}=1" for i in range(99))):
        assert client.get(f"/v1/models?{query}", headers=OURS).status_code == 400, query


def test_what_tools_and_documents_ask_for_in_vain_is_named() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}
    for enabled in (True, False):
        asking = {**document, "citations": {"enabled": enabled}}
        found = crossing(
            tools=[{**TOOL, "input_examples": [{}]}], messages=[{"role": "user", "content": [asking]}]
        ).op.dropped
        assert "tools[].input_examples" in found
        assert ("messages[].content[].citations" in found) is enabled
