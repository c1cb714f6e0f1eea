"""Tools that the gateway runs for a client: rounds of one reply."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import yaml

from gateway.config import ConfigError, plain_secrets
from tests.support.harness import Stack, load_text
from tests.support.standins.endless import ENDLESS, writing
from tests.support.standins.guard import ALLOW, guard
from tests.support.standins.web import Web, web
from tests.unit.dialects.responses.talking import Talk
from tests.unit.kernel.test_other_models import fleet

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
OWN = {"name": "mine", "input_schema": {"type": "object"}}


@pytest.fixture
def service() -> Iterator[Web]:
    with web() as running:
        yield running


@pytest.fixture
def stack(service: Web) -> Iterator[Stack]:
    with Stack(config=tools(service)) as running:
        yield running


def tools(service: Web, **also: Any) -> dict[str, Any]:
    fetch = {"allow_networks": ["127.0.0.0/8"]}
    return {"tools": {"web_search": {"url": service.url, **also}, "web_fetch": fetch}}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def asked(*rounds: dict[str, Any], tools: Any = (SEARCH, FETCH), words: str = "Go.", **also: Any) -> dict[str, Any]:
    prompt = f"{words} sim:" + json.dumps({"rounds": rounds})
    messages = [{"role": "user", "content": prompt}]
    return {"model": "m", "max_tokens": 200, "messages": messages, "tools": list(tools), **also}


def post(stack: Stack, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """The message; of a stream, what its events make, as a client sees them."""
    reply = httpx.post(stack.url + "/v1/messages", json={**body, "stream": stream}, timeout=30)
    assert reply.status_code == 200, reply.text
    if not stream:
        return dict(reply.json())
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    message: dict[str, Any] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                block["text"] = block.get("text", "") + delta.get("text", "")
                block["json"] += delta.get("partial_json", "")
                if "citation" in delta:
                    block.setdefault("citations", []).append(delta["citation"])
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
            case "error":
                message["error"] = event["error"]
    for block in message["content"]:
        text = block.pop("json")
        if text:
            block["input"] = json.loads(text)
        if block["type"] != "text":
            block.pop("text", None)
    return message


def respond(stack: Stack, body: dict[str, Any], **members: Any) -> dict[str, Any]:
    """The response to `body`, of the Messages API, asked for as a stream of the Responses API whose every event has its
    place."""
    asking = {"model": "m", "input": body["messages"], "tools": [{"type": "web_search"}], "stream": True, **members}
    reply = httpx.post(stack.url + "/v1/responses", json=asking, timeout=30)
    assert reply.status_code == 200, reply.text
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    response = dict(events[-1]["response"])
    assert added == list(range(len(done)))
    assert done == response["output"]
    return response


def told(stack: Stack, number: int) -> list[dict[str, Any]]:
    """The messages of the request for a round."""
    bodies = [entry.body for entry in stack.sim.entries]
    return list(json.loads(bodies[number])["messages"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_search_a_page_and_an_answer_that_cites(stack: Stack, service: Web, stream: bool) -> None:
    page = f"{service.url}/page"
    message = post(
        stack,
        asked(
            {"reasoning": "Hm.", "text": "Let me look.", "tool_calls": [call("web_search", query="weather")]},
            {"tool_calls": [call("web_fetch", url=page)]},
            {"text": f"It rains: [Oslo]({page})."},
        ),
        stream=stream,
    )
    content = message["content"]
    kinds = ["server_tool_use", "web_search_tool_result", "server_tool_use", "web_fetch_tool_result", "text"]
    assert [block["type"] for block in content if block["type"] != "thinking"] == ["text", *kinds]
    searching, results, fetching, fetched, answer = content[-5:]
    assert (searching["name"], searching["input"]) == ("web_search", {"query": "weather"})
    assert results["tool_use_id"] == searching["id"]
    assert [found["title"] for found in results["content"]] == ["Weather in Oslo", "Two"]
    assert (fetching["name"], fetching["input"]) == ("web_fetch", {"url": page})
    assert fetched["content"]["content"]["source"]["data"] == "Weather\nIt rains today."
    (cited,) = answer["citations"]
    assert (cited["type"], cited["url"], cited["title"]) == ("web_search_result_location", page, "Oslo & rain")
    usage, record = message["usage"], stack.records()[-1]
    assert usage["server_tool_use"] == {"web_search_requests": 1, "web_fetch_requests": 1}
    assert (usage["input_tokens"], usage["output_tokens"]) == (record["usage"]["input"], record["usage"]["output"])
    assert message["stop_reason"] == "end_turn"
    assert (record["outcome"], record["attempts"], record["tools"], record["dropped"]) == (
        "ok",
        3,
        ["search", "fetch"],
        [],
    )
    assert [part["role"] for part in told(stack, 2)] == ["user", "assistant", "tool", "assistant", "tool"]
    assert "It rains." in told(stack, 1)[-1]["content"]
    assert "It rains today." in told(stack, 2)[-1]["content"]
    counted = httpx.get(stack.url + "/metrics").text
    assert 'dragoman_tool_calls_total{result="ok",tool="search"} 1.0' in counted


@pytest.mark.parametrize("stream", [False, True])
def test_uses_have_a_bound(stack: Stack, service: Web, stream: bool) -> None:
    """What is beyond it is told to model and client; a model that goes on calling is cut off."""
    again = {"tool_calls": [call("web_search", query="a"), call("web_search", query="b")]}
    message = post(stack, asked(again, again, again, again, tools=[{**SEARCH, "max_uses": 1}]), stream=stream)
    results = [block["content"] for block in message["content"] if block["type"] == "web_search_tool_result"]
    assert isinstance(results[0], list)
    assert [result["error_code"] for result in results[1:]] == ["max_uses_exceeded"] * 5
    assert len(service.asked) == 1
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 1
    assert stack.records()[-1]["attempts"] == 3
    assert message["stop_reason"] == "end_turn"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_for_the_client_ends_the_reply(stack: Stack, stream: bool) -> None:
    both = {"tool_calls": [call("web_search", query="a"), call("mine", x=1)]}
    message = post(stack, asked(both, {"text": "never"}, tools=[SEARCH, OWN]), stream=stream)
    kinds = [block["type"] for block in message["content"]]
    assert sorted(kinds) == ["server_tool_use", "tool_use", "web_search_tool_result"]
    assert message["stop_reason"] == "tool_use"
    assert next(block["input"] for block in message["content"] if block["type"] == "tool_use") == {"x": 1}
    assert stack.records()[-1]["attempts"] == 1


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (call("web_search"), "invalid_tool_input"),
        (call("web_search", query=5), "invalid_tool_input"),
        (call("web_search", query="q" * 2000), "query_too_long"),
        (call("web_fetch", url="https://made.up/?secret"), "url_not_in_prior_context"),
    ],
)
def test_a_call_that_cannot_be_run_says_why(stack: Stack, made: dict[str, Any], error: str) -> None:
    body = asked({"tool_calls": [made]}, {"text": "So be it."}, max_tokens=5000)
    # The script must not name the page.
    body["messages"][0]["content"] = body["messages"][0]["content"].replace("made.up", "made\\u002eup")
    message = post(stack, body, stream=True)
    assert message["content"][1]["content"]["error_code"] == error
    assert told(stack, 1)[-1]["content"] == f"Error: {error}"
    assert message["content"][-1]["text"] == "So be it."
    assert stack.records()[-1]["tools"] == [f"{'search' if made['name'] == 'web_search' else 'fetch'} {error}"]


def test_a_page_that_the_user_named_may_be_fetched(stack: Stack, service: Web) -> None:
    page = f"{service.url}/page"
    rounds = {"tool_calls": [call("web_fetch", url=page)]}, {"text": "It rains."}
    message = post(stack, asked(*rounds, words=f"Read {page} please."), stream=False)
    assert message["content"][1]["content"]["type"] == "web_fetch_result"


def test_a_part_of_a_named_url_may_not_be_fetched(stack: Stack, service: Web) -> None:
    service.answers["/pa"] = service.answers["/page"]
    rounds = {"tool_calls": [call("web_fetch", url=f"{service.url}/pa")]}, {"text": "So be it."}
    body = asked(*rounds, words=f"Read {service.url}/page please.")
    body["messages"][0]["content"] = body["messages"][0]["content"].replace('/pa"', '/\\u0070a"')
    message = post(stack, body, stream=False)
    assert message["content"][1]["content"]["error_code"] == "url_not_in_prior_context"
    assert "/pa" not in service.asked


@pytest.mark.parametrize("attack", ["chunks of one byte", "interim answers"])
def test_a_hostile_page_is_an_error_of_the_tool(stack: Stack, attack: str) -> None:
    with writing(*ENDLESS[attack]) as (origin, _):
        rounds = {"tool_calls": [call("web_fetch", url=f"{origin}/")]}, {"text": "So be it."}
        message = post(stack, asked(*rounds, words=f"Read {origin}/ please."), stream=True)
    assert message["content"][1]["content"]["error_code"] == "url_not_accessible"
    assert message["content"][-1]["text"] == "So be it."


def test_a_service_that_fails_is_an_error_of_the_tool(stack: Stack, service: Web) -> None:
    service.answers["/search"] = (500, "text/plain", b"")
    rounds = {"tool_calls": [call("web_search", query="a")]}, {"text": "I could not search."}
    for stream in (False, True):
        message = post(stack, asked(*rounds), stream=stream)
        assert message["content"][1]["content"]["error_code"] == "unavailable"
        assert message["content"][-1]["text"] == "I could not search."


def test_another_worker_answers_a_round_that_fails_unseen(service: Web) -> None:
    rounds = {"text": "Look.", "tool_calls": [call("web_search", query="a")]}, {"text": "It rains."}
    for fault in ("status:500", "eof@headers"):
        with Stack(({}, {}), tools(service)) as stack:
            stack.sim.fault(fault, count=1, skip=1, path="/v1/chat/completions")
            message = post(stack, asked(*rounds), stream=True)
            assert [block.get("text") for block in message["content"]][0::3] == ["Look.", "It rains."]
            assert stack.records()[-1]["outcome"] == "ok"


@pytest.mark.parametrize("fault", ["reset@3", "eof@3"])
def test_a_round_that_breaks_off_is_never_a_success(service: Web, fault: str) -> None:
    rounds = {"text": "Look.", "tool_calls": [call("web_search", query="a")]}, {"text": "It rains all day long here."}
    with Stack(config={**tools(service), "retry": {"attempts": 1}}) as stack:
        stack.sim.fault(fault, count=1, skip=1, path="/v1/chat/completions")
        message = post(stack, asked(*rounds), stream=True)
        assert message["error"]["type"] == "api_error"
        assert message["stop_reason"] is None
        assert stack.records()[-1]["outcome"] == "failed"


def test_a_fallback_does_not_begin_anew_what_was_seen(service: Web) -> None:
    """A streaming client has the first round already; one that waits for the whole gets another model's reply."""
    with fleet({**tools(service), "retry": {"attempts": 1}}, flaky={"fallback": ["m"]}) as stack:
        rounds = {"text": "Look.", "tool_calls": [call("web_search", query="a")]}, {"text": "It rains."}
        for stream in (True, False):
            stack.sims[1].fault("status:500", count=1, skip=1, path="/v1/chat/completions")
            message = post(stack, asked(*rounds, model="flaky"), stream=stream)
            assert ("error" in message) == stream
            assert stack.records()[-1]["outcome"] == ("failed" if stream else "ok")
            assert [block.get("text") for block in message["content"]].count("Look.") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_late_round_moves_whatever_was_asked_before(service: Web, stream: bool) -> None:
    search = [{"tool_calls": [call("web_search", query=query)]} for query in "abc"]
    late = {"deadlines": {"first_token_s": 0.3, "unstreamed_s": 0.3}}
    with Stack(({}, {}), {**tools(service), "models": {"m": late}}) as stack:
        body = asked(*search, {"text": "It rains.", "fault": "stall:0.8@before"})
        assert post(stack, body, stream=stream)["content"][-1]["text"] == "It rains."
        assert (stack.record()["attempts"], stack.record()["moved"]) == (5, ["late"])


@pytest.mark.parametrize("first", [{}, {"text": "Look."}])
def test_a_late_round_stays_where_no_fallback_may_answer(service: Web, first: dict[str, Any]) -> None:
    rounds = {**first, "tool_calls": [call("web_search", query="a")]}, {"text": "It rains."}
    late = {"fallback": ["m"], "deadlines": {"first_token_s": 0.1}}
    with fleet(tools(service), late=late) as stack:
        stack.sims[1].fault("stall:0.4@before", count=1, skip=1, path="/v1/chat/completions")
        message = post(stack, asked(*rounds, model="late"), stream=True)
        assert message["content"][-1]["text"] == "It rains."
        assert (stack.record()["outcome"], stack.record()["attempts"], stack.record()["moved"]) == ("ok", 2, [])


def test_a_client_that_leaves_ends_the_search(service: Web) -> None:
    service.held.clear()
    with Stack(config={**tools(service), "relay": {"keepalive_s": 0.1}}) as stack:
        body = asked({"tool_calls": [call("web_search", query="a")]}, {"text": "never"}, stream=True)
        with httpx.stream("POST", stack.url + "/v1/messages", json=body) as reply:
            lines = iter(reply.iter_lines())
            # Keep-alives go out while the search runs, behind the call that the client has seen begin.
            assert next(line for line in lines if "server_tool_use" in line)
            assert next(line for line in lines if line == "event: ping")
        deadline = time.monotonic() + 10
        while not stack.records() and time.monotonic() < deadline:
            time.sleep(0.05)
        record = stack.records()[-1]
        assert (record["outcome"], record["attempts"], record["usage"]["source"]) == ("cancelled", 1, "engine")


LATE, HALTING = {"fault": "stall:0.4@headers"}, {"fault": "stall:0.4@3"}
"""Of a round whose first token comes behind keep-alives, and of one that has some in its middle."""


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("late", [(LATE, {}), ({}, LATE), ({}, HALTING), (LATE, HALTING)])
def test_a_keep_alive_takes_no_part_of_a_stream(
    service: Web, late: tuple[dict[str, Any], dict[str, Any]], held: bool
) -> None:
    """held: a guard sees the reply as a whole, so that the client has nothing but keep-alives until its end."""
    rounds = (
        {"text": "Look.", "tool_calls": [call("web_search", query="a")], **late[0]},
        {"text": "It rains all day long.", **late[1]},
    )
    with guard() as seeing:
        config: dict[str, Any] = {**tools(service), "relay": {"keepalive_s": 0.1}}
        config |= {"guards": {"g": {"url": seeing.url, "before": False, "after": "whole"}}} if held else {}
        with Stack(config=config) as stack:
            message, response = post(stack, asked(*rounds), stream=True), respond(stack, asked(*rounds))
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["text", "server_tool_use", "web_search_tool_result", "text"]
    assert [block.get("text") for block in message["content"]][0::3] == ["Look.", "It rains all day long."]
    assert message["stop_reason"] == "end_turn"
    assert [item["type"] for item in response["output"]] == ["message", "web_search_call", "message"]
    said = [item["content"][0]["text"] for item in response["output"][0::2]]
    assert said == ["Look.", "It rains all day long."]


@pytest.mark.parametrize("keepalive_s", [0, 0.1])
def test_what_a_slow_guard_allows_between_rounds_is_sent(service: Web, keepalive_s: float) -> None:
    """Its answer about the text comes when the worker's stream is over, and the client has nothing of the reply."""
    said = "Let me look at what the papers say."
    rounds = {"text": said, "tool_calls": [call("web_search", query="a")]}, {"text": "It rains."}

    def decide(question: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.25)
        return ALLOW

    with guard() as seeing:
        seeing.decide = decide
        windows = {"after": "windows", "window_chars": 20, "overlap_chars": 0}
        config = {
            "guards": {"g": {"url": seeing.url, "before": False, **windows}},
            "relay": {"keepalive_s": keepalive_s},
        }
        with Stack(config={**tools(service), **config}) as stack:
            message, response = post(stack, asked(*rounds), stream=True), respond(stack, asked(*rounds))
    assert [block.get("text") for block in message["content"]][0::3] == [said, "It rains."]
    assert [item["type"] for item in response["output"]] == ["message", "web_search_call", "message"]


def test_a_deadline_holds_for_all_rounds(service: Web) -> None:
    service.held.clear()
    with Stack(config={**tools(service), "deadlines": {"total_s": 0.5}}) as stack:
        message = post(stack, asked({"tool_calls": [call("web_search", query="a")]}, {"text": "never"}), stream=True)
        assert message["error"]["type"] == "timeout_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_round_with_a_longer_prompt_may_take_longer(service: Web, stream: bool) -> None:
    service.answers["/page"] = (200, "text/plain", b"word " * 4000)
    deadlines = {"first_byte_s": 0.2, "first_byte_per_1000_s": 1}
    page = f"{service.url}/page"
    rounds = {"tool_calls": [call("web_fetch", url=page)]}, {"text": "It is so.", "fault": "stall:1@before"}
    with Stack(config={**tools(service), "deadlines": deadlines}) as stack:
        message = post(stack, asked(*rounds, words=f"See {page} please."), stream=stream)
        assert message["content"][-1]["text"] == "It is so."


SEARCHING, ANSWERING = {"tool_calls": [call("web_search", query="a")]}, {"text": "word " * 60}


def first_round(stack: Stack) -> dict[str, Any]:
    """The usage of a request that failed in its second round before a worker produced anything."""
    stack.sim.fault("status:500", count=1, skip=1, path="/v1/chat/completions")
    httpx.post(stack.url + "/v1/messages", json=asked(SEARCHING, ANSWERING), timeout=30)
    usage = stack.record()["usage"]
    assert usage["source"] == "engine"
    assert usage["output"] > 0
    return dict(usage)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("end", "fault"), [("left", "stall:9@20"), ("left", "stall:9@before"), ("late", "stall:9@20"), ("died", "reset@20")]
)
def test_a_round_that_does_not_end_is_charged_as_a_request(service: Web, stream: bool, end: str, fault: str) -> None:
    config = {**tools(service), "retry": {"attempts": 1}, "breaker": {"failures": 100}}
    if end == "late":
        config["deadlines"] = {"total_s": 1.5}
    with Stack(config=config) as stack:
        first = first_round(stack)
        body = asked(SEARCHING, {**ANSWERING, "fault": fault}, stream=stream)
        if end == "left":
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(stack.url + "/v1/messages", json=body, timeout=1.5)
        else:
            httpx.post(stack.url + "/v1/messages", json=body, timeout=30)
        record = stack.record()
    usage, produced = record["usage"], record["usage"]["output"] - first["output"]
    assert (record["outcome"], record["attempts"]) == ("cancelled" if end == "left" else "failed", 2)
    if end == "died" and not stream:
        assert (usage["source"], produced) == ("engine", 0)
        assert usage["input"] < 1.5 * first["input"]
        return
    assert usage["source"] == "estimated"
    assert usage["input"] >= 2 * first["input"], "the second prompt begins with the first one"
    if stream:
        assert produced == (0 if "before" in fault else 20)
    else:
        assert produced == 200 - first["output"], "what a worker can have produced until then is more"


@pytest.mark.parametrize("without", [1, 2])
def test_a_round_without_a_report_is_estimated(stack: Stack, without: int) -> None:
    first = first_round(stack)
    rounds = [{**one, "fault": "no-usage" * (number == without)} for number, one in ((1, SEARCHING), (2, ANSWERING))]
    post(stack, asked(*rounds), stream=True)
    usage = stack.record()["usage"]
    assert usage["source"] == "estimated"
    assert usage["output"] >= 60 + first["output"] * (without == 2)
    assert usage["input"] >= 2 * first["input"], "the second prompt begins with the first one"


def test_tokens_of_all_rounds_count_on_the_clients_bound(stack: Stack) -> None:
    rounds = {"text": "a b c d e f g h", "tool_calls": [call("web_search", query="a")]}, {"text": "word " * 100}
    message = post(stack, asked(*rounds, max_tokens=40), stream=True)
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["output_tokens"] <= 40


@pytest.mark.parametrize("backend", ["openai", "vllm"])
@pytest.mark.parametrize("most", [300, 100_000])
@pytest.mark.parametrize("stream", [False, True])
def test_results_and_answer_share_what_the_context_leaves(service: Web, backend: str, most: int, stream: bool) -> None:
    """Also of a worker that cannot count tokens and refuses what does not fit: the client's prompt did."""
    service.answers["/page"] = (200, "text/plain", b"word " * 8000)
    worker = {"max_model_len": 4000, "strict_context": True}
    model = {"m": {"backend": backend, "max_context": 4000}}
    body = asked({"tool_calls": [call("web_fetch", url=f"{service.url}/page")]}, {"text": "It is so."})
    body["messages"][0]["content"] = f"See {service.url}/page {body['messages'][0]['content']}"
    with Stack((worker,), {**tools(service), "models": model}) as stack:
        if backend == "vllm":
            stack.sim.fault("status:404", path="/tokenize")
        message = post(stack, {**body, "max_tokens": most}, stream=stream)
        bodies = [json.loads(entry.body) for entry in stack.sim.entries]
        records = stack.records()
    assert message["content"][-1]["text"] == "It is so."
    assert message["stop_reason"] == "end_turn"
    result = bodies[1]["messages"][-1]["content"]
    assert 2000 < len(result) < 16_000, "shortened, but not to nothing"
    assert "Name the URL" in result
    assert bodies[1]["max_tokens"] >= min(most - 100, 1000)
    assert [record["outcome"] for record in records] == ["ok"]


def test_a_forced_choice_holds_for_the_first_round(stack: Stack) -> None:
    body = asked(
        {"tool_calls": [call("web_search", query="a")]},
        {"text": "Done."},
        tool_choice={"type": "tool", "name": "web_search"},
    )
    assert post(stack, body, stream=True)["content"][-1]["text"] == "Done."
    choices = [json.loads(entry.body)["tool_choice"] for entry in stack.sim.entries]
    assert [choice if isinstance(choice, str) else choice["type"] for choice in choices] == ["function", "auto"]


def test_what_a_policy_sends_to_workers_goes_with_every_round(service: Web) -> None:
    policy = {"rename": {"top_k": "best_k"}, "headers": {"x-lane": "slow"}}
    with Stack(config={**tools(service), "request_policies": {"p": policy}}) as stack:
        search = {"tool_calls": [call("web_search", query="weather")]}
        post(stack, asked(search, {"text": "Rain."}, top_k=3), stream=False)
        rounds = stack.sim.entries
        assert len(rounds) == 2
        for one in rounds:
            assert json.loads(one.body)["best_k"] == 3
            assert dict(one.headers)[b"x-lane"] == b"slow"


def test_a_history_with_results_reaches_the_model(stack: Stack, service: Web) -> None:
    page = f"{service.url}/page"
    rounds = {"tool_calls": [call("web_search", query="a"), call("web_fetch", url=page)]}, {"text": "It rains."}
    first = post(stack, asked(*rounds, words=f"{page}."), stream=False)
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": first["content"]}]
    post(stack, {**asked(tools=[SEARCH]), "messages": [*turns, {"role": "user", "content": "And now?"}]}, stream=False)
    history = json.dumps(told(stack, 2)[1])
    assert "Weather in Oslo" in history
    assert "It rains today." in history
    assert "dgp1." not in history


STORING = {"store": {"where": "memory"}}
STORED_ROUNDS = {"text": "Look.", "tool_calls": [call("web_search", query="a")]}, {"text": "It rains."}


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_of_several_rounds_is_stored_whole(service: Web, stream: bool) -> None:
    body = {"model": "m", "input": asked(*STORED_ROUNDS)["messages"], "tools": [{"type": "web_search"}]}
    with Stack(config={**tools(service), **STORING}) as stack:
        url = stack.url + "/v1/responses"
        first = respond(stack, asked(*STORED_ROUNDS)) if stream else httpx.post(url, json=body).json()
        assert httpx.get(f"{url}/{first['id']}").json()["output"] == first["output"]
        second = {"model": "m", "input": "And now?", "previous_response_id": first["id"]}
        assert httpx.post(url, json=second).status_code == 200
        assert [part["role"] for part in told(stack, -1)] == ["user", "assistant", "user"]
        assert told(stack, -1)[1]["content"] == [{"type": "text", "text": said} for said in ("Look.", "It rains.")]


def test_a_response_of_several_rounds_goes_on_by_web_socket(service: Web) -> None:
    prompt = {"input": asked(*STORED_ROUNDS)["messages"], "tools": [{"type": "web_search"}]}
    with Stack(config={**tools(service), **STORING}) as stack:
        for store in (True, False):
            with Talk(stack) as talk:
                first = talk.turn(**prompt, store=store)
                goes_on = {"input": "And now?", "previous_response_id": first["id"]}
                assert talk.turn(**goes_on)["status"] == "completed"
                assert [part["role"] for part in told(stack, -1)] == ["user", "assistant", "user"]
            found = httpx.post(stack.url + "/v1/responses", json={"model": "m", **goes_on})
            assert found.status_code == (200 if store else 400)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", ["whole", "windows"])
def test_a_response_that_a_guard_refuses_is_not_stored(service: Web, after: str, stream: bool) -> None:
    prompt = {"input": asked(*STORED_ROUNDS)["messages"], "tools": [{"type": "web_search"}]}

    def decide(question: dict[str, Any]) -> dict[str, Any]:
        rains = any("rains" in shown["text"] for shown in question["texts"])
        return {"action": "refuse"} if rains else ALLOW

    with guard() as seeing:
        seeing.decide = decide
        guards = {"g": {"url": seeing.url, "before": False, "after": after}}
        with Stack(config={**tools(service), **STORING, "guards": guards}) as stack:
            httpx.post(stack.url + "/v1/responses", json={"model": "m", **prompt, "stream": stream})
            with Talk(stack) as talk:
                assert talk.turn(**prompt)["error"]["code"] == "content_filter"
            assert [record["outcome"] for record in stack.records()] == ["refused"] * 2
            assert stack.service("stored").bytes == 0


def escaped(body: dict[str, Any], url: str) -> dict[str, Any]:
    """`body`, whose script does not name `url` as it is."""
    text = body["messages"][0]["content"]
    return {**body, "messages": [{"role": "user", "content": text.replace(url, url.replace("://", ":\\u002f/"))}]}


def test_what_an_earlier_turn_found_may_be_fetched(stack: Stack, service: Web) -> None:
    """Nothing that the model alone has named may, not even by a call that failed."""
    page, linked, made_up = f"{service.url}/page", f"{service.url}/linked", f"{service.url}/?secret"
    service.answers |= {
        "/page": (200, "text/plain", f"See {linked}.".encode()),
        "/linked": (200, "text/plain", b"Sun."),
    }
    rounds = (
        {"tool_calls": [call("web_search", query="a")]},
        {"tool_calls": [call("web_fetch", url=page), call("web_fetch", url=made_up)]},
        {"text": f"See {page} and {made_up}."},
    )
    first = post(stack, escaped(asked(*rounds), service.url), stream=False)
    past = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": first["content"]}]
    for url, found in ((page, True), (linked, True), (made_up, False)):
        again = escaped(asked({"tool_calls": [call("web_fetch", url=url)]}, {"text": "So be it."}), service.url)
        message = post(stack, {**again, "messages": [*past, *again["messages"]]}, stream=False)
        result = message["content"][1]["content"]
        assert (result["type"], result.get("error_code")) == (
            ("web_fetch_result", None) if found else ("web_fetch_tool_result_error", "url_not_in_prior_context")
        )


def searched(status: str, **action: Any) -> dict[str, Any]:
    return {"type": "web_search_call", "id": "ws_1", "status": status, "action": action}


def said(url: str, *annotations: dict[str, Any]) -> dict[str, Any]:
    part = {"type": "output_text", "text": f"See {url}.", "annotations": list(annotations)}
    return {"type": "message", "role": "assistant", "content": [part]}


CITATION = {"type": "url_citation", "start_index": 4, "end_index": 9, "title": ""}


@pytest.mark.parametrize(
    ("item", "status"),
    [
        (
            lambda url: searched("completed", type="search", query="a", sources=[{"type": "url", "url": url}]),
            "completed",
        ),
        (lambda url: searched("completed", type="open_page", url=url), "completed"),
        (lambda url: searched("failed", type="open_page", url=url), "failed"),
        (lambda url: searched("completed", type="search", query=f"See {url}."), "failed"),
        (lambda url: {"type": "web_search_call", "action": url}, "failed"),
        (lambda url: said(url, {"type": "file_citation", "file_id": "f"}, {**CITATION, "url": url}), "completed"),
        (lambda url: said(url), "failed"),
    ],
)
def test_what_a_response_found_may_be_fetched(
    stack: Stack, service: Web, item: Callable[[str], dict[str, Any]], status: str
) -> None:
    page = f"{service.url}/page"
    body = escaped(asked({"tool_calls": [call("web_fetch", url=page)]}, {"text": "So be it."}), page)
    past = [{"role": "user", "content": "Hi."}, item(page)]
    response = respond(stack, body, input=[*past, *body["messages"]])
    assert (response["output"][0]["type"], response["output"][0]["status"]) == ("web_search_call", status)


def test_what_a_stored_response_found_may_be_fetched(service: Web) -> None:
    page = f"{service.url}/page"
    with Stack(config={**tools(service), **STORING}) as stack:
        first = respond(stack, asked(*STORED_ROUNDS))
        body = escaped(asked({"tool_calls": [call("web_fetch", url=page)]}, {"text": "So be it."}), page)
        again = respond(stack, body, previous_response_id=first["id"])
    assert again["output"][0]["status"] == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_many_at_once_do_not_mix(stack: Stack, stream: bool) -> None:
    found: dict[int, dict[str, Any]] = {}

    def one(number: int) -> None:
        rounds = {"tool_calls": [call("web_search", query=f"q{number}")]}, {"text": f"Answer {number}."}
        found[number] = post(stack, asked(*rounds), stream=stream)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, message in found.items():
        assert message["content"][0]["input"] == {"query": f"q{number}"}
        assert message["content"][-1]["text"] == f"Answer {number}."
    assert len(found) == 8


def test_a_server_of_another_make_sees_the_same(service: Web) -> None:
    """By plain ASGI: what is said between rounds is carried, too."""

    def plain(app: Any) -> Any:
        async def served(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "extensions": {}}, receive, send)

        return served

    rounds = {"text": "Look.", "tool_calls": [call("web_search", query="a")]}, {"text": "It rains."}
    with Stack(config=tools(service), wrap=plain) as stack:
        message = post(stack, asked(*rounds), stream=True)
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["text", "server_tool_use", "web_search_tool_result", "text"]
    assert message["stop_reason"] == "end_turn"


def test_a_reload_keeps_the_tools_or_takes_new_ones(stack: Stack, service: Web) -> None:
    before = stack.service("web_tools")
    assert before is not None
    stack.run(stack.gateway.reload(stack.config({"relay": {"keepalive_s": 9}})))
    assert stack.service("web_tools") is before
    stack.run(stack.gateway.reload(stack.config({"tools": {"web_search": {"url": service.url, "max_uses": 1}}})))
    assert stack.service("web_tools") is not before
    stack.run(stack.gateway.reload(stack.config({"tools": None})))
    assert stack.service("web_tools") is None
    reply = httpx.post(stack.url + "/v1/messages", json=asked({"text": "No."}, tools=[SEARCH, OWN]))
    assert "tools.web_search" in reply.headers["x-dragoman-dropped"]


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"url": "ftp://x"}, "tools.web_search.url"),
        ({"url": "http://x", "path": "/search"}, "tools.web_search.path"),
        ({"url": "http://x", "headers": {"host": "y"}}, "tools.web_search.headers.host"),
        ({"url": "http://x", "results": "a b"}, "tools.web_search.results"),
        ({}, "tools.web_search.url"),
    ],
)
def test_wrong_options_are_faults(wrong: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load_text(yaml.safe_dump({"tools": {"web_search": wrong}}))


def test_the_services_key_is_a_secret() -> None:
    search = {"url": "http://x", "headers": {"X-Subscription-Token": "canary-key"}}
    models = {"m": {"backend": "vllm", "workers": ["http://w"]}}
    config = load_text(yaml.safe_dump({"models": models, "tools": {"web_search": search}}))
    assert "canary-key" in plain_secrets(config)
    assert "canary-key" not in repr(config)


@pytest.mark.parametrize("member", ["allowed_domains", "blocked_domains"])
def test_a_domain_of_a_bound_is_not_longer_than_a_host_needs(stack: Stack, member: str) -> None:
    """Each result of each search is compared with each of them."""

    def send(domain: str) -> Iterator[httpx.Response]:
        body = asked({"text": "No."}, tools=[{**SEARCH, member: ["a.example", domain]}, OWN])
        yield httpx.post(stack.url + "/v1/messages", json=body, timeout=30)
        if member == "allowed_domains":
            tool = {"type": "web_search", "filters": {member: ["a.example", domain]}}
            body = {"model": "m", "input": "Go.", "tools": [tool]}
            yield httpx.post(stack.url + "/v1/responses", json=body, timeout=30)

    longest = "x" * 1024
    assert {reply.status_code for reply in send(longest)} == {200}
    for reply in send(longest + "x"):
        assert reply.status_code == 400
        message = reply.json()["error"]["message"]
        assert all(word in message for word in ("tools", member, "1024")), message


def test_a_round_of_which_workers_die_is_stopped(service: Web) -> None:
    """Whatever the client has seen of the rounds before."""
    config = {"models": {"m": {"policy": "round_robin"}}, "retry": {"min_per_second": 100, "attempts": 5}}
    with Stack(({},) * 4, {**tools(service), **config}) as stack:
        for sim in stack.sims[1:]:
            sim.fault("die@before", path="/v1/chat/completions")
        searching = {"text": "Let me look.", "tool_calls": [call("web_search", query="weather")]}
        message = post(stack, asked(searching, {"text": "It rains."}), stream=True)
        assert "two workers died" in message["error"]["message"]
        assert (stack.record()["attempts"], stack.record()["code"]) == (3, "request_quarantined")
