"""The Prometheus metrics of vLLM 0.33 that the gateway and its dashboards read, labelled model_name and engine."""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import accumulate

from workers.simulated.engine import Engine, Entry

_FAST: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_FAST += (20, 40, 80, 160, 640, 2560)
GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


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
        bounds, totals = (*map(float, self.buckets), "+Inf"), list(accumulate(self.counts))
        out = [f'{name}_bucket{{{labels},le="{bound}"}} {total}.0' for bound, total in zip(bounds, totals, strict=True)]
        return [*out, f"{name}_count{{{labels}}} {totals[-1]}.0", f"{name}_sum{{{labels}}} {self.sum}"]


class Metrics:
    """Counters and histograms of one worker, by their names without `vllm:`."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(("num_preemptions", "prompt_tokens", "generation_tokens"), 0)
        self.success = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.histograms = {
            "time_to_first_token_seconds": Histogram(_FAST),
            "inter_token_latency_seconds": Histogram(GAPS),
        }

    def finish(self, entry: Entry, scheduled: float, admitted: float, finishes: list[str]) -> None:
        """Count a request that is over. scheduled: when it left the queue; admitted: when its prompt was read, or 0."""
        for reason in finishes:
            # As in vLLM's engine, which has no tool calls.
            self.success[reason if reason in self.success else "stop"] += 1
        self.counters["generation_tokens"] += entry.tokens
        if not admitted:
            return
        self.counters["prompt_tokens"] += entry.prompt_tokens
        first = entry.first_token or admitted
        self.histograms["time_to_first_token_seconds"].observe(first - entry.started)
        if entry.tokens > 1:  # each with the mean gap, so sum and count are exact
            gap = (time.monotonic() - first) / (entry.tokens - 1)
            self.histograms["inter_token_latency_seconds"].observe(gap, entry.tokens - 1)

    def render(self, engine: Engine) -> str:
        """The text format, version 0.0.4."""
        labels = f'engine="0",model_name="{engine.options.models[0]}"'
        levels: dict[str, float] = {"num_requests_running": engine.running, "num_requests_waiting": len(engine.queue)}
        levels["kv_cache_usage_perc"] = min(1.0, engine.blocks / engine.options.kv_blocks)
        counters = {"prefix_cache_queries": engine.queries, "prefix_cache_hits": engine.hits, **self.counters}
        counters["generation_tokens"] += sum(job.entry.tokens for job in engine.held)  # vLLM counts each step
        out: list[str] = []
        for name, value in levels.items():
            out += (f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {float(value)}")
        for name, value in counters.items():
            out += (f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{labels}}} {float(value)}")
        out.append("# TYPE vllm:request_success_total counter")
        ended = f"vllm:request_success_total{{{labels},finished_reason="
        out += (f'{ended}"{reason}"}} {float(count)}' for reason, count in self.success.items())
        for name, histogram in self.histograms.items():
            out += (f"# TYPE vllm:{name} histogram", *histogram.lines(f"vllm:{name}", labels))
        return "\n".join(out) + "\n"
