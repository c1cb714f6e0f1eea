"""Why a request goes from one worker to another."""

from __future__ import annotations

from gateway.core.errors import GatewayError, Kind

STALLED, LEAVING, LATE = "worker_stalled", "worker_leaving", "first_token_late"
"""Codes of the errors by which requests leave a worker."""
MOVES = {STALLED: "stalled", LEAVING: "leaving", LATE: "late"}
"""Their reasons, as records and metrics have them."""


def reason_of(error: GatewayError) -> str:
    """Why a request goes to another worker, as records and metrics have it: stalled, leaving, late, died, silent, or
    failed for all other failures."""
    if error.code in MOVES:
        return MOVES[error.code]
    if error.broke or error.kind is Kind.TRUNCATED:
        return "died"
    return "silent" if error.kind is Kind.TIMEOUT else "failed"
