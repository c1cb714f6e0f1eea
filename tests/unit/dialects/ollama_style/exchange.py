"""What the tests of the dialect `ollama_style` share: its requests, read or refused."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.messages import Chat
from gateway.core.ports import Dialect
from gateway.dialects.ollama_style import OllamaStyle
from tests.unit.dialects import asking
from tests.unit.dialects.asking import HI, request

DIALECT = OllamaStyle()
PNG = "iVBORw0KGgoAAAANSUhEUg=="


def read(body: Any, route: str = "chat", dialect: Dialect = DIALECT) -> Chat:
    op = dialect.read(request(body, route=route))
    assert isinstance(op, Chat)
    return op


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HI, **members}


def refused(body: Any, dialect: Dialect = DIALECT) -> tuple[int, Any]:
    """Status and error object of a request that the dialect itself refuses."""
    response = asking.refused(dialect, request(body))
    found = json.loads(response.body)
    assert list(found) == ["error"]
    assert list(found["error"]) == ["message", "type", "code"]
    return response.status, found["error"]
