"""What a command in a cage tries to reach and does not."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.protocols import ProcessResult
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import sandbox_ladder
from closeloop.sandbox.machine_view import real_paths
from closeloop.sandbox.workspaces import WorkspacePool
from patience import PATIENCE

TIERS = {
    "bwrap": (sandbox_ladder.wrap_with_bwrap, True),
    "bwrap, copying": (sandbox_ladder.wrap_with_bwrap, False),
    "bwrap alone": (sandbox_ladder.wrap_with_bwrap_alone, False),
    "landlock": (sandbox_ladder.wrap_with_landlock, True),
    "landlock alone": (sandbox_ladder.wrap_with_landlock_alone, False),
}


def at_tier(tier: str, cache: Path, settings: SandboxSettings | None = None) -> WorkspacePool:
    """Workspaces of exactly this kind; the test is skipped where the machine has none."""
    settings = settings or SandboxSettings()
    workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
    bare = sandbox_ladder.find_sandbox(SandboxSettings(kind="none", **_given(settings)), cache)
    for candidate in sandbox_ladder.list_candidates(bare, "auto", cache):
        if (candidate.wrap, candidate.overlay) == TIERS[tier]:
            trouble = sandbox_ladder.probe_sandbox(candidate, cache)
            if trouble:
                pytest.skip(f"NOT TESTED HERE: {tier}: {trouble}")
            workspaces.sandbox = candidate
            return workspaces
    pytest.skip(f"NOT TESTED HERE: {tier} is not installed")


def _given(settings: SandboxSettings) -> dict[str, tuple[str, ...]]:
    return {"read": settings.read, "env": settings.env}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=TIERS)
def workspaces(request: pytest.FixtureRequest, cache: Path) -> Iterator[WorkspacePool]:
    opened = at_tier(request.param, cache)
    yield opened
    opened.close()


def attempt(workspaces: WorkspacePool, command: str) -> ProcessResult:
    """What becomes of a command in a new, empty workspace."""

    async def main() -> ProcessResult:
        async with workspaces.open(None, Limits(command_seconds=PATIENCE)) as workspace:
            return await workspace.sandbox.run(command)

    return anyio.run(main)


def python(code: str) -> str:
    return f'{sys.executable} -c "{code}"'


def test_a_command_does_not_read_the_users_home(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name, content in ((".ssh/id", "secret"), (".pyenv/version", "toolchain")):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(content)
    monkeypatch.setenv("HOME", str(home))
    ran = 0
    for tier in TIERS:
        try:
            workspaces = at_tier(tier, cache)
        except pytest.skip.Exception:
            continue
        ran += 1
        seen = attempt(workspaces, f"cat {home}/.ssh/id; cat {home}/.pyenv/version")
        assert "secret" not in seen.output, tier
        assert "toolchain" in seen.output, tier
        workspaces.close()
    if not ran:
        pytest.skip("NOT TESTED HERE: no cage works on this machine")


def test_a_command_does_not_read_the_real_home_either(workspaces: WorkspacePool) -> None:
    files = [path for path in Path.home().iterdir() if path.is_file() and path.stat().st_size][:5]
    if not files:
        pytest.skip("the home folder has no files")
    for path in files:
        ran = attempt(workspaces, f"cat '{path}'")
        assert ran.exit_code != 0, path


def test_a_command_does_not_write_outside_its_workspace(
    workspaces: WorkspacePool, cache: Path, tmp_path: Path
) -> None:
    places = [tmp_path, Path("/"), Path("/usr"), Path("/etc"), Path("/dev"), Path("/var"), cache]
    places += [cache / "bases", cache / "runs", Path.home()]
    names = " ".join(f"'{place}/escaped'" for place in places)
    ran = attempt(workspaces, f"for f in {names}; do echo x > $f && echo WROTE $f; done; true")
    assert "WROTE" not in ran.output
    assert not [place for place in places if (place / "escaped").exists()]


def test_a_command_writes_in_its_workspace_home_and_temporary_folder(
    workspaces: WorkspacePool,
) -> None:
    ran = attempt(
        workspaces,
        'echo a > a && mkdir b && mv a b/a && echo b > "$HOME/b" && echo c > "$TMPDIR/c" && '
        'cat b/a "$HOME/b" "$TMPDIR/c" && echo d > /dev/null',
    )
    assert (ran.exit_code, ran.output) == (0, "a\nb\nc\n")


def test_what_one_command_leaves_in_the_temporary_folder_the_next_one_finds(
    workspaces: WorkspacePool,
) -> None:
    async def main() -> str:
        async with workspaces.open(None, Limits()) as workspace:
            await workspace.sandbox.run('echo kept > "$TMPDIR/note"')
            return (await workspace.sandbox.run('cat "$TMPDIR/note"')).output

    assert anyio.run(main) == "kept\n"


def test_a_command_does_not_reach_a_server_on_this_machine(workspaces: WorkspacePool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('IN')"
        ran = attempt(workspaces, python(code))
        assert "IN" not in ran.output
        assert ran.exit_code == 1
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_command_sends_no_datagrams_unless_the_guards_say_so(workspaces: WorkspacePool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.2)
        code = f"import socket; s = socket.socket(2, 2); s.sendto(b'x', {server.getsockname()})"
        attempt(workspaces, python(code))
        if workspaces.sandbox_limits.network:
            with pytest.raises(TimeoutError):
                server.recv(10)
        else:
            assert "UDP" in workspaces.sandbox_limits.note


def test_a_command_does_not_reach_sockets_of_this_machine(
    workspaces: WorkspacePool, tmp_path: Path
) -> None:
    if not workspaces.sandbox_limits.network:
        pytest.skip(f"NOT ENFORCED HERE: {workspaces.sandbox_limits.note}")
    with socket.socket(socket.AF_UNIX) as hidden, socket.socket(socket.AF_UNIX) as named:
        hidden.bind(f"\0closeloop-{os.getpid()}")
        named.bind(str(tmp_path / "s"))
        hidden.listen()
        named.listen()
        for address in (f"\\0closeloop-{os.getpid()}", tmp_path / "s"):
            code = f"import socket; socket.socket(1).connect('{address}'); print('IN')"
            ran = attempt(workspaces, python(code))
            assert "IN" not in ran.output
            assert ran.exit_code == 1


def test_the_loopback_inside_a_cage_works(workspaces: WorkspacePool) -> None:
    if not workspaces.sandbox.isolated:
        pytest.skip("no network namespace: TCP is forbidden altogether")
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); c.sendall(b'hello'); "
        "print(s.accept()[0].recv(9).decode())"
    )
    assert attempt(workspaces, python(code)).output == "hello\n"


def test_a_command_does_not_read_other_workspaces_or_bases(
    workspaces: WorkspacePool, cache: Path
) -> None:
    secret = cache / "bases" / "other" / "secret"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("SECRET")

    async def main() -> str:
        async with (
            workspaces.open(None, Limits()) as mine,
            workspaces.open(None, Limits()) as other,
        ):
            await other.sandbox.write("secret", b"SECRET")
            theirs = f"{real_paths(other.sandbox.place)[0]}/secret"
            assert await anyio.Path(theirs).exists()
            return (await mine.sandbox.run(f"cat '{secret}' '{theirs}'; find {cache}")).output

    assert "SECRET" not in anyio.run(main)


def test_a_command_does_not_touch_closeloop_itself(
    workspaces: WorkspacePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-secret")
    me = os.getpid()
    ran = attempt(
        workspaces,
        f"env; tr '\\0' '\\n' < /proc/{me}/environ; head -c 9 /proc/{me}/mem; ls -l /proc/{me}/fd/;"
        f" kill -9 {me} && echo KILLED; kill -STOP {me} && echo STOPPED; true",
    )
    assert "sk-secret" not in ran.output
    assert "KILLED" not in ran.output
    assert "STOPPED" not in ran.output
    assert "->" not in ran.output


def test_a_command_does_not_change_the_kernels_settings_or_have_roots_powers(
    workspaces: WorkspacePool,
) -> None:
    setting = Path("/proc/sys/kernel/core_pattern")
    before = setting.read_text()
    ran = attempt(
        workspaces,
        f"cp {setting} a; cat a > {setting} && echo WROTE;"
        " echo 0 > /proc/sysrq-trigger && echo WROTE;"
        " grep CapEff /proc/self/status; mount -t tmpfs x /mnt && echo MOUNTED;"
        " chroot / true && echo ROOT; echo fine > /dev/stdout; true",
    )
    assert "CapEff:\t0000000000000000" in ran.output
    assert "fine" in ran.output
    for word in ("WROTE", "MOUNTED", "ROOT"):
        assert word not in ran.output
    assert setting.read_text() == before


def test_only_named_variables_and_paths_are_handed_on(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("UNWANTED", "no")
    (tmp_path / "shown").write_text("shown\n")
    settings = SandboxSettings(env=("WANTED", "MISSING"), read=(str(tmp_path / "shown"),))
    workspaces = at_tier("bwrap", cache, settings)
    ran = attempt(workspaces, f'cat {tmp_path}/shown; echo "$WANTED$UNWANTED"; ls {tmp_path}')
    workspaces.close()
    assert ran.output == "shown\nyes\nshown\n"


def test_a_path_to_read_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"Remove .*/missing from `read`"):
        WorkspacePool(tmp_path, SandboxSettings(kind="none", read=(str(tmp_path / "missing"),)))


def test_without_any_cage_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineFailed, match=r"install bubblewrap, or pass --set sandbox.kind=none"):
        WorkspacePool(tmp_path / "cache", SandboxSettings(kind="bwrap"))


def test_the_best_cage_of_the_machine_is_taken_and_says_what_it_guards(cache: Path) -> None:
    try:
        workspaces = WorkspacePool(cache, SandboxSettings())
    except MachineFailed as failed:
        pytest.skip(f"NOT TESTED HERE: {failed}")
    assert workspaces.sandbox_limits.kind in ("bwrap", "landlock")
    assert workspaces.sandbox_limits.files
    workspaces.close()
    bare = WorkspacePool(cache, SandboxSettings(kind="none"))
    assert not bare.sandbox_limits.files
    bare.close()


def test_git_works_inside_without_anybodys_configuration(workspaces: WorkspacePool) -> None:
    ran = attempt(
        workspaces,
        "git init -q . && echo x > x && git add x && git commit -qm x && git log --format=%an",
    )
    assert ran.output == "agent\n"
