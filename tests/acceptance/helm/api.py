"""The little of Kubernetes's API that helm's `lookup` asks for: which kinds there are, and single objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.helm.chart import CHART, KUBERNETES, NAMESPACE, Object, Refused, helm, parsed, template
from tests.support.standins.serving import Answering, serving


def _root(api: str) -> str:
    return f"/api/{api}" if "/" not in api else f"/apis/{api}"


def _pages(kinds: set[tuple[str, str]], objects: Sequence[Object], namespace: str) -> dict[str, Any]:
    """Path -> answer. Nothing else is there."""
    plurals = {(api, kind): f"{kind.lower()}s" for api, kind in kinds}
    major, minor, _ = KUBERNETES.split(".")
    groups = sorted({api for api, _ in kinds if "/" in api})
    pages: dict[str, Any] = {
        "/version": {"major": major, "minor": minor, "gitVersion": f"v{KUBERNETES}"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": api.partition("/")[0], "versions": [version], "preferredVersion": version}
                for api in groups
                for version in [{"groupVersion": api, "version": api.partition("/")[2]}]
            ],
        },
    }
    for (api, kind), plural in sorted(plurals.items()):
        listed = pages.setdefault(_root(api), {"kind": "APIResourceList", "groupVersion": api, "resources": []})
        listed["resources"].append({"name": plural, "kind": kind, "namespaced": True, "verbs": ["get"]})
    for one in objects:
        api, plural = one["apiVersion"], plurals[one["apiVersion"], one["kind"]]
        pages[f"{_root(api)}/namespaces/{namespace}/{plural}/{one['metadata']['name']}"] = one
    return pages


@contextmanager
def cluster(kinds: set[tuple[str, str]], objects: Sequence[Object], folder: Path, namespace: str) -> Iterator[Path]:
    """A kubeconfig, in `folder`, for an API that knows these kinds, as (apiVersion, kind), and has these objects."""
    pages = _pages(kinds, objects, namespace)

    class Handler(Answering):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            body = json.dumps(page or {"kind": "Status", "reason": "NotFound", "code": 404}).encode()
            self.answer(200 if page else 404, body, **{"Content-Type": "application/json"})

    with serving(Handler) as address:
        config = folder / "kubeconfig"
        config.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": address}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                    "current-context": "c",
                }
            )
        )
        yield config


def upgraded(
    values: Path,
    objects: Sequence[Object],
    folder: Path,
    chart: Path = CHART,
    *options: str,
    release: str = "dragoman",
    namespace: str = NAMESPACE,
) -> list[Object]:
    """The render of an upgrade in a cluster with these objects. Raises Refused."""
    without = parsed(template(values, chart, "--skip-schema-validation"))
    kinds = {(one["apiVersion"], one["kind"]) for one in (*without, *objects)}
    with cluster(kinds, objects, folder, namespace) as config:
        words: list[str | Path] = ["template", release, chart, "--namespace", namespace, "--values", values, *options]
        words += ["--is-upgrade", "--dry-run=server", "--disable-openapi-validation", "--kubeconfig", config]
        done = helm(*words)
    if done.returncode:
        raise Refused(done.stderr)
    return parsed(done.stdout)
