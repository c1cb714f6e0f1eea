"""A constraint on the answer is obeyed or refused, in every dialect and by every backend: it is never only named.

The constraints are those of OpenAI's and vLLM's wire, at the top level of a body, and inside the object that holds the
parameters of a dialect. What clients send by habit may be left out (`Chat.optional`), if it is named.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any, NamedTuple

import pytest

from gateway import dialects
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Response
from gateway.core.messages import Chat
from gateway.core.ports import Capabilities, Settings
from gateway.translation.offline import Refused, send
from gateway.wire.openai.requests.constraints import CONSTRAINTS
from tests.laws.conformance.cases import BACKENDS
from tests.support.clients import DIALECTS, WAYS, Way

# One value of each that changes the answer.
SAMPLES: dict[str, Any] = {
    "add_generation_prompt": False,
    "add_special_tokens": False,
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "best_of": 2,
    "chat_template": "{{ x }}",
    "chat_template_kwargs": {"k": "v"},
    "continue_final_message": True,
    "detokenize": False,
    "documents": [{"text": "x"}],
    "echo": True,
    "frequency_penalty": 0.25,
    "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "a"',
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "instruction": "rank",
    "length_penalty": 2.0,
    "logit_bias": {"5": 1.0},
    "logits_processors": ["x"],
    "max_completion_tokens": 9,
    "max_tokens": 9,
    "media_io_kwargs": {"image": {}},
    "min_p": 0.25,
    "min_tokens": 3,
    "mm_payload": {"k": "v"},
    "mm_processor_kwargs": {"k": "v"},
    "modalities": ["text", "audio"],
    "n": 2,
    "normalize": False,
    "presence_penalty": 0.25,
    "prompt_embeds": "AA==",
    "repetition_detection": {"max_pattern_size": 3},
    "repetition_penalty": 1.25,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "seed": 11,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop": ["\u00a7"],
    "stop_token_ids": [3],
    "structured_outputs": {"choice": ["a", "b"]},
    "suffix": "end",
    "temperature": 0.25,
    "thinking_token_budget": 4,
    "top_k": 3,
    "top_p": 0.25,
    "truncate_prompt_tokens": 5,
    "truncation_side": "left",
    "use_activation": False,
    "use_beam_search": True,
    "vllm_xargs": {"k": "v"},
    "watermarking": True,
}
POLICIES: tuple[ExtrasPolicy | None, ...] = (None, "drop", "pass", "error")
CAN = Capabilities("w", 4096)
ROUTES = {
    (one.dialect, one.operation, one.example.route): one
    for one in WAYS
    if one.operation in ("chat", "complete", "embed")
}


def inside(way: Way) -> list[str]:
    """The objects inside a body that hold parameters: at least three constraints by names of their own."""
    fields = [field for field in DIALECTS[way.dialect].fields[way.operation] if "." in field.name]
    held = Counter(field.name.partition(".")[0] for field in fields if {*field.targets} & CONSTRAINTS[way.operation])
    return [name for name, number in held.items() if number > 2]


class Sent(NamedTuple):
    """named: what the client is told was dropped; optional: what may be; to: what the worker gets."""

    named: set[str]
    optional: set[str]
    to: tuple[str, Any]


def answer(way: Way, backend: str, policy: ExtrasPolicy | None, members: dict[str, Any]) -> Sent | Response:
    """What becomes of the request of `way` with more members, or its refusal."""
    dialect = dialects.create(way.dialect, Settings(extras=policy))
    route, query = way.route.name, way.example.query
    body = json.dumps(way.body(model="w", seed=7) | members).encode()
    headers = [(b"content-type", b"application/json")]
    try:
        crossing = send(dialect, BACKENDS[backend], body, CAN, route=route, query=query, headers=headers)
    except Refused as refused:
        return refused.response
    optional = crossing.op.optional.values() if isinstance(crossing.op, Chat) else ()
    to = crossing.outgoing.path, json.loads(crossing.outgoing.body)
    return Sent({*crossing.op.dropped, *crossing.outgoing.dropped}, set(optional), to)


def outcome(way: Way, backend: str, policy: ExtrasPolicy | None, members: dict[str, Any]) -> Sent | int:
    """The same; the status of a refusal."""
    found = answer(way, backend, policy, members)
    return found.status if isinstance(found, Response) else found


def assert_obeyed_or_refused(way: Way, backend: str, policy: ExtrasPolicy | None) -> None:
    if isinstance(outcome(way, backend, policy, {}), int):
        assert backend != "vllm"  # others make no embeddings, or tell no token ids
        return
    wrong = {}
    for around in (None, *inside(way)):
        plain = outcome(way, backend, policy, {around: {}} if around else {})
        assert isinstance(plain, Sent)
        for name in sorted(CONSTRAINTS[way.operation]):
            asked = {name: SAMPLES[name]}
            found = outcome(way, backend, policy, {around: asked} if around else asked)
            if isinstance(found, int):
                assert 400 <= found < 500, name
            elif found.named - plain.named <= plain.optional and (found.named or found.to != plain.to):
                assert way.operation != "embed" or backend != "llamacpp", name  # it ignores them all
            else:
                wrong[name] = found.named
    assert wrong == {}


@pytest.mark.parametrize("way", ROUTES.values(), ids=str)
def test_every_dialect_keeps_constraints_under_every_policy(way: Way) -> None:
    for policy in POLICIES:
        assert_obeyed_or_refused(way, "vllm", policy)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_obeys_or_refuses(backend: str) -> None:
    """In requests that are passed on as they came, and in those that are written from the canonical form."""
    for way in ROUTES.values():
        if way.dialect in ("openai", "friendli"):
            assert_obeyed_or_refused(way, backend, None)


PAIRS = [(way, backend, policy) for way in ROUTES.values() for backend in BACKENDS for policy in POLICIES]


@pytest.mark.parametrize(("way", "backend", "policy"), Random(5).sample(PAIRS, 32), ids=str)
def test_a_drawn_pair_obeys_or_refuses(way: Way, backend: str, policy: ExtrasPolicy | None) -> None:
    """The same pairs in each run."""
    assert_obeyed_or_refused(way, backend, policy)


@pytest.mark.parametrize("way", [way for way in ROUTES.values() if way.operation != "embed"], ids=str)
def test_a_wrong_bias_is_refused_by_its_token(way: Way) -> None:
    for around in (None, *inside(way)):
        wrong = {"logit_bias": {"7": 1, "1": 101}}
        found = answer(way, "vllm", "pass", {around: wrong} if around else wrong)
        assert isinstance(found, Response)
        assert b"logit_bias.1'" in found.body


def test_each_constraint_has_a_sample() -> None:
    assert SAMPLES.keys() == set().union(*CONSTRAINTS.values())


def test_parameters_inside_an_object_are_found() -> None:
    assert {name for way in ROUTES.values() for name in inside(way)} == {"options", "parameters", "generationConfig"}
