"""Backend for llama.cpp's server: chats over its OpenAI endpoint, text completions over its own `/completion`.

`/v1/completions` is not used: it has no token ids, counts one choice only, and silently ignores `echo` and `suffix`.
Measured with xllamacpp 2026.10.11549; the findings are in docs/backends/llamacpp.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from gateway.backends.llamacpp.errors import fault_of
from gateway.backends.llamacpp.replies import TextReader, ToldReader, token_count, tokens_of
from gateway.backends.llamacpp.requests import NAME, WORDS, adjust_chat, adjust_embed, score_body, text_body
from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Embeddings, Scores
from gateway.core.messages import Chat, Complete, Detokenize, Embed, Generate, Op, Score, Tokenize
from gateway.core.ports import Ask, Capabilities, Counting, Facts, Gauges, Handover, StreamReader
from gateway.wire.json import encode
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.defaults import DEFAULTS, ReplyDefaults
from gateway.wire.openai.replies.reading import ChatReader, read_embeddings
from gateway.wire.openai.requests.parts import unsupported
from gateway.wire.openai.requests.writing import PATHS, outgoing, prompt_of, tokenize
from gateway.wire.openai.scores import RERANK, inability, read_scores
from gateway.wire.openai.tokens import ask_tokens, read_text


class LlamaCpp:
    """The backend `llamacpp`."""

    name = NAME
    salts = False
    gauges: Gauges | None = Gauges("llamacpp:requests_processing", "llamacpp:requests_deferred")
    handover: Handover | None = None
    adapters = False
    cache_events = False
    facts_path: str | None = "/props"

    def __init__(self, defaults: ReplyDefaults = DEFAULTS) -> None:
        self._defaults = defaults

    def wire_of(self, op: Op) -> str:
        if isinstance(op, Complete):
            return NAME
        if not isinstance(op, Chat) or not _told(op):
            return "openai"
        return f"{NAME} chat" if op.n > 1 else f"{NAME} stop"

    def write(self, op: Op, can: Capabilities) -> Request:
        if isinstance(op, Score):
            body, dropped = score_body(op, can)
            return Request("POST", RERANK, [JSON_TYPE], encode(body), dropped=dropped)
        assert isinstance(op, (Chat, Complete, Embed))
        if isinstance(op, Complete):
            body, dropped = text_body(op, can)
            return Request("POST", "/completion", [JSON_TYPE], encode(body), dropped=dropped)
        body, dropped = outgoing(op, can, WORDS)
        if isinstance(op, Embed):
            dropped += adjust_embed(body, op)
        else:
            dropped += adjust_chat(body, op, can)
            if op.stop:
                # A chat's reply says only that it stopped. This adds what its own API says beside that, cut to the
                # phrase that was met.
                body["verbose"], body["response_fields"] = True, ["stopping_word"]
            if op.n > 1:
                # The usage of a buffered reply covers one choice only; a stream reports the usage of each.
                body["stream"], body["stream_options"] = True, {"include_usage": True}
        return Request("POST", PATHS[type(op)], [JSON_TYPE], encode(body), dropped=dropped)

    def count(self, op: Generate, can: Capabilities) -> Counting:
        if isinstance(op, Chat):
            where = "/v1/chat/completions/input_tokens"
            body = prompt_of(op, can, WORDS)
            return tokenize(op, self, body, lambda said: _input_tokens.decode(said).input_tokens, where)
        if op.min_total is not None:
            raise unsupported("min_total_tokens", NAME)
        (prompt,) = op.prompts
        # As /completion does: with the special tokens that the model puts before a text.
        return tokenize(op, self, {"content": prompt, "add_special": True}, token_count)

    def tokenize(self, op: Tokenize | Detokenize, can: Capabilities) -> Ask:
        """Of a chat only the number of its tokens can be had. Raises GatewayError(UNSUPPORTED) for one."""
        if isinstance(op, Detokenize):
            return ask_tokens(op, self, {"tokens": op.tokens}, read_text, "/detokenize")
        if isinstance(op.prompt, Chat):
            raise unsupported("messages", NAME, "it tells the tokens of a text, in 'prompt'")
        body = {"content": op.prompt, "add_special": op.special, "with_pieces": op.texts}
        return ask_tokens(op, self, body, lambda said: tokens_of(said, can.max_context), "/tokenize")

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        if isinstance(op, Complete):
            yield from TextReader(op, self._defaults).whole(response.body)
        elif op.n > 1:
            reader = ToldReader(op, self._defaults)
            yield from reader.feed(response.body)
            yield from reader.eof()
        else:
            yield from self._chat_reader(op).whole(response.body)

    def reader(self, op: Generate) -> StreamReader:
        if isinstance(op, Complete):
            return TextReader(op, self._defaults)
        return self._chat_reader(op)

    def _chat_reader(self, op: Chat) -> ChatReader:
        return ToldReader(op, self._defaults) if _told(op) else ChatReader(op, self._defaults)

    def read_embeddings(self, response: Response, op: Embed) -> Embeddings:
        return read_embeddings(response, op)

    def read_scores(self, response: Response, op: Score) -> Scores:
        return read_scores(response, op)

    def fault(self, response: Response, op: Op | None = None) -> GatewayError:
        return inability(response, op, NAME) or fault_of(response, self._defaults.now())

    def facts(self, body: bytes, model: str) -> Facts:
        found = wire.decoded(body, _props)
        caps, modalities = found.chat_template_caps, found.modalities
        told = {
            "tools": caps.supports_tools,
            "reasoning": caps.supports_reasoning_effort,
            "vision": modalities.vision,
            "audio": modalities.audio,
        }
        abilities = {name: has for name, has in told.items() if has is not None}
        return Facts(max_model_len=found.default_generation_settings.n_ctx or None, abilities=abilities)


def _told(op: Op) -> bool:
    """True for a chat whose reply says more than OpenAI's: the usage of each of several choices, or the stop phrase
    that was met."""
    return isinstance(op, Chat) and (op.n > 1 or bool(op.stop))


class _CapsIn(Struct, frozen=True):
    """What the model's chat template supports."""

    supports_tools: bool | None = None
    supports_reasoning_effort: bool | None = None


class _ModalitiesIn(Struct, frozen=True):
    vision: bool | None = None
    audio: bool | None = None


class _SettingsIn(Struct, frozen=True):
    n_ctx: wire.Count | None = None


class _PropsIn(Struct):
    """`/props`; n_ctx is the context of one slot, in tokens."""

    chat_template_caps: _CapsIn = _CapsIn()
    modalities: _ModalitiesIn = _ModalitiesIn()
    default_generation_settings: _SettingsIn = _SettingsIn()


class _InputTokensIn(Struct):
    """`/v1/chat/completions/input_tokens`."""

    input_tokens: wire.Count


_input_tokens = msgspec.json.Decoder(_InputTokensIn)
_props = msgspec.json.Decoder(_PropsIn)
