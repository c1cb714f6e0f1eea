"""llama.cpp's errors: OpenAI's format, with the parameter taken from the message text."""

from __future__ import annotations

import re

from gateway.core.errors import GatewayError, Kind

# "Field 'n': Value must be between ...". llama.cpp's names are mapped to canonical ones where they differ.
_FIELD = re.compile(r"^Field '(\w+)'")
_PARAMS = {"n_predict": "max_tokens", "n_probs": "logprobs", "repeat_penalty": "repetition_penalty"}


def named(error: GatewayError) -> GatewayError:
    """`error` with the parameter that its message names, if it names one."""
    if error.kind is Kind.BAD_REQUEST and error.param is None:
        found = _FIELD.match(error.message)
        if found is not None:
            error.param = _PARAMS.get(found[1], found[1])
        elif "grammar" in error.message:
            error.param = "response_format"
    return error
