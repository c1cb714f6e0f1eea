"""What a worker is sent for one operation."""

from __future__ import annotations

from gateway.core import totals
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, Request, Response
from gateway.core.messages import Complete, Op
from gateway.core.ports import Counting, WorkerHandle
from gateway.pipeline.models import ServedModel
from gateway.pipeline.offload import offload
from gateway.pipeline.request_ids import worker_request_id


class Outgoing:
    """The request to a worker, the same for every worker that is tried.

    It is written once. Only where the client limits prompt and output together, it is written again when the first
    worker has told the prompt's length (core/totals.py).

    request     for a worker, once `write` was called, and unless `unmeasured`
    unmeasured  a worker must be asked for the prompt's length first: see `measure`
    large       writing takes milliseconds, so it is to be done in a thread
    context     headers that tell workers of the client's trace; `carry` exchanges them
    """

    request: Request

    def __init__(self, op: Op, served: ServedModel, request_id: str, large: bool, context: Headers) -> None:
        self.op = op
        self.served = served
        self.unmeasured = False
        self.large = large
        self._request_id = request_id
        self._counting: Counting | None = None
        self._context = context

    def write(self) -> None:
        """Raises GatewayError(UNSUPPORTED) for what these workers cannot do."""
        self._write(totals.without(self.op))

    def check(self) -> None:
        """Raises GatewayError(UNSUPPORTED) if the model does not offer this operation, or its workers cannot tell the
        length of a prompt that must be known."""
        op, served = self.op, self.served
        if served.paths is not None and self.request.path not in served.paths:
            raise GatewayError(Kind.UNSUPPORTED, "this model does not offer this operation", code="beyond_model")
        counting = self._counting = totals.length_request(op, served.backend, served.can)
        if counting is not None:
            self.unmeasured = True
            self._address(counting.request)

    async def measure(self, worker: WorkerHandle, max_reply_bytes: int) -> None:
        """Asks `worker` for the prompt's length and writes the request that fits it. Raises GatewayError: what sending
        raises, and BAD_REQUEST where the totals leave nothing to generate."""
        counting, op, served = self._counting, self.op, self.served
        assert counting is not None
        assert isinstance(op, Complete)  # no other has totals
        exchange = await served.transport.send(counting.request, worker.address, served.deadlines)
        try:
            body = await exchange.body(max_reply_bytes)
        finally:
            exchange.close()
        length = counting.read(Response(exchange.status, exchange.headers, body))
        totals.apply_prompt_length(op, length)
        self.unmeasured = False
        await offload(self._write, op) if self.large else self._write(op)

    def carry(self, context: Headers) -> None:
        """From now on the request carries these headers of a trace, instead of those before."""
        request = self.request
        request.headers = [*request.headers[: len(request.headers) - len(self._context)], *context]
        self._context = context

    def _write(self, op: Op) -> None:
        self.request = request = self.served.backend.write(op, self.served.can)
        self._address(request)

    def _address(self, request: Request) -> None:
        served = self.served
        own = (b"x-request-id", worker_request_id(self._request_id))
        # Those of the trace last: `carry` finds them there.
        request.headers = [*request.headers, *served.headers, own, *self._context]
