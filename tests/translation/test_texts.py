"""The texts of requests and replies, for guards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import backends, dialects
from gateway.core.errors import GatewayError
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start
from gateway.core.lifecycle import Reply, ReplyChoice, ReplyPart
from gateway.core.messages import Chat
from gateway.core.ports import Capabilities, Settings
from gateway.translation.guarded import GuardedWriter
from gateway.translation.texts import Shown, called, put_reply_texts, put_texts, texts_of, texts_of_reply
from tests.clients import WAYS
from tests.conformance.cases import DIALECTS
from tests.fidelity.matrix import asking

SECRET = "secretword"

JSON = st.recursive(
    st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(JSON, st.booleans())
def test_arguments_as_they_are_shown_mean_the_same(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    shown = called("f", text).text
    assert json.loads(shown) == value
    if isinstance(value, str) and value.isprintable() and not set(value) & {'"', "\\"}:
        assert value in shown


def test_escaped_letters_do_not_hide_a_word() -> None:
    hidden = '{"a": "' + "".join(f"\\u{ord(letter):04x}" for letter in "secret/") + '\\/"}'
    assert called("f", hidden).text == '{"a": "secret//"}'


def test_a_whole_reply_shows_them_so_and_keeps_what_the_model_wrote() -> None:
    written = r'{"a": "\u0046"}'
    parts = [ReplyPart("tool", written, "1", "f"), ReplyPart("text", written)]
    reply = Reply(Start("1", "m", 0), [ReplyChoice(0, parts)])
    shown = [one.text for one in texts_of_reply(reply)]
    assert shown == ['{"a": "F"}', written]
    put_reply_texts(reply, shown)
    assert [part.text for part in parts] == [written, written]
    put_reply_texts(reply, ["{}", None])
    assert [part.text for part in parts] == ["{}", written]


def test_a_stream_shows_them_so() -> None:
    asked: list[str] = []

    def ask(texts: list[Shown], last: bool) -> None:
        asked.extend(one.text for one in texts)

    held = GuardedWriter(DIALECTS["openai"].writer(Chat(model="m", messages=())), None, 0, ask)
    events: list[Event] = [
        Start("1", "m", 0),
        PartStart(0, 0, "tool", "1", "f"),
        Delta(0, 0, r'{"a": "\u00'),
        Delta(0, 0, r'46"}'),
    ]
    ends: list[Event] = [PartEnd(0, 0), Finish(0, "tool_calls", "tool_calls"), End()]
    for event in (*events, *ends):
        held.write(event)
    assert asked == ['{"a": "F"}']
    held.allowed(asked)
    assert rb"\\u00" in held.take()


OWN = {"response_format": "friendli"}
"""Members of one dialect's own form. Others pass them on as they are."""
FORMS = [
    {"structured_outputs": {"regex": SECRET}},
    {"structured_outputs": {"grammar": SECRET}},
    {"structured_outputs": {"choice": ["a", SECRET]}},
    {"guided_regex": SECRET},
    {"guided_grammar": SECRET},
    {"guided_choice": ["a", SECRET]},
    {"response_format": {"type": "regex", "schema": SECRET}},
    {"grammar": SECRET},
]


@pytest.mark.parametrize("members", FORMS, ids=str)
def test_what_a_reply_must_match_is_shown_and_replaced(members: dict[str, Any]) -> None:
    """A model writes it, and so it is a way to have a model write anything."""
    tried = 0
    for way in WAYS:
        if way.operation not in ("chat", "complete") or way.dialect != OWN.get(next(iter(members)), way.dialect):
            continue
        dialect = dialects.create(way.dialect, Settings(extras="pass"))
        for name in backends.REGISTRY:
            backend, can = backends.create(name), Capabilities("m")
            try:
                op: Any = dialect.read(asking(way.example, {**way.body("hi", stream=False), "model": "m", **members}))
                if SECRET.encode() not in backend.write(op, can).body:
                    continue
            except GatewayError:
                continue  # this dialect or this engine has no such thing
            texts = texts_of(op)
            assert SECRET in [one.text for one in texts if one.role == "format"], (way, name)
            put_texts(op, [one.text.replace(SECRET, "otherword") for one in texts])
            written = backend.write(op, can).body
            assert SECRET.encode() not in written, (way, name, written)
            assert b"otherword" in written
            tried += 1
    assert tried
