"""Words by which engines and providers refuse a prompt that does not fit, and the numbers in them.

No two of them agree, and few have a code of their own. The rows below are the only place that knows their words: a
client's compaction, the fallback to a longer context and Anthropic's two sentences all depend on it. Each row has its
source and version, where these are known, and an example in `tests/unit/wire/test_too_long.py`.

In a pattern `{n}` is the length of the prompt, `{o}` the output that was asked, `{t}` both together, and `{m}` the most
that fits, all in tokens.
"""

from __future__ import annotations

import re

from msgspec import Struct

_MOST_TEXT = 2000
"""Longer texts are not searched further."""

CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq, Cerebras and many
        "model_max_prompt_tokens_exceeded",  # GitHub Copilot
        "model_context_window_exceeded",  # z.ai
        "exceed_context_size_error",  # llama.cpp from b6300, as `type`
        "tokens_limit_reached",  # GitHub Models
        "1261",  # z.ai
    }
)
"""Codes and types of errors that say so by themselves."""

_STATUSES = frozenset({400, 413, 422})
_OTHER = re.compile(r"rate.?limit|per minute|\bTPM\b|throttl|too many requests|quota", re.IGNORECASE)
"""A text with these words is about what a client may send in a time."""

ROWS: tuple[tuple[str, str], ...] = (
    ("Dragoman", r"the prompt has {n} tokens; this model's context is {m}"),
    ("Anthropic, 2025", r"input length and `max_tokens` exceed context limit: {n} \+ {o} > {m}"),
    ("Anthropic; Bedrock and Vertex AI with it", r"prompt is too long: {n} tokens > {m} maximum"),
    # vLLM
    (
        "vLLM from 0.14",
        r"maximum context length is {m} tokens.*?requested {o} output tokens.*?contains (?:at least )?{n} input tokens",
    ),
    (
        "vLLM 0.13 to 0.15, NVIDIA NIM",
        r"passed {n} input tokens and requested {o} output tokens.*?context length is only {m} tokens",
    ),
    (
        "vLLM from 0.16, a prompt too long to be tokenized",
        r"passed \d+ input characters and requested {o} output tokens.*?context length is only {m} tokens",
    ),
    (
        "vLLM 0.8 to 0.12, max_tokens",
        r"maximum context length is {m} tokens and your request has {n} input tokens \({o} >",
    ),
    ("vLLM from 0.13, max_tokens alone", r"max_tokens={o} cannot be greater than max_model_len=max_total_tokens={m}"),
    ("vLLM up to 0.12, in its engine", r"\(length {n}\) is longer than the maximum model length of {m}"),
    # OpenAI's words, which most others took over
    (
        "SGLang from 0.4.3",
        r"maximum context length of {m} tokens.*?{n} tokens from the input messages and {o} tokens for the completion",
    ),
    (
        "OpenAI 2023, Azure OpenAI, DeepSeek, vLLM up to 0.12, llama-cpp-python, OpenRouter",
        r"maximum context length is {m} tokens.*?requested (?:about )?{t} tokens \([^)]*?{o} "
        r"(?:in|for) the (?:completion|output)\)",
    ),
    (
        "OpenAI 2024, vLLM",
        r"maximum context length is {m} tokens.*?(?:resulted in|has|contains|requested) {n} (?:input )?tokens",
    ),
    (
        "SambaNova",
        r"maximum context length of .{{1,80}}? is {m}\. However, answering your request will take {t} tokens",
    ),
    ("OpenAI 2025", r"input tokens exceed the configured limit of {m} tokens.*?resulted in {n} tokens"),
    ("OpenAI 2025, Responses", r"exceeds the context window of this model"),
    ("LiteLLM, SGLang", r"maximum context length of {m} tokens"),
    ("LiteLLM, vLLM 0.10", r"input length \({n}\) exceeds model's maximum context length \({m}\)"),
    # other engines
    ("SGLang; Together", r"input \({n} tokens\) is longer than the model's context length \({m} tokens\)"),
    ("SGLang, a cut prompt is not allowed", r"input length \({n} tokens\) exceeds the maximum allowed length \({m} "),
    ("SGLang, room for its cache", r"input_tokens={n}, max_new_tokens={o}, required_tokens=\d+, kv_capacity={m}"),
    ("llama.cpp from b5200", r"request \({n} tokens\) exceeds the available context size \({m} tokens\)"),
    ("llama.cpp before", r"the request exceeds the available context size"),
    (
        "llama.cpp, embeddings and ranks",
        r"input \({n} tokens\) is too large to process\..*?current batch size: {m}\)",
    ),
    (
        "llama.cpp before b5200, embeddings and ranks",
        r"input is too large to process\. increase the physical batch size",
    ),
    ("llama.cpp, while it generates", r"context size has been exceeded"),
    ("llama-cpp-python", r"requested tokens \({n}\) exceed context window of {m}"),
    ("LocalAI, GPT4All", r"prompt size exceeds the context window size"),
    ("Ollama, embeddings", r"input length exceeds (?:the |maximum )?context length"),
    ("Ollama 0.17", r"prompt too long; exceeded (?:max )?context length"),
    ("LM Studio 0.3", r"keep the first {n} tokens when context the overflows.*?context length of only {m} tokens"),
    ("LM Studio 0.4", r"is greater than the context length(?: \(n_keep: {n} ?>= ?n_ctx: {m}\))?"),
    ("LM Studio 0.4, MLX", r"n_keep \({n}\) >= n_ctx \({m}\)"),
    ("LM Studio, while it generates", r"reached context length of {m} tokens"),
    ("oMLX", r"prompt too long: {n} tokens exceeds max context window of {m} tokens"),
    ("vMLX", r"has {n} tokens, max prompt/context tokens is {m}"),
    ("ds4-server", r"prompt has {n} tokens, but the configured context size is {m} tokens"),
    (
        "TGI",
        r"must be <= {m}\. Given: {n} `inputs` tokens and {o} `max_new_tokens`",
    ),
    ("TGI, TEI", r"must have less than {m} tokens\. Given: {n}"),
    ("TensorRT-LLM 1", r"sum of prompt length \({n}\), query length \(\d+\) should not exceed max_num_tokens \({m}\)"),
    ("TensorRT-LLM, Triton", r"prompt length \({n}\) exceeds maximum (?:input|sequence) length \({m}\)"),
    ("tabbyAPI 2024, ExLlamaV2", r"request length {n} \+ {o} is greater than max_seq_len {m}"),
    ("tabbyAPI 2026", r"prompt length {n} is greater than max_seq_len {m}"),
    ("tabbyAPI 2026, room for its cache", r"prompt length {n} \+ max_tokens {o} is greater than cache size {m}"),
    ("LMDeploy", r"ResponseType\.INPUT_LENGTH_ERROR"),
    ("MLC LLM", r"prompt has {n} tokens in total, larger than the model input length limit {m}"),
    ("mistral.rs", r"prompt sequence length is greater than {m}"),
    # other providers
    ("Gemini", r"input token count \({n}\) exceeds the maximum number of tokens allowed \({m}\)"),
    ("Gemini, also without the count", r"input token count exceeds the maximum number of tokens allowed \({m}\)"),
    ("Vertex AI", r"input token count is {n} but model only supports up to {m}"),
    ("Bedrock", r"input is too long for requested model"),
    ("Bedrock, Nova", r"input tokens exceeded|number of input tokens exceeds maximum length"),
    ("Bedrock, Titan", r"too many input tokens\. Max input tokens: {m}, request input token count: {n}"),
    ("xAI", r"maximum prompt length is {m} but the request contains {n} tokens"),
    ("z.ai", r"prompt exceeds max length"),
    ("z.ai, coding plan", r"model has reached its context window limit|model_context_window_exceeded"),
    ("Moonshot", r"exceeded model token limit: {m} \(requested: {n}\)"),
    ("Moonshot before", r"exceeded model token limit"),
    ("MiniMax", r"context window exceeds limit"),
    ("Mistral", r"prompt contains {n} tokens.*?too large for model with {m} maximum context length"),
    ("Cohere", r"number of tokens in the prompt cannot exceed {m} - received {n}"),
    ("Cohere v2", r"too many tokens: size limit exceeded by \d+ tokens.*?limit for this model is {m} tokens"),
    ("Cerebras", r"length of the messages or completion\. Current length is {n} while limit is {m}"),
    ("Groq, Cerebras", r"reduce the length of the messages or completion"),
    ("Fireworks", r"prompt is too long: {n}, model maximum context length: {m}"),
    ("Poolside by OpenRouter", r"input length {n} exceeds the maximum allowed input length of {m} tokens"),
    ("DeepInfra", r"input length {n} exceeds maximum input length {m}"),
    ("GitHub Copilot", r"prompt token count of {n} exceeds the limit of {m}"),
    ("GitHub Models", r"request body too large for .{{1,64}}? model\. Max size: {m} tokens"),
    ("DashScope", r"range of input length should be \[\d+, ?{m}\]"),
    ("Volcengine Ark", r"input length {n} exceeds the maximum length {m}"),
    ("Cloudflare", r"input and maximum output tokens \({t}\) exceeded this model context window limit \({m}\)"),
    ("watsonx", r"number of input tokens {n} cannot exceed the total tokens limit {m}"),
)
"""(source, pattern), those with more numbers before those that match the same text with fewer."""

_NUMBER = r"(?P<{}>\d[\d,]*)(?:\.0)?"
_PATTERNS = [
    re.compile(text.format(**{name: _NUMBER.format(name) for name in "notm"}), re.IGNORECASE | re.DOTALL)
    for _, text in ROWS
]
_LOOSE = ("maximum context length", "context length", "max_model_len", "context size", "context window")
"""In a refusal, but not in a failure, these are enough: words of engines that no row has."""


class TooLong(Struct, frozen=True):
    """The numbers of a refusal in tokens, as far as it has them: the prompt, the output that was asked, and the most
    that fits."""

    prompt: int | None = None
    output: int | None = None
    most: int | None = None


def read(text: str) -> TooLong | None:
    """The numbers in a text that says that a prompt is too long; None for any other text."""
    found = row(text)
    if found is None:
        return None
    match = _PATTERNS[found].search(text[:_MOST_TEXT])
    assert match is not None
    numbers = {name: int(value.replace(",", "")) for name, value in match.groupdict().items() if value is not None}
    prompt, output = numbers.get("n"), numbers.get("o")
    if prompt is None and output is not None and "t" in numbers:
        prompt = max(0, numbers["t"] - output)
    return TooLong(prompt, output, numbers.get("m"))


def row(text: str) -> int | None:
    """The first of `ROWS` that matches."""
    text = text[:_MOST_TEXT]
    if _OTHER.search(text) is not None:
        return None
    return next((index for index, pattern in enumerate(_PATTERNS) if pattern.search(text) is not None), None)


def matches(status: int, text: str | None, codes: tuple[str | None, ...] = ()) -> bool:
    """Whether a worker's error answer reports a prompt that is too long, whatever its status: some engines answer 500.
    codes: its code and type."""
    failed = 500 <= status < 600 and status not in (501, 503, 529)
    if not failed and status not in _STATUSES:
        return False
    if any(code in CODES for code in codes):
        return True
    if not text:
        return False
    if row(text) is not None:
        return True
    loose = status in (400, 422) and _OTHER.search(text[:_MOST_TEXT]) is None
    return loose and any(word in text for word in _LOOSE)
