"""Refuses requests that a worker cannot execute, and leaves out what it would not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Chat, Complete, Embed, Op, Sampling, Score
from gateway.wire.json import NULL
from gateway.wire.openai.requests.constraints import CONSTRAINTS, ENGINE, OPENAI, REPORTS

# Members of the canonical request -> the names that clients use.
_NAMES = {"stop_tokens": "stop_token_ids", "eos_tokens": "eos_token", "bad_tokens": "bad_word_tokens"}


def unsupported(param: str, backend: str, why: str = "") -> GatewayError:
    """The error for a parameter that `backend` cannot do. `param` is a member of the canonical request or of OpenAI's
    wire; `why` says what would work."""
    param = _NAMES.get(param, param)
    message = f"'{param}' cannot be executed by the {backend} worker of this model"
    return GatewayError(Kind.UNSUPPORTED, f"{message}: {why}" if why else message, param=param)


def refuse_sampling(sampling: Sampling, neutral: Mapping[str, tuple[Any, ...]], backend: str) -> None:
    """Raises GatewayError(UNSUPPORTED) for the first of the parameters in `neutral` that is given, with another value
    than those listed, which change nothing."""
    given = msgspec.to_builtins(sampling)  # what is set
    if neutral.keys().isdisjoint(given):
        return
    for name, values in neutral.items():
        if given.get(name) not in (None, {}, *values):
            raise unsupported(name, backend)


def refuse_given(given: Mapping[str, bool], backend: str) -> None:
    """Raises GatewayError(UNSUPPORTED) for the first parameter in `given` that is."""
    for name, is_given in given.items():
        if is_given:
            raise unsupported(name, backend)


def no_token_ids(backend: str) -> GatewayError:
    return GatewayError(
        Kind.UNSUPPORTED,
        f"the reply must hold token ids, and the {backend} worker of this model gives none:"
        " workers of the backends vllm (0.10.2 and later), tgi and llamacpp do",
        param="tokens",
    )


class Unread:
    """Members that the engine behind `backend` would accept in a request and not read: those of OpenAI's and vLLM's
    wire only, as others may be the engine's own.

    changing lists members that ask for another reply, each with the values that ask for nothing. idle lists members
    that no reply shows; those that belong to other operations are added to it, and what constrains an answer
    (`wire.openai.requests.constraints`) is none of them. looked_at: operation -> all of them.
    """

    def __init__(self, changing: Mapping[str, tuple[Any, ...]], idle: frozenset[str], backend: str) -> None:
        self._changing = changing
        self._backend = backend
        self._idle = {operation: idle | elsewhere for operation, elsewhere in _ELSEWHERE.items()}
        # The gateway itself has chosen the worker by `prompt_cache_key`.
        self.looked_at = {
            operation: names.union(changing, ("prompt_cache_key",)) for operation, names in self._idle.items()
        }

    def leave_out(self, members: dict[str, Any], op: Op) -> tuple[str, ...]:
        """Removes what the engine would not read from `members`, in place: JSON texts by name, those of a request that
        is made of `op`. Returns the names of the idle ones that had a value. Raises GatewayError(UNSUPPORTED) for the
        first of `changing`, or constraint, with another value."""
        operation, changing = type(op), self._changing
        if self.looked_at[operation].isdisjoint(members):
            return ()  # as most requests
        members.pop("prompt_cache_key", None)
        idle = self._idle[operation]
        if operation is Embed and "messages" in members:
            idle -= _TEMPLATE
        constraints = CONSTRAINTS.get(_OPERATIONS.get(operation, ""), frozenset())
        for name in [name for name in members if name in (constraints if name in idle else changing)]:
            if not _is_one_of(members[name], changing.get(name, ENGINE.get(name, ()))):
                raise unsupported(name, self._backend)
            if name not in idle:
                del members[name]
        left = tuple(name for name in members if name in idle)
        return tuple([name for name in left if members.pop(name) not in (None, NULL)])


_OPERATIONS: dict[type[Op], str] = {Chat: "chat", Complete: "complete", Embed: "embed"}


def _is_one_of(member: Any, values: tuple[Any, ...]) -> bool:
    """Whether a JSON text is null or one of `values`."""
    try:
        return msgspec.json.decode(member) in (None, *values)
    except msgspec.MsgspecError:  # a number that is out of range, say
        return False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Members of chats alone: what their template reads, and the rest.
_TEMPLATE = _names("add_generation_prompt chat_template chat_template_kwargs continue_final_message media_io_kwargs")
_CHATS = _TEMPLATE | _names("""
    documents include_reasoning max_completion_tokens mm_processor_kwargs parallel_tool_calls reasoning_effort
    return_prompt_text tool_choice tools top_logprobs
""")
_POOLING = _names("dimensions padding")
_GENERATION = _CHATS | _names("""
    allowed_token_ids bad_words best_of detokenize ec_transfer_params echo frequency_penalty guided_choice
    guided_grammar guided_json guided_regex ignore_eos include_stop_str_in_output kv_transfer_params length_penalty
    logit_bias logits_processors logprob_token_ids logprobs max_tokens min_p min_tokens mm_payload n
    presence_penalty prompt_embeds prompt_logprobs repetition_detection repetition_penalty response_format
    return_mm_kwargs return_token_ids return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start
    seed session_id skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream_interval
    structured_outputs suffix temperature thinking_token_budget top_k top_p use_beam_search vllm_xargs watermarking
""")
# Operation -> the members that have a meaning in other operations only.
_ELSEWHERE: Mapping[type, frozenset[str]] = {
    Chat: _POOLING | _names("mm_payload prompt_embeds suffix"),
    Complete: _POOLING | _CHATS,
    Embed: _GENERATION - {"mm_processor_kwargs"},
    Score: (_GENERATION - _names("chat_template_kwargs documents mm_processor_kwargs"))
    | _names("add_special_tokens dimensions"),
}

OPENAI_MEMBERS: Mapping[str, tuple[Any, ...]] = {**OPENAI, "best_of": (1,), "moderation": ()}
"""Members of OpenAI's wire that ask for another reply, and that no engine reads, each with the values that ask for
nothing."""
OPENAI_IDLE = _names("""
    audio metadata prediction prompt_cache_options prompt_cache_retention safety_identifier service_tier store verbosity
    web_search_options
""")
"""The same for those that only OpenAI's service keeps, charges or hurries by, for hints at a style, for the voice of a
reply in audio, which `modalities` asks for, and for a search, without which the model answers."""

VLLM_MEMBERS: Mapping[str, tuple[Any, ...]] = {
    **ENGINE,
    **REPORTS,
    "ec_transfer_params": (),
    "echo": (False,),
    "logprob_token_ids": ([],),
    "return_mm_kwargs": (False,),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
}
"""Members of vLLM's wire that have no canonical form and change the result, each with the values that change
nothing."""
VLLM_IDLE = _names("""
    cache_salt mm_payload padding priority request_id routed_experts_prompt_start session_id stream_interval
    truncation_side
""")
"""The same for those that no reply shows: how vLLM caches, orders and names requests, and the side of a cut that is not
made."""
UNREAD: Mapping[str, tuple[Any, ...]] = {**OPENAI_MEMBERS, **VLLM_MEMBERS}
"""Members that ask for another reply, and that engines other than vLLM do not read."""
IDLE = OPENAI_IDLE | VLLM_IDLE | {"user"}
"""Members that no reply shows, and that engines other than vLLM do not read."""


def unwritten(op: Chat | Complete) -> Iterator[str]:
    """The names of members that an endpoint with its own output format cannot express."""
    if op.output is not None and op.output.strict:
        yield "response_format.json_schema.strict"
    if op.output is not None and op.output.description is not None:
        yield "response_format.json_schema.description"


def beyond(backend: str, what: str) -> GatewayError:
    """The error for an operation that no worker of `backend` can do; `what` continues "the worker"."""
    return GatewayError(Kind.UNSUPPORTED, f"the {backend} worker of this model {what}", code="beyond_model")


def cannot_count(op: Chat | Complete, backend: str) -> GatewayError:
    """The error for a worker that cannot count tokens. It names the total of `op`, if `op` has one."""
    for name in ("max_total", "min_total") if isinstance(op, Complete) else ():
        if getattr(op, name) is not None:
            return unsupported(f"{name}_tokens", backend)
    return beyond(backend, "cannot count the tokens of a prompt")
