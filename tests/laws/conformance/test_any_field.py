"""Any value in any field of a request is refused in the client's own form, or passed on.

Nothing else may come of it wherever the field is read: by the dialect, by the backend that writes it, by the pick of a
worker.
"""

from __future__ import annotations

import json
from random import Random

import pytest

from gateway.core.fields import with_field
from gateway.core.http import Response
from gateway.core.ports import Capabilities
from gateway.fleet.pick import Prefix
from gateway.translation.offline import Crossing, Refused, send
from tests.laws.conformance.cases import BACKENDS, DIALECTS
from tests.support.clients import WAYS, Way, refusal
from tests.support.sampled import of_dialect, sampled
from tests.unit.fleet.pools import pool, workers

ODD = (
    "1E400",
    "-1E400",
    "9" * 400,
    "[1E400]",
    '{"a":1E400}',
    '"\\u0000"',
    '"\\ud83d"',
    "-1",
    "true",
    "[]",
    "{}",
    '""',
)
_HOLE = "the odd value"
_FORMS = {f"{one.dialect} {one.operation} {one.example.route}": one for one in WAYS}


def sent(way: Way, body: bytes, backend: str) -> Crossing | Response | str:
    """What the worker would get, or why it gets nothing: the refusal, or that the gateway answers this itself."""
    query, headers = way.example.query, [(b"content-type", b"application/json")]
    dialect, can = DIALECTS[way.dialect], Capabilities("w")
    try:
        return send(dialect, BACKENDS[backend], body, can, route=way.route.name, query=query, headers=headers)
    except Refused as refused:
        return refused.response
    except ValueError as error:  # so are msgspec's
        return str(error)


@pytest.mark.parametrize("way", sampled(_FORMS.values(), 2, of_dialect), ids=_FORMS)
async def test_an_odd_value_is_refused_or_passed_on(way: Way) -> None:
    """By a worker of every backend for one odd value, and by one of a drawn backend for each of the others."""
    fleet = pool(workers(2), Prefix())
    draw = Random(str(way))
    for field in DIALECTS[way.dialect].fields[way.operation]:
        if field.where != "body":
            continue
        body = json.dumps(with_field(way.body(model="w"), field, _HOLE))
        everywhere = draw.choice(ODD)
        pairs = [(odd, draw.choice([*BACKENDS])) for odd in ODD] + [(everywhere, backend) for backend in BACKENDS]
        for odd, backend in pairs:
            found = sent(way, body.replace(f'"{_HOLE}"', odd).encode(), backend)
            if isinstance(found, Crossing):
                fleet.routing(found.op, found.request.headers)
            elif isinstance(found, Response):
                assert 400 <= found.status < 500, found.body
                json.loads(refusal(found))
            else:  # Ollama's clients load a model by an empty chat
                assert found == "the gateway answers this request itself: no worker is asked"
