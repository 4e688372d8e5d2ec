"""One workspace on disk, and where its commands find it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from closeloop.records.record import Record
from closeloop.records.task import Limits
from closeloop.sandbox.machine_view import SYSTEM_FOLDERS, MachineView
from closeloop.sandbox.program_execution import Channels
from closeloop.sandbox.sandbox_network import list_bound_sockets

WORKSPACE, HOME, TEMPORARY = "/workspace", "/home/agent", "/tmp"  # noqa: S108
OWN_FOLDER = "/run/closeloop"
FORWARDER_PATH = f"{OWN_FOLDER}/forwarder.py"


class SandboxLimits(Record):
    """What is really enforced here."""

    kind: str
    """`bwrap`, `landlock` or `none`."""
    files: bool
    network: bool
    processes: bool
    """Whole trees die with the command, and with closeloop itself."""
    system_calls: bool = False
    """Those that a command has no need for are refused."""
    note: str = ""


def describe_sandbox_limits(guards: SandboxLimits) -> str:
    """What is enforced here and what is not, on one line."""
    enforced = {
        "files": guards.files,
        "network": guards.network,
        "processes": guards.processes,
        "system calls": guards.system_calls,
    }
    names = ", ".join(name for name, is_enforced in enforced.items() if is_enforced)
    kind = f"{guards.kind} ({names})" if names else guards.kind
    return f"{kind}: {guards.note}" if guards.note else kind


class SharedFolder(Record):
    """A folder of ours shown to some commands at a path outside the workspace."""

    source: str
    target: str
    write: bool = False


class SandboxPort(Record):
    """A server of ours that commands reach as a port of their loopback, and nobody else's."""

    number: int
    socket: str
    """Where it listens: a Unix socket in a folder of its own. Where commands have no loopback of
    their own, it must listen on the port itself."""


class WorkspaceLayout(Record):
    """A workspace's folders: `root/workspace`, `root/home` and `temporary`."""

    folder: str
    lower: str | None = None
    """With an overlay: the folder that stands for `root`, to which `upper` adds."""
    shares: tuple[SharedFolder, ...] = ()
    ports: tuple[SandboxPort, ...] = ()
    env: dict[str, str] = {}
    """More variables for every command."""
    frozen: bool = False
    """The workspace may be read only."""
    network: bool = False


class SandboxBackend(Record):
    """A way to cage commands that works on this machine."""

    guards: SandboxLimits
    view: MachineView
    mount: str
    """An empty folder: every cage mounts its overlay there, unseen by the others."""
    wrap: (
        Callable[[SandboxBackend, WorkspaceLayout, Limits, Sequence[str], Channels], list[str]]
        | None
    )
    """The command, caged; None runs it as it is."""
    filtered: bool = False
    """Commands run under a filter of system calls."""
    overlay: bool = False
    isolated: bool = False
    """Commands see their own file system, with the workspace at a constant path."""
    etc: str | None = None


def find_layout_root(sandbox: SandboxBackend, place: WorkspaceLayout) -> str:
    """The folder that holds `workspace` and `home`, before anything is shown elsewhere."""
    return sandbox.mount if place.lower else str(Path(place.folder, "root"))


def visible_paths(sandbox: SandboxBackend, place: WorkspaceLayout) -> tuple[str, str, str]:
    """The workspace, the home and the temporary folder, as commands see them."""
    if sandbox.isolated:
        return WORKSPACE, HOME, TEMPORARY
    root = find_layout_root(sandbox, place)
    return f"{root}/workspace", f"{root}/home", f"{place.folder}/temporary"


def real_paths(place: WorkspaceLayout) -> tuple[str, str, str]:
    """The same three where they really lie; with an overlay, what was added to them."""
    root = f"{place.folder}/{'upper' if place.lower else 'root'}"
    return f"{root}/workspace", f"{root}/home", f"{place.folder}/temporary"


def visible_share_path(sandbox: SandboxBackend, share: SharedFolder) -> str:
    """Where commands find something that is shared with them."""
    return share.target if sandbox.isolated else share.source


def list_visible_shares(sandbox: SandboxBackend, place: WorkspaceLayout) -> list[SharedFolder]:
    """Everything an isolated command sees besides the system, outer folders first."""
    root = find_layout_root(sandbox, place)
    shares = [
        SharedFolder(source=f"{place.folder}/temporary", target=TEMPORARY, write=True),
        *(SharedFolder(source=path, target=path) for path in sandbox.view.readable),
        SharedFolder(source=f"{root}/workspace", target=WORKSPACE, write=not place.frozen),
        SharedFolder(source=f"{root}/home", target=HOME, write=True),
        *place.shares,
        *(
            SharedFolder(source=str(Path(port.socket).parent), target=_port_folder(port))
            for port in place.ports
        ),
    ]
    if place.ports:
        source = str(Path(__file__).with_name("forwarder.py"))
        shares.append(SharedFolder(source=source, target=FORWARDER_PATH))
    if sandbox.etc:
        shares.append(SharedFolder(source=sandbox.etc, target="/etc"))
    if place.network and Path("/etc/resolv.conf").exists():
        shares.append(SharedFolder(source="/etc/resolv.conf", target="/etc/resolv.conf"))
    shares += (
        SharedFolder(source=os.devnull, target=path) for path in foreign_sockets(sandbox.view)
    )
    return shares


def foreign_sockets(view: MachineView) -> list[str]:
    """Sockets below what commands may read: a mount that is read-only does not close them."""
    folders = _folders_by_real_path(view.readable)
    foreign = [path for path in view.sockets if Path(path).is_socket()]
    for path in list_bound_sockets({*folders, *folders.values()}):
        real = next((real for real in folders if path.startswith(f"{real}/")), None)
        foreign.append(path if real is None else folders[real] + path.removeprefix(real))
    return sorted(set(foreign))


@functools.cache
def _folders_by_real_path(readable: tuple[str, ...]) -> dict[str, str]:
    """Without those of the system, where nobody puts sockets."""
    return {os.path.realpath(path): path for path in readable if path not in SYSTEM_FOLDERS}


@functools.cache
def hidden_paths() -> tuple[str, ...]:
    """What /proc shows of other namespaces: the names of the user's keys."""
    return tuple(path for path in ("/proc/keys",) if Path(path).exists())


def map_port_sockets(place: WorkspaceLayout) -> dict[int, str]:
    """Where isolated commands find the socket behind each port."""
    return {port.number: f"{_port_folder(port)}/{Path(port.socket).name}" for port in place.ports}


def _port_folder(port: SandboxPort) -> str:
    return f"{OWN_FOLDER}/{port.number}"
