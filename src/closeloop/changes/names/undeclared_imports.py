"""Packages that added lines of Python import and that nothing declares, has or installs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.names.name_search import NameSearch
from closeloop.changes.names.suspect_names import (
    NameUse,
    Suspect,
    is_test_input,
    load_standard_library,
)
from closeloop.changes.risk.manifests import normalise_python_name, read_manifest
from closeloop.records.inspection import SourceImport

MANIFESTS = "the manifests"
"""Where it was looked for, in a suspect."""
_PACKAGE_NAME = re.compile(r"[a-z_]\w{2,}", re.IGNORECASE)
_PIP_INSTALL = re.compile(r"\bpip3? install (.+)")
_OTHER_DISTRIBUTIONS: Mapping[str, str] = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv",
    "dateutil": "python-dateutil",
    "git": "gitpython",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "serial": "pyserial",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "usb": "pyusb",
    "zmq": "pyzmq",
}
"""By module, distributions whose name does not hold the module's."""


def find_undeclared_imports(search: NameSearch) -> Iterator[Suspect]:
    """Modules whose name stands nowhere: an installer would fetch whatever bears it."""
    unknown = list(_unknown_imports(search))
    declared = _declared_packages(search) if unknown else None
    for use in unknown:
        if declared is not None and not _is_declared(use.text, declared):
            yield Suspect(use=use, where=MANIFESTS)


def _unknown_imports(search: NameSearch) -> Iterator[NameUse]:
    for path, added in search.inspection.added.items():
        module = search.inspection.modules.get(("after", path))
        if module is None or module.language != "python" or is_test_input(path):
            continue
        lines = (search.inspection.sides.read("after", path) or b"").split(b"\n")
        for one in module.imports:
            is_new = one.line in added and _is_unknown(one, path, search)
            if is_new and not _is_guarded(lines, one.line):
                first = one.module.split(".")[0]
                yield NameUse(
                    path=path, line=one.line, language="python", text=first, kind="import"
                )


def _is_unknown(target: SourceImport, path: str, search: NameSearch) -> bool:
    """Whether neither the language, the repository nor what is installed has the package."""
    first = target.module.split(".")[0]
    around = search.around
    if not _PACKAGE_NAME.fullmatch(first) or first in load_standard_library("python"):
        return False
    folder = PurePosixPath(path).parent
    is_here = first in around.python_modules or any(
        first in PurePosixPath(place).parts for place in around.folders
    )
    is_known = search.inspection.index.known(first) or first in search.words_before
    beside = str(folder / f"{first}.py") in around.tree
    return not (is_here or is_known or beside) and (
        around.installed.package_names("python", first) is None
    )


def _is_guarded(lines: list[bytes], number: int) -> bool:
    """Whether it may fail: inside `try`, or only for types."""
    line = lines[number - 1] if number <= len(lines) else b""
    indent = len(line) - len(line.lstrip())
    above = (one for one in reversed(lines[: number - 1]) if one.strip())
    block = next((one for one in above if len(one) - len(one.lstrip()) < indent), b"")
    guards = (b"try:", b"except", b"if TYPE_CHECKING", b"if typing.TYPE_CHECKING")
    return indent > 0 and block.strip().startswith(guards)


def _declared_packages(search: NameSearch) -> frozenset[str] | None:
    """Every word of manifests, lock files and installation scripts, at either end, and what CI
    installs.

    None where none of them declares a dependency of Python: then they are kept elsewhere.
    """
    names: set[str] = set()
    declares = False
    for side in ("before", "after"):
        for path in search.inspection.sides.tree(side):
            kind = classify_file(path)
            if kind == "ci":
                content = search.inspection.sides.read(side, path) or b""
                for line in _PIP_INSTALL.findall(content.decode("utf-8", "replace")):
                    names.update(re.findall(r"[A-Za-z][\w.-]{2,}", line))
            if kind in ("manifest", "lockfile") or path.endswith("setup.py"):
                content = search.inspection.sides.read(side, path) or b""
                names.update(re.findall(r"[A-Za-z][\w.-]{2,}", content.decode("utf-8", "replace")))
                declares |= b"install_requires" in content
                with suppress(ValueError):
                    manifest = read_manifest(path, content)
                    declares |= bool(
                        manifest and manifest.ecosystem == "pypi" and manifest.dependencies
                    )
    return frozenset(normalise_python_name(name) for name in names) if declares else None


def _is_declared(module: str, declared: frozenset[str]) -> bool:
    """Whether a distribution bears its name, or more: `yaml` is in `pyyaml`."""
    wanted = normalise_python_name(module), _OTHER_DISTRIBUTIONS.get(module)
    return any(one in name for one in wanted if one for name in declared)
