"""What the tests of OpenAI's requests share: bodies read, and refusals."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.errors import GatewayError
from gateway.core.fields import ExtrasPolicy
from gateway.core.messages import Chat, Complete, Embed, Message
from gateway.wire.openai.requests.reading import read_chat, read_embed, read_text
from tests.support.raised import raised

HI = [{"role": "user", "content": "hi"}]


TOOLS = [{"type": "function", "function": {"name": "f"}}]


CALL = {"id": "1", "type": "function", "function": {"name": "f"}}


def chat(policy: ExtrasPolicy = "pass", **members: Any) -> Chat:
    return read_chat(json.dumps({"messages": HI, **members}).encode(), {}, {}, (), policy)


def text(policy: ExtrasPolicy = "pass", **members: Any) -> Complete:
    return read_text(json.dumps({"prompt": "hi", **members}).encode(), {}, {}, (), policy)


def embed(**members: Any) -> Embed:
    return read_embed(json.dumps({"input": "hi", **members}).encode(), {}, {}, ())


def messages(*given: dict[str, Any]) -> tuple[Message, ...]:
    return chat(messages=list(given)).messages


def refusal(read: Any, **members: Any) -> GatewayError:
    return raised(read, **members)
