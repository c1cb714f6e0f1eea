"""The dialect `sagemaker`: the samples of its specification as bytes, its errors in both shapes, its frames.

`sagemaker/` beside this file holds every sample reply of the specification, as printed there.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.backends.vllm import Vllm
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Headers, Request, Response
from gateway.core.lifecycle import fold
from gateway.core.messages import Chat, Complete, ListModels, ModelCard, Text
from gateway.core.ports import Capabilities, Settings
from gateway.dialects import create
from gateway.dialects.sagemaker import AWS_ERRORS, FATES, MODEL, SIGNATURE_ERRORS, SageMaker
from gateway.relay import EventLane
from gateway.wire import awsevent, sse
from tests.harness import Stack

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).parent / "sagemaker"
DIALECT = SageMaker()
VLLM = Vllm()
HI = [{"role": "user", "content": "hi"}]
RAW, ENDPOINT, STREAM = "invocations", "endpoint", "endpoint_stream"
PATHS = {
    RAW: "/sagemaker/invocations",
    ENDPOINT: "/sagemaker/endpoints/ep/invocations",
    STREAM: "/sagemaker/endpoints/ep/invocations-response-stream",
}


def request(body: Any, route: str = RAW, headers: Headers | None = None, name: str = "ep") -> Request:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    params = {} if route == RAW else {"name": name}
    return Request("POST", PATHS[route], headers or [], content, b"", route, params, "req-1")


def read(body: Any, route: str = RAW, headers: Headers | None = None, name: str = "ep") -> Chat | Complete:
    op = DIALECT.read(request(body, route, headers, name))
    assert isinstance(op, (Chat, Complete))
    return op


def refusal(body: Any, route: str = RAW) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        read(body, route)
    assert caught.value.blame is Blame.CLIENT
    return caught.value


def payloads(stream: bytes) -> list[bytes]:
    """The payloads of finished PayloadPart frames."""
    reader = awsevent.Reader()
    frames = [*reader.feed(stream), *reader.eof()]
    assert all(
        frame.headers
        == {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}
        for frame in frames
    )
    return [frame.payload for frame in frames]


# ---- the specification's samples


def as_vllm(sample: dict[str, Any]) -> bytes:
    """A reply as vLLM 0.33 would have sent it for this sample: other names, more fields, other order."""
    reply = json.loads(json.dumps(sample))
    reply |= {"model": "sim", "prompt_token_ids": None, "prompt_text": None, "metrics": None}
    for choice in reply["choices"]:
        choice |= {"token_ids": None, "routed_experts": None}
        message = choice.get("message")
        if message is not None:
            del message["tool_calls"]
            message["reasoning"] = message.pop("reasoning_content")
    reply["usage"]["completion_tokens_details"] = None
    return msgspec.json.encode(dict(sorted(reply.items())))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("chat", {"messages": HI}),
        ("text", {"prompt": "What should I do if I have a fever and body aches?"}),
        ("texts", {"prompt": ["How can I maintain good kidney health?", "What are the best practices?"]}),
    ],
)
@pytest.mark.parametrize("route", [RAW, ENDPOINT])
def test_every_plain_sample_is_reproduced(name: str, body: dict[str, Any], route: str) -> None:
    sample = json.loads((SAMPLES / f"{name}.json").read_text())
    op = read({"model": MODEL, "max_tokens": 4096, "stream": False, **body}, route)
    response = DIALECT.write(fold(VLLM.read(Response(200, [], as_vllm(sample)), op)), op)
    assert response.status == 200
    # Compact instead of indented; members, nulls and their order as printed.
    assert response.body == msgspec.json.encode(sample)
    assert (b"content-type", b"application/json") in response.headers


def sample_stream(name: str) -> list[bytes]:
    """The lines of a printed stream."""
    return (SAMPLES / f"{name}.sse").read_bytes().splitlines()


def worker_stream(name: str) -> list[bytes]:
    """The frames that vLLM would have sent for it."""
    frames = []
    for line in sample_stream(name):
        if line != b"data: [DONE]":
            chunk = json.loads(line[6:])
            chunk["model"] = "sim"
            chunk.pop("usage", None)
            for choice in chunk["choices"]:
                if choice["finish_reason"] is None:
                    del choice["stop_reason"]
                choice["token_ids"] = None
                delta = choice.get("delta", {})
                if "reasoning_content" in delta:
                    delta["reasoning"] = delta.pop("reasoning_content")
            line = b"data: " + json.dumps(chunk).encode()
        frames.append(line + b"\n\n")
    return frames


def lane(body: dict[str, Any], route: str) -> EventLane:
    op = read({"stream": True, **body}, route)
    return EventLane(VLLM.reader(op), DIALECT.writer(op))


STREAMS: list[tuple[str, dict[str, Any]]] = [("chat", {"messages": HI}), ("text", {"prompt": "If"})]


@pytest.mark.parametrize(("name", "body"), STREAMS)
@pytest.mark.parametrize("route", [RAW, ENDPOINT, STREAM])
@pytest.mark.parametrize("cut", ["frames", "whole", "bytes"])
def test_every_streamed_sample_is_reproduced(name: str, body: dict[str, Any], route: str, cut: str) -> None:
    under = lane(body, route)
    frames = worker_stream(name)
    whole = b"".join(frames)
    blocks = {"frames": frames, "whole": [whole], "bytes": [whole[i : i + 1] for i in range(len(whole))]}[cut]
    sent = b"".join(under.feed(block) for block in blocks)
    assert under.done
    # The one difference: a blank line ends an event. Without it openai-python sees no chunk at all.
    expected = [line + b"\n\n" for line in sample_stream(name)]
    assert (payloads(sent) if route == STREAM else [sent]) == (expected if route == STREAM else [b"".join(expected)])


@pytest.mark.parametrize(("name", "body"), STREAMS)
@pytest.mark.parametrize("route", [RAW, STREAM])
def test_a_cut_after_any_frame_is_told(name: str, body: dict[str, Any], route: str) -> None:
    frames = worker_stream(name)
    for length in range(len(frames)):
        under = lane(body, route)
        sent = b"".join(under.feed(frame) for frame in frames[:length])
        sent += under.eof()
        assert under.error is not None
        assert under.error.kind is Kind.TRUNCATED
        last = under.fail(under.error)
        assert b"[DONE]" not in sent + last
        if route == RAW:
            assert not under.clean_end
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_truncated"
        else:
            assert under.clean_end
            (frame,) = awsevent.Reader().feed(last)
            assert frame.headers[":message-type"] == "exception"
            assert frame.headers[":exception-type"] == "ModelStreamError"
            assert json.loads(frame.payload) == {
                "Message": "the worker's reply ended before it was complete",
                "ErrorCode": "StreamBroken",
            }


# ---- streams beyond the samples


def vllm_chunk(choice: dict[str, Any], **members: Any) -> bytes:
    head = {"id": "chatcmpl-" + "a" * 32 + "-17", "object": "chat.completion.chunk", "created": 7, "model": "sim"}
    return sse.frame(json.dumps({**head, "choices": [choice] if choice else [], **members}).encode())


def chunks(sent: bytes) -> list[Any]:
    return [json.loads(piece[6:]) for piece in sent.split(b"\n\n") if piece and piece != b"data: [DONE]"]


def test_tool_calls_thinking_and_the_stop_reason_in_a_stream() -> None:
    under = lane({"messages": HI, "tools": [{"type": "function", "function": {"name": "f"}}]}, RAW)
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    sent = b"".join(
        under.feed(block)
        for block in (
            vllm_chunk({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}),
            vllm_chunk({"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None}),
            vllm_chunk({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}),
            vllm_chunk({"index": 0, "delta": {"tool_calls": [more]}, "finish_reason": None}),
            vllm_chunk({"index": 0, "delta": {"content": ""}, "finish_reason": "tool_calls", "stop_reason": 42}),
            sse.DONE,
        )
    )
    found = chunks(sent)
    assert {chunk["id"] for chunk in found} == {"chatcmpl-" + "a" * 32}
    assert [chunk["choices"][0]["delta"] for chunk in found] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"tool_calls": [call]},
        {"tool_calls": [more]},
        {"content": ""},
    ]
    assert [chunk["choices"][0]["stop_reason"] for chunk in found] == [None] * 4 + ["42"]
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("asked", [True, False])
def test_the_usage_chunk_comes_only_when_asked_for(asked: bool) -> None:
    for body in ({"messages": HI}, {"prompt": "hi"}):
        under = lane({**body, "stream_options": {"include_usage": asked}}, STREAM)
        text = {"text": "a"} if "prompt" in body else {"delta": {"content": "a"}}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
        sent = under.feed(vllm_chunk({"index": 0, **text, "finish_reason": "length"}))
        sent += under.feed(vllm_chunk({}, usage=usage) + sse.DONE)
        found = chunks(b"".join(payloads(sent)))
        expected = {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        }
        assert [chunk["usage"] for chunk in found if not chunk["choices"]] == ([expected] if asked else [])
        assert under.usage is not None
        assert under.usage.total == 5


def test_logprobs_are_objects() -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    under = lane({"messages": HI, "logprobs": True}, RAW)
    ordinary = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [token]}}
    sent = under.feed(
        vllm_chunk({**ordinary, "finish_reason": None}) + vllm_chunk({**ordinary, "finish_reason": "stop"})
    )
    assert [chunk["choices"][0]["logprobs"] for chunk in chunks(sent)[1:]] == [{"content": [token]}] * 2
    under = lane({"prompt": "x", "logprobs": 1}, RAW)
    said = {"tokens": ["ab"], "token_logprobs": [-0.5], "top_logprobs": [{"ab": -0.5}], "text_offset": [0]}
    ordinary = {"index": 0, "text": "ab", "logprobs": said}
    sent = under.feed(
        vllm_chunk({**ordinary, "finish_reason": None}) + vllm_chunk({**ordinary, "finish_reason": "stop"})
    )
    assert [chunk["choices"][0]["logprobs"] for chunk in chunks(sent)] == [said, {**said, "text_offset": [2]}]


def test_logprobs_prompt_logprobs_and_transfer_parameters_of_a_plain_reply() -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    sample = json.loads((SAMPLES / "chat.json").read_text())
    sample["choices"][0] |= {"logprobs": {"content": [token]}, "stop_reason": "END"}
    sample |= {"prompt_logprobs": [None, {"1": {"logprob": -1}}], "kv_transfer_params": {"k": [1]}}
    op = read({"messages": HI})
    assert DIALECT.write(fold(VLLM.read(Response(200, [], as_vllm(sample)), op)), op).body == msgspec.json.encode(
        sample
    )
    sample = json.loads((SAMPLES / "text.json").read_text())
    sample["choices"][0] |= {"prompt_logprobs": [None], "stop_reason": "2"}
    sample["kv_transfer_params"] = {"k": [1]}
    worker = json.loads(as_vllm(sample))
    worker["choices"][0]["stop_reason"] = 2
    op = read({"prompt": "hi"})
    reply = fold(VLLM.read(Response(200, [], msgspec.json.encode(worker)), op))
    assert DIALECT.write(reply, op).body == msgspec.json.encode(sample)


def test_a_reply_of_tool_calls_alone_and_a_worker_without_id_or_usage() -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    worker = {"created": 1, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    op = read({"messages": HI})
    written = DIALECT.write(fold(VLLM.read(Response(200, [], json.dumps(worker).encode()), op)), op).body
    reply = json.loads(written)
    assert reply["choices"][0]["message"]["content"] == ""
    assert reply["choices"][0]["message"]["tool_calls"] == [call]
    assert "reasoning_content" not in reply["choices"][0]["message"]
    assert reply["usage"] is None
    assert len(reply["id"]) == len("chatcmpl-") + 32


def test_what_was_held_back_is_sent_before_the_failure() -> None:
    """A worker that gives up in the very chunk of its last text."""
    under = lane({"prompt": "x"}, RAW)
    assert under.feed(vllm_chunk({"index": 0, "text": "last", "finish_reason": "abort"})) == b""
    assert under.error is not None
    assert b'"text":"last"' in under.fail(under.error)


def test_keepalives_are_blank_lines_in_either_form() -> None:
    assert lane({"messages": HI}, RAW).keepalive() == b"\n"
    assert payloads(lane({"messages": HI}, STREAM).keepalive()) == [b"\n"]


@pytest.mark.parametrize(
    ("error", "type_", "payload"),
    [
        (
            GatewayError(Kind.TIMEOUT, "late", blame=Blame.US),
            "ModelStreamError",
            {"Message": "late", "ErrorCode": "ModelInvocationTimeExceeded"},
        ),
        (
            GatewayError(Kind.UPSTREAM, "broke"),
            "ModelStreamError",
            {"Message": "broke", "ErrorCode": "StreamBroken"},
        ),
        (GatewayError(Kind.DRAINING, "bye"), "InternalStreamFailure", {"Message": "bye"}),
        (GatewayError(Kind.INTERNAL, "bug"), "InternalStreamFailure", {"Message": "bug"}),
    ],
)
def test_exception_frames(error: GatewayError, type_: str, payload: dict[str, str]) -> None:
    (frame,) = awsevent.Reader().feed(lane({"messages": HI}, STREAM).fail(error))
    assert frame.headers == {
        ":exception-type": type_,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    assert json.loads(frame.payload) == payload


# ---- requests


def test_messages_mean_chat_and_a_prompt_means_text() -> None:
    chat = read({"messages": HI, "prompt": None, "temperature": 0.5})
    assert isinstance(chat, Chat)
    assert chat.messages[0].parts == (Text("hi"),)
    assert chat.sampling.temperature == 0.5
    text = read({"prompt": ["a", "b"], "messages": None})
    assert isinstance(text, Complete)
    assert text.prompts == ("a", "b")
    both = refusal({"messages": HI, "prompt": "x"})
    assert (both.kind, both.param) == (Kind.BAD_REQUEST, "prompt")
    for body in ({}, {"inputs": "x"}, {"messages": None, "prompt": None}):
        neither = refusal(body)
        assert (neither.kind, neither.param) == (Kind.BAD_REQUEST, "messages")


def test_bad_bodies() -> None:
    assert refusal(b"").kind is Kind.BAD_REQUEST
    assert refusal(b"a,b\n1,2\n").kind is Kind.BAD_REQUEST
    assert refusal({"prompt": []}).param == "prompt"
    assert refusal({"prompt": ["x"] * 1025}).param == "prompt"
    assert len(read({"prompt": ["x"] * 1024}).prompts) == 1024  # type: ignore[union-attr]  # the prompt says which
    assert refusal({"messages": HI, "stream_options": {"include_usage": True}}).param == "stream_options"
    assert refusal({"messages": HI, "functions": [{"name": "f"}]}).kind is Kind.UNSUPPORTED


def test_the_stream_field_decides_except_where_the_path_does() -> None:
    for route in (RAW, ENDPOINT):
        assert not read({"messages": HI}, route).stream
        assert not read({"messages": HI, "stream": None}, route).stream
        assert read({"messages": HI, "stream": True}, route).stream
    for value in (None, False, True):
        op = read({"messages": HI, "stream": value, "stream_options": {"include_usage": True}}, STREAM)
        assert op.stream
        assert op.include_usage
        sent = json.loads(VLLM.write(op, Capabilities("sim")).body)
        assert (sent["stream"], sent["model"]) == (True, "sim")


def test_the_worker_sees_the_members_that_were_sent() -> None:
    body = {"messages": HI, "model": MODEL, "top_k": 5, "guided_regex": "a+", "new_in_vllm": {"a": [1]}, "seed": None}
    sent = json.loads(VLLM.write(read(body), Capabilities("sim")).body)
    assert sent == {
        "messages": HI,
        "model": "sim",
        "top_k": 5,
        "guided_regex": "a+",
        "new_in_vllm": {"a": [1]},
    }
    strict = create("sagemaker", Settings(extras="error"))
    with pytest.raises(GatewayError) as caught:
        strict.read(request(body))
    assert caught.value.param == "guided_regex"
    dropping = create("sagemaker", Settings(extras="drop")).read(request(body))
    assert isinstance(dropping, Chat)
    assert dropping.dropped == ("guided_regex", "new_in_vllm")
    assert json.loads(VLLM.write(dropping, Capabilities("sim")).body) == {"messages": HI, "model": "sim", "top_k": 5}


def test_every_field_of_the_tables_is_accepted_as_declared() -> None:
    for operation, fields in FATES.items():
        base = {"messages": HI} if operation == "chat" else {"prompt": "hi"}
        for field in fields:
            value = field.sample if field.sample is not None else {"model": "m", "stream_options": {}}[field.name]
            beside = {"logprobs": True} if field.name == "top_logprobs" else {}
            body = {**base, "stream": True, **beside, field.name: value}
            if field.fate == "refused":
                assert refusal(body).param == field.name
            else:
                read(body)


def test_names_of_the_model_beside_the_body() -> None:
    headers = [
        (b"x-amzn-sagemaker-inference-component", b"component"),
        (b"x-amzn-sagemaker-target-model", b"target"),
        (b"x-amzn-sagemaker-adapter-identifier", b"adapter"),
    ]
    assert read({"prompt": "x"}, ENDPOINT, headers, "a/b").hints == ("target", "component", "adapter", "a/b")
    assert read({"prompt": "x"}).hints == ()


def test_headers_without_an_effect_are_named() -> None:
    headers = [
        (b"x-amzn-sagemaker-session-id", b"NEW_SESSION"),
        (b"x-amzn-sagemaker-target-variant", b"v1"),
        (b"x-amzn-sagemaker-accept", b"text/event-stream"),
    ]
    assert read({"prompt": "x"}, RAW, headers).dropped == (
        "X-Amzn-SageMaker-Session-Id",
        "X-Amzn-SageMaker-Target-Variant",
    )


@pytest.mark.parametrize(
    ("name", "value", "comes_back"),
    [
        (b"x-amzn-sagemaker-custom-attributes", b"trace=1, b", True),
        (b"x-amzn-sagemaker-custom-attributes", b"x" * 1024, True),
        (b"x-amzn-sagemaker-custom-attributes", b"x" * 1025, False),
        (b"x-amzn-sagemaker-custom-attributes", b"caf\xc3\xa9", False),
        (b"x-amzn-sagemaker-custom-attributes", b"a\tb", False),
        (b"x-amzn-sagemaker-custom-attributes", b"", False),
        (b"x-amzn-sagemaker-inference-id", b"inf-1", True),
        (b"x-amzn-sagemaker-inference-id", b"x" * 65, False),
        (b"x-amzn-sagemaker-target-model", b"m", False),
    ],
)
def test_headers_that_come_back(name: bytes, value: bytes, comes_back: bool) -> None:
    asked = request({"prompt": "x"}, RAW, [(name, value)])
    DIALECT.read(asked)
    assert asked.reply == ([(name, value)] if comes_back else [])
    refused = request({}, ENDPOINT, [(name, value)])
    DIALECT.refuse(GatewayError(Kind.BAD_REQUEST, "x"), refused, None)
    assert refused.reply == [*([(name, value)] if comes_back else []), (b"x-amzn-requestid", b"req-1")]


# ---- errors


def refused(error: GatewayError, route: str, headers: Headers | None = None) -> tuple[int, dict[bytes, bytes], Any]:
    response = DIALECT.refuse(error, request({}, route, headers), None)
    return response.status, dict(response.headers), json.loads(response.body)


def test_both_error_tables_are_total() -> None:
    assert set(AWS_ERRORS) == set(DIALECT.errors) == set(Kind)
    for kind in Kind:
        status, headers, body = refused(GatewayError(kind, "what"), ENDPOINT)
        assert (status, b"x-amzn-errortype" in headers) == (status, True)
        assert "what" in (body.get("message") or body["Message"])
        status, headers, body = refused(GatewayError(kind, "what"), RAW)
        assert body["error"]["message"] == "what"
        assert b"x-amzn-errortype" not in headers


@pytest.mark.parametrize(
    ("error", "status", "type_"),
    [
        (GatewayError(Kind.BAD_REQUEST, "m"), 400, "ValidationError"),
        (GatewayError(Kind.NO_MODEL, "m"), 400, "ValidationError"),
        (GatewayError(Kind.CONTEXT_LENGTH, "m"), 400, "ValidationError"),
        (GatewayError(Kind.TOO_LARGE, "m"), 413, "ValidationError"),
        (GatewayError(Kind.UNAUTHENTICATED, "m"), 403, "MissingAuthenticationTokenException"),
        (GatewayError(Kind.FORBIDDEN, "m"), 403, "AccessDeniedException"),
        (GatewayError(Kind.LIMITED, "m"), 429, "ThrottlingException"),
        (GatewayError(Kind.OVERLOADED, "m"), 503, "ServiceUnavailable"),
        (GatewayError(Kind.OVERLOADED, "m", upstream=429), 503, "ServiceUnavailable"),
        (GatewayError(Kind.NO_WORKER, "m"), 503, "ServiceUnavailable"),
        (GatewayError(Kind.INTERNAL, "m"), 500, "InternalFailure"),
    ],
)
@pytest.mark.parametrize("route", [ENDPOINT, STREAM])
def test_errors_of_the_gateway_as_aws_shapes_them(error: GatewayError, status: int, type_: str, route: str) -> None:
    found, headers, body = refused(error, route)
    assert (found, headers[b"x-amzn-errortype"].decode(), body) == (status, type_, {"message": "m"})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GatewayError(Kind.BAD_REQUEST, "m", upstream=422), 422),
        (GatewayError(Kind.CONTEXT_LENGTH, "m", upstream=400), 400),
        (GatewayError(Kind.UPSTREAM, "m", upstream=500), 500),
        (GatewayError(Kind.UPSTREAM, "m"), 502),
        (GatewayError(Kind.TRUNCATED, "m"), 502),
        (GatewayError(Kind.TIMEOUT, "m"), 504),
        (GatewayError(Kind.TIMEOUT, "m", blame=Blame.US), 504),
    ],
)
def test_errors_of_the_model(error: GatewayError, status: int) -> None:
    found, headers, body = refused(error, ENDPOINT)
    side = "client" if status < 500 else "server"
    assert (found, headers[b"x-amzn-errortype"]) == (424, b"ModelError")
    assert list(body) == ["Message", "OriginalStatusCode", "OriginalMessage", "LogStreamArn"]
    assert body["Message"] == f'Received {side} error ({status}) from primary with message "m"'
    assert body["OriginalStatusCode"] == status
    assert json.loads(body["OriginalMessage"])["error"]["message"] == "m"


@pytest.mark.parametrize(
    ("code", "status", "type_"),
    [
        ("incomplete_signature", 400, "IncompleteSignature"),
        ("signature_expired", 403, "InvalidSignatureException"),
        ("signature_mismatch", 403, "InvalidSignatureException"),
        ("unknown_access_key", 403, "UnrecognizedClientException"),
        (None, 403, "AccessDeniedException"),
    ],
)
def test_errors_of_who_is_calling(code: str | None, status: int, type_: str) -> None:
    error = GatewayError(Kind.UNAUTHENTICATED, "m", code=code)
    found, headers, _ = refused(error, ENDPOINT, [(b"authorization", b"x")])
    assert (found, headers[b"x-amzn-errortype"].decode()) == (status, type_)
    assert refused(error, RAW)[0] == 401


def test_how_long_to_wait() -> None:
    error = GatewayError(Kind.LIMITED, "m", retry_after=1.5)
    _, headers, _ = refused(error, ENDPOINT)
    assert (headers[b"x-amz-retry-after"], headers[b"retry-after"]) == (b"1500", b"2")
    _, headers, _ = refused(GatewayError(Kind.LIMITED, "m"), ENDPOINT)
    assert b"x-amz-retry-after" not in headers
    _, headers, _ = refused(GatewayError(Kind.UPSTREAM, "m", retry_after=1.5), ENDPOINT)
    assert b"x-amz-retry-after" not in headers
    _, headers, _ = refused(error, RAW)
    assert (headers.get(b"x-amz-retry-after"), headers[b"retry-after"]) == (None, b"2")


def test_ping_is_about_readiness() -> None:
    op = DIALECT.read(Request("GET", "/ping", route="ping"))
    assert isinstance(op, ListModels)
    ready, not_ready = (ModelCard("m", 1, state) for state in (True, False))
    assert op.write([not_ready, ready]).status == 200
    assert op.write([not_ready]).status == 503
    assert op.write([]).status == 503


def test_the_page_names_every_field_and_every_error() -> None:
    page = (ROOT / "docs" / "dialects" / "sagemaker.md").read_text()
    request, errors = page.split("## Request")[1].split("## Reply")[0], page.split("## Errors")[1]
    for field in {field.name for fields in FATES.values() for field in fields}:
        assert f"`{field}`" in request
    for type_ in {type_ for _, type_ in (*AWS_ERRORS.values(), *SIGNATURE_ERRORS.values())}:
        assert f"`{type_}`" in errors


# ---- over HTTP


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two models on one worker, which knows them as "sim" and "sim-2"."""
    workers = ({"models": ("sim", "sim-2")},)
    with Stack(workers, {"dialects": {"sagemaker": {"default_model": "m"}}}) as running:
        other = {"backend": "vllm", "upstream_model": "sim-2", "aliases": ["org/other"], "workers": [running.sim.url]}
        running.run(running.gateway.reload(running.config({"models": {"other": other}})))
        yield running


@pytest.mark.parametrize("path", ["/invocations", "/sagemaker/invocations", "/sagemaker/endpoints/ep/invocations"])
def test_a_body_without_a_content_type(stack: Stack, path: str) -> None:
    reply = httpx.post(stack.url + path, content=json.dumps({"messages": HI, "max_tokens": 2}).encode())
    assert reply.status_code == 200
    body = reply.json()
    assert (body["model"], body["choices"][0]["finish_reason"]) == (MODEL, "length")
    assert body["id"] == "chatcmpl-" + reply.headers["x-request-id"]
    assert reply.headers.get("x-amzn-requestid") == (reply.headers["x-request-id"] if "endpoints" in path else None)
    assert reply.headers.get("x-amzn-invoked-production-variant") == ("AllTraffic" if "endpoints" in path else None)


@pytest.mark.parametrize(
    ("name", "body", "headers", "model"),
    [
        ("ep", {}, {}, "m"),
        ("ep", {"model": MODEL}, {}, "m"),
        ("ep", {"model": "other"}, {}, "other"),
        ("other", {"model": "m"}, {}, "other"),
        ("org%2Fother", {}, {}, "other"),
        ("alias", {"model": "other"}, {}, "m"),
        ("ep", {}, {"X-Amzn-SageMaker-Target-Model": "other"}, "other"),
        ("m", {}, {"X-Amzn-SageMaker-Inference-Component": "other"}, "other"),
        ("other", {}, {"X-Amzn-SageMaker-Target-Model": "m.tar.gz"}, "other"),
    ],
)
def test_which_model_answers(
    stack: Stack, name: str, body: dict[str, Any], headers: dict[str, str], model: str
) -> None:
    content = {"prompt": "hi", "max_tokens": 1, **body}
    reply = httpx.post(f"{stack.url}/sagemaker/endpoints/{name}/invocations", json=content, headers=headers)
    assert reply.status_code == 200
    asked = [entry for entry in list(stack.sim.ledger.entries) if entry.generation][-1]
    assert json.loads(asked.body)["model"] == {"m": "sim", "other": "sim-2"}[model]


def test_an_unknown_model_in_the_body_is_an_error_in_either_shape(stack: Stack) -> None:
    body = {"prompt": "hi", "model": "nobody"}
    raw = httpx.post(stack.url + "/invocations", json=body)
    assert (raw.status_code, raw.json()["error"]["code"]) == (404, "model_not_found")
    aws = httpx.post(stack.url + "/sagemaker/endpoints/ep/invocations", json=body)
    assert (aws.status_code, aws.headers["x-amzn-errortype"]) == (400, "ValidationError")
    assert "nobody" in aws.json()["message"]


def test_paths_and_methods_that_are_not_there(stack: Stack) -> None:
    reply = httpx.get(stack.url + "/sagemaker/endpoints/ep/invocations")
    assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (405, "UnknownOperationException")
    assert reply.headers["allow"] == "POST"
    reply = httpx.post(stack.url + "/sagemaker/endpoints/ep/async-invocations", json={})
    assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (404, "UnknownOperationException")
    assert reply.headers["x-amzn-requestid"] == reply.headers["x-request-id"]
    reply = httpx.get(stack.url + "/sagemaker/models")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_path")


def test_a_stream_on_the_plain_paths_is_server_sent_events(stack: Stack) -> None:
    body = {"prompt": ["a", "b"], "max_tokens": 2, "stream": True}
    reply = httpx.post(stack.url + "/invocations", json=body)
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.content.endswith(b"data: [DONE]\n\n")
    assert {chunk["choices"][0]["index"] for chunk in chunks(reply.content)} == {0, 1}


def test_the_response_stream(stack: Stack) -> None:
    headers = {"X-Amzn-SageMaker-Custom-Attributes": "k=v", "X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
    reply = httpx.post(
        stack.url + "/sagemaker/endpoints/ep/invocations-response-stream",
        content=json.dumps({"messages": HI, "max_tokens": 3}).encode(),
        headers=headers,
    )
    assert reply.headers["content-type"] == "application/vnd.amazon.eventstream"
    assert reply.headers["x-amzn-sagemaker-content-type"] == "text/event-stream"
    assert reply.headers["x-amzn-sagemaker-custom-attributes"] == "k=v"
    assert reply.headers["x-dragoman-dropped"] == "X-Amzn-SageMaker-Session-Id"
    parts = payloads(reply.content)
    assert len(parts) == 5
    assert parts[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("fault", "status", "type_", "original"),
    [
        ("status:400", 424, "ModelError", 400),
        ("status:500", 424, "ModelError", 500),
        ("status:503", 503, "ServiceUnavailable", None),
        ("error-frame:500", 424, "ModelError", 500),
        ("fin", 424, "ModelError", 502),
    ],
)
def test_a_failing_worker_before_the_first_byte(
    stack: Stack, fault: str, status: int, type_: str, original: int | None
) -> None:
    message = "sim:" + json.dumps({"text": "a", "fault": fault})
    reply = httpx.post(
        stack.url + "/sagemaker/endpoints/ep/invocations-response-stream",
        json={"messages": [{"role": "user", "content": message}]},
    )
    assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (status, type_)
    assert reply.json().get("OriginalStatusCode") == original
    raw = httpx.post(stack.url + "/invocations", json={"messages": [{"role": "user", "content": message}]})
    assert raw.status_code >= 400
    assert "x-amzn-errortype" not in raw.headers
    assert raw.json()["error"]["message"]


def test_ping_needs_no_key_and_everything_else_does() -> None:
    keys = {"team": {"hash": "sha256:" + "0" * 64}}
    with Stack(config={"auth": "keys", "keys": keys}) as running:
        for path in ("/ping", "/sagemaker/ping"):
            reply = httpx.get(running.url + path)
            assert (reply.status_code, reply.content) == (200, b"")
        assert httpx.post(running.url + "/invocations", json={"prompt": "x"}).status_code == 401
        reply = httpx.post(running.url + "/sagemaker/endpoints/ep/invocations", json={"prompt": "x"})
        assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (403, "MissingAuthenticationTokenException")


def test_an_unknown_access_key_is_refused_before_its_body_is_there() -> None:
    keys = {"team": {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_env": "SECRET"}}
    with Stack(config={"auth": "keys", "keys": keys}, environ={"SECRET": "s"}) as running:
        url = httpx.URL(running.url)
        head = (
            b"POST /sagemaker/endpoints/ep/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
            b"X-Amz-Date: 20270131T120000Z\r\nAuthorization: AWS4-HMAC-SHA256"
            b" Credential=%b/20270131/r/s/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + b"0" * 64
        )
        for access_key, type_ in ((b"AKIDNOBODY", b"Unrecognized"), (b"AKIDEXAMPLE", b"InvalidSignature")):
            with socket.create_connection((url.host, url.port or 0)) as connection:
                connection.sendall(head % access_key + b"\r\n\r\n")
                answer = connection.recv(65536)
                assert answer.startswith(b"HTTP/1.1 403 ")
                assert b"x-amzn-errortype: " + type_ in answer


def test_ping_without_a_ready_worker() -> None:
    with Stack(({"loading_s": 3600},)) as running:
        assert httpx.get(running.url + "/ping").status_code == 503


def test_ping_of_a_gateway_that_ends() -> None:
    with Stack(config={"relay": {"drain_s": 0}}) as running:
        assert httpx.get(running.url + "/ping").status_code == 200
        running.run(running.gateway.drain())
        assert httpx.get(running.url + "/ping").status_code == 503


def test_prefixes_move_all_but_the_container_contract() -> None:
    with Stack(config={"dialects": {"sagemaker": {"prefixes": ["/aws"], "default_model": "m"}}}) as running:
        body = {"prompt": "x", "max_tokens": 1}
        for path in ("/invocations", "/aws/invocations", "/aws/endpoints/ep/invocations"):
            assert httpx.post(running.url + path, json=body).status_code == 200
        assert httpx.post(running.url + "/sagemaker/invocations", json=body).status_code == 404
