"""Canonical events to the events of a Responses stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, Event, Finish, PartEnd, PartKind, PartStart, Start
from gateway.core.messages import Citation, Generate, ServerCall
from gateway.dialects._shared.streams import PIECE, EventWriter
from gateway.dialects.responses.compaction import compaction_item
from gateway.dialects.responses.replies import (
    CUT,
    begun_item,
    close,
    content_part,
    error_object,
    no_summary,
    response_object,
    search_item,
    url_citations,
    whole_item,
    write_failure,
)
from gateway.dialects.responses.requests import Asked
from gateway.wire import sse
from gateway.wire.json import encode_line, one_line
from gateway.wire.openai.replies.writing import joined_logprobs, shown

# About how many bytes an item takes in addition to its text.
_ITEM = 1024
_DELTAS: dict[PartKind, str] = {
    "thinking": "response.reasoning_text",
    "text": "response.output_text",
    "refusal": "response.refusal",
    "tool": "response.function_call_arguments",
}
_SUMMARY = "response.reasoning_summary_text"
_CUSTOM = "response.custom_tool_call_input"
_HOLE = b"\0"  # no JSON text has it


class _Item:
    """An item of the running response.

    position       the members that each of its events has: its id and index, and the index of its content, if any
    name           the name of its delta events, without `.delta`
    held           all of its text is sent as one delta
    before, after  the bytes around a delta's text; `after` also takes the event's number
    texts          its text so far
    ended          the worker has ended it
    cited          the annotations of its text
    """

    __slots__ = ("after", "before", "begun", "cited", "ended", "held", "kind", "logprobs", "name", "position", "texts")

    def __init__(self, kind: PartKind, begun: dict[str, Any], index: int, summary: bool) -> None:
        self.kind = kind
        self.begun = begun
        self.held = begun["type"] == "custom_tool_call"
        self.name = _CUSTOM if self.held else _SUMMARY if summary else _DELTAS[kind]
        self.position: dict[str, Any] = {"item_id": begun["id"], "output_index": index}
        if kind != "tool":
            self.position["summary_index" if summary else "content_index"] = 0
        head = {"type": f"{self.name}.delta", **self.position}
        self.before = b'event: %b.delta\ndata: %b,"delta":' % (self.name.encode(), encode_line(head)[:-1])
        self.after = b',"logprobs":[],"sequence_number":%d}\n\n' if kind == "text" else b',"sequence_number":%d}\n\n'
        self.texts: list[str] = []
        self.logprobs: list[Raw] = []
        self.ended = False
        self.cited: list[dict[str, Any]] = []


class StreamWriter(EventWriter):
    """Canonical events to the events of one stream.

    An item is added with its first text (a call at once), so that no item stays empty. Several items may be open at a
    time, but they are finished in order. The last one is finished with the worker's finish reason, which decides its
    status. A summary of the conversation is the one exception: its text is held, and is one item at the end.
    """

    # Behind a cut Codex shows an error of its own and not the one in `response.failed`.
    clean_end = True

    def __init__(self, op: Generate) -> None:
        super().__init__()
        self._op = op
        self._asked = op.facts(Asked)
        self._model = op.model or ""
        # 0 until the first event is sent.
        self._created = self._asked.created
        self._events = self._asked.events
        self._kinds: dict[int, PartKind] = {}
        self._items: dict[int, _Item] = {}
        self._open: list[_Item] = []
        self._added = 0
        self._done: list[bytes] = []
        self._summary: list[str] = []
        self._summarized = False
        self._cut: str | None = None

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            item = self._items.get(event.index)
            if item is None:
                return self._first(event) if event.text else b""
            return self._delta(item, event)
        return self.other(event)

    def started(self, event: Start) -> bytes:
        self._model = shown(self._op, event.model)
        return self._begin(event.created)

    def part_started(self, event: PartStart) -> bytes:
        if event.kind == "tool":
            return self._add(event.index, "tool", event.call_id, event.name)
        self._kinds[event.index] = event.kind
        return b""

    def part_ended(self, event: PartEnd) -> bytes:
        item = self._items.pop(event.index, None)
        if item is not None:
            item.ended = True
        return b""

    def finished(self, event: Finish) -> bytes:
        self._cut = CUT.get(event.reason)
        return self._finish_items(last=True) + self._compaction()

    def keepalive(self) -> bytes:
        """A repeated `response.in_progress`, since idle timers of clients count events. If the response was not begun
        yet, its beginning instead. `Asked` notes what was sent, so that a later writer for the same request does not
        send it again."""
        out = self._begin(int(time.time())) or self._event("response.in_progress", self._under_way())
        self._asked.created, self._asked.events = self._created, self._events
        return out

    # -- events -----------------------------------------------------------------------------------------------------

    def _event(self, name: str, response: bytes) -> bytes:
        number = self._events
        self._events += 1
        kind = name.encode()
        return b'event: %b\ndata: {"type":"%b","response":%b,"sequence_number":%d}\n\n' % (kind, kind, response, number)

    def _frame(self, name: str, members: dict[str, Any]) -> bytes:
        data = {"type": name, **members, "sequence_number": self._events}
        self._events += 1
        return sse.frame(encode_line(data), name.encode())

    def _under_way(self) -> bytes:
        return response_object(self._asked, self._model, self._created, "in_progress", self._done)

    def _begin(self, created: int) -> bytes:
        if not self._created:  # another writer for the same request may have begun it in the meantime
            self._created, self._events = self._asked.created, self._asked.events
        if self._created:
            return b""
        self._created = created
        response = self._under_way()
        return self._event("response.created", response) + self._event("response.in_progress", response)

    # -- items ------------------------------------------------------------------------------------------------------

    def _first(self, event: Delta) -> bytes:
        if self._asked.compacts and self._kinds[event.index] == "text":
            self._summary.append(event.text)
            self.buffered_bytes += len(event.text) + PIECE
            return b""
        kind = self._kinds.pop(event.index)
        return self._add(event.index, kind, None, None) + self._delta(self._items[event.index], event)

    def _add(self, part: int, kind: PartKind, call_id: str | None, name: str | None) -> bytes:
        out = self._finish_items()
        index = self._added
        self._added += 1
        self.buffered_bytes += _ITEM
        summary = kind == "thinking" and self._asked.summary
        begun = begun_item(self._asked, kind, index, call_id, name)
        item = self._items[part] = _Item(kind, begun, index, summary)
        self._open.append(item)
        out += self._frame("response.output_item.added", {"output_index": index, "item": begun})
        if kind != "tool":
            part_of = {"type": "summary_text", "text": ""} if summary else content_part(kind, "", joined_logprobs(()))
            out += self._frame(_part_event(item, "added"), {**item.position, "part": part_of})
        return out

    def _delta(self, item: _Item, event: Delta) -> bytes:
        text = event.text
        if text:
            item.texts.append(text)
            self.buffered_bytes += len(text) + PIECE
        if event.logprobs is not None and item.kind == "text":
            item.logprobs.append(event.logprobs)
            self.buffered_bytes += len(bytes(event.logprobs))
            number = self._events
            self._events += 1
            logprobs = one_line(bytes(event.logprobs))
            return b'%b%b,"logprobs":%b,"sequence_number":%d}\n\n' % (item.before, encode_line(text), logprobs, number)
        if not text or item.held:
            return b""
        number = self._events
        self._events = number + 1
        return item.before + encode_line(text) + item.after % number

    def _finish_items(self, *, last: bool = False) -> bytes:
        """Finishes the items that have ended, in order. last: no further item follows."""
        out = []
        while self._open and self._open[0].ended:
            item = self._open.pop(0)
            cut = last and self._cut is not None and not self._open
            out.append(self._finish_item(item, "incomplete" if cut else "completed"))
        return b"".join(out)

    def _finish_item(self, item: _Item, status: str) -> bytes:
        text = "".join(item.texts)
        self.buffered_bytes -= len(text) + PIECE * len(item.texts)
        # Four objects have them, and they may be megabytes: they are put in last, unread.
        logprobs = Raw(_HOLE) if item.logprobs else joined_logprobs(())
        whole = whole_item(self._asked, item.begun, item.kind, text, logprobs, status, item.cited)
        out = b""
        for index, cited in enumerate(item.cited):
            members = {**item.position, "annotation_index": index, "annotation": cited}
            out += self._frame("response.output_text.annotation.added", members)
        members = item.position.copy()
        match item.kind:
            case "thinking":
                members["text"] = text
            case "text":
                members |= {"text": text, "logprobs": logprobs}
            case "refusal":
                members["refusal"] = text
            case "tool":
                # The raw text of a custom tool is known only now. Missing arguments become an empty object.
                member, sent = ("input", "") if item.held else ("arguments", text)
                members[member] = whole[member]
                if whole[member] != sent:
                    out = self._frame(f"{item.name}.delta", {**item.position, "delta": whole[member]})
                if not item.held:
                    members["name"] = item.begun["name"]
        out += self._frame(f"{item.name}.done", members)
        if item.kind != "tool":
            part = (whole["summary"] if item.name is _SUMMARY else whole["content"])[0]
            out += self._frame(_part_event(item, "done"), {**item.position, "part": part})
        out += self._frame("response.output_item.done", {"output_index": item.position["output_index"], "item": whole})
        done = encode_line(whole)
        if item.logprobs:
            measured = one_line(bytes(joined_logprobs(item.logprobs)))
            out, done = out.replace(_HOLE, measured), done.replace(_HOLE, measured)
        self._done.append(done)
        self.buffered_bytes += len(done)
        return out

    # -- calls of the server's own tools ----------------------------------------------------------------------------

    def called(self, call: ServerCall) -> bytes:
        out = self._finish_items()
        index = self._added
        self._added += 1
        item = search_item(call, "in_progress")
        out += self._frame("response.output_item.added", {"output_index": index, "item": item})
        position = {"item_id": item["id"], "output_index": index}
        out += self._frame("response.web_search_call.in_progress", position)
        return out + self._frame("response.web_search_call.searching", position)

    def returned(self, call: ServerCall) -> bytes:
        item, index = search_item(call), self._added - 1
        out = b""
        if call.error is None:
            position = {"item_id": item["id"], "output_index": index}
            out = self._frame("response.web_search_call.completed", position)
        self._done.append(encode_line(item))
        return out + self._frame("response.output_item.done", {"output_index": index, "item": item})

    # -- ends -------------------------------------------------------------------------------------------------------

    def cite(self, index: int, citations: Sequence[Citation]) -> None:
        item = self._items.get(index)
        if item is not None:
            item.cited = url_citations(citations)

    def _compaction(self) -> bytes:
        """The one item of a summary, which has no pieces. A summary that was cut off is not sent."""
        summary = "".join(self._summary).strip()
        if not summary or self._cut is not None:
            return b""
        index = self._added
        item = compaction_item(self._asked.id, index, summary)
        self._summarized = True
        out = self._frame("response.output_item.added", {"output_index": index, "item": item})
        self._done.append(encode_line(item))
        return out + self._frame("response.output_item.done", {"output_index": index, "item": item})

    def ended(self) -> bytes:
        if self._asked.compacts and not self._summarized and self._cut is None:
            raise no_summary()
        response = close(self._asked, self._op, self._model, self._created, self._done, self.usage, self._cut)
        return self._event("response.completed" if self._cut is None else "response.incomplete", response)

    def failed(self, error: GatewayError) -> bytes:
        """Sends the error twice, because no client reads both: OpenAI's libraries raise at the first event, Codex reads
        the second."""
        out = self._begin(int(time.time()))
        members = error_object(error, None, self._op)
        flat = {"code": members["code"], "message": members["message"], "param": members["param"], "error": members}
        out += self._frame("error", flat)
        failed = write_failure(error, members)
        response = response_object(self._asked, self._model, self._created, "failed", self._done, error=failed)
        return out + self._event("response.failed", response)


class SilentWriter(StreamWriter):
    """The stream of a response without output, whatever the worker makes."""

    def write(self, event: Event) -> bytes:
        return b"" if type(event) in (Delta, PartStart, PartEnd, Finish) else self.other(event)


def writer(op: Generate) -> StreamWriter:
    return SilentWriter(op) if op.facts(Asked).silent else StreamWriter(op)


def _part_event(item: _Item, what: str) -> str:
    return f"response.{'reasoning_summary_part' if item.name is _SUMMARY else 'content_part'}.{what}"
