"""The reasons why options of LiteLLM's have no line in gateway.yaml, by name. Those that are absent are unknown."""

from __future__ import annotations

PATTERN = "is a pattern: names in fallbacks, aliases and keys are models of their own, others need an entry each"
_ALWAYS = "needs no option: the gateway always does so"
PASSED = "needs no option: workers answer what they can"
LOGS = "has no counterpart: metrics, traces and the log are those of docs/production.md"
_PROMPTS = "is prompt_log, with rules: docs/prompt-log.md"
CALLBACKS = {
    "langfuse": "is prompt_log with traces: docs/prompt-log.md",
    "langfuse_otel": "is prompt_log with traces: docs/prompt-log.md",
    "arize_phoenix": "is prompt_log with traces: docs/prompt-log.md",
    "otel": "is the section tracing: docs/production.md",
    "prometheus": "needs no option: /metrics is there",
    "s3_v2": "is prompt_log with a bucket: docs/prompt-log.md",
    "gcs_bucket": "is prompt_log with a bucket: docs/prompt-log.md",
}
_BY_ADMINS = "has no counterpart: admins make keys, each with its options (docs/keys.md)"
_MORE = "has no counterpart: CALLERS MAY DO MORE THAN BEFORE"
REASONS = {
    "api_version": "is not needed: Azure's v1 API, which the model uses, has no dates",
    "drop_params": "needs no option: what a worker cannot do is dropped or refused, and named in x-dragoman-dropped",
    "additional_drop_params": "is not a list of names",
    "enable_pre_call_checks": "needs no option: set max_context of the models",
    "json_logs": _ALWAYS,
    "background_health_checks": _ALWAYS,
    "health_check_interval": "is health.interval_s, of probes that cost no tokens: set it there",
    "cache": "is set by hand, as reply_cache: docs/reply-cache.md",
    "mode": PASSED,
    "type": "is set by hand: docs/reply-cache.md",
    "callback_settings": LOGS,
    "turn_off_message_logging": _PROMPTS,
    "store_prompts_in_spend_logs": _PROMPTS,
    "maximum_spend_logs_retention_period": "is keep_s of prompt_log; sums of spending are kept for 13 months",
    "alerting": "is budget_webhook and Prometheus' alerts: docs/spend.md, docs/runbooks.md",
    "alert_to_webhook_url": "is budget_webhook and Prometheus' alerts: docs/spend.md, docs/runbooks.md",
    "guardrails": "is the section guards, by services of yours: docs/guards.md",
    "mcp_servers": "has no counterpart: tools of the web are those of docs/web-tools.md",
    "pass_through_endpoints": "has no counterpart: paths are those of `dragoman routes`",
    "retry_policy": "has no counterpart: errors decide what is tried again (docs/reliability.md)",
    "model_group_retry_policy": "has no counterpart: errors decide what is tried again (docs/reliability.md)",
    "allowed_fails_policy": "has no counterpart: breaker.failures counts failures of workers alone",
    "retry_after": "needs no option: another worker is asked at once",
    "disable_cooldowns": "has no counterpart: breaker.max_eject_share bounds how many workers are left out",
    "enable_tag_filtering": "is split by headers of the request: docs/reliability.md",
    "tags": "are split by headers of the request: docs/reliability.md",
    "redis_db": "is a part of redis.url: redis://HOST:PORT/DB",
    "custom_auth": f"{_MORE}, or less; tokens are `jwt`: docs/keys.md",
    "enable_jwt_auth": "is the section jwt: docs/keys.md",
    "litellm_jwtauth": "is the section jwt: docs/keys.md",
    "allowed_ips": f"{_MORE}: bound addresses before the gateway",
    "allowed_routes": f"{_MORE}: bound keys by `dialects`",
    "litellm_key_header_name": "has no counterpart: keys come where each client API sends them",
    "forward_client_headers_to_llm_api": "is pass_headers of a request policy, by name: docs/request-policies.md",
    "upperbound_key_generate_params": _BY_ADMINS,
    "default_key_generate_params": _BY_ADMINS,
    "key_generation_settings": _BY_ADMINS,
    "default_internal_user_params": _BY_ADMINS,
    "default_team_settings": "has no counterpart: rules of limits, guards and prompt_log match teams",
    "max_internal_user_budget": "has no counterpart: users have no budgets, but their keys and teams have",
    "internal_user_budget_duration": "has no counterpart: users have no budgets, but their keys and teams have",
    "set_verbose": "is log.level: debug",
    "redact_user_api_key_info": LOGS,
    "use_x_forwarded_for": "is listen.trusted_proxies, which names the proxies: docs/limits.md",
    "team_id": f"{_MORE}: the model was one team's, so name others in the `models` of all other keys",
    "ttl": "is reply_cache.ttl_s, without cache: true",
    "max_tokens": "has no counterpart: max_context is the room for prompt and reply together",
    "max_output_tokens": "has no counterpart: max_context is the room for prompt and reply together",
    "master_key": "is not taken over: keys come from --keys, and admins have keys of their own (docs/keys.md)",
    "database_url": "has no counterpart: keys come from --keys, and keys_store keeps later ones in Redis",
    "store_model_in_db": "has no counterpart: models made in LiteLLM's interface come from --models",
    "id": "needs no option: a worker is called by its address",
    "max_input_tokens": "has no counterpart: max_context is the room for prompt and reply together",
    "content_policy_fallbacks": "has no counterpart: a refusal by a provider's filter is the answer",
    "include": "is not followed: import that file, too",
}
