"""The base of all dialects: the defaults that most of them share, and a hook for every kind of whole reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NoReturn

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, body_members, ignored_members
from gateway.core.http import Request, Response
from gateway.core.lifecycle import Detokenized, Embeddings, Reply, Scores, TokenCount, Tokens, WholeReply
from gateway.core.messages import (
    AnsweredFromStore,
    Chat,
    Complete,
    Extra,
    Generate,
    KindOfServerTool,
    ListModels,
    ModelCard,
    Op,
)
from gateway.core.ports import Dialect, StreamWriter
from gateway.wire.json import made_whole, members, require_json, settle_unknown
from gateway.wire.openai.replies import refusals
from gateway.wire.openai.requests.constraints import CONSTRAINTS

Errors = Mapping[Kind, tuple[int, str, str]]
"""Kind -> (status, type, code), with a row for every Kind."""


Answered = Callable[[Request], ListModels | AnsweredFromStore]
"""Reads a request that the gateway answers without a worker. Raises GatewayError, NeedsStored."""


def _never(*_: object) -> NoReturn:
    raise TypeError("no request of this API leads to such a reply")


def listing(write: Callable[[Sequence[ModelCard]], Response], one: bool = False) -> Answered:
    """Reads a request for a list of models, or for a probe, whose reply `write` makes. A path may name the model. one:
    see `ListModels`."""
    return lambda request: ListModels(write=write, model=request.params.get("model"), one=one)


class Api(Dialect):
    """One client-side API. By default it drops unknown fields, has OpenAI's errors, takes keys behind `Bearer`, and has
    no passthrough lane.

    runs     the server tools that the gateway runs; configuration says so
    unknown  the kind of a refusal of unknown fields
    answered  route of what the gateway answers without a worker -> what reads its requests
    any_type  bodies are JSON whatever their content type says
    known    operation -> the names of the top-level members in its table of fields
    ignored  operation -> those of them that are accepted and reported as dropped

    The hook `read_body` reads what has a body, `refusal` writes errors. The hooks `write_...` and `writer` are for the
    replies that `read` can ask for. The others raise TypeError.
    """

    extras: ExtrasPolicy = "drop"
    runs: frozenset[KindOfServerTool] = frozenset()
    unknown: Kind = Kind.BAD_REQUEST
    errors: Errors = refusals.ERRORS
    answered: Mapping[str, Answered] = {}
    any_type = False
    known: ClassVar[Mapping[str, frozenset[str]]]
    ignored: ClassVar[Mapping[str, Sequence[str]]]
    write_reply: Callable[[Reply, Generate], Response] = staticmethod(_never)
    write_embeddings: Callable[[Embeddings, Op], Response] = staticmethod(_never)
    write_count: Callable[[TokenCount], Response] = staticmethod(_never)
    write_scores: Callable[[Scores, Op], Response] = staticmethod(_never)
    write_tokens: Callable[[Tokens], Response] = staticmethod(_never)
    write_text: Callable[[Detokenized], Response] = staticmethod(_never)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.known, cls.ignored = body_members(cls.fields), ignored_members(cls.fields)

    def settle(self, raw: Extra, operation: str) -> tuple[Extra, tuple[str, ...]]:
        """(the members of `raw` without a row in the table, as far as they are kept; the names of dropped and ignored
        members). See `settle_unknown`."""
        extra: Extra = {}
        dropped: tuple[str, ...] = ()
        known, ignored = self.known[operation], self.ignored[operation]
        if not known.issuperset(raw):
            binding = CONSTRAINTS.get(operation, ())
            extra, dropped = settle_unknown(raw, known, self.extras, kind=self.unknown, binding=binding)
        return extra, (*dropped, *[name for name in ignored if name in raw]) if ignored else dropped

    def read(self, request: Request) -> Op | ListModels | AnsweredFromStore:
        try:
            return self.read_once(request)
        except GatewayError as error:
            if not made_whole(request, error):
                raise
        return self.read_once(request)

    def read_once(self, request: Request) -> Op | ListModels | AnsweredFromStore:
        """As `read`, but `100.0` is not an integer."""
        self.accompany(request)
        answer = self.answered.get(request.route)
        if answer is not None:
            return answer(request)
        if not self.any_type:
            require_json(request)
        return self.read_body(request, members(request))

    def accompany(self, request: Request) -> None:
        """Sets the headers that every reply to `request` carries."""

    def read_body(self, request: Request, raw: Extra) -> Op | ListModels:
        """raw: the members of the body."""
        raise NotImplementedError

    def write(self, reply: WholeReply, op: Op) -> Response:
        match reply:
            case Reply():
                assert isinstance(op, (Chat, Complete))
                return self.write_reply(reply, op)
            case Embeddings():
                return self.write_embeddings(reply, op)
            case TokenCount():
                return self.write_count(reply)
            case Scores():
                return self.write_scores(reply, op)
            case Tokens():
                return self.write_tokens(reply)
            case Detokenized():
                return self.write_text(reply)

    def writer(self, op: Generate) -> StreamWriter:
        _never()

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        if request is not None:
            self.accompany(request)
        return self.refusal(error, request, op)

    @staticmethod
    def refusal(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        """As `refuse`."""
        return refusals.refusal(error)
