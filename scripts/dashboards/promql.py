"""PromQL and words that several dashboards share. `{*` opens a selector with the dashboard's own filter."""

from __future__ import annotations

from scripts.dashboards.grafana import Query, Variable

RATE = "[$__rate_interval]"
BY_NAMESPACE = 'namespace=~"$namespace"'
BY_MODEL = f'{BY_NAMESPACE},model=~"$model"'
MODEL_CHOICE = Variable("model", "dragoman_queue_length", "model", "Model")


def rate(selector: str, *by: str) -> str:
    """The summed rate of a counter; selector ends with its `{*…}`."""
    return f"sum by ({', '.join(by)}) (rate({selector}{RATE}))" if by else f"sum(rate({selector}{RATE}))"


def quantiles(metric: str, by: str = "", of: str = "{*}") -> tuple[Query, ...]:
    """Median, 95th and 99th percentile of a histogram, over all series or by a label; of is the selector."""
    labels, legend = (f"le, {by}", f" {{{{{by}}}}}") if by else ("le", "")
    return tuple(
        Query(f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{of}{RATE})))", f"{name}{legend}")
        for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    )


def share(part: str, whole: str, *by: str) -> str:
    """How much of `whole` is `part`; 0 where nothing of the part was ever counted, absent where the whole is 0."""
    all_ = rate(whole, *by)
    return f"({rate(part, *by)} or 0 * {all_}) / ({all_} > 0)"


FAILED = 'dragoman_model_requests_total{*,outcome="failed"}'
OUTCOMES = "`ok`; `refused` is a 4xx; `failed` is an error behind the gateway or in it; `cancelled`: the client left."
