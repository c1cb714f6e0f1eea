"""Declared handlings are true: each field of each dialect is sent alone, and is handled as its table says."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from openai.resources.audio.speech import Speech
from openai.resources.audio.transcriptions import Transcriptions
from openai.resources.audio.translations import Translations
from openai.resources.chat.completions import Completions as Chats
from openai.resources.completions import Completions as Texts
from openai.resources.embeddings import Embeddings
from openai.resources.images import Images

from gateway import backends, dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import WORDS, Field
from gateway.core.http import JSON_TYPE, Request
from gateway.core.messages import ListModels
from gateway.core.ports import Dialect
from tests.laws.fidelity.engines import EVERY, READ
from tests.laws.fidelity.matrix import DIALECTS, REFERENCE, UNSAID, Outcome, Row, asking, measure, rows
from tests.laws.fidelity.specified import SPECIFIED
from tests.support.clients import WAYS, Way, operation_of

ROWS = list(rows())


def wrong(row: Row) -> str | None:
    """How the declared handling of a field and what becomes of it before the reference differ, or None."""
    field, outcome = row.field, row.outcomes[REFERENCE]
    to = field.to or ""
    either, all_of = to.split(" or "), to.split(", ")
    names = set(outcome.changes) - {"stream_options"}
    renamed = bool(to) and (names <= set(either) if " or " in to else names == set(all_of))
    fits = {
        "mapped": outcome.what == "sent" and names == {field.name},
        "renamed": outcome.what == "sent" and renamed,
        "emulated": outcome.what == "acted" or (outcome.what == "sent" and renamed),
        "consumed": outcome.what == "acted",
        "ignored": outcome.what == "dropped",
        "refused": outcome.what == "refused" and outcome.status in (400, 422),
    }
    return None if fits[field.handling] else f"{field.handling} {to}, but it is {outcome}"


@pytest.mark.parametrize(("dialect", "operation"), SPECIFIED)
def test_declared_handlings_are_true(dialect: str, operation: str) -> None:
    mine = [row for row in ROWS if (row.dialect, row.operation) == (dialect, operation)]
    assert mine
    assert {row.field.name: why for row in mine if (why := wrong(row))} == {}


@pytest.mark.parametrize("backend", [name for name in backends.REGISTRY if name != REFERENCE])
def test_no_other_backend_loses_a_field_in_silence(backend: str) -> None:
    """It reaches that worker in some form, is refused, or is named to the client."""
    lost = [
        str(row)
        for row in ROWS
        if row.outcomes[REFERENCE].what == "sent"
        and row.outcomes[backend].what not in ("sent", "refused", "dropped")
        and (backend, row.field.name) not in UNSAID
    ]
    assert lost == []


def unread(backend: str, outcome: Outcome) -> list[str]:
    """The members of a worker's request that came of a field, and that its engine does not read."""
    read = READ[backend].get(outcome.path)
    if read is None or outcome.what != "sent":
        return []
    return [name for name, value in outcome.changes.items() if value is not None and name not in {*read, "path"}]


@pytest.mark.parametrize("backend", READ)
def test_what_is_sent_is_read_by_the_engine(backend: str) -> None:
    lost = {str(row): found for row in ROWS if (found := unread(backend, row.outcomes[backend]))}
    assert lost == {}


# Dialects that pass on what is in no table, and what else each asks of an operation.
PASSING = sorted(
    (name, operation)
    for name, dialect in DIALECTS.items()
    for operation in ("chat", "complete", "embed", "rerank", "score")
    if operation in dialect.fields and getattr(dialect, "extras", "") == "pass"
)


@pytest.mark.parametrize("backend", READ)
@pytest.mark.parametrize(("dialect", "operation"), PASSING)
def test_what_any_engine_knows_is_read_named_or_refused(dialect: str, operation: str, backend: str) -> None:
    """Members of OpenAI's and vLLM's wire, in any body that a client may write them into."""
    lost = {}
    for name, value in EVERY.items():
        outcome = measure(dialect, operation, Field(name, "mapped", sample=value), backend)
        silent = outcome.what == "nothing" or unread(backend, outcome)
        if silent and (backend, operation, name) not in SAYS_NOTHING:
            lost[name] = outcome
    assert lost == {}


# What a member asks for without a word of it to the worker: it is what happens anyway.
SAYS_NOTHING = {("tgi", "chat", "include_reasoning")}  # false, and there is none


def test_every_reason_to_say_nothing_is_needed() -> None:
    silent = {
        (backend, row.field.name)
        for row in ROWS
        for backend, outcome in row.outcomes.items()
        if outcome.what in ("acted", "nothing") and row.outcomes[REFERENCE].what == "sent"
    }
    assert set(UNSAID) <= silent


@pytest.mark.parametrize("name", dialects.REGISTRY)
def test_every_operation_is_measured_and_specified(name: str) -> None:
    operations = set(DIALECTS[name].fields)
    assert operations == set(DIALECTS[name].examples), "each operation needs its least requests"
    assert operations == {operation for dialect, operation in SPECIFIED if dialect == name}


@pytest.mark.parametrize("name", dialects.REGISTRY)
def test_every_route_that_reads_has_an_example(name: str) -> None:
    dialect = DIALECTS[name]
    examples = [example for found in dialect.examples.values() for example in found]
    asked = {example.route for example in examples}
    posts = {one.name for one in dialect.routes if one.method == "POST"}
    assert asked <= posts
    for route in posts - asked:
        request = Request("POST", "/", [JSON_TYPE], b'{"model":"m"}', b"", route, {"response": "r"})
        assert asks_no_worker(dialect, request), route
    for operation, found in dialect.examples.items():
        # Tokens have no words.
        assert operation == "detokenize" or all(one.files or WORDS in json.dumps(one.body) for one in found)


def asks_no_worker(dialect: Dialect, request: Request) -> bool:
    """Whether it is a question about models, about what nobody may do here or nothing here does, or what is stored."""
    try:
        return isinstance(dialect.read(request), ListModels)
    except GatewayError as refusal:
        return refusal.kind in (Kind.FORBIDDEN, Kind.NO_ROUTE, Kind.UNSUPPORTED)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_example_is_read_and_is_the_least(way: Way) -> None:
    request = asking(way.example, way.example.body)
    op = DIALECTS[way.dialect].read(request)
    # A text to complete may be asked of a chat template.
    assert operation_of(op) in {way.operation, "chat" if way.operation == "complete" else way.operation}
    if way.example.streams != "asked":
        assert getattr(op, "stream", False) == (way.example.streams == "always")
    for name in way.example.body:
        less = {key: value for key, value in way.example.body.items() if key != name}
        with pytest.raises(GatewayError):
            DIALECTS[way.dialect].read(asking(way.example, less))


def test_what_a_refusal_names_is_the_clients_own_name() -> None:
    """The field itself, what stands beside it, or the place that it is in."""
    wrong = []
    for row in ROWS:
        for backend, outcome in row.outcomes.items():
            own = {row.field.name.removeprefix("options."), *row.field.beside, *DIALECTS[row.dialect].examples}
            own |= set(DIALECTS[row.dialect].examples[row.operation][0].body)
            if outcome.what == "refused" and not any(name in outcome.told for name in own):
                wrong.append((str(row), backend, outcome.told))
    assert wrong == []


@pytest.mark.parametrize(("dialect", "operation"), SPECIFIED)
def test_every_specified_field_is_declared(dialect: str, operation: str) -> None:
    declared = [field.name for field in DIALECTS[dialect].fields[operation]]
    assert len(declared) == len(set(declared))
    assert [name for name in SPECIFIED[dialect, operation] if name not in declared] == []


@pytest.mark.parametrize(
    ("create", "operation"),
    [
        (Chats.create, "chat"),
        (Texts.create, "complete"),
        (Embeddings.create, "embed"),
        (Transcriptions.create, "transcribe"),
        (Translations.create, "translate"),
        (Speech.create, "speak"),
        (Images.generate, "draw"),
        (Images.edit, "edit"),
        (Images.create_variation, "vary"),
    ],
)
def test_every_argument_of_the_openai_client_is_declared(create: Any, operation: str) -> None:
    own = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    declared = {field.name for field in DIALECTS["openai"].fields[operation]}
    assert set(inspect.signature(create).parameters) - own - declared == set()


@pytest.mark.parametrize(
    ("handling", "to", "outcome"),
    [
        ("mapped", None, Outcome("nothing")),
        ("mapped", None, Outcome("sent", {"other": 1})),
        ("renamed", "b", Outcome("sent", {"x": 1})),
        ("renamed", "b, c", Outcome("sent", {"b": 1})),
        ("emulated", None, Outcome("nothing")),
        ("consumed", None, Outcome("nothing")),
        ("consumed", None, Outcome("sent", {"x": 1})),
        ("ignored", None, Outcome("nothing")),
        ("refused", None, Outcome("sent", {"x": 1})),
        ("refused", None, Outcome("refused", status=500)),
    ],
)
def test_a_wrong_handling_is_found(handling: Any, to: str | None, outcome: Outcome) -> None:
    field = dialects.REGISTRY["openai"].fields["chat"][0]
    made = type(field)("x", handling, to)
    assert wrong(Row("openai", "chat", made, {REFERENCE: outcome})) is not None
