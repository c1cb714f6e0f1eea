"""Estimates the tokens that a request may use, before a worker has tokenized it, by one walk over it (`content`).

`Estimator` gives limits an upper bound. Prompt token ids are counted exactly. Text is estimated as
ceil(UTF-8 bytes / bytes_per_token) and a few tokens for each message's frame. With bytes_per_token = 1 that is an upper
bound for every byte-level tokenizer, because each of its tokens stands for at least one byte. With the default of 3 the
estimate is above the real count for natural language and code (measured: English near 4.3 bytes a token, code near 3.3,
Chinese, Japanese and Korean near 3). It is below the real count for long runs of digits or random text, whose tokens
have 1 to 2 bytes. Settling corrects either way.

Everything that is sent on and may become prompt counts, including unknown members (`documents`,
`chat_template_kwargs`, `prompt_embeds`, ...), by their bytes. Only members that are known not to are left out.

Output is bounded, for each choice, by the client's cap and by what the context leaves. The estimate of the prompt is
high on purpose, so the context may leave more than "context less estimate". Let p be the true length of the prompt,
certain <= p <= estimate. Then at most p + n * min(cap, context - p) tokens are used. That grows with p up to
p = context - cap and falls after it, so it is never above both

    estimate + n * cap    and    context + (n - 1) * cap,    with cap <= context - certain.

`rough` gives pick policies and queues the likely size instead, from characters and without frames: they compare
requests with each other, and a bound would weigh short texts too heavily.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, assert_never

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    CountTokens,
    Embed,
    Image,
    Media,
    Message,
    Nested,
    Op,
    Opaque,
    Part,
    Question,
    Refusal,
    Score,
    Text,
    Thinking,
    Tool,
    ToolCall,
)
from gateway.core.money import Rates

CHARACTERS = 4
"""Characters of a token, on average; bytes of a body where nothing else is known."""
OUTPUT = 256
"""Tokens that `rough` readers take a reply to have, unless its client bounds it lower."""
IMAGE = 1_024
"""Tokens that an image or a sound is taken for by `rough`."""
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
_FROM_AUDIO = ("transcribe", "translate")
"""Work whose outputs are texts."""
_SOUNDS = frozenset(["audio_url", "input_audio", "audio"])


class Cost(Struct, frozen=True):
    """The tokens that a request may use.

    tokens   the reservation: prompt and output
    least    a lower bound (0: unknown); a request whose `least` is above a token limit can never be admitted
    prompt   the estimate of the prompt
    choices  the number of outputs that it asks for
    each     the most tokens that each of these may have
    field    vLLM's name of the field that asks for more than one; "" if `choices` is 1. A request whose choices may
             have more tokens together than a token limit can never be admitted
    money    nano of the currency for all of it; 0 without a price
    audio_s  seconds of sound, 0 if unknown
    images   that it asks for
    rates    by which `money` was found
    """

    tokens: int = 0
    least: int = 0
    prompt: int = 0
    choices: int = 1
    each: int = 0
    field: str = ""
    money: int = 0
    audio_s: int = 0
    images: int = 0
    rates: Rates | None = None

    def priced(self, rates: Rates) -> Cost:
        """This with its price. The output is taken at its most beside the whole prompt: the price of a token of output
        is the higher one, and the estimate of a prompt is high."""
        return replace(self, money=rates.cost(self.prompt, self.choices * self.each, 0, self.images), rates=rates)

    def with_outputs_of(self, each: int) -> Cost:
        """This if each of its outputs has `each` tokens, fewer than it may have."""
        output = self.choices * each
        money = 0 if self.rates is None else self.rates.cost(self.prompt, output, 0, self.images)
        return replace(self, tokens=min(self.tokens, self.prompt + output), money=min(self.money, money))


class Content(Struct):
    """The parts of a request that become prompt, beside the texts that the chat template joins.

    apart   texts that stand alone, each of at least one token
    tokens  prompt token ids
    frames  tools, calls of tools, and pairs of a query and a document
    images, sounds
    json    bytes of JSON that is passed on
    """

    apart: Sequence[str] = ()
    tokens: int = 0
    frames: int = 0
    images: int = 0
    sounds: int = 0
    json: int = 0


_NOTHING = Content()


def content(op: Chat | Complete | Embed | Score) -> tuple[list[str], Content]:
    """(texts that are joined, everything else) of messages and tools, of prompts, of inputs, or of documents, each
    document with its query."""
    texts: list[str] = []
    found = _NOTHING  # most chats hold nothing but text
    if isinstance(op, Chat):  # the most frequent first: for a Struct, to be found no instance is slow
        for message in op.messages:
            for part in message.parts:
                if type(part) is Text:
                    texts.append(part.text)
                else:
                    found = Content() if found is _NOTHING else found
                    _add(part, texts, found)
            if message.name is not None or message.call_id is not None:
                texts += (message.name or "", message.call_id or "")
        if op.tools:
            found = Content() if found is _NOTHING else found
            found.frames += len(op.tools)
            for tool in op.tools:
                texts += (tool.name, tool.description or "")
                found.json += _size(tool.parameters)
        return texts, found
    if isinstance(op, Score):
        pairs = len(op.documents)
        return texts, Content([*op.documents, *op.queries * (pairs // len(op.queries))], 0, pairs)
    given = op.prompts if isinstance(op, Complete) else op.inputs
    return texts, Content([one for one in given if isinstance(one, str)], _certain(given))


def _add(part: Part, texts: list[str], found: Content) -> None:
    match part:
        case Text() | Thinking() | Refusal():
            texts.append(part.text)
        case ToolCall():
            found.frames += 1
            texts += (part.id or "", part.name, part.arguments)
        case Image():
            found.images += 1
        case Audio():
            found.sounds += 1
        case Opaque() if part.type in _SOUNDS:
            found.sounds += 1
        case Opaque() if part.type in _IMAGES_OF:
            found.images += _IMAGES_OF[part.type]
        case Opaque():
            found.json += _size(part.raw)


def rough(op: Chat | Complete | Embed | Score) -> int:
    """The likely tokens of the prompt."""
    texts, found = content(op)
    tokens = (sum(map(len, texts)) + found.json) // CHARACTERS + bool(texts)
    if found is _NOTHING:
        return tokens
    apart = sum([len(one) // CHARACTERS + 1 for one in found.apart])
    return tokens + apart + found.tokens + IMAGE * (found.images + found.sounds)


class Estimator(Struct, frozen=True):
    """Estimates by these constants. bytes_per_token: see above, at least 1. image and audio: tokens for one of them.
    output: tokens to assume if neither the client nor the model's context bounds the output."""

    bytes_per_token: float = 3.0
    image: int = 1_024
    audio: int = 1_500
    output: int = 1_024

    def cost(self, op: Op, max_context: int | None = None) -> Cost:
        """The estimate for prompt plus output, as above. max_context (tokens) bounds both together, for each choice."""
        if isinstance(op, Chat):
            given = _unknown(op)
            prompt = self._prompt(op, given, max_context)
            choices, each = self._outputs(op, given, op.n, 0, max_context)
            whole = _whole(prompt, 0, choices, each, max_context)
            return Cost(whole, 0, prompt, choices, each, "" if choices == 1 else _multiplier(op, choices))
        if isinstance(op, Complete):
            return self._complete(op, max_context)
        if isinstance(op, Embed):
            tokens = self._prompt(op, _unknown(op), max_context)
            return Cost(tokens, _certain(op.inputs), tokens)
        if isinstance(op, Score):
            tokens = self._prompt(op, _unknown(op), None)
            return Cost(tokens, 0, tokens)
        if isinstance(op, Media):
            return self._media(op)
        if isinstance(op, CountTokens):
            return Cost(0, 0, self.cost(op.prompt_of).prompt)
        if isinstance(op, Question):
            return Cost()
        assert_never(op)

    def outputs(self, op: Op, max_context: int | None = None) -> tuple[int, int]:
        """`choices` and `each` of the estimate, without a walk over the prompt."""
        if isinstance(op, Chat):
            return self._outputs(op, _unknown(op), op.n, 0, max_context)
        if isinstance(op, Complete):
            choices, each = self._outputs(op, _unknown(op), _width(op), 0, _context(op, max_context))
            return choices * max(len(op.prompts), 1), each
        if isinstance(op, Media):
            return op.n, self.output if op.work in _FROM_AUDIO else 0
        return 1, 0

    def _media(self, op: Media) -> Cost:
        """The words, each file, and as many outputs as are asked for."""
        from_audio = op.work in _FROM_AUDIO
        files = 0 if op.form is None else len(op.form.files)
        prompt = ceil(_bytes(op.words) / self.bytes_per_token) + files * (self.audio if from_audio else self.image)
        choices, each = self.outputs(op)
        # A limit on seconds must see that there are some: of nothing it takes no account.
        audio_s = max(1, ceil(op.audio_s or 0)) if from_audio else 0
        return Cost(prompt + each, 0, prompt, choices, each, audio_s=audio_s, images=op.images)

    def _complete(self, op: Complete, max_context: int | None) -> Cost:
        context, given = _context(op, max_context), _unknown(op)
        tokens = self._prompt(op, given, context)
        count = max(len(op.prompts), 1)
        certain = min((0 if isinstance(one, str) else len(one) for one in op.prompts), default=0)
        choices, each = self._outputs(op, given, _width(op), certain, context)
        # The bound of one prompt is concave in its length, so the bound of the mean length bounds the mean.
        whole = _whole(-(-tokens // count), certain, choices, each, context) * count
        field = "" if count == choices == 1 else "prompt" if count > choices else _multiplier(op, choices)
        return Cost(max(whole, tokens), _certain(op.prompts), tokens, count * choices, each, field)

    def _outputs(
        self, op: Chat | Complete, given: Mapping[str, Raw] | None, choices: int, certain: int, context: int | None
    ) -> tuple[int, int]:
        """(choices of one prompt, the most tokens of each). given: from `_unknown`; choices: of canonical members."""
        cap = op.max_output
        if given is not None:
            choices, cap = _asked(given, choices, cap)
        if context is None:
            return choices, self.output if cap is None else cap
        room = max(context - certain, 1)
        return choices, room if cap is None else min(cap, room)

    def _prompt(self, op: Chat | Complete | Embed | Score, given: Mapping[str, Raw] | None, context: int | None) -> int:
        """The estimate of the prompt. given: from `_unknown`."""
        texts, found = content(op)
        size, each = found.json, self.bytes_per_token
        prompt = 0
        if found is not _NOTHING:
            prompt += found.tokens + _FRAME * found.frames + self.image * found.images + self.audio * found.sounds
            prompt += sum([ceil(_bytes(one) / each) for one in found.apart])
        if isinstance(op, Chat):
            prompt += _FRAME * len(op.messages)
            if op.unnamed:
                size += _nested(op.messages, op.tools)
        elif isinstance(op, Complete) and op.suffix:
            texts.append(op.suffix)
        if isinstance(op, (Chat, Complete)) and op.output is not None and op.raw is None:
            size += _size(op.output.schema)
        if given is not None:
            unknown = sum([_size(value) for name, value in given.items() if name not in _KNOWN])
            size += unknown * (found.frames if isinstance(op, Score) else 1)
        size += sum(map(len, texts)) if all(map(str.isascii, texts)) else sum(map(_bytes, texts))
        prompt += ceil(size / each)
        if given is not None and "chat_template" in given and context is not None:
            return max(prompt, context)  # a template may write anything, as often as it likes
        return prompt


def _context(op: Complete, context: int | None) -> int | None:
    """The bound of prompt and output together."""
    if op.max_total is None or context is None:
        return context if op.max_total is None else op.max_total
    return min(op.max_total, context)


def _width(op: Complete) -> int:
    """The choices of one prompt."""
    return op.n if op.beams is None else max(op.n, op.beams.width)


def _unknown(op: Chat | Complete | Embed | Score) -> Mapping[str, Raw] | None:
    """All members outside the canonical form; None if each is known to add nothing."""
    raw = op.raw
    return None if not op.extra and (raw is None or raw.keys() <= _KNOWN) else _given(op)


def unknown_members(op: Chat | Complete | Embed | Score) -> list[str]:
    """The names of members outside the canonical form that may become prompt."""
    return [name for name in _given(op) if name not in _KNOWN]


def _asked(given: Mapping[str, Raw], choices: int, cap: int | None) -> tuple[int, int | None]:
    """(choices, cap of each), raised to those in engines' own members."""
    return max([choices, *_numbers(given, _CHOICES)]), None if cap is None else max([cap, *_numbers(given, _CAPS)])


def _given(op: Chat | Complete | Embed | Score) -> Mapping[str, Raw]:
    return op.extra if op.raw is None else {**op.extra, **op.raw}


def _certain(texts: Sequence[str | tuple[int, ...]]) -> int:
    return sum([len(one) for one in texts if not isinstance(one, str)])


def _whole(prompt: int, certain: int, choices: int, each: int, context: int | None) -> int:
    """The most tokens that one prompt and its choices can use."""
    most = prompt + choices * each
    # The worker refuses a prompt that exceeds the context; here it counts in full.
    return most if context is None else min(most, max(context, certain + each) + (choices - 1) * each)


def _multiplier(op: Chat | Complete, choices: int) -> str:
    """The name of the member that asks for so many choices."""
    given = _given(op)
    return next((name for name in _CHOICES if choices in _numbers(given, (name,))), "n")


def _nested(messages: Sequence[Message], tools: Sequence[Tool]) -> int:
    """Bytes of the members without a canonical name inside messages, their parts, and tools."""
    found = sum(_size(tool.extra) for tool in tools)
    for message in messages:
        found += _size(message.extra) + sum(_size(getattr(part, "extra", None)) for part in message.parts)
    return found


def _size(json: Raw | Nested | None) -> int:
    if isinstance(json, Raw):
        return len(bytes(json))
    return sum(map(_size, json.values())) if json else 0


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


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
