"""The requests under way, the last that have ended, and the refusals of the last minutes: for the page, and for admins
who end a request.

A request that has ended leaves its record here, which holds no text of a prompt or a reply. The memory for all of it is
bounded, whatever clients send.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nlargest
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct

from gateway.background import in_turns
from gateway.core.errors import GatewayError, Kind
from gateway.core.figures import milliseconds
from gateway.core.ports import RequestRecord
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.observe.process_group import ProcessGroup

T = TypeVar("T")

MOST = 500
"""Requests that are shown of each kind at most: under way, and ended. As many that have ended are kept."""
_TURN = 100
"""Requests that are looked at before the event loop has its turn."""
_LONGEST_MATCH = 200
_SLICE_S, _SLICES = 30, 10
"""Refusals are counted for five minutes."""
_MOST_REFUSALS, _MOST_ROWS = 1_000, 200
"""Kinds of refusals that are counted apart in a slice of time, and those that are shown."""

ENDED_BY_ADMIN = "ended_by_admin"
"""The code of the error that a client gets whose request an admin has ended."""

_Refusal = tuple[str, str | None, str]
_encode = msgspec.json.Encoder().encode


class RequestView(Struct, omit_defaults=True):
    """One request, by the members of `core.ports.RequestRecord`.

    began    Unix seconds
    duration_ms  from its begin to its end, or until now
    stage    how far one under way is: reading, queued, first_output or streaming; "" once it has ended
    outcome  "" while it is under way
    output_tokens  while it is under way, those that its client has been sent
    """

    id: str
    began: float
    duration_ms: float
    dialect: str
    stage: str = ""
    outcome: str = ""
    status: int = 0
    code: str | None = None
    limit: str | None = None
    key: str = ""
    team: str | None = None
    operation: str = ""
    model: str = ""
    asked: str | None = None
    stream: bool = False
    worker: str | None = None
    attempts: int = 0
    queue_ms: float = 0.0
    time_to_first_token_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasons: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    continued: tuple[str, ...] = ()
    not_continued: str | None = None

    def matches(self, text: str) -> bool:
        names = (self.id, self.key, self.team, self.dialect, self.model, self.worker, self.stage, self.outcome)
        return any(text in one.lower() for one in (*names, self.code, self.limit, str(self.status)) if one)


class RefusalCount(Struct):
    """Refused requests of one key. limit: the name of the limit that refused them, else the error's code."""

    key: str
    team: str | None
    limit: str
    requests: int


class Requests(Struct):
    """under_way and ended: the newest first. others, older: how many of each are left out. refusals: of the last five
    minutes, the most frequent first."""

    under_way: Sequence[RequestView]
    ended: Sequence[RequestView]
    refusals: Sequence[RefusalCount]
    others: int = 0
    older: int = 0


class _Question(Struct):
    """A question of one process of a group to another. text: what is looked for, or an id. teams, limit: as for
    `listed` and `end`."""

    what: Literal["list", "teams", "end"]
    text: str
    teams: Sequence[str | None] | None = ()
    limit: int = MOST


_teams_decoder = msgspec.json.Decoder(list[str | None])
_requests_decoder = msgspec.json.Decoder(Requests)
_question_decoder = msgspec.json.Decoder(_Question)


class RecentRequests(Feature):
    """Keeps the requests of this process. clock: Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._under_way: dict[Call, float] = {}  # when each began
        self._ended: deque[tuple[float, RequestRecord]] = deque(maxlen=MOST)
        self._refusals: deque[tuple[int, Counter[_Refusal]]] = deque(maxlen=_SLICES)

    def around_request(self, inner: Step) -> Step:
        async def request(call: Call) -> None:
            self._under_way[call] = self._clock()
            try:
                await inner(call)
            finally:
                record = call.record
                self._ended.append((self._under_way.pop(call), record))
                if record.outcome == "refused":
                    self._count(record)

        return request

    def _count(self, record: RequestRecord) -> None:
        slice_ = int(self._clock() // _SLICE_S)
        if not self._refusals or self._refusals[-1][0] != slice_:
            self._refusals.append((slice_, Counter()))
        counts = self._refusals[-1][1]
        refusal = record.key, record.team, record.limit or record.code or str(record.status)
        counts[refusal if refusal in counts or len(counts) < _MOST_REFUSALS else ("", None, "others")] += 1

    async def listed(self, match: str, teams: Collection[str | None] | None = None, limit: int = MOST) -> Requests:
        """Those that have the text `match` in a name, an id or a state; of one that has ended, all that is known. Those
        of `teams` alone, unless that is None. limit: the most of each kind."""
        now, text = self._clock(), match[:_LONGEST_MATCH].lower()
        calls = [one for one in reversed(self._under_way.items()) if teams is None or one[0].record.team in teams]
        past = [one for one in reversed(self._ended) if teams is None or one[1].team in teams]
        running, others = await _first(
            calls, lambda one: _view(one[0].record, one[1], (now - one[1]) * 1000, one[0]), text, limit
        )
        ended, older = await _first(past, lambda one: _view(one[1], one[0], one[1].duration_ms), text, limit)
        return Requests(running, ended, self._refused(now, teams), others, older)

    def _refused(self, now: float, teams: Collection[str | None] | None) -> Sequence[RefusalCount]:
        counts: Counter[_Refusal] = Counter()
        for slice_, some in self._refusals:
            if slice_ > now // _SLICE_S - _SLICES:
                counts.update({one: count for one, count in some.items() if teams is None or one[1] in teams})
        return _counted(counts)

    def teams(self, id_: str) -> set[str | None]:
        """The teams of the requests under way that have this id. Clients may give the id, and give one twice."""
        return {call.record.team for call in self._under_way if call.record.id == id_}

    def end(self, id_: str, teams: Collection[str | None]) -> None:
        """Ends those of the requests under way that have this id and are of one of `teams`."""
        for call in [*self._under_way]:
            if call.record.id == id_ and call.record.team in teams:
                error = GatewayError(Kind.FORBIDDEN, "an operator has ended this request", code=ENDED_BY_ADMIN)
                call.interrupt(error)


class AllRequests:
    """Those of all processes that share an address; `own` are those of this one. Implements features.AllRequests."""

    def __init__(self, own: RecentRequests, group: ProcessGroup | None) -> None:
        self._own = own
        self._group = group

    async def answer(self, question: bytes) -> bytes:
        """The answer to another process of the group."""
        asked = _question_decoder.decode(question)
        if asked.what == "list":
            return _encode(await self._own.listed(asked.text, asked.teams, asked.limit))
        if asked.what == "end":
            self._own.end(asked.text, asked.teams or ())
        return _encode(self._own.teams(asked.text))

    async def listed(self, match: str, teams: Collection[str | None] | None = None, limit: int = MOST) -> Requests:
        """As `RecentRequests.listed`."""
        found = [await self._own.listed(match, teams, limit)]
        asked = _Question("list", match[:_LONGEST_MATCH], None if teams is None else [*teams], limit)
        for data in await self._ask(asked):
            with contextlib.suppress(msgspec.DecodeError):  # of a process that ends while it answers
                found.append(_requests_decoder.decode(data))
        return found[0] if len(found) == 1 else _together(found, limit)

    async def teams(self, id_: str) -> set[str | None]:
        found = self._own.teams(id_)
        for data in await self._ask(_Question("teams", id_)):
            with contextlib.suppress(msgspec.DecodeError):
                found.update(_teams_decoder.decode(data))
        return found

    async def end(self, id_: str, teams: Collection[str | None]) -> None:
        self._own.end(id_, teams)
        await self._ask(_Question("end", id_, [*teams]))

    async def _ask(self, question: _Question) -> Sequence[bytes]:
        return () if self._group is None else await self._group.ask(b"requests " + _encode(question))


async def _first(
    some: Sequence[T], view: Callable[[T], RequestView], text: str, limit: int
) -> tuple[Sequence[RequestView], int]:
    """Views of the first `limit` that have `text`, and how many more have it."""
    if not text:
        return [view(one) for one in some[:limit]], max(0, len(some) - limit)
    found: list[RequestView] = []
    more = 0
    async for one in in_turns(some, _TURN):
        shown = view(one)
        if not shown.matches(text):
            continue
        if len(found) < limit:
            found.append(shown)
        else:
            more += 1
    return found, more


def _view(record: RequestRecord, began: float, ms: float, call: Call | None = None) -> RequestView:
    view = RequestView(
        record.id,
        round(began, 3),
        round(ms, 1),
        record.dialect,
        key=record.key,
        team=record.team,
        operation=record.operation,
        model=record.model,
        asked=record.asked,
        stream=record.stream,
        worker=record.worker,
        attempts=record.attempts,
        queue_ms=round(record.queue_ms, 1),
        time_to_first_token_ms=record.time_to_first_token_ms,
        reasons=() if record.reasons is UNSET else record.reasons,
        moved=record.moved,
        continued=record.continued,
        not_continued=record.not_continued,
        limit=record.limit,
    )
    if call is not None:
        view.stage, stream = call.phase, call.reply.stream
        if stream is not None and stream.first_output_at is not None and view.time_to_first_token_ms is None:
            view.stage, view.time_to_first_token_ms = "streaming", milliseconds(stream.first_output_at - call.began)
        view.output_tokens = None if call.lane is None else call.lane.produced
        return view
    view.outcome, view.status, view.code = record.outcome, record.status, record.code
    if record.usage is not None:
        view.input_tokens, view.output_tokens = record.usage.input, record.usage.output
    return view


def _together(found: Sequence[Requests], limit: int) -> Requests:
    counts: Counter[_Refusal] = Counter()
    for one in (row for each in found for row in each.refusals):
        counts[one.key, one.team, one.limit] += one.requests
    under_way = _newest(limit, (view for each in found for view in each.under_way))
    ended = _newest(limit, (view for each in found for view in each.ended))
    others = sum(len(each.under_way) + each.others for each in found) - len(under_way)
    older = sum(len(each.ended) + each.older for each in found) - len(ended)
    return Requests(under_way, ended, _counted(counts), others, older)


def _newest(limit: int, views: Iterable[RequestView]) -> Sequence[RequestView]:
    return nlargest(limit, views, key=lambda one: one.began)


def _counted(counts: Counter[_Refusal]) -> Sequence[RefusalCount]:
    return [RefusalCount(*refusal, count) for refusal, count in counts.most_common(_MOST_ROWS)]
