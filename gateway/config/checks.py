"""Faults between options, which one option alone does not show. Nothing here reads a file or changes a value."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import product
from typing import get_args

from gateway.config.available import listed
from gateway.config.batch_checks import batches
from gateway.config.faults import Faults, Path, Unknown, masked
from gateway.config.guards import Guard
from gateway.config.ineffective import ineffective
from gateway.config.model_checks import each_model
from gateway.config.money_checks import money
from gateway.config.policy_checks import policies
from gateway.config.prompt_log_checks import prompt_log
from gateway.config.reply_cache import ReplyCache
from gateway.config.rules import Facts, header_faults, repeated
from gateway.config.serving import ConsoleOidc, is_loopback, is_private
from gateway.config.sharing import WrittenKind
from gateway.config.teams import teams

_KEY_PREFIX = "/k"
"""The beginning of a path that has a key."""
_LOCALHOST = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
# The fault of a value in `match` that no request can have, by its dimension.
_STRANGERS = {"key": "is not a key", "team": "no key has this team", "model": "is not a model"}


def check(facts: Facts) -> Faults:
    """Faults between options whose values are right each for itself."""
    for rule in _RULES:
        yield from rule(facts)


def _who(facts: Facts) -> Faults:
    keys = bool(facts.config.keys) or facts.any_key
    match facts.auth:
        case "keys" if not keys:
            yield ("auth",), "asks for keys, but there are none in keys or keys_file"
        case "open" if keys:
            yield ("auth",), "lets everybody in although there are keys; remove one or the other"
        case None if facts.config.keys_file and not keys:
            yield ("keys_file",), "holds no keys"
        case None if not keys and not facts.config.listen.loopback:
            yield ("listen", "host"), "is open to other machines while there are no keys; add keys, or say `auth: open`"
    if facts.config.auth == "open" and facts.config.path_keys:
        yield ("path_keys",), "has no effect without keys"


def _names(facts: Facts) -> Faults:
    models = facts.config.models
    if not models:
        yield ("models",), "must hold at least one model"
        return
    owners: dict[str, str] = {}
    for name, model in models.items():
        for index, alias in enumerate(model.aliases):
            path = ("models", name, "aliases", index)
            if alias in models:
                yield path, "is the name of a model" if alias != name else "is the model's own name"
            elif owners.setdefault(alias, name) != name:
                yield path, f"is already an alias of {owners[alias]}"
            elif alias in model.aliases[:index]:
                yield path, "is given twice"


def _keys(facts: Facts) -> Faults:
    holders: dict[tuple[str, str], str] = {}
    for name, key in facts.config.keys.items():
        at = ("keys", name)
        if wrong := key_name_fault(name):
            yield at, wrong
        for option in ("hash", "id", "aws_access_key_id"):
            value = getattr(key, option)
            if value is not None and holders.setdefault((option, value), name) != name:
                yield (*at, option), f"is the same as that of {holders[option, value]}"
        if key.hash is None and key.aws_access_key_id is None and key.match is None:
            yield (*at, "hash"), "is required, unless there is aws_access_key_id or match"
        secret = "aws_secret_file" if key.aws_secret_file else "aws_secret_env" if key.aws_secret_env else None
        if secret is not None and key.aws_access_key_id is None:
            yield (*at, secret), "needs aws_access_key_id beside it"
        elif secret is None and key.aws_access_key_id is not None:
            yield (*at, "aws_access_key_id"), "needs aws_secret_file or aws_secret_env beside it"
        for index, model in enumerate(key.models or ()):
            if model not in facts.config.model_names:
                yield (*at, "models", index), Unknown("is not a model", model, facts.config.model_names)
        usable = None if key.models is None else {facts.config.resolve(model) for model in key.models}
        for alias, model in key.aliases.items():
            if model not in facts.config.model_names:
                yield (*at, "aliases", alias), Unknown("is not a model", model, facts.config.model_names)
            elif usable is not None and facts.config.resolve(model) not in usable:
                yield (*at, "aliases", alias), "is none of the models that the key may use"


def _networks(facts: Facts) -> Faults:
    """Networks of keys that overlap: a request without a key would be of two keys."""
    found = [
        (ip_network(one), name, index)
        for name, key in facts.config.keys.items()
        for index, one in enumerate(key.match.address if key.match is not None else ())
    ]
    found.sort(key=lambda one: (one[0].version, int(one[0][0]), one[0].prefixlen))
    outer, holder = None, ""
    for network, name, index in found:
        if outer is not None and network[0] in outer:
            yield ("keys", name, "match", "address", index), f"overlaps with {outer} of the key {holder}"
        else:
            outer, holder = network, name


def key_name_fault(name: str) -> str | None:
    """Why a key cannot be called `name`, beyond what is true of all names."""
    if masked(name) != name:
        return "looks like a key, not like its name; never write the key itself into the configuration"
    if name.startswith("jwt:"):
        return "must not begin with jwt: as callers with a token do"
    return None


def _within_sections(facts: Facts) -> Faults:
    config = facts.config
    if config.health.timeout_s > config.health.interval_s:
        yield ("health", "timeout_s"), "must be at most interval_s"
    if config.relay.notice_s > config.relay.drain_s:
        yield ("relay", "notice_s"), "must be at most drain_s"
    if config.routing.load_header and not config.routing.scrape_s:
        yield ("routing", "load_header"), "needs routing.scrape_s: without it nobody notices that figures are stale"
    if (config.listen.max_bodies_bytes or config.listen.max_body_bytes) < config.listen.max_body_bytes:
        yield ("listen", "max_bodies_bytes"), "must be at least max_body_bytes"
    if "*" in config.cors.origins and len(config.cors.origins) > 1:
        yield ("cors", "origins"), 'must be "*" alone: that is every origin'
    if "*" in (config.cors.headers or ()):
        words = 'must not hold "*": to browsers that is not authorization; leave headers out for all'
        yield ("cors", "headers"), words
    yield from ineffective(facts)


def _tools(facts: Facts) -> Faults:
    search = facts.config.tools.web_search
    if search is not None:
        yield from header_faults(("tools", "web_search", "headers"), search.headers)


def _tracing(facts: Facts) -> Faults:
    if facts.config.tracing is not None:
        yield from header_faults(("tracing", "headers"), facts.config.tracing.headers)
        if facts.known is not None and facts.known.tracing is not None and not facts.known.tracing():
            yield ("tracing",), "needs pip install 'dragoman[tracing]'"


def _guards(facts: Facts) -> Faults:
    for name, guard in facts.config.guards.items():
        at = ("guards", name)
        yield from header_faults((*at, "headers"), guard.headers)
        if not guard.before and guard.after == "never":
            yield (*at, "before"), "has to be true, unless there is after: nothing is asked"
        if guard.after != "windows":
            for option in ("window_chars", "overlap_chars"):
                if option in guard.model_fields_set:
                    yield (*at, option), "has no effect without after: windows"
        elif guard.overlap_chars >= guard.window_chars:
            yield (*at, "overlap_chars"), "must be less than window_chars"
        yield from _concerns(facts, at, guard)
        yield from _unguarded(facts, name, guard)


def _concerns(facts: Facts, at: Path, section: Guard | ReplyCache) -> Faults:
    """Models and keys that a section is for, and that are not there."""
    models, keys = facts.config.model_names, facts.config.keys
    for index, model in enumerate(section.models or ()):
        if model not in models:
            yield (*at, "models", index), Unknown("is not a model", model, models)
    for index, key in enumerate(section.keys or ()):
        if key not in keys and not facts.any_key:
            yield (*at, "keys", index), Unknown("is not a key", key, keys)


def _reply_cache(facts: Facts) -> Faults:
    cache = facts.config.reply_cache
    if cache is not None:
        yield from _concerns(facts, ("reply_cache",), cache)
        if cache.max_entry_bytes > cache.max_bytes:
            yield ("reply_cache", "max_entry_bytes"), "must be at most max_bytes"


def _unguarded(facts: Facts, name: str, guard: Guard) -> Faults:
    """Copies of requests are shown to no guard: what the one of the mirror should see must have been shown before."""
    guarded = {facts.config.resolve(model) for model in guard.models or ()} if guard.before else ()
    for model, options in facts.config.models.items():
        if options.mirror is not None and options.mirror.model in guarded and model not in guarded:
            yield (
                ("models", model, "mirror", "model"),
                f"is guarded by {name}, and {model} is not: copies would pass it by",
            )


def _metrics(facts: Facts) -> Faults:
    metrics, listen = facts.config.metrics, facts.config.listen
    if metrics.listen is not None and metrics.enabled:
        host, _, port = metrics.listen.rpartition(":")
        if int(port) == listen.port and _overlap(host.strip("[]"), listen.host.strip("[]")):
            yield ("metrics", "listen"), "is where clients call, by listen.host and listen.port; give it another port"


def _console(facts: Facts) -> Faults:
    console, address = facts.config.console, facts.config.metrics.listen
    keyless = console.key_file is None and console.key_env is None and console.oidc is None
    if not console.enabled:
        return
    if address is None or not facts.config.metrics.enabled:
        yield ("console", "enabled"), "needs metrics.listen, such as 127.0.0.1:9090: the console is served there"
    elif keyless and facts.config.auth == "keys":
        yield ("console", "key_file"), "or key_env or oidc is needed, as clients need keys, too"
    elif keyless and not is_loopback(address.rpartition(":")[0].strip("[]")):
        yield ("console", "key_file"), "or key_env or oidc is needed, as other machines can call metrics.listen"
    if console.oidc is not None:
        yield from _console_oidc(console.oidc)


def _console_oidc(oidc: ConsoleOidc) -> Faults:
    at, roles = ("console", "oidc"), oidc.roles
    for name in ("issuer", "url"):
        if not is_private(getattr(oidc, name)):
            yield (*at, name), "must begin with https://, unless it is on this machine: who listens could log in"
    if oidc.ca_file is not None and not oidc.issuer.startswith("https://"):
        yield (*at, "ca_file"), "has no effect: issuer is not https"
    if "openid" not in oidc.scopes:
        yield (*at, "scopes"), "must hold openid"
    if not (roles.admin or roles.lead or roles.viewer):
        yield (*at, "roles"), "gives nobody a role; it needs one of admin, lead, viewer"
    if bool(roles.lead) != (roles.team_claim is not None):
        yield (*at, "roles", "team_claim"), "and lead need each other: the claim names the team of a lead"


def _overlap(one: str, other: str) -> bool:
    """Whether two hosts cannot be listened on at the same port. `::` covers IPv4 too. Names are compared as text,
    except localhost."""
    if one.lower() == other.lower():
        return True
    addresses = [_LOCALHOST if name.lower() == "localhost" else _addresses(name) for name in (one, other)]
    return any(_covers(first, second) or _covers(second, first) for first, second in product(*addresses))


def _covers(host: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address) -> bool:
    return host == other or (host.is_unspecified and (host.version == 6 or other.version == 4))


def _addresses(host: str) -> tuple[IPv4Address | IPv6Address, ...]:
    try:
        return (ip_address(host),)
    except ValueError:
        return ()


def _jwt(facts: Facts) -> Faults:
    jwt = facts.config.jwt
    if jwt is None:
        return
    if (jwt.jwks_file is None) == (jwt.jwks_url is None):
        yield ("jwt", "jwks_url"), "or jwks_file is needed, and only one of them"
    if jwt.jwks_url is not None and not is_private(jwt.jwks_url):
        yield ("jwt", "jwks_url"), "must begin with https://: an attacker who changes the answer can make tokens"
    if jwt.ca_file is not None and not (jwt.jwks_url or "").startswith("https://"):
        yield ("jwt", "ca_file"), "has no effect: no jwks_url is https"


def _admins(facts: Facts) -> Faults:
    config = facts.config
    clients = {key.hash for key in config.keys.values()}
    holders: dict[str, str] = {}
    for name, admin in config.admins.items():
        if admin.hash in clients:
            yield ("admins", name, "hash"), "is that of a client's key; an admin needs a key of its own"
        if holders.setdefault(admin.hash, name) != name:
            yield ("admins", name, "hash"), f"is the same as that of {holders[admin.hash]}"
        if wrong := key_name_fault(name):
            yield ("admins", name), wrong
    by_token = config.jwt is not None and config.jwt.roles_claim is not None
    for path, there in ((("admins",), facts.has("admins")), (("jwt", "roles_claim"), by_token)):
        if there and not facts.has("keys_store"):
            yield path, "has no effect without keys_store: keys in files are changed by their editors"
        elif there and (config.metrics.listen is None or not config.metrics.enabled):
            yield path, "needs metrics.listen, such as 127.0.0.1:9090: the admin API is served there"
    if facts.has("stored_keys") and not facts.has("keys_store"):
        yield ("stored_keys",), "has no effect without keys_store"


def _shared_secrets(facts: Facts) -> Faults:
    for name, section in (("cache_salt", facts.config.cache_salt), ("seal", facts.config.seal)):
        if section is None:
            continue
        if facts.config.auth == "open":
            yield (name,), "has no effect with auth: open, where all callers are one"
        if section.secret_file is None and section.secret_env is None:
            yield (name, "secret_file"), "or secret_env is needed"


def _end_users(facts: Facts) -> Faults:
    config, options = facts.config, facts.config.end_users
    if not facts.has("end_users"):
        wrong = "by end_user needs a section end_users"
        for path, bound in facts.bounds():
            for name in ("scope", "match"):
                if "end_user" in getattr(bound, name):
                    yield (*path, name), wrong
        if config.cache_salt is not None and config.cache_salt.by == "end_user":
            yield ("cache_salt", "by"), wrong
    if options is None:
        return
    if options.header is None and not options.body:
        yield ("end_users", "body"), "is false without a header: nothing names an end user"
    if options.header is not None and not config.listen.trusted_proxies:
        yield ("end_users", "header"), "needs listen.trusted_proxies: it is believed from those alone"


def _redis(facts: Facts) -> Faults:
    config, redis = facts.config, facts.config.redis
    if not facts.has("redis"):
        for section, option, wanted in (
            ("limiter", "store", config.limiter.store == "redis"),
            ("accounting", "redis_stream", config.accounting.redis_stream is not None),
            ("store", "where", config.store.where == "redis"),
            ("spend", "daily", config.spend.daily),
            ("reply_cache", "store", config.reply_cache is not None and config.reply_cache.store == "redis"),
        ):
            if wanted:
                yield (section, option), "needs a section redis"
        for name in ("keys_store", "batches"):
            if facts.has(name):
                yield (name,), "needs a section redis"
    if redis is None:
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
    if (redis.cert_file is None) != (redis.key_file is None):
        yield ("redis", "key_file" if redis.cert_file is None else "cert_file"), "needs the other of the pair"


def _limits(facts: Facts) -> Faults:
    limiter = facts.config.limiter
    parts = limiter.partition_by if limiter.partitions > 1 else None
    if limiter.partitions > 1 and parts is None:
        yield ("limiter", "partitions"), "needs partition_by beside it"
    for name, key in facts.config.keys.items() if parts not in (None, "key") else ():
        if key.limits is not None:
            yield ("keys", name, "limits"), "cannot be counted in partitions that are not by key"
    for path, bound in facts.bounds():
        if len(set(bound.scope)) < len(bound.scope):
            yield (*path, "scope"), "names a dimension twice"
        if parts not in (None, *bound.scope):
            yield (*path, "scope"), f"must have {parts} in it, which limiter.partition_by names"
    whole: set[str] = set()
    kinds: dict[str, str] = {kind: kind for kind in get_args(WrittenKind)}
    for index, limit in enumerate(facts.config.limits):
        path = ("limits", index)
        if limit.kind != "concurrency" and limit.burst is not None and limit.burst > limit.limit:
            yield (*path, "burst"), "must be at most limit"
        if kinds.setdefault(limit.name, limit.kind) != limit.kind:
            yield (*path, "kind"), f"must be {kinds[limit.name]}: limits of one name are of one kind"
        if limit.name in whole:
            yield (*path, "name"), "is that of a limit before it that matches everything: this one never applies"
        elif not limit.match:
            whole.add(limit.name)


def _matches(facts: Facts) -> Faults:
    """Values in the `match` of a limit or a policy that no request can have."""
    keys = facts.config.keys
    known = {key.team for key in keys.values() if key.team is not None} | facts.config.teams.keys()
    names = {"key": keys, "team": known, "model": facts.config.model_names}
    for parent, match in facts.matches():
        for dimension, values in match.items():
            path = (*parent, "match", dimension)
            if not values:
                yield path, "is empty: nothing ever applies"
            for at, value in enumerate(values):
                if dimension == "address":
                    if not _addresses(value):
                        yield (*path, at), "must be one IP address; networks are not matched"
                    continue
                if dimension == "end_user":
                    continue
                there = names[dimension]
                if value not in there and (there if dimension == "model" else not facts.any_key):
                    yield (*path, at), Unknown(_STRANGERS[dimension], value, there)


def _held_in_memory(facts: Facts) -> Faults:
    """Faults of what each of several gateways or processes would hold for itself: together they admit as many times
    the limit."""
    if facts.known is None or max(facts.known.gateways, facts.known.processes) == 1:
        return
    several = f"{facts.known.processes} processes for itself: --processes needs"
    if facts.known.gateways > 1:
        several = f"{facts.known.gateways} gateways for itself: they need"
    config = facts.config
    if config.redis is None or config.limiter.store == "memory":
        way = "a section redis" if config.redis is None else "limiter.store redis"
        wrong = f"is counted in memory, by each of {several} {way}"
        for name, key in config.keys.items():
            for kind in (*get_args(WrittenKind), "budget"):
                if getattr(key.limits, kind, None) is not None:
                    yield ("keys", name, "limits", kind), wrong
        for name, team in config.teams.items():
            for option in ("limits", "budgets"):
                if getattr(team, option):
                    yield ("teams", name, option), wrong
        for path, _ in facts.bounds():
            yield path, wrong
    if config.store.where == "memory":
        yield ("store", "where"), f"is of each of {several} redis here"


def _dialects(facts: Facts) -> Faults:
    """Dialects and models that there are not, and options that a dialect does not have."""
    config, known = facts.config, facts.known
    for name, dialect in config.dialects.items():
        if (model := dialect.default_model) is not None and model not in config.model_names:
            yield ("dialects", name, "default_model"), Unknown("is not a model", model, config.model_names)
    if known is None:
        return
    for name, dialect in config.dialects.items():
        if name not in known.dialects:
            there_are = listed(known.dialects)
            yield ("dialects", name), Unknown("is not a dialect", name, known.dialects, otherwise=there_are)
        elif dialect.default_api_version is not None and name not in known.versioned:
            yield ("dialects", name, "default_api_version"), "has no meaning: its requests name no version"
    if known.dialects and not any(config.dialect(name).enabled for name in known.dialects):
        yield ("dialects",), "must leave at least one dialect enabled"
    for name, key in config.keys.items():
        for index, one in enumerate(key.dialects or ()):
            if one not in known.dialects:
                yield ("keys", name, "dialects", index), Unknown("is not a dialect", one, known.dialects)


def _prefixes(facts: Facts) -> Faults:
    """Dialects may share a prefix as long as no request there could be meant for two of them. The fault is at the
    prefix that the file sets, not at a default, and it names every dialect in the way."""
    config, known = facts.config, facts.known
    by_default = known.dialects if known is not None else {}
    offered = [name for name in by_default if config.dialect(name).enabled]
    taken: dict[str, str] = {}
    for name in sorted(offered, key=lambda name: config.dialect(name).prefixes is not None):
        own = config.dialect(name).prefixes
        twice = set(repeated(own or ()))
        for index, prefix in enumerate(own if own is not None else by_default[name]):
            path = ("dialects", name, "prefixes", index) if own is not None else ("dialects", name)
            if config.path_keys and f"{prefix}/".startswith(f"{_KEY_PREFIX}/"):
                yield path, "begins as paths with a key do, by path_keys"
                continue
            if index in twice:
                yield path, "is given twice"
                continue
            assert known is not None  # it names the dialects
            shared: dict[str, str] = {}
            for route in sorted(known.serves(config, name, prefix)):
                if (holder := taken.setdefault(route, name)) != name:
                    shared.setdefault(holder, route)
            if shared:
                others = " and ".join(f"{route} as {holder} does" for holder, route in shared.items())
                yield path, f"answers {others}; give one of them other prefixes"


_RULES: tuple[Callable[[Facts], Faults], ...] = (
    _who,
    _names,
    each_model,
    _within_sections,
    _metrics,
    _console,
    _redis,
    _jwt,
    _admins,
    _shared_secrets,
    _end_users,
    _tracing,
    batches,
    _tools,
    _guards,
    _reply_cache,
    policies,
    prompt_log,
    _keys,
    _networks,
    teams,
    _limits,
    money,
    _matches,
    _dialects,
    _prefixes,
    _held_in_memory,
)
