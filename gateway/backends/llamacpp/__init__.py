"""Backend for llama.cpp's server: chats over its OpenAI endpoint, text completions over its own `/completion`.

`/v1/completions` is not used: it has no token ids, counts one choice only, and silently ignores `echo` and `suffix`.
Measured with xllamacpp 2026.10.11549; the findings are in docs/backends/llamacpp.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from gateway.backends.llamacpp.replies import (
    TextReader,
    VerboseReader,
    input_tokens,
    named,
    token_count,
    tokens_of,
)
from gateway.backends.llamacpp.requests import NAME, PARAMETERS, adjust_chat, adjust_embed, score_body, text_body
from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.http import Request, Response
from gateway.core.lifecycle import Detokenized, TokenCount, Tokens
from gateway.core.messages import Chat, Complete, Detokenize, Embed, Generate, Media, Op, Score, Tokenize
from gateway.core.ports import Ask, Capabilities, Facts, Gauges, Partial, Resumption, StreamReader
from gateway.wire.openai.backend import OpenAIBackend, Written
from gateway.wire.openai.media.requests import unable
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.reading import ChatReader
from gateway.wire.openai.requests.resuming import append_to_chat, append_to_prompt, resumed
from gateway.wire.openai.requests.unsupported import unsupported
from gateway.wire.openai.requests.writing import PATHS, outgoing, prompt_of
from gateway.wire.openai.scores import RERANK
from gateway.wire.openai.tokens import read_text


class LlamaCpp(OpenAIBackend):
    name = NAME
    gauges = Gauges(
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        progress=("llamacpp:n_decode_total", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
    )
    facts_path = "/props"

    def reply_wire(self, op: Op) -> str:
        if isinstance(op, Complete):
            return NAME
        if not isinstance(op, Chat) or not _verbose(op):
            return "openai"
        return f"{NAME} chat" if op.n > 1 else f"{NAME} stop"

    def _media(self, op: Media, can: Capabilities) -> Request:
        raise unable(op, NAME)

    def _written(self, op: Chat | Complete | Embed | Score, can: Capabilities) -> Written:
        if type(op) is Complete:
            return Written("/completion", *text_body(op, can))
        if type(op) is Score:
            return Written(RERANK, *score_body(op, can))
        body, dropped = outgoing(op, can, PARAMETERS)
        dropped += adjust_embed(body, op) if type(op) is Embed else adjust_chat(body, op, can)
        return Written(PATHS[type(op)], body, dropped)

    def resume(self, request: Request, partial: Partial) -> Resumption | str:
        """An unfinished last message goes on by itself; the chat template does not touch its text."""
        return resumed(request, partial, append_to_chat if request.path == PATHS[Chat] else append_to_prompt)

    def count(self, op: Generate, can: Capabilities) -> Ask[TokenCount]:
        if isinstance(op, Chat):
            body = prompt_of(op, can, PARAMETERS)
            return self._ask(op, "/v1/chat/completions/input_tokens", body, input_tokens)
        if op.min_total is not None:
            raise unsupported("min_total_tokens", NAME)
        (prompt,) = op.prompts
        # As /completion does: with the special tokens that the model puts before a text.
        return self._ask(op, "/tokenize", {"content": prompt, "add_special": True}, token_count)

    def tokenize(self, op: Tokenize | Detokenize, can: Capabilities) -> Ask[Tokens | Detokenized]:
        """Raises GatewayError(UNSUPPORTED) for a chat: the worker only counts its tokens."""
        if isinstance(op, Detokenize):
            return self._ask(op, "/detokenize", {"tokens": op.tokens}, read_text)
        if isinstance(op.prompt, Chat):
            raise unsupported("messages", NAME, "it returns the tokens of a text, in 'prompt'")
        body = {"content": op.prompt, "add_special": op.special, "with_pieces": op.texts or op.spans}
        return self._ask(op, "/tokenize", body, lambda answer: tokens_of(answer, op, can.max_context))

    def read(self, response: Response, op: Generate) -> Iterator[Event]:
        if isinstance(op, Complete):
            yield from TextReader(op).whole(response.body)
        elif op.n > 1:
            reader = VerboseReader(op)
            yield from reader.feed(response.body)
            yield from reader.eof()
        else:
            yield from self._chat_reader(op).whole(response.body)

    def reader(self, op: Generate) -> StreamReader:
        if isinstance(op, Complete):
            return TextReader(op)
        return self._chat_reader(op)

    def _chat_reader(self, op: Chat) -> ChatReader:
        return VerboseReader(op) if _verbose(op) else ChatReader(op)

    def _fault(self, response: Response) -> GatewayError:
        return named(super()._fault(response))

    def facts(self, body: bytes, model: str) -> Facts:
        found = wire.decoded(body, _props)
        caps, modalities = found.chat_template_caps, found.modalities
        known = {
            "tools": caps.supports_tools,
            "reasoning": caps.supports_reasoning_effort,
            "vision": modalities.vision,
            "audio": modalities.audio,
        }
        abilities = {name: has for name, has in known.items() if has is not None}
        return Facts(max_model_len=found.default_generation_settings.n_ctx or None, abilities=abilities)


def _verbose(op: Op) -> bool:
    """True for a chat whose reply has more than OpenAI's: the usage of each of several choices, or the stop phrase
    that was met."""
    return isinstance(op, Chat) and (op.n > 1 or bool(op.stop))


class _CapsIn(Struct, frozen=True):
    """The abilities of the model's chat template."""

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


_props = msgspec.json.Decoder(_PropsIn)
