"""A long conversation is replaced by a summary, as Codex asks for it where it takes a server for OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway import backends
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartKind, PartStart, UsageReport
from gateway.core.ports import Capabilities
from gateway.core.usage import Usage
from gateway.dialects.responses.compaction import ASK
from tests.support.harness import Stack, begun_stream
from tests.unit.dialects.responses.asking import (
    TOOL,
    body,
    call,
    crossing,
    frames,
    kinds,
    message,
    output,
    read,
    sent,
    stream_of,
    waited_twice,
)

TRIGGER = {"type": "compaction_trigger"}
TALK = [message("user", "a"), call(1), output(1, "x"), TRIGGER]


def part(index: int, kind: PartKind, text: str) -> list[Event]:
    return [PartStart(0, index, kind), Delta(0, index, text), PartEnd(0, index)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"reasoning": True},), {"store": {"where": "memory"}}) as found:
        yield found


def asked(script: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A request for a summary, which the worker writes as `script` says."""
    prompt = "Go. sim:" + json.dumps({"rounds": [{"text": "ok"}], "asked": {"outgrows your context": script}})
    return body(input=[message("user", prompt), *TALK], **members)


def replied(client: httpx.Client, request: dict[str, Any]) -> Any:
    """The response, the last one of a stream."""
    reply = client.post("/v1/responses", json=request)
    assert reply.status_code == 200, reply.text
    return frames(reply.text)[-1]["response"] if request.get("stream") else reply.json()


def test_the_model_is_asked_for_a_summary_and_nothing_else() -> None:
    found = crossing(
        input=TALK,
        tools=[TOOL],
        tool_choice="auto",
        parallel_tool_calls=True,
        text={"format": {"type": "json_object"}},
        include=["message.output_text.logprobs"],
    )
    told = json.loads(found.outgoing.body)
    assert [one["role"] for one in told["messages"]] == ["user", "assistant", "tool", "user"]
    assert told["messages"][-1]["content"] == ASK
    assert not {"tools", "tool_choice", "parallel_tool_calls", "response_format", "logprobs"} & told.keys()
    assert {"tools", "text.format", "include.message.output_text.logprobs"} <= set(found.op.dropped)


@pytest.mark.parametrize("stream", [False, True])
def test_the_summary_is_one_item_that_stands_for_the_conversation(client: httpx.Client, stream: bool) -> None:
    script = {"reasoning": "hm", "text": "The sum é so far."}
    response = replied(client, asked(script, stream=stream, store=False))
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == ["reasoning", "compaction"]
    item = response["output"][-1]
    assert item.keys() == {"type", "id", "encrypted_content"}
    (told,) = sent(input=[item])["messages"]
    assert told["role"] == "user"
    assert told["content"].endswith("\n\nThe sum é so far.")


def test_a_stream_holds_the_text_until_it_is_whole() -> None:
    """However many pieces the model's text has, there is one item."""
    usage = UsageReport(Usage(input=1, output=1))
    said = [*part(0, "text", "One, "), *part(1, "thinking", "hm"), *part(2, "text", "two.")]
    found = stream_of(*said, Finish(0, "stop", "stop"), usage, End(), input=TALK)
    assert not [kind for kind in kinds(found) if kind.startswith("output_text")]
    named = [one["item"]["type"] for one in found if "item" in one]
    assert named == ["reasoning", "reasoning", "compaction", "compaction"]
    items = found[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "compaction"]
    assert sent(input=[items[-1]])["messages"][-1]["content"].endswith("\n\nOne, two.")


def test_a_client_hears_events_while_the_summary_is_written() -> None:
    """Its text is held, and idle timers count events."""
    request = asked({"text": "The sum of it.", "fault": "stall@2"}, stream=True)
    with Stack(config={"relay": {"keepalive_s": 0.1}}) as stack:
        reply = begun_stream(stack, "/v1/responses", request, waited_twice)
    events = frames(reply.text)
    assert kinds(events)[:4] == ["created", "in_progress", "in_progress", "in_progress"]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["compaction"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_cut_off_is_no_summary(client: httpx.Client, stream: bool) -> None:
    response = replied(client, asked({"text": "half", "finish": "length"}, stream=stream, store=False))
    assert response["output"] == []
    assert response["status"] == "incomplete"


@pytest.mark.parametrize("text", ["", " \n", "\u3000"])
def test_an_empty_summary_is_an_error(client: httpx.Client, text: str) -> None:
    """A client would else go on without its history."""
    reply = client.post("/v1/responses", json=asked({"text": text}))
    assert reply.status_code == 502
    assert reply.json()["error"]["code"] == "no_summary"


@pytest.mark.parametrize("text", ["", " \n", "\u3000"])
def test_a_begun_stream_without_a_summary_fails(text: str) -> None:
    """Its record is not that of a success, and has what the worker used."""
    with Stack(({"reasoning": True},), {"store": {"where": "memory"}, "relay": {"keepalive_s": 0.1}}) as stack:
        request = asked({"reasoning": "hm", "text": text, "fault": "stall@1"}, stream=True)
        reply = begun_stream(stack, "/v1/responses", request, waited_twice)
        response = frames(reply.text)[-1]["response"]
        record = stack.record()
        assert (response["status"], response["error"]["code"]) == ("failed", "no_summary")
        assert (record["outcome"], record["code"]) == ("failed", "no_summary")
        assert record["usage"]["output"] > 0
        assert httpx.get(f"{stack.url}/v1/responses/{response['id']}").status_code == 404


def test_the_gateway_does_not_end_a_stream_without_a_summary() -> None:
    """Its worker died behind the finish chunk. The gateway adds the end of other streams there. The thinking is too
    long for one read, so that the client has seen some of it by then."""
    with Stack(({"reasoning": True},)) as stack, httpx.Client(base_url=stack.url) as client:
        stack.sim.fault("no-done,no-usage,fin@100000")
        request = asked({"reasoning": "hm " * 5000, "text": ""}, stream=True, store=False)
        response = replied(client, request)
        record = stack.record()
    assert (response["status"], response["error"]["code"]) == ("failed", "upstream_truncated")
    assert (record["outcome"], record["not_continued"], record["continued"]) == ("failed", "failed", [])


def test_the_question_for_a_summary_is_a_part_of_a_last_message_of_the_user() -> None:
    """Templates may demand that user and assistant take turns."""
    *_, last = sent(input=[message("user", "a"), call(1), output(1, "x"), message("user", "b"), TRIGGER])["messages"]
    (only,) = sent(input=[message("user", "a"), TRIGGER])["messages"]
    assert last["content"] == "b\n\n" + ASK
    assert only["content"] == "a\n\n" + ASK


@pytest.mark.parametrize("backend", backends.REGISTRY)
def test_a_summary_and_the_users_words_around_it_are_one_turn(client: httpx.Client, backend: str) -> None:
    """Clients keep the user's messages and the summary, and templates may demand turns."""
    item = replied(client, asked({"text": "The sum."}))["output"][-1]
    kept = [message("developer", "rules"), message("user", "a"), item, message("user", "b")]
    first, turn = sent(backend, input=kept)["messages"]
    assert first == {"role": "system", "content": "rules"}
    assert turn["role"] == "user"
    assert turn["content"].startswith("a\n\nSummary of the conversation")
    assert turn["content"].endswith("\n\nThe sum.\n\nb")
    takes = Capabilities("w", system="keep")
    assert [one["role"] for one in sent(can=takes, input=kept)["messages"]] == ["system", "user", "user", "user"]


# Not base64; not UTF-8; half a surrogate pair; empty; white space; nothing; of another server.
@pytest.mark.parametrize("damaged", ["dgc1.%", "dgc1.gICA", "dgc1.7aCAIHg=", "dgc1.", "dgc1.IAo=", None, "", "gAAA"])
def test_a_summary_that_cannot_be_read_is_refused_because_the_history_is_in_it(damaged: str | None) -> None:
    with pytest.raises(GatewayError) as caught:
        read(input=[message("user", "a"), {"type": "compaction", "encrypted_content": damaged}])
    assert caught.value.kind is Kind.BAD_REQUEST
    assert caught.value.param == "input.1.encrypted_content"


def test_what_follows_a_stored_summary_is_answered(client: httpx.Client) -> None:
    """The trigger of the former request is history."""
    first = replied(client, asked({"text": "The sum."}))
    said = "sim:" + json.dumps({"rounds": [{"text": "on"}]})
    second = replied(client, body(input=said, previous_response_id=first["id"]))
    assert [item["type"] for item in second["output"]] == ["message"]
    assert second["output"][0]["content"][0]["text"] == "on"


def test_a_stored_summary_stands_for_what_was_before_it(client: httpx.Client) -> None:
    """But for what the user and the developer said, and tools that came as an item."""
    tools = {"type": "additional_tools", "tools": [TOOL]}
    odd = {"type": "other", "role": 5}
    prompt = asked({"text": "The sum."})
    prompt["input"] = [message("developer", "rules"), tools, odd, *prompt["input"]]
    first = replied(client, prompt)
    said = "sim:" + json.dumps({"rounds": [{"text": "on"}]})
    second = replied(client, body(input=said, previous_response_id=first["id"]))
    page = client.get(f"/v1/responses/{second['id']}/input_items", params={"order": "asc"}).json()
    found = [item.get("role") or item["type"] for item in page["data"]]
    assert found == ["developer", "additional_tools", "user", "user", "compaction", "user"]


PATHS = ["/v1/responses/compact", "/openai/v1/responses/compact", "/openai/responses/compact"]
SUM = {"reasoning": "hm", "text": " The sum of it. "}


def turns(script: dict[str, Any]) -> list[dict[str, Any]]:
    """A conversation of which the worker writes a summary as `script` says."""
    return list(asked(script)["input"][:-1])


@pytest.mark.parametrize("path", PATHS)
def test_a_conversation_is_compacted_whole(client: httpx.Client, path: str) -> None:
    """The path gives the messages that a summary does not stand for, then the summary, which later requests send."""
    talk = [message("developer", "be brief"), *turns(SUM), message("assistant", "ok"), {"role": "user", "content": "b"}]
    reply = client.post(path, json=body(input=talk, tools=[TOOL], parallel_tool_calls=False))
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert found.keys() == {"id", "object", "created_at", "output", "usage"}
    assert (found["object"], found["id"][:5]) == ("response.compaction", "resp_")
    assert found["usage"]["total_tokens"] > 0
    *beside, summary = found["output"]
    assert [item["role"] for item in beside] == ["developer", "user", "user", "user"]
    assert {(item["type"], item["status"]) for item in beside} == {("message", "completed")}
    assert beside[-1]["content"] == [{"type": "input_text", "text": "b"}]
    assert len({item["id"] for item in found["output"]}) == 5
    assert summary.keys() == {"type", "id", "encrypted_content"}
    assert "tools" in reply.headers["x-dragoman-dropped"]
    told = sent(input=[*found["output"], message("user", "go on")])["messages"]
    assert "The sum of it." in json.dumps(told)
    assert "call" not in json.dumps(told)


def test_the_worker_is_asked_once_and_without_tools(stack: Stack, client: httpx.Client) -> None:
    reply = client.post(PATHS[0], json=body(input=turns(SUM), tools=[TOOL], instructions="be brief"))
    assert reply.status_code == 200, reply.text
    told = json.loads(stack.sim.entries[-1].body)
    assert told["messages"][-1]["content"] == ASK
    assert told["messages"][0] == {"role": "system", "content": "be brief"}
    assert not {"tools", "tool_choice", "stream"} & told.keys()
    record = stack.record()
    assert (record["dialect"], record["status"], record["outcome"]) == ("responses", 200, "ok")


@pytest.mark.parametrize("script", [{"text": "half", "finish": "length"}, {"text": ""}])
def test_a_conversation_that_is_not_compacted_is_an_error(client: httpx.Client, script: dict[str, Any]) -> None:
    """The reply has no status in which a client could see that the summary is cut off."""
    reply = client.post(PATHS[0], json=body(input=turns(script)))
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "no_summary")


def test_a_stored_conversation_is_compacted_by_its_id(client: httpx.Client) -> None:
    """Nothing of the summary is stored."""
    first = replied(client, body(input=turns(SUM)))
    whole = {"model": "m", "previous_response_id": first["id"], "store": True}
    for request in (whole, {**whole, "input": None}, {**whole, "input": []}):
        reply = client.post(PATHS[0], json=request)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        assert [item["type"] for item in found["output"]] == ["message", "message", "compaction"]
        assert "store" in reply.headers["x-dragoman-dropped"]
        assert client.get(f"/v1/responses/{found['id']}").status_code == 404


@pytest.mark.parametrize(
    ("members", "param"),
    [({}, "input"), ({"input": []}, "input"), ({"input": "a", "stream": True}, "stream")],
)
def test_what_cannot_be_compacted_is_refused(client: httpx.Client, members: dict[str, Any], param: str) -> None:
    reply = client.post(PATHS[0], json={"model": "m", **members})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_former_trigger_asks_for_one_summary(client: httpx.Client) -> None:
    found = client.post(PATHS[0], json=body(input=[*turns(SUM), TRIGGER])).json()
    assert [item["type"] for item in found["output"]].count("compaction") == 1
