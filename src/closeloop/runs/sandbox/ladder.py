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
from closeloop.runs.sandbox.view import look, own_etc

PROBE_SECONDS = 20.0


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
    version = landlock.version()
    isolated = msgspec.structs.replace(bare, isolated=True, etc=own_etc(cache, bare.view.etc))
    if kind in ("auto", "bwrap") and shutil.which("bwrap"):
        guards = Guards(kind="bwrap", files=True, network=True, processes=True)
        caged = msgspec.structs.replace(isolated, guards=guards, wrap=bwrap.wrap)
        yield msgspec.structs.replace(caged, overlay=True)
        yield caged
        note = "A command being started when closeloop is killed may go on."
        guards = msgspec.structs.replace(guards, note=note)
        yield msgspec.structs.replace(caged, guards=guards, wrap=bwrap.wrap_alone)
    if kind in ("auto", "landlock") and version:
        guards = Guards(kind="landlock", files=True, network=True, processes=True)
        caged = msgspec.structs.replace(isolated, guards=guards, wrap=landlock.wrap)
        yield msgspec.structs.replace(caged, overlay=True)
        yield caged
        guards = _plain_guards(version)
        yield msgspec.structs.replace(bare, guards=guards, wrap=landlock.wrap_alone)


def _plain_guards(version: int) -> Guards:
    """What Landlock alone cannot hold back, in words."""
    gaps = ["UDP and named Unix sockets are open" if version >= 4 else "the network is open"]
    if version < 6:
        gaps.append("commands may signal other processes of this user")
    if version < 2:
        gaps.append("files cannot be moved between folders")
    note = f"Landlock without namespaces: {'; '.join(gaps)}."
    return Guards(kind="landlock", files=True, network=False, processes=version >= 6, note=note)


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
        assert sandbox.wrap is not None
        status, end = os.pipe()
        argv = sandbox.wrap(sandbox, place, Limits(), ["/bin/sh", "-c", ": > probe"], end)
        try:
            ran = subprocess.run(
                argv,
                env=environment(sandbox, place),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[end],
                timeout=PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            os.close(status)
            os.close(end)
        written = Path(folder, "upper" if sandbox.overlay else "root", "workspace", "probe")
        if written.exists():
            return None
        return ran.stderr.decode(errors="replace").strip()[-300:] or f"exit code {ran.returncode}"


def environment(
    sandbox: Sandbox, place: Place, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables a command sees."""
    _, home, temporary = paths(sandbox, place)
    env = {**sandbox.view.env, "HOME": home, "TMPDIR": temporary, **place.env, **(more or {})}
    # A workspace without a repository must not take one around the cache for its own.
    return env if sandbox.isolated else {"GIT_CEILING_DIRECTORIES": place.folder, **env}
