"""Open Responses with a real engine: the laws that hold however little its model knows.

By HTTP whole and streamed, and by web socket. Each reply and event is read by the types of OpenAI's own library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.laws.contract.test_described import DIFFERENCES, Said, faults
from tests.support.harness import Stack
from tests.unit.dialects.responses.asking import frames
from tests.unit.dialects.responses.talking import Talk, code_of
from tests.unit.dialects.responses.test_open_responses import NULLS, NUMBERS

pytestmark = pytest.mark.engine

PATH = "/v1/responses"
ASKED: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_output_tokens": 16}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, **more}


PHASES = [
    assistant("I look it up.", phase="commentary"),
    assistant("It is four.", phase="final_answer"),
    user("Say it again."),
]
INPUTS: dict[str, Any] = {
    "text": "Say hello.",
    "system": [{"type": "message", "role": "system", "content": "You are a pirate."}, user("Say hello.")],
    "turns": [user("My name is Ada."), assistant("Hello Ada!"), user("What is my name?")],
    "phases": PHASES,
}


def as_described(events: list[dict[str, Any]], *, streamed: bool) -> list[dict[str, Any]]:
    """Returns them. They differ from the library's types in nothing but what is known."""
    known = "|".join(pattern for dialect, pattern in DIFFERENCES if dialect == "responses")
    for event in events:
        for fault in faults(Said("responses", PATH, streamed, "", event)):
            assert re.fullmatch(known, fault), fault
    return events


def whole(stack: Stack, **asked: Any) -> dict[str, Any]:
    reply = httpx.post(stack.url + PATH, json=ASKED | asked, timeout=120)
    assert reply.status_code == 200, reply.text
    (found,) = as_described([reply.json()], streamed=False)
    return found


def streamed(stack: Stack, **asked: Any) -> dict[str, Any]:
    reply = httpx.post(stack.url + PATH, json=ASKED | asked | {"stream": True}, timeout=120)
    assert reply.status_code == 200, reply.text
    return _last(frames(reply.text))


def by_socket(stack: Stack, **asked: Any) -> dict[str, Any]:
    with Talk(stack) as talk:
        talk.create(**ASKED | asked)
        return _last(talk.heard())


def _last(events: list[dict[str, Any]]) -> dict[str, Any]:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    told = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    response: dict[str, Any] = as_described(events, streamed=True)[-1]["response"]
    assert told == text_of(response)
    return response


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or ())


@pytest.mark.parametrize("given", INPUTS.values(), ids=INPUTS)
def test_one_response_by_three_ways(stack: Stack, given: Any) -> None:
    ways: tuple[Callable[..., dict[str, Any]], ...] = (whole, streamed, by_socket)
    found = [way(stack, input=given) for way in ways]
    for response in found:
        assert (response["status"], response["incomplete_details"]) in (
            ("completed", None),
            ("incomplete", {"reason": "max_output_tokens"}),
        )
        assert isinstance(response["completed_at"], int) == (response["status"] == "completed")
        assert {name: response[name] for name in NUMBERS if name != "temperature"} == {
            name: value for name, value in NUMBERS.items() if name != "temperature"
        }
        assert all(response[name] is None for name in NULLS if name != "incomplete_details")
    assert len({text_of(response) for response in found}) == 1
    assert text_of(found[0])
    assert len({json.dumps(response["usage"]["output_tokens"]) for response in found}) == 1


def test_a_function_that_is_demanded_is_called(stack: Stack) -> None:
    """With whatever arguments the small model makes up."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "name": "get_weather", "parameters": city}
    choice = {"type": "function", "name": "get_weather"}
    asked = {"input": "How is the weather in Oslo?", "tools": [tool], "tool_choice": choice, "max_output_tokens": 60}
    found = []
    for way in (whole, streamed, by_socket):
        response = way(stack, **asked)
        (called,) = [item for item in response["output"] if item["type"] == "function_call"]
        assert called["name"] == "get_weather"
        assert response["tools"][0] == {"description": None, "strict": None, **tool}
        found.append(called["arguments"])
    assert len(set(found)) == 1


def test_a_conversation_goes_on_by_one_web_socket_alone(stack: Stack) -> None:
    """A reply is not stored; the connection keeps it until a request that goes on from it fails."""
    with Talk(stack) as talk, Talk(stack) as other:
        first = talk.turn(**ASKED, store=False, input="The code word is cobalt. Reply with OK.")
        go_on = {**ASKED, "store": False, "previous_response_id": first["id"]}
        second = talk.turn(**go_on, input="What is the code word?")
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
        assert code_of(other.turn(**go_on, input="a")) == "previous_response_not_found"
        assert text_of(other.turn(**ASKED, input="Say hello."))
        go_on["previous_response_id"] = second["id"]
        unknown = {"type": "function_call_output", "call_id": "call_1", "output": "of no call"}
        assert talk.turn(**go_on, input=[unknown])["status"] == 400
        assert code_of(talk.turn(**go_on, input="a")) == "previous_response_not_found"


def test_a_compacted_conversation_goes_on_by_web_socket(stack: Stack) -> None:
    talked = [user("The launch is on Tuesday."), assistant("Understood.")]
    reply = httpx.post(
        stack.url + PATH + "/compact",
        json={"model": "smollm2", "temperature": 0, "stop": ["."], "input": talked},
        timeout=120,
    )
    assert reply.status_code == 200, reply.text
    with Talk(stack) as talk:
        response = talk.turn(**ASKED, store=False, tools=[], input=[*reply.json()["output"], user("Go on.")])
    assert text_of(response)


def test_an_image_that_the_model_cannot_see_is_refused(stack: Stack) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    asked = {**ASKED, "input": [{**user(""), "content": [{"type": "input_text", "text": "What is it?"}, image]}]}
    error = httpx.post(stack.url + PATH, json=asked, timeout=60).json()["error"]
    assert (error["code"], error["param"]) == ("beyond_model", "input")
    with Talk(stack) as talk:
        refused = talk.turn(**asked)
    assert (refused["status"], refused["error"]) == (400, error)
