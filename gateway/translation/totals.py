"""Limits on prompt and output together: `max_total_tokens`, and a model's context if the output must be cut to fit.

Workers have limits on the output only. A limit on both becomes a limit on the output once the prompt's length in tokens
is known; the length of a text is known only to a worker. A model's context limits both, too: a chat with `fit_output`
gets what the prompt leaves of it. The worker is then asked for the length only if an estimate says that prompt and
output may not fit.
"""

from __future__ import annotations

from typing import TypeVar, cast

from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind, prompt_too_long
from gateway.core.lifecycle import TokenCount
from gateway.core.messages import Chat, Complete, Generate, Op
from gateway.core.ports import Ask, Backend, Capabilities
from gateway.translation.series import runs

T = TypeVar("T", bound=Op)


def length_request(op: Op, backend: Backend, can: Capabilities, estimate: int = 0) -> Ask[TokenCount] | None:
    """The request that asks a worker for the length of the prompt of `op`. None if the length is not needed, or if
    workers of this backend cannot count and `op` has no totals. estimate: of that length, in tokens.

    Raises GatewayError(UNSUPPORTED) if `op` has totals and workers of this backend cannot count.
    """
    if type(op) is Complete and (op.max_total is not None or op.min_total is not None):
        return backend.count(op, can)
    if not isinstance(op, Chat) or not op.fit_output or op.max_output is None or can.max_context is None:
        return None
    if estimate + op.max_output > can.max_context:
        try:
            return backend.count(op, can)
        except GatewayError as error:
            if error.kind is not Kind.UNSUPPORTED:
                raise
    return None


def first_request(op: T) -> T:
    """`op` as a worker is asked first: for one run of seeds, without limits on prompt and output together."""
    if type(op) is not Complete:
        return op
    text = cast("Complete", op)
    totals = text.max_total is not None or text.min_total is not None
    return cast("T", runs(replace(text, max_total=None, min_total=None) if totals else text)[0])


def apply_prompt_length(op: Generate, prompt: int, can: Capabilities | None = None) -> tuple[str, ...]:
    """Turns the totals of `op`, whose prompt has `prompt` tokens, into limits on its output, and cuts the output of a
    chat to what the context of `can` leaves. Returns the names of parameters that were cut.

    Raises GatewayError: BAD_REQUEST if nothing is left to generate or the minimum exceeds the maximum, CONTEXT_LENGTH
    if a chat's prompt alone fills the context.
    """
    if isinstance(op, Chat):
        return _fit(op, prompt, can)
    named = "min_tokens"
    if op.max_total is not None:
        room = op.max_total - prompt
        if room < 1:
            raise _impossible("max_total_tokens", f"leaves nothing to generate after {prompt} tokens")
        op.max_output = room if op.max_output is None else min(op.max_output, room)
    least = op.sampling.min_tokens or 0
    if op.min_total is not None and op.min_total - prompt > least:
        least, named = op.min_total - prompt, "min_total_tokens"
    if op.max_output is not None and least > op.max_output:
        raise _impossible(named, "asks for more than the greatest length allows")
    op.sampling = replace(op.sampling, min_tokens=least or None)
    op.max_total = op.min_total = None
    return ()


def apply_estimate(op: Op, estimate: int, can: Capabilities, grown: bool = False) -> tuple[str, ...]:
    """Cuts the output of a chat that exceeds the whole context by itself to what a prompt of about `estimate` tokens
    leaves; that of a prompt that has `grown` here, of whose length its client knows nothing, also if both together
    exceed it. For workers that cannot count tokens. Returns the names of parameters that were cut."""
    context = can.max_context
    if context is None or not isinstance(op, Chat) or not op.fit_output:
        return ()
    if not grown and (op.max_output or 0) < context:
        return ()
    return _fit(op, min(estimate, context - 1), can)


def _fit(op: Chat, prompt: int, can: Capabilities | None) -> tuple[str, ...]:
    context = can.max_context if can is not None else None
    if context is None or op.max_output is None:
        return ()
    if prompt >= context:
        raise prompt_too_long("messages", prompt, context)
    if op.max_output <= context - prompt:
        return ()
    op.max_output = context - prompt
    return ("max_tokens",)


def _impossible(param: str, why: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"'{param}' {why}", param=param, code="invalid_value")
