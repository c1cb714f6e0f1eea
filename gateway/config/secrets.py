"""The files and variables that a configuration refers to: secrets, certificates, the keys of an identity provider.

`read_secrets` only reads; `with_secrets` makes the configuration that holds what was read.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Container, Iterator, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from gateway.config.available import Available
from gateway.config.faults import Message, Path
from gateway.config.files import read_file, why
from gateway.config.kinds import SECRET_HEADER, redis_server
from gateway.config.model import Config, Model
from gateway.config.proxies import VARIABLES, proxy_url, variables
from gateway.config.section import Section
from gateway.config.sharing import Jwt, Redis

MOST_SECRET_BYTES = 16384
MOST_FILE_BYTES = 1 << 22
"""Certificate bundles and key sets. That of all public authorities has some 230 KB."""
# Section, name -> the fewest characters of this secret, and a command that makes one.
_LENGTHS = {
    ("cache_salt", "secret"): (32, "openssl rand -hex 32"),
    ("seal", "secret"): (32, "openssl rand -hex 32"),
    ("budget_webhook", "secret"): (32, "openssl rand -hex 32"),
    ("end_users", "secret"): (32, "openssl rand -hex 32"),
    ("console", "key"): (16, "openssl rand -hex 16"),
    ("oidc", "session_secret"): (32, "openssl rand -hex 32"),
}

# In capitals with an underscore; a secret in the place of the name looks otherwise.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+\Z")
_INNER: tuple[Path, ...] = (("batches", "bucket"), ("prompt_log", "bucket"), ("console", "oidc"))
"""Sections within a section. Each may name secrets and an authority."""

Secrets = dict[Path, dict[str, str]]
"""The secrets that were read, by name, by the path of their section."""


def read_secrets(
    config: Config, environ: Mapping[str, str], known: Available | None = None, only: Container[str] | None = None
) -> tuple[Secrets, list[tuple[Path, Message]]]:
    """The secrets that `config` refers to, and faults by path. Certificate bundles are tried. only: the sections of
    which they are wanted; None for all."""

    def wanted(name: object) -> bool:
        return only is None or name in only

    reading = _Reading(environ)
    for at, section in _sections(config):
        for name in section.SECRETS if wanted(at[0]) else ():
            if name != "password" or config.redis is None or config.redis.password_env is not None:
                reading.secret(at, section, name)
    reading.console(config)
    if config.redis is not None and wanted("redis"):
        reading.redis(config.redis)
    if config.jwt is not None and wanted("jwt"):
        reading.jwt(config.jwt, known)
    bundles: dict[str, str | None] = {}  # trying one takes some milliseconds, and many models may name it
    for model_name, model in config.models.items() if wanted("models") else ():
        reading.proxy(("models", model_name), model)
        if model.ca_file is not None:
            if model.ca_file not in bundles:
                bundles[model.ca_file] = _bundle_fault(model.ca_file)
            reading.fault(("models", model_name, "ca_file"), bundles[model.ca_file])
    for at, inner in _inner(config):
        if inner.ca_file is not None and wanted(at[0]):
            reading.fault((*at, "ca_file"), _bundle_fault(inner.ca_file))
    return reading.secrets, reading.faults


def with_secrets(config: Config, secrets: Secrets) -> Config:
    """A copy of `config` whose sections hold `secrets`."""
    changed: dict[str, Any] = {"keys": dict(config.keys), "models": dict(config.models)}
    for at, section in _sections(config):
        if at in secrets:
            held = section.holding(secrets[at])
            if at in _INNER:
                name, inner = map(str, at)
                changed[name] = changed.get(name, getattr(config, name)).model_copy(update={inner: held})
                continue
            holder = changed if len(at) == 1 else changed[str(at[0])]
            holder[str(at[-1])] = held
    return config.model_copy(update=changed)


def plain_secrets(config: Config) -> Iterator[str]:
    """The secrets that `config` holds, the URL of Redis aside."""
    held = [section.held(name) for _, section in _sections(config) for name in section.SECRETS if name != "url"]
    redis = config.redis.server.password if config.redis is not None else None
    # All of a collector's, a search service's or a guard's: `x-honeycomb-team` is a key, too.
    senders = (config.tracing, config.tools.web_search, *config.guards.values())
    headers = [value for sender in senders if sender is not None for value in sender.headers.values()]
    for model in config.models.values():
        urls = (model.held(name) for name in ("proxy", *VARIABLES))
        held += [urlsplit(proxy_url(url)).password for url in urls if url is not None and "@" in url]
        headers += [value for name, value in model.headers.items() if SECRET_HEADER.search(name)]
    yield from (one for one in (*held, redis, *(one for value in headers for one in _in_header(value))) if one)


def watched_files(config: Config) -> tuple[str, ...]:
    """The files, once loaded, whose change asks for a reload: those of callers, secrets and authorities. Those that
    every connect to Redis reads are left out."""
    found = [config.keys_file, config.admins_file, config.jwt.jwks_file if config.jwt is not None else None]
    for at, section in _sections(config):
        names = ("url",) if at == ("redis",) else (*section.SECRETS, "ca")
        found += [getattr(section, f"{name}_file", None) for name in names]
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _in_header(value: str) -> Iterator[str]:
    """Finds what may be a secret in a header: `KEY`, `Bearer KEY`, `session=KEY; other=KEY`."""
    for part in re.split("[;,]", value):
        for word in part.split()[-1:]:
            yield from (word, word.partition("=")[2])


def _sections(config: Config) -> Iterator[tuple[Path, Section]]:
    """Every section that may hold secrets, by path."""
    for name in ("redis", "jwt", "cache_salt", "seal", "end_users", "budget_webhook", "console"):
        if (section := getattr(config, name)) is not None:
            yield (name,), section
    yield from _inner(config)
    for name, entries in (("keys", config.keys), ("models", config.models)):
        for entry, one in entries.items():
            yield (name, entry), one


def _inner(config: Config) -> Iterator[tuple[Path, Any]]:
    """The sections of `_INNER` that are there."""
    for at in _INNER:
        section = getattr(config, str(at[0]))
        if section is not None and (inner := getattr(section, str(at[1]))) is not None:
            yield at, inner


class _Reading:
    """The secrets that were read so far, and faults by path."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.secrets: Secrets = {}
        self.faults: list[tuple[Path, Message]] = []
        self._environ = environ

    def fault(self, at: Path, message: str | None) -> None:
        if message is not None:
            self.faults.append((at, message))

    def secret(self, at: Path, section: Section, name: str) -> None:
        """Reads the secret that NAME_env or NAME_file of the section leads to."""
        variable: str | None = getattr(section, f"{name}_env")
        file_name: str | None = getattr(section, f"{name}_file")
        option = (*at, f"{name}_env" if variable is not None else f"{name}_file")
        text, empty = None, "names a file that is empty"
        if variable is not None:
            named = f": {variable}" if _VARIABLE.match(variable) else ""
            empty = f"names a variable that is empty{named}"
            if file_name is not None:
                self.fault(option, f"and {name}_file exclude each other")
            text = self._environ.get(variable)
            if text is None:
                self.fault(option, f"names a variable that is not set{named}")
        elif file_name is not None:
            text = self._file(option, file_name, MOST_SECRET_BYTES + 1)
        if text is None:
            return
        secret = text.strip()
        least, command = _LENGTHS.get((str(at[-1]), name), (0, ""))
        if not secret:
            self.fault(option, empty)
        elif not re.match(r"[\x21-\x7e]+\Z", secret) or len(secret) > MOST_SECRET_BYTES:
            self.fault(option, "must lead to one line of printable ASCII without spaces")
        elif len(secret) < least:
            self.fault(option, f"must lead to {least} characters or more, such as `{command}` makes")
        else:
            self.secrets.setdefault(at, {})[name] = secret

    def proxy(self, at: Path, model: Model) -> None:
        """The faults of the proxy's URL that was read, and what the environment says of proxies."""
        held = self.secrets.get(at, {})
        if model.proxy is not None and (other := model.proxy_file or model.proxy_env):
            option = "proxy_file" if other == model.proxy_file else "proxy_env"
            self.fault((*at, option), "and proxy exclude each other")
        if model.proxy == "environment":
            self.secrets[at] = held = held | variables(self._environ)
        for name, url in held.items():
            if name in ("proxy", *VARIABLES) and name != "no_proxy":
                option = "proxy" if name != "proxy" else "proxy_file" if model.proxy_file is not None else "proxy_env"
                try:
                    proxy_url(url)
                except ValueError as error:
                    self.fault((*at, option), f"leads to a text that {error}")

    def console(self, config: Config) -> None:
        """The console's key must be nobody else's."""
        key = self.secrets.get(("console",), {}).get("key", "")
        option = "key_env" if config.console.key_env is not None else "key_file"
        for whose, entries in (("a client's", config.keys), ("an admin's", config.admins)):
            if f"sha256:{sha256(key.encode()).hexdigest()}" in {one.hash for one in entries.values()}:
                self.fault(("console", option), f"leads to {whose} key; the console needs one of its own")

    def jwt(self, options: Jwt, known: Available | None) -> None:
        """The keys of an identity provider, and its authority."""
        if options.ca_file is not None:
            self.fault(("jwt", "ca_file"), _bundle_fault(options.ca_file))
        if options.jwks_file is None:
            return
        option = ("jwt", "jwks_file")
        text = self._file(option, options.jwks_file, MOST_FILE_BYTES, "utf-8")
        if text is None:
            return
        try:
            if known is not None and known.key_set is not None:
                known.key_set(text)
        except ValueError as error:
            self.fault(option, f"names a file that {error}")
        else:
            self.secrets["jwt",] = {"keys_text": text}

    def redis(self, options: Redis) -> None:
        """Faults of the URL and the password that were read, and of the options beside them."""
        held = self.secrets.get(("redis",), {})
        url = next((name for name in ("url_env", "url_file", "url") if getattr(options, name) is not None), None)
        if "url" in held:
            try:
                redis_server(held["url"])
            except ValueError as error:
                del held["url"]
                self.fault(("redis", url or ""), f"leads to a text that {error}")
        password = options.password_file is not None or options.password_env is not None
        server = options.holding({name: text for name, text in held.items() if name == "url"}).server
        if server.password is not None and password:
            self.fault(("redis", url or ""), "leads to a URL with a password, and there is another one beside it")
        if options.mode == "cluster" and server.db:
            self.fault(("redis", url or "db"), "must name database 0: a cluster has no other")
        if server.username is not None and server.password is None and not password:
            wrong = "names a user, who needs password_file or password_env beside it"
            self.fault(("redis", url or "username"), wrong)
        # These files are read at every connect; here they are opened only.
        for name in ("password_file", "ca_file", "cert_file", "key_file"):
            if getattr(options, name) is not None:
                if name != "password_file" and not server.tls:
                    self.fault(("redis", name), "has no effect without TLS: tls: true, or rediss:// in the URL")
                self._file(("redis", name), getattr(options, name), 1)

    def _file(self, option: Path, file_name: str, most_bytes: int, encoding: str = "latin-1") -> str | None:
        try:
            return read_file(file_name, most_bytes).decode(encoding)
        except UnicodeDecodeError:
            self.fault(option, "names a file that is not UTF-8 text")
        except (OSError, ValueError) as error:
            self.fault(option, _not_read(error))
        return None


def _bundle_fault(file_name: str) -> str | None:
    """Why a file does not serve as a bundle of certificates, or None."""
    try:
        read_file(file_name, 1)
        ssl.create_default_context(cafile=file_name)
    except ssl.SSLError:
        return "names a file that holds no PEM certificates"
    except (OSError, ValueError) as error:
        return _not_read(error)
    return None


def _not_read(error: OSError | ValueError) -> str:
    return f"names a file that cannot be read: {why(error)}"
