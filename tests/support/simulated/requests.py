"""vLLM 0.33's request fields that the simulator knows, and the requests that vLLM refuses.

Unknown fields are ignored, as in vLLM. Error messages are those in vLLM's source, shortened where it quotes pydantic. A
schema error has the type "Bad Request", a later error "BadRequestError"; both are status 400.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from workers.simulated import requests as base
from workers.simulated.requests import Refused, check_context

__all__ = ["Refused", "check_context"]

MAX_STOP = 4
MAX_LOGPROBS = 20
MAX_PROMPTS = 1024


def schema(message: str, param: str | None = None, loc: str = "'body',") -> Refused:
    """An error of vLLM's request validation."""
    text = f"1 validation error:\n  {{'type': 'value_error', 'loc': ({loc}), 'msg': 'Value error, {message}'}}"
    return Refused(400, "Bad Request", text, param)


def bad(message: str, param: str | None = None) -> Refused:
    """An error vLLM finds after validation."""
    return Refused(400, "BadRequestError", message, param)


def too_many(count: int) -> Refused:
    """More logprobs than the server was started for."""
    return bad(f"Requested sample logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}", "logprobs")


class Message(Struct):
    role: str
    content: Any = None
    tool_calls: Any = None


class Generate(base.Generate, kw_only=True):
    """Fields that both endpoints share."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    use_beam_search: bool = False
    priority: int = 0
    request_id: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    sim: dict[str, Any] | None = None
    sim_fault: str | None = None


class Chat(Generate, kw_only=True):
    messages: list[Message]
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | UnsetType | None = UNSET
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    continue_final_message: bool = False
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None


class Complete(Generate, kw_only=True):
    prompt: str | list[Any] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    suffix: str | None = None


class Embed(Struct, kw_only=True):
    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = "float"
    dimensions: int | None = None
    sim_fault: str | None = None


class Scoring(Struct, kw_only=True):
    """Fields that ranking and scoring share. A document is a text, or an object with content parts."""

    model: str | None = None
    max_tokens_per_doc: int = 0
    use_activation: bool | None = None
    cache_salt: str | None = None
    sim_fault: str | None = None


class Content(Struct, forbid_unknown_fields=True):
    content: list[dict[str, Any]]


class Rerank(Scoring, kw_only=True):
    query: str | Content
    documents: str | list[str | Content]
    top_n: Annotated[int, Meta(ge=0)] = 0


class Score(Scoring, kw_only=True):
    """The names of the two sides, by vLLM's order of preference."""

    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None


class Tokenize(Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False


class Detokenize(Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


class Adapter(Struct, kw_only=True):
    lora_name: str
    lora_path: str = ""


class Call(Struct):
    """A scripted tool call; arguments may be JSON text or a value."""

    name: str
    arguments: Any = ""
    id: str = ""


class Script(Struct, kw_only=True):
    """A scripted reply. See `plan` for what each field does."""

    text: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] = field(default_factory=list)
    interleave: bool = False
    pieces: list[str] | None = None
    tokens: list[int] | None = None
    repeat: int = 1
    finish: str | None = None
    stop_reason: str | int | None = None
    choices: list[Script] | None = None
    rounds: list[Script] | None = None
    asked: dict[str, Script] = field(default_factory=dict)
    fault: str | None = None


chat_decoder = msgspec.json.Decoder(Chat)
complete_decoder = msgspec.json.Decoder(Complete)
embed_decoder = msgspec.json.Decoder(Embed)
rerank_decoder = msgspec.json.Decoder(Rerank)
score_decoder = msgspec.json.Decoder(Score)
tokenize_decoder = msgspec.json.Decoder(Tokenize)
detokenize_decoder = msgspec.json.Decoder(Detokenize)
adapter_decoder = msgspec.json.Decoder(Adapter)
script_decoder = msgspec.json.Decoder(Script)


_T = TypeVar("_T")


def decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Decode a body. Raises Refused as vLLM's schema errors do."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        raise schema(text.replace("'", "`"), None, f"'body', '{path.rstrip('`')}'" if path else "'body',") from None
    except (msgspec.DecodeError, RecursionError) as error:
        text = f"'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error: {error}'"
        raise Refused(400, "Bad Request", f"1 validation error:\n  {{{text}}}") from None


def check(request: Generate) -> None:
    """vLLM's refusals that both endpoints share. Raises Refused."""
    if request.stream_options is not None and not request.stream:
        raise schema("Stream options can only be defined when `stream=True`.", "stream_options")
    stop = request.stop
    if isinstance(stop, list) and len(stop) > MAX_STOP:
        message = f"List should have at most {MAX_STOP} items after validation, not {len(stop)}"
        raise schema(message, "stop", "'body', 'stop'")
    if stop == "" or (isinstance(stop, list) and "" in stop):
        raise bad("stop cannot contain an empty string.", "stop")
    form = request.response_format
    if form is not None:
        kind = form.get("type")
        if kind not in ("text", "json_object", "json_schema", "structural_tag"):
            raise schema("Input should be 'text', 'json_object' or 'json_schema'", "response_format")
        if kind == "json_schema" and form.get("json_schema") is None:
            message = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
            raise schema(message, "response_format")
    if request.structured_outputs is not None:
        kinds = [key for key in ("json", "regex", "choice") if request.structured_outputs.get(key) is not None]
        if len(kinds) > 1:
            raise schema(
                "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').",
                "structured_outputs",
            )
    if request.priority:
        raise bad(f"Got priority {request.priority} but Priority scheduling is not enabled.", "priority")
    n = 1 if request.n is None else request.n
    if n < 1:
        raise bad(f"n must be at least 1, got {n}.", "n")
    temperature = request.temperature
    if temperature is not None and not 0 <= temperature <= 2:
        raise bad(f"temperature must be in [0, 2], got {temperature}.", "temperature")
    if n > 1 and temperature == 0 and not request.use_beam_search:
        raise bad(f"n must be 1 when using greedy sampling, got {n}.", "n")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(request, name)
        if value is not None and not -2 <= value <= 2:
            raise bad(f"{name} must be in [-2, 2], got {value}.", name)
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise bad(f"top_p must be in (0, 1], got {request.top_p}.", "top_p")
    if request.top_k is not None and request.top_k < -1:
        raise bad(f"top_k must be 0 (disable), or at least 1, got {request.top_k}.", "top_k")
    if request.use_beam_search:
        if request.stream:
            raise bad("Streaming is not currently supported with beam search")
        if 2 * n > MAX_LOGPROBS:
            raise too_many(2 * n)


def check_chat(request: Chat) -> None:
    """vLLM's refusals of a chat request. Raises Refused."""
    if request.tools == []:
        raise schema(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )
    choice = request.tool_choice
    if choice is not UNSET and choice is not None and choice != "none":
        if request.tools is None:
            raise schema("When using `tool_choice`, `tools` must be set.", "tool_choice")
        if isinstance(choice, dict):
            name = (choice.get("function") or {}).get("name")
            if name not in [(tool.get("function") or {}).get("name") for tool in request.tools]:
                raise schema(
                    "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
                )
        elif choice not in ("auto", "required"):
            raise schema(
                f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are '
                "supported.",
                "tool_choice",
            )
    if request.top_logprobs:
        if request.top_logprobs < -1:
            raise schema("`top_logprobs` must be a positive value or -1.", "top_logprobs")
        if not request.logprobs:
            raise schema("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        if request.top_logprobs > MAX_LOGPROBS:
            raise too_many(request.top_logprobs)
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(request, name):
            raise bad(f"Per-request {name} are disabled by default.", name)
    check(request)
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    if limit is not None and limit < 1:
        raise bad(f"max_tokens must be at least 1, got {limit}.", "max_tokens")


def check_complete(request: Complete) -> list[str | list[int]]:
    """vLLM's refusals of a text completion, and its prompts. Raises Refused."""
    prompt = request.prompt
    if prompt is None or prompt == "" or prompt == []:
        raise schema("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    check(request)
    if request.logprobs is not None:
        if request.logprobs < -1:
            raise schema("`logprobs` must be a positive value or -1.", "logprobs")
        if request.logprobs > MAX_LOGPROBS:
            raise too_many(request.logprobs)
    if request.max_tokens is None:
        request.max_tokens = 16
    if request.max_tokens < (0 if request.echo else 1):
        raise bad(f"max_tokens must be at least 1, got {request.max_tokens}.", "max_tokens")
    return inputs(prompt, "prompt")


def inputs(value: str | list[Any], name: str) -> list[str | list[int]]:
    """The four forms of `prompt` and `input`: text, token ids, and lists of either. Raises Refused."""
    if isinstance(value, str):
        return [value]
    if all(type(item) is int for item in value):
        items: list[Any] = [value]
    else:
        items = value
    if len(items) > MAX_PROMPTS:
        raise schema(
            f"{name} list length {len(items)} exceeds the maximum allowed count of {MAX_PROMPTS}. To increase this "
            "limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.",
            name,
        )
    for item in items:
        if isinstance(item, str):
            continue
        if not isinstance(item, list) or not all(type(token) is int and token >= 0 for token in item):
            raise schema("Input should be a valid string or a list of token ids", name, f"'body', '{name}'")
    return items
