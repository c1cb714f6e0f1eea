"""Names that dialects had up to 0.9: read with a warning where they are plain, refused where they mean another API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app import KNOWN
from gateway.auth import new_key
from gateway.auth.key_store import decoded
from gateway.config import Config, ConfigError, load
from tests.support.harness import Stack

MODELS = {"models": {"m": {"backend": "vllm", "workers": ["http://10.0.0.1:8000"]}}}


def read(folder: Path, **sections: Any) -> Config:
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump({**MODELS, **sections}, sort_keys=False))
    return load(file, KNOWN, {})


def faults(folder: Path, **sections: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, **sections)
    return [str(fault).partition("gateway.yaml:")[2] for fault in caught.value.faults]


def key(**options: Any) -> dict[str, Any]:
    return {"keys": {"k": {**yaml.safe_load(new_key("k")[1])["k"], **options}}}


def test_former_names_are_read_with_a_warning_each(tmp_path: Path) -> None:
    sections = {"azure": {"default_model": "m"}, "ollama_native": {"enabled": False}, "ollama_style": {}}
    config = read(tmp_path, dialects=sections, **key(dialects=["azure", "ollama_native"]))
    assert config.dialect("azure_inference").default_model == "m"
    assert not config.dialect("ollama").enabled
    assert config.keys["k"].dialects == ("azure_inference", "ollama")
    assert config.former == (
        "dialects.azure: the dialect is called azure_inference now",
        "dialects.ollama_native: the dialect is called ollama now",
        "keys.k.dialects.0: the dialect is called azure_inference now",
        "keys.k.dialects.1: the dialect is called ollama now",
    )
    assert read(tmp_path, dialects={"azure_inference": {}}).former == ()


def test_a_fault_below_a_former_name_has_its_line(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, dialects={"azure": {"default_model": "none"}})
    assert fault.startswith("8: dialects.azure.default_model: is not a model")
    (fault,) = faults(tmp_path, dialects={"azure": {}, "azure_inference": {}})
    assert fault == "7: dialects.azure: is the former name of azure_inference, which is there, too"


def test_ollama_is_refused_until_the_configuration_says_which_is_meant(tmp_path: Path) -> None:
    for options in ({"enabled": False}, {"default_model": "m"}, {}):
        (fault,) = faults(tmp_path, dialects={"ollama": options})
        assert fault.startswith("7: dialects.ollama: is Ollama's own API now, and the Ollama-style API is ollama_style")
    (fault,) = faults(tmp_path, **key(dialects=["ollama"]))
    assert "keys.k.dialects.0: is Ollama's own API now" in fault
    first, *_ = faults(tmp_path, dialects={"ollama": {}, "ollama_native": {}})
    assert "dialects.ollama: is Ollama's own API now" in first
    config = read(tmp_path, dialects={"ollama": {"enabled": False}, "ollama_style": {}}, **key(dialects=["ollama"]))
    assert not config.dialect("ollama").enabled
    assert config.dialect("ollama_style").enabled
    assert (config.keys["k"].dialects, config.former) == (("ollama",), ())


@pytest.mark.parametrize("given", [3, ["azure"], {"azure": 1, "ollama_style": "no"}])
def test_values_of_another_kind_are_faults(tmp_path: Path, given: object) -> None:
    assert faults(tmp_path, dialects=given)


def test_the_log_warns_once(tmp_path: Path) -> None:
    with Stack(config={"dialects": {"azure_inference": {}}}) as stack:
        assert stack.events("names have changed") == []
        config = read(tmp_path, dialects={"azure": {}})
        stack.run(stack.gateway.reload(config))
        (warning,) = stack.events("names have changed")
        assert (warning["level"], len(warning["options"])) == ("warning", 1)


@pytest.mark.parametrize(
    ("kept", "names"),
    [
        ('["openai","azure"]', "openai azure_inference"),
        ('["ollama_native"]', "ollama"),
        ('["ollama","openai"]', "ollama openai ollama_style"),
        ('["openai"]', "openai"),
        ("null", None),
    ],
)
def test_keys_of_the_store_keep_what_they_may(kept: str, names: str | None) -> None:
    hash_ = "sha256:" + "0" * 64
    text = (
        f'1 {{"name":"k","hash":"{hash_}","seal":"{hash_}","created":1,"created_by":"a","changed":1,'
        f'"changed_by":"a","dialects":{kept}}}'
    )
    found = decoded(text.encode())
    assert found is not None
    assert found.dialects == (None if names is None else tuple(names.split()))
