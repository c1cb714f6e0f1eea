"""The web sockets of the Responses API: the laws of Open Responses and of OpenAI's guide "WebSocket mode"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.support.harness import Stack, until
from tests.unit.dialects.responses.asking import body, frames, kinds, message, output, scripted
from tests.unit.dialects.responses.talking import Talk, code_of
from tests.unit.ratelimit.asking import made

GUARDED = {"auth": "open", "store": {"where": "memory"}}
PATHS = ("/v1/responses", "/openai/v1/responses", "/openai/responses")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as found:
        yield found


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack) as found:
        yield found


def said(text: str, **more: Any) -> dict[str, Any]:
    """The members of a request to which the worker replies with `text`."""
    return {"input": "sim:" + json.dumps({"text": text, **more})}


def prompts(stack: Stack) -> list[Any]:
    return [json.loads(entry.body)["messages"] for entry in stack.sim.entries]


# -- Open Responses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_message_is_answered_by_the_events_of_a_stream(stack: Stack, path: str) -> None:
    script = {"text": "a b c", "tool_calls": [{"name": "f", "arguments": {}}]}
    tools = {"tools": [{"type": "function", "name": "f"}]}
    streamed = httpx.post(stack.url + "/v1/responses", json=scripted(stream=True, also=tools, **script))
    with Talk(stack, path) as talk:
        talk.create(input="sim:" + json.dumps(script), **tools)
        events = talk.heard()
    assert kinds(events) == kinds(frames(streamed.text))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["status"] == "completed"


def test_one_connection_has_several_responses_one_after_the_other(talk: Talk) -> None:
    first, second = (talk.turn(store=False, **said(text)) for text in ("first", "second"))
    assert [one["output"][0]["content"][0]["text"] for one in (first, second)] == ["first", "second"]
    assert first["id"] != second["id"]


def test_a_response_that_is_not_stored_can_be_continued(stack: Stack, talk: Talk) -> None:
    first = talk.turn(store=False, **said("cobalt"))
    assert first["store"] is False
    second = talk.turn(store=False, previous_response_id=first["id"], input="And?")
    third = talk.turn(store=False, previous_response_id=second["id"], input="Then?")
    assert (second["status"], third["previous_response_id"]) == ("completed", second["id"])
    told = prompts(stack)[-1]
    assert [one["role"] for one in told] == ["user", "assistant", "user", "assistant", "user"]
    assert (told[1]["content"], told[4]["content"]) == ("cobalt", "Then?")


def test_only_the_last_response_is_kept(talk: Talk) -> None:
    first = talk.turn(store=False, **said("a"))
    talk.turn(store=False, **said("b"))
    assert code_of(talk.turn(store=False, previous_response_id=first["id"], input="c")) == "previous_response_not_found"


def test_another_connection_knows_nothing_of_it(stack: Stack, talk: Talk) -> None:
    """The error ends nothing: the client begins anew on the same connection."""
    first = talk.turn(store=False, **said("a"))
    with Talk(stack) as again:
        refused = again.turn(store=False, previous_response_id=first["id"], input="b")
        assert code_of(refused) == "previous_response_not_found"
        assert again.turn(store=False, input="b")["status"] == "completed"


def test_an_error_has_the_form_of_the_api(talk: Talk) -> None:
    refused = talk.turn(previous_response_id="resp_missing", input="a")
    assert (refused["type"], refused["status"]) == ("error", 400)
    assert refused["error"]["type"] == "invalid_request_error"
    assert (refused["error"]["code"], refused["error"]["param"]) == (
        "previous_response_not_found",
        "previous_response_id",
    )
    assert "resp_missing" in refused["error"]["message"]
    assert refused["headers"]["x-request-id"]


def test_a_failed_continuation_takes_its_response_out_of_memory(talk: Talk) -> None:
    first = talk.turn(store=False, **said("a"))
    go_on = {"store": False, "previous_response_id": first["id"]}
    wrong = talk.turn(**go_on, input=[output(1, "of a call that nobody made")])
    assert (wrong["status"], wrong["error"]["param"]) == (400, "input.2.call_id")
    assert code_of(talk.turn(**go_on, input="b")) == "previous_response_not_found"


def test_an_output_of_a_call_continues_the_response_that_made_it(stack: Stack, talk: Talk) -> None:
    tools = [{"type": "function", "name": "f"}]
    calls = talk.turn(store=False, tools=tools, **said("", tool_calls=[{"name": "f", "arguments": {}}]))
    made = next(item for item in calls["output"] if item["type"] == "function_call")
    answer = {**output(1, "42"), "call_id": made["call_id"]}
    assert talk.turn(tools=tools, previous_response_id=calls["id"], input=[answer])["status"] == "completed"
    assert prompts(stack)[-1][-1]["content"] == "42"


def test_a_whole_conversation_may_leave_out_a_call(talk: Talk) -> None:
    """Without a previous response the history is the client's own."""
    assert talk.turn(input=[message("user", "a"), output(1, "x")])["status"] == "completed"


def test_a_compacted_conversation_begins_a_new_chain(stack: Stack, talk: Talk) -> None:
    talked = [message("user", "slate"), message("assistant", "OK.")]
    compacted = httpx.post(stack.url + "/v1/responses/compact", json=body(input=talked)).json()
    new = talk.turn(store=False, tools=[], input=[*compacted["output"], message("user", "Go on.")])
    assert new["status"] == "completed"
    assert talk.turn(store=False, previous_response_id=new["id"], input="And?")["status"] == "completed"
    assert "slate" in prompts(stack)[-1][0]["content"]


# -- OpenAI's guide ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [message("user", "Read this."), message("developer", "Be brief.")])
def test_a_warm_up_reads_the_prompt_and_makes_no_output(stack: Stack, talk: Talk, given: dict[str, Any]) -> None:
    tools = [{"type": "function", "name": "f"}]
    more = {"tool_choice": "required", "text": {"format": {"type": "json_object"}}, "top_logprobs": 2}
    talk.create(generate=False, store=False, input=[given], tools=tools, **more)
    warm = talk.heard()
    assert kinds(warm) == ["created", "in_progress", "completed"]
    response = warm[-1]["response"]
    assert (response["output"], response["usage"]["input_tokens"] > 0) == ([], True)
    asked = json.loads(stack.sim.entries[-1].body)
    assert (asked["max_tokens"], len(asked["tools"])) == (1, 1)
    assert {"tool_choice", "response_format", "logprobs"} & asked.keys() <= {"tool_choice"}
    assert asked["messages"][-1]["role"] == "user", "some templates refuse a chat without"
    assert talk.turn(previous_response_id=response["id"], input="Go.")["status"] == "completed"
    assert given["content"][0]["text"] in prompts(stack)[-1][0]["content"]
    assert all(one["content"] != "-" for one in prompts(stack)[-1])


def test_lanes_run_at_once_and_their_events_have_their_names(stack: Stack, talk: Talk) -> None:
    """A lane may go on from a response of another one."""
    first = talk.turn(store=False, stream_id="main", **said("a"))
    talk.create(stream_id="slow", **said("b", fault="stall@before"))
    talk.create(stream_id="fork", store=False, previous_response_id=first["id"], input="c")
    ends = talk.heard()
    assert {event["stream_id"] for event in ends if event["stream_id"] != "slow"} == {"fork"}
    assert ends[-1]["response"]["previous_response_id"] == first["id"]


def test_a_lane_answers_in_order(talk: Talk) -> None:
    for text in ("one", "two", "three"):
        talk.create(stream_id="x", **said(text))
    texts = [talk.heard()[-1]["response"]["output"][0]["content"][0]["text"] for _ in range(3)]
    assert texts == ["one", "two", "three"]


def test_lanes_and_messages_that_wait_are_bounded(stack: Stack) -> None:
    stalled = said("a", fault="stall@before")
    with Talk(stack) as talk:
        for number in range(9):
            talk.create(stream_id=f"lane-{number}", **stalled)
        refused = talk.next()
        assert (code_of(refused), refused["stream_id"]) == ("websocket_stream_limit_reached", "lane-8")
        assert refused["error"]["param"] == "stream_id"
        for _ in range(33):
            talk.create(stream_id="lane-0", **stalled)
        refused = talk.next()
        assert (code_of(refused), refused["status"], refused["headers"]["retry-after"]) == (
            "too_many_messages",
            429,
            "1",
        )
    until(lambda: not stack.gateway.deployment.runtime.active.requests)
    assert {record["outcome"] for record in stack.records()[-8:]} == {"cancelled"}


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"type": "response.cancel"}, "type"),
        ({"type": None}, "type"),
        ({"stream_id": "a b"}, "stream_id"),
        ({"stream_id": 1}, "stream_id"),
        ({"stream_id": "x" * 257}, "stream_id"),
        ({"generate": "no"}, "generate"),
        ({"background": True}, "background"),
        ({"model": "unknown"}, "model"),
    ],
    ids=str,
)
def test_a_wrong_message_gets_an_error_and_the_next_one_an_answer(talk: Talk, sent: dict[str, Any], param: str) -> None:
    refused = talk.turn(input="a", **sent)
    assert refused["error"]["param"] in (param, None)
    assert param in refused["error"]["message"]
    assert talk.turn(input="a", stream=False)["status"] == "completed"


@pytest.mark.parametrize("sent", ["", "x", "[]", "{}", "null", b"\xff", '{"type":', "[" * 5000])
def test_what_is_no_request_gets_an_error(talk: Talk, sent: str | bytes) -> None:
    talk.socket.send(sent)
    refused = talk.next()
    assert (refused["type"], refused["status"]) == ("error", 400)
    talk.socket.send(json.dumps({"type": "response.create", **body()}).encode())
    assert talk.heard()[-1]["response"]["status"] == "completed", "also in a binary message"


def test_a_worker_that_dies_ends_one_response_once(stack: Stack, talk: Talk) -> None:
    first = talk.turn(store=False, **said("a"))
    talk.create(**said("one two three", tool_calls=[], fault="reset@2"), previous_response_id=first["id"])
    events = talk.heard()
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"]
    assert code_of(talk.turn(previous_response_id=first["id"], input="b")) == "previous_response_not_found"
    assert talk.turn(input="b")["status"] == "completed"


def test_a_client_that_closes_cancels_what_is_under_way() -> None:
    """Its place is free at once, and what waited behind it reaches no worker."""
    limits = [{"name": "one", "kind": "concurrency", "limit": 1, "scope": ["model"]}]
    with Stack(config={"limits": limits}) as stack:
        with Talk(stack) as talk:
            talk.create(**said("one two three four", fault="stall@2"))
            talk.create(**said("never"))
            while talk.next()["type"] != "response.output_text.delta":
                pass
            with Talk(stack) as other:
                assert code_of(other.turn(**said("a"))) == "rate_limit_exceeded"
        stack.run(stack.sim.ledger.wait(aborted=1))
        cancelled = stack.record()
        assert (cancelled["outcome"], cancelled["phase"]) == ("cancelled", "streaming")
        assert cancelled["usage"]["output"] >= 1
        with Talk(stack) as talk:
            assert talk.turn(**said("b"))["status"] == "completed"
        assert len(prompts(stack)) == 2


# -- with a store -----------------------------------------------------------------------------------------------------


def test_what_is_stored_outlasts_the_connection() -> None:
    with Stack(config=GUARDED) as stack:
        with Talk(stack) as talk:
            stored, passing = talk.turn(**said("a")), talk.turn(store=False, **said("b"))
        assert (stored["store"], passing["store"]) == (True, False)
        with Talk(stack) as talk:
            assert talk.turn(previous_response_id=stored["id"], input="c")["status"] == "completed"
            again = talk.turn(previous_response_id=passing["id"], input="c")
            assert code_of(again) == "previous_response_not_found"
        url = f"{stack.url}/v1/responses/"
        assert [httpx.get(url + one["id"]).status_code for one in (stored, passing)] == [200, 404]


# -- callers and limits -----------------------------------------------------------------------------------------------


def refusal(stack: Stack, path: str = "/v1/responses", **headers: str) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as refused:
        Talk(stack, path, **headers).__enter__()
    return refused.value


def test_limits_and_records_are_those_of_a_post() -> None:
    limits = [{"name": "two", "kind": "requests", "limit": 2, "scope": ["model"]}]
    with Stack(config={"limits": limits}) as stack:
        with Talk(stack) as talk:
            assert [talk.turn(input="a").get("status") for _ in range(2)] == ["completed"] * 2
            refused = talk.turn(input="a")
        assert (refused["status"], code_of(refused)) == (429, "rate_limit_exceeded")
        assert int(refused["headers"]["retry-after"]) > 0
        posted = httpx.post(stack.url + "/v1/responses", json=body())
        assert posted.json()["error"] == refused["error"] | {"message": posted.json()["error"]["message"]}
        by_socket, by_post = stack.records()[-2:]
        assert {name: by_socket[name] for name in ("dialect", "operation", "code", "limit", "status")} == {
            name: by_post[name] for name in ("dialect", "operation", "code", "limit", "status")
        }


def test_a_caller_is_known_at_the_handshake_and_at_each_message() -> None:
    key, keys = made("team-a")
    more, both = made("team-b", team="b")
    config = {"auth": "keys", "store": {"where": "memory"}, "keys": keys | both}
    with Stack(config=config) as stack:
        for headers in ({}, {"authorization": "Bearer no"}):
            answer = refusal(stack, **headers).response
            assert (answer.status_code, json.loads(answer.body or b"")["error"]["code"]) == (401, "invalid_api_key")
        with Talk(stack, authorization=f"Bearer {key}") as talk, Talk(stack, authorization=f"Bearer {more}") as other:
            own = talk.turn(input="a")
            assert own["status"] == "completed"
            assert code_of(other.turn(previous_response_id=own["id"], input="b")) == "previous_response_not_found"
            assert {(record["key"], record["team"]) for record in stack.records()[-2:]} == {
                ("team-a", None),
                ("team-b", "b"),
            }
            stack.run(stack.gateway.reload(stack.config({"keys": {"team-a": {"disabled": True}}})))
            refused = talk.turn(input="b")
            assert (refused["status"], refused["error"]["type"]) == (401, "authentication_error")
            assert other.turn(input="b")["status"] == "completed"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses/resp_1", "/livez", "/openai/deployments/m/responses"]
)
def test_other_paths_have_no_web_socket(stack: Stack, path: str) -> None:
    assert refusal(stack, path).response.status_code in (200, 404, 405)


def test_without_room_for_a_web_socket_clients_are_told_to_post() -> None:
    with Stack(config={"listen": {"max_sockets": 1}}) as stack:
        with Talk(stack) as talk:
            answer = refusal(stack).response
            assert (answer.status_code, json.loads(answer.body or b"")["error"]["code"]) == (
                426,
                "websocket_unsupported",
            )
            assert talk.turn(input="a")["status"] == "completed"
            assert "dragoman_sockets 1.0" in httpx.get(stack.url + "/metrics").text
        until(lambda: not stack.service("sockets"))
        assert "dragoman_sockets 0.0" in httpx.get(stack.url + "/metrics").text
        with Talk(stack) as talk:
            assert talk.turn(input="a")["status"] == "completed"


def test_a_page_of_another_origin_needs_permission() -> None:
    with Stack(config={"cors": {"origins": ["https://ours.example"]}}) as stack:
        assert refusal(stack, origin="https://theirs.example").response.status_code == 426
        with Talk(stack, origin="https://ours.example") as talk:
            assert talk.turn(input="a")["status"] == "completed"


def test_a_key_has_no_more_connections_than_it_may() -> None:
    key, keys = made("one")
    headers = {"authorization": f"Bearer {key}"}
    config = {"auth": "keys", "keys": keys, "listen": {"max_connections_per_key": 1}}
    with Stack(config=config) as stack:
        with Talk(stack, **headers) as talk:
            assert refusal(stack, **headers).response.status_code == 429
            assert talk.turn(input="a")["status"] == "completed"
            assert "dragoman_sockets 1.0" in httpx.get(stack.url + "/metrics").text
        until(lambda: not stack.service("sockets"))
        assert "dragoman_sockets 0.0" in httpx.get(stack.url + "/metrics").text
        with Talk(stack, **headers) as talk:
            assert talk.turn(input="a")["status"] == "completed"


# -- reload and drain -------------------------------------------------------------------------------------------------


def test_a_reload_holds_for_the_next_message() -> None:
    with Stack() as stack, Talk(stack) as talk:
        assert code_of(talk.turn(input="a", model="new")) == "model_not_found"
        stack.run(stack.gateway.reload(stack.config({"models": {"m": {"aliases": ["new"]}}})))
        assert talk.turn(input="a", model="new")["status"] == "completed"
        stack.run(stack.gateway.reload(stack.config({"dialects": {"responses": {"enabled": False}}})))
        talk.create(input="a")
        assert talk.closed() == 1012


def test_a_drain_closes_idle_ones_and_lets_a_response_end() -> None:
    config = {"relay": {"notice_s": 0.1, "drain_s": 20}}
    with Stack(config=config) as stack, Talk(stack) as idle, Talk(stack) as busy:
        idle.turn(input="a")
        busy.create(**said("one two three", fault="stall@1"))
        while busy.next()["type"] != "response.output_text.delta":
            pass
        draining = asyncio.run_coroutine_threadsafe(stack.gateway.drain(), stack.loop)
        assert idle.closed() == 1012
        stack.loop.call_soon_threadsafe(stack.sim.go_on)
        last = busy.heard()[-1]
        assert last["type"] == "response.completed", last["response"]["error"]
        assert busy.closed() == 1012
        draining.result(30)


def test_what_waits_when_a_drain_begins_is_answered_within_the_grace() -> None:
    config = {"relay": {"drain_s": 20}}
    with Stack(config=config) as stack, Talk(stack) as talk:
        for script in ({"fault": "stall@1"}, {}, {}):
            talk.create(**said("one two three", **script))
        while talk.next()["type"] != "response.output_text.delta":
            pass
        draining = asyncio.run_coroutine_threadsafe(stack.gateway.drain(), stack.loop)
        until(lambda: stack.gateway.draining)
        stack.loop.call_soon_threadsafe(stack.sim.go_on)
        assert [talk.heard()[-1]["type"] for _ in range(3)] == ["response.completed"] * 3
        assert talk.closed() == 1012
        draining.result(30)


def test_the_end_of_the_grace_is_told_to_what_runs_and_to_what_waits() -> None:
    config = {"relay": {"drain_s": 0.5}}
    with Stack(config=config) as stack, Talk(stack) as talk:
        talk.create(**said("one two three", fault="stall@1"))
        talk.create(**said("never"))
        while talk.next()["type"] != "response.output_text.delta":
            pass
        draining = asyncio.run_coroutine_threadsafe(stack.gateway.drain(), stack.loop)
        cut = talk.heard()[-1]
        assert (cut["type"], cut["response"]["error"]["code"]) == ("response.failed", "shutting_down")
        never = talk.next()
        assert (never["status"], code_of(never), never["headers"]["retry-after"]) == (503, "shutting_down", "1")
        assert talk.closed() == 1012
        draining.result(30)
        (record,) = stack.records()
        assert (record["outcome"], record["code"]) == ("failed", "shutting_down")


def test_an_idle_one_is_closed() -> None:
    with Stack(config={"listen": {"socket_idle_s": 0.2}}) as stack, Talk(stack) as talk:
        assert talk.closed() == 1000
