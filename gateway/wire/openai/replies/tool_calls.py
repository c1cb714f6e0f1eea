"""Assigns streamed pieces of tool calls to their calls, also for servers that do not index them as OpenAI does."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from gateway.core.events import Reason
from gateway.wire.openai.replies.excess import MOST_CALLS
from gateway.wire.openai.replies.views import ToolCallIn, malformed

# The most characters of arguments that are held back: `null`, with white space.
_NONE_MOST = 64


class Call(Struct):
    """A tool call in progress. part is its index among the parts or the calls of a choice, as the caller counts; id and
    name are the worker's."""

    part: int
    id: str | None
    name: str | None
    _released: bool = False
    _held: str = ""

    def next(self, text: str) -> str:
        """As much of the arguments as the client gets now that `text` came: nothing while they may become `null`."""
        if self._released:
            return text
        text = self._held + text
        if len(text) <= _NONE_MOST and "null".startswith(text.strip()):
            self._held = text
            return ""
        self._released, self._held = True, ""
        return text

    def rest(self, cut: bool) -> str:
        """The arguments that are missing as the call ends. A call without any, or with null, has an empty object, which
        every client can read, but for a call that was cut."""
        if self._released:
            return ""
        held, self._released = self._held, True
        empty = held.strip() in ("", "null")
        return ("" if cut else "{}") if empty else held


class Calls(Struct):
    """The tool calls of one choice, in the order in which they began."""

    begun: list[Call] = []
    # The worker's index -> the last call that began with it.
    _last: dict[int, Call] = {}
    # The worker's id -> the first call that began with it.
    _of_id: dict[str, Call] = {}

    def begin(self, piece: ToolCallIn, position: int, part: int) -> Call:
        """Starts a call with `piece`. position: the index of the piece in its chunk. Raises GatewayError if the choice
        has MOST_CALLS already."""
        if len(self.begun) == MOST_CALLS:
            raise malformed()
        call = Call(part, piece.id or None, piece.function.name if piece.function is not None else None)
        self._last[piece.index if piece.index is not None else position] = call
        if call.id is not None:
            self._of_id.setdefault(call.id, call)
        self.begun.append(call)
        return call

    def continued(self, piece: ToolCallIn, position: int | None) -> Call | None:
        """The call that a streamed piece continues, or None if it begins one. position: the index of the piece among
        several that came together.

        Some servers do not index their calls: the index is missing, or 0 for all of them (Gemini, LMDeploy). Then a
        piece with an id and a name, or without ids a name, begins a call. An id alone does not: some servers send a new
        id with every piece.
        """
        number = piece.index if piece.index is not None else position
        known = self._last.get(number) if number is not None else self.begun[-1] if self.begun else None
        name = piece.function.name if piece.function is not None else None
        if piece.id and (known is None or known.id != piece.id) and (known is not None or piece.index is None):
            known = self._of_id.get(piece.id, known)
        if known is None or not name or (piece.id and known.id == piece.id):
            return known
        return known if name == known.name and not (piece.id and known.id) else None

    def rests(self, reason: Reason) -> Iterator[tuple[Call, str]]:
        """Each call, with the arguments that it lacks as the choice ends for `reason`. If the choice was cut, only its
        last call was."""
        cut = is_cut(reason)
        for call in self.begun:
            yield call, call.rest(cut and call is self.begun[-1])


def is_cut(reason: Reason) -> bool:
    """Whether a choice that ended for `reason` may lack something."""
    return reason not in ("stop", "tool_calls")
