"""Which attempts an operation needs at a model."""

from __future__ import annotations

from gateway.core.messages import Chat, Complete, Embed, Media
from gateway.pipeline.attempts import Attempts, QuestionAttempts
from gateway.pipeline.call import Call
from gateway.pipeline.hedge import HedgedAttempts
from gateway.pipeline.media import MediaAttempts
from gateway.pipeline.prefill import PrefillAttempts
from gateway.pipeline.server_tools import RoundAttempts, Unavailable


def attempts_for(call: Call) -> type[Attempts]:
    served, operation, op = call.served, type(call.op), call.op
    if type(op) is Chat and op.server_tools:
        return RoundAttempts if op.tools else Unavailable
    if call.question:
        return QuestionAttempts
    if served.prefill is not None and (operation is Chat or operation is Complete):
        return PrefillAttempts
    if served.hedge_s is not None and operation is Embed:
        return HedgedAttempts
    return MediaAttempts if operation is Media else Attempts
