"""Buckets of services that speak S3's protocol, for the features that keep bytes in one.

Source: the reference of Amazon S3's REST API, by obstore (object_store of Apache Arrow).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from obstore.exceptions import BaseError
from obstore.store import S3Store

from gateway.config import Bucket

WAITS: Any = {"connect_timeout": timedelta(seconds=3), "read_timeout": timedelta(seconds=10)}
RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=15)}


@contextlib.contextmanager
def asked() -> Iterator[None]:
    """A call of the service. Its errors hold addresses and answers: the OSError that is raised here names their kind
    alone."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError("the bucket does not have it") from None
    except (BaseError, OSError, ValueError) as error:
        raise OSError(f"the bucket cannot be used: {type(error).__name__}") from None


def store_of(options: Bucket) -> S3Store:
    """The part of the bucket below its prefix. Nothing is asked yet."""
    pair: Any = {name: options.held(name) for name in options.SECRETS} | {"token": None, "expires_at": None}
    more = {"root_certificate": Path(options.ca_file).read_bytes()} if options.ca_file is not None else {}
    return S3Store(
        options.name,
        prefix=options.prefix or None,
        endpoint=options.url,
        region=options.region,
        virtual_hosted_style_request=False,
        # By a provider, as a token of the environment would be taken along with a plain pair. Without one it is the
        # role of the environment, whose keys the library renews.
        credential_provider=(lambda: pair) if pair["access_key_id"] is not None else None,
        client_options=cast("Any", {**WAITS, **more, "allow_http": options.url.startswith("http://")}),
        retry_config=RETRIES,
    )
