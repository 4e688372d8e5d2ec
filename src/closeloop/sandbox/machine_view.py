"""What a cage shows of the machine: the system and toolchains to read, a clean environment."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from closeloop.records.errors import BadInput
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import SandboxSettings
from closeloop.sandbox.sandbox_network import find_sockets

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
ETC_PATTERNS = (
    *(
        "alternatives",
        "ca-certificates",
        "ca-certificates.conf",
        "crypto-policies",
        "debian_version",
    ),
    *("fonts", "gai.conf", "host.conf", "java*", "ld.so.*", "localtime", "lsb-release", "maven"),
    *("mime.types", "openal", "os-release", "pki", "protocols", "services", "shells", "ssl"),
    *("timezone", "xml"),
)
"""Of /etc only what programs need to start, resolve and verify; never keys or accounts."""
SECRET_PATTERNS = shutil.ignore_patterns("private", "*.key", "entitlement*")
TOOLCHAINS = {
    ".pyenv": "PYENV_ROOT",
    ".rbenv": "RBENV_ROOT",
    ".goenv": "GOENV_ROOT",
    ".asdf": "ASDF_DATA_DIR",
    ".nvm": "NVM_DIR",
    ".volta": "VOLTA_HOME",
    ".rustup": "RUSTUP_HOME",
    ".bun/bin": None,
    ".cargo/bin": None,
    ".deno/bin": None,
    ".local/bin": None,
    ".local/share/fnm": None,
    ".local/share/mise": "MISE_DATA_DIR",
    ".local/share/pipx": None,
    ".local/share/pnpm": None,
    ".local/share/uv": None,
    ".local/share/virtualenvs": None,
    ".sdkman/candidates": "SDKMAN_CANDIDATES_DIR",
    "go/bin": None,
}
"""Under the home folder: programs, without the credentials beside them → who points at it."""
ETC_FILES = {
    "passwd": "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost agent\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}
FIXED_VARIABLES = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@localhost",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@localhost",
}


_PACKAGE_VARIABLE = re.compile(
    r"(https?|no|all)_proxy|(pip|uv|npm_config|yarn|cargo|poetry)_\w+|go(proxy|nosumdb|sumdb|flags)"
    r"|ssl_cert_(file|dir)|(requests|curl)_ca_bundle|node_extra_ca_certs|git_ssl_cainfo",
    re.IGNORECASE,
)


_HOST_PATTERN = re.compile(r"(\*\.)?[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?")


def package_environment() -> dict[str, str]:
    """How this machine gets at packages: proxies, indexes, certificates. For setup only."""
    return {name: value for name, value in os.environ.items() if _PACKAGE_VARIABLE.fullmatch(name)}


class MachineView(Record):
    """The same for every cage of a process."""

    readable: tuple[str, ...]
    """Folders and files shown read-only where they are, none inside another."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links of the root folder: link, target."""
    sockets: tuple[str, ...]
    """Those that lay below the paths in `read`."""
    etc: tuple[str, ...]
    """What of /etc may be read where there is no own one."""
    env: dict[str, str]
    shell: str


def inspect_machine(settings: SandboxSettings) -> MachineView:
    """See which of the usual places this machine has, and who may be named in PATH."""
    home = Path.home()
    system = [path for path in SYSTEM_FOLDERS if Path(path).is_dir()]
    links = tuple((path, str(Path(path).readlink())) for path in system if Path(path).is_symlink())
    extra_paths = [Path(each).expanduser() for each in settings.read]
    for path in extra_paths:
        if not path.exists():
            raise BadInput(f"Remove {path} from `read` under [sandbox]: it does not exist.")
    for host in settings.hosts:
        if not _HOST_PATTERN.fullmatch(host):
            raise BadInput(
                f"Write {host!r} in `hosts` under [sandbox] as host, *.host or host:port."
            )
    toolchains = {home / name: variable for name, variable in TOOLCHAINS.items()}
    toolchain_folders = [path for path in toolchains if path.is_dir()]
    python_paths = [
        part
        for prefix in {sys.prefix, sys.base_prefix}
        for part in _python_folders(Path(prefix), home)
    ]
    search = [entry for entry in os.environ.get("PATH", os.defpath).split(":") if entry[:1] == "/"]
    if is_own_environment(Path(sys.prefix)):
        search = put_last(search, Path(sys.prefix) / "bin")
    programs = [part for entry in search for part in _program_folders(Path(entry))]
    folders = [path for path in system if not Path(path).is_symlink()]
    readable = _outermost_paths(
        [*folders, *map(str, [*toolchain_folders, *python_paths, *programs, *extra_paths])]
    )
    visible_folders = [""] if settings.kind == "none" else readable
    search_path = [
        entry
        for entry in dict.fromkeys([*search, f"{sys.prefix}/bin"])
        if _is_inside(entry, visible_folders)
    ]
    env = FIXED_VARIABLES | {"PATH": ":".join(search_path)}
    env |= {
        name: str(path) for path, name in toolchains.items() if name and path in toolchain_folders
    }
    env |= {name: os.environ[name] for name in settings.env if name in os.environ}
    etc = tuple(
        str(path) for pattern in ETC_PATTERNS for path in sorted(Path("/etc").glob(pattern))
    )
    shell = shutil.which("bash", path=env["PATH"]) or "/bin/sh"
    return MachineView(
        readable=tuple(readable),
        links=links,
        sockets=tuple(find_sockets(map(str, extra_paths))),
        etc=etc,
        env=env,
        shell=shell,
    )


_INSTALLERS = frozenset({"pip", "setuptools", "uv", "wheel"})


def is_own_environment(prefix: Path) -> bool:
    """Whether an environment was made for closeloop alone, as pipx and pre-commit do.

    Of such a one, nobody wants the Python: activated, it would hide that of the project. By what
    was asked for when it was made: whoever works in an environment asked for more than closeloop.
    """
    if not (prefix / "pyvenv.cfg").is_file():
        return False
    requested = {
        marker.parent.name.split("-")[0].lower()
        for marker in prefix.glob("lib/python3*/site-packages/*.dist-info/REQUESTED")
    }
    return requested - _INSTALLERS == {"closeloop"}


def put_last(search: Sequence[str], folder: Path) -> list[str]:
    """A search path with one folder, by whatever name, after all others."""
    real = os.path.realpath(folder)
    hidden = [entry for entry in search if os.path.realpath(entry) == real]
    return [*(entry for entry in search if entry not in hidden), *hidden]


def copy_etc(cache: Path, entries: Iterable[str]) -> str:
    """A small /etc of our own, copied when the machine's changes: one mount instead of dozens."""
    stamps = [
        (path, os.lstat(path).st_mtime_ns)
        for entry in entries
        for path in [entry, *map(str, Path(entry).glob("*") if Path(entry).is_dir() else ())]
    ]
    folder = cache / "etc" / content_digest(stamps, ETC_FILES)[:16]
    if folder.is_dir():
        return str(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary_folder = Path(tempfile.mkdtemp(dir=folder.parent))
    for entry in map(Path, entries):
        if entry.is_dir():
            shutil.copytree(
                entry, temporary_folder / entry.name, symlinks=True, ignore=_unreadable_names
            )
        elif os.access(entry, os.R_OK) or entry.is_symlink():
            shutil.copy2(entry, temporary_folder / entry.name, follow_symlinks=False)
    for name, content in ETC_FILES.items():
        (temporary_folder / name).write_text(content)
    temporary_folder.chmod(0o755)
    try:
        temporary_folder.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(temporary_folder, ignore_errors=True)
    return str(folder)


def _unreadable_names(folder: str, names: list[str]) -> set[str]:
    closed_names = {name for name in names if not os.access(Path(folder, name), os.R_OK)}
    return set(SECRET_PATTERNS(folder, names)) | {
        name for name in closed_names if not Path(folder, name).is_symlink()
    }


def _python_folders(prefix: Path, home: Path) -> list[Path]:
    """A Python installation, without what else lies there when it is somebody's home."""
    if home.is_relative_to(prefix) or prefix == home / ".local":
        return [
            prefix / name for name in ("bin", "lib", "lib64", "include") if (prefix / name).is_dir()
        ]
    return [prefix]


def _program_folders(folder: Path) -> list[Path]:
    """What to show for an entry of PATH: the installation it belongs to, if it is one."""
    if not folder.is_dir():
        return []
    if (folder.parent / "pyvenv.cfg").is_file():
        return [folder.parent]
    if not folder.is_relative_to("/opt"):
        return []
    return [folder.parent if folder.name == "bin" and folder.parent != Path("/opt") else folder]


def _outermost_paths(paths: list[str]) -> list[str]:
    outermost: list[str] = []
    for path in sorted(set(paths)):
        if not _is_inside(path, outermost):
            outermost.append(path)
    return outermost


def _is_inside(path: str, folders: Iterable[str]) -> bool:
    real = os.path.realpath(path)
    return any(
        path == each or path.startswith(each + "/") or real.startswith(each + "/")
        for each in folders
    )
