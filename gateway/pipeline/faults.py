"""What a worker's answer of another status than 200 means."""

from __future__ import annotations

from gateway.core.errors import GatewayError
from gateway.core.http import Response
from gateway.core.messages import Op
from gateway.core.ports import Exchange, WorkerHandle
from gateway.pipeline.models import ServedModel
from gateway.pipeline.outgoing import Outgoing

_MOST_BYTES = 1 << 20
"""Of an answer that is an error."""


async def fault_of(exchange: Exchange, served: ServedModel, op: Op | None = None) -> GatewayError:
    """The error that the worker's answer to `op` is. Raises GatewayError if it does not come whole."""
    body = await exchange.body(_MOST_BYTES)
    return served.backend.fault(Response(exchange.status, exchange.headers, body), op)


async def whole_answer(outgoing: Outgoing, worker: WorkerHandle, most_bytes: int) -> Response:
    """What `worker` answers to the request. Raises GatewayError for any status but 200, and what sending raises."""
    served = outgoing.served
    exchange = await served.transport.send(outgoing.request, worker.address, outgoing.deadlines)
    try:
        if exchange.status != 200:
            raise await fault_of(exchange, served, outgoing.op)
        return Response(exchange.status, exchange.headers, await exchange.body(most_bytes))
    finally:
        exchange.close()
