"""What the playground shows of one request."""

from __future__ import annotations

import json

from gateway.features.console.transcript import Transcript


def test_two_workers_under_way_at_once() -> None:
    """A late one and the one that is asked beside it (`hedge_s`)."""
    transcript = Transcript()
    transcript.request("http://a", "POST", "/v1/embeddings", b"{}")
    transcript.head("worker", 200, [])
    transcript.request("http://b", "POST", "/v1/embeddings", b"{}")
    transcript.data("worker", b"of a")
    transcript.end("worker")
    transcript.data("worker", b"of b")
    transcript.end("worker")
    lines = [json.loads(line) for line in transcript.rest().splitlines()]
    assert [line["text"] for line in lines if line["what"] == "data"] == ["of a", "of b"]
