"""The members of vLLM 0.33's requests that the worker reads, and its refusals. It ignores others."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from workers.simulated import tokenizer


class Refused(Exception):
    """An error answer: status, vLLM's error type, message and the parameter at fault."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.param = status, kind, message, param

    def body(self) -> bytes:
        """vLLM's error body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class StreamOptions(Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Generate(Struct, kw_only=True):
    """The members that decide what is invented."""

    model: str | None = None
    n: int | None = 1
    seed: int | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None


class Asked(Generate, kw_only=True):
    """Any request of a client."""

    messages: list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    max_completion_tokens: int | None = None
    continue_final_message: bool = False
    prompt: str | list[Any] = ""
    input: str | list[Any] = ""
    encoding_format: str | None = None
    dimensions: int | None = None
    return_token_strs: bool | None = False

    def prompts(self) -> list[tuple[str, int]]:
        """The texts that the model reads, and the tokens of each. The template of chats is JSON; token ids are read
        as the text of their numbers."""
        given = self.input or self.prompt
        if self.messages is not None:
            last = self.messages[-1]["content"] if self.continue_final_message else ""
            messages = self.messages[:-1] if last else self.messages
            given = msgspec.json.encode([self.tools, *messages]).decode() + last
        items = [given] if isinstance(given, str) or all(type(item) is int for item in given) else given
        return [(item, tokenizer.count(item)) if isinstance(item, str) else (repr(item), len(item)) for item in items]

    def call(self) -> tuple[str, str] | None:
        """The function that the reply calls, and its arguments: the one that `tool_choice` demands, or a word of whose
        name (five letters or more) is in the last message, if that is the user's. Raises Refused."""
        if not self.tools or not self.messages or self.tool_choice == "none":
            return None
        try:
            functions = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in self.tools}
            last, choice = self.messages[-1], self.tool_choice
            content = last.get("content") or ""
            text = content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
            if isinstance(choice, dict):
                name = choice["function"]["name"]
            elif choice == "required":
                name = next(iter(functions))
            else:
                prompt = text.lower() if last["role"] == "user" else ""
                name = next((name for name in functions if any(word in prompt for word in _words(name))), None)
                if name is None:
                    return None
            members = {one: _value(schema, text) for one, schema in functions[name].get("properties", {}).items()}
            return name, msgspec.json.encode(members).decode()
        except (AttributeError, KeyError, TypeError):
            raise Refused(400, "Bad Request", "tools or tool_choice are not what a chat has", "tools") from None


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]{5,}", name.lower())


def _value(schema: dict[str, Any], text: str) -> Any:
    """An argument: the first that its schema names, else one of its type; texts are the user's."""
    values = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    named = schema.get("enum")
    return named[0] if named else values.get(str(schema.get("type")), text[:80])


_decoder = msgspec.json.Decoder(Asked)


def read(body: bytes) -> Asked:
    """Raises Refused."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(400, "Bad Request", str(error)) from None


def check_context(tokens: int, limit: int | None, maximum: int, strict: bool = False) -> int:
    """How many tokens a reply may have. Raises Refused when the prompt leaves no room.

    vLLM 0.33 shortens max_tokens to what is left of the context; `strict` refuses instead, as versions before it did.
    """
    asked = limit or 0
    if tokens >= maximum or (strict and tokens + asked > maximum):
        message = (
            f"This model's maximum context length is {maximum} tokens. However, you requested {asked} output tokens "
            f"and your prompt contains {tokens} input tokens, for a total of {tokens + asked} tokens. Please reduce "
            "the length of the input prompt or the number of requested output tokens."
        )
        raise Refused(400, "BadRequestError", message, "input_tokens")
    return maximum - tokens if limit is None else min(limit, maximum - tokens)
