"""Messages in the order that chat templates take: `system: merge`, and the images of results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from gateway import backends, dialects
from gateway.core.messages import Audio, Chat, Image, Message, Text
from gateway.core.ports import Capabilities, Settings
from gateway.translation.offline import send
from gateway.wire.json import encode
from gateway.wire.openai.requests.turns import left_behind, messages_of, spliced
from tests.support.clients import DIALECTS, like_openai, usual

MERGE, KEEP = Capabilities("m"), Capabilities("m", system="keep")
IMAGE, SOUND = Image("https://a/b.png"), Audio("AA==", "wav")


def said(*turns: str) -> list[Message]:
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
    return [Message(roles[turn[0]], (Text(turn),)) for turn in turns]


def told(messages: list[Message], can: Capabilities = MERGE) -> list[Message]:
    return list(messages_of(Chat(model="m", messages=tuple(messages)), can))


def shape(messages: list[Message]) -> list[str]:
    return [message.role[0] + ":" + "+".join(part.text for part in message.parts) for message in messages]  # type: ignore[union-attr]  # all are text


@pytest.mark.parametrize(
    ("turns", "merged"),
    [
        (("s1", "u1"), ["s:s1", "u:u1"]),
        (("s1", "s2", "u1"), ["s:s1\n\ns2", "u:u1"]),
        (("d1", "u1"), ["s:d1", "u:u1"]),
        (("d1", "s2", "d3", "u1"), ["s:d1\n\ns2\n\nd3", "u:u1"]),
        (("s1",), ["s:s1"]),
        (("s1", "s2"), ["s:s1\n\ns2"]),
        (("u1", "s1"), ["u:u1\n\ns1"]),
        (("u1", "d1"), ["u:u1\n\nd1"]),
        (("s1", "u1", "s2", "s3"), ["s:s1", "u:u1\n\ns2\n\ns3"]),
        (("u1", "a1", "s1", "u2"), ["u:u1", "a:a1", "u:s1\n\nu2"]),
        (("u1", "a1", "s1"), ["u:u1", "a:a1", "u:s1"]),
        (("u1", "a1", "s1", "s2", "a2"), ["u:u1", "a:a1", "u:s1\n\ns2", "a:a2"]),
        (("u1", "a1", "t1", "s1", "a2", "u2"), ["u:u1", "a:a1", "t:t1", "u:s1", "a:a2", "u:u2"]),
        (("u1", "a1", "t1", "s1", "u2", "s2"), ["u:u1", "a:a1", "t:t1", "u:s1\n\nu2\n\ns2"]),
        (("u1", "a1", "s1", "t1", "u2"), ["u:u1", "a:a1", "t:t1", "u:s1\n\nu2"]),
        (("s1", "u1", "u2"), ["s:s1", "u:u1\n\nu2"]),
        (("u1", "s1", "u2", "a1", "u3"), ["u:u1\n\ns1\n\nu2", "a:a1", "u:u3"]),
        (("u1", "a1", "t1", "u2", "u3", "s1"), ["u:u1", "a:a1", "t:t1", "u:u2\n\nu3\n\ns1"]),
        (("u1", "a1", "a2", "t1", "t2"), ["u:u1", "a:a1", "a:a2", "t:t1", "t:t2"]),
    ],
)
def test_one_system_message_stands_first_and_users_take_turns(turns: tuple[str, ...], merged: list[str]) -> None:
    given = said(*turns)
    assert shape(told(given)) == merged
    assert told(given, KEEP) == given


def test_messages_in_their_places_stay_the_same_objects() -> None:
    """An ordinary request costs one look at its roles."""
    op = Chat(model="m", messages=tuple(said("s1", "u1", "a1", "t1", "t2", "a2", "u2")))
    assert messages_of(op, MERGE) is op.messages
    odd = replace(op, messages=tuple(said("u1", "s1", "u2", "d2")))
    assert messages_of(odd, KEEP) is odd.messages


def test_parts_that_are_not_plain_text_keep_their_places() -> None:
    marked = Text("b", {"cache_control": Raw(b"{}")})
    messages = [Message("user", (Text("a"), IMAGE)), Message("user"), Message("system", (marked,))]
    assert told(messages) == [Message("user", (Text("a"), IMAGE, marked))]


def test_users_with_members_of_their_own_stay_apart() -> None:
    named, other = Message("user", (Text("a"),), name="ann"), Message("user", (Text("b"),), name="bob")
    assert told([named, other]) == [named, other]


def test_members_that_a_system_message_loses_are_named() -> None:
    first, late = Message("system", (Text("a"),), name="ann"), Message("developer", (Text("b"),), name="bob")
    late = replace(late, extra={"novel": Raw(b"1")})
    op = Chat(model="m", messages=(first, late, *said("u1")))
    merged, _ = messages_of(op, MERGE)
    assert (merged.name, merged.extra) == ("ann", None)
    assert left_behind(op, MERGE) == ("messages[].name", "messages[].novel")
    assert left_behind(op, KEEP) == left_behind(replace(op, messages=(first,)), MERGE) == ()


def test_many_messages_take_time_as_they_are_long() -> None:
    """A request's work grows no faster than the request: a quarter of a million messages would else take minutes."""
    many = [Message("user" if index % 2 else "system", (Text("x"),)) for index in range(250_000)]
    (first, whole) = told(many)
    assert first.role == "system"
    assert whole.parts == (Text("\n\n".join("x" * (len(many) - 1))),)


@pytest.mark.parametrize("length", range(1, 10))
def test_what_was_said_before_does_not_change_with_what_is_said_later(length: int) -> None:
    """Else a prefix cache would forget it: of all but the last turn."""
    turns = ("s1", "d1", "u1", "s2", "a1", "t1", "s3", "u2", "u3", "a2")
    whole, part = shape(told(said(*turns))), shape(told(said(*turns[:length])))
    assert whole[: len(part) - 1] == part[:-1]


# -- images of results -----------------------------------------------------------------------------------------------


def result(*parts: Any, call: str = "c1") -> Message:
    return Message("tool", parts, call_id=call)


@pytest.mark.parametrize("can", [MERGE, KEEP], ids=["merge", "keep"])
def test_images_of_results_follow_all_results_of_their_calls(can: Capabilities) -> None:
    """Backends refuse them inside a result, or their templates leave them out."""
    plain = result(Text("r2"), call="c2")
    given = [*said("u1", "a1"), result(Text("r1"), IMAGE), plain, *said("a2")]
    moved = [*said("u1", "a1"), result(Text("r1")), plain, Message("user", (IMAGE,)), *said("a2")]
    assert told(given, can) == moved
    assert told(given[:-1], can) == moved[:-1]


@pytest.mark.parametrize("can", [MERGE, KEEP], ids=["merge", "keep"])
def test_images_of_results_stand_before_the_words_that_follow(can: Capabilities) -> None:
    given = [*said("u1", "a1"), result(IMAGE, SOUND), *said("u2")]
    assert told(given, can)[2:] == [result(Text("")), Message("user", (IMAGE, SOUND, Text("u2")))]


def test_a_system_message_behind_such_a_result_stays_behind_it() -> None:
    given = [*said("u1", "a1"), result(IMAGE), *said("s1")]
    assert told(given)[3:] == [Message("user", (IMAGE, Text("s1")))]
    assert told(given, KEEP)[3:] == [Message("user", (IMAGE,)), *said("s1")]


# -- the client's own members ------------------------------------------------------------------------------------------


def test_messages_that_stay_pass_as_the_client_wrote_them() -> None:
    given = said("u1", "s1", "a1", "u2")
    raw = [b'{"role": "user", "content":"u1"}', b"{}", b'{ "role":"assistant","content" : "a1"}', b'{"content":"u2"}']
    whole = Raw(b"[" + b",".join(raw) + b"]")
    written = encode(spliced(whole, given, told(given)))
    assert json.loads(written)[0] == {"role": "user", "content": "u1\n\ns1"}
    assert written.endswith(b"," + raw[2] + b"," + raw[3] + b"]")


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if like_openai(name)])
@pytest.mark.parametrize("backend", backends.REGISTRY)
def test_what_is_lost_is_named_and_other_members_stay(dialect: str, backend: str) -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b", "name": "bob"},
        {"role": "user", "content": "c", "novel": 1},
    ]
    made = dialects.create(dialect, Settings(extras="pass"))
    route, query = usual(dialect).route.name, usual(dialect).example.query
    body = json.dumps({"messages": messages}).encode()
    sent = send(made, backends.create(backend), body, MERGE, route=route, query=query)
    assert "messages[].name" in sent.outgoing.dropped
    first, second = json.loads(sent.outgoing.body)["messages"]
    assert first == {"role": "system", "content": "a\n\nb"}
    assert second["content"] == "c"
    if backend != "tgi":
        assert second["novel"] == 1
