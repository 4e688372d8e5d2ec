"""Which cage this machine can have: bubblewrap, else Landlock, else none, if asked for by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from closeloop.model.errors import MachineFailed
from closeloop.model.settings import SandboxSettings
from closeloop.model.variant import Limits
from closeloop.runs.sandbox import bwrap, landlock
from closeloop.runs.sandbox.place import Guards, Place, Sandbox, paths
from closeloop.runs.sandbox.process import Channels
from closeloop.runs.sandbox.seccomp import compile_filter, filter_is_available
from closeloop.runs.sandbox.view import look, own_etc

PROBE_SECONDS = 20.0
UNFILTERED = "This kernel filters no system calls (seccomp is missing)."


def find_sandbox(settings: SandboxSettings, cache: Path) -> Sandbox:
    """The best cage of the kind asked for that really runs a command here."""
    mount = cache / "mount"
    for folder in (mount, cache / "stage"):
        folder.mkdir(parents=True, exist_ok=True)
    view = look(settings)
    guards = Guards(
        kind="none", files=False, network=False, processes=False, note="Commands run uncaged."
    )
    bare = Sandbox(guards=guards, view=view, mount=str(mount), wrap=None)
    if settings.kind == "none":
        return bare
    troubles = []
    for candidate in candidates(bare, settings.kind, cache):
        trouble = trouble_with(candidate, cache)
        if trouble is None:
            return candidate
        troubles.append(f"{candidate.guards.kind}: {trouble}")
    why = f" ({troubles[0]})" if troubles else ""
    raise MachineFailed(
        f"No sandbox works here{why}: install bubblewrap, "
        "or pass --sandbox none to run agents without one."
    )


def candidates(bare: Sandbox, kind: str, cache: Path) -> Iterator[Sandbox]:
    """From the strongest and fastest down."""
    version, filtered = landlock.version(), filter_is_available()
    bare = msgspec.structs.replace(bare, filtered=filtered)
    isolated = msgspec.structs.replace(bare, isolated=True, etc=own_etc(cache, bare.view.etc))
    guards = Guards(
        kind="bwrap",
        files=True,
        network=True,
        processes=True,
        system_calls=filtered,
        note="" if filtered else UNFILTERED,
    )
    if kind in ("auto", "bwrap") and shutil.which("bwrap"):
        caged = msgspec.structs.replace(isolated, guards=guards, wrap=bwrap.wrap)
        yield msgspec.structs.replace(caged, overlay=True)
        yield caged
        late = "A command being started when closeloop is killed may go on."
        lesser = msgspec.structs.replace(guards, note=f"{late} {guards.note}".strip())
        yield msgspec.structs.replace(caged, guards=lesser, wrap=bwrap.wrap_alone)
    if kind in ("auto", "landlock") and version:
        guards = msgspec.structs.replace(guards, kind="landlock")
        caged = msgspec.structs.replace(isolated, guards=guards, wrap=landlock.wrap)
        yield msgspec.structs.replace(caged, overlay=True)
        yield caged
        guards = _guards_of_landlock_alone(version, filtered)
        yield msgspec.structs.replace(bare, guards=guards, wrap=landlock.wrap_alone)


def _guards_of_landlock_alone(version: int, filtered: bool) -> Guards:
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
    return Guards(
        kind="landlock",
        files=True,
        network=not sockets,
        processes=version >= 6,
        system_calls=filtered,
        note=note if filtered else f"{note} {UNFILTERED}",
    )


def system_call_filter(sandbox: Sandbox, place: Place) -> bytes:
    """The filter for one command; empty where this kernel has none."""
    if not sandbox.filtered:
        return b""
    tcp_only = not sandbox.isolated and not place.network
    return compile_filter(os.uname().machine, tcp_only)


def trouble_with(sandbox: Sandbox, cache: Path) -> str | None:
    """Write a file from inside; None when it arrives, else what went wrong."""
    with tempfile.TemporaryDirectory(dir=cache, prefix="probe-") as folder:
        place = Place(folder=folder, lower=f"{folder}/lower" if sandbox.overlay else None)
        layout = ("lower", "upper", "work") if sandbox.overlay else ("root",)
        for name in layout:
            Path(folder, name).mkdir()
        for name in ("workspace", "home"):
            Path(folder, layout[0], name).mkdir()
        Path(folder, "temporary").mkdir()
        ran = _run_probe(sandbox, place)
        if isinstance(ran, str):
            return ran
        written = Path(folder, "upper" if sandbox.overlay else "root", "workspace", "probe")
        if written.exists():
            return None
        return ran.stderr.decode(errors="replace").strip()[-300:] or f"exit code {ran.returncode}"


def _run_probe(sandbox: Sandbox, place: Place) -> subprocess.CompletedProcess[bytes] | str:
    """Run a command that writes a file; a text where it does not end."""
    assert sandbox.wrap is not None
    status, status_end = os.pipe()
    seccomp, seccomp_end = os.pipe()
    os.write(seccomp_end, system_call_filter(sandbox, place))
    os.close(seccomp_end)
    channels = Channels(status=status_end, seccomp=seccomp if sandbox.filtered else None)
    try:
        return subprocess.run(
            sandbox.wrap(sandbox, place, Limits(), ["/bin/sh", "-c", ": > probe"], channels),
            env=environment(sandbox, place),
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


def environment(
    sandbox: Sandbox, place: Place, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables a command sees."""
    _, home, temporary = paths(sandbox, place)
    env = {**sandbox.view.env, "HOME": home, "TMPDIR": temporary, **place.env, **(more or {})}
    # A workspace without a repository must not take one around the cache for its own.
    return env if sandbox.isolated else {"GIT_CEILING_DIRECTORIES": place.folder, **env}
