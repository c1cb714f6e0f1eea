"""The kinds of value a configuration holds: durations, sizes, addresses, names.

The fault of a value is one sentence and never repeats it: it may be a secret in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from ipaddress import IPv6Network, ip_network
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.proxies import proxy_url
from gateway.core.addresses import base_address, is_host
from gateway.core.money import MOST, NANO, shown

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?\Z")
_DURATION_UNITS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|[kKMG]B|[KMG]iB)?\Z")
_SIZE_UNITS = {None: 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE_UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# JSON and YAML can hold half a surrogate pair; it cannot be encoded as UTF-8.
_NAME = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff\"'`]{1,200}\Z")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*/?\Z")
# urlsplit reads `[::1].evil.com` as the host `::1`. In a URL nothing but a port follows the brackets (RFC 3986, 3.2.2).
_AUTHORITY = re.compile(r"([^@]*@)?(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(:[0-9]*)?\Z")
# A path that goes on behind the base address of a worker.
_OPERATION = re.compile(
    r"/(v1/(chat/completions|completions|embeddings|models|responses|messages|rerank|score)|generate(_stream)?|health)\Z"
)
_URL_PATH = re.compile(r"[A-Za-z0-9._~/%-]*\Z")
_AMOUNT = re.compile(r"\d{1,9}(\.\d{1,9})?\Z")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*\Z")
IN_BRACKETS = r"\[([0-9A-Fa-f:.%]+)\]"
"""An IPv6 address before a port."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*\Z")
_NOT_A_HOST = "must have a host name, or a valid address such as 10.0.0.1 or [::1]"

# The transport writes these itself, or they are for one connection only (RFC 9110 §7.6.1).
_OWN = """accept-encoding connection content-encoding content-length content-type expect host keep-alive
    proxy-authorization proxy-connection te trailer transfer-encoding upgrade"""
OWN_HEADERS = frozenset(_OWN.split())
SECRET_HEADER = re.compile(
    "auth|cookie|credential|key|password|secret|session|token|sec-websocket|x-amz-", re.IGNORECASE
)
"""Found in the names of headers that may hold a secret."""


class EnvironmentText(str):
    """Text from the environment: it may stand for a number or a boolean. Text in a file is text."""

    __slots__ = ()


class _OrText:
    """Adds a string form to a number's JSON Schema."""

    def __init__(self, pattern: re.Pattern[str], example: str) -> None:
        self.text = {"type": "string", "pattern": "^" + pattern.pattern.replace(r"\Z", "$"), "examples": [example]}

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), self.text]}


def _matching(pattern: str, wrong: str) -> AfterValidator:
    """Text that matches `pattern` from its begin; else `wrong` is the fault."""
    compiled = re.compile(pattern)

    def checked(value: str) -> str:
        if not compiled.match(value):
            raise ValueError(wrong)
        return value

    return AfterValidator(checked)


def _number(value: Any, wrong: str = "must be a number") -> Any:
    # Python's True is an int: `port: true` would mean port 1.
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    if isinstance(value, str) and not isinstance(value, EnvironmentText):
        raise ValueError(wrong)
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, (bool, EnvironmentText)):
        raise ValueError("must be true or false")
    return value


def _seconds(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    found = _DURATION.match(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError('must be seconds, or a duration such as "500ms", "30s", "2m", "1h", "1d"')
    return float(found[1]) * _DURATION_UNITS[found[2]]


def _bytes(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.match(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError('must be a number of bytes, or a size such as "64KiB", "32MiB", "1GB"')
    return int(float(found[1][:30]) * _SIZE_UNITS[found[2]])  # more digits would only be infinite


def checked_name(value: str) -> str:
    """`value`, if it can name a model, key, team or alias; else raises ValueError."""
    if not is_name(value):
        raise ValueError("must be 1 to 200 characters without spaces, quotes or control characters")
    return value


def is_name(value: str) -> bool:
    return _NAME.match(value) is not None


def is_pattern(alias: str) -> bool:
    """Whether `alias` stands for all names that begin like it."""
    return alias.endswith("*")


def _alias(value: str) -> str:
    if "*" in value[:-1]:
        raise ValueError('may hold one "*", at its end: it then stands for all names that begin like it')
    return checked_name(value)


def _prefix(value: str) -> str:
    if not _PREFIX.match(value) or "." in value.split("/") or ".." in value.split("/"):
        raise ValueError('must be a path such as "/openai" (letters, digits and . _ ~ - only), or "/" for the root')
    return value.rstrip("/")


def _url(value: str) -> str:
    if any(ord(char) <= 32 or ord(char) >= 127 or char == "\\" for char in value):
        raise ValueError("must be a URL without spaces, backslashes or characters beyond ASCII")
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if not host or port == 0:
        raise ValueError("must name a host, and a port from 1 to 65535 if any")
    if not _AUTHORITY.match(parts.netloc):
        raise ValueError("is not a URL: nothing but a port may follow the brackets of an address")
    if not is_host(host):
        raise ValueError(_NOT_A_HOST)
    if "@" in parts.netloc:
        raise ValueError("must not hold a user name or password; use api_key_file or api_key_env")
    if "?" in value or "#" in value:
        raise ValueError("must not have a query or a fragment")
    if not _URL_PATH.match(parts.path) or {".", ".."} & set(parts.path.split("/")) or "//" in parts.path:
        raise ValueError("has a base path with characters or segments that are not allowed")
    return value.rstrip("/")


def _proxy(value: str) -> str:
    if "@" in value:
        raise ValueError("must not hold a user name or password; use proxy_file or proxy_env")
    if value == "environment":
        return value
    if not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://, or be the word environment")
    return proxy_url(_url(value))


def all_of_openai(workers: Sequence[str]) -> bool:
    """Whether these addresses, at least one, are of OpenAI itself, or of its models on Azure."""
    hosts = [f".{(urlsplit(worker).hostname or '').lower()}" for worker in workers]
    return bool(hosts) and all(host.endswith((".openai.com", ".openai.azure.com")) for host in hosts)


def _worker(value: str) -> str:
    found = _OPERATION.search(urlsplit(_url(value)).path.rstrip("/"))
    if found:
        raise ValueError(f"must end before {found[0]}: it is the base address of the worker, such as http://gpu-1:8000")
    return base_address(value)


def _search_path(value: str) -> str:
    if not re.match(r"/[\x21-\x7e]*\Z", value) or "{query}" not in value or "#" in value or "\\" in value:
        raise ValueError('must be a path with "{query}" where the query belongs, such as "/search?q={query}"')
    return value


def _collector(value: str) -> str:
    """As OpenTelemetry completes an address without a path."""
    address = urlsplit(_url(value))
    if address.path.rstrip("/") not in ("", "/v1"):
        return _url(value)
    if address.port == 4317:
        raise ValueError(
            "must be an address for OTLP over HTTP, as a rule at port 4318, such as http://otel:4318/v1/traces: 4317 is"
            " OTLP's port for gRPC"
        )
    return base_address(value) + "/v1/traces"


def _key_set(value: str) -> str:
    url = _url(value)
    if url.endswith("/.well-known/openid-configuration"):
        raise ValueError("must be the address of the keys themselves, which that document calls jwks_uri")
    return url


def _issuer(value: str) -> str:
    _url(value)
    return value  # a slash at its end is a part of it: tokens must name exactly this


def _address(value: Any) -> Any:
    form = rf"(?:{IN_BRACKETS}|([A-Za-z0-9._-]+)):([0-9]{{1,5}})\Z"
    found = re.match(form, value) if isinstance(value, str) else None
    if found is None or not 0 < int(found[3]) < 65536 or not is_host(found[1] or found[2]):
        raise ValueError('must be host:port, such as "redis:6379" or "[::1]:6379"')
    return value


def _host(value: str) -> str:
    if not re.match(r"[A-Za-z0-9._:%-]+\Z", value) or not is_host(value):
        raise ValueError('must be an address or host name without a port, such as "127.0.0.1", "::1" or "0.0.0.0"')
    return value


class RedisServer(NamedTuple):
    """A Redis server's addresses, the user and password to give (None without one), and whether to speak TLS."""

    addresses: tuple[str, ...]
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: bool = False

    def __repr__(self) -> str:
        return f"RedisServer({', '.join(self.addresses)})"


def redis_server(url: str) -> RedisServer:
    """The server of `redis[s]://[[user]:password@]host[:port][/db]`; user and password may be percent-encoded.

    Raises ValueError for any other text.
    """
    try:
        parts = urlsplit(url)
        path = re.match(r"/?([0-9]{1,5})?\Z", parts.path)
        if parts.scheme not in ("redis", "rediss") or path is None or set(url) & set("?#\\"):
            raise ValueError
        if not _AUTHORITY.match(parts.netloc):
            raise ValueError
        host, port = parts.hostname or "", 6379 if parts.port is None else parts.port
        address = _address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except ValueError:
        raise ValueError("must be redis://[user@]host[:port][/db], or rediss:// for TLS") from None
    user, password = (unquote(text) if text else None for text in (parts.username, parts.password))
    return RedisServer((address,), int(path[1] or 0), user, password, parts.scheme == "rediss")


def _redis_url(value: str) -> str:
    if redis_server(value).password is not None:
        raise ValueError(
            "must not hold a password: use password_file or password_env, or url_file or url_env for all of it"
        )
    return value


def _network(value: str) -> str:
    """IPv4-mapped IPv6 becomes IPv4, as the addresses of clients do."""
    if "%" in value:
        raise ValueError(
            "must have no zone (%...): addresses are compared without one, so it would match at each interface"
        )
    try:
        found = ip_network(value)
    except ValueError:
        raise ValueError("must be an address or a network such as 10.0.0.0/8, without host bits") from None
    mapped = found.network_address.ipv4_mapped if isinstance(found, IPv6Network) and found.prefixlen >= 96 else None
    return str(found) if mapped is None else f"{mapped}/{found.prefixlen - 96}"


def _origin(value: str) -> str:
    """As browsers write it: lower case, no path, no port that the scheme implies."""
    if value in ("*", "null"):
        return value
    wrong = ValueError(
        'must be an origin without a path, such as "https://chat.example.com" or "http://localhost:3000"'
    )
    found = re.match(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?/?\Z", value.lower())
    if (
        found is None
        or (found[3] is not None and not 0 < int(found[3][1:]) < 65536)
        or not is_host(found[2].strip("[]"))
    ):
        raise wrong
    port = "" if (found[1], found[3]) in (("http", ":80"), ("https", ":443")) else found[3] or ""
    return f"{found[1]}://{found[2]}{port}"


def nano(value: Any) -> int:
    """An amount as it is written, in nano. A float is taken as the digits that were written."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = f"{Decimal(str(value)):f}"
    found = isinstance(value, str) and _AMOUNT.match(value)
    if not found or Decimal(str(value)) > MOST:
        raise ValueError(f"must be an amount from 0 to {MOST:,} with at most nine decimals, such as 0.15")
    return int(Decimal(str(value)) * NANO)


def _zone(value: str) -> str:
    try:
        if _ZONE.match(value):
            zone_of(value)
            return value
    except (KeyError, OSError, ValueError):
        pass
    raise ValueError('must be a time zone that this machine knows, such as "Europe/Berlin" or "UTC"')


def zone_of(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def _expiry(value: Any) -> Any:
    """A date lasts through the end of that day. A time without a zone is UTC."""
    moment = value
    if isinstance(value, str):
        try:
            whole_day = re.match(r"\d{4}-\d\d-\d\d\Z", value) is not None
            moment = datetime.fromisoformat(value) + timedelta(days=whole_day)
        except (ValueError, OverflowError):
            moment = None
    if not isinstance(moment, datetime):
        raise ValueError('must be a date such as 2027-01-31, or a time such as "2027-01-31T12:00:00Z"')
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def header_name_fault(name: str) -> str | None:
    """The fault of a header's name, or None."""
    return None if _HEADER_NAME.match(name) else "is not a header name"


def header_fault(name: str, value: str) -> str | None:
    """The fault of an extra header of a request of our own, or None."""
    if fault := header_name_fault(name):
        return fault
    if name.lower() in OWN_HEADERS:
        return "is written by the gateway itself and cannot be set"
    if not _HEADER_VALUE.match(value):
        return "must be printable ASCII on one line"
    return None


Whole = Annotated[int, BeforeValidator(lambda value: _number(value, "must be a whole number"))]
"""A whole number. true, false and quoted numbers are refused."""

Flag = Annotated[bool, BeforeValidator(_flag)]
"""true or false. Words such as no and on are accepted from the environment only."""

Number = Annotated[int | float, BeforeValidator(_number)]
"""A whole number stays one. true, false and quoted numbers are refused."""

Share = Annotated[float, BeforeValidator(_number)]
"""A number such as 0.2. true, false and quoted numbers are refused."""

Seconds = Annotated[float, BeforeValidator(_seconds), _OrText(_DURATION, "30s")]
"""A duration; read from a number of seconds or "500ms", "30s", "2m", "1h", "1d"."""

Bytes = Annotated[int, BeforeValidator(_bytes), _OrText(_SIZE, "32MiB")]
"""A size in bytes; read from a number or "64KiB", "32MiB", "1GB"."""

Name = Annotated[str, AfterValidator(checked_name)]
"""A name of a model, key or alias as clients write it."""

Alias = Annotated[str, AfterValidator(_alias)]
"""A name as clients write it, or with `*` at its end all names that begin like it."""

Prefix = Annotated[str, AfterValidator(_prefix)]
"""A path prefix without a slash at its end; "" is the root."""

WorkerUrl = Annotated[str, AfterValidator(_worker)]
"""scheme://host[:port][/base] of a worker, without a slash at its end. A `/v1` at its end is left out."""

ProxyUrl = Annotated[str, AfterValidator(_proxy)]
"""scheme://host[:port] of a forward proxy, or `environment`."""

ServiceUrl = Annotated[str, AfterValidator(_url)]
SearchPath = Annotated[str, AfterValidator(_search_path)]
CollectorUrl = Annotated[str, AfterValidator(_collector)]
"""scheme://host[:port][/path] that takes traces; without a path it is /v1/traces."""

KeySetUrl = Annotated[str, AfterValidator(_key_set)]
"""scheme://host[:port]/path of an identity provider's keys."""

IssuerUrl = Annotated[str, AfterValidator(_issuer)]
"""scheme://host[:port][/path] of an identity provider, as its tokens name it."""

Address = Annotated[str, BeforeValidator(_address)]
"""host:port; an IPv6 address stands in brackets."""

RedisUrl = Annotated[str, AfterValidator(_redis_url)]
"""redis[s]://[user@]host[:port][/db]; no password stands in it."""

Network = Annotated[str, AfterValidator(_network)]
"""An IP address or network in CIDR form."""

Origin = Annotated[str, AfterValidator(_origin)]
"""scheme://host[:port] as a browser sends it, or "*" for all, or "null" for pages that have none."""

HeaderName = Annotated[str, _matching(_HEADER_NAME.pattern, "is not a header name")]
Host = Annotated[str, AfterValidator(_host)]
UrlPath = Annotated[str, _matching("/" + _URL_PATH.pattern, 'must be a path such as "/health"')]
Variable = Annotated[
    str, _matching(r"[A-Za-z_][A-Za-z0-9_]*\Z", "must be the name of an environment variable, not its value")
]
Hash = Annotated[
    str,
    _matching(
        r"sha256:[0-9a-f]{64}\Z",
        'must be "sha256:" and 64 lower-case hexadecimal digits; `dragoman keys new` makes one',
    ),
    WithJsonSchema({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}),
]

Expiry = Annotated[
    datetime,
    BeforeValidator(_expiry),
    WithJsonSchema({"type": "string", "examples": ["2027-01-31", "2027-01-31T12:00:00Z"]}),
]
"""A moment with a zone. A bare date lasts through the end of that day in UTC."""

_NANO_NODE: dict[str, Any] = {"type": ["number", "string"], "maximum": MOST, "pattern": r"^\d{1,9}(\.\d{1,9})?$"}
_Nano = Annotated[int, BeforeValidator(nano), PlainSerializer(shown, return_type=str, when_used="json")]
Money = Annotated[_Nano, WithJsonSchema({**_NANO_NODE, "minimum": 0})]
"""An amount of the currency, in nano; read from a number such as 0.15, or from such text, which JSON gets."""
Budgeted = Annotated[_Nano, Field(gt=0), WithJsonSchema({**_NANO_NODE, "exclusiveMinimum": 0})]
"""An amount that may be spent."""

Zone = Annotated[str, AfterValidator(_zone)]
"""An IANA name."""

Feature = Literal[
    "tools",
    "vision",
    "audio",
    "reasoning",
    "json",
    "json_schema",
    "regex",
    "beams",
    "embeddings",
    "scores",
    "transcription",
    "speech",
    "images",
    "completions",
    "logprobs",
    "token_ids",
    "prompt_tokens",
    "system_turns",
    "no_repeat_ngram",
    "bad_word_tokens",
]
