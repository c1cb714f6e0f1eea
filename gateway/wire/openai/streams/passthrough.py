"""The passthrough lane of OpenAI's wire: passes a worker's stream on to a client of the same wire with few changes.

Always changed:
- the model's name
- the usage chunk: the gateway always asks for it, and strips it if the client did not ask
- the role: only a choice's first delta has it
- `reasoning` (vLLM since 0.16) and `reasoning_content` (before): each is sent under both names
- finish reasons that OpenAI does not define

Corrected, if a server is inexact: ids and times that are missing or change within the stream, indices and ids of tool
calls, usage beside choices, a fingerprint that only the stripped usage chunk has. Some clients cannot parse comments,
CRLF, a missing space after `data:` or multi-line data, so these are rewritten in the one form that all clients read.

Buffered replies: `replies.whole`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from gateway.core.continuation import FOLD_LENGTH, FOLD_MASK, NO_TEXT, SentText, joined_usage, without_prefix
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.core.messages import Chat, Embed, Extra, Generate, Media, choices_of
from gateway.core.ports import Lane, Partial
from gateway.core.usage import Usage
from gateway.wire import clock, sse
from gateway.wire.chunk_template import MARK, TRIES, TemplateCache, Usual, cut, text_of, usual_of
from gateway.wire.json import NULL, encode, members_of, objects_of
from gateway.wire.openai.media import replies as media
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.excess import ORDINARY_BYTES, refuse_bulky
from gateway.wire.openai.replies.tool_calls import Calls
from gateway.wire.openai.replies.whole import finish_word, in_members, is_named, whole
from gateway.wire.openai.replies.writing import write_usage

_error: Callable[[Raw], wire.ErrorIn | str] = msgspec.json.Decoder(wire.ErrorIn | str).decode
_usage = msgspec.json.Decoder(wire.UsageIn).decode
_index = msgspec.json.Decoder(wire.Index).decode
_word = msgspec.json.Decoder(str | None).decode
_time = msgspec.json.Decoder(int | float | None).decode
_piece = msgspec.json.Decoder(wire.ToolCallIn).decode
_content = msgspec.json.Decoder(list[wire.ContentIn]).decode
_PLAIN = ("content", "text")
_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
_ZERO, _EMPTY, _ASSISTANT, _NONE = Raw(b"0"), Raw(b'""'), Raw(b'"assistant"'), Raw(b"[]")
_CHAT, _TEXT = Raw(b'"chat.completion.chunk"'), Raw(b'"text_completion"')
_FUNCTION = Raw(b'"function"')
_SILENT = (NULL, _NONE)
# So many templates in one stream are of chunks that hardly repeat.
_VARIED = 3
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class Asked(Struct, frozen=True):
    """The parts of a request that decide what its client is sent.

    model          the name that it is sent, as JSON
    choices        how many the client asked for
    include_usage  the client asked for usage, in a separate chunk without choices
    logprobs       the client asked for logprobs
    running_usage  the client also asked for usage beside choices (vLLM's `continuous_usage_stats`)
    named_tool     the client named the function that must be called
    """

    model: Raw
    chat: bool
    choices: int
    include_usage: bool
    logprobs: bool = False
    running_usage: bool = False
    named_tool: bool = False


class _EndedChoice(Struct):
    finish_reason: str | None = None


class _Ended(Struct):
    """The choices of a buffered reply, of which embeddings have none."""

    choices: list[_EndedChoice] = []


_ended = msgspec.json.Decoder(_Ended).decode


class _Lessons(Struct):
    """How a stream comes to its templates.

    recalled  those of streams before it were looked for, or are of no use
    tries     how many more it may learn
    own       id and time, as JSON, if the client is sent those of the worker
    learnt    of text, of this stream
    """

    recalled: bool
    tries: int = TRIES
    own: tuple[bytes, bytes] | None = None
    learnt: list[Usual] = []


class Passthrough(Struct, frozen=True):
    """Serves any dialect of this wire. Implements core.ports.Passthrough.

    refuse  writes the dialect's error event
    known   ordinary chunks of streams that have ended
    """

    refuse: Callable[[GatewayError], bytes]
    known: TemplateCache = field(default_factory=TemplateCache)

    def lane(self, op: Generate, text: SentText = NO_TEXT) -> PassthroughLane:
        options = bytes(op.raw.get("stream_options", NULL)) if op.raw is not None else b""
        if op.logprobs is not None:
            text.stop("logprobs")  # another worker would count their places in the text from its own begin
        asked = Asked(
            Raw(encode(op.model or "")),
            isinstance(op, Chat),
            choices_of(op),
            op.include_usage,
            op.logprobs is not None,
            b"continuous_usage_stats" in options,
            is_named(op),
        )
        return PassthroughLane(asked, self, text)

    def whole(self, response: Response, op: Generate | Embed) -> tuple[Response, Usage | None]:
        body, usage = whole(response.body, op)
        return Response(200, [JSON_TYPE], body), usage

    def media_lane(self, op: Media, headers: Headers) -> Lane | None:
        return media.lane(headers, op, self.refuse) if media.is_stream(headers, op) else None

    def media_whole(self, response: Response, op: Media) -> tuple[Response, Usage]:
        return media.whole(response, op)

    def media_events(self, response: Response, op: Media) -> bytes:
        return media.events(response, op)

    def finishes(self, response: Response) -> list[str]:
        return [choice.finish_reason for choice in _ended(response.body).choices if choice.finish_reason is not None]


class PassthroughLane:
    """One stream. Implements core.ports.Lane. The native relay looks at `frames`, `usual` and `text` and does what
    `feed` does with an ordinary chunk.

    frames  the framing of the worker's events
    usual   see `_learn`
    text    the text that the client was sent
    lessons how it comes to `usual`
    """

    headers = sse.HEADERS
    clean_end = False
    keeps_op = False

    def __init__(
        self,
        asked: Asked,
        owner: Passthrough,
        text: SentText = NO_TEXT,
    ) -> None:
        self.done = False
        self.error: GatewayError | None = None
        self.usage: Usage | None = None
        self.produced = 0
        self.frames = sse.Reader()
        self._asked = asked
        self._owner = owner
        self._begun: set[int] = set()
        self.finishes: dict[int, str] = {}
        self._calls: dict[int, Calls] = {}
        # The members that are the same in every chunk (id, object and created), from the first chunk.
        self._same: Extra = {}
        # Usage that came beside choices. It is sent in a separate chunk before the end.
        self._late_usage: Raw | None = None
        # The chunk that ended the last choice. It is held back: the next chunk may have the fingerprint that it needs.
        self._last: _Chunk | None = None
        self.usual: list[Usual] = []
        self.lessons = _Lessons(asked.choices > 1)
        self.text = text
        # Set while another worker goes on with the reply of the first: see `splice`.
        self._seam: _Seam | None = None

    def feed(self, block: bytes) -> bytes:
        if self.usual and self.frames.idle and (usual := self._ordinary(block)):
            return usual
        out = []
        try:
            for frame in self.frames.feed(block):
                if frame.data == b"[DONE]":
                    out.append(self._finish())
                    break
                # A gateway that is late gets several chunks in one block: they must not cost more than one at a time.
                usual = self._ordinary(b"data: %b\n\n" % frame.data) if self.usual else b""
                out.append(usual or (b"" if frame.silent else self._read(frame.data)))
        except GatewayError as error:
            self.error = error
            out.append(self._release())
        return b"".join(out)

    def _ordinary(self, event: bytes) -> bytes:
        """The bytes for the client if `event` matches a template, else b""."""
        for before, after, pieces, _ in self.usual:
            if event.startswith(before) and event.endswith(after):
                inside = event[len(before) : -len(after)]
                try:
                    text = text_of(b'"%b"' % inside)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    break
                if text:
                    self.produced = count = self.produced + 1
                    self.text.add(text)
                    if not count & FOLD_MASK or len(text) > FOLD_LENGTH:
                        self.text.fold()
                    return inside.join(pieces)
        return b""

    def _finish(self) -> bytes:
        if len(self.finishes) < self._asked.choices:
            raise wire.truncated()
        self.done = True
        out = self._release()
        if self._late_usage is not None:
            ending = {**self._same, "model": self._asked.model, "choices": _NONE, "usage": self._late_usage}
            out += b"data: " + encode(ending) + b"\n\n"
        return out + sse.DONE

    def _release(self) -> bytes:
        """The chunk that was held back, or b""."""
        last, self._last = self._last, None
        return last.written() if last is not None else b""

    def _read(self, data: bytes) -> bytes:
        if len(data) > ORDINARY_BYTES:
            refuse_bulky(data, self._asked.choices, self._asked.logprobs)
        try:
            chunk = _taken_apart_with_halves(data) if _HALF.search(data) else _taken_apart(data)
            ordinary = self._rewrite(chunk)
            if not self.lessons.recalled and self._begun:
                self._recall()
            elif ordinary is not None and self.lessons.tries:
                self._learn(data, *ordinary)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None
        if self._last is not None:
            fingerprint = chunk.top.get("system_fingerprint", NULL)
            if fingerprint != NULL:
                self._last.top.setdefault("system_fingerprint", fingerprint)
            return self._release() + chunk.written()
        if chunk.last and not self._asked.include_usage and chunk.top.get("system_fingerprint", NULL) == NULL:
            self._last = chunk
            return b""
        return chunk.written()

    def _learn(self, data: bytes, name: str, index: int) -> None:
        """Learns what an ordinary chunk of this stream is, of which `data` is the first."""
        self.lessons.tries -= 1
        usual = cut(data, ("choices", 0, "delta") if self._asked.chat else ("choices", 0), name)
        if usual is not None:
            chunk = _taken_apart(usual.filled(MARK, 0)[6:])
            text, self.text = self.text, NO_TEXT
            self._rewrite(chunk)
            self.text = text
            self.produced -= 1
            self.usual.append(usual_of(usual.before, usual.after, chunk.written().split(MARK), index))
            if name in _PLAIN:  # the first chunk of any other must be parsed: its text cannot be continued
                self.lessons.learnt.append(self.usual[-1])

    def _recall(self) -> None:
        """Takes what streams before this one had as ordinary chunks, once its only choice has begun."""
        self.lessons.recalled, own = True, self.lessons.own
        if own is not None:
            open_ones = self._begun.difference(self.finishes)
            known = self._owner.known.recall(encode(self._asked), own)
            self.usual = [usual for usual in known if usual[-1] in open_ones]

    def _forget(self, index: int) -> None:
        """Forgets the templates of a choice that has ended: anything more from it must be parsed. They are kept for the
        next streams, unless nearly every chunk differed."""
        self.usual = [usual for usual in self.usual if usual[-1] != index]
        own, learnt = self.lessons.own, self.lessons.learnt
        if own is not None and self._asked.choices == 1 and len(learnt) < _VARIED:
            for usual in learnt:
                self._owner.known.keep(encode(self._asked), own, usual)

    def _rewrite(self, chunk: _Chunk) -> tuple[str, int] | None:
        """Rewrites the worker's chunk for the client, in place. If the chunk has one choice with content in one member
        only, returns (that member's name, the choice's index). Raises GatewayError, or msgspec.ValidationError for a
        wrong type."""
        top = chunk.top
        if top.get("error", NULL) != NULL:
            raise wire.late_fault(_error(top["error"]))
        if chunk.choices is None:
            raise wire.malformed()
        if not self._same:
            self._same = self._identity(top)
        top.update(self._same)
        top["model"] = self._asked.model
        counted = top.get("usage", NULL) != NULL
        if counted:
            self._take_usage(chunk)
        names = [self._rewrite_choice(choice, chunk) for choice in chunk.choices]
        if None in names:  # None: the choice has ended
            chunk.choices = [one for one, name in zip(chunk.choices, names, strict=True) if name is not None]
            chunk.due = chunk.due and bool(chunk.choices)
            return None
        return names[0] if len(names) == 1 and names[0] is not None and names[0][0] and not counted else None

    def _identity(self, top: Extra) -> Extra:
        """The members that are the same in every chunk of this stream."""
        given_id = _word(top.get("id", NULL))
        given_at = _time(top.get("created", NULL))
        at = wire.created_at(given_at, clock.seconds())
        prefix = "chatcmpl-" if self._asked.chat else "cmpl-"
        own_time = given_at == at and type(given_at) is int
        # Copies: a member as it was read keeps all of its chunk.
        id_ = bytes(top["id"]) if given_id else encode(clock.new_id(prefix))
        created = bytes(top["created"]) if own_time else encode(at)
        if given_id and own_time:
            self.lessons.own = id_, created
        return {"id": Raw(id_), "object": _CHAT if self._asked.chat else _TEXT, "created": Raw(created)}

    def _take_usage(self, chunk: _Chunk) -> None:
        """Takes a chunk's usage. A separate usage chunk is passed on as it is; usage beside choices is sent at the
        end."""
        self.usage = wire.usage(_usage(chunk.top["usage"]))
        if self._seam is not None:
            self.usage = self._seam.usage(self.usage)
            chunk.top["usage"] = Raw(encode(members_of(chunk.top["usage"]) | write_usage(self.usage)))
        if self._asked.include_usage and (self._asked.running_usage or not chunk.choices):
            self._late_usage = None
            return
        running = chunk.top.pop("usage")
        if self._asked.include_usage:
            self._late_usage = running
        else:
            chunk.due = bool(chunk.choices)

    def _rewrite_choice(self, choice: _Choice, chunk: _Chunk) -> tuple[str, int] | None:
        """(the name of the choice's only member with content, or "", and its index). None if the choice had ended."""
        index = self._index_of(choice)
        first = index not in self._begun
        self._begun.add(index)
        if len(self._begun) > self._asked.choices:
            raise wire.malformed()  # more choices than the client asked for
        holder = choice.members
        if self._asked.chat:
            holder = choice.delta = choice.delta if choice.delta is not None else {}
            if not first:
                holder.pop("role", None)
            elif "role" not in holder:
                holder = choice.delta = {"role": _ASSISTANT, **holder}
        _without_parts(holder)
        names, calls = self._spoken(holder)
        if index in self.finishes:
            if names or calls:
                raise wire.malformed()  # content after a choice's end would be lost
            return None
        word = _word(choice.members.get("finish_reason", NULL))
        if self._seam is not None:
            chunk.due, names = self._seam.new(holder, names, calls or word is not None)
        self._keep(holder, names, calls)
        if calls:
            holder["tool_calls"] = self._with_indices(index, objects_of(holder["tool_calls"]))
        if self._asked.chat:
            _under_both_names(holder)
        if word:
            self.finishes[index] = finish_word(word, bool(self._calls.get(index)) and not self._asked.named_tool)
            self._end_calls(index, holder)
            choice.members["finish_reason"] = Raw(encode(self.finishes[index]))
            self._forget(index)
            chunk.last = len(self.finishes) == self._asked.choices
            return "", index
        if word is not None:
            choice.members["finish_reason"] = NULL
        return names[0] if len(names) == 1 and not first and not calls else "", index

    def _index_of(self, choice: _Choice) -> int:
        index = _index(choice.members.setdefault("index", _ZERO))
        if self._seam is not None and index not in self._begun and self._begun:
            (index,) = self._begun  # only replies of one choice go on, whatever a second worker counts from
            choice.members["index"] = Raw(b"%d" % index)
        return index

    def _spoken(self, holder: Extra) -> tuple[list[str], bool]:
        """(the text members with content, whether there are tool calls)."""
        if not self._asked.chat:
            return (["text"] if _speaks(holder.get("text", NULL)) else []), False
        names = [name for name in _TEXTS if name in holder and _speaks(holder[name])]
        return names, holder.get("tool_calls", _NONE) not in _SILENT

    def _keep(self, holder: Extra, names: list[str], calls: bool) -> None:
        """Counts the output of a parsed chunk, if it has some, and keeps its text."""
        if not names and not calls:
            return
        self.produced += 1
        if calls or names[0] not in _PLAIN or len(names) > 1:
            self.text.stop("tool_call" if calls else "thinking" if names[0] != "refusal" else "refusal")
            return
        try:
            self.text.add(text_of(holder[names[0]]))
            self.text.fold()
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.text.stop("encoding")  # half a character

    def _with_indices(self, index: int, pieces: list[Extra]) -> Raw:
        """Pieces of tool calls in OpenAI's form: with an index, and with id and type only in a call's first piece.
        Clients would append repeated ids and types to each other."""
        calls = self._calls.setdefault(index, Calls())
        for position, piece in enumerate(pieces):
            read = _piece(encode(piece))
            call = calls.continued(read, position if len(pieces) > 1 else None)
            if call is None:
                call = calls.begin(read, position, len(calls.begun))
                if not read.id:
                    piece["id"] = Raw(encode(clock.new_id("call_")))
                piece["type"] = _FUNCTION
            else:
                piece.pop("id", None)
                if read.function is not None and read.function.name is not None:
                    function = members_of(piece["function"])
                    del function["name"]
                    piece["function"] = Raw(encode(function))
            if read.index != call.part:
                piece["index"] = Raw(b"%d" % call.part)
            if read.function is not None:
                text = call.next(read.function.text)
                if read.function.arguments != _EMPTY and Raw(encode(text)) != read.function.arguments:
                    piece["function"] = Raw(encode({**members_of(piece["function"]), "arguments": text}))
        return Raw(encode(pieces))

    def _end_calls(self, index: int, holder: Extra) -> None:
        """Adds the arguments that calls of a choice lack as it ends."""
        calls, reason = self._calls.get(index, Calls()), wire.reason(self.finishes[index])
        rests = [(call.part, rest) for call, rest in calls.rests(reason) if rest]
        if rests:
            given = objects_of(holder["tool_calls"]) if holder.get("tool_calls", _NONE) not in _SILENT else []
            missing = [{"index": part, "function": {"arguments": rest}} for part, rest in rests]
            holder["tool_calls"] = Raw(encode([*given, *missing]))

    def eof(self) -> bytes:
        if not self.done and self.error is None:
            self.error = wire.truncated()
        return self._release()

    def fail(self, error: GatewayError) -> bytes:
        self.error = error
        return self._release() + self._owner.refuse(error)

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE

    def partial(self) -> Partial | str:
        return self.text.partial(self.produced, bool(self.finishes))

    def splice(self, repeated: str) -> None:
        """A second worker's ids, times and roles are corrected as those of an inexact server are."""
        self.error = None
        self.frames, self.usual = sse.Reader(), []
        self.lessons.recalled, self.lessons.tries = True, TRIES
        self._seam = _Seam(repeated, self.produced)

    def conclude(self, usage: Usage) -> bytes:
        self.error = None
        ends = b""
        if not self.finishes:
            index = min(self._begun, default=0)
            self.finishes[index] = "length"
            content: dict[str, Any] = {"delta": {}} if self._asked.chat else {"text": ""}
            choices = [{"index": index, **content, "logprobs": None, "finish_reason": "length"}]
            ends = b"data: " + encode({**self._same, "model": self._asked.model, "choices": choices}) + b"\n\n"
        if self.usage is None:
            self.usage = usage
            if self._asked.include_usage:
                self._late_usage = Raw(encode(write_usage(usage)))
        return ends + self._finish()


class _Seam(Struct):
    """The place in a stream where a second worker goes on. repeated: the text that it writes again; before: the output
    deltas of the first worker."""

    _repeated: str
    _before: int
    _again: int = 0
    _begun: bool = False

    def new(self, holder: Extra, names: list[str], more: bool) -> tuple[bool, list[str]]:
        """(whether the client is sent the chunk, `names` without a text that it has already). Takes out repeated text.
        A chunk of the role alone is not sent. more: the chunk has something beside text."""
        if names and not more and names[0] not in _PLAIN and self._before:
            raise GatewayError(
                Kind.UPSTREAM, "the reply could not be continued: the other worker began with its thinking"
            )
        if names and self._repeated:
            text, self._repeated = without_prefix(text_of(holder[names[0]]), self._repeated)
            holder[names[0]] = Raw(encode(text))
            if not text:
                self._again += 1
                names = []
        self._begun = self._begun or more or bool(names)
        return self._begun, names

    def usage(self, reported: Usage) -> Usage:
        return joined_usage(reported, self._before, self._again)


class _Choice(Struct):
    """One choice of a chunk: its members without the delta, and the members of the delta, as JSON texts."""

    members: Extra
    delta: Extra | None


class _Chunk(Struct):
    """A chunk with its members as JSON texts, so that unknown members are passed on unchanged. due: the chunk must be
    sent to the client. last: it ends the last choice."""

    top: Extra
    choices: list[_Choice] | None
    due: bool = True
    last: bool = False

    def written(self) -> bytes:
        if not self.due:
            return b""
        for choice in self.choices or ():
            if choice.delta is not None:
                choice.members["delta"] = Raw(encode(choice.delta))
        self.top["choices"] = Raw(encode([choice.members for choice in self.choices or ()]))
        return b"data: " + encode(self.top) + b"\n\n"


def _taken_apart(data: bytes) -> _Chunk:
    """The chunk in `data`. Raises GatewayError or msgspec.DecodeError if it is not a chunk in strict JSON."""
    wire.require_strict(data)
    top = members_of(data)
    if 10 in data:  # data of several lines is passed on as one line
        top = members_of(data.replace(b"\n", b" "))
    if top.get("choices", NULL) == NULL:
        return _Chunk(top, None)
    return _Chunk(
        top,
        [
            _Choice(members, members_of(members["delta"]) if members.get("delta", NULL) != NULL else None)
            for members in objects_of(top["choices"])
        ],
    )


def _taken_apart_with_halves(data: bytes) -> _Chunk:
    """The chunk in `data`, which may have lone surrogates (`\\ud83d` alone) that msgspec does not read. Servers in
    JavaScript and Python write them if a token ends inside a character. JSON's grammar allows them, and clients join
    them. Raises ValueError if `data` is otherwise not strict JSON or not a chunk."""
    found = json.loads(data, parse_constant=_refused, parse_int=_within_64_bits)
    choices = found.get("choices") if isinstance(found, dict) else None
    if not isinstance(choices, list):
        raise wire.malformed()
    return _Chunk(_raws(found), [_Choice(_raws(choice), _delta(choice)) for choice in choices])


def _refused(word: str) -> None:
    raise ValueError(word)


def _within_64_bits(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**64:
        raise ValueError(digits)
    return number


def _raws(found: Any) -> Extra:
    if not isinstance(found, dict):
        raise wire.malformed()
    return {
        name: Raw(json.dumps(value, separators=(",", ":"), allow_nan=False).encode()) for name, value in found.items()
    }


def _delta(choice: dict[str, Any]) -> Extra | None:
    delta = choice.get("delta")
    return _raws(delta) if delta is not None else None


def _without_parts(holder: Extra) -> None:
    """Makes text members of a content that came in parts."""
    content = holder.get("content", NULL)
    if bytes(content)[:1] == b"[":
        holder |= {name: Raw(encode(text)) for name, text in in_members(_content(content)).items()}


def _speaks(text: Raw) -> bool:
    """True if a text member is not empty. Raises GatewayError if it is not text."""
    if text == NULL:
        return False
    if bytes(text)[:1] != b'"':
        raise wire.malformed()
    return text != _EMPTY


def _under_both_names(holder: Extra) -> None:
    for name in ("reasoning", "reasoning_content"):
        thinking = holder.get(name, NULL)
        if thinking != NULL and (name == "reasoning_content" or thinking != _EMPTY):
            holder["reasoning"] = holder["reasoning_content"] = thinking
            return
