"""One request that is logged: its texts as they come, each kind up to a bound, and what is written of them."""

from __future__ import annotations

import re
import time
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.events import Delta, End, Event, Finish, PartStart
from gateway.core.http import Headers
from gateway.core.lifecycle import Reply
from gateway.core.ports import Dialect, RequestRecord
from gateway.core.usage import Usage
from gateway.core.written import Moment, always
from gateway.translation.texts import Guarded, Shown, called, texts_of, unshown

PART = 128
"""Bytes of memory that a text takes beside its characters."""
_MOST_OTHERS = 32
_MOST_BEGUN = 64
_MOST_OF_NAME = 1024
LONGEST_NAME = 256
"""Characters of a name that are written. More are kept until then: a key that a cut goes through must be recognised."""
_AFTER = ("tools", "format", "suffix")
"""Roles of texts that are kept only where the messages leave room."""
# A cut splits no word and no number: what is left of a key or of a card is not recognised by a mask.
_CUTS = tuple(map(re.compile, (r"[A-Za-z0-9_.+/=~@%-]{1,512}", r"[0-9 -]{1,40}")))


_FAR = 600


def _split(text: str) -> int:
    """How many characters at the begin of what was cut off there may be the rest of a key or a number."""
    return max(found.end() if (found := one.match(text)) else 0 for one in _CUTS)


def _begin(text: str) -> str:
    """`text`, whose end was cut off, without what may be a part of a key or a number."""
    return text[: len(text) - _split(text[:-_FAR:-1])]


def _bounded(name: str) -> str:
    return name if len(name) <= _MOST_OF_NAME else _begin(name[:_MOST_OF_NAME])


def _size(name: str | None) -> int:
    return 0 if name is None else len(name.encode("utf-8", "replace"))


class Prompt(Struct):
    """others: the rest of it that is not text, as in questions to guards. cut: texts, or the begin of one, are
    missing."""

    texts: list[Shown]
    others: list[str]
    cut: bool = False


class Answer(Struct):
    """The reply. finish: why each choice ended. complete: it came to its end. cut: texts, or the end of one, are
    missing."""

    texts: list[Shown]
    finish: list[str]
    complete: bool = False
    cut: bool = False


class Line(Struct, kw_only=True, omit_defaults=True):
    """The line of one request. by: the rule that chose it, or `key`. duration_ms, outcome, code and usage are those of
    its record; a member that is None is not written. masked: how many texts were masked."""

    time: Moment
    id: str
    by: str
    key: str
    team: str | None = None
    dialect: str
    operation: str
    model: str
    stream: bool
    status: int
    outcome: str
    code: str | None = None
    duration_ms: float
    trace: str | None = None
    usage: Usage | None = None
    prompt: Prompt
    reply: Answer | None = None
    masked: int = always(0)


class ReplyTexts:
    """The texts of one reply, up to `most` bytes. whole: it came at once."""

    def __init__(self, most: int, whole: bool = False) -> None:
        self.whole = self.complete = whole
        self.cut = False
        self._cut_at: set[tuple[int, int]] = set()
        self.finishes: dict[int, str] = {}
        self.left = most
        self._parts: dict[tuple[int, int], tuple[PartStart, bytearray]] = {}
        self._begun: dict[tuple[int, int], PartStart] = {}

    def take(self, event: Event) -> None:
        if type(event) is Delta:
            if event.text:
                self._add((event.choice, event.index), event.text)
        elif type(event) is PartStart:
            key = event.choice, event.index
            if len(self._begun) < _MOST_BEGUN:
                self._begun[key] = replace(event, call_id=None, name=event.name and _bounded(event.name))
            if event.kind == "tool":
                self._add(key, "")
        elif type(event) is Finish:
            self.finishes[event.choice] = event.reason
        elif type(event) is End:
            self.complete = True

    def _add(self, key: tuple[int, int], text: str) -> None:
        part = self._parts.get(key)
        if part is None:
            begun = self._begun.pop(key, None)
            if begun is None or self.left <= (takes := PART + _size(begun.name)):
                self.cut = True
                return
            self.left -= takes
            part = self._parts[key] = begun, bytearray()
        data = text[: self.left].encode("utf-8", "replace")
        if len(text) > self.left or len(data) > self.left:
            self.cut, data = True, data[: self.left]
            self._cut_at.add(key)
        part[1].extend(data)
        self.left -= len(data)

    @property
    def begun(self) -> bool:
        return bool(self._parts)

    def texts(self) -> list[Shown]:
        """In the order of `core.lifecycle.fold`."""
        found = []
        for key, (begun, data) in sorted(self._parts.items(), key=lambda one: one[0][0]):
            text, choice = data.decode("utf-8", "ignore"), key[0]
            if key in self._cut_at:
                text = _begin(text)
            if begun.kind == "tool":
                found.append(called(begun.name, text, choice=choice))
            else:
                found.append(Shown("assistant", text, begun.kind, begun.name, choice))
        return found


def whole_texts(reply: Reply, most: int) -> ReplyTexts:
    """A reply that came at once."""
    texts = ReplyTexts(most, whole=True)
    for choice in reply.choices:
        for index, part in enumerate(choice.parts):
            texts.take(PartStart(choice.index, index, part.kind, part.call_id, part.name))
            texts.take(Delta(choice.index, index, part.text))
        texts.finishes[choice.index] = choice.reason
    return texts


class Entry:
    """by: why it is logged. dialect: the client's, as it is without the log. most: bytes of the prompt, and of the
    reply."""

    def __init__(self, by: str, dialect: Dialect, most: int) -> None:
        self.by = by
        self.dialect = dialect
        self.most = most
        self.reserved = 0
        self.model = ""
        self.reply: ReplyTexts | None = None
        self.time = Moment(0.0)
        self.record: RequestRecord | None = None
        self.context: Headers = []
        self._texts: list[tuple[Shown, bytes]] = []
        self._others: list[str] = []
        self._took = 0
        self._cut = False

    def ask(self, op: Guarded, model: str) -> None:
        """A model is asked this, and a rule is for it: one that answers in its place may be none of the rule's. The
        texts are kept from the last one back: a long conversation repeats what was logged before."""
        self.model = model
        texts: list[tuple[int, Shown, bytes]] = []
        shown, left, self._cut, self._others = texts_of(op), self.most, False, []
        for name in map(_bounded, unshown(op)[:_MOST_OTHERS]):
            if (left := left - PART - _size(name)) < self.most // 2:
                self._cut = True
                break
            self._others.append(name)
        order = sorted(range(len(shown)), key=lambda index: (shown[index].role in _AFTER, -index))
        for index in order:
            one = shown[index]
            one.name = one.name and _bounded(one.name)
            takes = PART + _size(one.name)
            if left <= takes:
                self._cut = True
                break
            left -= takes
            data = one.text[-left:].encode("utf-8", "replace")
            if len(one.text) > left or len(data) > left:
                self._cut = True
                text = data[-left:].decode("utf-8", "ignore")
                data = text[_split(text) :].encode()
            left -= len(data)
            one.text = ""
            texts.append((index, one, data))
        self._texts = [(one, data) for _, one, data in sorted(texts, key=lambda each: each[0])]
        self._took = self.most - left

    def forget_reply(self) -> None:
        """The reply so far reaches nobody."""
        self.reply = None

    def end(self, record: RequestRecord, context: Headers) -> None:
        """The record of the request is complete. context: names its trace, if that is recorded."""
        self.time, self.record, self.context = Moment(time.time()), record, context
        if self.reply is not None and self.reply.whole and record.outcome != "ok":
            self.reply = None  # a guard has refused it

    @property
    def size(self) -> int:
        """About the bytes of memory that it takes."""
        return self._took + (0 if self.reply is None else self.most - self.reply.left)

    def line(self) -> Line:
        """The line that will be written, not masked yet."""
        record, found = self.record, self.reply
        assert record is not None
        prompt = Prompt([_with(one, data) for one, data in self._texts], list(self._others), self._cut)
        reply = None
        if found is not None and (found.complete or found.begun):
            finish = [reason for _, reason in sorted(found.finishes.items())]
            reply = Answer(found.texts(), finish, found.complete, found.cut)
        same: Any = {name: getattr(record, name) for name in _SAME}
        return Line(time=self.time, by=self.by, model=self.model, prompt=prompt, reply=reply, **same)


_SAME = (
    *("id", "key", "team", "dialect", "operation", "stream"),
    *("status", "outcome", "code", "duration_ms", "trace", "usage"),
)
"""Members of a line that are those of the request's record."""


def _with(shown: Shown, data: bytes) -> Shown:
    shown.text = data.decode()
    return shown
