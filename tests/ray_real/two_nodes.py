"""A Ray cluster of two nodes on this machine: two network namespaces where that is allowed."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

HEAD, OTHER = "10.213.{}.1", "10.213.{}.2"
BIN = Path(sys.executable).parent


class Cluster:
    """A head and another node; the driver belongs beside the head."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = secrets.randbelow(250) + 1
        self.apart = _namespaces_work(self.number)
        self.address = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environ = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "1000",
            "RAY_health_check_failure_threshold": "2",
        }

    def name(self, node: str) -> str:
        return f"closeloop-{node}-{self.number}"

    def inside(self, node: str, argv: Sequence[str]) -> list[str]:
        """The command as that node's machine would run it."""
        return ["ip", "netns", "exec", self.name(node), *argv] if self.apart else list(argv)

    def start(self, node: str, *, processors: int) -> None:
        head, other = (
            (HEAD.format(self.number), OTHER.format(self.number))
            if self.apart
            else ("127.0.0.1", "127.0.0.1")
        )
        temporary = self.folder / node
        temporary.mkdir(exist_ok=True)
        argv = [str(BIN / "ray"), "start", "--block", f"--num-cpus={processors}"]
        argv += ["--object-store-memory=100000000", "--disable-usage-stats"]
        if node == "head":
            port = 6399 if self.apart else _free_port()
            self.address = f"{head}:{port}"
            argv += ["--head", f"--port={port}", f"--node-ip-address={head}"]
            argv += ["--include-dashboard=false", f"--temp-dir={self.folder}/ray"]
        else:
            argv += [f"--address={self.address}", f"--node-ip-address={other}"]
        self.processes[node] = subprocess.Popen(
            self.inside(node, argv),
            env={**self.environ, "TMPDIR": str(temporary)},
            stdout=(self.folder / f"{node}.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def closeloop(
        self, project: Path, *arguments: str, command: str = "run"
    ) -> subprocess.Popen[str]:
        argv = [str(BIN / "python"), "-m", "closeloop", command, "--set", "executor.kind=ray"]
        argv += ["--set", f"executor.address={self.address}", "--json", *arguments]
        return subprocess.Popen(
            self.inside("head", argv),
            cwd=project,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self, nodes: int) -> None:
        """Until so many nodes are in the cluster."""
        code = (
            "import ray, sys, logging, time\n"
            f"ray.init('{self.address}', logging_level=logging.ERROR, log_to_driver=False)\n"
            f"while sum(n['Alive'] for n in ray.nodes()) != {nodes}: time.sleep(0.2)\n"
        )
        argv = self.inside("head", [str(BIN / "python"), "-c", code])
        deadline = time.monotonic() + 90
        while True:
            try:
                done = subprocess.run(
                    argv, env=self.environ, capture_output=True, timeout=60, check=False
                )
                if done.returncode == 0:
                    return
                said = done.stderr.decode()[-500:]
            except subprocess.TimeoutExpired:
                said = "it took too long"
            assert time.monotonic() < deadline, said
            time.sleep(0.5)

    def kill(self, node: str) -> None:
        """As if somebody had pulled the plug: everything of it at once."""
        for pid in _descendants(self.processes[node].pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes[node].wait()


@contextmanager
def two_nodes(folder: Path, processors: int = 1) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.start("head", processors=processors)
        cluster.wait(1)
        cluster.start("other", processors=processors)
        cluster.wait(2)
        yield cluster
    finally:
        for node in cluster.processes:
            cluster.kill(node)
        if cluster.apart:
            for node in ("head", "other"):
                _ip("netns", "delete", cluster.name(node))


def _namespaces_work(number: int) -> bool:
    names = [f"closeloop-{node}-{number}" for node in ("head", "other")]
    commands = [["netns", "add", name] for name in names]
    commands.append(
        ["link", "add", f"cl-a{number}", "type", "veth", "peer", "name", f"cl-b{number}"]
    )
    for name, link, address in zip(
        names, (f"cl-a{number}", f"cl-b{number}"), (HEAD, OTHER), strict=True
    ):
        commands += [
            ["link", "set", link, "netns", name],
            ["-n", name, "addr", "add", f"{address.format(number)}/24", "dev", link],
            ["-n", name, "link", "set", link, "up"],
            ["-n", name, "link", "set", "lo", "up"],
        ]
    if all(_ip(*command) for command in commands):
        return True
    for name in names:
        _ip("netns", "delete", name)
    return False


def _ip(*arguments: str) -> bool:
    try:
        return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _descendants(root: int) -> list[int]:
    """A process and all below it, the nearest first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found
