"""The request that workers get for one operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, cast

from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, Request
from gateway.core.lifecycle import Detokenized, TokenCount, Tokens
from gateway.core.messages import QUESTIONS, Chat, Complete, Op, Question
from gateway.core.ports import Ask, Partial, Resumption
from gateway.kernel.models import ServedModel
from gateway.kernel.request_ids import worker_request_id
from gateway.kernel.visit import Visit
from gateway.offload import Share, run_step
from gateway.translation import totals
from gateway.translation.ability import write_possible
from gateway.translation.whole import ask
from gateway.wire.json import renamed


class Finish(Protocol):
    """Changes a request as it was written. names: members of its body -> what workers call them."""

    @property
    def names(self) -> Mapping[str, str]: ...
    def __call__(self, request: Request) -> None: ...


class Outgoing:
    """The request to a worker, the same for every worker that is tried.

    It is written once. Only where prompt and output together are limited, it is written again when the first worker has
    counted the prompt (translation/totals.py).

    request     for a worker, once `write` was called, and unless `unmeasured`
    deadlines   of each attempt; the model's, unless they are changed for this request
    unmeasured  a worker must be asked for the prompt's length first: see `measure`
    question    reads the answer to `request`; None if the worker's model has to answer the operation
    share       of the thread's time, if writing takes milliseconds; else None
    finish      changes each request as it was written; None if no feature does
    context     headers that carry the client's trace to workers; `carry` exchanges them
    """

    request: Request
    question: Ask[TokenCount | Tokens | Detokenized] | None = None
    finish: Finish | None = None

    def __init__(self, served: ServedModel, request_id: str, share: Share | None, context: Headers) -> None:
        self.served = served
        self.unmeasured = False
        self.share = share
        self.deadlines = served.deadlines
        self._request_id = request_id
        self._counting: Ask[TokenCount] | None = None
        self._context = context

    def write(self, op: Op, estimate: Callable[[Op], int], grown: bool = False) -> tuple[str, ...]:
        """Writes the request for `op`. Returns the names of what the model's context does not allow, as far as that is
        known before a worker is asked. estimate: tokens of a prompt; grown: more was added to it here.

        Raises GatewayError(UNSUPPORTED) for what these workers cannot do, if the model does not offer this operation,
        and if its workers cannot count a prompt whose length must be known."""
        served = self.served
        if type(op) in QUESTIONS:
            self.question = ask(cast("Question", op), served.backend, served.can)
            self.request = self.question.request
            self._address(self.request)
        else:
            self.write_part(totals.first_request(op))
        if served.paths is not None:
            self._check_path(self.request)
        if type(op) is Chat and not op.fit_output:
            return ()
        self._guess = guess = estimate(op) if type(op) is Chat else 0
        self._grown = grown
        counting = self._counting = totals.length_request(op, served.backend, served.can, guess)
        if counting is not None and isinstance(op, Chat) and not self._may_call(counting.request):
            counting = None  # the estimate has to do
        if counting is not None:
            self._check_path(counting.request)
            self.unmeasured = True
            self._address(counting.request)
            return ()
        cut = totals.apply_estimate(op, guess, served.can, grown)
        if cut:
            self.write_part(op)
        return cut

    async def measure(self, visit: Visit, op: Op, max_reply_bytes: int) -> tuple[str, ...]:
        """Asks the visited worker for the length of the prompt of `op`, and writes the request that fits it.

        Returns the names of what the model's context does not allow. Raises GatewayError: what sending raises;
        BAD_REQUEST if the totals leave nothing to generate, CONTEXT_LENGTH if the context leaves nothing."""
        counting, served = self._counting, self.served
        assert counting is not None
        assert isinstance(op, (Chat, Complete))  # no other has limits on prompt and output
        response = await visit.ask(counting.request, self.deadlines, max_reply_bytes)
        try:
            length = counting.read(response).tokens
        except GatewayError as error:
            if error.kind is not Kind.UNSUPPORTED or not isinstance(op, Chat):
                raise
            # This worker cannot count: it checks itself whether a client's prompt fits.
            cut = totals.apply_estimate(op, self._guess, served.can, True) if self._grown else ()
        else:
            cut = totals.apply_prompt_length(op, length, served.can)
        self.unmeasured = False
        await run_step(self.share, self.write_part, totals.first_request(op))
        return cut

    def _may_call(self, request: Request) -> bool:
        return self.served.paths is None or request.path in self.served.paths

    def _check_path(self, request: Request) -> None:
        if not self._may_call(request):
            raise GatewayError(Kind.UNSUPPORTED, "this model does not offer this operation", code="beyond_model")

    def resume(self, partial: Partial) -> Resumption | str:
        """As `Backend.resume`: the backend knows members by its own names."""
        names, resume = {} if self.finish is None else self.finish.names, self.served.backend.resume
        if not names:
            return resume(self.request, partial)
        own = {new: name for name, new in names.items()}
        found = resume(replace(self.request, body=renamed(self.request.body, own)), partial)
        if not isinstance(found, str):
            found.request.body = renamed(found.request.body, names)
        return found

    def forget(self) -> None:
        """The request is sent for the last time: its body is not kept."""
        self.request.body, self.request.upload = b"", None

    def carry(self, context: Headers) -> None:
        """Replaces the request's trace headers by these."""
        request = self.request
        request.headers = [*request.headers[: len(request.headers) - len(self._context)], *context]
        self._context = context

    def write_part(self, op: Op) -> None:
        """Writes the request for `op`, which asks for one part of the reply or for all of it."""
        self.request = request = write_possible(self.served.backend, op, self.served.can)
        self._address(request)

    def _address(self, request: Request) -> None:
        if self.finish is not None:
            self.finish(request)
        # The trace's headers are the last: `carry` replaces them there.
        request.headers = [
            *request.headers,
            *self.served.headers,
            (b"x-request-id", worker_request_id(self._request_id)),
            *self._context,
        ]
