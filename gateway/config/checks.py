"""What one option alone cannot tell: faults between options. Nothing here reads a file or changes a value."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from gateway.config.available import Available, listed
from gateway.config.between_models import between_models
from gateway.config.each_model import each_model
from gateway.config.faults import Found, Unknown, masked
from gateway.config.model import Config, Key
from gateway.config.rules import header_faults, not_both, repeated
from gateway.config.serving import is_loopback
from gateway.config.unused import unused

_LOCALHOST = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
# What is wrong with a value in `match` that no request can have, by its dimension.
_STRANGERS = {"key": "is not a key", "team": "no key has this team", "model": "is not a model"}


def check(config: Config, raw: Mapping[str, Any], known: Available | None, more_keys: bool) -> Found:
    """Faults between options of `config`.

    raw is what was written, before wrong values were left out; more_keys says that there may be keys unseen.
    """
    names = _written_names(raw)
    yield from [
        *_who(config, raw, bool(raw.get("keys") or raw.get("jwt")) or more_keys),
        *_names(config, raw),
        *each_model(config, known),
        *_timing(config),
        *_loads(config),
        *_bodies(config),
        *_metrics(config),
        *_console(config),
        *_cors(config),
        *_sharing(config),
        *_jwt(config),
        *_shared_secrets(config),
        *_tracing(config, known),
        *unused(config, raw),
    ]
    yield from [*_keys(config, names), *_defaults(config, names), *_limits(config, names)]
    yield from between_models(config, names)
    if known is not None:
        yield from [*_known(config, known), *_prefixes(config, known)]
        if known.processes > 1:
            yield from _kept_in_memory(config, known.processes)


def _written_names(raw: Mapping[str, Any]) -> set[str]:
    """All names and aliases of models, also of models with faults: a reference to one of those is no fault itself."""
    names: set[str] = set()
    models = raw.get("models")
    for name, options in models.items() if isinstance(models, dict) else ():
        names.add(name)
        aliases = options.get("aliases") if isinstance(options, dict) else None
        if isinstance(aliases, list):
            names.update(alias for alias in aliases if isinstance(alias, str))
    return names


def _who(config: Config, raw: Mapping[str, Any], keys: bool) -> Found:
    said = raw.get("auth")
    if said == "keys" and not keys:
        yield ("auth",), "asks for keys, but there are none in keys or keys_file"
    elif said is None and raw.get("keys_file") and not keys:
        yield ("keys_file",), "holds no keys"
    elif said == "open" and keys:
        yield ("auth",), "lets everybody in although there are keys; remove one or the other"
    elif said is None and not keys and not config.listen.loopback:
        yield ("listen", "host"), "is open to other machines while there are no keys; add keys, or say `auth: open`"


def _names(config: Config, raw: Mapping[str, Any]) -> Found:
    models = raw.get("models")
    if not models:
        yield ("models",), "must hold at least one model"
        return
    seen: dict[str, str] = {}
    for name, model in config.models.items():
        for index, alias in enumerate(model.aliases):
            path = ("models", name, "aliases", index)
            if alias in models:
                yield path, "is the name of a model" if alias != name else "is the model's own name"
            elif alias in seen:
                yield path, f"is already an alias of {seen[alias]}" if seen[alias] != name else "is given twice"
            else:
                seen[alias] = name


def _keys(config: Config, names: set[str]) -> Found:
    ids: dict[str, str] = {}
    hashes: dict[str, str] = {}
    pairs: dict[str, str] = {}
    for name, key in config.keys.items():
        wrong = key_name_fault(name)
        if wrong is not None:
            yield ("keys", name), wrong
        if key.hash is None and key.aws_access_key_id is None:
            yield ("keys", name, "hash"), "is required, unless there is aws_access_key_id"
        if key.hash in hashes:
            yield ("keys", name, "hash"), f"is the same as that of {hashes[key.hash]}"
        if key.id is not None and key.id in ids:
            yield ("keys", name, "id"), f"is the same as that of {ids[key.id]}"
        if key.hash is not None:
            hashes.setdefault(key.hash, name)
        yield from _pair(name, key, pairs)
        if key.id is not None:
            ids.setdefault(key.id, name)
        for index, model in enumerate(key.models or ()):
            if model not in names:
                yield ("keys", name, "models", index), Unknown("is not a model", model, names)


def key_name_fault(name: str) -> str | None:
    """Why a key cannot be called `name`, beyond what is true of all names."""
    if masked(name) != name:
        return "looks like a key, not like its name; never write the key itself into the configuration"
    if name.startswith("jwt:"):
        return "must not begin with jwt: as callers with a token do"
    return None


def _pair(name: str, key: Key, pairs: dict[str, str]) -> Found:
    secret = "aws_secret_file" if key.aws_secret_file else "aws_secret_env" if key.aws_secret_env else None
    if key.aws_access_key_id is None:
        if secret is not None:
            yield ("keys", name, secret), "needs aws_access_key_id beside it"
        return
    if secret is None:
        yield ("keys", name, "aws_access_key_id"), "needs aws_secret_file or aws_secret_env beside it"
    yield from not_both(("keys", name), key, "aws_secret")
    if key.aws_access_key_id in pairs:
        yield ("keys", name, "aws_access_key_id"), f"is the same as that of {pairs[key.aws_access_key_id]}"
    pairs.setdefault(key.aws_access_key_id, name)


def _defaults(config: Config, names: set[str]) -> Found:
    for name, dialect in config.dialects.items():
        if dialect.default_model is not None and dialect.default_model not in names:
            yield ("dialects", name, "default_model"), Unknown("is not a model", dialect.default_model, names)


def _timing(config: Config) -> Found:
    if config.health.timeout_s > config.health.interval_s:
        yield ("health", "timeout_s"), "must be at most interval_s"
    if config.relay.notice_s > config.relay.drain_s:
        yield ("relay", "notice_s"), "must be at most drain_s"


def _loads(config: Config) -> Found:
    if config.routing.load_header and not config.routing.scrape_s:
        yield ("routing", "load_header"), "needs routing.scrape_s: without it nobody notices that figures are stale"


def _bodies(config: Config) -> Found:
    most = config.listen.max_bodies_bytes
    if most is not None and most < config.listen.max_body_bytes:
        yield ("listen", "max_bodies_bytes"), "must be at least max_body_bytes"


def _tracing(config: Config, known: Available | None) -> Found:
    if config.tracing is not None:
        yield from header_faults(("tracing", "headers"), config.tracing.headers)
        if known is not None and known.tracing is not None and not known.tracing():
            yield ("tracing",), "needs pip install 'dragoman[tracing]'"


def _metrics(config: Config) -> Found:
    if config.metrics.listen is not None and not config.metrics.enabled:
        yield ("metrics", "listen"), "has no effect: metrics are not enabled"
    elif config.metrics.listen is not None:
        host, _, port = config.metrics.listen.rpartition(":")
        if int(port) == config.listen.port and _overlap(host.strip("[]"), config.listen.host.strip("[]")):
            yield ("metrics", "listen"), "is where clients call, by listen.host and listen.port; give it another port"


def _console(config: Config) -> Found:
    console, place = config.console, config.metrics.listen
    option = "key_file" if console.key_file is not None else "key_env" if console.key_env is not None else None
    yield from not_both(("console",), console, "key")
    if not console.enabled:
        if option is not None:
            yield ("console", option), "has no effect: the console is not enabled"
    elif place is None or not config.metrics.enabled:
        yield ("console", "enabled"), "needs metrics.listen, such as 127.0.0.1:9090: the console is served there"
    elif option is None and config.auth == "keys":
        yield ("console", "key_file"), "or key_env is needed, as clients need keys, too"
    elif option is None and not is_loopback(place.rpartition(":")[0].strip("[]")):
        yield ("console", "key_file"), "or key_env is needed, as other machines can call metrics.listen"


def _cors(config: Config) -> Found:
    cors = config.cors
    if "*" in cors.origins and len(cors.origins) > 1:
        yield ("cors", "origins"), 'must be "*" alone: that is every origin'
    if "*" in (cors.headers or ()):
        yield (
            ("cors", "headers"),
            'must not hold "*": to browsers that is not authorization; leave headers out for all',
        )


def _overlap(one: str, other: str) -> bool:
    """Whether two hosts cannot be listened on at the same port. `::` covers IPv4 too. Names are compared as text,
    except localhost."""
    if one.lower() == other.lower():
        return True
    places = [_LOCALHOST if name.lower() == "localhost" else _addresses(name) for name in (one, other)]
    return any(
        first == second
        or (first.is_unspecified and (first.version == 6 or second.version == 4))
        or (second.is_unspecified and (second.version == 6 or first.version == 4))
        for first in places[0]
        for second in places[1]
    )


def _addresses(host: str) -> tuple[IPv4Address | IPv6Address, ...]:
    try:
        return (ip_address(host),)
    except ValueError:
        return ()


def _jwt(config: Config) -> Found:
    jwt = config.jwt
    if jwt is None:
        return
    if (jwt.jwks_file is None) == (jwt.jwks_url is None):
        yield ("jwt", "jwks_url"), "or jwks_file is needed, and only one of them"
    address = urlsplit(jwt.jwks_url or "https://")
    if address.scheme != "https" and not is_loopback(address.hostname or ""):
        yield ("jwt", "jwks_url"), "must begin with https://: whoever can change the answer can make tokens"


def _shared_secrets(config: Config) -> Found:
    for name, section in (("cache_salt", config.cache_salt), ("seal", config.seal)):
        if section is None:
            continue
        if config.auth == "open":
            yield (name,), "has no effect with auth: open, where all callers are one"
        if section.secret_file is None and section.secret_env is None:
            yield (name, "secret_file"), "or secret_env is needed"
        yield from not_both((name,), section, "secret")


def _sharing(config: Config) -> Found:
    redis = config.redis
    if redis is None:
        if config.limiter.store == "redis":
            yield ("limiter", "store"), "needs a section redis"
        if config.accounting.redis_stream is not None:
            yield ("accounting", "redis_stream"), "needs a section redis"
        if config.store.where == "redis":
            yield ("store", "where"), "needs a section redis"
        return
    where = [name for name in ("addresses", "url", "url_file", "url_env") if getattr(redis, name)]
    if not where:
        yield ("redis",), "must say where: addresses or url"
    for name in where[1:]:
        yield ("redis", name), f"and {where[0]} exclude each other"
    for name in ("db", "username", "tls"):
        if getattr(redis, name) and set(where) - {"addresses"}:
            yield ("redis", name), "belongs in the URL, as there is one"
    if redis.mode == "single" and len(redis.addresses) > 1:
        yield ("redis", "addresses"), "must be one address, unless mode is sentinel or cluster"
    if redis.mode == "sentinel" and set(where) - {"addresses"}:
        yield ("redis", "mode"), "needs the addresses of all Sentinels: a URL names one server"
    yield from not_both(("redis",), redis, "password")
    if (redis.cert_file is None) != (redis.key_file is None):
        yield ("redis", "key_file" if redis.cert_file is None else "cert_file"), "needs the other of the pair"


def _limits(config: Config, names: set[str]) -> Found:
    limiter, open_to = config.limiter, {"key": set(config.keys), "model": names}
    open_to["team"] = {key.team for key in config.keys.values() if key.team is not None}
    if limiter.partitions > 1 and limiter.partition_by is None:
        yield ("limiter", "partitions"), "needs partition_by beside it"
    if limiter.partitions > 1 and limiter.partition_by not in (None, "key"):
        for name, key in config.keys.items():
            if key.limits is not None:
                yield ("keys", name, "limits"), "cannot be counted in partitions that are not by key"
    whole: set[str] = set()
    kinds: dict[str, str] = {"requests": "requests", "tokens": "tokens", "concurrency": "concurrency"}
    for index, limit in enumerate(config.limits):
        path = ("limits", index)
        if limit.kind == "concurrency":
            for option in sorted({"per_s", "burst"} & limit.model_fields_set):
                yield (*path, option), "has no effect: requests in flight have no window"
        elif limit.burst is not None and limit.burst > limit.limit:
            yield (*path, "burst"), "must be at most limit"
        if len(set(limit.scope)) < len(limit.scope):
            yield (*path, "scope"), "names a dimension twice"
        if limiter.partitions > 1 and limiter.partition_by not in (None, *limit.scope):
            yield (*path, "scope"), f"must have {limiter.partition_by} in it, which limiter.partition_by names"
        if kinds.setdefault(limit.name, limit.kind) != limit.kind:
            yield (*path, "kind"), f"must be {kinds[limit.name]}: limits of one name are of one kind"
        if limit.name in whole:
            yield (*path, "name"), "is that of a limit before it that matches everything: this one never applies"
        elif not limit.match:
            whole.add(limit.name)
        for dimension, values in limit.match.items():
            if not values:
                yield (*path, "match", dimension), "is empty: this limit never applies"
            for at, value in enumerate(values):
                if dimension == "address" and not _is_address(value):
                    yield (*path, "match", dimension, at), "must be one IP address; networks are not matched"
                known = open_to.get(dimension)
                stranger = config.jwt is not None and dimension != "model"  # tokens may bring any
                if known is not None and value not in known and not stranger and (known or dimension != "model"):
                    yield (*path, "match", dimension, at), Unknown(_STRANGERS[dimension], value, known)


def _kept_in_memory(config: Config, processes: int) -> Found:
    """What each of several processes would keep for itself: together they would admit as many times the limit."""
    if config.redis is None or config.limiter.store == "memory":
        way = "a section redis" if config.redis is None else "limiter.store redis"
        wrong = f"is counted in memory, by each of {processes} processes for itself: --processes needs {way}"
        for name, key in config.keys.items():
            for kind in ("requests", "tokens", "concurrency"):
                if getattr(key.limits, kind, None) is not None:
                    yield ("keys", name, "limits", kind), wrong
        for index in range(len(config.limits)):
            yield ("limits", index), wrong
    if config.store.where == "memory":
        yield ("store", "where"), f"is of each of {processes} processes for itself: --processes needs redis here"


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _known(config: Config, known: Available) -> Found:
    for name in config.dialects:
        if name not in known.dialects:
            yield (
                ("dialects", name),
                Unknown("is not a dialect", name, known.dialects, otherwise=listed(known.dialects)),
            )
        elif config.dialects[name].default_api_version is not None and name not in known.versioned:
            yield ("dialects", name, "default_api_version"), "has no meaning: its requests name no version"
    if known.dialects and not any(config.dialect(name).enabled for name in known.dialects):
        yield ("dialects",), "must leave at least one dialect enabled"
    for name, key in config.keys.items():
        for index, dialect in enumerate(key.dialects or ()):
            if dialect not in known.dialects:
                yield ("keys", name, "dialects", index), Unknown("is not a dialect", dialect, known.dialects)


def _prefixes(config: Config, known: Available) -> Found:
    """Dialects share a prefix only where all of them answer there by default: those are told apart request by request.
    The fault is at the prefix that the file sets, not at a default, and it names every dialect in the way."""
    offered = [name for name in known.dialects if config.dialect(name).enabled]
    answering: dict[str, list[str]] = {}
    order = sorted(offered, key=lambda name: config.dialect(name).prefixes is not None)
    for name in order:
        own = config.dialect(name).prefixes
        twice = set(repeated(own or ()))
        for index, prefix in enumerate(own if own is not None else known.dialects[name]):
            prefix = prefix.rstrip("/")
            path = ("dialects", name, "prefixes", index) if own is not None else ("dialects", name)
            if index in twice:
                yield path, "is given twice"
                continue
            holders = answering.setdefault(prefix, [])
            others = [one for one in holders if not {prefix} <= {*known.dialects[name]} & {*known.dialects[one]}]
            if others[1:]:
                they = f"{', '.join(others[:-1])} and {others[-1]} do; give {name} another prefix"
                yield path, f"answers under {prefix or '/'} as {they}"
            elif others:
                yield path, f"answers under {prefix or '/'} as {others[0]} does; give one of them other prefixes"
            holders.append(name)
