"""Requests with keys at a gateway that has limits, and what is used of them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import yaml

from gateway.auth import new_key
from gateway.ratelimit import Subject, SubjectLimiter
from tests.support.clients import REQUESTS
from tests.support.harness import Stack

OPENAI = "/v1/chat/completions"
DEFAULTS = {"dialects": {name: {"default_model": "m"} for name in REQUESTS}}


def made(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """(a key, the section `keys` with it alone)"""
    key, entry = new_key(name)
    return key, {name: {**yaml.safe_load(entry)[name], **options}}


def ask(stack: Stack, key: str = "", dialect: str = "openai", **body: Any) -> httpx.Response:
    path, chat = REQUESTS[dialect]
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if dialect == "sagemaker" and key:
        headers = {"x-api-key": key}
    return httpx.post(stack.url + path, headers=headers, json={"model": "m", **chat, **body}, timeout=20)


def limiter_of(stack: Stack) -> SubjectLimiter:
    limiting = stack.gateway.deployment.offers.limiter
    assert limiting is not None
    return limiting.limiter


def standing(stack: Stack, **subject: Any) -> dict[str, int]:
    """limit -> what is used of it"""
    states = stack.run(limiter_of(stack).inspect(Subject(**{"model": "m", **subject})))
    return {state.rule.name: state.used for state in states}


def said(**script: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "sim:" + json.dumps(script)}]}
