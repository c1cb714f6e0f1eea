"""What an engine advises its operator does not reach a caller: every backend, whole answers and errors in a stream."""

from __future__ import annotations

import json

import pytest

from gateway import backends
from gateway.core.http import Response
from gateway.core.messages import Chat, Message, Text
from gateway.wire.openai.replies import views as answers

# Engines' own words, and what is left of them for a caller.
ADVICE = [
    (
        "This server does not support embeddings. Start it with `--embeddings`",
        "This server does not support embeddings.",
    ),
    ("This server does not support reranking. Start it with `--reranking`", "This server does not support reranking."),
    (
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "the worker of this model was not started for this",
    ),
    (
        "Chat template is passed with request, but --trust-request-chat-template is not set. Refused for security.",
        "Refused for security.",
    ),
    ("Too long. Raise `--max-input-tokens` of the launcher! Or send less.", "Too long. Or send less."),
]
HARMLESS = ["a -- b", "x--y", "--", "the flag -x", "an em--dash", "----"]


@pytest.mark.parametrize("backend", backends.REGISTRY)
@pytest.mark.parametrize("status", [400, 413, 422, 501])
@pytest.mark.parametrize(("said", "left"), ADVICE)
def test_advice_stays_behind(backend: str, status: int, said: str, left: str) -> None:
    op = Chat(model="m", messages=(Message("user", (Text("hi"),)),))
    for body in ({"error": {"message": said, "code": status}}, {"error": said, "error_type": "validation"}):
        error = backends.create(backend).fault(Response(status, [], json.dumps(body).encode()), op)
        assert error.message == left
        assert error.flags
        assert all(flag in said for flag in error.flags)


@pytest.mark.parametrize(("said", "left"), ADVICE)
def test_advice_in_a_stream_stays_behind(said: str, left: str) -> None:
    assert answers.late_fault(answers.ErrorIn(said, code=400)).message == left


@pytest.mark.parametrize("said", HARMLESS)
def test_other_dashes_are_no_advice(said: str) -> None:
    error = answers.classify(400, said, None)
    assert (error.message, error.flags) == (said, ())
