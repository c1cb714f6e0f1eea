"""Which event may follow which, and the whole reply that events make: `fold(events)`.

A buffered reply is read as the same events as a streamed one, so the two cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, assert_never

from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import (
    Delta,
    End,
    Event,
    Failed,
    Finish,
    PartEnd,
    PartKind,
    PartStart,
    Reason,
    Start,
    UsageReport,
)
from gateway.core.messages import Citation, Extra, ServerCall
from gateway.core.usage import Usage

# State of the reply -> events allowed in it. A choice takes none after its Finish. Its parts may be open side by side
# (interleaved tool calls).
TRANSITIONS: dict[str, frozenset[type]] = {
    "new": frozenset([Start, Failed]),
    "open": frozenset([PartStart, Delta, PartEnd, Finish, UsageReport, End, Failed]),
    "over": frozenset(),
}


class IllegalEvent(AssertionError):
    """A reader broke the lifecycle. It is a bug of the gateway, never a client's or a worker's fault."""


class _ChoiceState(Struct):
    """The parts of one choice so far."""

    parts: set[int] = set()
    open: set[int] = set()
    finished: bool = False


def checked(events: Iterable[Event]) -> Iterator[Event]:
    """Yields `events` as they are. Raises `IllegalEvent` at the first illegal one, and when they stop without End or
    Failed."""
    state = "new"
    choices: dict[int, _ChoiceState] = {}
    for event in events:
        if type(event) not in TRANSITIONS[state]:
            raise IllegalEvent(f"{type(event).__name__} may not come while the reply is {state}")
        if type(event) is Start:
            state = "open"
        elif type(event) is End or type(event) is Failed:
            state = "over"
            unfinished = sorted(index for index, choice in choices.items() if not choice.finished)
            if unfinished and type(event) is End:
                raise IllegalEvent(f"End while choices {unfinished} have no Finish")
        elif type(event) is not UsageReport:
            _check(event, choices.setdefault(event.choice, _ChoiceState()))
        yield event
    if state != "over":
        raise IllegalEvent("events stop without End or Failed")


def _check(event: PartStart | Delta | PartEnd | Finish, choice: _ChoiceState) -> None:
    name = type(event).__name__
    if choice.finished:
        raise IllegalEvent(f"{name} after Finish of choice {event.choice}")
    if type(event) is PartStart:
        if event.index in choice.parts:
            raise IllegalEvent(f"part {event.index} of choice {event.choice} starts twice")
        choice.parts.add(event.index)
        choice.open.add(event.index)
    elif type(event) is Finish:
        if choice.open:
            raise IllegalEvent(f"Finish of choice {event.choice} while parts {sorted(choice.open)} are open")
        choice.finished = True
    elif event.index not in choice.open:
        raise IllegalEvent(f"{name} for part {event.index} of choice {event.choice}, which is not open")
    elif type(event) is PartEnd:
        choice.open.discard(event.index)


class ReplyPart(Struct):
    """One finished part of a choice. For kind "tool", text is the JSON of the arguments."""

    kind: PartKind
    text: str
    call_id: str | None = None
    name: str | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Raw, ...] = ()
    citations: Sequence[Citation] = ()


class ByKind(NamedTuple):
    """The parts of a choice by their kinds: texts joined, or None if there is no part of the kind. Dialects unpack it,
    so that a new kind does not type-check until each of them has a place for it."""

    text: str | None
    thinking: str | None
    refusal: str | None
    calls: list[ReplyPart]


class ReplyChoice(Struct):
    """One choice. server_calls: the calls of server tools, each behind so many of the parts."""

    index: int
    parts: list[ReplyPart]
    reason: Reason = "stop"
    raw_reason: str = "stop"
    stop_sequence: str | int | None = None
    extra: Extra | None = None
    end_token: int | None = None
    server_calls: Sequence[tuple[int, ServerCall]] = ()

    def segments(self) -> Iterator[tuple[list[ReplyPart], ServerCall | None]]:
        """The parts up to each call of a server tool, with the call; last those behind all calls."""
        begin = 0
        for end, call in self.server_calls:
            yield self.parts[begin:end], call
            begin = end
        yield self.parts[begin:], None

    def text(self, kind: PartKind = "text") -> str | None:
        """The parts of `kind` joined, or None when there is none."""
        texts = [part.text for part in self.parts if part.kind == kind]
        return "".join(texts) if texts else None

    def by_kind(self) -> ByKind:
        texts: dict[PartKind, list[str]] = {}
        calls: list[ReplyPart] = []
        for part in self.parts:
            match part.kind:
                case "text" | "thinking" | "refusal":
                    texts.setdefault(part.kind, []).append(part.text)
                case "tool":
                    calls.append(part)
        joined = {kind: "".join(pieces) for kind, pieces in texts.items()}
        return ByKind(joined.get("text"), joined.get("thinking"), joined.get("refusal"), calls)

    @property
    def words(self) -> str:
        """Text and refusals as they came, for wires that have one place for both."""
        return "".join(part.text for part in self.parts if part.kind in ("text", "refusal"))

    @property
    def calls(self) -> list[ReplyPart]:
        return [part for part in self.parts if part.kind == "tool"]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for part in self.parts for token in part.tokens)

    @property
    def logprobs(self) -> tuple[Raw, ...]:
        return tuple(raw for part in self.parts for raw in part.logprobs)


class Reply(Struct):
    """A whole reply; choices in index order."""

    start: Start
    choices: list[ReplyChoice]
    usage: Usage | None = None


class Embeddings(Struct):
    """A whole embeddings reply. vectors are JSON text, each an array of floats or a base64 string."""

    model: str
    vectors: tuple[Raw, ...]
    usage: Usage | None = None


class Scores(Struct):
    """A whole reply to `Score`: a finite number for each pair, in the order of the request."""

    model: str
    scores: tuple[float, ...]
    usage: Usage | None = None


class TokenCount(Struct):
    """The whole reply to `CountTokens`: how many tokens the prompt has."""

    tokens: int


class Tokens(Struct):
    """The whole reply to `Tokenize`. texts has one for each token, or is None; max_context is in tokens, None if
    unknown. spans has the (start, end) of each token in the text, in characters, if it was asked for."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...] | None = None
    max_context: int | None = None
    spans: tuple[tuple[int, int], ...] | None = None


class Detokenized(Struct):
    """The whole reply to `Detokenize`."""

    text: str


WholeReply = Reply | Embeddings | Scores | TokenCount | Tokens | Detokenized
"""A reply that a dialect writes as one body."""


class _Open(Struct):
    """A part in progress. into: the parts of its choice, among which it stands once it is inserted."""

    part: ReplyPart
    into: list[ReplyPart]
    inserted: bool = False
    texts: list[str] = []
    tokens: list[int] = []
    logprobs: list[Raw] = []

    def insert(self) -> None:
        if not self.inserted:
            self.inserted = True
            self.into.append(self.part)

    def add(self, event: Delta) -> None:
        if event.text:
            self.insert()
            self.texts.append(event.text)
        self.tokens.extend(event.tokens)
        if event.logprobs is not None:
            self.logprobs.append(event.logprobs)

    def end(self) -> None:
        self.insert()
        part = self.part
        part.text, part.tokens, part.logprobs = "".join(self.texts), tuple(self.tokens), tuple(self.logprobs)


def fold(events: Iterable[Event]) -> Reply:
    """The whole reply that `events` describe. Its parts stand in the order of a stream: a call where it began, a text
    where it had its first word.

    Raises the `GatewayError` of a Failed event; raises `IllegalEvent` when the events break the lifecycle.
    """
    reply: Reply | None = None
    choices: dict[int, ReplyChoice] = {}
    parts: dict[tuple[int, int], _Open] = {}
    for event in checked(events):
        if type(event) is Start:
            reply = Reply(event, [])
        elif type(event) is PartStart:
            part = ReplyPart(event.kind, "", event.call_id, event.name)
            parts[event.choice, event.index] = one = _Open(part, _choice(choices, event.choice).parts)
            if event.kind == "tool":
                one.insert()
        elif type(event) is Delta:
            parts[event.choice, event.index].add(event)
        elif type(event) is PartEnd:
            parts[event.choice, event.index].end()
        elif type(event) is Finish:
            choice = _choice(choices, event.choice)
            choice.reason, choice.raw_reason = event.reason, event.raw
            choice.stop_sequence, choice.extra, choice.end_token = event.stop_sequence, event.extra, event.end_token
        elif type(event) is UsageReport:
            assert reply is not None
            reply.usage = event.usage
        elif type(event) is End:
            assert reply is not None
            reply.start.fingerprint = reply.start.fingerprint or event.fingerprint
        elif type(event) is Failed:
            raise event.error
        else:
            assert_never(event)
    if reply is None:
        raise GatewayError(Kind.UPSTREAM, "the worker sent no reply")
    reply.choices = [choices[index] for index in sorted(choices)]
    return reply


def _choice(choices: dict[int, ReplyChoice], index: int) -> ReplyChoice:
    if index not in choices:
        choices[index] = ReplyChoice(index, [])
    return choices[index]
