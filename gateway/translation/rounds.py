"""Replies in rounds: the model calls tools that the gateway runs, gets their results, and goes on.

A round is one reply of a worker. The client sees one reply: the rounds' parts, one after the other, and between them
the calls of the tools. The model's own calls of them are kept from the client's stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct, convert
from msgspec.structs import replace

from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.lifecycle import Reply, ReplyPart
from gateway.core.messages import (
    Chat,
    Citation,
    KindOfServerTool,
    Message,
    Op,
    Page,
    Part,
    ServerCall,
    Text,
    Thinking,
    ToolCall,
)
from gateway.core.ports import ServerToolWriter, StreamReader
from gateway.core.usage import Usage
from gateway.translation.named_urls import is_named

_arguments = msgspec.json.Decoder(dict[str, Any])
_MEMBERS: Mapping[KindOfServerTool, str] = {"search": "query", "fetch": "url"}
# Characters of a text that are searched for the pages that it names.
_SEARCHED = 1 << 20
# A URL that goes on is that of another page.
_NO_MORE = r"(?![\w-]|/\w)"
_CITE = "Name the URL of every page that you use in your answer, as a Markdown link."


class _Made(Struct):
    """A call as the model made it, and as the client sees it."""

    id: str
    text: str
    call: ServerCall


class Rounds:
    """The rounds of one request.

    op       asks for the next round: always the request's own, in which its dialect leaves what has to be stored
    pending  calls of the round that has ended, which have to be run; none: the reply is complete
    over     no round follows once they are run
    ending   the events by which the round would have ended the reply
    shown    something of the round may have reached the client's stream
    usage    of all rounds that have ended, `count` of them
    prompt   tokens of the next round's prompt: counted by the worker as far as it has read them, else an estimate
    begin, next_index  numbers of the first part of this round, and of the first that follows what came of it
    """

    def __init__(self, op: Chat, most: Mapping[KindOfServerTool, int]) -> None:
        offered = {tool.name for tool in op.tools}
        self.op = op
        self.pending: list[ServerCall] = []
        self.over = self.shown = False
        self.ending: list[Event] = []
        self.usage: Usage | None = None
        self.count = self.begin = self.next_index = self.prompt = 0
        self._tokens: int | None = None
        self.tools = {tool.name: tool for tool in op.server_tools if tool.name in offered}
        self._left = {
            name: most[tool.kind] if tool.most is None else max(0, min(tool.most, most[tool.kind]))
            for name, tool in self.tools.items()
        }
        self._most_output = op.max_output
        # One more than calls, for the answer; one more for a model that goes on calling.
        self._rounds_left = sum(self._left.values()) + 2
        self._pages: dict[str, Page] = {}
        self._made: list[_Made] = []
        self._texts: list[Part] = []
        self._parts: list[ReplyPart] = []
        self._calls: list[tuple[int, ServerCall]] = []

    # -- a round's end ----------------------------------------------------------------------------------------------

    def end_round(self, parts: Sequence[ReplyPart], cut: bool, usage: Usage | None) -> None:
        """A round has ended. cut: by its limit of tokens, so that its last call may not be whole."""
        self.usage = joined(self.usage, usage)
        self._tokens = None if usage is None or usage.input is None else usage.input + (usage.output or 0)
        self.count += 1
        self.begin = self.next_index
        self._rounds_left -= 1
        calls, others = [], False
        for part in parts:
            if part.kind == "tool" and part.name in self.tools:
                calls.append(part)
            else:
                self._parts.append(part)
                others = others or part.kind == "tool"
        self._made = [] if cut else [self._read(part) for part in calls]
        self.pending = [made.call for made in self._made]
        self.over = others or self._rounds_left <= 0
        self._calls += [(len(self._parts), call) for call in self.pending]
        self._texts = [_part(part) for part in parts if part.kind in ("text", "thinking")]

    def _read(self, part: ReplyPart) -> _Made:
        """A call that the model made. It has an error already if it must not be run."""
        tool = self.tools[part.name or ""]
        at = f"{part.call_id or ''}{len(self._calls)}_{len(self.pending)}"
        call = ServerCall(re.sub(r"\W", "", at)[-48:], tool)
        try:
            asked = _arguments.decode(part.text or "{}").get(_MEMBERS[tool.kind])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            asked = None
        if self._left[tool.name] <= 0:
            call.error = "max_uses_exceeded"
        elif not isinstance(asked, str) or not asked.strip():
            call.error = "invalid_tool_input"
        elif tool.kind == "fetch" and not self._is_known(asked.strip()):
            call.error = "url_not_in_prior_context"
        call.asked = asked.strip() if isinstance(asked, str) else ""
        self._left[tool.name] -= 1
        return _Made(part.call_id or call.id, part.text or "{}", call)

    def _is_known(self, url: str) -> bool:
        """Whether somebody other than the model has named `url`: it may not carry what it knows to an address of its
        own making."""
        op = self.op
        others = (message for message in op.messages if message.role != "assistant")
        texts = (part.text for message in others for part in message.parts if isinstance(part, Text))
        return any(is_named(url, text) for text in chain(texts, op.tool_texts))

    def go_on(self, estimate: Callable[[Op], int], context: int | None) -> None:
        """The pending calls have run: `op` asks for the next round, and `prompt` is its length in tokens. Results that
        leave no room for the answer in the model's `context` are shortened. estimate: tokens of a prompt."""
        op, most = self.op, self._most_output
        if most is not None and self.usage is not None:
            most = max(1, most - (self.usage.output or 0))
        calls = [ToolCall(made.id, made.call.tool.name, made.text) for made in self._made]
        results = self._results()
        before = self._tokens if self._tokens is not None else estimate(op)
        if self.usage is not None and self.usage.input is None:
            self.usage = replace(self.usage, input=before)
        added = estimate(Chat(model=op.model, messages=results))
        if context is not None:
            # The answer may have the client's bound, but at most half of what is left.
            left = max(0, context - before)
            room = left - min(left // 2, left if most is None else most)
            if added > room:
                results = self._results(room / added)
                added = estimate(Chat(model=op.model, messages=results))
        self.prompt = before + added
        for made in self._made:
            self._pages.update((page.url, page) for page in made.call.pages)
        # A tool that may not be called any more is offered as before: a prompt that begins alike is cached.
        op.messages = (*op.messages, Message("assistant", (*self._texts, *calls)), *results)
        op.continue_last = False
        op.max_output = most
        if op.tool_choice is not None:
            op.tool_choice = "auto"
        self.pending, self._made, self._texts, self.ending, self.shown = [], [], [], [], False

    def _results(self, share: float = 1) -> tuple[Message, ...]:
        """The calls' results for the model, with this share of each page's text."""
        return tuple(Message("tool", (Text(_result(made.call, share)),), call_id=made.id) for made in self._made)

    # -- what the client gets ---------------------------------------------------------------------------------------

    def cited(self, text: str) -> list[Citation]:
        """The pages that a text names."""
        if not self._pages:
            return []
        # The longest first: one address may begin another.
        urls = sorted(self._pages, key=len, reverse=True)
        found = re.finditer(f"(?:{'|'.join(map(re.escape, urls))}){_NO_MORE}", text[:_SEARCHED])
        return [Citation(self._pages[match[0]], match.start(), match.end()) for match in found]

    def whole(self, last: Reply) -> Reply:
        """The whole reply; last: that of the last round, already ended."""
        choice = last.choices[0]
        for part in self._parts:
            if part.kind == "text" and not part.citations:
                part.citations = self.cited(part.text)
        return replace(
            last, usage=self.usage, choices=[replace(choice, parts=self._parts, server_calls=tuple(self._calls))]
        )


def _part(part: ReplyPart) -> Part:
    return Thinking(part.text) if part.kind == "thinking" else Text(part.text)


def _result(call: ServerCall, share: float) -> str:
    """The result of a call, for the model, with this share of each page's text."""
    if call.error is not None:
        return f"Error: {call.error}"
    if not call.pages:
        return "Nothing was found."
    texts = [page.text if share == 1 else page.text[: int(len(page.text) * share)] for page in call.pages]
    pages = "\n\n".join(
        f"{page.title}\n{page.url}\n{text}".strip() for page, text in zip(call.pages, texts, strict=True)
    )
    return f"{pages}\n\n{_CITE}"


def joined(one: Usage | None, other: Usage | None) -> Usage | None:
    """The usage of two rounds. A count that one of them does not know is not known."""
    if one is None or other is None:
        return other or one
    counts = ("input", "output", "cached", "reasoning", "stored")
    values = {name: (getattr(one, name), getattr(other, name)) for name in counts}
    both = {name: a + b if a is not None and b is not None else None for name, (a, b) in values.items()}
    return convert({**both, "source": one.source if one.source == other.source else "estimated"}, Usage)


class RoundReader:
    """The stream of one round, as a part of the reply. Implements core.ports.StreamReader.

    Its start is left out unless it is the first, its parts go on with the numbers of those before, and its usage is
    that of all rounds, estimated where a worker reports none. Calls of the gateway's tools are left out; if there are
    some, so is its end: see `Rounds`.
    """

    def __init__(self, reader: StreamReader, rounds: Rounds, writer: ServerToolWriter) -> None:
        self._reader = reader
        self._rounds = rounds
        self._writer = writer
        self._shift = rounds.next_index = rounds.begin
        self._parts: dict[int, tuple[ReplyPart, list[str]]] = {}
        self._usage: Usage | None = None
        self._ended: Finish | None = None
        self._size = 0

    @property
    def buffered_bytes(self) -> int:
        return self._reader.buffered_bytes + self._size

    def feed(self, block: bytes) -> Iterable[Event]:
        return self._of_reply(self._reader.feed(block))

    def eof(self) -> Iterable[Event]:
        return self._of_reply(self._reader.eof())

    def _of_reply(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            match event:
                case Delta() | PartStart() | PartEnd():
                    if not self._take(event):
                        self._rounds.shown = True
                        yield replace(event, index=event.index + self._shift) if self._shift else event
                case Finish() | UsageReport() | End():
                    yield from self._at_end(event)
                case Start():
                    if not self._rounds.count:
                        yield event
                case Failed():
                    yield event

    def _take(self, event: Delta | PartStart | PartEnd) -> bool:
        """Keeps what the next round and the pages that a text names need. Whether the event is of a call that the
        client does not see."""
        rounds = self._rounds
        if type(event) is PartStart:
            rounds.next_index = max(rounds.next_index, event.index + self._shift + 1)
            self._parts[event.index] = (ReplyPart(event.kind, "", event.call_id, event.name), [])
        part, texts = self._parts[event.index]
        if type(event) is Delta:
            texts.append(event.text)
            self._size += len(event.text)
        elif type(event) is PartEnd:
            part.text = "".join(texts)
            if part.kind == "text":
                self._writer.cite(event.index + self._shift, rounds.cited(part.text))
        return part.name in rounds.tools

    def _at_end(self, event: Finish | UsageReport | End) -> Iterator[Event]:
        rounds = self._rounds
        if type(event) is Finish:
            self._ended = event
        elif type(event) is UsageReport:
            self._usage = event.usage
            event = UsageReport(joined(rounds.usage, event.usage) or event.usage)
        calls = self._ended is not None and self._ended.reason != "length" and self._calls
        events: list[Event] = [event]
        if type(event) is End:
            usage = self._usage
            if usage is None:
                produced = sum(len(texts) for _, texts in self._parts.values())
                usage = Usage(rounds.prompt or None, produced, source="estimated")
                if rounds.usage is not None:
                    events.insert(0, UsageReport(joined(rounds.usage, usage) or usage))
            rounds.end_round([part for part, _ in self._parts.values()], not calls, usage)
        if calls:
            rounds.ending += events
        else:
            yield from events

    @property
    def _calls(self) -> bool:
        """Whether the round calls tools of the gateway's, so that its end is not that of the reply."""
        return any(part.name in self._rounds.tools for part, _ in self._parts.values())
