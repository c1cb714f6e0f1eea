"""Options of the environment, and secrets that files or the environment hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic_settings import PydanticBaseSettingsSource

from gateway.config import Config, ConfigError, load
from gateway.config.environment import EnvironmentSource, FileSource, Settings
from gateway.config.kinds import OWN_HEADERS
from tests.unit.config.reading import KNOWN, SMALL, faults, read


def test_worker_key_from_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("canary-upstream\n")
    config = read(tmp_path, SMALL + "    api_key_file: key\n    headers: {X-Token: canary-header}\n")
    assert config.models["small"].api_key == "canary-upstream"
    assert "canary" not in repr(config)
    (tmp_path / "key").write_text("canary-other\n")
    assert read(tmp_path, (tmp_path / "gateway.yaml").read_text()) != config


def test_worker_key_from_the_environment(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL + "    api_key_env: UPSTREAM_KEY\n", UPSTREAM_KEY="canary-upstream")
    assert config.models["small"].api_key == "canary-upstream"
    assert "canary" not in repr(config) + config.model_dump_json()


def test_worker_key_that_cannot_be_a_header(tmp_path: Path) -> None:
    wrong = "gateway.yaml:5: models.small.api_key_file: must lead to one line of printable ASCII without spaces"
    for content in (b"a\nb", b"a b", b"k\xc3\xa9y", b"x" * 20000, b"a\x00"):
        (tmp_path / "key").write_bytes(content)
        assert faults(tmp_path, SMALL + "    api_key_file: key\n") == [wrong]


def test_worker_key_that_is_empty(tmp_path: Path) -> None:
    for content in (b"", b"\n"):
        (tmp_path / "key").write_bytes(content)
        wrong = "gateway.yaml:5: models.small.api_key_file: names a file that is empty"
        assert faults(tmp_path, SMALL + "    api_key_file: key\n") == [wrong]
    wrong = "gateway.yaml:5: models.small.api_key_env: names a variable that is empty: UPSTREAM_KEY"
    assert faults(tmp_path, SMALL + "    api_key_env: UPSTREAM_KEY\n", UPSTREAM_KEY="") == [wrong]


def test_headers_that_the_transport_writes_are_refused(tmp_path: Path) -> None:
    assert {"host", "content-length", "transfer-encoding", "connection"} <= OWN_HEADERS
    for header in OWN_HEADERS:
        assert faults(tmp_path, SMALL + f"    headers:\n      {header.title()}: x\n")


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        SMALL + "listen:\n  port: 1\n  host: localhost\n",
        DRAGOMAN_LISTEN__PORT="9000",
        DRAGOMAN_DEADLINES__IDLE_S="2m",
        DRAGOMAN_LOG__REQUESTS="false",
        DRAGOMAN_DIALECTS__OPENAI__PREFIXES='["/v9"]',
        OTHER_LISTEN__PORT="1",
    )
    assert (config.listen.port, config.listen.host) == (9000, "localhost")
    assert config.deadlines.idle_s == 120
    assert not config.log.requests
    assert config.dialect("openai").prefixes == ("/v9",)


def test_an_address_in_brackets_is_not_json(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        SMALL + "    discover: {dns: 'w:1'}\n",
        DRAGOMAN_METRICS__LISTEN="[::1]:9090",
        DRAGOMAN_MODELS__SMALL__DISCOVER__DNS="[fd00::1]:8000",
        DRAGOMAN_REDIS__ADDRESSES='["[fd00::2]:6379"]',
    )
    assert config.metrics.listen == "[::1]:9090"
    found = config.models["small"].discover
    assert found is not None
    assert found.dns == "[fd00::1]:8000"
    assert config.redis is not None
    assert config.redis.addresses == ("[fd00::2]:6379",)
    for wrong in ("[1, 2", "[::1]", "[::1]:x", "[]:"):
        said = "environment: DRAGOMAN_METRICS__LISTEN: looks like JSON but is not valid JSON"
        assert faults(tmp_path, SMALL, DRAGOMAN_METRICS__LISTEN=wrong) == [said]
    (fault,) = faults(tmp_path, SMALL, DRAGOMAN_METRICS__LISTEN="[::1::2]:99")
    assert "must be host:port" in fault


def test_environment_alone_is_enough_and_may_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(SMALL)
    assert load(None, KNOWN, {"DRAGOMAN_CONFIG": str(tmp_path / "other.yaml")}).models
    models = {"small": {"backend": "openai", "workers": ["http://127.0.0.1:8081"]}}
    config = load(None, KNOWN, {"DRAGOMAN_MODELS": json.dumps(models)})
    assert list(config.models) == ["small"]
    with pytest.raises(ConfigError, match="must hold at least one model"):
        load(None, KNOWN, {})


def test_what_the_environment_lacks_has_no_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, KNOWN, {"DRAGOMAN_LISTEN__PORT": "0", "DRAGOMAN_AUTH": "keys"})
    assert str(caught.value).splitlines() == [
        "environment: DRAGOMAN_AUTH: asks for keys, but there are none in keys or keys_file",
        "environment: models: must hold at least one model",
    ]


def test_what_a_section_lacks_is_told_at_its_line(tmp_path: Path) -> None:
    jwt = "jwt: {issuer: a, jwks_url: https://i/k}\n"
    assert faults(tmp_path, SMALL + jwt) == ["gateway.yaml:5: jwt.audience: is required"]
    said = faults(tmp_path, SMALL + "redis:\n  db: 1\n")
    assert said == ["gateway.yaml:5: redis: must say where: addresses or url"]


def test_environment_reaches_names_that_no_variable_could_hold(tmp_path: Path) -> None:
    text = SMALL.replace("small", "org/GPT-4.1")
    config = read(tmp_path, text, DRAGOMAN_MODELS__ORG_GPT_4_1__MAX_CONTEXT="4096")
    assert config.models["org/GPT-4.1"].max_context == 4096


def test_environment_joins_mappings_and_replaces_lists(tmp_path: Path) -> None:
    models = {"small": {"workers": ["http://h:9"]}, "new": {"backend": "vllm", "workers": ["http://h:8"]}}
    config = read(tmp_path, SMALL, DRAGOMAN_MODELS=json.dumps(models), DRAGOMAN_MODELS__SMALL__MAX_CONTEXT="5")
    assert config.models["small"].workers == ("http://h:9",)
    assert config.models["small"].backend == "openai"
    assert config.models["small"].max_context == 5
    assert config.models["new"].backend == "vllm"


def test_environment_takes_options_back(tmp_path: Path) -> None:
    text = SMALL + "    max_context: 5\n"
    assert read(tmp_path, text, DRAGOMAN_MODELS__SMALL__MAX_CONTEXT="null").models["small"].max_context is None


def test_a_fault_names_the_variable_that_replaced_the_line(tmp_path: Path) -> None:
    said = faults(tmp_path, SMALL, DRAGOMAN_MODELS='{"small": {"workers": ["x"], "nothing": 1}}')
    assert said == [
        "environment: DRAGOMAN_MODELS: small.nothing is not an option",
        "environment: DRAGOMAN_MODELS: small.workers.0 must begin with http:// or https://",
    ]


@pytest.mark.parametrize(
    ("variable", "fault"),
    [
        ("LISTEN_PORT", "sets no option; did you mean DRAGOMAN_LISTEN__PORT?"),
        ("METRICS_LISTEN", "sets no option; did you mean DRAGOMAN_METRICS__LISTEN?"),
        ("RELAY_DRAIN_S", "sets no option; did you mean DRAGOMAN_RELAY__DRAIN_S?"),
        ("TOOLS_WEB_SEARCH__URL", "sets no option; did you mean DRAGOMAN_TOOLS__WEB_SEARCH__URL?"),
        ("CONFG", "sets no option; did you mean DRAGOMAN_CONFIG?"),
        ("LISTEN__PROT", "is not an option; did you mean DRAGOMAN_LISTEN__PORT?"),
        ("MODELS__SMALL__WORKRS", "is not an option; did you mean DRAGOMAN_MODELS__SMALL__WORKERS?"),
        ("MODELS__SMALL__DEADLINES__IDLE", "is not an option; did you mean DRAGOMAN_MODELS__SMALL__DEADLINES__IDLE_S?"),
        ("MODELS__SMAL__MAX_CONTEXT", "backend is required, as no file has models.smal"),
        ("KEYS__TEAM__PRIORITY", "hash is required, unless there is aws_access_key_id or match"),
        ("DIALECTS__OPENIA__ENABLED", "is not a dialect; did you mean DRAGOMAN_DIALECTS__OPENAI__ENABLED?"),
    ],
)
def test_a_fault_of_a_variable_names_whole_variables(tmp_path: Path, variable: str, fault: str) -> None:
    said = faults(tmp_path, SMALL, **{f"DRAGOMAN_{variable}": "true" if variable.endswith("ENABLED") else "5"})
    assert f"environment: DRAGOMAN_{variable}: {fault}" in said
    assert not [one for one in said if one.startswith("gateway.yaml:")], "the file is right"


def test_every_option_of_a_section_is_named_where_underscores_are_missing(tmp_path: Path) -> None:
    """An underscore too few is no other option."""
    for section, field in Config.model_fields.items():
        options = getattr(field.annotation, "model_fields", {})
        for option in options:
            found = faults(tmp_path, SMALL, **{f"DRAGOMAN_{section}_{option}".upper(): "x"})
            assert found[0].endswith(f"did you mean DRAGOMAN_{section.upper()}__{option.upper()}?"), found


def test_a_file_that_is_not_there_names_the_variable_that_gave_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, KNOWN, {"DRAGOMAN_CONFIG": "x"})
    assert str(caught.value) == "x: (file): cannot be read: No such file or directory; DRAGOMAN_CONFIG names it"
    with pytest.raises(ConfigError) as caught:
        load("y", KNOWN, {"DRAGOMAN_CONFIG": "x"})
    assert str(caught.value) == "y: (file): cannot be read: No such file or directory"


def test_a_variable_that_is_not_set_is_named_unless_it_may_be_a_secret(tmp_path: Path) -> None:
    said = faults(tmp_path, f"{SMALL}    api_key_env: WORKER_KEY\n")
    assert said == ["gateway.yaml:5: models.small.api_key_env: names a variable that is not set: WORKER_KEY"]
    for secret in ("a9f8e7d6c5b4", "ABCDEF0123456789", "hf_abcdefghijklmnop", "my_secret"):
        said = faults(tmp_path, f"{SMALL}    api_key_env: {secret}\n")
        assert said == ["gateway.yaml:5: models.small.api_key_env: names a variable that is not set"]


def test_variables_of_kubernetes_services_are_passed_over(tmp_path: Path) -> None:
    links = {f"DRAGOMAN_{name}": "8080" for name in ("SERVICE_PORT", "SERVICE_PORT_HTTP", "METRICS_SERVICE_HOST")}
    links |= {f"DRAGOMAN_{name}": "tcp://10.0.0.1:8080" for name in ("PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR")}
    assert read(tmp_path, SMALL, **links) == read(tmp_path, SMALL)
    assert faults(tmp_path, SMALL, DRAGOMAN_PORT="8080") == [
        "environment: DRAGOMAN_PORT: sets no option; `__` joins a section and its option: DRAGOMAN_LISTEN__PORT"
    ]


def test_the_sources_are_those_of_pydantic_settings_and_the_first_one_counts() -> None:
    """The gateway's own variables alone: neither bare names nor a .env file set an option."""
    file = FileSource({"auth": "open", "log": {"level": "info", "requests": True}, "limits": [1, 2], "redis": None})
    environment = EnvironmentSource({"DRAGOMAN_LOG__LEVEL": "debug", "DRAGOMAN_LIMITS": "[3]", "AUTH": "keys"}, {})
    assert isinstance(environment, PydanticBaseSettingsSource)
    assert Settings.of(environment, file) == {
        "auth": "open",
        "log": {"level": "debug", "requests": True},
        "limits": [3],
    }
    assert Settings.of(file, environment)["limits"] == [1, 2]
