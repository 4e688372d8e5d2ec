"""Which cage this machine can have: bubblewrap, else Landlock, else none, if asked for by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from closeloop.records.errors import MachineFailed
from closeloop.records.settings import SandboxSettings
from closeloop.records.variant import Limits
from closeloop.sandbox import bwrap, landlock
from closeloop.sandbox.machine_view import copy_etc, inspect_machine
from closeloop.sandbox.program_execution import Channels
from closeloop.sandbox.seccomp import compile_filter, filter_is_available
from closeloop.sandbox.workspace_layout import (
    SandboxBackend,
    SandboxLimits,
    WorkspaceLayout,
    visible_paths,
)

PROBE_SECONDS = 20.0
UNFILTERED_NOTE = "This kernel filters no system calls (seccomp is missing)."


def find_sandbox(settings: SandboxSettings, cache: Path) -> SandboxBackend:
    """The best cage of the kind asked for that really runs a command here."""
    mount = cache / "mount"
    for folder in (mount, cache / "stage"):
        folder.mkdir(parents=True, exist_ok=True)
    view = inspect_machine(settings)
    guards = SandboxLimits(
        kind="none", files=False, network=False, processes=False, note="Commands run uncaged."
    )
    unconfined = SandboxBackend(guards=guards, view=view, mount=str(mount), wrap=None)
    if settings.kind == "none":
        return unconfined
    troubles = []
    for candidate in list_candidates(unconfined, settings.kind, cache):
        trouble = probe_sandbox(candidate, cache)
        if trouble is None:
            return candidate
        troubles.append(f"{candidate.guards.kind}: {trouble}")
    first_trouble = f" ({troubles[0]})" if troubles else ""
    raise MachineFailed(
        f"No sandbox works here{first_trouble}: install bubblewrap, "
        "or pass --sandbox none to run agents without one."
    )


def list_candidates(bare: SandboxBackend, kind: str, cache: Path) -> Iterator[SandboxBackend]:
    """From the strongest and fastest down."""
    version, filtered = landlock.landlock_version(), filter_is_available()
    bare = msgspec.structs.replace(bare, filtered=filtered)
    isolated = msgspec.structs.replace(bare, isolated=True, etc=copy_etc(cache, bare.view.etc))
    guards = SandboxLimits(
        kind="bwrap",
        files=True,
        network=True,
        processes=True,
        system_calls=filtered,
        note="" if filtered else UNFILTERED_NOTE,
    )
    if kind in ("auto", "bwrap") and shutil.which("bwrap"):
        confined = msgspec.structs.replace(isolated, guards=guards, wrap=bwrap.wrap_with_bwrap)
        yield msgspec.structs.replace(confined, overlay=True)
        yield confined
        late_note = "A command being started when closeloop is killed may go on."
        lesser_limits = msgspec.structs.replace(guards, note=f"{late_note} {guards.note}".strip())
        yield msgspec.structs.replace(
            confined, guards=lesser_limits, wrap=bwrap.wrap_with_bwrap_alone
        )
    if kind in ("auto", "landlock") and version:
        guards = msgspec.structs.replace(guards, kind="landlock")
        confined = msgspec.structs.replace(
            isolated, guards=guards, wrap=landlock.wrap_with_landlock
        )
        yield msgspec.structs.replace(confined, overlay=True)
        yield confined
        guards = _describe_landlock_limits(version, filtered)
        yield msgspec.structs.replace(bare, guards=guards, wrap=landlock.wrap_with_landlock_alone)


def _describe_landlock_limits(version: int, filtered: bool) -> SandboxLimits:
    """What is enforced without namespaces, and in the note what is not."""
    sockets = ["TCP"] * (version < 4) + ["UDP and named Unix sockets"] * (not filtered)
    gaps = [f"the network is open ({', '.join(sockets)})"] * bool(sockets)
    gaps.append(
        "command lines of other processes, names of keys and System V shared memory can be read"
    )
    if version < 6:
        gaps.append("commands may signal other processes of this user")
    if version < 2:
        gaps.append("files cannot be moved between folders")
    note = f"Landlock without namespaces: {'; '.join(gaps)}."
    return SandboxLimits(
        kind="landlock",
        files=True,
        network=not sockets,
        processes=version >= 6,
        system_calls=filtered,
        note=note if filtered else f"{note} {UNFILTERED_NOTE}",
    )


def build_call_filter(sandbox: SandboxBackend, place: WorkspaceLayout) -> bytes:
    """The filter for one command; empty where this kernel has none."""
    if not sandbox.filtered:
        return b""
    tcp_only = not sandbox.isolated and not place.network
    return compile_filter(os.uname().machine, tcp_only)


def probe_sandbox(sandbox: SandboxBackend, cache: Path) -> str | None:
    """Write a file from inside; None when it arrives, else what went wrong."""
    with tempfile.TemporaryDirectory(dir=cache, prefix="probe-") as folder:
        place = WorkspaceLayout(folder=folder, lower=f"{folder}/lower" if sandbox.overlay else None)
        layout = ("lower", "upper", "work") if sandbox.overlay else ("root",)
        for name in layout:
            Path(folder, name).mkdir()
        for name in ("workspace", "home"):
            Path(folder, layout[0], name).mkdir()
        Path(folder, "temporary").mkdir()
        probe = _run_probe(sandbox, place)
        if isinstance(probe, str):
            return probe
        probe_file = Path(folder, "upper" if sandbox.overlay else "root", "workspace", "probe")
        if probe_file.exists():
            return None
        return (
            probe.stderr.decode(errors="replace").strip()[-300:] or f"exit code {probe.returncode}"
        )


def _run_probe(
    sandbox: SandboxBackend, place: WorkspaceLayout
) -> subprocess.CompletedProcess[bytes] | str:
    """Run a command that writes a file; a text where it does not end."""
    assert sandbox.wrap is not None
    status, status_end = os.pipe()
    seccomp, seccomp_end = os.pipe()
    os.write(seccomp_end, build_call_filter(sandbox, place))
    os.close(seccomp_end)
    channels = Channels(status=status_end, seccomp=seccomp if sandbox.filtered else None)
    try:
        return subprocess.run(
            sandbox.wrap(sandbox, place, Limits(), ["/bin/sh", "-c", ": > probe"], channels),
            env=build_command_environment(sandbox, place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[status_end, seccomp],
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        for descriptor in (status, status_end, seccomp):
            os.close(descriptor)


def build_command_environment(
    sandbox: SandboxBackend, place: WorkspaceLayout, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables a command sees."""
    _, home, temporary = visible_paths(sandbox, place)
    env = {**sandbox.view.env, "HOME": home, "TMPDIR": temporary, **place.env, **(more or {})}
    # A workspace without a repository must not take one around the cache for its own.
    return env if sandbox.isolated else {"GIT_CEILING_DIRECTORIES": place.folder, **env}
