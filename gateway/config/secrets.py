"""The files and variables that a configuration refers to: secrets, certificates, the keys of an identity provider.

`read_secrets` only reads; `with_secrets` makes the configuration that holds what was read.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, TypeVar

from pydantic import SecretStr

from gateway.config.available import Available
from gateway.config.faults import Message, Path
from gateway.config.files import read_file, why
from gateway.config.kinds import redis_server
from gateway.config.model import Config, Key, Model
from gateway.config.section import Section
from gateway.config.serving import Console
from gateway.config.sharing import Redis, SharedSecret

MOST_SECRET_BYTES = 16384
MOST_FILE_BYTES = 1 << 22
"""Certificate bundles and key sets. That of all public authorities has some 230 KB."""
_LEAST_SECRET = 32
_LEAST_CONSOLE_KEY = 16

S = TypeVar("S", bound=Section)

# A section keeps each of these in the private attribute `_NAME`, once read.
_NAMES = ("url", "password", "keys_text", "secret", "aws_secret", "api_key", "key")

Secrets = dict[Path, str]
"""What was read, by the path of its section and the name of the secret there, such as ("models", "m", "api_key")."""


def read_secrets(
    config: Config, environ: Mapping[str, str], known: Available | None = None
) -> tuple[Secrets, list[tuple[Path, Message]]]:
    """What `config` refers to, and what is wrong with it. Certificate bundles are tried."""
    reading = _Reading(environ)
    if config.redis is not None:
        reading.redis(config.redis)
    if config.jwt is not None and config.jwt.jwks_file is not None:
        reading.key_set(config.jwt.jwks_file, known)
    for name in ("cache_salt", "seal"):
        reading.shared_secret(name, getattr(config, name))
    reading.console(config)
    for name, key in config.keys.items():
        reading.secret(("keys", name), key, "aws_secret")
    for name, model in config.models.items():
        reading.secret(("models", name), model, "api_key")
        if model.ca_file is not None:
            reading.certificates(("models", name, "ca_file"), model.ca_file)
    return reading.secrets, reading.findings


def with_secrets(config: Config, secrets: Secrets) -> Config:
    """A copy of `config` whose sections hold `secrets`."""
    changed: dict[str, Any] = {}
    for name in ("redis", "jwt", "cache_salt", "seal", "console"):
        section = getattr(config, name)
        if section is not None:
            changed[name] = _holding(section, (name,), secrets)
    for name in ("keys", "models"):
        sections = getattr(config, name)
        changed[name] = {one: _holding(section, (name, one), secrets) for one, section in sections.items()}
    return config.model_copy(update=changed)


def plain_secrets(config: Config) -> Iterator[str]:
    """The secrets that `config` holds, the URL of Redis aside."""
    shared = (one.secret for one in (config.cache_salt, config.seal) if one is not None)
    keys = (key.aws_secret for key in config.keys.values() if key.aws_access_key_id is not None)
    models = (model.api_key for model in config.models.values())
    redis = config.redis.server.password if config.redis is not None else None
    # A collector's key stands in a header, such as `Authorization: Bearer KEY`.
    collector = config.tracing.headers.values() if config.tracing is not None else ()
    tracing = (word for value in collector for word in value.split()[-1:])
    yield from (one for one in (*shared, *keys, *models, config.console.key, redis, *tracing) if one)


def _holding(section: S, path: Path, secrets: Secrets) -> S:
    held = {name: secrets[*path, name] for name in _NAMES if (*path, name) in secrets}
    if not held:
        return section
    copy = section.model_copy()
    for name, text in held.items():
        setattr(copy, f"_{name}", text if name == "keys_text" else SecretStr(text))
    return copy


class _Reading:
    """What has been read so far, and what was wrong."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.secrets: Secrets = {}
        self.findings: list[tuple[Path, Message]] = []
        self._environ = environ
        self._bundles: dict[str, str | None] = {}

    def secret(self, at: Path, options: Key | Model | SharedSecret | Redis | Console, name: str) -> str:
        """Reads what NAME_env or NAME_file of the section at `at` leads to; returns which of the two it was, or ""."""
        variable: str | None = getattr(options, f"{name}_env")
        file_name: str | None = getattr(options, f"{name}_file")
        if variable is not None:
            option = f"{name}_env"
            if variable not in self._environ:
                self._wrong((*at, option), "names a variable that is not set")
                return option
            text = self._environ[variable]
        elif file_name is not None:
            option = f"{name}_file"
            data = self._file((*at, option), file_name, MOST_SECRET_BYTES + 1)
            if data is None:
                return option
            text = data.decode("latin-1")
        else:
            return ""
        secret = text.strip()
        if re.match(r"[\x21-\x7e]+\Z", secret) and len(secret) <= MOST_SECRET_BYTES:
            self.secrets[*at, name] = secret
        else:
            self._wrong((*at, option), "must lead to one line of printable ASCII without spaces")
        return option

    def shared_secret(self, section: str, options: SharedSecret | None) -> None:
        """A secret that all gateways share: long enough not to be guessed."""
        if options is None:
            return
        option = self.secret((section,), options, "secret")
        secret = self.secrets.get((section, "secret"))
        if secret is not None and len(secret) < _LEAST_SECRET:
            needed = f"must lead to {_LEAST_SECRET} characters or more, such as `openssl rand -hex 32` makes"
            self._wrong((section, option), needed)

    def console(self, config: Config) -> None:
        """The console's key: long enough, and nobody else's."""
        option = self.secret(("console",), config.console, "key")
        key = self.secrets.get(("console", "key"))
        if key is None:
            return
        if len(key) < _LEAST_CONSOLE_KEY:
            needed = f"must lead to {_LEAST_CONSOLE_KEY} characters or more, such as `openssl rand -hex 16` makes"
            self._wrong(("console", option), needed)
        if f"sha256:{sha256(key.encode()).hexdigest()}" in {one.hash for one in config.keys.values()}:
            self._wrong(("console", option), "leads to a client's key; the console needs one of its own")

    def certificates(self, option: Path, file_name: str) -> None:
        """A bundle, read once however many models name it: that takes some milliseconds."""
        if file_name not in self._bundles:
            self._bundles[file_name] = _bundle_fault(file_name)
        if wrong := self._bundles[file_name]:
            self._wrong(option, wrong)

    def key_set(self, file_name: str, known: Available | None) -> None:
        """The keys of an identity provider."""
        option = ("jwt", "jwks_file")
        data = self._file(option, file_name, MOST_FILE_BYTES)
        if data is None:
            return
        try:
            text = data.decode("utf-8")
            if known is not None and known.key_set is not None:
                known.key_set(text)
        except UnicodeDecodeError:
            self._wrong(option, "names a file that is not UTF-8 text")
        except ValueError as error:
            self._wrong(option, f"names a file that {error}")
        else:
            self.secrets["jwt", "keys_text"] = text

    def redis(self, options: Redis) -> None:
        """A URL or password that stands elsewhere; what is wrong with them, and with what they go with."""
        at = ("redis",)
        option = self.secret(at, options, "url")
        if (*at, "url") in self.secrets:
            try:
                redis_server(self.secrets[*at, "url"])
            except ValueError as error:
                del self.secrets[*at, "url"]
                self._wrong((*at, option), f"leads to a text that {error}")
        of_url = _holding(options, at, self.secrets).server.password is not None
        if options.password_env is not None:
            self.secret(at, options, "password")
        elsewhere = options.password_file is not None or options.password_env is not None
        if of_url and elsewhere:
            self._wrong((*at, option), "leads to a URL with a password, and there is another one beside it")
        written = option or ("url" if options.url is not None else "")
        self._redis_server(_holding(options, at, self.secrets), written, of_url or elsewhere)
        # They are read at every connect; here it is only seen that they can be.
        for name in ("password_file", "ca_file", "cert_file", "key_file"):
            if getattr(options, name) is not None:
                self._file((*at, name), getattr(options, name), 1)

    def _redis_server(self, redis: Redis, url: str, password: bool) -> None:
        """url: the option that says where the server is by a URL, if one does. password: there is one."""
        server = redis.server
        if redis.mode == "cluster" and server.db:
            self._wrong(("redis", url or "db"), "must name database 0: a cluster has no other")
        if server.username is not None and not password:
            self._wrong(("redis", url or "username"), "names a user, who needs password_file or password_env beside it")
        for name in ("ca_file", "cert_file", "key_file"):
            if getattr(redis, name) is not None and not server.tls:
                self._wrong(("redis", name), "has no effect without TLS: tls: true, or rediss:// in the URL")

    def _file(self, option: Path, file_name: str, most_bytes: int) -> bytes | None:
        try:
            return read_file(file_name, most_bytes)
        except (OSError, ValueError) as error:
            self._wrong(option, _not_read(error))
            return None

    def _wrong(self, option: Path, message: str) -> None:
        self.findings.append((option, message))


def _bundle_fault(file_name: str) -> str | None:
    """What is wrong with a file of certificates, or None."""
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
