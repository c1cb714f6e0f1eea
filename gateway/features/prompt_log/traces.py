"""Lines as spans, by OpenTelemetry's semantic conventions for generative AI.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ and its JSON schemas of messages. Langfuse
(`OtelIngestionProcessor`) and Phoenix (`trace/gen_ai/conversion.py`) read messages from attributes of spans, and not
from events; Phoenix shows none of them if one has no finish_reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import MsgspecError
from msgspec.json import decode, encode

from gateway.core.http import Headers
from gateway.features.prompt_log.entry import Answer, Line
from gateway.observe.genai import OPERATIONS, PROVIDER
from gateway.translation.texts import Shown

if TYPE_CHECKING:
    from gateway.observe.spans import PromptSpans

_ROLES = frozenset(("system", "user", "assistant", "tool"))
_OURS = {"developer": "system"}
_NOT_MESSAGES = frozenset(("tools", "format", "suffix"))
_TYPES = {"thinking": "reasoning", "refusal": "text", "text": "text"}
_FINISHES = {"tool_calls": "tool_call"}


class Traces:
    """Implements writer.Sink. A request whose trace is not recorded has no span."""

    def __init__(self, spans: PromptSpans) -> None:
        self._spans = spans

    def write(self, entries: Sequence[tuple[Line, Headers]]) -> int:
        found = [(line, context) for line, context in entries if context]
        for line, context in found:
            self._spans.add(context, line.time - line.duration_ms / 1000, line.time, attributes_of(line))
        self._spans.send()
        return len(found)

    def tidy(self) -> int:
        return 0

    def close(self) -> int:
        self._spans.close()
        return 0


def attributes_of(line: Line) -> dict[str, Any]:
    """Those of the span."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": OPERATIONS.get(line.operation, line.operation),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": line.model,
        "gen_ai.input.messages": encode(list(_messages(line.prompt.texts))).decode(),
        "dragoman.request_id": line.id,
        "dragoman.prompt.cut": line.prompt.cut,
        "dragoman.outcome": line.outcome,
    }
    if line.reply is not None:
        found["gen_ai.output.messages"] = encode(list(_choices(line.reply))).decode()
        found["gen_ai.response.finish_reasons"] = line.reply.finish
        found["dragoman.reply.cut"] = line.reply.cut
        found["dragoman.reply.complete"] = line.reply.complete
    if line.code is not None:
        found["error.type"] = line.code
    if line.usage is not None:
        counts = {"input": line.usage.input, "output": line.usage.output, "cache_read.input": line.usage.cached}
        found |= {f"gen_ai.usage.{name}_tokens": count for name, count in counts.items() if count is not None}
    return found


def _messages(texts: Iterable[Shown]) -> Iterator[dict[str, Any]]:
    for one in texts:
        if one.role not in _NOT_MESSAGES:
            role = _OURS.get(one.role, one.role)
            yield {"role": role if role in _ROLES else "user", "parts": [_part(one)]}


def _choices(reply: Answer) -> Iterator[dict[str, Any]]:
    for choice in sorted({one.choice for one in reply.texts}):
        finish = reply.finish[choice] if choice < len(reply.finish) else "error"
        parts = [_part(one) for one in reply.texts if one.choice == choice]
        yield {"role": "assistant", "parts": parts, "finish_reason": _FINISHES.get(finish, finish)}


def _part(one: Shown) -> dict[str, Any]:
    if one.kind == "tool":
        return {"type": "tool_call", "name": one.name or "", "arguments": _value(one.text)}
    if one.role == "tool":
        return {"type": "tool_call_response", "response": one.text}
    return {"type": _TYPES.get(one.kind, "text"), "content": one.text}


def _value(arguments: str) -> Any:
    """The value that the JSON stands for; the text itself, if it is cut or masked."""
    try:
        return decode(arguments)
    except (MsgspecError, RecursionError):
        return arguments
