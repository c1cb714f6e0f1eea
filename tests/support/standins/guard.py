"""A guard whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.standins.serving import Answering, serving

ALLOW = {"action": "allow"}


class Guard:
    """asked: the questions so far. decide: a question -> the answer: JSON, or (status, body) as they are. held: answers
    wait for it."""

    def __init__(self, origin: str) -> None:
        self.url = f"{origin}/check"
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.decide: Callable[[dict[str, Any]], Any] = lambda question: ALLOW
        self.held = threading.Event()
        self.held.set()

    def texts(self, stage: str) -> list[list[str]]:
        return [[shown["text"] for shown in one["texts"]] for one in self.asked if one["stage"] == stage]


@contextmanager
def guard() -> Iterator[Guard]:
    """Runs it, on a free port."""

    class Answers(Answering):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            question = json.loads(self.posted())
            found.asked.append(question)
            found.headers.append(self.named())
            found.held.wait(30)
            answer = found.decide(question)
            self.answer(*answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode()))

    with serving(Answers) as origin:
        found = Guard(origin)
        try:
            yield found
        finally:
            found.held.set()
