"""The unmodified `friendli-client` 1.5.8 against a gateway with a simulated worker: what it returns and raises."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Stack

ROOT = Path(__file__).resolve().parents[3]
# `make test` builds it from requirements/friendli.txt.
PYTHON = ROOT / ".venv-friendli" / "bin" / "python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="friendli-client needs .venv-friendli: make test")

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"itl_ms": 2},), {"dialects": {"friendli": {"default_model": "m"}}}) as running:
        yield running


@pytest.fixture(scope="module")
def call(stack: Stack) -> Iterator[Call]:
    """call(api, how, **arguments of create) -> what the driver tells."""
    command = [str(PYTHON), str(Path(__file__).with_name("friendli_driver.py")), stack.url + "/friendli"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        write, readline = driver.stdin, driver.stdout.readline

        def ask(api: str, how: str, **given: Any) -> Any:
            write.write(json.dumps({"api": api, "how": how, "with": given}) + "\n")
            write.flush()
            return json.loads(readline())

        yield ask
        driver.stdin.close()
        assert driver.wait(20) == 0


def said(**script: Any) -> str:
    """A prompt by which the simulated worker answers exactly this."""
    return "sim:" + json.dumps(script)


def value(outcome: Any) -> Any:
    assert outcome["raised"] is None, outcome
    return outcome["value"]


def body(stack: Stack) -> Any:
    """What the worker was last sent, but for health probes."""
    return json.loads(stack.sim.entries[-1].body)


def test_a_completion_of_nothing_but_nulls(stack: Stack, call: Call) -> None:
    reply = value(call("completions", "whole", prompt=said(text="Grüezi mitenand")))
    (choice,) = reply["choices"]
    assert choice["text"] == "Grüezi mitenand"
    assert choice["seed"] == body(stack)["seed"]
    assert len(choice["tokens"]) == reply["usage"]["completion_tokens"] - 1, "the worker also counts the end"
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    sent = body(stack)
    assert (sent["temperature"], sent["top_k"], sent["top_p"]) == (1.0, 0, 1.0)
    assert "X-Friendli-Team" in stack.records()[-1]["dropped"]


def test_two_choices_with_a_list_of_seeds(stack: Stack, call: Call) -> None:
    reply = value(
        call("completions", "whole", prompt=said(choices=[{"text": "a"}, {"text": "b"}]), n=2, seed=[7, 8], model="m")
    )
    assert [(choice["index"], choice["seed"], choice["text"]) for choice in reply["choices"]] == [
        (0, 7, "a"),
        (1, 8, "b"),
    ]
    assert (body(stack)["n"], body(stack)["seed"]) == (2, 7)


def test_token_prompts(stack: Stack, call: Call) -> None:
    reply = value(call("completions", "whole", tokens=[300, 301, 302], max_total_tokens=9))
    assert reply["usage"]["prompt_tokens"] == 3
    assert (body(stack)["prompt"], body(stack)["max_tokens"]) == ([300, 301, 302], 6)


def test_totals_of_a_text(stack: Stack, call: Call) -> None:
    reply = value(call("completions", "whole", prompt="one two three four.", max_total_tokens=9))
    assert reply["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream(call: Call, n: int) -> None:
    prompt = said(text="one two three")
    found = value(call("completions", "stream", prompt=prompt, n=n, seed=5))
    whole = value(call("completions", "wait", prompt=prompt, n=n, seed=5))
    assert whole == value(call("completions", "whole", prompt=prompt, n=n, seed=5))
    assert [choice["seed"] for choice in whole["choices"]] == [5, 6][:n]
    for choice in whole["choices"]:
        mine = [line for line in found if line["index"] == choice["index"]]
        assert "".join(line["text"] for line in mine) == choice["text"] == "one two three"
        assert [line["token"] for line in mine] == choice["tokens"]
    assert all(line["event"] == "token_sampled" for line in found)


def test_beam_search(stack: Stack, call: Call) -> None:
    reply = value(call("completions", "whole", prompt=said(text="best"), num_beams=3, length_penalty=1.5))
    assert [choice["text"] for choice in reply["choices"]] == ["best"]
    sent = body(stack)
    assert (sent["use_beam_search"], sent["n"], sent["length_penalty"]) == (True, 3, 1.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": "a", "tokens": [1]}, "exactly one of 'prompt' and 'tokens'"),
        ({"prompt": "a", "encoder_no_repeat_ngram": 3}, "encoder-decoder"),
        ({"prompt": "a", "include_output_logits": True}, "'include_output_logits'"),
        ({"prompt": "a", "num_beams": 20}, "num_beams"),
        ({"prompt": "a", "stop": ["1", "2", "3", "4", "5"]}, "stop"),
        ({"prompt": "a", "model": "nobody"}, "is not found"),
        ({"prompt": said(text="a", fault="status:503")}, "overloaded"),
        ({"prompt": said(text="a", fault="status:500")}, "the worker failed"),
        ({"prompt": said(text="a " * 500), "timeout_microseconds": 50_000}, "longer than 0.05 s"),
    ],
)
def test_errors_are_api_errors_that_say_what_is_wrong(call: Call, given: dict[str, Any], words: str) -> None:
    found = call("completions", "whole", **given)
    assert found["raised"][0] == "APIError"
    assert words in found["said"]


def test_errors_before_a_stream(call: Call) -> None:
    found = call("completions", "stream", prompt=said(text="a", fault="status:500"))
    assert (found["raised"][0], found["value"]) in (("APIError", None), ("APIError", []))
    found = call("completions", "stream", prompt="a", num_beams=2)
    assert found["raised"][0] == "APIError"
    assert "'stream' is not supported" in found["said"]


@pytest.mark.parametrize("fault", ["reset@3", "fin@3", "eof@3", "error-frame@3", "bad-json@3"])
@pytest.mark.parametrize("how", ["stream", "wait"])
def test_a_cut_stream_raises(call: Call, fault: str, how: str) -> None:
    found = call("completions", how, prompt=said(text="one two three four five six", fault=fault))
    assert found["raised"][0] == "InvalidGenerationError", found
    if how == "stream":
        assert 0 < len(found["value"]) <= 7


def test_a_stream_past_its_deadline_raises(call: Call) -> None:
    found = call("completions", "stream", prompt=said(text="a", repeat=3000), timeout_microseconds=300_000)
    assert found["raised"][0] == "InvalidGenerationError"
    assert found["value"]


# -- chats ----------------------------------------------------------------------------------------------------------


def asked(**script: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": said(**script)}]}


def test_a_chat(stack: Stack, call: Call) -> None:
    reply = value(call("chat", "whole", **asked(text="Paris"), max_tokens=9))
    (choice,) = reply["choices"]
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", "Paris")
    assert choice["finish_reason"] == "stop"
    assert reply["usage"]["total_tokens"] > 0
    assert "tool_choice" not in body(stack), "the client says `auto` without any tools"


def test_a_chat_streamed(call: Call) -> None:
    found = value(call("chat", "stream", **asked(text="one two three")))
    assert "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in found) == "one two three"
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_chat_with_tools(call: Call) -> None:
    tools = [
        {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}
    ]
    script = {"tool_calls": [{"name": "weather", "arguments": '{"city":"Bern"}'}]}
    reply = value(call("chat", "whole", **asked(**script), tools=tools))
    (made,) = reply["choices"][0]["message"]["tool_calls"]
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("weather", {"city": "Bern"})
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    chunks = value(call("chat", "stream", **asked(**script), tools=tools))
    parts = [part for chunk in chunks for part in chunk["choices"][0]["delta"]["tool_calls"] or ()]
    assert json.loads("".join(part["function"]["arguments"] or "" for part in parts)) == {"city": "Bern"}


def test_chat_errors(call: Call) -> None:
    found = call("chat", "whole", **asked(text="a", fault="status:500"))
    assert found["raised"][0] == "APIError"
    found = call("chat", "stream", **asked(text="one two three four", fault="reset@3"))
    assert found["raised"][0] == "InvalidGenerationError"
