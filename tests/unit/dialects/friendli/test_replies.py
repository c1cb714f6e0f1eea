"""Replies of the dialect `friendli`, byte by byte, whole and streamed. No socket."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import fold
from gateway.core.messages import Complete
from gateway.core.usage import Usage
from tests.unit.dialects.friendli.exchange import (
    CLIENT_BODY,
    DIALECT,
    DONE,
    chunk,
    events,
    lane,
    read,
    request,
    sampled,
    usage,
)

# The specification's examples as it prints them.
SAMPLE_REPLY, SAMPLE_STREAM = (
    Path(__file__).with_name(name).read_text().strip() for name in ("reply.txt", "stream.txt")
)
SAID = [("\n", 3), ("\n", 3), ("This", 412), (" is", 15), (" indeed", 5440), (" a", 129), (" test", 3391)]


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
    pieces = [("", 1), ("", 2), ("abc", 3), ("de", 4), ("", 5), ("", 6), ("fg", 7), ("h", None)]
    assert sampled(out) == [(0, *piece) for piece in pieces]
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


def probs(token: str) -> dict[str, Any]:
    return {"tokens": [token], "token_logprobs": [-0.5], "top_logprobs": [{token: -0.5}], "text_offset": [0]}


def test_logprobs_stand_in_the_choices() -> None:
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


def test_logprobs_are_those_of_the_tokens_that_are_shown() -> None:
    """Not that of the model's end."""
    end = chunk(0, "", [2], logprobs=probs("</s>"), finish_reason="stop")
    out = lane(read(seed=1, stream=True, include_output_logprobs=True)).feed(
        chunk(0, "a", [3], logprobs=probs("a")) + end + DONE
    )
    (choice,) = events(out)[-1]["choices"]
    assert (choice["tokens"], choice["logprobs"]["tokens"]) == ([3], ["a"])


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
    op = read(prompt=None, tokens=[1, 2, 3], stream=True)
    writer = DIALECT.writer(op)
    made: list[Event] = [Start("c", "w", 1), PartStart(0, 0, "text"), Delta(0, 0, "a", (4,)), PartEnd(0, 0)]
    made.append(Finish(0, "stop", "stop"))
    if told is not None:
        made.append(UsageReport(told))
    made.append(End())
    out = b"".join(writer.write(event) for event in made)
    assert tuple(events(out)[-1]["usage"].values()) == counts
    whole = json.loads(DIALECT.write(fold(made), op).body)
    assert tuple(whole["usage"].values()) == counts


def test_a_failure_is_an_event_that_is_no_token() -> None:
    (told,) = events(lane(read(seed=42, stream=True)).fail(GatewayError(Kind.TRUNCATED, "cut")))
    assert (told["event"], told["message"], told["error"]["message"]) == ("error", "cut", "cut")
    assert "token" not in told


# -- chunks, under the paths of friendli 0.16.3 ---------------------------------------------------------------------


def chunks(**asked: Any) -> Complete:
    op = DIALECT.read(request({"prompt": "hi", "stream": True, **asked}, route="chunks"))
    assert isinstance(op, Complete)
    return op


def test_a_stream_of_chunks() -> None:
    """What friendli 0.16.3 requires of each: id, object, created and choices; and `[DONE]`."""
    out = lane(chunks(model="m")).feed(b"".join(SAMPLE_WORKER))
    *said, done = out.removesuffix(b"\n\n").split(b"\n\n")
    assert done == b"data: [DONE]"
    told = events(b"\n\n".join(said) + b"\n\n")
    assert {(one["id"], one["object"], one["model"]) for one in told} == {("c", "text_completion", "m")}
    assert all(isinstance(one["created"], int) and len(one["choices"]) == 1 for one in told)
    choices = [one["choices"][0] for one in told]
    assert [(choice["text"], choice["token"]) for choice in choices[:-1]] == SAID
    assert [choice["finish_reason"] for choice in choices] == [None] * len(SAID) + ["length"]


def test_several_ids_in_a_chunk_and_text_without_ids_in_chunks() -> None:
    out = lane(chunks()).feed(
        chunk(0, "abc", [1, 2, 3])
        + chunk(0, "d", None)
        + chunk(0, "", [5])
        + chunk(0, "e", [4], finish_reason="stop")
        + DONE
    )
    found = [one["choices"][0] for one in events(out.removesuffix(DONE))]
    pieces = [("", 1), ("", 2), ("abc", 3), ("d", None), ("", 5), ("e", None), ("", None)]
    assert [(choice["text"], choice.get("token")) for choice in found] == pieces


def test_logprobs_of_chunks_begin_where_their_text_does() -> None:
    out = lane(chunks(include_output_logprobs=True)).feed(
        chunk(0, "ab", [1], logprobs=probs("ab")) + chunk(0, "c", [2], logprobs=probs("c"))
    )
    assert [one["choices"][0]["logprobs"]["text_offset"] for one in events(out)] == [[0], [2]]
