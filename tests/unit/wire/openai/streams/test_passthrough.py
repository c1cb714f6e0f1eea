"""The passthrough lane of OpenAI's wire: what it changes, and that it changes nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.messages import Chat
from gateway.core.usage import Usage
from gateway.wire import clock, sse
from gateway.wire.openai.streams.passthrough import Asked, Passthrough, PassthroughLane


def refuse(error: GatewayError) -> bytes:
    return sse.frame(msgspec.json.encode({"error": error.message}))


CHAT = Chat(model="m", messages=())


def relay(*, chat: bool = True, choices: int = 1, include_usage: bool = False) -> PassthroughLane:
    return PassthroughLane(Asked(Raw(b'"m"'), chat, choices, include_usage), Passthrough(refuse))


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "sim", "choices": choices, **more}


def choice(index: int = 0, finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def failure(lane: PassthroughLane) -> GatewayError:
    """Why the reply will never be complete."""
    assert lane.error is not None
    return lane.error


def frame(body: Any, spaced: bool = False) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=None if spaced else (",", ":"))
    return b"data: " + text.encode() + b"\n\n"


ROLE = chunk(choice(role="assistant", content=""))
TEXT = chunk(choice(content="Hi"))
STOP = chunk(choice(0, "stop"))
USAGE = chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
DONE = b"data: [DONE]\n\n"


def carried(lane: PassthroughLane, *bodies: Any, spaced: bool = False) -> list[dict[str, Any]]:
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
    same = b'"created":1,"object":"chat.completion.chunk","id":"x"'
    odd = (
        b'{"zz":1.10,"model":"sim","choices":[{"finish_reason":null,"delta":{"content":"\\u00e9"},"index":0}],%b}'
        % same
    )
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
    assert [body["model"] for body in carried(lane, *bodies, DONE)] == ["m"] * 3


def test_usage_is_stripped_unless_asked_for() -> None:
    lane = relay()
    assert carried(lane, ROLE, TEXT, STOP, USAGE) == carried(relay(), ROLE, TEXT, STOP, DONE)
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
    assert failure(lane).code == "upstream_malformed"


def test_usage_on_a_chunk_with_choices_is_taken_off_it() -> None:
    lane = relay()
    found = carried(lane, ROLE, {**STOP, "usage": USAGE["usage"]}, DONE)
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
    found = carried(relay(), ROLE, chunk(choice(0, said)), DONE)
    assert found[-1]["choices"][0]["finish_reason"] == told


@pytest.mark.parametrize("said", ["abort", "error"])
def test_a_generation_given_up_is_a_failure(said: str) -> None:
    lane = relay()
    carried(lane, ROLE, TEXT, chunk(choice(0, said)))
    assert failure(lane).code == "upstream_aborted"


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
    first, second = ([json.loads(piece[6:]) for piece in out.split(b"\n\n")[:-2]] for out in outs)
    assert first == second
    assert b"\r" not in outs[0]
    assert b"\n\n\n" not in outs[0]


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
    error = failure(lane)
    assert (error.blame, error.code) == (Blame.WORKER, "upstream_malformed")


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
    assert failure(lane).kind is kind


def test_a_failure_from_elsewhere_is_told() -> None:
    lane = relay()
    lane.feed(frame(ROLE))
    error = GatewayError(Kind.TIMEOUT, "late")
    assert lane.fail(error) == b'data: {"error":"late"}\n\n'
    assert lane.error is error
    assert lane.keepalive() == b"\n"


@pytest.mark.parametrize("value", [b'"a', b'"a\x01"', b'"\xff"', b"5", b'"\\q"', b'["a"]'])
def test_a_broken_chunk_late_in_a_stream_is_an_error(value: bytes) -> None:
    lane = relay()
    carried(lane, ROLE, TEXT, TEXT, TEXT)
    assert lane.feed(frame(TEXT).replace(b'"content":"Hi"', b'"content":' + value)) == b""
    assert failure(lane).code == "upstream_malformed"


@pytest.mark.parametrize("odd", ['{"content":"a\\ud83d"}', '{"content":"a","note":"\\udC00"}'])
def test_halves_of_a_character_go_on(odd: str) -> None:
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


def test_what_several_choices_say_is_told_apart() -> None:
    lane = relay(choices=2)
    said = [chunk(choice(index, content=f"{index}{number}")) for number in range(6) for index in (0, 1)]
    found = carried(lane, chunk(choice(0, role="assistant", content="")), chunk(choice(1, role="assistant")), *said)
    texts = [(body["choices"][0]["index"], body["choices"][0]["delta"]["content"]) for body in found[2:]]
    assert texts == [(index, f"{index}{number}") for number in range(6) for index in (0, 1)]


def test_the_workers_name_for_the_model_is_nowhere() -> None:
    lane = relay()
    nested = chunk(choice(content="a"), meta={"model": "sim"})
    bare = {name: value for name, value in TEXT.items() if name != "model"}
    other = {**TEXT, "model": "internal"}
    for body in carried(lane, ROLE, bare, TEXT, TEXT, other, other, nested, nested, STOP):
        assert body["model"] == "m"


# -- less than exact servers ----------------------------------------------------------------------------------------

_TOOL = {"function": {"name": "f", "arguments": ""}}
_MORE = {"function": {"arguments": "{}"}}


def called(lane: PassthroughLane, *deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pieces of tool calls that the client gets."""
    found = carried(lane, *(chunk(choice(tool_calls=pieces)) for pieces in deltas))
    return [piece for body in found for piece in body["choices"][0]["delta"]["tool_calls"]]


@pytest.mark.parametrize(
    "deltas",
    [
        [[_TOOL], [_MORE], [{"function": {"name": "g", "arguments": ""}}], [_MORE]],
        [[{**_TOOL, "id": "a"}], [_MORE], [{"id": "b", "function": {"name": "g", "arguments": ""}}], [_MORE]],
        [
            [{**_TOOL, "id": "a", "index": 0}],
            [{**_MORE, "index": 0}],
            [{"id": "b", "index": 0, "function": {"name": "g", "arguments": ""}}],
            [{**_MORE, "index": 0, "id": "b"}],
        ],
        [[_TOOL, {"function": {"name": "g", "arguments": ""}}], [_MORE, _MORE]],
    ],
    ids=["neither index nor id", "no index", "index 0 for all", "several in a chunk"],
)
def test_tool_calls_have_an_index_and_an_id(deltas: list[list[dict[str, Any]]]) -> None:
    pieces = called(relay(), *deltas)
    begun = {piece["index"]: piece for piece in pieces if "id" in piece}
    assert sorted(begun) == [0, 1]
    assert [begun[place]["function"]["name"] for place in (0, 1)] == ["f", "g"]
    assert all(piece["id"] and piece["type"] == "function" for piece in begun.values())
    for place in (0, 1):
        own = [piece for piece in pieces if piece["index"] == place]
        assert "".join(piece["function"]["arguments"] for piece in own) == "{}"
        assert ["id" in piece for piece in own] == [True, False]
        assert ["name" in piece["function"] for piece in own] == [True, False]


def test_a_piece_that_repeats_its_call_is_not_joined_twice() -> None:
    """Clients join ids and names of the pieces of a call."""
    again = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "x"}}
    first, *others = called(relay(), [again], [again], [again])
    assert (first["id"], first["function"]["name"]) == ("a", "f")
    assert all("id" not in piece and "name" not in piece["function"] for piece in others)


def test_exact_tool_calls_go_on_as_they_came() -> None:
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}, "note": 1}
    assert called(relay(), [first], [more]) == [first, more]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "seconds", lambda: 1000.0)
    monkeypatch.setattr(clock, "new_id", lambda prefix: prefix + "made")


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("missing", [{"id", "created"}, {"id"}, {"created"}, {"object"}])
def test_a_stream_has_one_id_and_one_time(missing: set[str]) -> None:
    """Also where the worker changes them from chunk to chunk."""
    lane = relay()
    bodies = [
        {name: value for name, value in {**body, "id": f"id-{n}", "created": 5 + n}.items() if name not in missing}
        for n, body in enumerate((ROLE, TEXT, TEXT, TEXT, STOP))
    ]
    found = carried(lane, *bodies, DONE)
    assert len(found) == 5
    wanted_id = "chatcmpl-made" if "id" in missing else "id-0"
    wanted_at = 1000 if "created" in missing else 5
    assert {(body["id"], body["created"], body["object"]) for body in found} == {
        (wanted_id, wanted_at, "chat.completion.chunk")
    }


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("created", [-1, 1e300, 10**15, 0, 2.5])
def test_a_time_that_is_none_is_not_passed_on(created: float) -> None:
    lane = relay()
    wanted = 2 if created == 2.5 else 1000
    assert [body["created"] for body in carried(lane, {**ROLE, "created": created}, TEXT)] == [wanted] * 2


def test_usage_beside_choices_comes_in_a_chunk_of_its_own() -> None:
    lane = relay(include_usage=True)
    used = USAGE["usage"]
    *rest, last = carried(
        lane, ROLE, {**TEXT, "usage": {**used, "completion_tokens": 1}}, {**STOP, "usage": used}, DONE
    )
    assert all("usage" not in body for body in rest)
    assert (last["choices"], last["usage"], last["id"]) == ([], used, "x")
    assert lane.usage == Usage(3, 2)


def test_running_usage_stays_where_it_was_asked_for() -> None:
    lane = PassthroughLane(Asked(Raw(b'"m"'), True, 1, True, running_usage=True), Passthrough(refuse))
    bodies = [{**body, "usage": USAGE["usage"]} for body in (ROLE, TEXT, STOP)]
    assert all(body["usage"] for body in carried(lane, *bodies, USAGE, DONE))


@pytest.mark.parametrize("late", [choice(content="more"), choice(tool_calls=[_TOOL])])
def test_text_after_a_choices_end_is_an_error(late: dict[str, Any]) -> None:
    """Also text in a chunk that looks as the ordinary ones did."""
    lane = relay(choices=2)
    texts = [chunk(choice(content=str(n))) for n in range(3)]
    assert len(carried(lane, ROLE, *texts, STOP)) == 5
    carried(lane, chunk(late))
    assert failure(lane).code == "upstream_malformed"


def test_an_empty_chunk_after_a_choices_end_is_left_out() -> None:
    lane = relay()
    found = carried(lane, ROLE, TEXT, STOP, chunk(choice(content="")), STOP, DONE)
    assert len(found) == 3
    assert lane.done


@pytest.mark.parametrize("include_usage", [False, True])
def test_the_fingerprint_is_told_with_or_without_usage(include_usage: bool) -> None:
    """vLLM says it in its usage chunk, which is stripped where the client did not ask for one."""
    lane = relay(include_usage=include_usage)
    found = carried(lane, ROLE, TEXT, STOP, {**USAGE, "system_fingerprint": "fp"}, DONE)
    assert [body["system_fingerprint"] for body in found if "system_fingerprint" in body] == ["fp"]
    assert found[-1]["system_fingerprint"] == "fp"
    assert lane.done


def test_a_cut_after_the_last_choices_end_loses_nothing_that_was_said() -> None:
    lane = relay()
    out = b"".join(map(lane.feed, map(frame, (ROLE, TEXT, chunk(choice(0, "stop", content="!"))))))
    out += lane.eof()
    assert b'"!"' in out
    assert lane.error is not None
    assert DONE not in out


@pytest.mark.parametrize(
    "odd", ["1e400", "-1e400", "1" + "0" * 30, "NaN", '"\xff"', "-9223372036854775809", "[" * 5000]
)
def test_what_is_no_strict_json_is_not_passed_on(odd: str) -> None:
    """Anywhere, before a stream is known and after."""
    for before in ([], [TEXT, TEXT, TEXT]):
        lane = relay()
        carried(lane, ROLE, *before)
        told = frame({**TEXT, "odd": 7}).replace(b'"odd":7', b'"odd":' + odd.encode("latin-1"))
        assert lane.feed(told) == b""
        assert failure(lane).code == "upstream_malformed"
