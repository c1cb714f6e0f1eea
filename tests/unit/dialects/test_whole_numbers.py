"""`100.0` is an integer wherever one is expected, as JSON Schema and vLLM have it; and it is passed on as one."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from gateway import backends, dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import Field, with_field
from gateway.core.http import NeedsStored
from gateway.core.messages import AnsweredFromStore, ListModels, Question
from gateway.core.ports import Capabilities, Settings
from gateway.translation import totals
from gateway.translation.whole import ask
from tests.laws.fidelity.matrix import asking
from tests.support.clients import DIALECTS


def integers(value: Any) -> bool:
    """Whether there are any in it, and no other numbers."""
    if isinstance(value, list):
        return bool(value) and all(map(integers, value))
    if isinstance(value, dict):
        return bool(value) and all(map(integers, value.values()))
    return isinstance(value, int) and not isinstance(value, bool)


def fractions(value: Any) -> Any:
    if isinstance(value, list):
        return [fractions(item) for item in value]
    if isinstance(value, dict):
        return {name: fractions(item) for name, item in value.items()}
    return float(value)


CASES = [
    pytest.param(name, operation, field, id=f"{name}-{operation}-{field.name}")
    for name, dialect in DIALECTS.items()
    for operation, fields in dialect.fields.items()
    for field in fields
    if field.where == "body" and integers(field.sample) and not dialect.examples[operation][0].files
]


def sent(name: str, operation: str, field: Field, value: Any) -> Any:
    dialect = dialects.create(name, Settings())
    example = dialect.examples[operation][0]
    op = dialect.read(asking(example, with_field(example.body, field, value)))
    assert not isinstance(op, (ListModels, AnsweredFromStore))
    backend, can = backends.create("vllm"), Capabilities("m")
    outgoing = (
        ask(op, backend, can).request if isinstance(op, Question) else backend.write(totals.first_request(op), can)
    )
    body = json.loads(outgoing.body)
    if field.name != "seed":
        body.pop("seed", None)  # drawn anew each time
    return body


@pytest.mark.parametrize(("name", "operation", "field"), CASES)
def test_a_whole_number_is_an_integer(name: str, operation: str, field: Field) -> None:
    outcomes: list[Any] = []
    for value in (field.sample, fractions(field.sample)):
        try:
            outcomes.append(sent(name, operation, field, value))
        except GatewayError as error:
            outcomes.append(error.kind)
    assert outcomes[0] == outcomes[1]
    if not isinstance(outcomes[0], Kind):
        assert json.dumps(outcomes[0]) == json.dumps(outcomes[1]), "passed on as it came"


def test_there_are_such_fields_of_every_dialect() -> None:
    assert {param.values[0] for param in CASES} == set(DIALECTS)


@pytest.mark.parametrize("name", DIALECTS)
def test_half_a_token_is_still_wrong(name: str) -> None:
    for operation, examples in DIALECTS[name].examples.items():
        field = next((one for one in DIALECTS[name].fields[operation] if one.name == "max_tokens"), None)
        if field is not None:
            with pytest.raises(GatewayError, match="max_tokens"):
                sent(name, operation, field, 1.5)
            assert examples


def test_numbers_of_a_users_own_stay_as_they_are() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"minimum": 1.0}}}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5.0, "tools": [tool], "temperature": 1.0}
    dialect = dialects.create("openai", Settings())
    op = dialect.read(asking(dialect.examples["chat"][0], body))
    outgoing = backends.create("vllm").write(op, Capabilities("m"))  # type: ignore[arg-type]
    assert b'"minimum": 1.0' in outgoing.body or b'"minimum":1.0' in outgoing.body
    assert json.loads(outgoing.body)["max_tokens"] == 5


def nested(deep: int) -> bytes:
    return b"[" * deep + b"1.5" + b"]" * deep


@pytest.mark.parametrize(("name", "operation", "field"), CASES)
def test_a_member_that_cannot_be_rewritten_is_refused(name: str, operation: str, field: Field) -> None:
    """Once one number is not whole, the other members are read for such numbers, too."""
    dialect = DIALECTS[name]
    example = dialect.examples[operation][0]
    request = asking(example, with_field(example.body, field, 5.5))
    own = request.body[:-1]
    for value in (b"1e999", *map(nested, (100, 300, 480, 600, 900))):
        for member in (b"user", b"prompt_logprobs", b"never_heard_of"):
            request.body = b'%b,"%b":%b}' % (own, member, value)
            with suppress(GatewayError, NeedsStored):
                dialect.read(request)
