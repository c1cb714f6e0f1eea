"""Requests at models whose guard masks or refuses words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.support.clients import WAYS, Way
from tests.support.harness import Stack
from tests.support.standins.guard import ALLOW, Guard

SECRET = "4711-secret"

USUAL = list({(way.dialect, way.operation, *way.example.streams): way for way in WAYS}.values())
"""One way for each dialect, operation and form of the reply: the others share their code."""
AFTERS = ("whole", "windows")

REFUSED = (400, 422)
"""The status of a refusal; TGI's own is the second."""


def config_of(service: Guard, **options: Any) -> dict[str, Any]:
    return {"guards": {"g": {"url": service.url, **options}}}


def send(stack: Stack, way: Way, model: str, text: str, *, stream: bool = False, **members: Any) -> httpx.Response:
    body = {"model": model, **way.body(text, stream=stream, **members)}
    return httpx.post(stack.url + way.path(model), json=body, timeout=30)


def masking(question: dict[str, Any]) -> dict[str, Any]:
    return {"action": "replace", "texts": [shown["text"].replace(SECRET, "****") for shown in question["texts"]]}


def refusing(word: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def decide(question: dict[str, Any]) -> dict[str, Any]:
        found = any(word in shown["text"] for shown in question["texts"])
        return {"action": "refuse", "reason": "not here"} if found else ALLOW

    return decide


TEXT = f"Ein naïver Gruß an 漢字, und {SECRET} ist geheim, wie alles 🎉 danach auch."
