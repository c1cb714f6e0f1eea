"""aiobotocore."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from aiobotocore.session import get_session
from sagemaker_wire import body, texts


def connect(url: str, model: str) -> Any:
    session = get_session()
    return partial(session.create_client, "sagemaker-runtime", endpoint_url=f"{url}/sagemaker")


def whole(client: Any, model: str, prompt: str) -> Any:
    async def asked() -> Any:
        async with client() as runtime:
            reply = await runtime.invoke_endpoint(EndpointName=model, Body=body(prompt, False))
            return json.loads(await reply["Body"].read())["choices"][0]["message"]["content"]

    return asyncio.run(asked())


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    async def pieces() -> list[str]:
        async with client() as runtime:
            reply = await runtime.invoke_endpoint_with_response_stream(EndpointName=model, Body=body(prompt, True))
            return [piece async for event in reply["Body"] for piece in texts(event["PayloadPart"]["Bytes"])]

    yield from asyncio.run(pieces())
