"""What is said to a simulated worker."""

from __future__ import annotations

import json
from typing import Any

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Tell me something."}]}


def frames(text: str) -> list[Any]:
    """The events of a stream; [DONE] must be the last."""
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]
