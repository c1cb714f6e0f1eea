"""The cohere package for Python. It ranks documents: the reply's text is that of the best one."""

from __future__ import annotations

import json
from typing import Any

from cohere import ClientV2


def connect(url: str, model: str) -> Any:
    return ClientV2(base_url=url, api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    documents = [json.loads(prompt.removeprefix("sim:")).get("text", "?")]
    reply = client.rerank(model=model, query=prompt, documents=documents, top_n=1)
    return documents[reply.results[0].index]
