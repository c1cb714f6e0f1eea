"""A request that a chat template refuses is the client's fault, though llama.cpp answers it with a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.core.errors import Blame, Kind
from gateway.core.http import Response
from tests.backends.llamacpp.exchange import BACKEND
from tests.clients import DIALECTS, usual
from tests.harness import Stack
from tests.standins.serving import Answering, serving

FIRST = "System message must be at the beginning."
TAKES_TURNS = "Conversation roles must alternate user/assistant/user/assistant/..."
PLACE = (
    "\n------------\nWhile executing CallExpression at line 85, column 32 in source:\n...first %}↵  {{- raise_excepti"
)
# What llama-server writes -> the cause that the client reads. Recorded with xllamacpp 2026.10.11549, but for that of
# its older interpreter and of messages that cannot be read, which are those of llama.cpp's issues 11402 and 12947.
UNPARSED = "Unable to generate parser for this template. Automatic parser generation failed: "
ODD = 'Unsupported content part type: "x"'
BLIND = "image input is not supported"
TOLD = {
    f"{PLACE}\n          ^\nError: Jinja Exception: {FIRST}": FIRST,
    f"{UNPARSED}{PLACE}\n ^\nError: {FIRST}": FIRST,
    f"{TAKES_TURNS} at row 19, column 27:\n {{%- if x -%}}\n at row 18, column 5:\n": TAKES_TURNS,
    f"Failed to parse messages: {ODD}; messages = [1]": ODD,
    f"{BLIND} - hint: if this is unexpected, you may need to provide the mmproj": BLIND,
}


def answered(text: str, status: int) -> Response:
    error = {"code": status, "message": text, "type": "server_error"}
    return Response(status, [], json.dumps({"error": error}).encode())


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("text", TOLD)
def test_the_cause_is_the_clients_to_read(text: str, status: int) -> None:
    error = BACKEND.fault(answered(text, status))
    assert (error.kind, error.blame, error.param) == (Kind.BAD_REQUEST, Blame.CLIENT, "messages")
    assert TOLD[text] in error.message
    assert "\n" not in error.message
    assert "mmproj" not in error.message


def test_a_cause_is_not_as_long_as_what_a_client_sent() -> None:
    error = BACKEND.fault(answered(f"{PLACE}\nError: Jinja Exception: {'x' * 100_000}", 500))
    assert len(error.message) < 2000


CHATS = [way for way in map(usual, DIALECTS) if way.operation == "chat"]


def test_it_is_a_400_asked_once_and_ejects_nobody() -> None:
    """One client's twenty such requests took a healthy worker from all others."""
    asked: list[Any] = []

    class Refusing(Answering):
        def do_GET(self) -> None:
            self.answer(200, b"{}")

        def do_POST(self) -> None:
            asked.append(self.posted())
            told = answered(next(iter(TOLD)), 500)
            self.answer(told.status, told.body)

    with serving(Refusing) as one, serving(Refusing) as other:
        models = {"m": {"backend": "llamacpp", "workers": [one, other]}}
        with Stack((), {"models": models, "routing": {"scrape_s": 0}}) as stack:
            for way in CHATS * 2:
                reply = httpx.post(stack.url + way.path("m"), json=way.body(model="m", stream=False), timeout=60)
                assert (reply.status_code // 100, FIRST in reply.text) == (4, True), reply.text
            assert len(asked) == 2 * len(CHATS) > 20
            workers = stack.gateway.deployment.fleets.models["m"].pool.workers
            assert [(worker.breaker.generation, worker.breaker.failures) for worker in workers] == [(0, 0)] * 2
