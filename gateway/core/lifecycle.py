"""Which event may follow which, and the whole reply that events make: `fold(events)`.

A buffered reply is read as the same events as a streamed one, so the two cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

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
from gateway.core.messages import Extra
from gateway.core.usage import Usage

# state of the whole reply -> events allowed in it. Within "open", each choice has its own state (below).
TRANSITIONS: dict[str, frozenset[type]] = {
    "new": frozenset([Start, Failed]),
    "open": frozenset([PartStart, Delta, PartEnd, Finish, UsageReport, End, Failed]),
    "over": frozenset(),
}
# state of one choice -> events allowed in it. Parts of a choice may be open side by side (interleaved tool calls).
CHOICE_TRANSITIONS: dict[str, frozenset[type]] = {
    "open": frozenset([PartStart, Delta, PartEnd, Finish]),
    "finished": frozenset(),
}


class IllegalEvent(AssertionError):
    """A reader broke the lifecycle. It is a bug of the gateway, never a client's or a worker's fault."""


class Checker:
    """Sees events one by one and raises `IllegalEvent` at the first that may not follow those before it."""

    def __init__(self) -> None:
        self.state = "new"
        self._open: dict[int, set[int]] = {}
        self._seen: dict[int, set[int]] = {}
        self._finished: set[int] = set()

    @property
    def over(self) -> bool:
        return self.state == "over"

    def see(self, event: Event) -> None:
        """Raises IllegalEvent if `event` may not come now."""
        if type(event) not in TRANSITIONS[self.state]:
            raise IllegalEvent(f"{type(event).__name__} may not come while the reply is {self.state}")
        if type(event) is Start:
            self.state = "open"
        elif type(event) is End:
            self._may_end()
            self.state = "over"
        elif type(event) is Failed:
            self.state = "over"
        elif type(event) is not UsageReport:
            self._see_choice(event)

    def _may_end(self) -> None:
        unfinished = set(self._seen) - self._finished
        if unfinished:
            raise IllegalEvent(f"End while choices {sorted(unfinished)} have no Finish")

    def _see_choice(self, event: PartStart | Delta | PartEnd | Finish) -> None:
        choice = event.choice
        state = "finished" if choice in self._finished else "open"
        if type(event) not in CHOICE_TRANSITIONS[state]:
            raise IllegalEvent(f"{type(event).__name__} after Finish of choice {choice}")
        open_parts = self._open.setdefault(choice, set())
        seen = self._seen.setdefault(choice, set())
        if type(event) is PartStart:
            if event.index in seen:
                raise IllegalEvent(f"part {event.index} of choice {choice} starts twice")
            seen.add(event.index)
            open_parts.add(event.index)
        elif type(event) is Finish:
            if open_parts:
                raise IllegalEvent(f"Finish of choice {choice} while parts {sorted(open_parts)} are open")
            self._finished.add(choice)
        elif event.index not in open_parts:
            raise IllegalEvent(f"{type(event).__name__} for part {event.index} of choice {choice}, which is not open")
        elif type(event) is PartEnd:
            open_parts.discard(event.index)


def checked(events: Iterable[Event]) -> Iterator[Event]:
    """Yields `events` as they are. Raises `IllegalEvent` at the first illegal one, and when they stop without End or
    Failed."""
    checker = Checker()
    for event in events:
        checker.see(event)
        yield event
    if not checker.over:
        raise IllegalEvent("events stop without End or Failed")


class ReplyPart(Struct):
    """One finished part of a choice. For kind "tool", text is the JSON of the arguments."""

    kind: PartKind
    text: str
    call_id: str | None = None
    name: str | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Raw, ...] = ()


class ReplyChoice(Struct):
    index: int
    parts: list[ReplyPart]
    reason: Reason = "stop"
    raw_reason: str = "stop"
    stop_sequence: str | int | None = None
    extra: Extra | None = None
    end_token: int | None = None

    def text(self, kind: PartKind = "text") -> str | None:
        """The parts of `kind` joined, or None when there is none."""
        texts = [part.text for part in self.parts if part.kind == kind]
        return "".join(texts) if texts else None

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
    unknown."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...] | None = None
    max_context: int | None = None


class Detokenized(Struct):
    """The whole reply to `Detokenize`."""

    text: str


WholeReply = Reply | Embeddings | Scores | TokenCount | Tokens | Detokenized
"""A reply that a dialect writes as one body."""


def fold(events: Iterable[Event]) -> Reply:
    """The whole reply that `events` describe.

    Raises the `GatewayError` of a Failed event; raises `IllegalEvent` when the events break the lifecycle.
    """
    reply: Reply | None = None
    choices: dict[int, ReplyChoice] = {}
    parts: dict[tuple[int, int], tuple[ReplyPart, list[str], list[int], list[Raw]]] = {}
    for event in checked(events):
        if type(event) is Start:
            reply = Reply(event, [])
        elif type(event) is PartStart:
            part = ReplyPart(event.kind, "", event.call_id, event.name)
            _choice(choices, event.choice).parts.append(part)
            parts[event.choice, event.index] = (part, [], [], [])
        elif type(event) is Delta:
            _, texts, tokens, logprobs = parts[event.choice, event.index]
            texts.append(event.text)
            tokens.extend(event.tokens)
            if event.logprobs is not None:
                logprobs.append(event.logprobs)
        elif type(event) is PartEnd:
            part, texts, tokens, logprobs = parts[event.choice, event.index]
            part.text, part.tokens, part.logprobs = "".join(texts), tuple(tokens), tuple(logprobs)
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


def unfold(reply: Reply) -> Iterator[Event]:
    """The events of a whole reply, each part as one Delta: `fold(unfold(r)) == r`."""
    yield reply.start
    for choice in reply.choices:
        for index, part in enumerate(choice.parts):
            yield PartStart(choice.index, index, part.kind, part.call_id, part.name)
            if part.text or part.tokens or part.logprobs:
                logprobs = part.logprobs or (None,)
                yield Delta(choice.index, index, part.text, part.tokens, logprobs[0])
                for more in logprobs[1:]:
                    yield Delta(choice.index, index, "", (), more)
            yield PartEnd(choice.index, index)
        yield Finish(
            choice.index, choice.reason, choice.raw_reason, choice.stop_sequence, choice.extra, choice.end_token
        )
    if reply.usage is not None:
        yield UsageReport(reply.usage)
    yield End()
