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
from gateway.translation.texts import Shown, called, fit, put_reply_texts, put_texts, texts_of, texts_of_reply, unshown
from tests.laws.conformance.cases import DIALECTS
from tests.laws.fidelity.matrix import asking
from tests.support.clients import WAYS

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


SCHEMA = {
    "type": "object",
    "description": SECRET,
    "properties": {SECRET: {"enum": ["a", SECRET]}, "b": {"const": SECRET}, "c": {"type": "string", "pattern": SECRET}},
    "required": [SECRET],
}
CALLABLE = {"name": "f", "description": "Finds.", "parameters": SCHEMA}
SCHEMAS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "description": SECRET, "schema": {}}}},
    {"response_format": {"type": "json_object", "json_schema": SCHEMA}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA)},
    {"grammar": {"type": "json", "value": SCHEMA}},
    {"parameters": {"grammar": {"type": "json", "value": SCHEMA}}},
    {"format": SCHEMA},
    {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
    {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}},
    {"generationConfig": {"responseMimeType": "application/json", "responseSchema": SCHEMA}},
    {"tools": [{"type": "function", "function": CALLABLE}]},
    {"tools": [{"type": "function", **CALLABLE}]},
    {"tools": [{"name": "f", "input_schema": SCHEMA}]},
    {"tools": [{"functionDeclarations": [CALLABLE]}]},
    {"tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": SCHEMA}]}]},
]


@pytest.mark.parametrize("members", [*FORMS, *SCHEMAS], ids=lambda members: str(members)[:60])
def test_what_a_reply_must_match_is_shown_and_replaced(members: dict[str, Any]) -> None:
    """A model writes it, and so it is a way to have a model write anything."""
    tried = 0
    for way in WAYS:
        own = OWN.get(next(iter(members)), way.dialect) if members in FORMS else way.dialect
        if way.operation not in ("chat", "complete") or way.dialect != own:
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
            if "tools" in members and way.operation != "chat":
                continue  # no model reads them there
            texts = texts_of(op)
            shown = [one for one in texts if SECRET in one.text]
            if members in SCHEMAS and not shown:  # this dialect passes it on as it is
                assert members.keys() & {one.partition(".")[0] for one in unshown(op)}, (way, name)
                continue
            assert {one.role for one in shown} <= {"format", "tools"}, (way, name)
            assert members in SCHEMAS or SECRET in [one.text for one in shown], (way, name)
            assert fit(texts, [one.text for one in texts])
            put_texts(op, [one.text.replace(SECRET, "otherword") for one in texts])
            written = backend.write(op, can).body
            assert SECRET.encode() not in written, (way, name, written)
            assert b"otherword" in written
            tried += 1
    assert tried


def test_a_schema_is_replaced_by_a_schema_alone() -> None:
    shown = [Shown("user", "a"), Shown("format", "{}", "schema")]
    for good in ([None, None], ["b", None], [None, "{}"], ["b", '{"a": 1}']):
        assert fit(shown, good)
    for bad in ([None], [None, "***"], [None, '{"a": ***}'], [None, "[]"], [None, '"a"'], [None, "[" * 10_000]):
        assert not fit(shown, bad)
