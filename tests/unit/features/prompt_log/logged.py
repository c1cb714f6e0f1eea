"""Gateways that log prompts, and what they have logged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.support.harness import Stack, until
from tests.support.records import Members, parsed
from tests.unit.kernel.asking import PATH, chat

ALL = {"all": {"match": {"model": ["m"]}}}


def config(folder: Path, rules: Mapping[str, Any] = ALL, **options: Any) -> dict[str, Any]:
    return {"prompt_log": {"directory": str(folder), "rules": dict(rules), **options}}


def lines(folder: Path) -> list[Members]:
    """All that was written, in its order."""
    return [parsed(line) for file in sorted(folder.glob("*")) for line in file.read_text().splitlines()]


def written(stack: Stack, folder: Path) -> list[Members]:
    """All that was written, once nothing waits or is under way."""
    stack.records()
    until(lambda: stack.service("prompt_log").bytes == 0)
    return lines(folder)


def post(stack: Stack, text: str = "hi", secret: str | None = None, id: str | None = None, **more: Any) -> Any:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    headers |= {} if id is None else {"x-request-id": id}
    return httpx.post(stack.url + PATH, json=chat(text, **more), headers=headers, timeout=30)


def said(line: Mapping[str, Any]) -> tuple[list[str], list[str] | None]:
    """The texts of the prompt, and of the reply."""
    reply = line["reply"]
    return (
        [one["text"] for one in line["prompt"]["texts"]],
        None if reply is None else [one["text"] for one in reply["texts"]],
    )
