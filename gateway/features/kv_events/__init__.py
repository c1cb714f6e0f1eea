"""Asks a worker for the tokens of a prompt, before one is picked for it, if engines report what they cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.core.errors import GatewayError
from gateway.core.lifecycle import Detokenized, Tokens
from gateway.core.messages import Audio, Chat, Complete, Image, Opaque, Tokenize
from gateway.core.ports import Ask, Deadlines
from gateway.features import Built, OneModel, Parts
from gateway.fleet.kv_events import Listening
from gateway.fleet.worker import Worker
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.kernel.models import ServedModel
from gateway.kernel.outgoing import Finish
from gateway.kernel.visit import Visit
from gateway.offload import run_step

_LONGEST_S = 0.5
"""Seconds until the head of the worker's reply, and between two pieces of it. Then the pick goes on without tokens."""
_MAX_BYTES = 16 << 20
_MEDIA = (Image, Audio, Opaque)
_READ = ("chat_template_kwargs",)
"""Members without a canonical name that a chat template reads."""


class CacheEvents(Feature):
    """Picks by tokens, for models whose engines publish what they cache."""

    def around_workers(self, inner: Step) -> Step:
        async def workers(call: Call) -> None:
            await ask_tokens(call)
            await inner(call)

        return workers

    def for_adapter(self, pools: Sequence[Any]) -> None:
        """An engine's events do not say which adapter a block belongs to."""


async def ask_tokens(call: Call) -> None:
    """Writes the tokens of the prompt into `call.routing`, if a worker returns them in time. No worker is asked about
    prompts too short for a pick by their beginning, about sessions, and about what a text does not show: images, and
    salts that clients chose."""
    op, served, routing = call.op, call.served, call.routing
    silent = served.pool.without_cache_events
    if (
        silent is None
        or not routing.keys
        or routing.session is not None
        or not isinstance(op, (Chat, Complete))
        or _salted(op)
    ):
        return
    first = op.prompts[0] if isinstance(op, Complete) else ""
    if not isinstance(first, str):
        routing.tokens, routing.salt = first, op.salt
        return
    if isinstance(op, Chat) and any(isinstance(part, _MEDIA) for message in op.messages for part in message.parts):
        return
    deadlines = Deadlines(min(_LONGEST_S, served.deadlines.connect), _LONGEST_S, _LONGEST_S)
    try:
        prompt = op if isinstance(op, Chat) else first
        ask = await run_step(call.share, _question, op, prompt, served, call.outgoing.finish)
        worker = served.pool.borrow(silent)
        with Visit(served.pool, worker, None, served.transport, call) as visit:
            try:
                response = await visit.ask(ask.request, deadlines, _MAX_BYTES)
                found = await run_step(call.share, ask.read, response)
            except GatewayError:
                visit.abandoned()  # the answer may be late only because the worker has much to read
                raise
    except GatewayError as error:  # these workers cannot, or none is there now: the attempts will show
        error.release_frames()
        return
    assert isinstance(found, Tokens)
    routing.tokens, routing.salt = found.tokens, op.salt


def _question(
    op: Chat | Complete, prompt: Chat | str, served: ServedModel, finish: Finish | None
) -> Ask[Tokens | Detokenized]:
    """Raises GatewayError(UNSUPPORTED) if these workers cannot return tokens."""
    extra = {name: op.extra[name] for name in _READ if name in op.extra}
    asked = Tokenize(model=op.model, prompt=prompt, special=isinstance(prompt, str), extra=extra)
    ask = served.backend.tokenize(asked, served.can)
    if finish is not None:
        finish(ask.request)
    ask.request.headers = [*ask.request.headers, *served.headers]
    return ask


def _salted(op: Chat | Complete) -> bool:
    """Its client has a salt of its own."""
    return "cache_salt" in op.extra or (op.raw is not None and "cache_salt" in op.raw)


def build(parts: Parts) -> Built | None:
    if all(options.kv_events is None for options in parts.config.models.values()):
        return None

    log = parts.log

    def changed(model: str, worker: Worker, live: bool) -> None:
        if live:
            whole = worker.blocks is not None and worker.blocks.whole
            log.event("info", "cache of worker known", model=model, worker=worker.address, whole=whole)
        else:
            log.event("warning", "cache of worker unknown", model=model, worker=worker.address)

    listening: Listening = parts.earlier_services.get("kv_events") or Listening(changed)
    parts.offers.listening = listening
    return Built(of_model=_of_model, service=listening)


def _of_model(model: OneModel) -> CacheEvents | None:
    return None if model.options.kv_events is None else CacheEvents()
