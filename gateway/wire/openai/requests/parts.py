"""Writes parts of canonical requests for OpenAI's wire, and refuses requests that a worker cannot execute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    Embed,
    Image,
    Message,
    NamedTool,
    Nested,
    Op,
    Opaque,
    Part,
    Refusal,
    Score,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)
from gateway.wire.json import NULL, encode
from gateway.wire.openai.requests.constraints import CONSTRAINTS, ENGINE, REPORTS

_object = msgspec.json.Decoder(dict[str, Raw]).decode
_RAW = "_raw"
"""The one member of arguments that stand for a text that is no JSON object."""


def put(body: dict[str, Any], **members: Any) -> None:
    """Adds to `body` the members that are not None."""
    for name, value in members.items():
        if value is not None:
            body[name] = value


def with_extra(out: dict[str, Any], extra: Nested | None) -> dict[str, Any]:
    """`out` with members that have no canonical name, put back where they were."""
    for name, value in (extra or {}).items():
        out[name] = value if isinstance(value, Raw) else with_extra(out.get(name, {}), value)
    return out


def write_message(message: Message) -> dict[str, Any]:
    """One chat message. A message of text alone has a plain string: not every server reads part arrays."""
    out: dict[str, Any] = {"role": message.role}
    only = message.parts[0] if len(message.parts) == 1 else None
    if type(only) is Text and only.extra is None:  # nearly every message
        out["content"] = only.text
    else:
        _write_parts(message.parts, out)
    put(out, name=message.name, tool_call_id=message.call_id)
    return out if message.extra is None else with_extra(out, message.extra)


def _write_parts(parts: Sequence[Part], out: dict[str, Any]) -> None:
    """Adds to the message `out` the members for its parts."""
    calls = [part for part in parts if isinstance(part, ToolCall)]
    thinking = [part.text for part in parts if isinstance(part, Thinking)]
    # A refusal that came as a content part with other members stays a content part.
    refusals = [part.text for part in parts if isinstance(part, Refusal) and part.extra is None]
    content = [
        part
        for part in parts
        if not isinstance(part, (ToolCall, Thinking)) and (not isinstance(part, Refusal) or part.extra is not None)
    ]
    if len(content) == 1 and isinstance(content[0], Text) and content[0].extra is None:
        out["content"] = content[0].text
    elif content:
        out["content"] = [_write_part(part) for part in content]
    elif calls or refusals:
        out["content"] = None
    else:
        out["content"] = ""
    if thinking:
        out["reasoning_content"] = "".join(thinking)
    if refusals:
        out["refusal"] = "".join(refusals)
    if calls:
        out["tool_calls"] = [
            with_extra(
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _object_in(call)}},
                call.extra,
            )
            for call in calls
        ]


def _object_in(call: ToolCall) -> str:
    """The arguments of a former call as the text of a JSON object. Models also write what is none, clients send it back
    in every later request, and many templates need objects: llama.cpp then answers each one with a 500 (its issue
    25510)."""
    text = call.arguments
    try:
        _object(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return encode({_RAW: text}).decode() if text.strip() else "{}"
    return text


def _write_part(part: Text | Image | Audio | Refusal | Opaque | Any) -> Any:
    if isinstance(part, Text):
        return with_extra({"type": "text", "text": part.text}, part.extra)
    if isinstance(part, Image):
        image = {"url": part.url}
        put(image, detail=part.detail)
        return with_extra({"type": "image_url", "image_url": image}, part.extra)
    if isinstance(part, Audio):
        audio = {"data": part.data, "format": part.format}
        return with_extra({"type": "input_audio", "input_audio": audio}, part.extra)
    if isinstance(part, Refusal):
        return with_extra({"type": "refusal", "refusal": part.text}, part.extra)
    return part.raw


def write_tool(tool: Tool) -> dict[str, Any]:
    """One item of `tools`."""
    function: dict[str, Any] = {"name": tool.name}
    put(function, description=tool.description, parameters=tool.parameters, strict=tool.strict)
    return with_extra({"type": "function", "function": function}, tool.extra)


def write_tool_choice(choice: ToolChoice) -> Any:
    """A string, or the object that names a function."""
    if isinstance(choice, NamedTool):
        return with_extra({"type": "function", "function": {"name": choice.name}}, choice.extra)
    return choice


# -- refusing what a worker cannot do ---------------------------------------------------------------------------------


# Members of the canonical request -> the names that clients use.
_NAMES = {"stop_tokens": "stop_token_ids", "eos_tokens": "eos_token", "bad_tokens": "bad_word_tokens"}


def unsupported(param: str, backend: str, why: str = "") -> GatewayError:
    """The error for a parameter that `backend` cannot do. `param` is a member of the canonical request or of OpenAI's
    wire; `why` says what would work."""
    param = _NAMES.get(param, param)
    message = f"'{param}' cannot be executed by the {backend} worker of this model"
    return GatewayError(Kind.UNSUPPORTED, f"{message}: {why}" if why else message, param=param)


def no_token_ids(backend: str) -> GatewayError:
    """The error for a client that requires token ids."""
    return GatewayError(
        Kind.UNSUPPORTED,
        f"the reply must hold token ids, and the {backend} worker of this model gives none:"
        " workers of the backends vllm (0.10.2 and later), tgi and llamacpp do",
        param="tokens",
    )


def leave_unread(
    members: dict[str, Any], op: Op, changing: Mapping[str, tuple[Any, ...]], idle: frozenset[str], backend: str
) -> tuple[str, ...]:
    """Removes from `members`, in place, what the engine behind `backend` would accept and not read: members of OpenAI's
    and vLLM's wire only, as others may be the engine's own. `members` are JSON texts by name, those of a request that
    is made of `op`.

    changing lists members that ask for another reply, each with the values that ask for nothing. idle lists members
    that no reply shows; those that belong to other operations are added to it, and what constrains an answer
    (`wire.openai.requests.constraints`) is none of them. Returns the names of the idle ones that had a value. Raises
    GatewayError(UNSUPPORTED) for the first of `changing`, or constraint, with another value.
    """
    members.pop("prompt_cache_key", None)  # the gateway itself has chosen the worker by it
    idle |= _ELSEWHERE[type(op)]
    if type(op) is Embed and "messages" in members:
        idle -= _TEMPLATE
    constraints = CONSTRAINTS.get(_OPERATIONS.get(type(op), ""), frozenset())
    for name in [name for name in members if name in (constraints if name in idle else changing)]:
        if not _is_one_of(members[name], changing.get(name, ENGINE.get(name, ()))):
            raise unsupported(name, backend)
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
# What has a meaning in other operations only.
_ELSEWHERE: Mapping[type, frozenset[str]] = {
    Chat: _POOLING | _names("mm_payload prompt_embeds suffix"),
    Complete: _POOLING | _CHATS,
    Embed: _GENERATION - {"mm_processor_kwargs"},
    Score: (_GENERATION - _names("chat_template_kwargs documents mm_processor_kwargs"))
    | _names("add_special_tokens dimensions"),
}

OPENAI_MEMBERS: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "modalities": (["text"],),
    "moderation": (),
    "web_search_options": (),
}
"""Members of OpenAI's own service that ask for another reply, and that no engine reads, each with the values that ask
for nothing."""
OPENAI_IDLE = frozenset(
    {
        "audio",  # the voice of a reply in audio, which `modalities` asks for
        "metadata",
        "prediction",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "verbosity",
    }
)
"""The same for those that only OpenAI's service keeps, charges or hurries by, and for hints at a style."""

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
VLLM_IDLE = frozenset(
    {
        "cache_salt",
        "mm_payload",
        "padding",
        "priority",
        "request_id",
        "routed_experts_prompt_start",
        "session_id",
        "stream_interval",
        "truncation_side",
    }
)
"""The same for those that no reply shows: how vLLM caches, orders and names requests, and the side of a cut that is not
made."""
UNREAD: Mapping[str, tuple[Any, ...]] = {**OPENAI_MEMBERS, **VLLM_MEMBERS}
"""What engines other than vLLM do not read although it asks for another reply."""
IDLE = OPENAI_IDLE | VLLM_IDLE | {"user"}
"""What engines other than vLLM do not read, and no reply shows."""

RISING = "a list must rise by one, as in [5, 6, 7]: a worker takes one seed, and draws choice i with that seed plus i"
"""Why a list of seeds is refused."""


def top_level(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of `op.unnamed` at the top level. The others are written back inside their objects."""
    return tuple(name for name in names if "." not in name)


def unwritten(op: Chat | Complete) -> Iterator[str]:
    """The names of members that an endpoint with its own output format cannot express."""
    if op.output is not None and op.output.strict:
        yield "response_format.json_schema.strict"
    if op.output is not None and op.output.description is not None:
        yield "response_format.json_schema.description"


def cannot_count(op: Chat | Complete, backend: str) -> GatewayError:
    """The error for a worker that cannot count tokens. It names the total of `op`, if `op` has one."""
    if isinstance(op, Complete) and (op.max_total is not None or op.min_total is not None):
        return unsupported(total_of(op), backend)
    message = f"the {backend} worker of this model cannot count the tokens of a prompt"
    return GatewayError(Kind.UNSUPPORTED, message, code="beyond_model")


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """`messages` for chat templates that take system messages at the start only, and refuse two messages of the user in
    a row. A system message behind the first turn becomes a part of the user message before it, else of the one after
    it, else a user message of its own. User messages in a row become one."""
    turns: list[_Turn] = []
    waiting: list[Part] = []
    leading = True
    for message in messages:
        system = message.role in ("system", "developer")
        leading = leading and system
        last = turns[-1] if turns else None
        if system and not leading:
            if last is not None and last.message.role == "user":
                last.parts += message.parts
            else:
                waiting += message.parts
        elif last is not None and last.takes(message):
            last.parts += message.parts
            last.joined = True
        elif message.role == "user":
            turns.append(_Turn(message, [*waiting, *message.parts]))
            waiting = []
        else:
            if waiting and message.role == "assistant":
                turns.append(_Turn(Message("user"), waiting))
                waiting = []
            turns.append(_Turn(message, list(message.parts)))
    if waiting:
        turns.append(_Turn(Message("user"), waiting))
    return [turn.whole() for turn in turns]


class _Turn:
    """A message, with the parts of those that are joined to it. joined: at least one is the user's own."""

    __slots__ = ("joined", "message", "parts")

    def __init__(self, message: Message, parts: list[Part]) -> None:
        self.message = message
        self.parts = parts
        self.joined = False

    def takes(self, message: Message) -> bool:
        """True for a user message behind another one, unless members of its own keep them apart."""
        ours = self.message
        same = message.role == ours.role == "user" and message.name == ours.name
        return same and message.extra is None and ours.extra is None

    def whole(self) -> Message:
        """Texts of several messages are one text, because not every server reads part arrays."""
        parts = self.parts
        if self.joined:
            texts = [part.text for part in parts if type(part) is Text and part.extra is None]
            if len(texts) == len(parts):
                return replace(self.message, parts=(Text("\n\n".join(filter(None, texts))),))
        return self.message if len(parts) == len(self.message.parts) else replace(self.message, parts=tuple(parts))


def total_of(op: Complete) -> str:
    """The name of the limit on prompt and output together that `op` sets."""
    return "max_total_tokens" if op.max_total is not None else "min_total_tokens"
