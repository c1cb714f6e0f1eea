"""The request fields that the specifications name, copied from them by hand; where a client's own list is longer, that.

Every one of them must have a declared handling in its dialect.
"""

from __future__ import annotations

from collections.abc import Mapping


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MEDIA: Mapping[str, tuple[str, ...]] = {
    "transcribe": (
        *_names("file model language prompt response_format temperature timestamp_granularities stream include"),
        *_names("chunking_strategy known_speaker_names known_speaker_references"),
    ),
    "translate": _names("file model prompt response_format temperature"),
    "speak": _names("input model voice instructions response_format speed stream_format"),
    "draw": (
        *_names("prompt background model moderation n output_compression output_format partial_images quality"),
        *_names("response_format size stream style user"),
    ),
    "edit": (
        *_names("image prompt background input_fidelity mask model n output_compression output_format"),
        *_names("partial_images quality response_format size stream user"),
    ),
    "vary": _names("image model n response_format size user"),
}
"""OpenAI's reference of audio and images; Azure's is a part of it."""

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
    ("ollama_style", "chat"): ("model", "messages", "stream", "temperature"),
    # "URI Parameters", "Request Header", "Request Body".
    ("azure_inference", "chat"): (
        "api-version", "extra-parameters", "azureml-model-deployment", "messages", "frequency_penalty", "max_tokens",
        "presence_penalty", "response_format", "seed", "stop", "stream", "temperature", "tool_choice", "tools", "top_p",
    ),
    ("azure_inference", "embed"): ("api-version", "extra-parameters", "azureml-model-deployment", "input"),
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
    # The parameters of `responses.create` in the reference, and what its clients were seen to send beside them.
    ("responses", "chat"): (
        "model", "input", "instructions", "stream", "stream_options", "max_output_tokens", "temperature", "top_p",
        "top_logprobs", "user", "service_tier", "metadata", "safety_identifier", "tools", "tool_choice",
        "parallel_tool_calls", "text.format", "text.verbosity", "reasoning.effort", "reasoning.summary",
        "reasoning.generate_summary", "reasoning.context", "reasoning.mode", "include", "store", "previous_response_id",
        "conversation", "background", "truncation", "prompt", "max_tool_calls", "moderation", "context_management",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "client_metadata", "access_programs",
        "image",
    ),
    ("responses", "count"): (
        "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text",
        "truncation", "previous_response_id", "conversation", "prompt",
    ),
    # OpenAI's bodies, and what Azure's reference adds.
    ("azure_openai", "chat"): (
        "messages", "model", "stream", "stream_options", "n", "logprobs", "top_logprobs", "tools", "tool_choice",
        "function_call", "functions", "max_tokens", "max_completion_tokens", "response_format", "stop", "temperature",
        "top_p", "seed", "user", "store", "metadata", "reasoning_effort", "data_sources", "dataSources", "enhancements",
    ),
    ("azure_openai", "complete"): ("prompt", "model", "stream", "suffix", "echo", "best_of", "logprobs"),
    ("azure_openai", "embed"): ("input", "model", "encoding_format", "dimensions", "user"),
    # Ollama's reference of its API, and what its clients were seen to send.
    ("ollama", "chat"): (
        "model", "messages", "tools", "think", "format", "options", "stream", "keep_alive", "logprobs", "top_logprobs",
        "truncate", "shift", "_debug_render_only",
    ),
    ("ollama", "complete"): (
        "model", "prompt", "suffix", "system", "template", "context", "stream", "raw", "format", "keep_alive", "images",
        "options", "think", "truncate", "shift", "logprobs", "top_logprobs", "_debug_render_only",
    ),
    ("ollama", "embed"): ("model", "input", "prompt", "truncate", "dimensions", "keep_alive", "options"),
    # The references of Cohere (both versions) and Jina, TEI's OpenAPI file, and vLLM's request classes.
    ("rerank", "rerank"): (
        "model", "query", "documents", "top_n", "max_tokens_per_doc", "max_chunks_per_doc", "return_documents",
        "rank_fields", "relevant_spans", "priority", "texts", "raw_scores", "return_text", "truncate",
        "truncation_direction", "truncate_prompt_tokens", "max_tokens_per_query", "instruction", "chat_template_kwargs",
        "use_activation", "user", "padding", "truncation_side", "cache_salt", "mm_processor_kwargs",
    ),
    ("rerank", "score"): (
        "model", "queries", "documents", "items", "data_1", "data_2", "text_1", "text_2", "max_tokens_per_doc",
        "max_tokens_per_query", "truncate_prompt_tokens", "instruction", "chat_template_kwargs", "use_activation",
        "user", "padding", "truncation_side", "cache_salt", "mm_processor_kwargs", "priority",
    ),
    ("rerank", "tokenize"): (
        "model", "prompt", "messages", "tools", "add_special_tokens", "return_token_strs", "add_generation_prompt",
        "continue_final_message", "chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs",
    ),
    ("rerank", "detokenize"): ("model", "tokens"),
    # TGI's OpenAPI file. Its chat is OpenAI's.
    ("tgi", "complete"): (
        "inputs", "stream", "parameters", "parameters.max_new_tokens", "parameters.do_sample", "parameters.temperature",
        "parameters.top_k", "parameters.top_p", "parameters.typical_p", "parameters.repetition_penalty",
        "parameters.frequency_penalty", "parameters.seed", "parameters.stop", "parameters.truncate",
        "parameters.return_full_text", "parameters.best_of", "parameters.details", "parameters.decoder_input_details",
        "parameters.top_n_tokens", "parameters.grammar", "parameters.watermark", "parameters.adapter_id",
    ),
    ("tgi", "tokenize"): ("inputs", "parameters"),
    ("tgi", "chat"): ("messages", "model", "stream", "max_tokens", "temperature", "tools", "response_format"),
    # The reference of the Gemini API and of Vertex AI, and what Google's clients were seen to send.
    ("gemini", "chat"): (
        "contents", "systemInstruction", "tools", "toolConfig", "safetySettings", "generationConfig", "cachedContent",
        "labels", "serviceTier", "store", "modelArmorConfig", "model", "generationConfig.temperature",
        "generationConfig.topP", "generationConfig.topK", "generationConfig.maxOutputTokens",
        "generationConfig.stopSequences", "generationConfig.candidateCount", "generationConfig.seed",
        "generationConfig.presencePenalty", "generationConfig.frequencyPenalty", "generationConfig.responseMimeType",
        "generationConfig.responseSchema", "generationConfig.responseJsonSchema", "generationConfig.responseLogprobs",
        "generationConfig.logprobs", "generationConfig.thinkingConfig", "generationConfig.responseModalities",
        "generationConfig.speechConfig", "generationConfig.mediaResolution", "generationConfig.imageConfig",
        "generationConfig.audioTimestamp", "generationConfig.enableEnhancedCivicAnswers",
        "generationConfig.routingConfig", "generationConfig.modelSelectionConfig",
        "generationConfig.enableAffectiveDialog", "generationConfig.translationConfig", "generationConfig.modelConfig",
    ),
    ("gemini", "count"): (
        "contents", "generateContentRequest", "systemInstruction", "tools", "generationConfig", "model",
    ),
    ("gemini", "embed"): (
        "content", "requests", "instances", "parameters", "taskType", "title", "outputDimensionality", "autoTruncate",
        "model",
    ),
    # The signatures of Cohere's own client, and what LangChain's and LiteLLM were seen to send.
    ("cohere", "chat"): (
        "model", "messages", "stream", "tools", "strict_tools", "documents", "citation_options", "response_format",
        "safety_mode", "max_tokens", "stop_sequences", "temperature", "seed", "frequency_penalty", "presence_penalty",
        "k", "p", "logprobs", "tool_choice", "thinking", "priority",
    ),
    # As the same client sends it.
    ("friendli", "chat"): (
        "messages", "model", "stream", "frequency_penalty", "presence_penalty", "max_tokens", "n", "stop",
        "temperature", "top_p", "timeout_microseconds", "tools", "tool_choice", "response_format",
    ),
    **{(dialect, work): names for dialect in ("openai", "azure_openai") for work, names in _MEDIA.items()},
}  # fmt: skip
