"""What a worker may say, told in events, of no wire and no dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartKind, PartStart, Reason, Start, UsageReport
from gateway.core.lifecycle import Reply, fold
from gateway.core.usage import Usage

Operation = Literal["chat", "complete"]
Framing = Literal["lf", "crlf", "cr", "no space", "comments", "lines", "bom", "blank lines"]

START = Start("id-1", "sim", 1763726400)
USAGE = Usage(12, 7)


class Scenario(Struct, frozen=True):
    """events   what the worker says between its Start and its End, usage left out
    usage    where the worker reports it: in a chunk of its own, on the last one, nowhere
    framing  how its frames are written, where its wire leaves a choice
    asks     the request's members beside model and content, in OpenAI's words
    quirk    how an engine of OpenAI's wire may differ from vLLM's newest
    needs    what a dialect or a worker must have a word for: "n", "tools", "refusal", "thinking", "stop sequences"
    """

    name: str
    operation: Operation
    events: tuple[Event, ...]
    usage: Literal["alone", "last", "absent"] = "absent"
    framing: Framing = "lf"
    asks: Mapping[str, Any] = {}
    needs: frozenset[str] = frozenset()
    quirk: Literal["", "a role in every chunk", "no role", "reasoning_content"] = ""

    def said(self) -> list[Event]:
        """All of it, from Start to End."""
        usage = [UsageReport(USAGE)] if self.usage != "absent" else []
        return [START, *self.events, *usage, End()]

    def reply(self) -> Reply:
        """As the worker says it."""
        return fold(self.said())

    def heard(self) -> Reply:
        """As its reader has it: a call without arguments has an empty object, and a call is why a choice ended."""
        reply = self.reply()
        for choice in reply.choices:
            for call in choice.calls:
                call.text = call.text if call.text.strip() not in ("", "null") else "{}"
            if choice.calls and choice.reason == "stop":
                choice.reason = "tool_calls"
        return reply


def part(
    kind: PartKind, *texts: str, index: int = 0, choice: int = 0, name: str | None = None, last: bool = False
) -> tuple[Event, ...]:
    """A whole part; with `last`, the worker ends the choice in the chunk of its last text."""
    call = (f"call_{index}", name or "f") if kind == "tool" else (None, None)
    deltas = [
        Delta(choice, index, text, (100 + place,) if kind == "text" else (), last=last and place == len(texts) - 1)
        for place, text in enumerate(texts)
    ]
    return (PartStart(choice, index, kind, *call), *deltas, PartEnd(choice, index))


def finish(reason: Reason = "stop", choice: int = 0, stop: str | int | None = None) -> tuple[Event]:
    return (Finish(choice, reason, reason, stop),)


def logprob(token: str) -> dict[str, Any]:
    top = {"token": token, "logprob": -0.25, "bytes": list(token.encode())}
    return {**top, "top_logprobs": [top]}


def measured(*tokens: str) -> tuple[Event, ...]:
    deltas = [
        Delta(0, 0, token, (100 + place,), Raw(msgspec.json.encode([logprob(token)])))
        for place, token in enumerate(tokens)
    ]
    return (PartStart(0, 0, "text"), *deltas, PartEnd(0, 0))


HELLO = (*part("text", "Hello", ",", " world"), *finish())
TOOLS = {"tools": [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")]}
INTERLEAVED = (
    PartStart(0, 0, "tool", "call_0", "f"),
    PartStart(0, 1, "tool", "call_1", "g"),
    Delta(0, 0, '{"a"'),
    Delta(0, 1, '{"b"'),
    Delta(0, 0, ":1}"),
    Delta(0, 1, ":2}"),
    PartEnd(0, 0),
    PartEnd(0, 1),
)
TWO = (
    PartStart(0, 0, "text"),
    PartStart(1, 0, "text"),
    Delta(0, 0, "A", (65,)),
    Delta(1, 0, "B", (66,)),
    Delta(1, 0, "b", (98,)),
    PartEnd(1, 0),
    *finish("length", 1),
    Delta(0, 0, "a", (97,)),
    PartEnd(0, 0),
    *finish(),
)
# Separators of Unicode that are no ends of lines here, CJK, an emoji of several code points, what JSON escapes.
UNICODE = ("a\u2028b\u2029c\u0085", "中文字", "👩‍👩‍👧‍👦", '\x00\x1f"\\/\r\n\tdata: [DONE]\n\n', "é\u0301🇪🇺")

_OF_BOTH = (
    Scenario("text", "chat", HELLO),
    Scenario("text ended by its last chunk", "chat", (*part("text", "Hello", " world", last=True), *finish("length"))),
    Scenario("text in one chunk", "chat", (*part("text", "Hello", last=True), *finish())),
    Scenario("no text", "chat", finish()),
    Scenario("two choices", "chat", TWO, "alone", asks={"n": 2}, needs=frozenset({"n"})),
    Scenario(
        "stop sequence",
        "chat",
        (*part("text", "one "), *finish(stop="END")),
        asks={"stop": ["END"]},
        needs=frozenset({"stop sequences"}),
    ),
    Scenario("content filter", "chat", (*part("text", "He"), *finish("content_filter"))),
    Scenario("usage alone", "chat", HELLO, "alone"),
    Scenario("usage on the last chunk", "chat", HELLO, "last"),
    Scenario("usage absent", "chat", HELLO, "absent"),
    Scenario("unicode", "chat", (*part("text", *UNICODE), *finish()), "alone"),
    *(
        Scenario(f"framing: {framing}", "chat", (*part("text", "one", " two\u2028"), *finish()), "alone", framing)
        for framing in ("crlf", "cr", "no space", "comments", "lines", "bom", "blank lines")
    ),
)
_TOOLS = frozenset({"tools"})

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("a role in every chunk", "chat", HELLO, quirk="a role in every chunk"),
    Scenario("no role", "chat", HELLO, quirk="no role"),
    Scenario("a reason of the engine's own", "chat", (*part("text", "a a"), Finish(0, "stop", "repetition"))),
    Scenario(
        "thinking by its older name",
        "chat",
        (*part("thinking", "Hm"), *part("text", "42", index=1), *finish()),
        needs=frozenset({"thinking"}),
        quirk="reasoning_content",
    ),
    *_OF_BOTH,
    *(msgspec.structs.replace(scenario, operation="complete") for scenario in _OF_BOTH),
    Scenario("logprobs", "chat", (*measured("Hi", " there", "!"), *finish()), asks={"logprobs": True}),
    Scenario("logprobs", "complete", (*measured("Hi", " there", "!"), *finish()), asks={"logprobs": 1}),
    Scenario(
        "tool call",
        "chat",
        (*part("tool", '{"city":', ' "Paris"}'), *finish("tool_calls")),
        "alone",
        asks=TOOLS,
        needs=_TOOLS,
    ),
    Scenario(
        "text, then a tool",
        "chat",
        (*part("text", "Let me", " see"), *part("tool", "{}", index=1), *finish("tool_calls")),
        asks=TOOLS,
        needs=_TOOLS,
    ),
    Scenario(
        "text after a tool",
        "chat",
        (*part("tool", '{"a":1}'), *part("text", "Wait", " for it", index=1), *finish("tool_calls")),
        asks=TOOLS,
        needs=_TOOLS,
    ),
    Scenario("interleaved tools", "chat", (*INTERLEAVED, *finish("tool_calls")), asks=TOOLS, needs=_TOOLS),
    Scenario(
        "tools one after another",
        "chat",
        (*part("tool", '{"a":1}'), *part("tool", '{"b":', "2}", index=1, name="g"), *finish("tool_calls")),
        asks=TOOLS,
        needs=_TOOLS,
    ),
    Scenario("empty arguments", "chat", (*part("tool"), *finish("tool_calls")), asks=TOOLS, needs=_TOOLS),
    Scenario("null arguments", "chat", (*part("tool", "nu", "ll"), *finish("tool_calls")), asks=TOOLS, needs=_TOOLS),
    Scenario(
        "several calls, some without arguments",
        "chat",
        (*part("tool"), *part("tool", "{}", index=1, name="g"), *part("tool", " ", "null", index=2), *finish()),
        asks=TOOLS,
        needs=_TOOLS,
    ),
    Scenario("a call ended by stop", "chat", (*part("tool", '{"a":1}'), *finish()), asks=TOOLS, needs=_TOOLS),
    Scenario(
        "arguments that are no JSON",
        "chat",
        (*part("tool", "{oops"), *finish("tool_calls")),
        asks=TOOLS,
        needs=_TOOLS,
    ),
    Scenario(
        "thinking, text, tool",
        "chat",
        (
            *part("thinking", "Hm", ", so"),
            *part("text", "I ", "look", index=1),
            *part("tool", '{"q":"中"}', index=2),
            *finish("tool_calls"),
        ),
        "alone",
        asks=TOOLS,
        needs=frozenset({"tools", "thinking"}),
    ),
    Scenario(
        "thinking, text",
        "chat",
        (*part("thinking", "Hm", "\n\n"), *part("text", "42", index=1), *finish()),
        needs=frozenset({"thinking"}),
    ),
    Scenario("refusal", "chat", (*part("refusal", "I", " won't"), *finish()), needs=frozenset({"refusal"})),
)
