"""Follow a test command into the files it calls: Makefiles, scripts, what those call in turn."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from closeloop.records.record import Record

MAX_FILES = 200
MAX_BYTES = 256 << 10
"""What is larger is no script that people write."""
BY_PROGRAM = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
    "invoke": ("tasks.py",),
    "inv": ("tasks.py",),
    "rake": ("Rakefile",),
    "mvn": ("pom.xml",),
    "gradle": ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
    "gradlew": ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
    "cmake": ("CMakeLists.txt",),
    "ctest": ("CMakeLists.txt",),
    "hatch": ("hatch.toml",),
    "cargo": ("build.rs",),
}
"""Which files a program reads without being told."""
NODE_SCRIPTS = frozenset({"npm", "pnpm", "yarn", "bun"})
SCRIPT_FOLDERS = frozenset({"scripts", "script", "tools", "tool", "ci", ".ci", ".github", "hack"})
SCRIPT_NAMES = re.compile(r"(?:run|do)?[-_]?(?:tests?|checks?|verify|validate|lint|ci)\b.*", re.I)
SCRIPT_ENDINGS = (".sh", ".bash", ".zsh", ".mk", ".ps1", ".bat")
_WORD = re.compile(r"[\w@%+.,:/~-]+")


class BaseTree(Record):
    """The files of a base as they lie on disk: links are not followed out of it."""

    root: str

    def has(self, path: str) -> bool:
        """Whether there is a file or a folder at that path."""
        return self._real(path) is not None

    def read(self, path: str) -> str | None:
        """A file's text; None for what is not there, too large or no ordinary file."""
        real = self._real(path)
        if real is None:
            return None
        try:
            about = real.lstat()
            if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
                return None
            return real.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def read_bytes(self, path: str) -> bytes | None:
        """A file's content, however large; None for what is not there or no ordinary file."""
        real = self._real(path)
        try:
            is_file = real is not None and stat.S_ISREG(real.lstat().st_mode)
            return real.read_bytes() if real is not None and is_file else None
        except OSError:
            return None

    def _real(self, path: str) -> Path | None:
        if not path or "\0" in path or len(path) > 4_000:
            return None
        full = Path(os.path.realpath(self.root), os.path.normpath(path))
        try:
            inside = full.parent.resolve().is_relative_to(os.path.realpath(self.root))
            return full if inside and os.path.lexists(full) else None
        except (OSError, ValueError):
            return None


def run_through(commands: Iterable[str], base: BaseTree) -> dict[str, str]:
    """The files of the base that commands call, however indirectly, and which calls each."""
    found: dict[str, str] = {}
    waiting = [(command, f"`{command}`") for command in commands]
    while waiting and len(found) < MAX_FILES:
        text, caller = waiting.pop(0)
        for path in _named_files(text, base):
            if path in found:
                continue
            found[path] = caller
            content = base.read(path)
            if content is not None:
                waiting.append((content, path))
    return found


def is_script(path: str, content: str | None) -> bool:
    """Whether a file that a command names serves to check, rather than to be checked."""
    folders, name = path.split("/")[:-1], path.rpartition("/")[2]
    known = {file for files in BY_PROGRAM.values() for file in files}
    known |= {"package.json", "manage.py"}
    if name in known or name.endswith(SCRIPT_ENDINGS) or SCRIPT_NAMES.fullmatch(name):
        return True
    if SCRIPT_FOLDERS & set(folders):
        return True
    shell = content is not None and re.match(r"#!.*\b(?:ba|da|z|k)?sh\b", content)
    return bool(shell) and "bin" not in folders


def _named_files(text: str, base: BaseTree) -> list[str]:
    """Scripts that a text names, and what its programs read unasked, whether it is there or not."""
    unasked: dict[str, None] = {}
    named: dict[str, None] = {}
    for word in _WORD.findall(text):
        program = word.rpartition("/")[2]
        unasked.update(dict.fromkeys(BY_PROGRAM.get(program, ())))
        if program in NODE_SCRIPTS:
            named["package.json"] = None
        plain = os.path.normpath(word.partition("::")[0])
        if not plain.startswith(("/", "..")) and ("/" in word or "." in word):
            named[plain] = None
    scripts = (
        path
        for path in named
        if (content := base.read(path)) is not None and is_script(path, content)
    )
    return [*unasked, *scripts]
