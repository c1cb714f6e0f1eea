"""What the tests of the backend `openai` share."""

from __future__ import annotations

from typing import Any

from gateway.backends.openai import OpenAI
from gateway.core.messages import Chat, Complete, Message, Text
from gateway.core.ports import Capabilities

BACKEND = OpenAI()
CAN = Capabilities("sim")
HI = (Message("user", (Text("hi"),)),)


def chat(**members: Any) -> Chat:
    return Chat(model="m", messages=HI, **members)


def text(**members: Any) -> Complete:
    return Complete(model="m", prompts=("hi",), **members)
