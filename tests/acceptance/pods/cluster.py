"""What Kubernetes does with a chart's objects, done on one machine: Pods by `podman play kube`, the rest here.

Pods          one for each replica of a Deployment or StatefulSet, with a network namespace and an address of its own
Services      cluster addresses that carry connections to the Pods that are ready; headless ones are names in the DNS
upgrades      each workload replaces its Pods by its own strategy, all workloads at once
probes        asked as the kubelet asks them, of the Pod's own endpoints; a liveness probe that fails is noted
deletion      out of the endpoints, preStop, SIGTERM, and SIGKILL after the grace, as the kubelet does it

Not done, because nobody here would enforce it: NetworkPolicies, budgets, autoscalers, service accounts.

podman 4.3 lacks some of what a Pod may say, and `_for_podman` says the same otherwise: probes and `lifecycle` are done
here; `ports` are not needed between namespaces; podman shares volumes, ConfigMaps and Secrets of the same name among
Pods, so they carry the Pod's; it knows a Secret's values only as they are encoded, so ConfigMaps and plain variables
hold them.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import http.client
import subprocess
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import yaml

from tests.acceptance.pods.machine import Machine, say

WORKLOADS = ("Deployment", "StatefulSet")
READY_S = 300.0
ANSWER_S = 30.0
"""What a probe waits for an answer at least: the machine may stand still for seconds, and no Pod is dead for that."""
Object = dict[str, Any]


@dataclass
class Pod:
    """One Pod that runs. ready: its probes said so; leaving: it is being deleted."""

    name: str
    spec: Object
    labels: Mapping[str, str]
    namespace: str
    address: str
    ready: bool = False
    leaving: bool = False
    failures: list[str] = field(default_factory=list)

    def container(self, spec: Object) -> str:
        """podman's name of one of its containers."""
        return f"{self.name}-{spec['name']}"

    def port(self, port: int | str) -> int:
        """A port by its number or its name."""
        if isinstance(port, int):
            return port
        ports = (one for spec in self.spec["containers"] for one in spec.get("ports", ()))
        return next(int(one["containerPort"]) for one in ports if one["name"] == port)


@dataclass(frozen=True)
class Ended:
    """How a container ended when its Pod was deleted.

    seconds  from the SIGTERM on
    killed   the grace was over
    log      all that it said
    """

    container: str
    status: int
    seconds: float
    killed: bool
    log: str


class Cluster:
    """Takes rendered objects and runs what of them runs. Use it as a context."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.pods: dict[str, Pod] = {}
        self.kept: dict[tuple[str, str], Object] = {}
        self.services: list[Object] = []
        self.hooks: list[Object] = []
        self.workloads: dict[str, Object] = {}
        self._owned: dict[str, list[str]] = {}
        self.addresses: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="services")
        self._over = threading.Event()
        self._probing: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._turns: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._carrying: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Cluster:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._probing:
            thread.join()
        for pod in self.pods.values():  # others on this machine may have their names
            self._remove(pod)
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- objects

    def apply(self, objects: Iterable[Object]) -> None:
        """Starts everything; returns when podman has started every Pod."""
        for one in self._taken(objects):
            name = one["metadata"]["name"]
            self.workloads[name] = one
            self._owned[name] = [f"{name}-{number}" for number in range(one["spec"].get("replicas", 1))]
            for pod in self._owned[name]:
                self.start(pod, one["spec"]["template"])

    def upgrade(self, objects: Iterable[Object]) -> list[Ended]:
        """Does what `helm upgrade` to these objects leads to: each workload whose Pods have changed replaces them, all
        workloads at once. Returns how the old containers ended. Workloads stay the same, with as many replicas."""
        self.hooks.clear()
        changed = []
        for one in self._taken(objects):
            name = one["metadata"]["name"]
            if self.workloads[name]["spec"]["template"] != one["spec"]["template"]:
                changed.append(one)
            self.workloads[name] = one
        with ThreadPoolExecutor() as threads:
            return [ended for rolled in threads.map(self._roll, changed) for ended in rolled]

    def _taken(self, objects: Iterable[Object]) -> list[Object]:
        """Takes over all objects but the workloads, which it returns."""
        workloads = []
        for one in objects:
            kind, name = one["kind"], one["metadata"]["name"]
            if "helm.sh/hook" in one["metadata"].get("annotations", {}):
                self.hooks.append(one)
            elif kind in ("ConfigMap", "Secret"):
                self.kept[kind, name] = one
            elif kind == "Service":
                self._serve(one)
            elif kind in WORKLOADS:
                workloads.append(one)
            else:
                say(f"not run here: {kind} {name}")
        return workloads

    def _roll(self, workload: Object) -> list[Ended]:
        """One Pod after the other. A surge brings the new one before the old one goes; StatefulSets keep names."""
        name, template = workload["metadata"]["name"], workload["spec"]["template"]
        fixed = workload["kind"] == "StatefulSet"
        surge = not fixed and workload["spec"]["strategy"]["rollingUpdate"]["maxSurge"] > 0
        ended: list[Ended] = []
        for number, old in reversed(list(enumerate(self._owned[name]))):
            new = old if fixed else f"{old}-next"
            if not surge:
                ended += self.delete(old)
            self.start(new, template)
            self.wait_ready(new)
            if surge:
                ended += self.delete(old)
            self._owned[name][number] = new
        say(f"{name}: all Pods are replaced")
        return ended

    def secret(self, name: str, **values: str) -> None:
        """A Secret that the chart only names."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self.kept["Secret", name] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}

    def start(self, name: str, template: Object) -> Pod:
        """One Pod; its probes are asked from now on."""
        namespace, address = self.machine.host()
        pod = Pod(name, template["spec"], template["metadata"].get("labels", {}), namespace, address)
        self._play(pod)
        self.pods[name] = pod
        self._publish()
        thread = threading.Thread(target=self._probe, args=(pod,), name=name)
        self._probing.append(thread)
        thread.start()
        return pod

    def complete(self, template: Object, limit_s: float) -> tuple[int, str]:
        """A Pod that ends by itself: the status of its one container, and all that it said."""
        namespace, address = self.machine.host()
        pod = Pod(template["metadata"]["name"], template["spec"], {}, namespace, address)
        self._play(pod)
        (spec,) = pod.spec["containers"]
        waiting = subprocess.Popen(
            [*self.machine.words("podman"), "wait", pod.container(spec)],
            env=self.machine.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            status = int(waiting.communicate(timeout=limit_s)[0])
        except subprocess.TimeoutExpired:
            waiting.kill()
            waiting.communicate()
            raise AssertionError(f"{name_of(template)} has not ended: {self.log(pod)}") from None
        said = self.log(pod)
        self._remove(pod)
        return status, said

    def log(self, pod: Pod) -> str:
        """What its containers said."""
        done = subprocess.run(
            [*self.machine.words("podman"), "logs", pod.container(pod.spec["containers"][0])],
            env=self.machine.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    def delete(self, name: str) -> list[Ended]:
        """Deletes a Pod as the kubelet does, and tells how its containers ended."""
        pod = self.pods[name]
        pod.leaving = True
        self._publish()
        began = monotonic()
        grace = pod.spec.get("terminationGracePeriodSeconds", 30)
        ended = []
        for spec in pod.spec["containers"]:
            self._before_the_end(pod, spec.get("lifecycle", {}).get("preStop"))
            container, left = pod.container(spec), max(2.0, grace - (monotonic() - began))
            told = monotonic()
            self.machine.podman("stop", "--time", str(round(left)), container)
            seconds = monotonic() - told
            status = int(self.machine.podman("inspect", "--format", "{{.State.ExitCode}}", container))
            ended.append(Ended(container, status, seconds, status == 137, self.log(pod)))
        del self.pods[name]
        self._publish()
        self._remove(pod)
        return ended

    def _remove(self, pod: Pod) -> None:
        self.machine.podman("pod", "rm", "--force", "--time", "0", pod.name)

    def _before_the_end(self, pod: Pod, handler: Object | None) -> None:
        if handler is None:
            return
        ((how, what),) = handler.items()
        if how == "sleep":
            self._over.wait(float(what["seconds"]))
        else:
            assert how == "exec", how
            self.execute(pod, *what["command"])

    def execute(self, pod: Pod, *words: str, limit_s: float = 180) -> tuple[int, str]:
        """Status and output of a command in the Pod's first container; -1 when it does not end."""
        # To podman the Pods are on the host's network: what it starts in a container is in the namespace of its caller.
        inside = ["nsenter", f"--net=/run/netns/{pod.namespace}", *self.machine.words("podman")]
        command = [*inside, "exec", pod.container(pod.spec["containers"][0]), *words]
        try:
            done = subprocess.run(
                command,
                env=self.machine.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return -1, ""
        return done.returncode, done.stdout

    # -- Pods

    def _play(self, pod: Pod) -> None:
        documents = self._for_podman(pod)
        path = Path(self.machine.folder, f"{pod.name}.yaml")
        path.write_text(yaml.safe_dump_all(documents))
        say(f"podman play kube {pod.name} at {pod.address}")
        self.machine.podman("play", "kube", "--network", "host", str(path), namespace=pod.namespace)

    def _for_podman(self, pod: Pod) -> list[Object]:
        spec, documents = copy.deepcopy(pod.spec), []
        for one in spec["containers"]:
            for key in ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle"):
                one.pop(key, None)
            for mount in one.get("volumeMounts", ()):
                mount["name"] = f"{pod.name}-{mount['name']}"
            for variable in one.get("env", ()):
                if "secretKeyRef" in variable.get("valueFrom", {}):
                    source = variable.pop("valueFrom")["secretKeyRef"]
                    variable["value"] = decoded(self.kept["Secret", source["name"]])[source["key"]]
        for volume in spec.get("volumes", ()):
            volume["name"] = f"{pod.name}-{volume['name']}"
            if "configMap" in volume:
                documents.append(self._named("ConfigMap", volume["configMap"], "name", pod))
            elif "secret" in volume:
                documents.append(_plain(self._named("Secret", volume["secret"], "secretName", pod)))
                volume["configMap"] = {"name": volume.pop("secret")["secretName"]}
        metadata = {"name": pod.name, "labels": dict(pod.labels)}
        return [*documents, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}]

    def _named(self, kind: str, reference: Object, key: str, pod: Pod) -> Object:
        """The object that `reference` names, under a name of this Pod's own, which the reference has from now on."""
        document = copy.deepcopy(self.kept[kind, reference[key]])
        reference[key] = f"{pod.name}-{reference[key]}"
        document["metadata"] = {"name": reference[key]}
        return document

    # -- probes

    def wait_ready(self, *names: str, limit_s: float = READY_S) -> None:
        """Until the probes of these Pods (all without names) have found them ready. Raises AssertionError."""

        def lacking() -> list[str]:
            return [name for name in names or tuple(self.pods) if not self.pods[name].ready]

        with self._changed:
            if not self._changed.wait_for(lambda: not lacking(), limit_s):
                said = "\n".join(f"{name}:\n{self.log(self.pods[name])[-3000:]}" for name in lacking())
                raise AssertionError(f"not ready within {limit_s:g} s: {said}")

    def _probe(self, pod: Pod) -> None:
        """Asks the probes of the Pod's first container, each in its own period, until the Pod goes."""
        (spec, *_) = pod.spec["containers"]
        probes = {kind: spec[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness") if f"{kind}Probe" in spec}
        due = {kind: monotonic() + probe.get("initialDelaySeconds", 0) for kind, probe in probes.items()}
        wrong = dict.fromkeys(probes, 0)
        if "readiness" not in probes:
            self._turn(pod, ready=True)
        while not self._over.wait(0.2) and self.pods.get(pod.name) is pod:
            for kind, probe in probes.items():
                if monotonic() < due[kind] or ("startup" in due and kind != "startup"):
                    continue
                due[kind] = monotonic() + probe.get("periodSeconds", 10)
                well = self._well(pod, spec, probe)
                wrong[kind] = 0 if well else wrong[kind] + 1
                lost = wrong[kind] == probe.get("failureThreshold", 3)
                if kind == "startup" and well:
                    del due[kind]
                elif kind != "readiness" and lost and not pod.leaving:
                    pod.failures.append(f"the {kind} probe failed {wrong[kind]} times")
                elif kind == "readiness" and (well if not pod.ready else lost):
                    self._turn(pod, ready=well)
            if "startup" not in due:
                probes.pop("startup", None)

    def _turn(self, pod: Pod, *, ready: bool) -> None:
        with self._changed:
            pod.ready = ready
            self._changed.notify_all()
        self._publish()

    def _well(self, pod: Pod, spec: Object, probe: Object) -> bool:
        limit = max(ANSWER_S, probe.get("timeoutSeconds", 1))
        if "exec" in probe:
            return self.execute(pod, *probe["exec"]["command"], limit_s=limit)[0] == 0
        request = probe["httpGet"]
        connection = http.client.HTTPConnection(pod.address, pod.port(request["port"]), timeout=limit)
        try:
            connection.request("GET", request["path"])
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    # -- Services

    def behind(self, service: Object) -> list[Pod]:
        """The Pods that a Service leads to now."""
        spec = service["spec"]
        return [
            pod
            for pod in list(self.pods.values())
            if spec["selector"].items() <= pod.labels.items()
            and (spec.get("publishNotReadyAddresses") or (pod.ready and not pod.leaving))
        ]

    def _publish(self) -> None:
        for service in self.services:
            if service["spec"].get("clusterIP") == "None":
                self.machine.name(service["metadata"]["name"], [pod.address for pod in self.behind(service)])

    def _serve(self, service: Object) -> None:
        name, spec = service["metadata"]["name"], service["spec"]
        for former in self.services:
            if former["metadata"]["name"] == name:
                assert former["spec"]["ports"] == spec["ports"], f"{name}: other ports are not done here"
                former.update(service)
                return
        self.services.append(service)
        if spec.get("clusterIP") == "None":
            return
        address = self.addresses[name] = self.machine.own_address()
        self.machine.name(name, [address])
        for port in spec["ports"]:
            starting = self._listen(service, address, port)
            asyncio.run_coroutine_threadsafe(starting, self._loop).result(60)

    async def _close(self) -> None:
        """Ends listeners and what they carry."""
        for server in self._servers:
            server.close()
        for writer in self._carrying:
            writer.transport.abort()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    async def _listen(self, service: Object, address: str, port: Object) -> None:
        async def carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """One connection, to the next Pod in turn; without one it is reset, as by a Service without endpoints."""
            pods = self.behind(service)
            turn = self._turns[address] = self._turns.get(address, -1) + 1
            if not pods:
                writer.transport.abort()
                return
            pod = pods[turn % len(pods)]
            try:
                inner, outer = await asyncio.open_connection(pod.address, pod.port(port["targetPort"]))
            except OSError:
                writer.transport.abort()
                return
            self._carrying |= {writer, outer}
            await asyncio.gather(_copied(reader, outer), _copied(inner, writer))
            for one in (writer, outer):
                one.close()
                self._carrying.discard(one)

        self._servers.append(await asyncio.start_server(carried, address, port["port"]))


def decoded(secret: Object) -> dict[str, str]:
    """The values of a Secret."""
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def _plain(secret: Object) -> Object:
    """A ConfigMap with a Secret's values."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": secret["metadata"], "data": decoded(secret)}


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All bytes one way, then its end; a reset is handed on as a reset."""
    try:
        while block := await reader.read(65_536):
            writer.write(block)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()


def name_of(one: Object) -> str:
    """Kind and name, for messages."""
    return f"{one['kind']} {one['metadata']['name']}"
