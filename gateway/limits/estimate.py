"""How many tokens a request may use, before anybody has tokenized it.

Prompt token ids are counted exactly. Text is estimated as ceil(UTF-8 bytes / bytes_per_token) and a few tokens for
each message's frame. With bytes_per_token = 1 that is an upper bound for every byte-level tokenizer, as each of its
tokens stands for at least one byte. The default of 3 is above the real count for natural language and code (measured
English is near 4.3 bytes a token, code near 3.3, and Chinese, Japanese and Korean near 3), and below it for long runs
of digits or random text, where tokens are as short as 1 to 2 bytes. Settling corrects either way.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    Embed,
    Image,
    Op,
    Opaque,
    Part,
    Refusal,
    Text,
    Thinking,
    Tool,
    ToolCall,
)
from gateway.limits.model import Cost

_FRAME = 8
"""Role marks, separators and the generation prompt of one message; published chat templates need 3 to 7."""


class Estimator(Struct, frozen=True):
    """bytes_per_token: see above, at least 1. image and audio_second: tokens. output: assumed where the client sets
    no cap and the model's context is unknown."""

    bytes_per_token: float = 3.0
    image: int = 1_024
    audio: int = 1_500
    output: int = 1_024

    def cost(self, op: Op, max_context: int | None = None) -> Cost:
        """Prompt plus output cap. max_context in tokens bounds the whole, for each of the n choices."""
        if isinstance(op, Chat):  # the most frequent first: for a Struct, to be found no instance is slow
            prompt = _FRAME * len(op.messages)
            try:
                texts = [part.text for message in op.messages for part in message.parts]  # type: ignore[union-attr]
                prompt += self._text("".join(texts))
            except AttributeError:  # there is more than text
                prompt += sum([self._part(part) for message in op.messages for part in message.parts])
            if op.tools:
                prompt += sum([self._tool(tool) for tool in op.tools])
            return Cost(prompt + op.n * self._output(op.max_output, prompt, max_context), 0, prompt)
        if isinstance(op, Embed):
            tokens, least = self._texts(op.inputs)
            return Cost(tokens, least, tokens)
        tokens, least = self._texts(op.prompts)
        return Cost(tokens + self._completions(op, tokens, max_context), least, tokens)

    def _completions(self, op: Complete, prompt: int, max_context: int | None) -> int:
        count = max(len(op.prompts), 1)
        each = prompt // count
        cap = op.max_output
        if op.max_total is not None:
            room = max(op.max_total - each, 0)
            cap = room if cap is None else min(cap, room)
        choices = op.n if op.beams is None else max(op.n, op.beams.width)
        return count * choices * self._output(cap, each, max_context)

    def _output(self, cap: int | None, prompt: int, max_context: int | None) -> int:
        room = None if max_context is None else max(max_context - prompt, 1)
        if cap is None:
            return self.output if room is None else room
        return cap if room is None else min(cap, room)

    def _texts(self, texts: tuple[str | tuple[int, ...], ...]) -> tuple[int, int]:
        """(estimate, what is certain)"""
        exact = sum(len(one) for one in texts if not isinstance(one, str))
        return exact + sum(self._text(one) for one in texts if isinstance(one, str)), exact

    def _text(self, text: str) -> int:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        return ceil(size / self.bytes_per_token)

    def _part(self, part: Part) -> int:
        if isinstance(part, (Text, Thinking, Refusal)):
            return self._text(part.text)
        if isinstance(part, ToolCall):
            return _FRAME + self._text(part.name) + self._text(part.arguments)
        if isinstance(part, Image):
            return self.image
        if isinstance(part, Audio):
            return self.audio
        assert isinstance(part, Opaque)
        return ceil(len(bytes(part.raw)) / self.bytes_per_token)

    def _tool(self, tool: Tool) -> int:
        size = self._text(tool.name) + self._text(tool.description or "")
        if tool.parameters is not None:
            size += ceil(len(bytes(tool.parameters)) / self.bytes_per_token)
        return _FRAME + size
