"""The laws of TGI's API, by their numbers in the notes on its recorded clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway import backends, dialects
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start
from gateway.core.http import JSON_TYPE, Request
from gateway.core.messages import Complete
from gateway.core.ports import Capabilities, Settings, StreamWriter
from gateway.translation.offline import Refused, send
from tests.support.harness import Stack
from tests.unit.app.asking import FORGOTTEN, key

LAWS = 12
"""How many there are: tests/repo looks for a test of each."""

DIALECT = dialects.create("tgi", Settings())
MEMBERS = {
    *("model_id", "model_sha", "model_pipeline_tag", "max_concurrent_requests", "max_best_of", "max_stop_sequences"),
    *("max_input_tokens", "max_total_tokens", "validation_workers", "max_client_batch_size"),
    *("router", "version", "sha", "docker_label"),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    config = {"breaker": {"failures": 10_000}, "dialects": {"tgi": {"default_model": "m"}}}
    with Stack(workers=({"itl_ms": 5},), config=config) as stack, httpx.Client(base_url=stack.url + "/tgi") as found:
        yield found


def asking(parameters: dict[str, Any] | None = None, stream: bool | None = None, **script: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"inputs": "sim:" + json.dumps(script)}
    if parameters is not None:
        body["parameters"] = parameters
    return body if stream is None else {**body, "stream": stream}


def sent(backend: str = "vllm", route: str = "generate", **body: Any) -> Any:
    asked = json.dumps({"inputs": "hi", **body}).encode()
    return json.loads(send(DIALECT, backends.create(backend), asked, Capabilities("w"), route=route).outgoing.body)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]


@pytest.mark.parametrize("parameters", [None, {"details": True, "return_full_text": True}])
def test_law_1_one_body_three_shapes(client: httpx.Client, parameters: dict[str, Any] | None) -> None:
    body = asking(parameters, text="Hello there")
    (listed,) = client.post("/", json=body).json()
    whole = client.post("/generate", json={**body, "stream": True}).json()
    found = events(client.post("/generate_stream", json=body).text)
    assert listed["generated_text"] == whole["generated_text"] == found[-1]["generated_text"]
    assert whole["generated_text"] == (body["inputs"] if parameters else "") + "Hello there"
    assert ("details" in whole) is bool(parameters)
    assert events(client.post("", json={**body, "stream": True}).text)[-1]["generated_text"] == whole["generated_text"]


def test_law_2_the_whole_text_is_said_once_and_last(client: httpx.Client) -> None:
    found = events(client.post("/generate_stream", json=asking(text="one two three")).text)
    assert [event["generated_text"] is not None for event in found] == [False] * (len(found) - 1) + [True]
    assert "".join(event["token"]["text"] for event in found) == found[-1]["generated_text"] == "one two three"
    assert [event["index"] for event in found] == list(range(1, len(found) + 1))
    assert all(isinstance(event["token"]["id"], int) for event in found)


def test_law_3_no_marks_of_other_wires(client: httpx.Client) -> None:
    reply = client.post("/generate_stream", json=asking(text="Hello"))
    assert reply.headers["content-type"] == "text/event-stream"
    assert "[DONE]" not in reply.text
    assert "event:" not in reply.text


def stream_writer() -> StreamWriter:
    op = DIALECT.read(Request("POST", "/", [JSON_TYPE], b'{"inputs":"hi"}', b"", "generate_stream", {}, "r"))
    assert isinstance(op, Complete)
    return DIALECT.writer(op)


def test_law_3_a_keep_alive_is_no_event() -> None:
    said = stream_writer().keepalive()
    assert said.endswith(b"\n")
    assert all(not line or line.startswith(b":") for line in said.split(b"\n"))


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [(None, 1.0), ({}, 0.0), ({"do_sample": True}, 1.0), ({"do_sample": False}, 0.0), ({"temperature": 0.5}, 0.5),
     ({"top_p": 1.0}, 1.0), ({"typical_p": 0.9}, 1.0)],
)  # fmt: skip
def test_law_4_sampling(parameters: dict[str, Any] | None, temperature: float) -> None:
    body: dict[str, Any] = {} if parameters is None else {"parameters": parameters}
    assert sent(**body)["temperature"] == temperature


def test_law_4_a_null_is_as_if_absent() -> None:
    names = ("max_new_tokens", "do_sample", "temperature", "stop", "seed", "grammar", "best_of", "details", "watermark")
    assert sent(parameters=dict.fromkeys(names)) == sent(parameters={})
    assert sent(parameters=None, stream=None) == sent()
    assert sent(parameters={"stop": ["", "a"]}) == sent(parameters={"stop": ["a"]})


def test_law_5_tokens_are_counted_as_the_worker_counts(client: httpx.Client) -> None:
    body = asking({"details": True, "max_new_tokens": 3}, text="one two three four five six")
    details = client.post("/generate", json=body).json()["details"]
    assert details["generated_tokens"] == len(details["tokens"]) == 3
    found = events(client.post("/generate_stream", json=body).text)
    assert found[-1]["details"]["generated_tokens"] == len(found) == 3
    assert found[-1]["details"]["input_length"] > 0


def test_law_5_tokens_that_no_worker_counted_are_counted() -> None:
    writer, deltas = stream_writer(), [Delta(0, 0, "a", (1,)), Delta(0, 0, "b", (2,))]
    made: list[Event] = [Start("i", "m", 1), PartStart(0, 0, "text"), *deltas, PartEnd(0, 0), Finish(0, "stop", "stop")]
    last = events(b"".join(writer.write(event) for event in [*made, End()]).decode())[-1]
    assert last["details"]["generated_tokens"] == last["index"] == 2


@pytest.mark.parametrize("text", ["one two three four five six", "Grüezi 你好", "one", ""])
def test_law_5_the_models_own_end_is_a_token(client: httpx.Client, text: str) -> None:
    """A special one, without a text: clients leave it out of the text, and count it."""
    body = asking({"details": True}, text=text)
    details = client.post("/generate", json=body).json()["details"]
    found = events(client.post("/generate_stream", json=body).text)
    assert details["finish_reason"] == found[-1]["details"]["finish_reason"] == "eos_token"
    assert details["generated_tokens"] == len(details["tokens"]) == len(found)
    assert [one["token"] for one in found] == details["tokens"]
    assert [one["special"] for one in details["tokens"]] == [False] * (len(found) - 1) + [True]
    assert "".join(one["token"]["text"] for one in found if not one["token"]["special"]) == text
    assert found[-1]["token"]["id"] >= 0


def test_law_6_how_it_ends(client: httpx.Client) -> None:
    def ends(parameters: dict[str, Any], text: str) -> tuple[str, str]:
        body = asking({"details": True, **parameters}, text=text)
        whole = client.post("/generate", json=body).json()
        last = events(client.post("/generate_stream", json=body).text)[-1]
        found = whole["generated_text"], whole["details"]["finish_reason"]
        assert found == (last["generated_text"], last["details"]["finish_reason"])
        assert "".join(token["text"] for token in whole["details"]["tokens"]) == whole["generated_text"]
        return found

    assert ends({}, "one two") == ("one two", "eos_token")
    assert ends({"stop": ["two"]}, "one two three") == ("one two", "stop_sequence")
    assert ends({"max_new_tokens": 1}, "one two three")[1] == "length"


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", 0), ("max_new_tokens", 2**31), ("temperature", 0), ("top_k", 0), ("top_k", 2**31),
     ("top_p", 1.5), ("typical_p", 0), ("seed", -1), ("repetition_penalty", 0), ("frequency_penalty", 3),
     ("stop", ["a"] * 5), ("best_of", 3), ("top_n_tokens", 6), ("details", "yes"), ("grammar", {"type": "yaml"}),
     ("decoder_input_details", True), ("top_n_tokens", 1)],
)  # fmt: skip
def test_law_7_what_is_out_of_range_is_a_422(client: httpx.Client, name: str, value: Any) -> None:
    for path in ("/", "/generate", "/generate_stream"):
        refused = client.post(path, json=asking({name: value}, text="x"))
        assert refused.status_code == 422
        assert refused.json()["error_type"] == "validation"
        assert f"parameters.{name}" in refused.json()["error"]


def test_law_7_no_inputs(client: httpx.Client) -> None:
    for body in ({"inputs": ""}, {}):
        refused = client.post("/generate", json=body)
        assert (refused.status_code, refused.json()["error_type"]) == (422, "validation")


@pytest.mark.parametrize("fault", ["eof@6", "reset@6"])
def test_law_8_a_failure_in_a_stream_is_an_event_and_a_cut(client: httpx.Client, fault: str) -> None:
    got: list[bytes] = []
    body = asking(text="one two three four five six seven eight nine", fault=fault)
    with client.stream("POST", "/generate_stream", json=body) as reply, pytest.raises(httpx.RemoteProtocolError):
        got.extend(reply.iter_raw())
    *before, last = events(b"".join(got).decode())
    assert last["error_type"] == "incomplete_generation"
    assert all(event["generated_text"] is None for event in before)


def test_law_9_details_without_ids_are_refused() -> None:
    for route in ("generate", "root"):
        assert "logprobs" not in sent("openai", route)
        with pytest.raises(Refused) as caught:
            sent("openai", route, parameters={"details": True})
        assert caught.value.response.status == 422
    with pytest.raises(Refused):
        sent("openai", "generate_stream")


@pytest.mark.parametrize("more", [{"seed": 1}, {"do_sample": False}])
def test_law_10_best_of_needs_sampling_alone(client: httpx.Client, more: dict[str, Any]) -> None:
    refused = client.post("/generate", json=asking({"do_sample": True, "best_of": 2, **more}, text="x"))
    assert refused.status_code == 422
    assert "best_of" in refused.json()["error"]
    parameters = {"do_sample": True, "best_of": 2}
    assert client.post("/generate_stream", json=asking(parameters, text="x")).status_code == 422
    assert client.post("/generate", json=asking(parameters, text="x")).json()["generated_text"] == "x"


def test_law_11_info_names_no_secret() -> None:
    secret, keys = key("app", models=["m"])
    config = {"auth": "keys", "keys": keys, "models": {"secret": FORGOTTEN, "m": {}}}
    with Stack(config=config) as stack:
        said = httpx.get(stack.url + "/tgi/info", headers={"authorization": f"Bearer {secret}"}).json()
        assert set(said) == MEMBERS
        assert said["model_id"] == "m"
        assert httpx.get(stack.url + "/tgi/info").status_code == 401
        assert httpx.get(stack.url + "/tgi/health").status_code == 200


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    "grammar",
    [{"type": "json", "value": SCHEMA}, {"type": "json", "value": json.dumps(SCHEMA)},
     {"type": "json_object", "value": SCHEMA},
     {"type": "json_schema", "value": {"name": "n", "schema": SCHEMA}}],
)  # fmt: skip
def test_law_12_a_grammar_reaches_the_worker(grammar: dict[str, Any]) -> None:
    told = sent(parameters={"grammar": grammar})
    assert told["response_format"]["json_schema"]["schema"] == SCHEMA
    assert sent(parameters={"grammar": {"type": "regex", "value": "a+"}})["structured_outputs"] == {"regex": "a+"}
    with pytest.raises(Refused) as caught:
        sent("openai", parameters={"grammar": {"type": "regex", "value": "a+"}})
    assert caught.value.response.status == 422
