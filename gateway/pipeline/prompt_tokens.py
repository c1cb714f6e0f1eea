"""Asks a worker for the tokens of a prompt, before one is picked for it, where engines tell what they have cached."""

from __future__ import annotations

from gateway.core.demand import Demand
from gateway.core.errors import GatewayError
from gateway.core.http import Response
from gateway.core.lifecycle import Tokens, WholeReply
from gateway.core.messages import Audio, Chat, Complete, Image, Op, Opaque, Tokenize
from gateway.core.ports import Ask, Deadlines, RequestRecord
from gateway.pipeline.models import ServedModel
from gateway.pipeline.offload import offload
from gateway.pipeline.runtime import Runtime
from gateway.pipeline.timing import milliseconds

_LONGEST_S = 0.5
"""Until the tokens' head comes, and between two pieces of them. After it the pick goes by what workers were sent."""
_MAX_BYTES = 16 << 20
_MEDIA = (Image, Audio, Opaque)
_READ = ("chat_template_kwargs",)
"""Members without a canonical name that a chat template reads."""


async def ask_tokens(
    op: Op, served: ServedModel, demand: Demand, runtime: Runtime, record: RequestRecord, large: bool
) -> None:
    """Writes into `demand` the tokens of its prompt, if a worker tells them in time. Nothing is asked of prompts too
    short for a pick by their beginning, of sessions, and of what a text does not say: images, salts of the client's."""
    silent = served.pool.silent
    if (
        silent is None
        or not demand.keys
        or demand.session is not None
        or not isinstance(op, (Chat, Complete))
        or _salted(op)
    ):
        return
    first = op.prompts[0] if isinstance(op, Complete) else ""
    if not isinstance(first, str):
        demand.tokens, demand.salt = first, op.salt
        return
    if isinstance(op, Chat) and any(isinstance(part, _MEDIA) for message in op.messages for part in message.parts):
        return
    try:
        prompt = op if isinstance(op, Chat) else first
        ask = await offload(_question, op, prompt, served) if large else _question(op, prompt, served)
        worker = served.pool.lend(silent)
    except GatewayError as error:  # these workers cannot tell, or there is none now: the attempts will say so
        error.release_frames()
        return
    generation, began = worker.generation, runtime.clock()
    deadlines = Deadlines(min(_LONGEST_S, served.deadlines.connect), _LONGEST_S, _LONGEST_S)
    try:
        exchange = await served.transport.send(ask.request, worker.address, deadlines)
        try:
            response = Response(exchange.status, exchange.headers, await exchange.body(_MAX_BYTES))
        finally:
            exchange.close()
        found: WholeReply = await offload(ask.read, response) if large else ask.read(response)
    except GatewayError as error:
        error.release_frames()
        # Whether it is ill, requests tell: this answer may be late only because it has much to read.
        served.pool.abandoned(worker, generation)
    except BaseException:
        served.pool.abandoned(worker, generation)
        raise
    else:
        served.pool.succeeded(worker, generation)
        assert isinstance(found, Tokens)
        demand.tokens, demand.salt = found.tokens, op.salt
    finally:
        record.upstream_ms += milliseconds(runtime.clock() - began)


def _question(op: Chat | Complete, prompt: Chat | str, served: ServedModel) -> Ask:
    """Raises GatewayError(UNSUPPORTED) for what these workers cannot tell."""
    extra = {name: op.extra[name] for name in _READ if name in op.extra}
    asked = Tokenize(model=op.model, prompt=prompt, special=isinstance(prompt, str), extra=extra)
    ask = served.backend.tokenize(asked, served.can)
    ask.request.headers = [*ask.request.headers, *served.headers]
    return ask


def _salted(op: Chat | Complete) -> bool:
    """Its client has a salt of its own."""
    return "cache_salt" in op.extra or (op.raw is not None and "cache_salt" in op.raw)
