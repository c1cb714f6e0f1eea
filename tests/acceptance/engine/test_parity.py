"""The same request asked of vLLM and of the gateway: the same status, and the same answer, or a difference that
docs/backends/vllm.md lists. What is asked follows vLLM's own tests of its entry points."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import httpx
import pytest

from gateway.wire.openai.requests.constraints import CONSTRAINTS, REPORTS
from gateway.wire.openai.requests.views import CHAT_MEMBERS, TEXT_MEMBERS
from tests.acceptance.engine.conftest import HOME
from tests.repo.tree import ROOT
from tests.support.clients import DIALECTS

pytestmark = pytest.mark.engine

HI = [{"role": "user", "content": "Say hi"}]
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 4, "temperature": 0},
    "/v1/completions": {"prompt": "The", "max_tokens": 4, "temperature": 0},
    "/v1/responses": {"input": "Say hi", "max_output_tokens": 8, "temperature": 0},
    "/v1/messages": {"messages": HI, "max_tokens": 4, "temperature": 0},
    "/tokenize": {},
    "/detokenize": {},
}
CHAT, TEXT, RESPONSES, MESSAGES, TOKENIZE, DETOKENIZE = LEAST

ASKED: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {}, {"n": None, "stop": None}, {"seed": 1.0}, {"temperature": -1}, {"temperature": 2.5}, {"top_p": 0},
        {"top_p": 1.5}, {"top_k": -2}, {"min_p": 2}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 5000},
        {"n": 0}, {"stop": ["a"] * 5}, {"stop": ""}, {"messages": []}, {"messages": None}, {"model": "nope"},
        {"structured_outputs": {"choice": ["red", "blue"]}}, {"structured_outputs": {"choice": ["a"], "regex": "a"}},
        {"structured_outputs": {"regex": "("}}, {"response_format": {"type": "x"}}, {"logit_bias": {"x": 1}},
        {"logit_bias": {"999999": 1}}, {"response_format": {"type": "json_schema"}}, {"presence_penalty": 3},
        {"frequency_penalty": -3}, {"repetition_penalty": 0}, {"min_tokens": 10}, {"min_tokens": -1}, {"echo": True},
        {"tool_choice": "required"}, {"stream_options": {"include_usage": True}}, {"prompt_logprobs": 1},
        {"prompt_logprobs": -2}, {"bad_words": ["hi"]}, {"allowed_token_ids": []}, {"allowed_token_ids": [999999]},
        {"truncate_prompt_tokens": 5}, {"truncate_prompt_tokens": -5}, {"thinking_token_budget": -2}, {"foo": 1},
        {"user": 5}, {"messages": [{"role": "user"}]}, {"chat_template": "x"}, {"top_logprobs": 2},
        {"add_generation_prompt": True, "continue_final_message": True}, {"request_id": "abc"}, {"guided_choice": None},
    ],
    TEXT: [
        {}, {"prompt": []}, {"prompt": ""}, {"prompt": [""]}, {"prompt": ["a", "b"]}, {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2], [3]]}, {"prompt": [999999]}, {"prompt": [-1]}, {"prompt": None}, {"best_of": 1},
        {"echo": True}, {"echo": True, "max_tokens": 0}, {"max_tokens": 0}, {"suffix": "x"}, {"logprobs": 2},
        {"logprobs": 25}, {"logprobs": -1}, {"max_tokens": None}, {"logit_bias": {"x": 1}}, {"n": 2}, {"n": 129},
        {"prompt_logprobs": 1}, {"add_special_tokens": False},
    ],
    RESPONSES: [
        {}, {"structured_outputs": {"choice": ["red", "blue"]}}, {"stop": ["a"]}, {"seed": 3}, {"top_k": 1},
        {"min_p": 0.5}, {"repetition_penalty": 1.5}, {"top_k": -5}, {"temperature": 3}, {"max_output_tokens": 0},
        {"input": []}, {"input": None}, {"logit_bias": {"5": 1}}, {"stop_token_ids": [5]},
        {"structured_outputs": {"choice": ["a"], "regex": "a"}},
    ],
    MESSAGES: [
        {}, {"top_k": 2}, {"max_tokens": None}, {"messages": []}, {"temperature": 3}, {"stop_sequences": ["a"]},
        {"chat_template_kwargs": {"x": 1}},
    ],
    TOKENIZE: [
        {"prompt": "hi"}, {"messages": HI}, {"prompt": "hi", "messages": HI}, {}, {"prompt": ""}, {"prompt": ["a"]},
        {"messages": []}, {"prompt": "hi", "return_token_strs": True},
        {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
    ],
    DETOKENIZE: [
        {"tokens": []}, {"tokens": [1, 2]}, {}, {"tokens": [999999]}, {"tokens": [-1]},
    ],
}  # fmt: skip
SAME = [(path, members) for path, asked in ASKED.items() for members in asked]
"""What both answer with the same status, and alike."""

DECIDED: list[tuple[str, dict[str, Any], int, int]] = [
    (CHAT, {"temperature": "0.5"}, 200, 400),
    (CHAT, {"max_tokens": "5"}, 200, 400),
    (CHAT, {"stream": 1}, 200, 400),
    (CHAT, {"logprobs": 1}, 200, 400),
    (CHAT, {"ignore_eos": 1}, 200, 400),
    (CHAT, {"logit_bias": {"5": 101}}, 200, 400),
    (CHAT, {"logit_bias": {"5": "1"}}, 200, 400),
    (CHAT, {"tools": []}, 400, 200),
    (CHAT, {"tool_choice": "auto"}, 400, 200),
    (TEXT, {"best_of": 2}, 200, 400),
    (TEXT, {"echo": "yes"}, 200, 400),
    (MESSAGES, {"max_tokens": 0}, 400, 200),
    (TOKENIZE, {"prompt": "hi", "add_special_tokens": "no"}, 200, 400),
    (DETOKENIZE, {"tokens": ["1"]}, 200, 400),
]
"""Path, members, vLLM's status and the gateway's: the table of docs/backends/vllm.md."""


def case(path: str, members: dict[str, Any]) -> str:
    return f"{path} {json.dumps(members)[:60]}"


def ask(client: httpx.Client, path: str, members: dict[str, Any]) -> httpx.Response:
    return client.post(path, json={"model": "smollm2", **LEAST[path], **members})


def words(path: str, found: dict[str, Any]) -> Any:
    """What an answer says: its text, why it ended, its counts."""
    if path in (CHAT, TEXT):
        said = [(one.get("text") or one["message"]["content"], one["finish_reason"]) for one in found["choices"]]
        return said, found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]
    if path == RESPONSES:
        texts = [part["text"] for item in found["output"] for part in item.get("content") or ()]
        return texts, found["status"], found["usage"]["input_tokens"], found["usage"]["output_tokens"]
    if path == MESSAGES:
        texts = [block.get("text") for block in found["content"]]
        return texts, found["stop_reason"], found["usage"]["input_tokens"], found["usage"]["output_tokens"]
    return found.get("tokens"), found.get("token_strs"), found.get("prompt")


@pytest.mark.parametrize(("path", "members"), SAME, ids=[case(*one) for one in SAME])
def test_the_same_answer(engine: httpx.Client, gateway: httpx.Client, path: str, members: dict[str, Any]) -> None:
    straight, through = ask(engine, path, members), ask(gateway, path, members)
    assert through.status_code == straight.status_code, (straight.text, through.text)
    if straight.status_code == 200:
        assert words(path, through.json()) == words(path, straight.json())
        return
    assert 400 <= straight.status_code < 500
    # vLLM puts `body` before the field, or instead of it, when it does not read a body at all.
    param = (straight.json()["error"].get("param") or "").removeprefix("body").removeprefix(".")
    if param and path not in (MESSAGES, RESPONSES):
        assert param.split(".")[0] == (through.json()["error"]["param"] or "").split(".")[0]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_same_beams(engine: httpx.Client, gateway: httpx.Client, path: str) -> None:
    """Beams have near ties, which the engine's cache decides: their texts differ between two runs of vLLM alone."""
    beams = {"use_beam_search": True, "n": 2}
    straight, through = (words(path, ask(client, path, beams).json()) for client in (engine, gateway))
    assert through[1:] == straight[1:]  # the counts of tokens
    assert [reason for _, reason in through[0]] == [reason for _, reason in straight[0]]
    texts = [text for text, _ in through[0]]
    assert all(texts)
    assert len(set(texts)) == 2  # without its beams, two greedy answers are one text


@pytest.mark.parametrize(("path", "members", "vllm", "ours"), DECIDED, ids=[case(*one[:2]) for one in DECIDED])
def test_a_difference_is_decided(
    engine: httpx.Client, gateway: httpx.Client, path: str, members: dict[str, Any], vllm: int, ours: int
) -> None:
    found = ask(engine, path, members).status_code, ask(gateway, path, members).status_code
    assert found == (vllm, ours)
    page = (ROOT / "docs/backends/vllm.md").read_text()
    name = next(iter(members.keys() - {"prompt"}))
    assert re.search(rf"^\| .*`{name}", page, re.M), f"the page does not list {name}"


def test_message_start_tells_what_vllm_tells(engine: httpx.Client, gateway: httpx.Client) -> None:
    begun = [ask(client, MESSAGES, {"stream": True}).text for client in (engine, gateway)]
    first = [json.loads(text.split("data: ", 2)[1].splitlines()[0])["message"]["usage"] for text in begun]
    assert first[0]["input_tokens"] == first[1]["input_tokens"] > 0


_FIELDS = """
import json
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest as Chat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest as Text
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest as Responses
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest as Messages
print(json.dumps({one.__name__: sorted(one.model_fields) for one in (Chat, Text, Responses, Messages)}))
"""
# Members that do not change the answer's text: they name, place or time the request, or add to its reply.
_NEUTRAL = {
    *("cache_salt", "ec_transfer_params", "priority", "request_id", "session_id", "stream_interval"),
    *("logprob_token_ids", "return_mm_kwargs", "return_prompt_text", "return_token_offsets"),
    *("routed_experts_prompt_start", "enable_response_messages", "previous_input_messages"),
    "echo",  # of a chat: it repeats the last message
}


def test_every_member_of_vllm_is_known_as_a_constraint_or_not(engine: httpx.Client) -> None:
    """A later vLLM may have more: each is to be put into one of these sets."""
    del engine  # vLLM of that version is there
    run = [str(HOME / "bin" / "python"), "-c", _FIELDS]
    said = subprocess.run(run, capture_output=True, text=True, check=True, env={"HF_HUB_OFFLINE": "1"}).stdout
    found: dict[str, list[str]] = json.loads(said.splitlines()[-1])
    known = {*CHAT_MEMBERS, *TEXT_MEMBERS, *CONSTRAINTS["chat"], *CONSTRAINTS["complete"], *REPORTS, *_NEUTRAL}
    known |= {field.name.partition(".")[0] for one in DIALECTS.values() for field in one.fields.get("chat", ())}
    assert {name: set(fields) - known for name, fields in found.items()} == {name: set() for name in found}
