"""The metrics of vLLM 0.33 that only other routers read, beside those that the gateway reads."""

from __future__ import annotations

import time

from workers.simulated import metrics
from workers.simulated.engine import Engine, Entry
from workers.simulated.metrics import GAPS, Histogram

_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


class Metrics(metrics.Metrics):
    """Counters and histograms of one worker."""

    def __init__(self) -> None:
        super().__init__()
        self.histograms["request_time_per_output_token_seconds"] = Histogram(GAPS)
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
            self.histograms[f"{name}_seconds"] = Histogram(_LONG)

    def finish(self, entry: Entry, scheduled: float, admitted: float, finishes: list[str]) -> None:
        super().finish(entry, scheduled, admitted, finishes)
        if not admitted:
            return
        now, first = time.monotonic(), entry.first_token or admitted
        if entry.tokens > 1:
            self.histograms["request_time_per_output_token_seconds"].observe((now - first) / (entry.tokens - 1))
        self.histograms["e2e_request_latency_seconds"].observe(now - entry.started)
        self.histograms["request_prefill_time_seconds"].observe(admitted - scheduled)
        self.histograms["request_queue_time_seconds"].observe(scheduled - entry.started)
        self.histograms["request_decode_time_seconds"].observe(now - first)

    def render(self, engine: Engine) -> str:
        labels = f'engine="0",model_name="{engine.options.models[0]}"'
        reason = f"vllm:num_requests_waiting_by_reason{{{labels},reason="
        sleep = f"vllm:engine_sleep_state{{{labels},sleep_state="
        rejected = f'vllm:admission_rejections_total{{{labels},reason="max_num_queued_reqs"}}'
        config = f'block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="{engine.options.kv_blocks}"'
        return f"""{super().render(engine)}\
# TYPE vllm:num_requests_waiting_by_reason gauge
{reason}"capacity"}} {float(len(engine.queue))}
{reason}"deferred"}} 0.0
# TYPE vllm:engine_sleep_state gauge
{sleep}"awake"}} 1.0
{sleep}"weights_offloaded"}} 0.0
{sleep}"discard_all"}} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{{config}}} 1.0
# TYPE vllm:admission_rejections_total counter
{rejected} {float(engine.rejections)}
"""
