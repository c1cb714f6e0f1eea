"""Replies of the dialect `sagemaker`: the samples of its specification as bytes, whole and streamed, and more.

The `.json` and `.sse` files beside this one are every sample reply of the specification, as printed there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from gateway.core.http import Response
from gateway.core.lifecycle import fold
from gateway.core.messages import Chat, Complete
from gateway.dialects.sagemaker.fields import MODEL
from gateway.dialects.sagemaker.replies import id_of
from gateway.wire import sse
from tests.unit.dialects.asking import HI
from tests.unit.dialects.sagemaker.exchange import DIALECT, ENDPOINT, RAW, STREAM, VLLM, chunks, lane, payloads, read

SAMPLES = Path(__file__).parent

# -- the specification's samples ------------------------------------------------------------------------------------


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


def written(op: Chat | Complete, worker: bytes) -> Response:
    """The reply to `op` for a worker's reply."""
    return DIALECT.write(fold(VLLM.read(Response(200, [], worker), op)), op)


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
    response = written(op, as_vllm(sample))
    assert response.status == 200
    # Compact instead of indented; members, nulls and their order as printed.
    assert response.body == msgspec.json.encode(sample)
    assert (b"content-type", b"application/json") in response.headers


def test_annotations_and_audio_of_a_message_pass_through() -> None:
    said = {
        "annotations": [{"type": "url_citation", "url_citation": {"url": "http://x", "start_index": 0}}],
        "audio": {"id": "a", "data": "AA==", "transcript": "hi"},
    }
    choices = [
        {"index": 0, "message": {"content": None, **said}, "finish_reason": "stop"},
        {"index": 1, "message": {"content": "x", "annotations": []}, "finish_reason": "stop"},
    ]
    op = read({"messages": HI, "n": 2}, RAW)
    body = json.dumps({"id": "chatcmpl-1", "created": 1, "choices": choices}).encode()
    found = json.loads(written(op, body).body)["choices"]
    assert {name: found[0]["message"][name] for name in said} == said
    assert (found[1]["message"]["annotations"], found[1]["message"]["audio"]) == ([], None)


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


STREAMS: list[tuple[str, dict[str, Any]]] = [("chat", {"messages": HI}), ("text", {"prompt": "If"})]


@pytest.mark.parametrize(("name", "body"), STREAMS)
@pytest.mark.parametrize("route", [RAW, ENDPOINT, STREAM])
def test_every_streamed_sample_is_reproduced(name: str, body: dict[str, Any], route: str) -> None:
    under = lane(body, route)
    sent = b"".join(under.feed(frame) for frame in worker_stream(name))
    assert under.done
    # The one difference: a blank line ends an event. Without it openai-python sees no chunk at all.
    expected = [line + b"\n\n" for line in sample_stream(name)]
    assert (payloads(sent) if route == STREAM else [sent]) == (expected if route == STREAM else [b"".join(expected)])


# -- streams beyond the samples ----------------------------------------------------------------------------------------


def vllm_chunk(choice: dict[str, Any], **members: Any) -> bytes:
    head = {"id": "chatcmpl-" + "a" * 32 + "-17", "object": "chat.completion.chunk", "created": 7, "model": "sim"}
    return sse.frame(json.dumps({**head, "choices": [choice] if choice else [], **members}).encode())


def test_the_id_and_the_stop_reason_in_a_stream() -> None:
    delta = vllm_chunk({"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None})
    last = vllm_chunk({"index": 0, "delta": {"content": ""}, "finish_reason": "stop", "stop_reason": 42})
    found = chunks(lane({"messages": HI}, RAW).feed(delta + last + sse.DONE))
    assert {chunk["id"] for chunk in found} == {"chatcmpl-" + "a" * 32}
    assert [chunk["choices"][0]["delta"] for chunk in found][1:] == [{"reasoning_content": "hm"}, {"content": ""}]
    assert [chunk["choices"][0]["stop_reason"] for chunk in found] == [None, None, "42"]


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
    assert written(read({"messages": HI}), as_vllm(sample)).body == msgspec.json.encode(sample)
    sample = json.loads((SAMPLES / "text.json").read_text())
    sample["choices"][0] |= {"prompt_logprobs": [None], "stop_reason": "2"}
    sample["kv_transfer_params"] = {"k": [1]}
    worker = json.loads(as_vllm(sample))
    worker["choices"][0]["stop_reason"] = 2
    assert written(read({"prompt": "hi"}), msgspec.json.encode(worker)).body == msgspec.json.encode(sample)


def test_a_reply_of_tool_calls_alone_and_a_worker_without_id_or_usage() -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    worker = {"created": 1, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    reply = json.loads(written(read({"messages": HI}), json.dumps(worker).encode()).body)
    assert reply["choices"][0]["message"]["content"] == ""
    assert reply["choices"][0]["message"]["tool_calls"] == [call]
    assert "reasoning_content" not in reply["choices"][0]["message"]
    assert reply["usage"] is None
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", reply["id"])


HEX = "0123456789abcdef" * 2
DASHED = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("uuid", [HEX, DASHED])
@pytest.mark.parametrize("before", ["", "chatcmpl-", "cmpl-"])
@pytest.mark.parametrize("behind", ["", "-1", "-17-b"])
def test_a_uuid_in_the_workers_id_is_the_replys(chat: bool, uuid: str, before: str, behind: str) -> None:
    assert id_of(before + uuid + behind, chat) == ("chatcmpl-" if chat else "cmpl-") + uuid


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("said", ["", "my-request-17", HEX + "0", "x" + HEX, HEX.upper(), "世界", "cmpl-cmpl-"])
def test_any_other_id_makes_a_uuid_always_the_same(chat: bool, said: str) -> None:
    prefix = "chatcmpl-" if chat else "cmpl-"
    found = id_of(prefix + said, chat)
    assert UUID(found.removeprefix(prefix)).version == 5
    assert found == id_of(prefix + said, chat)
    assert found == id_of(said, chat) or said.startswith("cmpl-")
    assert found != id_of(prefix + said + "1", chat)


def test_what_was_held_back_is_sent_before_the_failure() -> None:
    """A worker that gives up in the very chunk of its last text."""
    under = lane({"prompt": "x"}, RAW)
    assert under.feed(vllm_chunk({"index": 0, "text": "last", "finish_reason": "abort"})) == b""
    assert under.error is not None
    assert b'"text":"last"' in under.fail(under.error)


def test_keepalives_are_blank_lines_in_either_form() -> None:
    assert lane({"messages": HI}, RAW).keepalive() == b"\n"
    assert payloads(lane({"messages": HI}, STREAM).keepalive()) == [b"\n"]
