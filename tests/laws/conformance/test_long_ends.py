"""The end of a long stream comes at once: what it repeats of the reply, it does not read or make again token by token.

The law is one of the event loop: a reply may have tens of thousands of tokens, each with twenty alternatives.
"""

from __future__ import annotations

import json
import sys
from types import FrameType

import pytest
from msgspec import Raw

from gateway.core.events import Delta, End, Finish, PartEnd, PartKind, PartStart, Start, UsageReport
from gateway.core.http import Request
from gateway.core.messages import Chat, Complete, Logprobs
from gateway.core.usage import Usage
from tests.laws.conformance.cases import DIALECTS
from tests.support.clients import WAYS, Way

MEASURED = Raw(
    b'[{"token":"a","logprob":-1.5,"bytes":[97],"top_logprobs":[{"token":"b","logprob":-2.0,"bytes":[98]},'
    b'{"token":"c","logprob":-3.0,"bytes":[99]}]}]'
)
STREAMED = [way for way in WAYS if way.operation in ("chat", "complete") and way.answers(stream=True)]
CASES: list[tuple[Way, PartKind]] = [
    (way, kind)
    for way in STREAMED
    for kind in (("text", "thinking", "tool") if way.operation == "chat" else ("text",))
    # Its `complete` has log probabilities in another form: one number a token, no alternatives.
    if (way.dialect, way.example.route) != ("friendli", "complete")
]


def calls_at_the_end(way: Way, kind: PartKind, tokens: int) -> int:
    """Functions that are called to write the end of a reply of so many tokens."""
    body, params = (
        json.dumps(way.body("hi", stream=True, model="m")).encode(),
        dict.fromkeys(("model", "deployment"), "m"),
    )
    headers = [(b"content-type", b"application/json")]
    query, route = way.example.query, way.route.name
    op = DIALECTS[way.dialect].read(Request("POST", way.route.path, headers, body, query, route, params, "x"))
    assert isinstance(op, (Chat, Complete))
    op.model, op.logprobs, op.stream = "m", Logprobs(2), True
    writer = DIALECTS[way.dialect].writer(op)
    writer.write(Start("i", "m", 1))
    writer.write(PartStart(0, 0, kind, "c", "f"))
    for number in range(tokens):
        writer.write(Delta(0, 0, "a", (number,), MEASURED if kind != "tool" else None))
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for event in (PartEnd(0, 0), Finish(0, "stop", "stop"), UsageReport(Usage(1, tokens)), End()):
            writer.write(event)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize(("way", "kind"), CASES, ids=[f"{way} {kind}" for way, kind in CASES])
def test_the_end_takes_no_call_for_each_token(way: Way, kind: PartKind) -> None:
    assert calls_at_the_end(way, kind, 500) <= calls_at_the_end(way, kind, 100) + 100
