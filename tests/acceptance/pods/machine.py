"""Images and containers of one run, by Debian's podman and buildah, in folders and a network of their own.

No registry is asked: the base image is made from Debian packages, and pip installs from a folder of wheels that was
filled beforehand, hashes checked. Both stay in the user's cache for the next run; everything else is gone after it.

Seen with podman 4.3 on Debian 12, also in a sandbox whose cgroups are in hybrid mode: runc instead of crun, cgroupfs
instead of systemd, builds isolated by chroot.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import resource
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.repo.tree import ROOT

# Not in the checkout: continuous integration has a new one each time.
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman" / "pods"
LOCKS = ("build", "run", "tracing", "s3", "sbom", "embedded", "model")
SUITE = "bookworm"
PYTHON = "3.11"
"""Debian's in that suite."""
PACKAGES = "python3,python3-venv,ca-certificates,libgomp1"
# What images do not need of a Debian system.
UNWANTED = ("./var/cache", "./var/lib/apt/lists", "./usr/share/doc", "./usr/share/man", "./usr/share/locale")
TAG = "pods"
BASE = "localhost/base:pods"


def say(text: str) -> None:
    """One line for whoever watches the run; pytest shows it with -s."""
    print(f"pods: {text}", flush=True)


def run(*words: str, **more: object) -> str:
    """Standard output of a command. Raises AssertionError with all that it said when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=1500, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{shlex.join(words)}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


def base() -> Path:
    """A tar file of a small Debian with Python, made once."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{SUITE}.tar"
    if path.exists() and path.with_suffix(".packages").read_text() == PACKAGES:
        return path
    say(f"making the base from Debian packages: {PACKAGES}")
    with tempfile.TemporaryDirectory(prefix="debian-") as folder:
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, folder)
        skipped = [f"--exclude={name}/*" for name in UNWANTED]
        run("tar", "--create", f"--directory={folder}", *skipped, f"--file={path}.part", ".")
    Path(f"{path}.part").rename(path)
    path.with_suffix(".packages").write_text(PACKAGES)
    return path


def wheels() -> Path:
    """A folder with every wheel of the locks, for the Python of the base, whatever the Python that runs this."""
    folder, done = KEPT / "wheels", KEPT / "wheels.done"
    folder.mkdir(parents=True, exist_ok=True)
    # pip would judge the markers by its own interpreter: a wheel too many does no harm.
    locks = {name: (ROOT / "requirements" / f"{name}.txt").read_text() for name in LOCKS}
    texts = {name: re.sub(r" ; [^\\\n]+", " ", lock) for name, lock in locks.items()}
    if not done.exists() or done.read_text() != "".join(texts.values()):
        say(f"downloading the wheels of requirements/{{{','.join(LOCKS)}}}.txt")
        with tempfile.TemporaryDirectory() as scratch:
            words = []
            for name, text in texts.items():
                Path(scratch, f"{name}.txt").write_text(text)
                words += ["--requirement", f"{scratch}/{name}.txt"]
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
            options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version", PYTHON]
            run(*pip, "--find-links", str(folder), *options, *words)
        done.write_text("".join(texts.values()))
    return folder


class Machine:
    """Use it as a context: images, containers and the network are gone at its end."""

    def __enter__(self) -> Machine:
        # podman's folder for what runs must have a short name (50 characters).
        self.folder = Path(tempfile.mkdtemp(prefix="pods-", dir="/run"))
        self.store = Path(tempfile.mkdtemp(prefix="pods-", dir="/var/tmp"))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.network, self.bridge = _free_network(), f"pods{secrets.token_hex(3)}"
        self.address = str(self.network[1])
        self._namespaces: list[str] = []
        self._naming, self._hosting = threading.Lock(), threading.Lock()
        self._addresses = self.network.hosts()
        next(self._addresses)
        # Without these a container may not start where nobody may raise its own limits.
        ulimits = json.dumps([f"nofile={files}:{files}", "nproc=4000:4000"])
        search = json.dumps(["default.svc.cluster.local", "svc.cluster.local", "cluster.local"])
        (self.folder / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits = {ulimits}\n"
            f'dns_servers = ["{self.address}"]\ndns_searches = {search}\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        (self.folder / "names").mkdir()
        with contextlib.ExitStack() as stack:
            stack.callback(self._remove)
            run("ip", "link", "add", self.bridge, "type", "bridge")
            run("ip", "address", "add", f"{self.address}/{self.network.prefixlen}", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            self._names = self._serve_names()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _serve_names(self) -> subprocess.Popen[str]:
        """The cluster's DNS: dnsmasq, which reads every file in `names` at each SIGHUP."""
        words = ["dnsmasq", "--no-daemon", "--no-resolv", "--no-hosts", f"--addn-hosts={self.folder / 'names'}"]
        words += [f"--listen-address={self.address}", "--bind-interfaces", "--pid-file=", "--user=root"]
        serving = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert serving.stderr is not None
        for line in serving.stderr:
            if "started" in line:
                break
        # Read on: a full pipe would stop it.
        self._reading = threading.Thread(target=serving.stderr.read, name="dnsmasq")
        self._reading.start()
        return serving

    def _remove(self) -> None:
        with contextlib.suppress(AssertionError):
            self.podman("pod", "rm", "--all", "--force", "--time", "0")
        with contextlib.suppress(AssertionError):
            self.podman("rm", "--all", "--force", "--time", "0")
        if hasattr(self, "_names"):
            self._names.kill()
            self._reading.join()
            assert self._names.stderr is not None
            self._names.stderr.close()
            self._names.wait()
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True)
        for mounted in _mounts_below(self.store, self.folder):
            subprocess.run(["umount", "--lazy", mounted], capture_output=True)
        shutil.rmtree(self.store, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- commands

    def words(self, program: str) -> list[str]:
        """podman or buildah, on this machine's own store."""
        places = ["--root", f"{self.store}/store", "--runroot", f"{self.folder}/run"]
        return [program, *places, "--storage-driver", "overlay"]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "TMPDIR": str(self.store),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
        }

    def podman(self, *words: str, namespace: str | None = None) -> str:
        """Runs podman, inside a network namespace if one is named. Raises AssertionError."""
        inside = ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []
        return run(*inside, *self.words("podman"), *words, env=self.environment)

    def build(self, *words: str) -> None:
        """scripts/images.py with buildah, without any index."""
        settings = self.folder / "pip.conf"
        settings.write_text("[global]\nno-index = true\nfind-links = /mnt\n")
        script = [sys.executable, "scripts/images.py", "--builder", shlex.join(self.words("buildah")), "--tag", TAG]
        isolated = ["--isolation", "chroot", "--volume", f"{wheels()}:/mnt:ro"]
        command = [*script, "--pip-config", str(settings), *words, "--", *isolated]
        say(shlex.join(command))
        run(*command, env=self.environment, cwd=ROOT)

    def image(self, name: str, containerfile: str, files: dict[str, bytes]) -> None:
        """Builds a small image from a text and some files, as a stand-in for one that only a registry has."""
        with tempfile.TemporaryDirectory(dir=self.store) as folder:
            for path, content in files.items():
                Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, path).write_bytes(content)
                Path(folder, path).chmod(0o755)
            Path(folder, "Containerfile").write_text(containerfile)
            run(*self.words("buildah"), "build", "--isolation", "chroot", "--tag", name, folder, env=self.environment)

    # -- network

    def host(self) -> tuple[str, str]:
        """A network namespace of its own on the bridge, as every Pod has one: (its name, its address)."""
        with self._hosting:
            address, name = self.free_address(), f"{self.bridge}-{len(self._namespaces)}"
            self._namespaces.append(name)
            link = f"{self.bridge}{len(self._namespaces)}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", link, "master", self.bridge, "up")
        run("ip", "-netns", name, "address", "add", f"{address}/{self.network.prefixlen}", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-netns", name, "link", "set", device, "up")
        return name, address

    def own_address(self) -> str:
        """A further address of the bridge, for the cluster address of a Service."""
        address = self.free_address()
        run("ip", "address", "add", f"{address}/32", "dev", self.bridge)
        return address

    def free_address(self) -> str:
        return str(next(self._addresses))

    def name(self, name: str, addresses: Sequence[str]) -> None:
        """What `name` resolves to from now on, in the namespace `default`."""
        text = "".join(f"{address} {name}.default.svc.cluster.local\n" for address in addresses)
        with self._naming:
            path = self.folder / "names" / name
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                self._names.send_signal(signal.SIGHUP)


def _free_network() -> ipaddress.IPv4Network:
    """A /24 that no route of this machine touches."""
    told = [one["dst"] for one in json.loads(run("ip", "-json", "route"))]
    routes = [ipaddress.ip_network(one) for one in told if one != "default"]
    while True:
        found = ipaddress.IPv4Network(f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(256)}.0/24")
        if not any(found.overlaps(one) for one in routes if one.version == 4):
            return found


def _mounts_below(*folders: Path) -> list[str]:
    """Deepest first."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((one for one in mounted if one.startswith(tuple(f"{folder}/" for folder in folders))), reverse=True)
