"""Asks another worker to go on with a reply: the request of the first worker, with the text that was there already.

A reply that needs more than its text to go on is not continued. `_OBSTACLES` has these members for all engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from gateway.core.http import Request
from gateway.core.messages import Extra
from gateway.core.ports import Partial, Resumption
from gateway.wire.json import NULL, encode, items_of, members_of

_value = msgspec.json.Decoder().decode
_OBSTACLES: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "choices"),
    "best_of": ((1,), "choices"),
    "use_beam_search": ((False,), "choices"),
    "logprobs": ((False,), "logprobs"),
    "prompt_logprobs": ((), "logprobs"),
    "n_probs": ((0,), "logprobs"),
    "echo": ((False,), "echo"),
    "suffix": (("",), "suffix"),
    "truncate_prompt_tokens": ((), "truncation"),
    "truncate": ((), "truncation"),
    # Engines count these over the output alone, and the text so far would be a part of the prompt.
    "frequency_penalty": ((0,), "penalties"),
    "presence_penalty": ((0,), "penalties"),
    "no_repeat_ngram": ((0,), "penalties"),
    "bad_words": (([],), "penalties"),
    "vllm_xargs": (({},), "penalties"),
    "structured_outputs": (({},), "structured_output"),
    "guided_json": ((), "structured_output"),
    "guided_regex": ((), "structured_output"),
    "guided_choice": ((), "structured_output"),
    "guided_grammar": ((), "structured_output"),
    "json_schema": ((), "structured_output"),
    "grammar": ((), "structured_output"),
    "response_format": (({"type": "text"},), "structured_output"),
    "tool_choice": (("auto", "none"), "tool_choice"),
}
"""Member of a request -> (its values that are not an obstacle, the reason for any other but null)."""
_MOST = ("max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens")
_BOUNDS = (*_MOST, "min_tokens")
TEXT_DEFAULT = 16
"""Output tokens of a text completion without `max_tokens`, by OpenAI's API."""


def resumed(
    request: Request,
    partial: Partial,
    put: Callable[[Extra, str], str | None],
    *,
    trim: bool = False,
    parameters: str | None = None,
    default: int | None = None,
    sure: bool = True,
) -> Resumption | str:
    """As `Backend.resume`. `put` adds the text to the body, or returns why it cannot.

    trim        white space at the end of the text is left out, since chat templates may cut it off
    parameters  the member of the body that holds sampling and bounds, if they are not at the top
    default     the output tokens that end a reply to a request without a bound; None: as many as fit
    sure        whether the engine has that default, or may have none. A longer text shows that it has none
    """
    body = members_of(request.body)
    members = body if parameters is None else members_of(body[parameters])
    reason = _obstacle(members)
    if reason is not None:
        return reason
    text = partial.text.rstrip() if trim else partial.text
    repeated = partial.text[len(text) :]
    if default is not None and partial.tokens <= default and all(members.get(name, NULL) == NULL for name in _MOST):
        if not sure:
            return "no_bound"
        members["max_tokens"] = Raw(b"%d" % default)
    if not _lower_bounds(members, partial.tokens - partial.deltas(len(repeated))):
        return "length"
    if text and (reason := put(body, text)) is not None:
        return reason
    if parameters is not None:
        body[parameters] = Raw(encode(members))
    return Resumption(replace(request, body=encode(body)), repeated)


def _obstacle(members: Extra) -> str | None:
    """Why a reply to a request with these members cannot be taken up in the middle; None if it can."""
    for name, (harmless, reason) in _OBSTACLES.items():
        raw = members.get(name, NULL)
        if raw != NULL and _value(raw) not in harmless:
            return reason
    return None


def _lower_bounds(members: Extra, there: int) -> bool:
    """Takes the tokens that are there from the bounds of the output, in place. False if none is left."""
    for name in _BOUNDS:
        bound = _value(members.get(name, NULL))
        if type(bound) is int and bound >= 0:  # llama.cpp: -1 is none
            left = bound - there
            if left <= 0 and name != "min_tokens":
                return False
            members[name] = Raw(b"%d" % max(0, left))
    return True


def append_to_prompt(body: Extra, text: str) -> str | None:
    """A text completion goes on if its prompt is longer."""
    name = "prompt" if "prompt" in body else "inputs"
    prompt = _value(body[name])
    if isinstance(prompt, list) and len(prompt) == 1:
        (prompt,) = prompt
    if not isinstance(prompt, str):
        return "token_ids"
    body[name] = Raw(encode(prompt + text))
    return None


def append_to_chat(body: Extra, text: str) -> str | None:
    """A chat goes on with an unfinished last message of the assistant, as vLLM's `continue_final_message` has it."""
    messages = items_of(body["messages"])
    if _value(body.get("continue_final_message", NULL)):
        last = members_of(messages[-1])
        content = _value(last.get("content", NULL))
        if not isinstance(content, str):
            return "prefill"
        messages[-1] = Raw(encode({**last, "content": content + text}))
    else:
        messages.append(Raw(encode({"role": "assistant", "content": text})))
    body["messages"] = Raw(encode(messages))
    body["continue_final_message"], body["add_generation_prompt"] = Raw(b"true"), Raw(b"false")
    return None
