"""Reading and writing through a cage, whatever a path turns out to be."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import sandbox_ladder
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox
from closeloop.sandbox.workspaces import WorkspacePool
from patience import PATIENCE

TIERS = {
    "bwrap": (sandbox_ladder.wrap_with_bwrap, True),
    "landlock": (sandbox_ladder.wrap_with_landlock, True),
    "landlock alone": (sandbox_ladder.wrap_with_landlock_alone, False),
    "none": (None, False),
}
Use = Callable[[Callable[[WorkspaceSandbox], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=TIERS)
def use(request: pytest.FixtureRequest, cache: Path) -> Iterator[Use]:
    """Do something with the cage of a new, empty workspace."""
    workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
    wanted = TIERS[request.param]
    for candidate in sandbox_ladder.list_candidates(workspaces.sandbox, "auto", cache):
        if (candidate.wrap, candidate.overlay) == wanted:
            trouble = sandbox_ladder.probe_sandbox(candidate, cache)
            if trouble:
                pytest.skip(f"NOT TESTED HERE: {request.param}: {trouble}")
            workspaces.sandbox = candidate
    if workspaces.sandbox.wrap is not wanted[0]:
        pytest.skip(f"NOT TESTED HERE: {request.param} is not installed")

    def run(act: Callable[[WorkspaceSandbox], Awaitable[None]]) -> None:
        async def main() -> None:
            async with workspaces.open(None, Limits()) as workspace:
                await act(workspace.sandbox)

        anyio.run(main)

    yield run
    workspaces.close()


def test_what_is_written_is_read_back(use: Use) -> None:
    async def act(sandbox: WorkspaceSandbox) -> None:
        content = bytes(range(256)) * 5000
        for path in ("a", "deep/er/ö ü", "-n", "--", "$(touch x)", "new\nline"):
            await sandbox.write(path, content)
            assert await sandbox.read(path) == content
        await sandbox.write("a", b"short")
        assert await sandbox.read(f"{sandbox.root}/a") == b"short"
        assert (await sandbox.run("ls x")).exit_code != 0

    use(act)


@pytest.mark.parametrize("count", [1, 9], ids=["few", "more than is kept"])
def test_files_are_read_together(use: Use, count: int) -> None:
    async def act(sandbox: WorkspaceSandbox) -> None:
        content = bytes(range(250)) * 4
        paths = [f"-n {number}\n$(touch x)" for number in range(count)]
        for path in paths:
            await sandbox.write(path, content)
        await sandbox.run("touch empty; mkdir folder; mkfifo pipe; head -c 1001 /dev/zero >large")
        others = ["empty", "none", "folder", "pipe", "large"]
        with anyio.fail_after(PATIENCE):
            found = await sandbox.read_all([*others, *paths, f"{sandbox.root}/empty"], 1000)
        assert found == [b"", None, None, None, None, *[content] * count, b""]
        assert await sandbox.read_all([]) == []

    use(act)


def test_a_program_stays_executable_when_it_is_rewritten(use: Use) -> None:
    async def act(sandbox: WorkspaceSandbox) -> None:
        await sandbox.run("echo > tool && chmod 755 tool")
        await sandbox.write("tool", b"#!/bin/sh\necho ran\n")
        assert (await sandbox.run("./tool")).output == "ran\n"

    use(act)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        ("true", FileNotFoundError),
        ("mkdir it", IsADirectoryError),
        ("mkfifo it", OSError),
        ("ln -s /dev/zero it", OSError),
        ("ln -s it it", OSError),
        ("head -c 2000 /dev/zero > it", OSError),
    ],
)
def test_what_cannot_be_read_is_an_error_and_not_a_wait(
    use: Use, make: str, error: type[OSError]
) -> None:
    async def act(sandbox: WorkspaceSandbox) -> None:
        await sandbox.run(make)
        with anyio.fail_after(PATIENCE), pytest.raises(error):
            await sandbox.read("it", 1000)

    use(act)


@pytest.mark.parametrize("make", ["mkdir it", "mkfifo it", "touch file && ln -s file/x it"])
def test_what_cannot_be_written_is_an_error_and_not_a_wait(use: Use, make: str) -> None:
    async def act(sandbox: WorkspaceSandbox) -> None:
        await sandbox.run(make)
        with anyio.fail_after(PATIENCE), pytest.raises(OSError):  # noqa: PT011
            await sandbox.write("it", b"x")

    use(act)


def test_links_and_dots_lead_to_nothing_outside(use: Use, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")

    async def act(sandbox: WorkspaceSandbox) -> None:
        await sandbox.run(f"ln -s {secret} link; ln -s {tmp_path} folder; ln -s /etc/shadow shadow")
        up = "../" * 30 + str(secret)
        for path in ("link", "folder/secret", str(secret), up, "shadow", "/etc/shadow"):
            with pytest.raises(OSError):  # noqa: PT011
                await sandbox.read(path)
        for path in ("folder/new", f"{tmp_path}/new", "folder/deep/new", "link"):
            with contextlib.suppress(OSError):
                await sandbox.write(path, b"overwritten")

    use(act)
    assert secret.read_text() == "secret"
    assert list(tmp_path.iterdir()) == [secret]


def test_a_file_closed_to_its_owner_is_not_read(use: Use) -> None:
    async def act(sandbox: WorkspaceSandbox) -> None:
        await sandbox.run("echo x > it; chmod 000 it")
        if (await sandbox.run("cat it")).exit_code == 0:
            return  # we are root, without a cage
        with pytest.raises(PermissionError):
            await sandbox.read("it")

    use(act)


def test_a_command_that_closes_its_own_folders_does_not_lock_us_out(use: Use) -> None:
    async def act(sandbox: WorkspaceSandbox) -> None:
        await sandbox.run('chmod 000 . "$HOME" "$TMPDIR"')
        assert (await sandbox.run("echo still here")).output == "still here\n"

    use(act)


def test_a_command_that_deletes_everything_it_can_leaves_a_usable_cage(use: Use) -> None:
    async def act(sandbox: WorkspaceSandbox) -> None:
        await sandbox.run('rm -rf "$PWD" "$HOME" "$TMPDIR"')
        await sandbox.write("a", b"b")
        assert (await sandbox.run("cat a")).output == "b"

    use(act)
