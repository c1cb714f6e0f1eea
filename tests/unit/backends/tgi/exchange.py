"""What the tests of the backend `tgi` share."""

from __future__ import annotations

from typing import Any

from gateway.backends.tgi import Tgi
from gateway.core.events import Event
from gateway.core.lifecycle import checked
from gateway.core.messages import Chat, Complete, Message, Text

TGI = Tgi()
HI = (Message("user", (Text("hi"),)),)


def text(prompt: Any = "hi", **fields: Any) -> Complete:
    return Complete(model="m", prompts=(prompt,), **fields)


def chat(messages: tuple[Message, ...] = HI, **fields: Any) -> Chat:
    return Chat(model="m", messages=messages, **fields)


def streamed(op: Chat | Complete, *blocks: bytes) -> list[Event]:
    reader = TGI.reader(op)
    return list(checked([*(one for block in blocks for one in reader.feed(block)), *reader.eof()]))
