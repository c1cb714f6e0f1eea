"""What the tests of backend llamacpp share: the backend, and requests to it."""

from __future__ import annotations

import json
from typing import Any

from gateway.backends.llamacpp import LlamaCpp
from gateway.core.messages import (
    Chat,
    Complete,
    Message,
    Text,
)
from gateway.core.ports import Capabilities

BACKEND = LlamaCpp()
CAN = Capabilities("small", 512)
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def complete(*prompts: str | tuple[int, ...], **members: Any) -> Complete:
    return Complete(model="m", prompts=prompts or ("hi",), **members)


def chat(**members: Any) -> Chat:
    return Chat(model="m", messages=(Message("user", (Text("hi"),)),), **members)


def sent(op: Complete | Chat) -> Any:
    return json.loads(BACKEND.write(op, CAN).body)
