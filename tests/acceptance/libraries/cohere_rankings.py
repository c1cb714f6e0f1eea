"""Runs in the environment of the cohere package: `python cohere_rankings.py URL GOOD EXPIRED BUSY`, the last three are
keys. Both of its clients rank, and are refused; what they made of it is one line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from cohere import Client, ClientV2

QUERY, DOCUMENTS = "which animal purrs", ["a dog barks", "the animal which purrs"]
ONCE: Any = {"max_retries": 0}


def refused(client: Any, model: str = "m", query: str = QUERY) -> list[Any]:
    """The class of the error, its status, and what it says."""
    try:
        client.rerank(model=model, query=query, documents=DOCUMENTS, request_options=ONCE)
    except Exception as error:
        return [type(error).__name__, getattr(error, "status_code", None), str(getattr(error, "body", ""))]
    return []


def main(url: str, good: str, expired: str, busy: str) -> None:
    first, second = Client(base_url=url, api_key=good), ClientV2(base_url=url, api_key=good)
    mixed: Any = [DOCUMENTS[0], {"text": DOCUMENTS[1]}]
    old = first.rerank(model="m", query=QUERY, documents=mixed, top_n=2, return_documents=True)
    new = second.rerank(model="m", query=QUERY, documents=DOCUMENTS, top_n=2, max_tokens_per_doc=100)
    found: dict[str, Any] = {
        "orders": [[(one.index, one.relevance_score) for one in reply.results] for reply in (old, new)],
        "texts": [one.document.text for one in old.results if one.document is not None],
        "units": [one.meta.billed_units.search_units for one in (old, new) if one.meta and one.meta.billed_units],
        "ids": [old.id, new.id],
    }
    for kind in (Client, ClientV2):
        one = kind(base_url=url, api_key=good)
        found[kind.__name__] = {
            "blank": refused(one, query=" "),
            "unknown": refused(one, model="nobody"),
            "fails": refused(one, query='sim:{"fault": "status:500"}'),
            "expired": refused(kind(base_url=url, api_key=expired)),
        }
    found["busy"] = refused(ClientV2(base_url=url, api_key=busy))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
