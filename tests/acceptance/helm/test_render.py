"""Every value set lints and renders, Kubernetes and the operators accept it, the gateway reads its configuration."""

from __future__ import annotations

import re
from pathlib import Path

import certifi
import pytest
import yaml

from gateway.app import KNOWN
from gateway.cli import main
from gateway.config import load
from tests.acceptance.helm import chart
from tests.acceptance.helm.chart import CHART, SETS, VALUES, container, find, helm, objects, pods
from tests.acceptance.helm.schemas import custom, faults, minors
from tests.acceptance.helm.test_guards import GOOD, model
from tests.support.sampled import sampled
from workers.embedded import cli as embedded
from workers.registry import Registry
from workers.vllm import cli as vllm
from workers.vllm.facts import flag

KEYS = """\
team-a:
  id: k3v9q0x2mz
  hash: sha256:6ca13d52ca70c883e0f0bb101e425a89e8624de51db2d2392593af6a84118090
  team: search
"""
HOLE = re.compile(r"(?:hole|warning): (?:\S+ \S+|cache_salt), model (\S+) \((\w+)\): .+")


def secrets() -> dict[str, str]:
    """Files that stand for the Secrets of all value sets, by their path below /run/dragoman."""
    return {
        "keys/keys.yaml": KEYS,
        "console/key": "a-key-of-the-console",
        "console/console.key": "a-key-of-the-console",
        "console-oidc/client_secret": "the-provider-s",
        "console-ca/ca.crt": Path(certifi.where()).read_text(),
        "console-oidc/session_secret": "0123456789abcdef0123456789abcdef",
        "redis/password": "a-password",
        "bucket/access_key_id": "an-id",
        "bucket/secret_access_key": "a-secret",
        "bucket-ca/ca.crt": Path(certifi.where()).read_text(),
        "redis-ca/ca.crt": Path(certifi.where()).read_text(),
        "models/qwen3-8b/key": "worker-key",
        "models/remote/api-key": "provider-key",
        "models/big/api-key": "provider-key",
        "ca/remote/ca.crt": Path(certifi.where()).read_text(),
        "secrets/salt/salt": "0123456789abcdef0123456789abcdef",
    }


def test_there_are_enough_value_sets() -> None:
    assert len(SETS) >= 10


@pytest.mark.parametrize("name", sampled(SETS, 6))
def test_it_lints(name: str) -> None:
    done = helm("lint", "--strict", CHART, "--kube-version", chart.KUBERNETES, "--values", VALUES / f"{name}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@pytest.mark.parametrize("version", minors())
@pytest.mark.parametrize("name", SETS)
def test_kubernetes_and_the_operators_accept_it(name: str, version: str) -> None:
    found = [
        f"{one['kind']} {one['metadata']['name']}: {fault}" for one in objects(name) for fault in faults(one, version)
    ]
    assert found == []


def test_the_value_sets_use_every_custom_resource() -> None:
    used = {(one["apiVersion"], one["kind"]) for name in SETS for one in objects(name)}
    assert set(custom()) <= used


@pytest.mark.parametrize("version", minors())
def test_a_wrong_object_is_found(version: str) -> None:
    deployment = find(objects("minimal"), "Deployment", "dragoman")
    assert [*faults({**deployment, "spec": {**deployment["spec"], "replica": 2}}, version)]
    scaled = find(objects("autoscaled"), "ScaledObject", "dragoman-busy")
    assert [*faults({**scaled, "spec": {**scaled["spec"], "minReplicas": 2}}, version)]
    group = yaml.safe_load(yaml.safe_dump(find(objects("multi-node"), "LeaderWorkerSet", "dragoman-large")))
    group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["container"] = []
    assert [*faults(group, version)]


@pytest.mark.parametrize("name", SETS)
def test_names_are_short_and_unique(name: str) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in objects(name)]
    assert len(names) == len(set(names))
    # A group's Pods have its name, two numbers and a hash behind it; a label holds 63 characters. In a namespace for
    # objects of many releases the release's own comes first.
    assert [one for one in names if not re.fullmatch(r"(llm\.)?[a-z0-9][a-z0-9-]{0,49}", one[1])] == []


@pytest.mark.parametrize("name", SETS)
def test_workers_take_the_flags_that_they_are_given(name: str) -> None:
    for _, pod in pods(objects(name)):
        one = pod["spec"]["containers"][0]
        if one["command"] == ["dragoman", "worker", "embedded"]:
            given = embedded.parser().parse_args(one["args"])
            assert (given.host, given.port) == ("0.0.0.0", 8000)
        elif one["command"] == ["dragoman", "worker", "vllm"]:
            given, engine = vllm.parser().parse_known_args(one["args"])
            assert given.grace < pod["spec"]["terminationGracePeriodSeconds"]
            assert given.start_timeout > 0
            assert flag(engine, "port") == "8000"
            assert (
                flag(engine, "served-model-name")
                in yaml.safe_load(find(objects(name), "ConfigMap", "dragoman")["data"]["gateway.yaml"])["models"]
            )
            if given.register is not None:
                Registry(given.register, given.redis_password_file, given.redis_ca_file)


def test_two_releases_in_a_namespace_share_nothing() -> None:
    def made(release: str) -> list[chart.Object]:
        done = helm("template", release, CHART, "--values", VALUES / "minimal.yaml")
        return chart.parsed(done.stdout)

    one, other = made("dragoman"), made("second")
    assert {(each["kind"], each["metadata"]["name"]) for each in one}.isdisjoint(
        (each["kind"], each["metadata"]["name"]) for each in other
    )
    selectors = [each["spec"]["podSelector"]["matchLabels"] for each in one if each["kind"] == "NetworkPolicy"]
    assert selectors
    for _, pod in pods(other):
        assert not any(selector.items() <= pod["metadata"]["labels"].items() for selector in selectors)


def test_releases_of_one_name_in_two_namespaces_share_nothing_where_monitors_live() -> None:
    def made(namespace: str) -> set[tuple[str, str, str]]:
        words = ("--namespace", namespace, "--kube-version", chart.KUBERNETES, "--values", VALUES / "hatches.yaml")
        among = chart.parsed(helm("template", "dragoman", CHART, *words).stdout)
        places = [one["metadata"].get("namespace", namespace) for one in among]
        assert "monitoring" in places
        return {(one["kind"], place, one["metadata"]["name"]) for one, place in zip(among, places, strict=True)}

    assert made("one").isdisjoint(made("two"))


def test_without_helm_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart, "HELM", chart.HELM / "gone")
    with pytest.raises(FileNotFoundError, match="make test"):
        helm("version")


@pytest.mark.parametrize("name", SETS)
def test_every_volume_is_mounted_and_there(name: str) -> None:
    for where, pod in pods(objects(name)):
        there = {volume["name"] for volume in pod["spec"]["volumes"]}
        claimed = [one for one in objects(name) if f"{one['kind']}/{one['metadata']['name']}" == where]
        there |= {claim["metadata"]["name"] for one in claimed for claim in one["spec"].get("volumeClaimTemplates", [])}
        mounted = {mount["name"] for one in pod["spec"]["containers"] for mount in one.get("volumeMounts", [])}
        assert mounted == there, where


@pytest.mark.parametrize("name", sampled(SETS, 2))
def test_the_gateway_reads_its_configuration(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `check --strict --holes`. What a backend cannot do by its nature is all that it may find."""
    written = find(objects(name), "ConfigMap", "dragoman")["data"]["gateway.yaml"]
    mounts = {mount["mountPath"] for mount in container(objects(name), "Deployment", "dragoman")["volumeMounts"]}
    for path, text in secrets().items():
        if str(Path("/run/dragoman", path).parent) in mounts:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
    file = tmp_path / "gateway.yaml"
    file.write_text(written.replace("/run/dragoman", str(tmp_path)))
    status = main(["check", "--strict", "--holes", str(file)])
    said = capsys.readouterr().err.splitlines()
    models = yaml.safe_load(written)["models"]
    holes = [match for line in said if (match := HOLE.fullmatch(line))]
    if holes:
        assert "hole" in said.pop()
    assert len(holes) == len(said), said
    assert {match[2] for match in holes} <= {"tgi", "llamacpp", "openai"}
    assert status == (1 if holes else 0)
    if {model["backend"] for model in models.values()} == {"vllm"}:
        assert holes == []


def test_the_gateway_reads_headers_from_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables as the kubelet makes them of two Secrets, whatever the model is called."""
    among = objects("hatches")
    held = {
        "collector": '{"authorization": "Bearer c"}',
        "partner": '{"x-api-key": "p"}\n',
        "search": '{"x-token": "s"}',
        "guard": '{"x-guard": "g"}',
    }
    known: dict[str, str] = {}
    for variable in container(among, "Deployment", "dragoman")["env"]:
        if "secretKeyRef" in variable.get("valueFrom", {}):
            known[variable["name"]] = held[variable["valueFrom"]["secretKeyRef"]["name"]]
        elif "value" in variable:
            known[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: known[name[1]], variable["value"])
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    written = find(among, "ConfigMap", "dragoman")["data"]["gateway.yaml"]
    (tmp_path / "gateway.yaml").write_text(
        re.sub(r"(?m)^.*/run/dragoman.*\n", "", written).replace("auth: keys", "auth: open")
    )
    config = load(str(tmp_path / "gateway.yaml"), KNOWN)
    assert config.tracing is not None
    assert config.tracing.headers == {"authorization": "Bearer c"}
    assert config.tools.web_search is not None
    assert config.tools.web_search.headers == {"x-token": "s"}
    assert config.guards["personal-data"].headers == {"x-guard": "g"}
    assert config.models["Partner/hosted-model"].headers == {"x-api-key": "p"}
    assert "Bearer c" not in chart.text("hatches")


@pytest.mark.parametrize("operator", ["LeaderWorkerSet", "RayCluster"])
def test_pods_that_only_compute_have_no_secret_of_those_that_answer(operator: str) -> None:
    external = {"addresses": ["redis.example:6379"], "tls": True, "caSecret": {"name": "ca"}}
    redis = {"mode": "external", "existingSecret": "redis", "external": external}
    options = {"nodes": 2, "gpus": 8, "multiNode": operator, "apiKeySecret": {"name": "worker-key"}}
    among = chart.parsed(chart.template({**GOOD, **model(**options), "redis": redis}))
    held = {}
    for _, pod in pods(among):
        one = pod["spec"]["containers"][0]
        volumes = {volume["name"] for volume in pod["spec"]["volumes"] if "secret" in volume}
        mounted = {mount["name"] for mount in one["volumeMounts"]} & {"redis", "redis-ca"}
        variables = {variable["name"] for variable in one.get("env", []) if "valueFrom" in variable}
        held[pod["metadata"]["labels"].get("dragoman-role")] = (volumes, mounted, variables)
    assert held["leader"] == ({"redis", "redis-ca"}, {"redis", "redis-ca"}, {"VLLM_API_KEY"})
    assert held["rank"] == (set(), set(), set())
