"""Configurations in Kubernetes manifests, as `helm template` prints them: for `dragoman check --rendered`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from gateway.app import KNOWN
from gateway.cli import CommandError
from gateway.config import Config, ConfigError, load
from gateway.config.model import PREFIX

FILE = "gateway.yaml"
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")


def configurations(manifests: bytes) -> list[tuple[str, Config]]:
    """The name and the configuration of each ConfigMap that holds a gateway.yaml.

    The files of secrets, and variables that come from one, are left out: only a Pod has them. The variables with a
    value count, and so does the number of gateways: what each would count for itself is a fault.

    Raises CommandError if the manifests hold none or are not YAML, ConfigError with the faults of all.
    """
    try:
        objects = [one for one in yaml.safe_load_all(manifests) if isinstance(one, dict)]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--rendered: not the manifests that `helm template` prints: {type(error).__name__}"
        ) from None
    found, faults, partial = [], [], False
    for name, text in _files(objects):
        try:
            found.append((f"ConfigMap {name}", _loaded(name, text, objects)))
        except ConfigError as error:
            faults += error.faults
            partial = partial or error.partial
    if faults:
        raise ConfigError(faults, partial)
    if not found:
        raise CommandError(f"--rendered: no ConfigMap holds a {FILE}")
    return found


def _files(objects: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """(name of the ConfigMap, text of its gateway.yaml)."""
    for one in objects:
        text = (one.get("data") or {}).get(FILE) if one.get("kind") == "ConfigMap" else None
        if isinstance(text, str):
            yield one["metadata"]["name"], text


def _loaded(name: str, text: str, objects: list[dict[str, Any]]) -> Config:
    workloads = [one for one in objects if one.get("kind") in _WORKLOADS and _mounts(one, name)]
    environ = {variable: value for one in workloads for variable, value in _variables(one)}
    known = replace(KNOWN, gateways=max((_copies(one, objects) for one in workloads), default=1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        path.write_text(text)
        try:
            return load(path, known, environ, only=())
        except ConfigError as error:  # the file is known to the reader by its ConfigMap
            file = f"ConfigMap {name}, {FILE}"
            faults = [
                fault._replace(position=fault.position._replace(file=file))
                if fault.position.file == os.fspath(path)
                else fault
                for fault in error.faults
            ]
            raise ConfigError(faults, error.partial) from None


def _pod(workload: dict[str, Any]) -> dict[str, Any]:
    return dict(workload["spec"]["template"]["spec"])


def _mounts(workload: dict[str, Any], name: str) -> bool:
    return any((volume.get("configMap") or {}).get("name") == name for volume in _pod(workload).get("volumes") or ())


def _variables(workload: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The gateway's variables that have a value, but for those that the kubelet fills in."""
    for container in _pod(workload)["containers"]:
        for variable in container.get("env") or ():
            name, value = variable["name"], variable.get("value")
            if name.startswith(PREFIX) and isinstance(value, str) and "$(" not in value:
                yield name, value


def _copies(workload: dict[str, Any], objects: list[dict[str, Any]]) -> int:
    """How many Pods there may be."""
    scaled = (workload["kind"], workload["metadata"]["name"])
    for one in objects:
        target = (one.get("spec") or {}).get("scaleTargetRef") if one.get("kind") == "HorizontalPodAutoscaler" else None
        if target and (target["kind"], target["name"]) == scaled:
            return int(one["spec"]["maxReplicas"])
    return int(workload["spec"].get("replicas", 1))
