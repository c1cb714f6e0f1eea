"""The canonical request: what every dialect reads into and every backend writes from.

`None` always means "the client did not set it". A dialect whose specification promises a default fills it in, so a
backend never has to guess. Fields without a canonical name are kept in `extra`, as JSON text by their own name; those
inside an object are kept in the `extra` of its canonical object. `unnamed` lists the latter, and the fields that only
`raw` has, so that a backend that writes neither can name what it left out.

`raw` keeps the client's own top-level JSON members if a backend may speak the client's wire (named by `wire`). Such a
backend forwards them, so that unknown nested fields are not lost. `rewritten`: the canonical texts are others than
those in `raw`, and a backend sends them in their place.

`model_hints` are model names from the path and the headers. The first one that the gateway serves is the model; if it
serves none, `model` decides. `view` is the dialect's own name for the form of the reply; only the dialect reads it.

`to_store` is what the dialect wants stored for this caller, by name, once the reply is complete; without
`stores` only its connection keeps it. `memo` is an object
of the dialect, by which it writes the reply. Copies of an operation share it: it is one for all models that are asked.

`end_user` is the name of the client's own user where it is not `user`: that is what workers are sent.

`cache_key` is the client's name for prompts that share a beginning, where the dialect has one that reaches no worker.

`salt` separates prefix caches: a worker never serves a prompt from what it cached under another salt. Backends whose
workers have no such option leave it out (`ports.Backend.salts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeVar, final

from msgspec import Raw, Struct

from gateway.core.domains import is_within
from gateway.core.http import Response
from gateway.core.upload import Form

T = TypeVar("T")
Extra = dict[str, Raw]
Nested = Mapping[str, "Raw | Nested"]
"""Members without a canonical name, at their places in the tree of objects: `{"function": {"x": 1}}`."""

# Model names that clients send if their caller gave none: huggingface_hub, text-generation, SageMaker's fixed path.
PLACEHOLDERS = frozenset({"", "dummy", "tgi", "default", "/opt/ml/model"})


class Text(Struct, frozen=True, gc=False):
    """A content part: text."""

    text: str
    extra: Nested | None = None


class Image(Struct, frozen=True, gc=False):
    """A content part: an image. url is http(s): or data:; detail is auto | low | high or None."""

    url: str
    detail: str | None = None
    extra: Nested | None = None


class Audio(Struct, frozen=True, gc=False):
    """A content part: sound. data is base64; format is wav | mp3."""

    data: str
    format: str
    extra: Nested | None = None


class ToolCall(Struct, frozen=True, gc=False):
    """A content part: a call of a tool by the model. arguments is the text that the model wrote; it may be invalid
    JSON."""

    id: str | None
    name: str
    arguments: str
    extra: Nested | None = None


class Thinking(Struct, frozen=True, gc=False):
    """A content part: the model's reasoning."""

    text: str


class Refusal(Struct, frozen=True, gc=False):
    """A content part: the model's refusal to answer (OpenAI's `refusal`)."""

    text: str
    extra: Nested | None = None


class Opaque(Struct, frozen=True, gc=False):
    """A content part of a type that has no canonical form. Only a backend of the client's own wire can forward it."""

    type: str
    raw: Raw


Part = Text | Image | Audio | ToolCall | Thinking | Refusal | Opaque


class Message(Struct, frozen=True, gc=False):
    """One message of a chat. role is system | developer | user | assistant | tool; `call_id` is set on tool
    messages."""

    role: str
    parts: tuple[Part, ...] = ()
    name: str | None = None
    call_id: str | None = None
    extra: Nested | None = None


class Tool(Struct, frozen=True, gc=False):
    """A tool that the model may call. parameters is a JSON Schema object as JSON text; None: it takes none."""

    name: str
    description: str | None = None
    parameters: Raw | None = None
    strict: bool | None = None
    extra: Nested | None = None


class NamedTool(Struct, frozen=True):
    """A tool choice: the model must call the tool `name`."""

    name: str
    extra: Nested | None = None


ToolChoice = Literal["none", "auto", "required"] | NamedTool


KindOfServerTool = Literal["search", "fetch"]


class ServerTool(Struct, frozen=True, gc=False):
    """A tool that an API's own server runs while it answers: a search of the web, or the fetch of one page.

    name              the client's name for it, and the model's
    most              calls that the client allows; None: as many as the gateway does
    allowed, blocked  hosts, with their subdomains, whose pages alone are given, and whose pages are not
    """

    kind: KindOfServerTool
    name: str
    most: int | None = None
    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def permits(self, url: str) -> bool:
        """Whether the client wants the page. Raises ValueError for text that is not a URL."""
        return not is_within(url, self.blocked) and (not self.allowed or is_within(url, self.allowed))


class Page(Struct, frozen=True):
    """A page of the web, or the part of one that a search found."""

    url: str
    title: str
    text: str


class ServerCall(Struct):
    """One call of a `ServerTool`.

    id     differs from those of all other calls of the conversation
    asked  the query, or the URL
    error  why it failed, as a word of Anthropic's: "unavailable"; None if it did not
    pages  what it brought
    """

    id: str
    tool: ServerTool
    asked: str = ""
    error: str | None = None
    pages: tuple[Page, ...] = ()


class Citation(Struct, frozen=True):
    """A text names a page, from one character to another one."""

    page: Page
    start: int
    end: int


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


class Sampling(Struct, frozen=True, omit_defaults=True):
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
    """Log probabilities in the reply. top is the number of alternatives per position; 0 is the sampled token only."""

    top: int = 0


class Beams(Struct, frozen=True):
    """Beam search of `width` beams. early_stopping None is the engine's default."""

    width: int
    length_penalty: float | None = None
    early_stopping: bool | None = None


class Operation(Struct, kw_only=True):
    """The fields that all operations have. timeout is the client's own deadline in seconds; generates: a model writes
    the reply, token by token. The module's docstring describes the others."""

    generates: ClassVar[bool] = False
    model: str | None
    stream: bool = False
    user: str | None = None
    end_user: str | None = None
    timeout: float | None = None
    extra: Extra = {}
    dropped: tuple[str, ...] = ()
    model_hints: tuple[str, ...] = ()
    view: str = ""
    raw: Extra | None = None
    wire: str | None = None
    salt: str | None = None
    memo: object = None
    to_store: Mapping[str, bytes] | None = None
    stores: bool = True
    cache_key: str | None = None
    rewritten: bool = False

    def facts(self, kind: type[T]) -> T:
        """`memo`, which is of this kind."""
        assert isinstance(self.memo, kind)
        return self.memo


@final
class Chat(Operation, kw_only=True):
    """Asks for the next message of a chat.

    max_output     tokens; None is the rest of the context
    want_tokens    asks for the ids of the sampled tokens
    continue_last  the last message is the assistant's, and the reply continues its text
    fit_output     cuts `max_output` to what the model's context leaves, and names it as dropped, instead of refusing
    early_usage    asks the worker to report the prompt's tokens before any output of a stream, if it can
    server_tools   those of `tools` that the gateway runs. If there are no tools, one whose result the client wants and
                   that nothing here runs: the reply is its failed call, and no worker is asked
    tool_texts     what such tools have brought in earlier turns, and the URLs that they were given for it: a page that
                   one of these texts names may be fetched
    optional       parameters that are left out, not refused, where the worker cannot do them: vLLM's name
                   ("reasoning_effort") -> the client's name, which is then reported as dropped
    """

    generates = True

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
    early_usage: bool = False
    server_tools: tuple[ServerTool, ...] = ()
    tool_texts: tuple[str, ...] = ()
    optional: Mapping[str, str] = {}
    unnamed: tuple[str, ...] = ()


@final
class Complete(Operation, kw_only=True):
    """Asks for the text after one or more prompts, each a string or token ids.

    max_total, min_total  tokens of prompt and output together
    seeds                 one for each of the n choices of a prompt, or empty; a backend writes the first alone, since
                          the others rise by one from it (`translation.series`)
    want_tokens           asks for the ids of the sampled tokens
    echo                  the reply begins with the prompt
    """

    generates = True

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


@final
class Embed(Operation, kw_only=True):
    """Asks for an embedding of each input, a string or token ids. encoding None is an array of floats. truncate: an
    input that exceeds the model's context is cut off instead of refused, where the engine can do that."""

    inputs: tuple[str | tuple[int, ...], ...]
    encoding: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    truncate: bool = False


@final
class Score(Operation, kw_only=True):
    """Asks how well each document answers its query. One query belongs to every document; of several, each belongs to
    the document at its place. The order of documents by their scores is the dialect's to make."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]


Work = Literal["transcribe", "translate", "speak", "draw", "edit", "vary"]
NOT_DONE: Mapping[Work, str] = {
    "transcribe": "does not transcribe sound",
    "translate": "does not translate sound",
    "speak": "does not speak",
    "draw": "does not draw images",
    "edit": "does not edit images",
    "vary": "does not vary images",
}
"""The words about a model that does not do it."""
MEDIA_FEATURES: Mapping[Work, str] = {
    "transcribe": "transcription",
    "translate": "transcription",
    "speak": "speech",
    "draw": "images",
    "edit": "images",
    "vary": "images",
}
"""The feature that each needs."""


@final
class Media(Operation, kw_only=True):
    """Asks for text of sound, for sound, or for images, by OpenAI's API, whose bytes pass through. `extra` has the
    members of a JSON body but for the model.

    work     what is asked for
    words    the prompt, or the text to speak
    n        how many images
    fields   the texts of an upload, but for the model and the stream, in the client's order
    form     the upload; None for a JSON body
    audio_s  seconds of its sound, by `upload.seconds_of`
    unnamed  members that are passed on, and that this API does not know
    """

    work: Work
    words: str = ""
    n: int = 1
    fields: tuple[tuple[str, str], ...] = ()
    form: Form | None = None
    audio_s: float | None = None
    unnamed: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        """How many it asks for."""
        return self.n if self.work in ("draw", "edit", "vary") else 0


@final
class CountTokens(Operation, kw_only=True):
    """Asks how many tokens the prompt of `prompt_of` has, by the worker's chat template and tokenizer. It generates
    nothing, so it does not wait in the queue, and token limits do not count it.

    Its own `stream`, `extra` and `raw` are unused.
    """

    prompt_of: Chat | Complete


@final
class Tokenize(Operation, kw_only=True):
    """Asks for the tokens of a text, or of a chat's prompt by the worker's chat template. Like `CountTokens` it
    passes neither the queue nor token limits.

    prompt   the text, or a chat of which only the prompt counts
    special  adds the special tokens that the tokenizer puts around a text
    texts    asks for the text of each token too
    spans    asks for the span of each token in the text; not of a chat
    """

    prompt: str | Chat
    special: bool
    texts: bool = False
    spans: bool = False


@final
class Detokenize(Operation, kw_only=True):
    """Asks for the text of tokens. Like `CountTokens` it passes neither the queue nor token limits."""

    tokens: tuple[int, ...]


@final
class ListModels(Struct, kw_only=True):
    """Asks for the list of models. The gateway answers it without a worker, so it is not an operation.

    model  lists only this one
    names  what the configuration may call it instead of `model`; the first that the caller may use counts
    one    lists only the default model, if there is one and `model` is None
    write  makes the reply, in the client's dialect, from the cards that were found; raises GatewayError
    """

    write: Callable[[Sequence[ModelCard]], Response]
    model: str | None = None
    names: tuple[str, ...] = ()
    one: bool = False
    dropped: tuple[str, ...] = ()


@final
class AnsweredFromStore(Struct, frozen=True):
    """A request that is answered from stored texts, without a worker. forgets: names of the texts that must be removed
    before the client gets `reply`."""

    reply: Response
    forgets: tuple[str, ...] = ()


Generate = Chat | Complete


def choices_of(op: Generate) -> int:
    """How many choices the client asked for."""
    return op.n if isinstance(op, Chat) else op.n * len(op.prompts)


Question = CountTokens | Tokenize | Detokenize
"""Operations that a worker answers without its model."""
QUESTIONS = frozenset([CountTokens, Tokenize, Detokenize])
"""The classes of `Question`, for tests of the class of every request: see `core.events`."""
Op = Chat | Complete | Embed | Score | Media | Question


class ModelCard(Struct, frozen=True):
    """One model in the list of models.

    created      Unix seconds
    ready        a worker can serve it now
    max_context  tokens; None if unknown
    alias_of     the model's name, if `name` is an alias of it
    features     as in `ports.Capabilities`; None if unknown
    lacks        as there
    """

    name: str
    created: int
    ready: bool
    max_context: int | None = None
    alias_of: str | None = None
    features: frozenset[str] | None = None
    lacks: frozenset[str] = frozenset()
