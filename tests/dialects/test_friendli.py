"""The dialect `friendli`, byte by byte: what it reads, writes and refuses. No socket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Headers, Request, Response
from gateway.core.lifecycle import fold
from gateway.core.messages import Chat, Complete
from gateway.core.ports import Capabilities, Settings
from gateway.core.usage import Usage
from gateway.dialects.friendli import ERRORS, FATES, Friendli
from gateway.relay import EventLane

DIALECT = Friendli(Settings())
CAN = Capabilities("w", max_context=2048)
HI = [{"role": "user", "content": "hi"}]

# The specification's examples as it prints them.
SAMPLE_REPLY = """{
"choices": [
{
"index": 0,
"seed": 42,
"text": "\\n\\nThis is indeed a test",
"tokens": [
3,
3,
412,
15,
5440,
129,
3391
]
}
],
"usage": {
"prompt_tokens": 5,
"completion_tokens": 7,
"total_tokens": 12
}
}"""
SAMPLE_STREAM = """data: {"event": "token_sampled", "index": 0, "text": "\\n", "token": 3}
data: {"event": "token_sampled", "index": 0, "text": "\\n", "token": 3}
data: {"event": "token_sampled", "index": 0, "text": "This", "token": 412}
data: {"event": "token_sampled", "index": 0, "text": " is", "token": 15}
data: {"event": "token_sampled", "index": 0, "text": " indeed", "token": 5440}
data: {"event": "token_sampled", "index": 0, "text": " a", "token": 129}
data: {"event": "token_sampled", "index": 0, "text": " test", "token": 3391}
data: {
"event": "complete",
"choices": [
{
"index": 0,
"seed": 42,
"text": "\\n\\nThis is indeed a test",
"tokens": [3, 3, 412, 15, 5440, 129, 3391]
}
],
"usage": {
"prompt_tokens": 5,
"completion_tokens": 7,
"total_tokens": 12
}
}"""
SAID = [("\n", 3), ("\n", 3), ("This", 412), (" is", 15), (" indeed", 5440), (" a", 129), (" test", 3391)]
# What friendli-client 1.5.8 sends, nulls and all.
CLIENT_BODY: dict[str, Any] = {
    **{field.name: None for field in FATES["complete"] if field.sample is not None},
    "stream": False,
    "prompt": "Say this is a test!",
}
del CLIENT_BODY["response_format"]


def request(body: Any, *headers: tuple[bytes, bytes], route: str = "complete") -> Request:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found: Headers = [(b"content-type", b"application/json"), *headers]
    return Request("POST", "/v1/completions", found, raw, b"", route)


def read(members: dict[str, Any] | None = None, *headers: tuple[bytes, bytes], **more: Any) -> Complete:
    op = DIALECT.read(request({"prompt": "hi", **(members or {}), **more}, *headers))
    assert isinstance(op, Complete)
    return op


def read_chat(**members: Any) -> Chat:
    op = DIALECT.read(request({"messages": HI, **members}, route="chat"))
    assert isinstance(op, Chat)
    return op


def to_worker(op: Complete | Chat, can: Capabilities = CAN) -> Any:
    return json.loads(Vllm().write(op, can).body)


def refused(body: Any, route: str = "complete") -> tuple[int, dict[str, Any]]:
    """(status, error) of a request that the dialect or the backend refuses."""
    asked, op = request(body, route=route), None
    try:
        op = DIALECT.read(asked)
        Vllm().write(op, CAN)
    except GatewayError as error:
        response = DIALECT.refuse(error, asked, op)
        return response.status, json.loads(response.body)["error"]
    raise AssertionError("it was not refused")


# -- requests -------------------------------------------------------------------------------------------------------


def test_the_clients_body_is_read_and_every_default_is_said_aloud() -> None:
    sent = to_worker(read(CLIENT_BODY))
    seed = sent.pop("seed")
    assert 0 <= seed < 2**31
    assert sent == {
        "prompt": "Say this is a test!",
        "model": "w",
        "max_tokens": 2048,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "return_token_ids": True,
    }


def test_everything_that_can_be_executed() -> None:
    op = read(
        prompt=None,
        tokens=[1, 2],
        timeout_microseconds=5_000_000,
        max_tokens=5,
        min_tokens=1,
        n=2,
        no_repeat_ngram=1,
        encoder_no_repeat_ngram=1,
        repetition_penalty=1.1,
        encoder_repetition_penalty=1.0,
        frequency_penalty=0.1,
        presence_penalty=-2,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        stop=["a"],
        stop_tokens=[{"tokens": [1, 2]}, {"tokens": [3]}],
        seed=[1, 2],
        bad_words=["x"],
        bad_word_tokens=[{"tokens": [5]}],
        include_output_logits=False,
        include_output_logprobs=True,
        eos_token=[2],
        token_index_to_replace=[],
        model="m",
    )
    assert to_worker(op) == {
        "prompt": [1, 2],
        "model": "w",
        "max_tokens": 5,
        "min_tokens": 1,
        "n": 2,
        "seed": 1,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "presence_penalty": -2.0,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "stop": ["a"],
        "stop_token_ids": [1, 2, 3],
        "bad_words": ["x"],
        "logit_bias": {"5": -100.0},
        "logprobs": 0,
        "return_token_ids": True,
    }
    assert (op.timeout, op.seeds, op.model, op.dropped) == (5.0, (1, 2), "m", ())


@pytest.mark.parametrize(
    ("members", "context", "limit"),
    [
        ({"prompt": "hi"}, 2048, 2048),
        ({"prompt": None, "tokens": [1, 2, 3]}, 2048, 2045),
        ({"prompt": "hi"}, None, 2**31 - 1),
        ({"prompt": None, "tokens": [1, 2, 3], "max_total_tokens": 8}, 2048, 5),
    ],
)
def test_no_limit_is_the_rest_of_the_context(members: dict[str, Any], context: int | None, limit: int) -> None:
    assert to_worker(read(members), Capabilities("w", context))["max_tokens"] == limit


def test_totals_count_from_the_prompts_end() -> None:
    op = read(prompt=None, tokens=[1, 2, 3], max_total_tokens=10, min_total_tokens=5)
    assert (op.max_output, op.sampling.min_tokens) == (7, 2)
    assert read(prompt=None, tokens=[1, 2, 3], min_total_tokens=2).sampling.min_tokens is None


def test_seeds() -> None:
    assert read(n=3, seed=7).seeds == (7, 8, 9)
    assert read(n=2, seed=[5, 6]).seeds == (5, 6)
    assert read(seed=[5]).seeds == (5,)
    drawn = read(n=2).seeds
    assert drawn[1] == drawn[0] + 1
    assert to_worker(read(n=2, seed=[5, 6]))["seed"] == 5
    assert len({read().seeds for _ in range(20)}) > 15


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"response_format": {"type": "json_object"}}),
        (
            {"type": "json_object", "schema": '{"type": "object"}'},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": {"type": "object"}},
                }
            },
        ),
        ({"type": "regex", "schema": "[a-z]+"}, {"structured_outputs": {"regex": "[a-z]+"}}),
    ],
)
def test_response_formats(given: dict[str, Any], sent: dict[str, Any]) -> None:
    for op in (read(response_format=given), read_chat(response_format=given)):
        found = to_worker(op)
        assert {name: found[name] for name in ("response_format", "structured_outputs") if name in found} == sent


def test_beam_search() -> None:
    op = read(num_beams=4, length_penalty=1.5, early_stopping=False, beam_search_type="DETERMINISTIC", max_tokens=8)
    sent = to_worker(op)
    assert (sent["use_beam_search"], sent["n"], sent["length_penalty"], sent["max_tokens"]) == (True, 4, 1.5, 8)
    assert "seed" not in sent
    assert op.seeds


def test_a_beam_search_has_one_choice_the_best_beam() -> None:
    op = read(num_beams=2, seed=3)
    body = json.dumps(
        {
            "id": "c",
            "model": "w",
            "created": 1,
            "choices": [
                {"index": i, "text": f" {i}", "finish_reason": "length", "token_ids": [i, 9]} for i in range(2)
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        }
    ).encode()
    reply = fold(Vllm().read(Response(200, [], body), op))
    said = json.loads(DIALECT.write(reply, op).body)
    assert said["choices"] == [{"index": 0, "seed": 3, "text": " 0", "tokens": [0, 9], "finish_reason": "length"}]
    assert said["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_what_is_ignored_is_named() -> None:
    assert read({}, (b"x-friendli-team", b"TEAM")).dropped == ("X-Friendli-Team",)
    assert read(beam_search_type="STOCHASTIC").dropped == ("beam_search_type",)
    assert read().dropped == ()


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tokens": [1]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": None, "tokens": []}, "tokens"),
        ({"prompt": 1}, "prompt"),
        ({"max_tokens": 5, "max_total_tokens": 5}, "max_total_tokens"),
        ({"min_tokens": 5, "min_total_tokens": 5}, "min_total_tokens"),
        ({"prompt": None, "tokens": [1, 2], "max_total_tokens": 2}, "max_total_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 2, "seed": [1]}, "seed"),
        ({"seed": [1, 2]}, "seed"),
        ({"seed": -1}, "seed"),
        ({"num_beams": 32}, "num_beams"),
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 2, "stream": True}, "stream"),
        ({"num_beams": 2, "n": 2}, "n"),
        ({"num_beams": 2, "stop": ["a"]}, "stop"),
        ({"num_beams": 2, "top_k": 3}, "top_k"),
        ({"num_beams": 2, "top_p": 0.5}, "top_p"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"repetition_penalty": 0.9}, "repetition_penalty"),
        ({"encoder_repetition_penalty": 0.9}, "encoder_repetition_penalty"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop": "a"}, "stop"),
        ({"stop_tokens": [[1]]}, "stop_tokens.0"),
        ({"stop_tokens": [{"tokens": []}]}, "stop_tokens.0.tokens"),
        ({"timeout_microseconds": 0}, "timeout_microseconds"),
        ({"beam_search_type": "GREEDY"}, "beam_search_type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "regex"}}, "response_format.schema"),
        ({"response_format": {"type": "text", "schema": "a"}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "schema": "{"}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "schema": "1"}}, "response_format.schema"),
    ],
)
def test_what_makes_no_sense_is_a_400(members: dict[str, Any], param: str) -> None:
    status, error = refused({"prompt": "hi", **members})
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"max_total_tokens": 5}, "max_total_tokens"),
        ({"min_total_tokens": 5}, "min_total_tokens"),
        ({"no_repeat_ngram": 2}, "no_repeat_ngram"),
        ({"encoder_no_repeat_ngram": 2}, "encoder_no_repeat_ngram"),
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty"),
        ({"n": 2, "seed": [1, 9]}, "seed"),
        ({"token_index_to_replace": [0]}, "token_index_to_replace"),
        ({"embedding_to_replace": [0.1]}, "embedding_to_replace"),
        ({"include_output_logits": True}, "include_output_logits"),
        ({"bad_word_tokens": [{"tokens": [1, 2]}]}, "bad_word_tokens"),
        ({"num_beams": 2, "early_stopping": True}, "early_stopping"),
        ({"num_beams": 2, "beam_search_type": "STOCHASTIC"}, "beam_search_type"),
        ({"num_beams": 2, "beam_search_type": "NAIVE_SAMPLING"}, "beam_search_type"),
        ({"num_beams": 2, "frequency_penalty": 1}, "frequency_penalty"),
        ({"num_beams": 2, "min_tokens": 1}, "min_tokens"),
        ({"num_beams": 2, "stop_tokens": [{"tokens": [1]}]}, "stop_tokens"),
        ({"num_beams": 2, "eos_token": [1]}, "eos_token"),
        ({"num_beams": 2, "bad_words": ["a"]}, "bad_words"),
        ({"num_beams": 2, "bad_word_tokens": [{"tokens": [1]}]}, "bad_word_tokens"),
        ({"num_beams": 2, "include_output_logprobs": True}, "include_output_logprobs"),
        ({"num_beams": 2, "response_format": {"type": "json_object"}}, "response_format"),
        ({"beam_compat_pre_normalization": True}, "beam_compat_pre_normalization"),
        ({"beam_compat_no_post_normalization": True}, "beam_compat_no_post_normalization"),
        ({"forced_output_tokens": [1]}, "forced_output_tokens"),
        ({"soft_prompts": []}, "soft_prompts"),
        ({"position_ids": [1]}, "position_ids"),
        ({"generation_offset": 1}, "generation_offset"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_executed_is_a_422_that_names_it(members: dict[str, Any], param: str) -> None:
    status, error = refused({"prompt": "hi", **members})
    assert (status, error["param"], error["type"]) == (422, param, "unprocessable_request_error")
    assert f"'{param}'" in error["message"]


def test_extras_follow_the_configuration() -> None:
    body = {"prompt": "hi", "priority": 3}
    passing = Friendli(Settings(extras="pass")).read(request(body))
    assert isinstance(passing, Complete)
    assert to_worker(passing)["priority"] == 3
    dropping = Friendli(Settings(extras="drop")).read(request(body))
    assert isinstance(dropping, Complete)
    assert dropping.dropped == ("priority",)
    assert "priority" not in to_worker(dropping)


def test_every_field_has_a_sample_and_is_read() -> None:
    for operation, fields in FATES.items():
        for field in fields:
            if field.sample is None or field.name in ("prompt", "messages"):
                continue
            base: dict[str, Any] = {"messages": HI} if operation == "chat" else {"prompt": "hi"}
            if field.name == "tokens" or "total" in field.name:
                base = {"tokens": [1, 2, 3]}
            if field.name == "length_penalty" or field.name == "beam_search_type":
                base["num_beams"] = 2
            body = {**base, field.name: field.sample}
            if field.fate != "refused":
                DIALECT.read(request(body, route=operation))
                continue
            if field.name == "early_stopping":
                body["num_beams"] = 2
            status, error = refused(body, operation)
            assert (status, error["param"]) == (422, field.name)


# -- chats ----------------------------------------------------------------------------------------------------------

CLIENT_CHAT: dict[str, Any] = {
    **{field.name: None for field in FATES["chat"] if field.sample is not None},
    "messages": HI,
    "stream": False,
    "model": "m",
    "tool_choice": "auto",
}


def test_the_clients_chat() -> None:
    assert to_worker(read_chat(**CLIENT_CHAT)) == {
        "messages": HI,
        "model": "w",
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
    }


def test_a_chat_with_everything() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    op = read_chat(
        frequency_penalty=0.5,
        presence_penalty=0.5,
        repetition_penalty=1.2,
        max_tokens=9,
        min_tokens=2,
        n=2,
        stop=["a", "b"],
        temperature=0.3,
        top_p=0.4,
        top_k=5,
        logit_bias={"7": 1},
        logprobs=True,
        top_logprobs=3,
        timeout_microseconds=250_000,
        tools=tools,
        tool_choice="auto",
        seed=4,
    )
    assert to_worker(op) == {
        "messages": HI,
        "model": "w",
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.2,
        "max_tokens": 9,
        "min_tokens": 2,
        "n": 2,
        "stop": ["a", "b"],
        "temperature": 0.3,
        "top_p": 0.4,
        "top_k": 5,
        "logit_bias": {"7": 1.0},
        "logprobs": True,
        "top_logprobs": 3,
        "tools": tools,
        "tool_choice": "auto",
        "seed": 4,
    }
    assert op.timeout == 0.25


@pytest.mark.parametrize(
    ("members", "status", "param"),
    [
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"repetition_penalty": 0.5}, 400, "repetition_penalty"),
        ({"response_format": {"type": "regex"}}, 400, "response_format.schema"),
        ({"response_format": {"type": "xml"}}, 400, "response_format.type"),
        ({"soft_prompts": 1}, 422, "soft_prompts"),
    ],
)
def test_chats_refused(members: dict[str, Any], status: int, param: str) -> None:
    found, error = refused({"messages": HI, **members}, route="chat")
    assert (found, error["param"]) == (status, param)


def test_a_chat_in_openais_json_schema() -> None:
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert to_worker(read_chat(response_format=given))["response_format"] == given


def test_a_chats_reply_has_no_reason_that_the_client_does_not_know() -> None:
    op = read_chat(model="m")
    body = {
        "id": "c",
        "model": "w",
        "created": 5,
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "content_filter"}],
    }
    reply = fold(Vllm().read(Response(200, [], json.dumps(body).encode()), op))
    said = json.loads(DIALECT.write(reply, op).body)
    assert said["choices"][0]["finish_reason"] == "stop"
    assert (said["created"], said["model"], said["usage"]["total_tokens"]) == (5, "m", 0)
    chunk = {**body, "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "content_filter"}]}
    stream = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    out = lane(op).feed(stream)
    assert b'"finish_reason":"stop"' in out
    assert b"content_filter" not in out
    assert out.endswith(b"data: [DONE]\n\n")


# -- replies --------------------------------------------------------------------------------------------------------


def lane(op: Complete | Chat) -> EventLane:
    return EventLane(Vllm().reader(op), DIALECT.writer(op))


def chunk(index: int = 0, text: str = "", ids: Iterable[int] | None = None, **more: Any) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None, "token_ids": ids, **more}
    return b"data: " + json.dumps({"id": "c", "model": "w", "created": 1, "choices": [choice]}).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return b"data: " + json.dumps({"id": "c", "model": "w", "choices": [], "usage": counts}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def events(out: bytes) -> list[dict[str, Any]]:
    assert out.endswith(b"\n\n")
    pieces = out[:-2].split(b"\n\n")
    assert all(piece.startswith(b"data: {") and b"\n" not in piece for piece in pieces)
    return [json.loads(piece[6:]) for piece in pieces]


def sampled(out: bytes) -> list[tuple[int, str, int | None]]:
    return [
        (event["index"], event["text"], event["token"]) for event in events(out) if event["event"] == "token_sampled"
    ]


def squeezed(text: str) -> str:
    """JSON without the white space between its tokens."""
    return re.sub(r'("(?:[^"\\]|\\.)*")|\s+', lambda found: found[1] or "", text)


SAMPLE_WORKER = [
    *(chunk(0, text, [token]) for text, token in SAID[:-1]),
    chunk(0, SAID[-1][0], [SAID[-1][1]], finish_reason="length"),
    usage(5, 7),
    DONE,
]
REASON = ', "finish_reason": "length"'


def test_the_specifications_stream() -> None:
    """Its events byte for byte; `complete`, which it prints on several lines, on one, and with finish_reason."""
    out = lane(read(CLIENT_BODY, seed=42, stream=True)).feed(b"".join(SAMPLE_WORKER)).decode()
    lines = out.removesuffix("\n\n").split("\n\n")
    printed = SAMPLE_STREAM.split("\n", 7)
    assert lines[:7] == printed[:7]
    assert REASON in lines[7]
    assert squeezed(lines[7].replace(REASON, "")) == squeezed(printed[7])


def test_the_specifications_reply() -> None:
    op = read(CLIENT_BODY, seed=42)
    text, ids = "".join(text for text, _ in SAID), [token for _, token in SAID]
    body = {
        "id": "cmpl-1",
        "model": "w",
        "created": 7,
        "choices": [{"index": 0, "text": text, "finish_reason": "length", "token_ids": ids}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }
    response = DIALECT.write(fold(Vllm().read(Response(200, [], json.dumps(body).encode()), op)), op)
    assert response.headers == [(b"content-type", b"application/json")]
    found = response.body.decode()
    head = '{"id":"cmpl-1","object":"text_completion","model":"w","created":7,'
    assert found.startswith(head)
    assert "{" + found.removeprefix(head).replace(squeezed(REASON), "") == squeezed(SAMPLE_REPLY)


def test_the_end_of_sequence_is_no_token_of_the_text() -> None:
    for stop, ids in ((None, [3, 2]), (7, [3, 7])):
        op = read(seed=1, stream=True)
        ended = chunk(0, "", [ids[1]], finish_reason="stop", stop_reason=stop)
        out = lane(op).feed(chunk(0, "a", [3]) + ended + usage(1, 2) + DONE)
        assert sampled(out) == [(0, "a", 3)]
        assert events(out)[-1]["choices"][0]["tokens"] == [3]
        body = {"choices": [{"text": "a", "token_ids": ids, "finish_reason": "stop", "stop_reason": stop}]}
        reply = fold(Vllm().read(Response(200, [], json.dumps(body).encode()), op))
        assert json.loads(DIALECT.write(reply, op).body)["choices"][0]["tokens"] == [3]


def test_the_ids_of_a_stop_phrase_stay() -> None:
    out = lane(read(seed=1, stream=True, stop=["END"])).feed(
        chunk(0, "a", [3]) + chunk(0, "", [9], finish_reason="stop", stop_reason="END") + DONE
    )
    assert sampled(out) == [(0, "a", 3), (0, "", 9)]


def test_several_ids_in_a_chunk_and_text_without_ids() -> None:
    out = lane(read(seed=1, stream=True)).feed(
        chunk(0, "abc", [1, 2, 3])
        + chunk(0, "d", None)
        + chunk(0, "e", [4])
        + chunk(0, "", [5])
        + chunk(0, "fg", [6, 7])
        + chunk(0, "h", None, finish_reason="length")
        + usage(2, 7)
        + DONE
    )
    assert sampled(out) == [
        (0, "", 1),
        (0, "", 2),
        (0, "abc", 3),
        (0, "de", 4),
        (0, "", 5),
        (0, "", 6),
        (0, "fg", 7),
        (0, "h", None),
    ]
    (choice,) = events(out)[-1]["choices"]
    assert choice["text"] == "abcdefgh" == "".join(text for _, text, _ in sampled(out))
    assert choice["tokens"] == [1, 2, 3, 4, 5, 6, 7]


def test_choices_interleave_and_each_has_its_seed() -> None:
    out = lane(read(seed=[8, 9], n=2, stream=True)).feed(
        chunk(1, "x", [1])
        + chunk(0, "a", [2])
        + chunk(1, "y", [3], finish_reason="length")
        + chunk(0, "b", [4], finish_reason="length")
        + usage(1, 4)
        + DONE
    )
    assert [index for index, _, _ in sampled(out)] == [1, 0, 1, 0]
    assert [(c["index"], c["seed"], c["text"], c["tokens"]) for c in events(out)[-1]["choices"]] == [
        (0, 8, "ab", [2, 4]),
        (1, 9, "xy", [1, 3]),
    ]


def test_logprobs_stand_in_the_choices() -> None:
    def probs(token: str) -> dict[str, Any]:
        return {"tokens": [token], "token_logprobs": [-0.5], "top_logprobs": [{token: -0.5}], "text_offset": [0]}

    op = read(seed=1, stream=True, include_output_logprobs=True)
    out = lane(op).feed(
        chunk(0, "ab", [1], logprobs=probs("ab"))
        + chunk(0, "c", [2, 3], logprobs=probs("c"), finish_reason="stop")
        + DONE
    )
    assert events(out)[-1]["choices"][0]["logprobs"] == {
        "text_offset": [0, 2],
        "token_logprobs": [-0.5, -0.5],
        "tokens": ["ab", "c"],
        "top_logprobs": [{"ab": -0.5}, {"c": -0.5}],
    }


def test_a_stream_folded_is_the_whole_reply() -> None:
    op = read(seed=42, stream=True)
    streamed = events(lane(op).feed(b"".join(SAMPLE_WORKER)))[-1]
    reader = Vllm().reader(op)
    reply = fold(event for piece in SAMPLE_WORKER for event in reader.feed(piece))
    whole = json.loads(DIALECT.write(reply, op).body)
    assert (streamed["choices"], streamed["usage"]) == (whole["choices"], whole["usage"])


@pytest.mark.parametrize(
    ("told", "counts"),
    [(None, (3, 1, 4)), (Usage(None, 9), (3, 9, 12)), (Usage(5, None), (5, 1, 6)), (Usage(5, 9), (5, 9, 14))],
)
def test_what_no_engine_counted_is_counted(told: Usage | None, counts: tuple[int, int, int]) -> None:
    writer = DIALECT.writer(read(prompt=None, tokens=[1, 2, 3], stream=True))
    made: list[Event] = [Start("c", "w", 1), PartStart(0, 0, "text"), Delta(0, 0, "a", (4,)), PartEnd(0, 0)]
    made.append(Finish(0, "stop", "stop"))
    if told is not None:
        made.append(UsageReport(told))
    out = b"".join(writer.write(event) for event in [*made, End()])
    assert tuple(events(out)[-1]["usage"].values()) == counts


def test_cut_anywhere_it_never_looks_complete() -> None:
    stream = b"".join(SAMPLE_WORKER)
    for at in range(len(stream)):
        op = read(seed=42, stream=True)
        found = lane(op)
        out = found.feed(stream[:at]) + found.eof()
        assert not found.done
        assert found.error is not None
        assert found.error.kind is Kind.TRUNCATED
        last = found.fail(found.error)
        assert not found.clean_end
        assert b"complete" not in out
        (told,) = events(last)
        assert told["event"] == "error"
        assert told["message"] == told["error"]["message"]
        assert "token" not in told


def test_split_anywhere_it_says_the_same() -> None:
    stream = b"".join(SAMPLE_WORKER)
    op = read(seed=42, stream=True)
    whole = lane(op).feed(stream)
    for at in range(len(stream)):
        found = lane(op)
        assert found.feed(stream[:at]) + found.feed(stream[at:]) == whole
        assert found.done


def test_nothing_but_a_blank_line_keeps_it_alive() -> None:
    """friendli-client raises at a comment."""
    assert lane(read(stream=True)).keepalive() == b"\n"


# -- errors ---------------------------------------------------------------------------------------------------------


def test_every_kind_has_a_row() -> None:
    assert set(ERRORS) == set(Kind)


@pytest.mark.parametrize("kind", list(Kind))
def test_errors(kind: Kind) -> None:
    error = GatewayError(kind, "why", param="prompt", retry_after=3)
    response = DIALECT.refuse(error, None, None)
    status, type_, code = ERRORS[kind]
    assert response.status == status
    assert json.loads(response.body) == {"error": {"message": "why", "type": type_, "param": "prompt", "code": code}}
    assert (response.header(b"retry-after") is not None) == (status in (429, 503))


def test_the_clients_own_deadline_is_a_429() -> None:
    def late() -> GatewayError:
        return GatewayError(Kind.TIMEOUT, "the request took longer than 1 s", code="deadline_exceeded")

    own = read(timeout_microseconds=1_000_000)
    response = DIALECT.refuse(late(), None, own)
    assert response.status == 429
    assert json.loads(response.body)["error"]["param"] == "timeout_microseconds"
    assert response.header(b"retry-after") is None
    (told,) = events(lane(own).fail(late()))
    assert told["error"]["param"] == "timeout_microseconds"
    assert DIALECT.refuse(late(), None, read()).status == 504
    worker = GatewayError(Kind.TIMEOUT, "the worker is silent")
    assert DIALECT.refuse(worker, None, read(timeout_microseconds=1_000_000)).status == 504


@pytest.mark.parametrize(
    ("members", "said", "param"),
    [
        ({"stop": ["a"] * 5}, "stop", "stop"),
        ({"num_beams": 20}, "logprobs", "num_beams"),
        ({"include_output_logprobs": True}, "logprobs", "include_output_logprobs"),
        ({"stop_tokens": [{"tokens": [5]}]}, "stop_token_ids", "stop_tokens"),
        ({"bad_word_tokens": [{"tokens": [5]}]}, "logit_bias", "bad_word_tokens"),
        ({"prompt": None, "tokens": [1]}, "prompt", "tokens"),
    ],
)
def test_a_worker_that_refuses_a_field_by_name(members: dict[str, Any], said: str, param: str) -> None:
    error = GatewayError(Kind.BAD_REQUEST, f"'{said}' is too much", param=said, upstream=400)
    response = DIALECT.refuse(error, None, read(members))
    assert response.status == 422
    told = json.loads(response.body)["error"]
    assert (told["param"], told["message"]) == (param, f"'{param}' is too much")


def test_a_worker_that_names_no_field_is_a_400() -> None:
    assert DIALECT.refuse(GatewayError(Kind.BAD_REQUEST, "no", upstream=400), None, read()).status == 400
    long = GatewayError(Kind.CONTEXT_LENGTH, "too long", param="input_tokens", upstream=400)
    assert DIALECT.refuse(long, None, read()).status == 400
