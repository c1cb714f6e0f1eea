"""Backend tgi: what its workers are sent, what they cannot do, how their replies and errors are read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.backends.tgi import MAX_STOPS, Tgi
from gateway.core import totals
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, Event, Failed, Finish, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import checked, fold
from gateway.core.messages import (
    Audio,
    Beams,
    Chat,
    Complete,
    Embed,
    Image,
    Logprobs,
    Message,
    Output,
    Sampling,
    Text,
    Tool,
    ToolCall,
)
from gateway.core.ports import Capabilities
from gateway.core.usage import Usage

TGI = Tgi()
CAN = Capabilities("ignored")
HI = (Message("user", (Text("hi"),)),)
SCHEMA = Raw(b'{"properties":{"a":{"type":"string"}}}')


def text(prompt: Any = "hi", **fields: Any) -> Complete:
    return Complete(model="m", prompts=(prompt,), **fields)


def chat(messages: tuple[Message, ...] = HI, **fields: Any) -> Chat:
    return Chat(model="m", messages=messages, **fields)


def sent(op: Chat | Complete) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TGI.write(op, CAN).body)
    return found


def parameters(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = sent(text(**fields))["parameters"]
    return found


def test_the_least_text() -> None:
    request = TGI.write(text(), CAN)
    assert (request.method, request.path) == ("POST", "/generate")
    assert json.loads(request.body) == {"inputs": "hi", "parameters": {"details": True, "do_sample": True}}
    assert TGI.write(text(stream=True), CAN).path == "/generate_stream"


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=0.5, top_k=5, top_p=0.9), {"temperature": 0.5, "top_k": 5, "top_p": 0.9}),
        (Sampling(temperature=1.0, top_k=0, top_p=1.0), {"temperature": 1.0}),
        (Sampling(top_k=-1), {}),
        (
            Sampling(frequency_penalty=0.5, repetition_penalty=1.1),
            {"frequency_penalty": 0.5, "repetition_penalty": 1.1},
        ),
        (Sampling(frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0), {}),
        (Sampling(seed=0), {"seed": 0}),
        (Sampling(min_p=0.0, min_tokens=0, no_repeat_ngram=1, ignore_eos=False), {}),
    ],
)
def test_sampling_of_a_text(sampling: Sampling, expected: dict[str, Any]) -> None:
    assert parameters(sampling=sampling) == {"details": True, "do_sample": True, **expected}


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0, top_p=0.5, top_k=4), Sampling(top_p=0.0)])
def test_greedy_is_no_sampling_at_all(sampling: Sampling) -> None:
    """Any of temperature, top_k and top_p would turn sampling on, and TGI takes no 0."""
    assert parameters(sampling=sampling) == {"details": True, "do_sample": False}
    assert sent(chat(sampling=sampling)) == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "tgi",
        "temperature": 0.0,
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_output": 7}, {"max_new_tokens": 7}),
        ({"stop": ("a", "b")}, {"stop": ["a", "b"]}),
        ({"seeds": (9,)}, {"seed": 9}),
        ({"logprobs": Logprobs(3)}, {"top_n_tokens": 3}),
        ({"logprobs": Logprobs()}, {}),
        ({"want_tokens": True}, {}),
        ({"output": Output("schema", SCHEMA)}, {"grammar": {"type": "json", "value": json.loads(bytes(SCHEMA))}}),
        ({"output": Output("regex", pattern="a+")}, {"grammar": {"type": "regex", "value": "a+"}}),
        ({"output": Output("choice", choices=("a.b", "c"))}, {"grammar": {"type": "regex", "value": r"(a\.b|c)"}}),
        ({"output": Output("text")}, {}),
        ({"extra": {"typical_p": Raw(b"0.9"), "truncate": Raw(b"5")}}, {"typical_p": 0.9, "truncate": 5}),
    ],
)
def test_further_parameters_of_a_text(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parameters(**fields) == {"details": True, "do_sample": True, **expected}


def test_members_of_another_wire() -> None:
    """Those that its client meant for OpenAI go on, those that TGI would not obey do not; ours are never replaced."""
    extra = {"store": Raw(b"true"), "inputs": Raw(b'"other"'), "skip_special_tokens": Raw(b"true")}
    body = sent(text(extra=extra))
    assert (body["inputs"], body["store"]) == ("hi", True)
    raw = {"messages": Raw(b"[]"), "top_k": Raw(b"0"), "metadata": Raw(b"{}")}
    assert sent(chat(raw=raw, wire="openai"))["metadata"] == {}


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 2}),
    ("stop", {"stop": ("a",) * (MAX_STOPS + 1)}),
    ("seed", {"sampling": Sampling(seed=-1)}),
    ("presence_penalty", {"sampling": Sampling(presence_penalty=0.1)}),
    ("min_p", {"sampling": Sampling(min_p=0.1)}),
    ("min_tokens", {"sampling": Sampling(min_tokens=1)}),
    ("no_repeat_ngram", {"sampling": Sampling(no_repeat_ngram=2)}),
    ("logit_bias", {"sampling": Sampling(logit_bias={1: 1.0})}),
    ("stop_tokens", {"sampling": Sampling(stop_tokens=(1,))}),
    ("eos_tokens", {"sampling": Sampling(eos_tokens=(1,))}),
    ("bad_words", {"sampling": Sampling(bad_words=("a",))}),
    ("bad_tokens", {"sampling": Sampling(bad_tokens=((1,),))}),
    ("ignore_eos", {"sampling": Sampling(ignore_eos=True)}),
    ("response_format", {"output": Output("json")}),
    ("response_format", {"output": Output("grammar", pattern="root ::= x")}),
    ("structured_outputs", {"extra": {"structured_outputs": Raw(b'{"regex":"a"}')}}),
    ("bad_words", {"extra": {"bad_words": Raw(b'["a"]')}}),
    ("skip_special_tokens", {"extra": {"skip_special_tokens": Raw(b"false")}}),
]
REFUSED_TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": (1, 2)}),
    ("num_beams", {"beams": Beams(2)}),
    ("max_total_tokens", {"max_total": 9}),
    ("min_total_tokens", {"min_total": 9}),
    ("suffix", {"suffix": "x"}),
    ("echo", {"echo": True}),
    ("seed", {"seeds": (-5,)}),
]
REFUSED_CHATS: list[tuple[str, dict[str, Any]]] = [
    ("top_k", {"sampling": Sampling(top_k=5)}),
    ("repetition_penalty", {"sampling": Sampling(repetition_penalty=1.1)}),
    ("reasoning_effort", {"reasoning": "low"}),
    ("tokens", {"want_tokens": True}),
    ("messages.0.content.0", {"messages": (Message("user", (Audio("aGk=", "wav"),)),)}),
]


def test_the_length_of_a_prompt_is_asked_with_the_same_body() -> None:
    asked = text(max_total=9, extra={"truncate": Raw(b"3")})
    counting = TGI.count(asked, CAN)
    assert counting.request.path == "/tokenize"
    assert counting.request.body == TGI.write(totals.without(asked), CAN).body
    said = b'[{"id":5,"text":"a","start":0,"stop":1},{"id":6,"text":"b","start":1,"stop":2}]'
    assert counting.read(Response(200, [], said)) == 2
    with pytest.raises(GatewayError, match="min_total_tokens"):
        TGI.count(text(min_total=9), CAN)


@pytest.mark.parametrize(("param", "fields"), REFUSED + REFUSED_TEXTS)
def test_what_a_text_cannot_have(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(GatewayError, match=param.replace(".", r"\.")) as caught:
        sent(text(**fields))
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED, param)


@pytest.mark.parametrize(("param", "fields"), REFUSED + REFUSED_CHATS)
def test_what_a_chat_cannot_have(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as caught:
        sent(chat(**fields))
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED, param)


def test_several_prompts_and_embeddings() -> None:
    with pytest.raises(GatewayError) as caught:
        TGI.write(Complete(model="m", prompts=("a", "b")), CAN)
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED, "prompt")
    with pytest.raises(GatewayError) as caught:
        TGI.write(Embed(model="m", inputs=("a",)), CAN)
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED, None)


def test_messages_and_tools() -> None:
    call = ToolCall("0", "f", '{"a":1}')
    messages = (
        Message("user", (Text("look"), Image("data:image/png;base64,AA=="))),
        Message("assistant", (Text("wait"), call)),
        Message("assistant", (call,)),
        Message("tool", (Text("42"),), call_id="0"),
    )
    body = sent(chat(messages, tools=(Tool("f"),), tool_choice="required", parallel_tools=False, stream=True))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "assistant", "assistant", "tool"]
    assert body["messages"][1] == {"role": "assistant", "content": "wait"}
    assert body["messages"][2] == body["messages"][3]
    assert "content" not in body["messages"][2], "TGI would read the content, and no call"
    assert body["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert "parallel_tool_calls" not in body
    assert body["stream_options"] == {"include_usage": True}


def test_what_is_left_out_is_named() -> None:
    schema = Output("schema", Raw(b"{}"), description="d", extra={"x": Raw(b"1")})
    unnamed = ("max_tokens", "messages[].x", "response_format.x", "stream_options.x")
    named = "response_format.json_schema.description"
    op = chat(output=schema, unnamed=unnamed, user="u", parallel_tools=True, tools=(Tool("f"),))
    assert TGI.write(op, CAN).dropped == (named, "max_tokens", "response_format.x", "parallel_tool_calls")
    assert TGI.write(text(output=schema, unnamed=unnamed, user="u"), CAN).dropped == (named, *unnamed, "user")
    assert TGI.write(chat(parallel_tools=False, user="u"), CAN).dropped == ()
    assert TGI.write(text(), CAN).dropped == ()


def test_what_has_no_canonical_name_is_written_once() -> None:
    x = {"x": Raw(b"1")}
    both = Message("assistant", (Text("wait"), ToolCall("0", "f", "{}", x)), extra=x)
    body = sent(chat((both,), stream=True, extra={"stream_options": Raw(b'{"x":1}')}))
    assert [message.get("x") for message in body["messages"]] == [1, None]
    assert body["messages"][1]["tool_calls"][0]["x"] == 1
    assert body["stream_options"] == {"x": 1, "include_usage": True}


# -- replies --------------------------------------------------------------------------------------------------------


def token(number: int, said: str, *, special: bool = False) -> dict[str, Any]:
    return {"id": number, "text": said, "logprob": -0.5, "special": special}


def event(said: dict[str, Any], whole: str | None = None, finish: str = "", **details: Any) -> bytes:
    body: dict[str, Any] = {"index": 1, "token": said, "generated_text": whole, "details": None}
    if finish:
        body["details"] = {"finish_reason": finish, "generated_tokens": 3, "seed": None, "input_length": 5, **details}
    return b"data:" + msgspec.json.encode(body) + b"\n\n"


STREAM = event(token(1, "a")) + event(token(2, " b")) + event(token(0, "</s>", special=True), "a b", "eos_token")
WHOLE: dict[str, Any] = {
    "generated_text": "a b",
    "details": {
        "finish_reason": "eos_token",
        "generated_tokens": 3,
        "seed": 1,
        "prefill": [],
        "tokens": [token(1, "a"), token(2, " b"), token(0, "</s>", special=True)],
    },
}


def streamed(op: Chat | Complete, *blocks: bytes) -> list[Event]:
    reader = TGI.reader(op)
    return list(checked([*(one for block in blocks for one in reader.feed(block)), *reader.eof()]))


def whole(op: Chat | Complete, body: Any, *headers: tuple[bytes, bytes]) -> list[Event]:
    return list(checked(TGI.read(Response(200, list(headers), msgspec.json.encode(body)), op)))


def test_a_text_streamed_and_whole_are_the_same() -> None:
    op = text(want_tokens=True, logprobs=Logprobs())
    by_stream = fold(streamed(op, STREAM))
    by_whole = fold(whole(op, WHOLE, (b"x-prompt-tokens", b"5")))
    for reply in (by_stream, by_whole):
        choice = reply.choices[0]
        assert (choice.text(), choice.tokens, choice.reason, choice.raw_reason) == ("a b", (1, 2), "stop", "eos_token")
        logprobs = [item for raw in choice.logprobs for item in json.loads(bytes(raw))]
        assert [item["token"] for item in logprobs] == ["a", " b"]
        assert reply.usage == Usage(5, 3)


def test_nothing_that_was_not_asked_for() -> None:
    choice = fold(streamed(text(), STREAM)).choices[0]
    assert (choice.tokens, choice.logprobs) == ((), ())


def test_alternatives() -> None:
    tops = [token(1, "a"), token(9, "z")]
    op = text(logprobs=Logprobs(2))
    stream = event({**token(1, "a")}).replace(b'"generated_text"', b'"top_tokens":%b,"generated_text"' % _json(tops))
    stream += event(token(2, "b"), "ab", "length")
    first = json.loads(bytes(fold(streamed(op, stream)).choices[0].logprobs[0]))[0]
    assert [top["token"] for top in first["top_logprobs"]] == ["a", "z"]
    body = json.loads(json.dumps(WHOLE))
    body["details"]["top_tokens"] = [tops, tops, tops]
    first = json.loads(bytes(fold(whole(op, body)).choices[0].logprobs[0]))[0]
    assert [top["token"] for top in first["top_logprobs"]] == ["a", "z"]


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


@pytest.mark.parametrize(
    ("headers", "prefill", "expected"),
    [([], [], None), ([(b"x-prompt-tokens", b"8")], [], 8), ([], [{"id": 1}, {"id": 2}], 2)],
)
def test_the_prompts_tokens_where_they_are_told(headers: Any, prefill: Any, expected: int | None) -> None:
    body = {**WHOLE, "details": {**WHOLE["details"], "prefill": prefill}}
    assert fold(whole(text(), body, *headers)).usage == Usage(expected, 3)


@pytest.mark.parametrize("place", [0, 20, len(STREAM) // 2, STREAM.rindex(b"data:")])
def test_a_stream_that_is_cut(place: int) -> None:
    last = streamed(text(), STREAM[:place])[-1]
    assert isinstance(last, Failed)
    assert last.error.kind is Kind.TRUNCATED


@pytest.mark.parametrize("junk", [b"{}", b"[]", b'{"generated_text":"x"}', b'{"token":{"id":1}}', b"\xff"])
def test_junk(junk: bytes) -> None:
    last = streamed(text(), event(token(1, "a")) + b"data:" + junk + b"\n\n")[-1]
    assert isinstance(last, Failed)
    assert last.error.kind is Kind.UPSTREAM
    last = list(TGI.read(Response(200, [], junk), text()))[-1]
    assert isinstance(last, Failed)


# -- stop sequences -------------------------------------------------------------------------------------------------


@given(
    tokens=st.lists(st.text("abX\n", max_size=4), max_size=8),
    stops=st.lists(st.text("abX", min_size=1, max_size=3), min_size=1, max_size=3),
    newline=st.booleans(),
    stopped=st.booleans(),
    together=st.booleans(),
)
def test_a_stop_sequence_never_shows(
    tokens: list[str], stops: list[str], newline: bool, stopped: bool, together: bool
) -> None:
    """However the text is cut into tokens. `together`: in the last event with the reason, or before it."""
    said = "".join(tokens)
    ending = stops[0] + "\n" * newline if stopped else ""
    pieces = [*tokens, *list(ending)] if not together else [*tokens, ending]
    finish = "stop_sequence" if stopped else "eos_token"
    op = text(stop=tuple(stops))
    frames = [event(token(1, piece)) for piece in pieces]
    if together and stopped:
        frames[-1] = event(token(9, ending), said + ending, finish)
    else:
        frames.append(event(token(0, "</s>", special=True), said + ending, finish))
    events = streamed(op, *frames)
    reply = fold(events)
    body = {"generated_text": said + ending, "details": {"finish_reason": finish, "generated_tokens": 3}}
    choice, buffered = reply.choices[0], fold(whole(op, body)).choices[0]
    assert (choice.text() or "") == (buffered.text() or "")
    assert choice.stop_sequence == buffered.stop_sequence
    shown = choice.text() or ""
    assert (said + ending).startswith(shown)
    if stopped:
        assert choice.stop_sequence is not None
        assert (said + ending).removeprefix(shown) in (choice.stop_sequence, f"{choice.stop_sequence}\n")
    else:
        assert choice.stop_sequence is None
        assert said.removeprefix(shown) in ("", *stops)
    assert isinstance(events[-2], UsageReport)
    assert sum(isinstance(one, Finish) for one in events) == 1


def test_text_that_is_held_back_is_not_lost_when_the_stream_is() -> None:
    events = streamed(text(stop=("END",)), event(token(1, "the EN")))
    assert "".join(one.text for one in events if isinstance(one, Delta)) == "the EN"
    assert isinstance(events[-1], Failed)


# -- errors ---------------------------------------------------------------------------------------------------------

WRONG = "Input validation error: "
LONG = WRONG + "`inputs` tokens + `max_new_tokens` must be <= 9. Given: 4 `inputs` tokens and 8 `max_new_tokens`"
FAULTS: list[tuple[int, str, str, Kind, str | None]] = [
    (422, "validation", WRONG + "`temperature` must be strictly positive", Kind.BAD_REQUEST, "temperature"),
    (422, "validation", WRONG + "`max_new_tokens` must be strictly positive", Kind.BAD_REQUEST, "max_tokens"),
    (422, "validation", WRONG + "`truncate` must be", Kind.BAD_REQUEST, None),
    (422, "validation", LONG, Kind.CONTEXT_LENGTH, None),
    (422, "validation", WRONG + "`inputs` must have less than 9 tokens. Given: 10", Kind.CONTEXT_LENGTH, None),
    (422, "template_error", "Template error: no such template", Kind.BAD_REQUEST, None),
    (422, "tool_error", "Tool error: Grammar and tools are mutually exclusive", Kind.BAD_REQUEST, None),
    (424, "generation", "Request failed during generation: CUDA", Kind.UPSTREAM, None),
    (429, "overloaded", "Model is overloaded", Kind.OVERLOADED, None),
    (500, "incomplete_generation", "Incomplete generation", Kind.UPSTREAM, None),
    (503, "healthcheck", "unhealthy", Kind.OVERLOADED, None),
]


@pytest.mark.parametrize(("status", "type_", "message", "kind", "param"), FAULTS)
def test_faults(status: int, type_: str, message: str, kind: Kind, param: str | None) -> None:
    """As an answer, as an event of a text's stream, as an event of a chat's."""
    body = {"error": message, "error_type": type_}
    late = {"error": {"message": message, "http_status_code": 422}}
    found = [TGI.fault(Response(status, [], msgspec.json.encode(body)))]
    for op, event_ in ((text(), body), (chat(), late)):
        last = streamed(op, b"data:" + msgspec.json.encode(event_) + b"\n\n")[-1]
        assert isinstance(last, Failed)
        found.append(last.error)
    for error in found[: 2 if type_ == "healthcheck" else 3]:
        assert (error.kind, error.param, error.upstream) == (kind, param, status)
        assert "CUDA" not in error.message
        assert kind not in (Kind.BAD_REQUEST, Kind.CONTEXT_LENGTH) or error.message in message


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"null", b"Failed to deserialize the JSON body"])
@pytest.mark.parametrize(("status", "kind"), [(422, Kind.BAD_REQUEST), (500, Kind.UPSTREAM), (404, Kind.UPSTREAM)])
def test_answers_that_are_no_json(body: bytes, status: int, kind: Kind) -> None:
    error = TGI.fault(Response(status, [], body))
    assert error.kind is kind
    assert "deserialize" not in error.message
    assert "html" not in error.message
