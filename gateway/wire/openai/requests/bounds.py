"""Bounds of the members that vLLM and its like add to OpenAI's wire. They are passed on as they came, and engines have
crashed on what was out of range."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.core.fields import Range, validate
from gateway.core.messages import Extra
from gateway.wire.json import bad_value, check_depth, members_of
from gateway.wire.openai.requests.views import LONGEST_PATTERN

_INT32 = 2**31 - 1
RANGES: Mapping[str, Range] = {
    "min_p": Range(0, 1),
    "min_tokens": Range(0, _INT32, whole=True),
    "priority": Range(-_INT32, _INT32, whole=True),
    "prompt_logprobs": Range(-1, 1000, whole=True),
    "repetition_penalty": Range(0, 100, above=True),
    "thinking_token_budget": Range(-1, _INT32, whole=True),
    "top_k": Range(-1, _INT32, whole=True),
    "truncate_prompt_tokens": Range(-1, _INT32, whole=True),
}
"""Member -> what its number may be."""

_RANGED = frozenset(RANGES)


def refuse_out_of_range(raw: Extra, extra: Extra) -> None:
    """Raises GatewayError(BAD_REQUEST) for a number out of `RANGES` among all members of a body, and for a pattern of
    more than `LONGEST_PATTERN` characters among those in no dialect's table."""
    if not _RANGED.isdisjoint(raw):
        given = {name: raw[name] for name in _RANGED.intersection(raw)}
        check_depth(given)
        validate({name: msgspec.json.decode(value) for name, value in given.items()}, RANGES)
    if extra:
        _refuse_long_patterns(extra)


# Members of vLLM's wire that hold a pattern, and the members of `structured_outputs` that do.
_PATTERNS = ("guided_regex", "guided_grammar", "guided_whitespace_pattern")
_INNER_PATTERNS = ("regex", "grammar", "whitespace_pattern")


def _refuse_long_patterns(extra: Extra) -> None:
    given = {name: extra[name] for name in _PATTERNS if name in extra}
    outputs = extra.get("structured_outputs")
    if outputs is not None and memoryview(outputs).nbytes > LONGEST_PATTERN:
        try:
            inner = members_of(outputs)
        except msgspec.ValidationError:  # not an object: the worker refuses it
            inner = {}
        given |= {f"structured_outputs.{name}": inner[name] for name in _INNER_PATTERNS if name in inner}
    for name, raw in given.items():
        # A text is never longer than its JSON.
        if memoryview(raw).nbytes > LONGEST_PATTERN and len(str(msgspec.json.decode(raw))) > LONGEST_PATTERN:
            raise bad_value(name, f"'{name}' must have at most {LONGEST_PATTERN} characters")
