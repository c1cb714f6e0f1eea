"""The interface of a backend, and facts about engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from gateway.core.continuation import Partial
from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.http import Request, Response
from gateway.core.lifecycle import Detokenized, Embeddings, Scores, TokenCount, Tokens
from gateway.core.messages import Detokenize, Embed, Generate, Op, Score, Tokenize
from gateway.core.ports.dialect import StreamReader

BEYOND = frozenset({"no_repeat_ngram", "bad_word_tokens"})
"""Features that need an addition to the engine. They are used only if they are declared or advertised."""


class Capabilities(Struct, frozen=True):
    """The capabilities of one model's workers, as its configuration declares them or its workers advertise.

    upstream_model  the name the workers know it by
    max_context     tokens, or None when unknown
    features        optional abilities: tools, vision, audio, reasoning, json_schema, regex, beams, embeddings, scores,
                    ...; None when nothing was declared (then nothing is refused beforehand)
    lacks           features that a worker reports as missing, whatever was declared
    beyond          abilities beyond the stock engine that are declared, or that every worker reports; a request that
                    needs another one is refused
    version         the oldest of the workers' engines, its numbers; () when unknown
    system          "merge": their chat template takes one system message, the first one, and then turns. "keep": they
                    take messages in any order, and the role `developer`
    """

    upstream_model: str
    max_context: int | None = None
    features: frozenset[str] | None = None
    lacks: frozenset[str] = frozenset()
    beyond: frozenset[str] = frozenset()
    version: tuple[int, ...] = ()
    system: Literal["merge", "keep"] = "merge"


class Facts(Struct, frozen=True):
    """Facts that a worker reports of itself; None and absent keys are unknown. max_model_len is its context in tokens,
    adapters the LoRA adapters that it has loaded for the model, others the names of the models that it serves, if the
    one that was asked about is not among them."""

    version: str | None = None
    max_model_len: int | None = None
    abilities: dict[str, bool] = {}
    adapters: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


UNKNOWN = Facts()


class Gauges(Struct, frozen=True):
    """The names of an engine's figures at /metrics.

    running, waiting  gauges: requests that run and that wait
    prompt, cached, output  counters: tokens of prompts, those of them that were cached, and tokens of replies; or None
    in_replies        what `waiting` is called in the `endpoint-load-metrics` header of its replies; None without one
    progress          figures that change while the engine itself works, and never by its web server alone
    """

    running: str
    waiting: str
    prompt: str | None = None
    cached: str | None = None
    output: str | None = None
    in_replies: str | None = None
    progress: tuple[str, ...] = ()


Answer = TypeVar("Answer", bound=TokenCount | Tokens | Detokenized, covariant=True)


class Ask(Struct, Generic[Answer], frozen=True):
    """A request for what a worker answers without its model. `read` takes the reply from the answer, which may have any
    status. It raises GatewayError; UNSUPPORTED if this worker turns out not to do it."""

    request: Request
    read: Callable[[Response], Answer]


class Resumption(Struct, frozen=True):
    """How another worker goes on with a reply.

    request   asks for the rest of it
    repeated  the end of the text so far, which was left out of `request`: the worker writes it again (`Lane.splice`)
    """

    request: Request
    repeated: str = ""


class Handover(Protocol):
    """How a worker that has computed a prompt hands it to another one, which then generates the reply."""

    def first(self, request: Request) -> Request | None:
        """The request that makes a worker compute the prompt of `request` and keep the result; None if `request` needs
        more of the prompt than can be handed over."""

    def handed(self, response: Response) -> bytes:
        """The location of the result, from the 200 that answers it. Raises GatewayError(UPSTREAM) if the worker kept
        none."""

    def second(self, request: Request, handed: bytes) -> Request:
        """`request` for a worker that is to fetch the result."""


class Backend(Protocol):
    """One worker-side API.

    name        as in configuration
    salts       its workers have a place for `op.salt`
    facts_path  the path where a worker reports what it can do (`facts` reads the answer); None if there is none
    gauges      the metrics in which its workers report their load; None if they do not
    handover    how one worker hands a computed prompt to another; None if they do not
    adapters    its workers may name LoRA adapters in their facts
    tasks       features of a model -> the path that its workers have if their model has it, and else not; {} if they
                have all paths whatever their model does
    cache_events  its workers can publish what is in their prefix caches, as vLLM does, and return a prompt's tokens
    """

    name: str
    salts: bool = False
    facts_path: str | None
    gauges: Gauges | None = None
    handover: Handover | None = None
    adapters: bool = False
    tasks: Mapping[str, str] = {}
    cache_events: bool = False

    def reply_wire(self, op: Op) -> str:
        """The wire of the worker's reply to `op`. A dialect with a passthrough lane for it passes the bytes on."""

    def write(self, op: Op, can: Capabilities) -> Request:
        """The worker's request. Its `dropped` names what it leaves out, such as `op.unnamed`. Raises
        GatewayError(UNSUPPORTED), which names the parameter, for what the worker cannot do."""

    def count(self, op: Generate, can: Capabilities) -> Ask[TokenCount]:
        """The request for the length of the one prompt of `op`, as the worker reads it. Raises
        GatewayError(UNSUPPORTED) if workers of this backend cannot count it, or cannot obey a total of `op`, which it
        then names."""

    def tokenize(self, op: Tokenize | Detokenize, can: Capabilities) -> Ask[Tokens | Detokenized]:
        """The request for tokens, or for the text of tokens. Raises GatewayError(UNSUPPORTED) if workers of this
        backend cannot do it."""

    def resume(self, request: Request, partial: Partial) -> Resumption | str:
        """Asks a worker to go on with a reply to `request`, as `write` made it, of which the client has seen `partial`.
        Returns the reason instead if the rest would not be what the first worker would have sent."""

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        """A buffered 2xx reply. Ends with End or Failed."""

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings: ...
    def read_scores(self, response: Response, op: Score) -> Scores: ...
    def reader(self, op: Generate) -> StreamReader: ...
    def fault(self, response: Response, op: Op | None = None) -> GatewayError:
        """The error for an answer to `op` with any status but 2xx."""

    def facts(self, body: bytes, model: str) -> Facts:
        """Reads the answer at `facts_path` for the model that the worker calls `model`.

        Raises GatewayError(UPSTREAM) if the answer has another form."""
