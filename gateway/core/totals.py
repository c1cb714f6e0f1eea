"""Limits on prompt and output together ("totals"), such as `max_total_tokens`.

Workers know limits on the output alone. A total becomes one once the prompt's length in tokens is known, and only a
worker can tell that of a text.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Complete, Op
from gateway.core.ports import Backend, Capabilities, Counting

T = TypeVar("T", bound=Op)


def length_request(op: Op, backend: Backend, can: Capabilities) -> Counting | None:
    """The request that asks a worker for the length of the prompt of `op`; None where `op` has no totals.

    Raises GatewayError(UNSUPPORTED) where workers of that backend cannot tell.
    """
    if isinstance(op, Complete) and (op.max_total is not None or op.min_total is not None):
        return backend.count(op, can)
    return None


def without(op: T) -> T:
    """`op` without its totals."""
    if isinstance(op, Complete) and (op.max_total is not None or op.min_total is not None):
        return replace(op, max_total=None, min_total=None)
    return op


def apply_prompt_length(op: Complete, prompt: int) -> None:
    """Turns the totals of `op`, whose prompt has `prompt` tokens, into limits on its output.

    Raises GatewayError(BAD_REQUEST) where nothing is left to generate, or the minimum exceeds the maximum.
    """
    named = "min_tokens"
    if op.max_total is not None:
        room = op.max_total - prompt
        if room < 1:
            raise _senseless("max_total_tokens", f"leaves nothing to generate after {prompt} tokens")
        op.max_output = room if op.max_output is None else min(op.max_output, room)
    least = op.sampling.min_tokens or 0
    if op.min_total is not None and op.min_total - prompt > least:
        least, named = op.min_total - prompt, "min_total_tokens"
    if op.max_output is not None and least > op.max_output:
        raise _senseless(named, "asks for more than the greatest length allows")
    op.sampling = replace(op.sampling, min_tokens=least or None)
    op.max_total = op.min_total = None


def _senseless(param: str, why: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"'{param}' {why}", param=param, code="invalid_value")
