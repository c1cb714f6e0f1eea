"""Addresses of workers."""

from __future__ import annotations


def base_address(url: str) -> str:
    """The base address that `url` means, without a slash at its end. Clients of OpenAI's API are given addresses that
    end in `/v1`; our requests to workers have paths that begin with it."""
    url = url.rstrip("/")
    # A host may be called `v1`.
    return url.removesuffix("/v1") if not url.endswith("//v1") else url
