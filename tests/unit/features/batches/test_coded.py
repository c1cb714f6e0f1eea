"""Compressed files and batches."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.support.coding import CODED, post
from tests.support.harness import Stack, until
from tests.unit.features.batches.conftest import ALICE, IN_A_FOLDER

CHAT = "/v1/chat/completions"


@IN_A_FOLDER
@pytest.mark.parametrize("name", CODED)
def test_compressed_files_and_batches_are_as_others(stack: Stack, name: str) -> None:
    value, encode = CODED[name]
    key = {"authorization": f"Bearer {ALICE}"}
    data = b'{"custom_id": "a"}\n' * 2000
    form = httpx.Request("POST", stack.url, data={"purpose": "batch"}, files={"file": ("a.jsonl", data)})
    kind = {"content-type": form.headers["content-type"]}
    made = post(stack, "/v1/files", encode(form.read()), value, **key, **kind)
    assert (made.status_code, made.json()["bytes"]) == (200, len(data)), made.text
    found = httpx.get(f"{stack.url}/v1/files/{made.json()['id']}/content", headers=key)
    assert found.content == data
    asked = {"input_file_id": made.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = post(stack, "/v1/batches", encode(json.dumps(asked).encode()), value, **key)
    assert (batch.status_code, batch.json()["input_file_id"]) == (200, made.json()["id"])
    one = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    asks = [{"custom_id": f"c{at}", "params": one} for at in range(50)]
    batch = post(stack, "/v1/messages/batches", encode(json.dumps({"requests": asks}).encode()), value, **key)
    assert (batch.status_code, batch.json()["request_counts"]["processing"]) == (200, 50), batch.text
    path = f"{stack.url}/v1/messages/batches/{batch.json()['id']}"
    until(lambda: httpx.get(path, headers=key).json()["processing_status"] == "ended", 60)
    assert post(stack, "/v1/files", b"x", "compress", **key, **kind).headers["accept-encoding"]
    stack.record()
    until(lambda: stack.gateway.deployment.runtime.body_budget.reserved == 0)
