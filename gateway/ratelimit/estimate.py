"""Estimates the tokens that a request may use, before a worker has tokenized it.

Prompt token ids are counted exactly. Text is estimated as ceil(UTF-8 bytes / bytes_per_token) and a few tokens for
each message's frame. With bytes_per_token = 1 that is an upper bound for every byte-level tokenizer, because each of
its tokens stands for at least one byte. With the default of 3 the estimate is above the real count for natural language
and code (measured: English near 4.3 bytes a token, code near 3.3, Chinese, Japanese and Korean near 3). It is below the
real count for long runs of digits or random text, whose tokens have 1 to 2 bytes. Settling corrects either way.

Everything that is sent on and may become prompt counts, including unknown members (`documents`,
`chat_template_kwargs`, `prompt_embeds`, ...), by their bytes. Only members that are known not to are left out.

Output is bounded, for each choice, by the client's cap and by what the context leaves. The estimate of the prompt is
high on purpose, so the context may leave more than "context less estimate". Let p be the true length of the prompt,
certain <= p <= estimate. Then at most p + n * min(cap, context - p) tokens are used. That grows with p up to
p = context - cap and falls after it, so it is never above both

    estimate + n * cap    and    context + (n - 1) * cap,    with cap <= context - certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    CountTokens,
    Detokenize,
    Embed,
    Image,
    Message,
    Nested,
    Op,
    Opaque,
    Part,
    Refusal,
    Score,
    Text,
    Thinking,
    Tokenize,
    Tool,
    ToolCall,
)
from gateway.ratelimit.model import Cost

_FRAME = 8
"""Role marks, separators and the generation prompt of one message; published chat templates need 3 to 7."""

_COUNTED = frozenset(["messages", "prompt", "input", "tools", "suffix"])
"""Members of a request that are counted in their canonical form."""
_STEERING_NAMES = """
    model stream stream_options temperature top_p top_k min_p typical_p seed frequency_penalty presence_penalty
    repetition_penalty length_penalty no_repeat_ngram logit_bias stop n best_of use_beam_search early_stopping user
    max_tokens max_completion_tokens min_tokens tool_choice parallel_tool_calls reasoning_effort logprobs
    top_logprobs prompt_logprobs service_tier store metadata moderation modalities audio prompt_cache_key
    prompt_cache_options prompt_cache_retention safety_identifier verbosity web_search_options echo encoding_format
    dimensions ignore_eos stop_token_ids bad_words allowed_token_ids truncate_prompt_tokens add_generation_prompt
    continue_final_message add_special_tokens skip_special_tokens spaces_between_special_tokens
    include_stop_str_in_output priority request_id cache_salt structured_outputs guided_json guided_regex
    guided_choice guided_grammar guided_decoding_backend grammar return_tokens_as_token_ids return_token_ids
    kv_transfer_params vllm_xargs logits_processors timeout max_tokens_per_doc max_tokens_per_query use_activation
    truncation_side padding
"""
_STEERING = frozenset(_STEERING_NAMES.split())
"""Members that never become tokens of the prompt."""
_KNOWN = _COUNTED | _STEERING
_CHOICES = ("best_of", "num_beams", "beam_width", "n_cmpl")
"""Members by which engines are asked for more sequences than `n`."""
_CAPS = ("n_predict", "max_new_tokens")
"""Engines' own names for the cap of the output. If two are given, the larger one counts."""
_IMAGES_OF = {"image_url": 1, "image": 1, "image_embeds": 1, "input_image": 1, "video_url": 16, "video": 16}
"""Media parts without a canonical form -> the number of images that one counts as. vLLM samples 32 frames of a video by
default, and most models use far fewer tokens for a frame than for an image."""
_SOUNDS = frozenset(["audio_url", "input_audio", "audio"])


class Estimator(Struct, frozen=True):
    """Estimates by these constants. bytes_per_token: see above, at least 1. image and audio: tokens for one of them.
    output: tokens to assume if neither the client nor the model's context bounds the output."""

    bytes_per_token: float = 3.0
    image: int = 1_024
    audio: int = 1_500
    output: int = 1_024

    def cost(self, op: Op, max_context: int | None = None) -> Cost:
        """The estimate for prompt plus output, as above. max_context (tokens) bounds both together, for each choice."""
        if isinstance(op, Chat):  # the most frequent first: for a Struct, to be found no instance is slow
            messages, size = op.messages, 0
            prompt = _FRAME * len(messages)
            for message in messages:
                for part in message.parts:
                    if type(part) is Text:
                        text = part.text
                        size += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
                    else:
                        prompt += self._part(part)
                if message.name is not None or message.call_id is not None:
                    prompt += self._text((message.name or "") + (message.call_id or ""))
            prompt += ceil(size / self.bytes_per_token)
            if op.tools:
                prompt += sum([self._tool(tool) for tool in op.tools])
            if op.unnamed:
                prompt += self._bytes(_nested(messages, op.tools))
            prompt, choices, cap = self._with_members(op, prompt, op.n, op.max_output, max_context)
            each = self._each(0, cap, max_context)
            whole = _whole(prompt, 0, choices, each, max_context)
            return Cost(whole, 0, prompt, choices, each, "" if choices == 1 else _multiplier(op, choices))
        if isinstance(op, CountTokens):
            return Cost(0, 0, self.cost(op.prompt_of).prompt)
        if isinstance(op, Embed):
            tokens, least = self._texts(op.inputs)
            tokens, _, _ = self._with_members(op, tokens, 1, 0, max_context)
            return Cost(tokens, least, tokens)
        if isinstance(op, Score):
            return self._score(op)
        if isinstance(op, (Tokenize, Detokenize)):
            return Cost(0, 0, 0)
        return self._complete(op, max_context)

    def _score(self, op: Score) -> Cost:
        """Each document is read together with its query, and with what the template adds to each pair."""
        pairs = len(op.documents)
        added, _, _ = self._with_members(op, _FRAME, 1, 0, None)
        queries = sum([self._text(one) for one in op.queries]) * (pairs // len(op.queries))
        tokens = sum([self._text(one) for one in op.documents]) + queries + pairs * added
        return Cost(tokens, 0, tokens)

    def _complete(self, op: Complete, max_context: int | None) -> Cost:
        tokens, least = self._texts(op.prompts)
        if op.suffix:
            tokens += self._text(op.suffix)
        context = max_context
        if op.max_total is not None:
            context = op.max_total if context is None else min(context, op.max_total)
        choices = op.n if op.beams is None else max(op.n, op.beams.width)
        tokens, choices, cap = self._with_members(op, tokens, choices, op.max_output, context)
        count = max(len(op.prompts), 1)
        certain = min((0 if isinstance(one, str) else len(one) for one in op.prompts), default=0)
        each = self._each(certain, cap, context)
        # The bound of one prompt is concave in its length, so the bound of the mean length bounds the mean.
        whole = _whole(-(-tokens // count), certain, choices, each, context) * count
        field = "" if count == choices == 1 else "prompt" if count > choices else _multiplier(op, choices)
        return Cost(max(whole, tokens), least, tokens, count * choices, each, field)

    def _each(self, certain: int, cap: int | None, context: int | None) -> int:
        """The most tokens that one choice can have."""
        if context is None:
            return self.output if cap is None else cap
        room = max(context - certain, 1)
        return room if cap is None else min(cap, room)

    def _with_members(
        self, op: Chat | Complete | Embed | Score, prompt: int, choices: int, cap: int | None, context: int | None
    ) -> tuple[int, int, int | None]:
        """(prompt, choices, cap) with what members outside the canonical form add."""
        if (
            isinstance(op, (Chat, Complete))
            and op.output is not None
            and op.raw is None
            and op.output.schema is not None
        ):
            prompt += self._bytes(len(bytes(op.output.schema)))
        raw, extra = op.raw, op.extra
        if not extra and (raw is None or raw.keys() <= _KNOWN):
            return prompt, choices, cap
        given = extra if raw is None else {**extra, **raw}
        prompt += self._bytes(sum(len(bytes(value)) for name, value in given.items() if name not in _KNOWN))
        if "chat_template" in given and context is not None:
            prompt = max(prompt, context)  # a template may write anything, as often as it likes
        choices = max([choices, *_numbers(given, _CHOICES)])
        if cap is not None:
            cap = max([cap, *_numbers(given, _CAPS)])
        return prompt, choices, cap

    def _texts(self, texts: tuple[str | tuple[int, ...], ...]) -> tuple[int, int]:
        """(estimate, what is certain)"""
        exact = sum(len(one) for one in texts if not isinstance(one, str))
        return exact + sum(self._text(one) for one in texts if isinstance(one, str)), exact

    def _text(self, text: str) -> int:
        return self._bytes(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")))

    def _bytes(self, size: int) -> int:
        return ceil(size / self.bytes_per_token)

    def _part(self, part: Part) -> int:
        if isinstance(part, (Text, Thinking, Refusal)):
            return self._text(part.text)
        if isinstance(part, ToolCall):
            return _FRAME + self._text(part.id or "") + self._text(part.name) + self._text(part.arguments)
        if isinstance(part, Image):
            return self.image
        if isinstance(part, Audio):
            return self.audio
        assert isinstance(part, Opaque)
        if part.type in _SOUNDS:
            return self.audio
        if part.type in _IMAGES_OF:
            return self.image * _IMAGES_OF[part.type]
        return self._bytes(len(bytes(part.raw)))

    def _tool(self, tool: Tool) -> int:
        size = self._text(tool.name) + self._text(tool.description or "")
        if tool.parameters is not None:
            size += self._bytes(len(bytes(tool.parameters)))
        return _FRAME + size


def _whole(prompt: int, certain: int, choices: int, each: int, context: int | None) -> int:
    """The most tokens that one prompt and its choices can use."""
    most = prompt + choices * each
    # The worker refuses a prompt that exceeds the context; here it counts in full.
    return most if context is None else min(most, max(context, certain + each) + (choices - 1) * each)


def _multiplier(op: Chat | Complete, choices: int) -> str:
    """The name of the member that asks for so many choices."""
    given = op.extra if op.raw is None else {**op.extra, **op.raw}
    return next((name for name in _CHOICES if choices in _numbers(given, (name,))), "n")


def _nested(messages: Sequence[Message], tools: Sequence[Tool]) -> int:
    """Bytes of the members without a canonical name inside messages, their parts, and tools."""
    found = sum(_size(tool.extra) for tool in tools)
    for message in messages:
        found += _size(message.extra) + sum(_size(getattr(part, "extra", None)) for part in message.parts)
    return found


def _size(extra: Nested | None) -> int:
    if not extra:
        return 0
    return sum(len(bytes(one)) if isinstance(one, Raw) else _size(one) for one in extra.values())


def _numbers(given: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    """The whole numbers among the members of these names. Other values do not count here: their reader refuses them."""
    found = []
    for name in names:
        if name in given:
            try:
                found.append(max(0, msgspec.json.decode(bytes(given[name]), type=int)))
            except msgspec.MsgspecError:
                continue
    return found
