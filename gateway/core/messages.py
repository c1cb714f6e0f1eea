"""The canonical request: what every dialect reads into and every backend writes from.

`None` always means "the client did not set it". A dialect whose specification promises a default fills it in, so a
backend never has to guess. Fields without a canonical name are kept in `extra`, as JSON text by their own name; those
inside an object are kept in the `extra` of its canonical object. `unnamed` lists the latter, and the fields that only
`raw` has, so that a backend that writes neither can name what it left out.

`raw` keeps the client's own top-level JSON members if a backend may speak the client's wire (named by `wire`). Such a
backend forwards them, so that unknown nested fields are not lost.

`hints` are names beside the body (in the path, in headers) that choose the model if they are known here, in this order,
before `model` does. `view` is the dialect's own word for the form of the reply asked for; nobody else reads it.

`salt` keeps what a worker caches of a prompt apart from what it caches for callers of another salt. A backend whose
workers know nothing of the kind leaves it out (`ports.Backend.salts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Raw, Struct

from gateway.core.http import Response

Extra = dict[str, Raw]
Nested = Mapping[str, "Raw | Nested"]
"""Members without a canonical name, at their places in the tree of objects: `{"function": {"x": 1}}`."""

# Model names that clients send if their caller gave none: huggingface_hub, text-generation, SageMaker's fixed path.
PLACEHOLDERS = frozenset({"", "dummy", "tgi", "default", "/opt/ml/model"})


class Text(Struct, frozen=True):
    text: str
    extra: Nested | None = None


class Image(Struct, frozen=True):
    """url is http(s): or data:; detail is auto | low | high or None."""

    url: str
    detail: str | None = None
    extra: Nested | None = None


class Audio(Struct, frozen=True):
    """data is base64; format is wav | mp3."""

    data: str
    format: str
    extra: Nested | None = None


class ToolCall(Struct, frozen=True):
    """arguments stay the JSON text that the model wrote; it may be invalid JSON."""

    id: str | None
    name: str
    arguments: str
    extra: Nested | None = None


class Thinking(Struct, frozen=True):
    text: str


class Refusal(Struct, frozen=True):
    text: str
    extra: Nested | None = None


class Opaque(Struct, frozen=True):
    """A content part whose type has no canonical form; only a backend of the same wire can forward it."""

    type: str
    raw: Raw


Part = Text | Image | Audio | ToolCall | Thinking | Refusal | Opaque


class Message(Struct, frozen=True):
    """role is system | developer | user | assistant | tool; `call_id` is set on tool messages."""

    role: str
    parts: tuple[Part, ...] = ()
    name: str | None = None
    call_id: str | None = None
    extra: Nested | None = None


class Tool(Struct, frozen=True):
    """parameters is a JSON Schema object as JSON text, or None for no parameters."""

    name: str
    description: str | None = None
    parameters: Raw | None = None
    strict: bool | None = None
    extra: Nested | None = None


class NamedTool(Struct, frozen=True):
    name: str
    extra: Nested | None = None


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Output(Struct, frozen=True):
    """A constraint on the output. schema (kind "schema") is JSON text; pattern is the regex or grammar."""

    kind: Literal["text", "json", "schema", "regex", "grammar", "choice"]
    schema: Raw | None = None
    pattern: str | None = None
    choices: tuple[str, ...] = ()
    name: str | None = None
    strict: bool | None = None
    description: str | None = None
    extra: Nested | None = None


class Sampling(Struct, frozen=True):
    """How the next token is drawn. Penalties in [-2, 2] except repetition (> 0, 1 is off); top_k 0 is off."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    no_repeat_ngram: int | None = None
    logit_bias: dict[int, float] | None = None
    stop_tokens: tuple[int, ...] = ()
    eos_tokens: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_tokens: tuple[tuple[int, ...], ...] = ()
    ignore_eos: bool | None = None


class Logprobs(Struct, frozen=True):
    """top is the number of alternatives per position; 0 is the sampled token only."""

    top: int = 0


class Beams(Struct, frozen=True):
    """Beam search of `width` beams. early_stopping None is the engine's default."""

    width: int
    length_penalty: float | None = None
    early_stopping: bool | None = None


class Operation(Struct, kw_only=True):
    """What every operation has. timeout in seconds is the client's own deadline."""

    model: str | None
    stream: bool = False
    user: str | None = None
    timeout: float | None = None
    extra: Extra = {}
    dropped: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    view: str = ""
    raw: Extra | None = None
    wire: str | None = None
    salt: str | None = None


class Chat(Operation, kw_only=True):
    """One chat turn.

    max_output        in tokens; None is the rest of the context
    want_tokens       asks for the ids of the sampled tokens
    continue_last     the last message is the assistant's, and the reply goes on with its text
    fit_output        `max_output` is a wish: what exceeds the model's context is cut off, and named as dropped
    fold_system       where a chat template takes system messages at the start only, a later one becomes a part of the
                      user message beside it; it never moves to the front
    optional          what may be left out for a worker that cannot do it: by vLLM's name for it ("reasoning_effort"),
                      the name that the client is then told was dropped
    """

    messages: tuple[Message, ...]
    include_usage: bool = False
    max_output: int | None = None
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    n: int = 1
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tools: bool | None = None
    output: Output | None = None
    reasoning: str | None = None
    logprobs: Logprobs | None = None
    want_tokens: bool = False
    continue_last: bool = False
    fit_output: bool = False
    fold_system: bool = False
    optional: Mapping[str, str] = {}
    unnamed: tuple[str, ...] = ()


class Complete(Operation, kw_only=True):
    """Text completion of one or more prompts, each a string or token ids.

    seeds has one entry for each of the n choices of a prompt, or is empty; max_total and min_total count prompt and
    output tokens. want_tokens asks for the ids of the sampled tokens.
    """

    prompts: tuple[str | tuple[int, ...], ...]
    include_usage: bool = False
    max_output: int | None = None
    max_total: int | None = None
    min_total: int | None = None
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    n: int = 1
    seeds: tuple[int, ...] = ()
    beams: Beams | None = None
    output: Output | None = None
    want_tokens: bool = False
    logprobs: Logprobs | None = None
    echo: bool = False
    suffix: str | None = None
    unnamed: tuple[str, ...] = ()


class Embed(Operation, kw_only=True):
    """Embeddings of one or more inputs. encoding None is the client's default, an array of floats."""

    inputs: tuple[str | tuple[int, ...], ...]
    encoding: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class CountTokens(Operation, kw_only=True):
    """How many tokens the prompt of `prompt_of` has, as the worker's chat template and tokenizer make them. Nothing is
    generated: limits on generations and their queue do not apply.

    `stream`, `extra` and `raw` of the operation itself have no meaning here.
    """

    prompt_of: Chat | Complete


class ListModels(Struct, kw_only=True):
    """No operation: a question about what is served here, answered without a worker. `model` narrows it to one; `one`
    to the default model when `model` is None and there is one.

    `write` makes the answer of what was found: the page that the client asked for, in its dialect. May raise
    GatewayError.
    """

    write: Callable[[Sequence[ModelCard]], Response]
    model: str | None = None
    one: bool = False
    dropped: tuple[str, ...] = ()


Generate = Chat | Complete
Op = Chat | Complete | Embed | CountTokens


class ModelCard(Struct, frozen=True):
    """One model as the gateway offers it. created is Unix seconds; max_context in tokens and features (as in
    `ports.Capabilities`) None when unknown."""

    name: str
    created: int
    ready: bool
    max_context: int | None = None
    alias_of: str | None = None
    features: frozenset[str] | None = None
