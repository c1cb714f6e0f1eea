"""The Prometheus metrics of vLLM 0.33 that routers and dashboards read, with the labels model_name and engine.

Each token counts with its request's mean inter-token latency, so sum and count are exact.
"""

from __future__ import annotations

import time
from bisect import bisect_left

from workers.simulated.ledger import Entry

_FAST: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_FAST += (20, 40, 80, 160, 640, 2560)
_GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """A Prometheus histogram of seconds."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += times
        self.sum += value * times

    def lines(self, name: str, labels: str) -> list[str]:
        total = 0
        out = []
        for bound, count in zip((*map(float, self.buckets), "+Inf"), self.counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}.0')
        return [*out, f"{name}_count{{{labels}}} {total}.0", f"{name}_sum{{{labels}}} {self.sum}"]


class Metrics:
    """Counters and histograms of one worker."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generation_tokens = 0
        self.success = dict.fromkeys(REASONS, 0)
        self.ttft = Histogram(_FAST)
        self.itl = Histogram(_GAPS)
        self.tpot = Histogram(_GAPS)
        self.e2e = Histogram(_LONG)
        self.queue = Histogram(_LONG)
        self.prefill = Histogram(_LONG)
        self.decode = Histogram(_LONG)

    def finish(self, entry: Entry, scheduled: float, admitted: float, finishes: list[str]) -> None:
        """Count a request that is over. scheduled: when it left the queue; admitted: when its prompt was read, or 0."""
        for reason in finishes:
            # As in vLLM's engine, which has no tool calls.
            self.success[reason if reason in self.success else "stop"] += 1
        self.generation_tokens += entry.tokens
        if not admitted:
            return
        now = time.monotonic()
        self.prompt_tokens += entry.prompt_tokens
        first = entry.first_token or admitted
        self.ttft.observe(first - entry.started)
        self.e2e.observe(now - entry.started)
        self.prefill.observe(admitted - scheduled)
        self.queue.observe(scheduled - entry.started)
        self.decode.observe(now - first)
        if entry.tokens > 1:
            gap = (now - first) / (entry.tokens - 1)
            self.itl.observe(gap, entry.tokens - 1)
            self.tpot.observe(gap)

    def render(
        self,
        model: str,
        blocks: int,
        *,
        running: int,
        waiting: int,
        usage: float,
        queries: int,
        hits: int,
        rejections: int,
    ) -> str:
        """The text format, version 0.0.4. blocks: all KV blocks; the rest as the engine counts them."""
        labels = f'engine="0",model_name="{model}"'
        out: list[str] = []

        def family(kind: str, name: str, *samples: str) -> None:
            out.extend((f"# HELP vllm:{name} {name.replace('_', ' ')}", f"# TYPE vllm:{name} {kind}", *samples))

        def gauge(name: str, value: float, extra: str = "") -> str:
            return f"vllm:{name}{{{labels}{extra}}} {float(value)}"

        family("gauge", "num_requests_running", gauge("num_requests_running", running))
        family("gauge", "num_requests_waiting", gauge("num_requests_waiting", waiting))
        reasons = (("capacity", waiting), ("deferred", 0))
        name = "num_requests_waiting_by_reason"
        family("gauge", name, *[gauge(name, value, f',reason="{reason}"') for reason, value in reasons])
        family("gauge", "kv_cache_usage_perc", gauge("kv_cache_usage_perc", usage))
        states = (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0))
        name = "engine_sleep_state"
        family("gauge", name, *[gauge(name, value, f',sleep_state="{state}"') for state, value in states])
        config = f'block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="{blocks}"'
        family("gauge", "cache_config_info", f"vllm:cache_config_info{{{config}}} 1.0")
        for name, value in (
            ("prefix_cache_queries", queries),
            ("prefix_cache_hits", hits),
            ("num_preemptions", 0),
            ("prompt_tokens", self.prompt_tokens),
            ("generation_tokens", self.generation_tokens),
        ):
            family("counter", f"{name}_total", gauge(f"{name}_total", value))
        name = "admission_rejections_total"
        family("counter", name, gauge(name, rejections, ',reason="max_num_queued_reqs"'))
        name = "request_success_total"
        samples = [gauge(name, count, f',finished_reason="{reason}"') for reason, count in self.success.items()]
        family("counter", name, *samples)
        for name, histogram in (
            ("time_to_first_token_seconds", self.ttft),
            ("inter_token_latency_seconds", self.itl),
            ("request_time_per_output_token_seconds", self.tpot),
            ("e2e_request_latency_seconds", self.e2e),
            ("request_queue_time_seconds", self.queue),
            ("request_prefill_time_seconds", self.prefill),
            ("request_decode_time_seconds", self.decode),
        ):
            family("histogram", name, *histogram.lines(f"vllm:{name}", labels))
        return "\n".join(out) + "\n"
