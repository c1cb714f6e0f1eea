"""The request fields that the specifications name, copied from them by hand; where a client's own list is longer, that.

Every one of them must have a declared handling in its dialect.
"""

from __future__ import annotations

from collections.abc import Mapping

SPECIFIED: Mapping[tuple[str, str], tuple[str, ...]] = {
    # "OpenAI's chat completion API supports streaming": it names few, the client's signature is the rest.
    ("openai", "chat"): (
        "messages", "model", "stream", "stream_options", "n", "service_tier", "logprobs", "top_logprobs", "tools",
        "tool_choice", "function_call", "functions", "max_tokens", "max_completion_tokens", "response_format", "stop",
        "temperature",
    ),
    ("openai", "complete"): ("prompt", "model", "stream"),
    ("openai", "embed"): ("input", "model", "encoding_format", "dimensions"),
    # The output specification: what its replies answer to.
    ("sagemaker", "chat"): (
        "messages", "model", "stream", "n", "logprobs", "stop", "tools", "function_call", "prompt_logprobs",
        "kv_transfer_params",
    ),
    ("sagemaker", "complete"): ("prompt", "stream", "n", "logprobs", "stop", "prompt_logprobs", "kv_transfer_params"),
    # "Request Body for /chat/completions".
    ("ollama", "chat"): ("model", "messages", "stream", "temperature"),
    # "URI Parameters", "Request Header", "Request Body".
    ("azure", "chat"): (
        "api-version", "extra-parameters", "azureml-model-deployment", "messages", "frequency_penalty", "max_tokens",
        "presence_penalty", "response_format", "seed", "stop", "stream", "temperature", "tool_choice", "tools", "top_p",
    ),
    ("azure", "embed"): ("api-version", "extra-parameters", "azureml-model-deployment", "input"),
    # The page has lost its names; these are its fields in its order, by V1CompletionsRequest of friendli-client 1.5.8.
    ("friendli", "complete"): (
        "X-Friendli-Team", "prompt", "tokens", "model", "stream", "timeout_microseconds", "max_tokens",
        "max_total_tokens", "min_tokens", "min_total_tokens", "n", "num_beams", "length_penalty", "early_stopping",
        "no_repeat_ngram", "encoder_no_repeat_ngram", "repetition_penalty", "encoder_repetition_penalty",
        "frequency_penalty", "presence_penalty", "temperature", "top_k", "top_p", "stop", "stop_tokens", "seed",
        "token_index_to_replace", "embedding_to_replace", "beam_search_type", "bad_words", "bad_word_tokens",
        "include_output_logits", "include_output_logprobs", "eos_token", "response_format",
        # Only in the client.
        "beam_compat_pre_normalization", "beam_compat_no_post_normalization", "forced_output_tokens", "soft_prompts",
        "position_ids", "generation_offset",
    ),
    # The reference of the Messages API, and what its clients were seen to send.
    ("anthropic", "chat"): (
        "model", "max_tokens", "messages", "system", "stream", "stop_sequences", "temperature", "top_p", "top_k",
        "tools", "tool_choice", "thinking", "output_config.effort", "output_config.format", "metadata.user_id",
        "cache_control", "service_tier", "speed", "inference_geo", "container", "diagnostics", "context_management",
        "mcp_servers", "safeguards", "user_profile_id", "betas",
    ),
    ("anthropic", "count"): (
        "model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control",
        "context_management", "mcp_servers", "betas", "speed",
    ),
    # As the same client sends it.
    ("friendli", "chat"): (
        "messages", "model", "stream", "frequency_penalty", "presence_penalty", "max_tokens", "n", "stop",
        "temperature", "top_p", "timeout_microseconds", "tools", "tool_choice", "response_format",
    ),
}  # fmt: skip
