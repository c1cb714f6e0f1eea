"""`dragoman worker simulated`: what a trial needs of vLLM's wire, and its command line."""

from __future__ import annotations

import base64
import json
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.harness import sse_data, until
from workers.simulated import main
from workers.simulated.options import Options
from workers.simulated.server import Simulated

CHAT = "/v1/chat/completions"


def started(*flags: str) -> tuple[subprocess.Popen[str], httpx.Client]:
    """The worker on a free port, and a client of it."""
    command = (sys.executable, "-m", "workers.simulated", "--port", "0", *flags)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, httpx.Client(base_url=process.stdout.readline().split()[-1])


@pytest.fixture(scope="module")
def worker() -> Iterator[httpx.Client]:
    process, client = started("--model", "one", "--model", "two", "--token-details", "--itl-ms", "1")
    with process, client:
        yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "two", "messages": [{"role": "user", "content": text}], **more}


def figures(client: httpx.Client) -> dict[str, float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.value]
    return {" ".join((one.name, *filter(None, [one.labels.get("finished_reason")]))): one.value for one in samples}


def test_a_stream_has_running_usage_if_it_is_wanted(worker: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = worker.post(CHAT, json=chat(max_tokens=2, seed=3, stream=True, stream_options=options))
    *events, _ = sse_data(streamed.content)
    used = [json.loads(event)["usage"] for event in events]
    read = used[0]["prompt_tokens"]
    assert [(one["prompt_tokens"], one["completion_tokens"], one["total_tokens"]) for one in used] == [
        *((read, made, read + made) for made in range(3)),
        (read, 2, read + 2),
    ]


PLACE = {"type": "object", "properties": {"location": {"type": "string"}, "unit": {"enum": ["C", "F"]}}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": "send_mail"}},
]
NAMED = {"type": "function", "function": {"name": "send_mail"}}
SUNNY = {"location": "Is it sunny weather?", "unit": "C"}


@pytest.mark.parametrize(
    ("said", "choice", "called"),
    [
        ("Is it sunny weather?", None, ("get_weather", SUNNY)),
        ("Is it sunny weather?", "auto", ("get_weather", SUNNY)),
        ("Is it sunny weather?", "none", None),
        ("hello", "auto", None),
        ("hello", "required", ("get_weather", {"location": "hello", "unit": "C"})),
        ("hello", NAMED, ("send_mail", {})),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_that_is_demanded_or_named(
    worker: httpx.Client, said: str, choice: Any, called: tuple[str, dict[str, Any]] | None, stream: bool
) -> None:
    body = chat(said, tools=TOOLS, stream=stream, **({} if choice is None else {"tool_choice": choice}))
    reply = worker.post(CHAT, json=body)
    if stream:
        events = [json.loads(event)["choices"] for event in sse_data(reply.content) if event != b"[DONE]"]
        finish = next(one["finish_reason"] for (one,) in events if one["finish_reason"])
        calls = [call for (one,) in events for call in one["delta"].get("tool_calls", ())]
        name = calls[0]["function"]["name"] if calls else None
        arguments = "".join(call["function"]["arguments"] for call in calls)
        assert not calls or len(calls) > 1, "arguments come in pieces"
    else:
        (one,) = reply.json()["choices"]
        finish, calls = one["finish_reason"], one["message"].get("tool_calls", [])
        name, arguments = (calls[0]["function"]["name"], calls[0]["function"]["arguments"]) if calls else (None, "")
    assert (name, json.loads(arguments) if calls else None) == (called or (None, None))
    assert finish == ("tool_calls" if called else "stop")


def test_a_call_may_be_cut_by_its_length(worker: httpx.Client) -> None:
    (one,) = worker.post(CHAT, json=chat(tools=TOOLS, tool_choice="required", max_tokens=3)).json()["choices"]
    assert one["finish_reason"] == "length"
    assert one["message"]["tool_calls"][0]["function"]["arguments"] == '{"location":'[:12]


def test_the_result_of_a_call_is_answered_in_words(worker: httpx.Client) -> None:
    turns = [{"role": "user", "content": "How is the weather?"}, {"role": "tool", "content": "weather: rain"}]
    (one,) = worker.post(CHAT, json=chat(messages=turns, tools=TOOLS)).json()["choices"]
    assert one["message"]["content"]


@pytest.mark.parametrize("more", [{"tools": [{"type": "function"}]}, {"tools": TOOLS, "tool_choice": {"name": "x"}}])
def test_tools_that_are_none_are_refused(worker: httpx.Client, more: dict[str, Any]) -> None:
    reply = worker.post(CHAT, json=chat(**more))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")


def test_a_stream_says_what_a_plain_reply_says(worker: httpx.Client) -> None:
    whole = worker.post(CHAT, json=chat(n=2, seed=3)).json()
    streamed = worker.post(CHAT, json=chat(n=2, seed=3, stream=True, stream_options={"include_usage": True}))
    *events, done = sse_data(streamed.content)
    assert done == b"[DONE]"
    *chunks, last = map(json.loads, events)
    said = ["", ""]
    finishes = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        said[choice["index"]] += choice["delta"]["content"]
        finishes[choice["index"]] = choice["finish_reason"]
    assert said == [choice["message"]["content"] for choice in whole["choices"]]
    assert said[0] != said[1]
    assert finishes == {0: "stop", 1: "stop"}
    assert whole["model"] == last["model"] == "one"
    assert (
        last["usage"]["completion_tokens"]
        == whole["usage"]["completion_tokens"]
        == sum(len(text) for text in said) / 4 + 2
    )


def test_completions_of_texts_and_of_tokens(worker: httpx.Client) -> None:
    reply = worker.post("/v1/completions", json={"prompt": ["a b", [1, 2, 3]], "max_tokens": 2}).json()
    assert [(choice["index"], choice["finish_reason"], len(choice["text"])) for choice in reply["choices"]] == [
        (0, "length", 8),
        (1, "length", 8),
    ]
    assert reply["usage"]["prompt_tokens"] == 4
    streamed = worker.post("/v1/completions", json={"prompt": "a b", "max_tokens": 2, "stream": True})
    *chunks, _ = sse_data(streamed.content)
    assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == reply["choices"][0]["text"]


def test_embeddings_in_both_forms(worker: httpx.Client) -> None:
    row, other = worker.post("/v1/embeddings", json={"input": ["a", "b"]}).json()["data"]
    assert len(row["embedding"]) == 64
    assert row["embedding"] != other["embedding"]
    packed = worker.post("/v1/embeddings", json={"input": "a", "encoding_format": "base64"}).json()["data"][0]
    assert struct.unpack("<64f", base64.b64decode(packed["embedding"])) == pytest.approx(row["embedding"])


def test_what_the_gateway_asks_beside(worker: httpx.Client) -> None:
    assert [model["id"] for model in worker.get("/v1/models").json()["data"]] == ["one", "two"]
    assert worker.get("/version").json() == {"version": "0.33.0"}
    assert worker.get("/health").status_code == 200
    counted = worker.post("/tokenize", json=chat("x" * 40)).json()
    assert (
        counted["count"]
        == len(counted["tokens"])
        == worker.post(CHAT, json=chat("x" * 40)).json()["usage"]["prompt_tokens"]
    )
    before = figures(worker)
    usage = worker.post(CHAT, json=chat("y" * 400)).json()["usage"]
    again = worker.post(CHAT, json=chat("y" * 400)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert again["prompt_tokens_details"]["cached_tokens"] >= 96
    grown = {name: value - before.get(name, 0) for name, value in figures(worker).items()}
    assert grown["vllm:prompt_tokens_total"] == 2 * usage["prompt_tokens"]
    assert grown["vllm:generation_tokens_total"] == 2 * usage["completion_tokens"]
    assert grown["vllm:prefix_cache_hits_total"] == again["prompt_tokens_details"]["cached_tokens"]
    assert grown["vllm:time_to_first_token_seconds_count"] == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (CHAT, {**chat(), "model": "three"}, 404, "NotFoundError"),
        (CHAT, chat("x" * 4 * 8192), 400, "BadRequestError"),
        (CHAT, chat(n="many"), 400, "Bad Request"),
        ("/v1/nothing", {}, 404, "Not Found"),
    ],
)
def test_refusals(worker: httpx.Client, path: str, body: dict[str, Any], status: int, kind: str) -> None:
    reply = worker.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)


def test_a_leaving_client_frees_its_slot(worker: httpx.Client) -> None:
    body = chat(max_tokens=8000, ignore_eos=True)
    with pytest.raises(httpx.ReadTimeout):
        worker.post(CHAT, json=body, timeout=0.2)
    with worker.stream("POST", CHAT, json={**body, "stream": True}) as reply:
        next(reply.iter_raw())
    until(lambda: figures(worker).get("vllm:request_success_total abort") == 2)
    assert not {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"} & figures(worker).keys()


@pytest.mark.parametrize(("options", "status"), [({"loading_s": 60.0}, 503), ({"slots": 1, "queue_limit": 0}, 200)])
async def test_loading_and_a_full_queue(options: dict[str, Any], status: int) -> None:
    app = Simulated(Options(**options))
    app.engine.running = 1
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as client:
        assert (await client.get("/health")).status_code == status
        refused = await client.post(CHAT, json={"messages": [{"role": "user", "content": "x"}]})
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "ServiceUnavailableError")


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    help_text = capsys.readouterr().out
    assert all(flag in help_text for flag in ("--prefill-us-per-token", "--no-prefix-cache", "--model", "--register"))
    assert main(["--host", "203.0.113.1", "--port", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
