"""The bytes lane of OpenAI's wire: what it changes, and that it changes nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.messages import Chat, Complete, Embed
from gateway.core.usage import Usage
from gateway.wire import sse
from gateway.wire.openai.passthrough import Relay, whole


def refuse(error: GatewayError) -> bytes:
    return sse.frame(msgspec.json.encode({"error": error.message}))


CHAT = Chat(model="m", messages=())


def relay(*, chat: bool = True, choices: int = 1, include_usage: bool = False) -> Relay:
    return Relay("m", chat=chat, choices=choices, include_usage=include_usage, refuse=refuse)


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "sim", "choices": choices, **more}


def choice(index: int = 0, finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def frame(body: Any, spaced: bool = False) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=None if spaced else (",", ":"))
    return b"data: " + text.encode() + b"\n\n"


ROLE = chunk(choice(role="assistant", content=""))
TEXT = chunk(choice(content="Hi"))
STOP = chunk(choice(0, "stop"))
USAGE = chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
DONE = b"data: [DONE]\n\n"


def carried(lane: Relay, *bodies: Any, spaced: bool = False) -> list[dict[str, Any]]:
    """What comes out, parsed; each frame in a block of its own."""
    out = b"".join(lane.feed(body if isinstance(body, bytes) else frame(body, spaced)) for body in bodies)
    pieces = [piece.removeprefix(b"data: ") for piece in out.split(b"\n\n") if piece]
    return [json.loads(piece) for piece in pieces if piece != b"[DONE]"]


@pytest.mark.parametrize("spaced", [False, True])
def test_only_the_model_changes_in_an_ordinary_stream(spaced: bool) -> None:
    lane = relay()
    found = carried(lane, ROLE, TEXT, TEXT, STOP, DONE, spaced=spaced)
    assert found == [{**body, "model": "m", "choices": list(body["choices"])} for body in (ROLE, TEXT, TEXT, STOP)]
    assert lane.done
    assert lane.error is None
    assert lane.produced == 2


def test_an_ordinary_chunk_goes_on_as_its_bytes_were() -> None:
    """Numbers and the order of members as the worker wrote them: the quick way parses nothing."""
    lane = relay()
    lane.feed(frame(ROLE))
    odd = b'{"zz":1.10,"model":"sim","choices":[{"finish_reason":null,"delta":{"content":"\\u00e9"},"index":0}]}'
    assert lane.feed(b"data: " + odd + b"\n\n") == b"data: " + odd.replace(b'"sim"', b'"m"') + b"\n\n"


def test_text_that_looks_like_structure_is_left_alone() -> None:
    lane = relay()
    lane.feed(frame(ROLE))
    text = '"model":"sim" "finish_reason":null,"usage":{"error":1} [DONE]\n\ndata: [DONE]'
    assert carried(lane, chunk(choice(content=text)))[0]["choices"][0]["delta"]["content"] == text
    assert not lane.done


@pytest.mark.parametrize("name", ["sim", 'quo"te', "org/name:tag", "中文", "a\\b"])
def test_any_models_name_is_exchanged(name: str) -> None:
    lane = relay()
    bodies = [{**body, "model": name} for body in (ROLE, TEXT, STOP)]
    assert [body["model"] for body in carried(lane, *bodies)] == ["m"] * 3


def test_usage_is_stripped_unless_asked_for() -> None:
    lane = relay()
    assert carried(lane, ROLE, TEXT, STOP, USAGE) == carried(relay(), ROLE, TEXT, STOP)
    assert lane.usage == Usage(3, 2)
    lane = relay(include_usage=True)
    found = carried(lane, ROLE, TEXT, STOP, USAGE)
    assert found[-1]["usage"] == USAGE["usage"]
    assert found[-1]["choices"] == []
    assert lane.usage == Usage(3, 2)


@pytest.mark.parametrize("count", [-1, 2**31, 10**30])
def test_counts_that_make_no_sense_are_charged_to_nobody(count: int) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": count}
    lane = relay()
    carried(lane, ROLE, TEXT, STOP, chunk(usage=usage))
    assert lane.usage is None
    assert lane.error is not None
    assert lane.error.code == "upstream_malformed"
    with pytest.raises(GatewayError) as caught:
        whole(json.dumps({**reply(), "usage": usage}).encode(), CHAT)
    assert caught.value.code == "upstream_malformed"


def test_usage_on_a_chunk_with_choices_is_taken_off_it() -> None:
    lane = relay()
    found = carried(lane, ROLE, {**STOP, "usage": USAGE["usage"]})
    assert "usage" not in found[-1]
    assert found[-1]["choices"][0]["finish_reason"] == "stop"
    assert lane.usage == Usage(3, 2)


def test_the_role_comes_once_for_each_choice() -> None:
    lane = relay(choices=2)
    again = chunk(choice(role="assistant", content="a"), choice(1, content="b"))
    found = carried(lane, ROLE, again, again)
    roles = [["role" in one["delta"] for one in body["choices"]] for body in found]
    assert roles == [[True], [False, True], [False, False]]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_comes_under_both_names(name: str) -> None:
    lane = relay()
    thoughts = [{"role": "assistant", name: "first"}, {name: "a"}, {name: 'b "quoted" \\'}]
    found = carried(lane, *(chunk(choice(**thought)) for thought in thoughts))
    for body, text in zip(found, ("first", "a", 'b "quoted" \\'), strict=True):
        delta = body["choices"][0]["delta"]
        assert delta["reasoning"] == delta["reasoning_content"] == text


@pytest.mark.parametrize(
    ("said", "told"), [("stop", "stop"), ("tool_calls", "tool_calls"), ("repetition", "stop"), ("eos_token", "stop")]
)
def test_reasons_are_those_that_openai_knows(said: str, told: str) -> None:
    found = carried(relay(), ROLE, chunk(choice(0, said)))
    assert found[-1]["choices"][0]["finish_reason"] == told


@pytest.mark.parametrize("said", ["abort", "error"])
def test_a_generation_given_up_is_a_failure(said: str) -> None:
    lane = relay()
    carried(lane, ROLE, TEXT, chunk(choice(0, said)))
    assert lane.error is not None
    assert lane.error.code == "upstream_aborted"


def test_other_forms_of_the_same_stream_become_one() -> None:
    """CRLF, comments, no space and multi-line data, before the stream is known and after."""
    lines = json.dumps(TEXT, indent=1).split("\n")
    wild = (
        frame(ROLE)
        + frame(TEXT)
        + b": ping\n\n"
        + frame(TEXT).replace(b"data: ", b"data:")
        + frame(TEXT).replace(b"\n\n", b"\r\n\r\n")
        + b"".join(b"data: " + line.encode() + b"\n" for line in lines)
        + b"\n"
        + frame(STOP)
        + DONE
    )
    plain = frame(ROLE) + frame(TEXT) * 4 + frame(STOP) + DONE
    outs = []
    for stream in (wild, plain):
        lane = relay()
        outs.append(b"".join(lane.feed(stream[i : i + 1]) for i in range(len(stream))))
        assert lane.done
    assert [json.loads(piece[6:]) for piece in outs[0].split(b"\n\n")[:-2]] == [
        json.loads(piece[6:]) for piece in outs[1].split(b"\n\n")[:-2]
    ]
    assert b"\r" not in outs[0]
    assert b"\n\n\n" not in outs[0]


@pytest.mark.parametrize(
    "bodies",
    [
        [],
        [DONE],
        [ROLE, DONE],
        [ROLE, TEXT, DONE],
    ],
)
def test_the_mark_alone_is_no_end(bodies: list[Any]) -> None:
    lane = relay()
    carried(lane, *bodies)
    lane.eof()
    assert not lane.done
    assert lane.error is not None
    assert lane.error.kind is Kind.TRUNCATED


@pytest.mark.parametrize("chat", [True, False])
def test_every_choice_must_finish(chat: bool) -> None:
    """Also one that was only ever seen in ordinary chunks."""
    lane = relay(chat=chat, choices=2)

    def body(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        if chat:
            return choice(index, finish, content=text)
        return {"index": index, "text": text, "finish_reason": finish}

    carried(lane, chunk(body(0, "a")), chunk(body(1, "b")), chunk(body(1, "b")))
    carried(lane, chunk(body(0, "", "stop")), DONE)
    assert not lane.done
    assert lane.error is not None


def test_what_follows_the_mark_is_not_read() -> None:
    lane = relay()
    out = lane.feed(frame(ROLE) + frame(STOP) + DONE + b"data: {broken\n\n")
    assert out.endswith(DONE)
    assert lane.done
    assert lane.error is None
    assert lane.eof() == b""
    assert lane.error is None


@pytest.mark.parametrize("junk", [b"{", b"[]", b"null", b"{}", b'{"choices":{}}', b'{"choices":[7]}', b"\xff"])
def test_junk_is_the_workers_fault(junk: bytes) -> None:
    lane = relay()
    lane.feed(b"data: " + junk + b"\n\n")
    assert lane.error is not None
    assert lane.error.blame is Blame.WORKER
    assert lane.error.code == "upstream_malformed"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "too long", "code": 400}, Kind.BAD_REQUEST),
        ({"message": "maximum context length is 10", "code": 400}, Kind.CONTEXT_LENGTH),
        ({"message": "died", "code": 500}, Kind.UPSTREAM),
        ({"message": "died"}, Kind.UPSTREAM),
        ("died", Kind.UPSTREAM),
    ],
)
def test_an_error_within_the_stream_is_one(error: Any, kind: Kind) -> None:
    lane = relay()
    carried(lane, ROLE, TEXT)
    assert lane.feed(frame({"error": error})) == b""
    assert lane.error is not None
    assert lane.error.kind is kind


def test_a_failure_from_elsewhere_is_told() -> None:
    lane = relay()
    lane.feed(frame(ROLE))
    error = GatewayError(Kind.TIMEOUT, "late")
    assert lane.fail(error) == b'data: {"error":"late"}\n\n'
    assert lane.error is error
    assert lane.keepalive() == b"\n"


# -- whole replies --------------------------------------------------------------------------------------------------


def reply(**message: Any) -> dict[str, Any]:
    body = {"role": "assistant", "content": "hi", **message}
    return {
        "id": "x",
        "model": "sim",
        "choices": [{"index": 0, "message": body, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }


def test_a_whole_reply_changes_its_models_name_only() -> None:
    body = (
        b'{"id":"x", "model":"sim","zz":1.10,"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}'
    )
    assert whole(body, CHAT) == (body.replace(b'"sim"', b'"m"'), None)
    assert whole(body, msgspec.structs.replace(CHAT, model="sim"))[0] is body


def test_a_whole_replys_usage() -> None:
    _, usage = whole(json.dumps(reply()).encode(), CHAT)
    assert usage == Usage(1, 2, 1)


def test_a_whole_replys_text_may_quote_the_models_name() -> None:
    body = json.dumps(reply(content='"model":"sim"'), separators=(",", ":")).encode()
    found = json.loads(whole(body, CHAT)[0])
    assert found["model"] == "m"
    assert found["choices"][0]["message"]["content"] == '"model":"sim"'


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_whole_replys_thinking_comes_under_both_names(name: str) -> None:
    found = json.loads(whole(json.dumps(reply(**{name: "hm"})).encode(), CHAT)[0])
    message = found["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"choices":7}',
        b"\xff",
        b"[" * 100_000,
        b'{"model":"m","choices":[]}',
        b'{"model":"m","choices":[{}]}',
        b'{"model":"m","choices":[{"finish_reason":"stop"}]}',
        b'{"model":"m","choices":[{"message":"text","finish_reason":"stop","note":"reasoning"}]}',
        b'{"model":"m","choices":[{"message":{"content":"\xff\xfe","reasoning":null},"finish_reason":"stop"}]}',
        b'{"model":"m","choices":[{"message":{"content":"\xff\xfe","reasoning":"r"},"finish_reason":"stop"}]}',
        b'{"model":"m","choices":[{"message":{"content":"a"}},{"message":{"content":"b"}}]}',
        b'{"model":"m","data":[{"embedding":[1]}]}',
    ],
)
def test_what_is_no_whole_reply_is_the_workers_fault(body: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        whole(body, CHAT)
    assert caught.value.code == "upstream_malformed"


def test_an_error_in_a_200_is_an_error() -> None:
    with pytest.raises(GatewayError) as caught:
        whole(b'{"error":{"message":"bad","code":400}}', CHAT)
    assert caught.value.kind is Kind.BAD_REQUEST
    aborted = reply()
    aborted["choices"][0]["finish_reason"] = "abort"
    with pytest.raises(GatewayError) as caught:
        whole(json.dumps(aborted).encode(), CHAT)
    assert caught.value.code == "upstream_aborted"


TEXTS = Complete(model="m", prompts=("a", "b"))
VECTORS = Embed(model="m", inputs=("a", "b"))


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (TEXTS, {"choices": [{"text": "a", "finish_reason": "stop"}]}),
        (TEXTS, {"choices": [{"text": "a", "finish_reason": "stop"}, {"text": "b", "finish_reason": None}]}),
        (TEXTS, {"choices": [{"text": "a", "finish_reason": "stop"}, {"finish_reason": "stop"}]}),
        (VECTORS, {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}),
        (VECTORS, {"data": [{"embedding": [1.0]}]}),
        (VECTORS, {"data": [{"embedding": [1.0]}, {"embedding": None}]}),
        (VECTORS, {"data": []}),
    ],
)
def test_less_than_was_asked_for_is_the_workers_fault(op: Complete | Embed, body: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as caught:
        whole(json.dumps({"model": "m", **body}).encode(), op)
    assert caught.value.code == "upstream_malformed"


def test_as_much_as_was_asked_for_is_a_reply() -> None:
    both = [{"text": text, "index": index, "finish_reason": "stop"} for index, text in enumerate("ab")]
    for op, body in ((TEXTS, {"choices": both}), (VECTORS, {"data": [{"embedding": [1.0]}, {"embedding": "AAA="}]})):
        told = json.dumps({"model": "m", **body}).encode()
        assert whole(told, op) == (told, None)


def test_the_workers_name_for_the_model_is_nowhere() -> None:
    lane = relay()
    nested = chunk(choice(content="a"), meta={"model": "sim"})
    bare = {name: value for name, value in TEXT.items() if name != "model"}
    other = {**TEXT, "model": "internal"}
    for body in carried(lane, ROLE, bare, TEXT, TEXT, other, other, nested, nested, STOP):
        assert body["model"] == "m"
    found = json.loads(whole(json.dumps({"meta": {"model": "m2"}, **reply()}, separators=(",", ":")).encode(), CHAT)[0])
    assert (found["model"], found["meta"]) == ("m", {"model": "m2"})


@pytest.mark.parametrize(
    "broken",
    [
        b'"content":"a',
        b'"content":"a\x01"',
        b'"content":"\xff"',
        b'"content":5',
        b'"content":"\\q"',
        b'"content":["a"]',
    ],
)
def test_a_broken_chunk_late_in_a_stream_is_an_error(broken: bytes) -> None:
    lane = relay()
    usual = frame(TEXT)
    carried(lane, ROLE, TEXT, TEXT, TEXT)
    assert lane.feed(usual.replace(b'"content":"Hi"', broken)) == b""
    assert lane.error is not None
    assert lane.error.code == "upstream_malformed"


@pytest.mark.parametrize(
    "odd", ['{"content":"a\\ud83d"}', '{"content":"a","note":NaN}', '{"content":"a","x":-Infinity}']
)
def test_what_python_writes_and_reads_goes_on(odd: str) -> None:
    """Halves of a character, and numbers that are none."""
    for before in ([], [TEXT, TEXT]):
        lane = relay()
        carried(lane, ROLE, *before)
        [found] = carried(lane, frame(TEXT).replace(b'{"content":"Hi"}', odd.encode()))
        assert repr(found["choices"][0]["delta"]) == repr(json.loads(odd))
        assert found["model"] == "m"
        carried(lane, STOP, DONE)
        assert lane.done


def test_an_empty_word_is_no_end() -> None:
    lane = relay()
    found = carried(lane, ROLE, chunk(choice(0, "", content="a")), chunk(choice(0, "", content="b")))
    assert [body["choices"][0]["finish_reason"] for body in found] == [None] * 3
    lane.feed(DONE)
    assert not lane.done


def test_fewer_choices_than_asked_for_are_no_whole_stream() -> None:
    lane = relay(choices=2)
    carried(lane, ROLE, TEXT, STOP, DONE)
    assert lane.error is not None
    assert lane.error.kind is Kind.TRUNCATED


def test_what_several_choices_say_is_told_apart() -> None:
    lane = relay(choices=2)
    said = [chunk(choice(index, content=f"{index}{number}")) for number in range(6) for index in (0, 1)]
    found = carried(lane, chunk(choice(0, role="assistant", content="")), chunk(choice(1, role="assistant")), *said)
    texts = [(body["choices"][0]["index"], body["choices"][0]["delta"]["content"]) for body in found[2:]]
    assert texts == [(index, f"{index}{number}") for number in range(6) for index in (0, 1)]
