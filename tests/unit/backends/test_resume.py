"""The request for another worker, which goes on with a reply: for each backend, and what stands against it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway import backends
from gateway.core.http import Request
from gateway.core.messages import Complete
from gateway.core.ports import Capabilities, Partial, Resumption

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


SEEN = Partial("Hello wor", 3)


def resume(backend: str, path: str, seen: Partial = SEEN, **members: Any) -> Resumption | str:
    body = {"model": "m", "stream": True, **members}
    request = Request("POST", path, [(b"x-request-id", b"1")], msgspec.json.encode(body))
    return backends.create(backend).resume(request, seen)


def body_of(resumption: Resumption | str) -> dict[str, Any]:
    assert isinstance(resumption, Resumption), resumption
    body: dict[str, Any] = msgspec.json.decode(resumption.request.body)
    return body


@pytest.mark.parametrize("backend", ["vllm", "llamacpp"])
def test_a_chat_goes_on_with_an_unfinished_message(backend: str) -> None:
    body = body_of(resume(backend, CHAT, messages=MESSAGES, max_tokens=10, max_completion_tokens=20, min_tokens=2))
    assert body["messages"] == [*MESSAGES, {"role": "assistant", "content": "Hello wor"}]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert (body["max_tokens"], body["max_completion_tokens"], body["min_tokens"]) == (7, 17, 0)


def test_a_message_that_the_client_began_grows() -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "So: ", "name": "x"}]
    body = body_of(resume("vllm", CHAT, messages=begun, continue_final_message=True))
    assert body["messages"] == [*MESSAGES, {"role": "assistant", "content": "So: Hello wor", "name": "x"}]
    parts = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "So"}]}]
    assert resume("vllm", CHAT, messages=parts, continue_final_message=True) == "prefill"


def test_white_space_that_a_template_may_cut_off_is_written_again() -> None:
    resumption = resume(
        "vllm", CHAT, Partial("one\n\n", 4, tail=("o", "ne", "\n", "\n")), messages=MESSAGES, max_tokens=10
    )
    body = body_of(resumption)
    assert body["messages"][-1]["content"] == "one"
    assert body["max_tokens"] == 8  # there is room for the two tokens that come again
    assert isinstance(resumption, Resumption)
    assert resumption.repeated == "\n\n"
    llamacpp = resume("llamacpp", CHAT, Partial("one\n\n", 4, tail=("o", "ne", "\n", "\n")), messages=MESSAGES)
    assert isinstance(llamacpp, Resumption)
    assert (body_of(llamacpp)["messages"][-1]["content"], llamacpp.repeated) == ("one\n\n", "")


@pytest.mark.parametrize("backend", backends.REGISTRY)
def test_a_text_goes_on_behind_its_prompt(backend: str) -> None:
    made = backends.create(backend)
    request = made.write(Complete(model="m", prompts=("Once",), max_output=10, stream=True), Capabilities("m"))
    body = body_of(made.resume(request, SEEN))
    assert "OnceHello wor" in body.values()
    assert 7 in {**body, **body.get("parameters", {})}.values()
    assert 10 not in {**body, **body.get("parameters", {})}.values()


def test_a_prompt_in_a_list_and_one_of_token_ids() -> None:
    assert body_of(resume("vllm", TEXT, prompt=["Once"]))["prompt"] == "OnceHello wor"
    assert resume("vllm", TEXT, prompt=[1, 2, 3]) == "token_ids"


def test_tgi_goes_on_with_texts() -> None:
    resumption = resume("tgi", "/generate_stream", inputs="Once", parameters={"max_new_tokens": 10, "details": True})
    body = body_of(resumption)
    assert (body["inputs"], body["parameters"]) == ("OnceHello wor", {"max_new_tokens": 7, "details": True})
    assert resume("tgi", "/generate_stream", inputs="a", parameters={"truncate": 5}) == "truncation"
    assert resume("tgi", CHAT, messages=MESSAGES) == "engine"
    assert resume("openai", CHAT, messages=MESSAGES) == "engine"


def test_nothing_seen_is_the_same_request_again() -> None:
    resumption = resume("vllm", CHAT, Partial("", 0), messages=MESSAGES, max_tokens=5)
    body = body_of(resumption)
    assert isinstance(resumption, Resumption)
    assert resumption.request.headers == [(b"x-request-id", b"1")]
    assert (body["messages"], body["max_tokens"]) == (MESSAGES, 5)


def test_the_last_token_was_the_last_that_was_asked_for() -> None:
    assert resume("vllm", CHAT, messages=MESSAGES, max_tokens=3) == "length"
    assert body_of(resume("llamacpp", "/completion", prompt="a", n_predict=-1))["n_predict"] == -1


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"n": 2}, "choices"),
        ({"use_beam_search": True}, "choices"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"presence_penalty": 0.5}, "penalties"),
        ({"frequency_penalty": -0.5}, "penalties"),
        ({"response_format": {"type": "json_object"}}, "structured_output"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_output"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"truncate_prompt_tokens": 100}, "truncation"),
    ],
)
def test_what_stands_against_it(members: dict[str, Any], reason: str) -> None:
    for backend in ("vllm", "llamacpp"):
        assert resume(backend, CHAT, messages=MESSAGES, **members) == reason
    assert resume("vllm", TEXT, prompt="a", **members) == reason


@pytest.mark.parametrize(
    "members",
    [
        {"n": 1},
        {"logprobs": None},
        {"logprobs": False},
        {"presence_penalty": 0.0},
        {"repetition_penalty": 1.2},
        {"response_format": {"type": "text"}},
        {"tool_choice": "auto", "tools": [{}]},
        {"tool_choice": "none"},
        {"seed": 7, "stop": ["END"], "temperature": 0.5},
    ],
)
def test_what_does_not(members: dict[str, Any]) -> None:
    body = body_of(resume("vllm", CHAT, messages=MESSAGES, **members))
    assert {name: body[name] for name in members} == members


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}])
def test_an_engines_default_bound_counts_over_both_workers(given: dict[str, Any]) -> None:
    """The second worker would begin to count to its default of 16 anew."""
    assert body_of(resume("vllm", TEXT, prompt="a", **given))["max_tokens"] == 13
    assert resume("vllm", TEXT, Partial("x" * 16, 16), prompt="a", **given) == "length"
    # An engine behind `openai` may have the default or none, which only a longer text shows.
    assert resume("openai", TEXT, prompt="a", **given) == "no_bound"
    for backend in ("vllm", "openai"):
        assert body_of(resume(backend, TEXT, Partial("x" * 17, 17), prompt="a", **given)).get("max_tokens") is None
        assert body_of(resume(backend, TEXT, prompt="a", max_tokens=9))["max_tokens"] == 6
    # These fill what room there is.
    assert body_of(resume("llamacpp", "/completion", prompt="a")).keys() == {"model", "stream", "prompt"}
    assert body_of(resume("tgi", "/generate_stream", inputs="a", parameters={}))["parameters"] == {}
    assert "max_tokens" not in body_of(resume("vllm", CHAT, messages=MESSAGES))
