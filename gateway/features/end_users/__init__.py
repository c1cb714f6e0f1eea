"""The end user of each request, for limits, records and prefix caches."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial

from gateway.auth import KnownKeys
from gateway.config.sharing import EndUsers as Options
from gateway.core.end_users import digest_of, end_user
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import header_value
from gateway.core.messages import QUESTIONS
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.client import Scope
from gateway.kernel.feature import Feature, Step
from gateway.ratelimit.addresses import comes_from


class EndUsers(Feature):
    """Writes the end user into the record of each request that names one.

    salted  their prompts are kept apart in the caches of workers
    trusts  whether the header of a connection is believed
    known   a name that holds a key is kept as its digest
    """

    def __init__(self, options: Options, salted: bool, trusts: Callable[[Scope], bool], known: KnownKeys) -> None:
        self._options = options
        self._header = options.header.lower().encode() if options.header is not None else None
        self._salted = salted
        self._trusts = trusts
        self._known = known

    def around_read(self, inner: Step) -> Step:
        async def read(call: Call) -> None:
            await inner(call)
            if call.op is not None:
                self._check(call)

        return read

    def _check(self, call: Call) -> None:
        """Raises GatewayError(BAD_REQUEST) if nobody is named although that is required."""
        op, options = call.asked, self._options
        given = self._by_header(call) or ((op.end_user or op.user or "") if options.body else "")
        named = end_user(given, options.secret)
        if named is None:
            if options.required and type(op) not in QUESTIONS:
                call.record.model = call.served.name
                raise self._unnamed(call)
            return
        if options.secret is None and self._known.masked(named, call.reply.request.headers) != named:
            named = digest_of(named)
        call.record.end_user = named
        if self._salted and op.salt is not None:
            salt = hmac.digest(op.salt.encode(), f"end user {named}".encode(), "sha256")
            op.salt = urlsafe_b64encode(salt).rstrip(b"=").decode()

    def _unnamed(self, call: Call) -> GatewayError:
        tables = call.reply.dialect.fields
        table = tables.get(type(call.asked).__name__.lower(), [field for one in tables.values() for field in one])
        message, param = "a request must name its end user here", None
        if self._options.body and any("user" in field.targets for field in table):
            param = "user"
        elif self._options.body:
            message += ", and this API has no field for that"
        return GatewayError(Kind.BAD_REQUEST, message, param=param)

    def _by_header(self, call: Call) -> str:
        if self._header is None or not self._trusts(call.scope):
            return ""
        return (header_value(call.scope["headers"], self._header) or b"").decode("utf-8", "replace")


def build(parts: Parts) -> Built | None:
    options, salt = parts.config.end_users, parts.config.cache_salt
    if options is None:
        return None
    salted = salt is not None and salt.by == "end_user"
    return Built((EndUsers(options, salted, partial(comes_from, networks=parts.proxies), parts.known_keys),))
