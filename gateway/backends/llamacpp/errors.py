"""llama.cpp's errors: those of OpenAI's wire, with the parameter that their text names."""

from __future__ import annotations

import re

from gateway.backends.openai import errors
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Response

# "Field 'n': Value must be between ...": its own names, and ours where they differ.
_FIELD = re.compile(r"^Field '(\w+)'")
_PARAMS = {"n_predict": "max_tokens", "n_probs": "logprobs", "repeat_penalty": "repetition_penalty"}


def fault_of(response: Response, now: float) -> GatewayError:
    """What an answer that is no 200 means; `now` in Unix seconds."""
    return named(errors.fault_of(response, now))


def named(error: GatewayError) -> GatewayError:
    """The error with the parameter that its text names."""
    if error.kind is Kind.BAD_REQUEST and error.param is None:
        found = _FIELD.match(error.message)
        if found is not None:
            error.param = _PARAMS.get(found[1], found[1])
        elif "grammar" in error.message:
            error.param = "response_format"
    return error
