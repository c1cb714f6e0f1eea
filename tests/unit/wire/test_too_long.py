"""Refusals of prompts that do not fit, as engines and providers write them: found, read, and told from all else."""

from __future__ import annotations

import json
import re

import pytest

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.dialects.anthropic.errors import message_of
from gateway.kernel.other_models import reason_of
from gateway.wire import too_long
from gateway.wire.openai.replies.views import fault
from gateway.wire.too_long import ROWS, TooLong, matches, read, row

Numbers = tuple[int | None, int | None, int | None]

_OPENAI = "Please reduce the length of the messages or completion."
EXAMPLES: dict[str, tuple[str, Numbers]] = {
    "Dragoman": ("the prompt has 5000 tokens; this model's context is 4096", (5000, None, 4096)),
    "Anthropic, 2025": (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or "
        "`max_tokens` and try again",
        (188240, 21333, 200000),
    ),
    "Anthropic; Bedrock and Vertex AI with it": (
        "prompt is too long: 208310 tokens > 200000 maximum",
        (208310, None, 200000),
    ),
    "vLLM from 0.14": (
        "This model's maximum context length is 8192 tokens. However, you requested 8000 output tokens and your prompt "
        "contains at least 193 input tokens, for a total of at least 8193 tokens. Please reduce the length of "
        "the input "
        "prompt or the number of requested output tokens.",
        (193, 8000, 8192),
    ),
    "vLLM 0.13 to 0.15, NVIDIA NIM": (
        "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is only "
        "131072 tokens, resulting in a maximum input length of 98304 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=98305)",
        (98305, 32768, 131072),
    ),
    "vLLM from 0.16, a prompt too long to be tokenized": (
        "You passed 2000000 input characters and requested 100 output tokens. However, the model's context length is "
        "only 8192 tokens, resulting in a maximum input length of 8092 tokens (at most 1035776 characters). Please "
        "reduce the length of the input prompt.",
        (None, 100, 8192),
    ),
    "vLLM 0.8 to 0.12, max_tokens": (
        "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is "
        "4096 tokens "
        "and your request has 100 input tokens (5000 > 4096 - 100).",
        (100, 5000, 4096),
    ),
    "vLLM from 0.13, max_tokens alone": (
        "max_tokens=140000 cannot be greater than max_model_len=max_total_tokens=131072. Please request fewer output "
        "tokens. (parameter=max_tokens, value=140000)",
        (None, 140000, 131072),
    ),
    "vLLM up to 0.12, in its engine": (
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        (5000, None, 4096),
    ),
    "SGLang from 0.4.3": (
        "Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of "
        "71897 tokens: 7897 tokens from the input messages and 64000 tokens for the completion. Please reduce the "
        "number of tokens in the input messages or the completion to fit within the limit.",
        (7897, 64000, 64000),
    ),
    "OpenAI 2023, Azure OpenAI, DeepSeek, vLLM up to 0.12, llama-cpp-python, OpenRouter": (
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 150000 tokens "
        "(130000 of "
        "text input, 10000 of tool input, 10000 in the output). Please reduce the length of either one.",
        (140000, 10000, 131072),
    ),
    "OpenAI 2024, vLLM": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 131072 "
        "tokens. Please "
        "reduce the length of the messages.",
        (131072, None, 128000),
    ),
    "SambaNova": (
        "The maximum context length of DeepSeek-R1 is 8192. However, answering your request will take 10000 tokens. "
        "Please reduce the length of the messages or the specified max_completion_tokens value.",
        (None, None, 8192),
    ),
    "OpenAI 2025": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens. Please "
        "reduce the length of the messages.",
        (300000, None, 272000),
    ),
    "OpenAI 2025, Responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        (None, None, None),
    ),
    "LiteLLM, SGLang": (
        "Requested token count exceeds the model's maximum context length of 131072 tokens.",
        (None, None, 131072),
    ),
    "LiteLLM, vLLM 0.10": (
        "Input length (265330) exceeds model's maximum context length (262144).",
        (265330, None, 262144),
    ),
    "SGLang; Together": (
        "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
        (516368, None, 262144),
    ),
    "SGLang, a cut prompt is not allowed": (
        "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens). Use a shorter input.",
        (5000, None, 4090),
    ),
    "SGLang, room for its cache": (
        "Request requires more tokens than the thinker KV cache can hold (input_tokens=9, max_new_tokens=200, "
        "required_tokens=209, kv_capacity=127).",
        (9, 200, 127),
    ),
    "llama.cpp from b5200": (
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        (5000, None, 4096),
    ),
    "llama.cpp before": (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        (None, None, None),
    ),
    "llama.cpp, embeddings and ranks": (
        "input (596 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
        (596, None, 512),
    ),
    "llama.cpp before b5200, embeddings and ranks": (
        "input is too large to process. increase the physical batch size",
        (None, None, None),
    ),
    "llama.cpp, while it generates": ("Context size has been exceeded.", (None, None, None)),
    "llama-cpp-python": ("Requested tokens (5000) exceed context window of 4096", (5000, None, 4096)),
    "LocalAI, GPT4All": (
        "The prompt size exceeds the context window size and cannot be processed.",
        (None, None, None),
    ),
    "Ollama, embeddings": ("the input length exceeds the context length", (None, None, None)),
    "Ollama 0.17": ("prompt too long; exceeded max context length by 100918 tokens", (None, None, None)),
    "LM Studio 0.3": (
        "Trying to keep the first 6269 tokens when context the overflows. However, the model is loaded with context "
        "length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or "
        "provide a shorter input",
        (6269, None, 4096),
    ),
    "LM Studio 0.4": (
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 13055>= "
        "n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input.",
        (13055, None, 4096),
    ),
    "LM Studio 0.4, MLX": ("Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", (15028, None, 7424)),
    "LM Studio, while it generates": (
        "Reached context length of 4096 tokens with this model, but this model does not currently support "
        "mid-generation context overflow.",
        (None, None, 4096),
    ),
    "oMLX": ("Prompt too long: 51587 tokens exceeds max context window of 32768 tokens", (51587, None, 32768)),
    "vMLX": (
        "prompt_too_long: tokenized VLM text prompt has 20767 tokens, max prompt/context tokens is 16384",
        (20767, None, 16384),
    ),
    "ds4-server": (
        "Prompt has 5,958,968 tokens, but the configured context size is 256,000 tokens",
        (5958968, None, 256000),
    ),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 3918 `inputs` tokens and "
        "512 `max_new_tokens`",
        (3918, 512, 4097),
    ),
    "TGI, TEI": ("`inputs` must have less than 512 tokens. Given: 600", (600, None, 512)),
    "TensorRT-LLM 1": (
        "The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)",
        (72417, None, 69632),
    ),
    "TensorRT-LLM, Triton": (
        "Encountered an error when fetching new request: Prompt length (5056) exceeds maximum input length (2048). Set "
        "log level to info and check TRTGptModel logs for how maximum input length is set",
        (5056, None, 2048),
    ),
    "tabbyAPI 2024, ExLlamaV2": (
        "ValueError: Request length 64000 + 2048 is greater than max_seq_len 65536",
        (64000, 2048, 65536),
    ),
    "tabbyAPI 2026": ("Prompt length 71599 is greater than max_seq_len 65536", (71599, None, 65536)),
    "tabbyAPI 2026, room for its cache": (
        "Prompt length 6000 + max_tokens 4096 is greater than cache size 8192",
        (6000, 4096, 8192),
    ),
    "LMDeploy": (
        "internal error happened, status code ResponseType.INPUT_LENGTH_ERROR",
        (None, None, None),
    ),
    "MLC LLM": (
        "Request prompt has 2015 tokens in total, larger than the model input length limit 1416.",
        (2015, None, 1416),
    ),
    "mistral.rs": (
        "Prompt sequence length is greater than 4096, perhaps consider using `truncate_sequence`?",
        (None, None, 4096),
    ),
    "Gemini": (
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        (1200293, None, 1048576),
    ),
    "Gemini, also without the count": (
        "The input token count exceeds the maximum number of tokens allowed (1048576).",
        (None, None, 1048576),
    ),
    "Vertex AI": (
        "Unable to submit request because the input token count is 1100000 but model only supports up to 1048576. "
        "Reduce the input token count and try again.",
        (1100000, None, 1048576),
    ),
    "Bedrock": (
        "The model returned the following errors: Input is too long for requested model.",
        (None, None, None),
    ),
    "Bedrock, Nova": (
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
        (None, None, None),
    ),
    "Bedrock, Titan": (
        "400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 9875",
        (9875, None, 8192),
    ),
    "xAI": (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        (537812, None, 131072),
    ),
    "z.ai": ("Prompt exceeds max length", (None, None, None)),
    "z.ai, coding plan": ("The model has reached its context window limit.", (None, None, None)),
    "Moonshot": (
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
        (300000, None, 262144),
    ),
    "Moonshot before": ("Invalid request: Your request exceeded model token limit: 8192", (None, None, None)),
    "MiniMax": ("invalid params, context window exceeds limit (2013)", (None, None, None)),
    "Mistral": (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        (40000, None, 32768),
    ),
    "Cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4100. Try using a shorter "
        "prompt, or enabling prompt truncating.",
        (4100, None, 4081),
    ),
    "Cohere v2": (
        "too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs. The limit for this "
        "model is 128000 tokens.",
        (None, None, 128000),
    ),
    "Cerebras": (
        "Please reduce the length of the messages or completion. Current length is 11000 while limit is 8192",
        (11000, None, 8192),
    ),
    "Groq, Cerebras": (_OPENAI, (None, None, None)),
    "Fireworks": (
        "The prompt is too long: 180000, model maximum context length: 131071",
        (180000, None, 131071),
    ),
    "Poolside by OpenRouter": (
        "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
        (131393, None, 131040),
    ),
    "DeepInfra": (
        "Requested input length 39818 exceeds maximum input length 32767",
        (39818, None, 32767),
    ),
    "GitHub Copilot": ("prompt token count of 140000 exceeds the limit of 128000", (140000, None, 128000)),
    "GitHub Models": ("Request body too large for gpt-4o model. Max size: 8000 tokens.", (None, None, 8000)),
    "DashScope": (
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
        (None, None, 98304),
    ),
    "Volcengine Ark": ("Input length 100000 exceeds the maximum length 98304", (100000, None, 98304)),
    "Cloudflare": (
        "5021: The estimated number of input and maximum output tokens (155740) exceeded this model context "
        "window limit "
        "(128000)",
        (None, None, 128000),
    ),
    "watsonx": (
        "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
        (5000, None, 4096),
    ),
}
"""Of each row a text, and its numbers: the prompt, the output that was asked, the most that fits."""

ALIKE: dict[str, Numbers] = {
    "This model's maximum context length is 4097 tokens. However, you requested 4120 tokens (3120 in the "
    "messages, 1000 "
    f"in the completion). {_OPENAI}": (3120, 1000, 4097),
    "This model's maximum context length is 4097 tokens, however you requested 5749 tokens (3701 in your "
    "prompt; 2048 for "
    "the completion). Please reduce your prompt; or completion length.": (3701, 2048, 4097),
    "This model's maximum context length is 4097 tokens. However, you requested 5000 tokens (800 in the "
    "messages, 200 in "
    f"the functions, and 4000 in the completion). {_OPENAI}": (1000, 4000, 4097),
    "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. Please "
    "reduce the "
    "length of the input messages.": (5000, None, 4096),
}
"""Other texts of rows with several."""

WORDINGS = [*EXAMPLES.values(), *ALIKE.items()]

OTHERS = (
    "Throttling error: Too many tokens, please wait before trying again.",
    "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Requested 50000. The input token count "
    "is large.",
    "Request too large for model `llama` on tokens per minute (TPM): Limit 6000, Requested 7000, please reduce "
    "the length "
    "of the messages or completion",
    "max_tokens is too large: 50000. This model supports at most 16384 completion tokens, whereas you provided 50000.",
    "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for claude-3-haiku",
    "Range of max_tokens should be [1, 8192]",
    "The request payload size exceeds the limit: 20971520 bytes.",
    "Invalid 'messages[0].name': string too long. Expected a string with maximum length 64, but got 100 instead.",
    "You exceeded your current quota",
    "Tool argument validation failed: input length exceeds 1000 characters",
    "CUDA out of memory",
    "model runner crashed unexpectedly",
)
"""Texts that are about anything else."""


def told(status: int, text: str, **more: object) -> GatewayError:
    return fault(status, json.dumps({"error": {"message": text, **more}}).encode())


def test_each_row_has_an_example_that_no_row_before_takes() -> None:
    assert list(EXAMPLES) == [source for source, _ in ROWS]
    assert [row(text) for text, _ in EXAMPLES.values()] == list(range(len(ROWS)))


@pytest.mark.parametrize(("text", "numbers"), WORDINGS, ids=[*EXAMPLES, *(f"alike-{at}" for at in range(len(ALIKE)))])
def test_numbers_are_read_whatever_stands_around_them(text: str, numbers: Numbers) -> None:
    for written in (text, f"litellm.BadRequestError: OpenAIException - {text} (request id: 20260914160932263)"):
        assert read(written) == TooLong(*numbers)
    assert read("x" * 5000 + text) is None, "longer texts are not searched further"


@pytest.mark.parametrize("status", [400, 413, 422, 500, 502])
def test_each_wording_is_the_clients_error_whatever_the_status(status: int) -> None:
    for text, _ in WORDINGS:
        for body in (
            {"error": {"message": text}},
            {"error": text},
            {"message": text},
            {"detail": text},
            text,
        ):
            error = fault(status, body.encode() if isinstance(body, str) else json.dumps(body).encode())
            assert (error.kind, error.blame) == (Kind.CONTEXT_LENGTH, Blame.CLIENT), (status, body)
            assert reason_of(error) == "context_length"


@pytest.mark.parametrize("text", OTHERS)
def test_other_texts_are_no_such_refusal(text: str) -> None:
    for status in (400, 413, 422, 429, 500, 503):
        assert told(status, text).kind is not Kind.CONTEXT_LENGTH, status


def test_a_full_or_failing_worker_is_none_either() -> None:
    for text, _ in WORDINGS:
        assert not any(matches(status, text) for status in (200, 401, 403, 429, 501, 503, 529))
    assert told(500, "the context size of this stream could not be allocated").kind is Kind.UPSTREAM
    assert told(400, "an engine of tomorrow: the context size is passed").kind is Kind.CONTEXT_LENGTH


@pytest.mark.parametrize("code", sorted(too_long.CODES))
def test_a_code_is_enough(code: str) -> None:
    error = told(400, "no", code=code)
    assert (error.kind, error.message) == (Kind.CONTEXT_LENGTH, "no")


def test_claude_code_lowers_max_tokens_where_that_helps_and_else_compacts() -> None:
    """Its two patterns, by which it decides."""
    lowers = re.compile(r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)")
    compacts = re.compile(r"^prompt is too long")
    for text, (prompt, output, most) in WORDINGS:
        sentence = message_of(text)
        if output is not None and most is not None and (prompt or 0) < most <= (prompt or 0) + output:
            found = lowers.search(sentence)
            assert found is not None, text
            assert tuple(map(int, found.groups())) == (prompt or 0, output, most)
        else:
            assert compacts.search(sentence), text
    newest = [EXAMPLES[name][0] for name in ("SGLang from 0.4.3", "vLLM from 0.14", "vLLM 0.13 to 0.15, NVIDIA NIM")]
    assert all(lowers.search(message_of(text)) for text in newest)
