"""Which target of which package a test of `cargo test` belongs to, and in which file it is."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from closeloop.records.record import Record

TargetKind = Literal["lib", "bin", "test"]


class CargoTarget(Record):
    """One program that cargo builds of a package."""

    kind: TargetKind
    name: str
    """As the manifest has it."""
    root: str
    """The path of its first file."""
    is_discovered: bool = False
    """Cargo would find another one in a new file beside it."""

    @property
    def folder(self) -> str:
        return self.root.rpartition("/")[0]

    @property
    def crate(self) -> str:
        """The first part of its tests' ids."""
        return self.name.replace("-", "_")


class TestLocation(Record):
    """Where a test should be written, going by its id."""

    path: str
    target: CargoTarget
    file_modules: tuple[str, ...]
    """The module that the file is."""
    inner_modules: tuple[str, ...]
    """Modules inside it."""
    function: str


def list_targets(sources: Mapping[str, str]) -> list[CargoTarget]:
    """Return the targets of all packages whose manifest is among the sources."""
    targets = list[CargoTarget]()
    for path, text in sorted(sources.items()):
        folder, _, name = path.rpartition("/")
        try:
            manifest = tomllib.loads(text) if name == "Cargo.toml" else {}
        except tomllib.TOMLDecodeError:
            continue
        package = manifest.get("package")
        if isinstance(package, dict) and isinstance(package.get("name"), str):
            prefix = f"{folder}/" if folder else ""
            targets += _list_package_targets(manifest, package, prefix, sources)
    return targets


def _list_package_targets(
    manifest: Mapping[str, Any], package: Mapping[str, Any], prefix: str, sources: Mapping[str, str]
) -> Iterator[CargoTarget]:
    lib = manifest.get("lib") or {}
    lib_path = f"{prefix}{lib.get('path', 'src/lib.rs')}"
    if lib_path in sources:
        yield CargoTarget(kind="lib", name=lib.get("name", package["name"]), root=lib_path)
    listed = list(_list_declared(manifest, prefix, sources))
    yield from listed
    is_discovering = package.get("autotests", True) and not (
        manifest.get("test") and package.get("edition", "2015") == "2015"
    )
    known = {target.root for target in listed}
    for path in sources:
        if not path.startswith(prefix) or path in known:
            continue
        match path.removeprefix(prefix).split("/"):
            case ["src", "main.rs"]:
                yield CargoTarget(kind="bin", name=package["name"], root=path)
            case ["src", "bin", name] if name.endswith(".rs"):
                yield CargoTarget(kind="bin", name=name[:-3], root=path)
            case ["tests", name] if name.endswith(".rs") and is_discovering:
                yield CargoTarget(kind="test", name=name[:-3], root=path, is_discovered=True)
            case ["src", "bin", name, "main.rs"]:
                yield CargoTarget(kind="bin", name=name, root=path)
            case ["tests", name, "main.rs"] if is_discovering:
                yield CargoTarget(kind="test", name=name, root=path)


def _list_declared(
    manifest: Mapping[str, Any], prefix: str, sources: Mapping[str, str]
) -> Iterator[CargoTarget]:
    """The manifest's own `[[bin]]` and `[[test]]`."""
    kinds: tuple[tuple[TargetKind, str], ...] = (("bin", "src/bin"), ("test", "tests"))
    for kind, folder in kinds:
        for entry in manifest.get(kind) or ():
            name = str(entry.get("name"))
            usual = (f"{folder}/{name}.rs", f"{folder}/{name}/main.rs")
            for path in (entry["path"],) if "path" in entry else usual:
                if f"{prefix}{path}" in sources:
                    yield CargoTarget(kind=kind, name=name, root=f"{prefix}{path}")


def locate_test(
    test: str, targets: list[CargoTarget], sources: Mapping[str, str]
) -> Iterator[TestLocation]:
    """Yield the places where a test may be, going by its id; those in deeper modules first."""
    crate, *modules, function = test.split("::") if "::" in test else ("", "")
    roots = {target.root for target in targets}
    for target in targets:
        if target.crate != crate:
            continue
        for split in range(len(modules), -1, -1):
            inside, rest = tuple(modules[:split]), tuple(modules[split:])
            for path in _module_paths(target, inside):
                if path in sources and (path == target.root or path not in roots):
                    yield TestLocation(
                        path=path,
                        target=target,
                        file_modules=inside,
                        inner_modules=rest,
                        function=function,
                    )


def _module_paths(target: CargoTarget, modules: tuple[str, ...]) -> tuple[str, ...]:
    if not modules:
        return (target.root,)
    path = "/".join(filter(None, (target.folder, *modules)))
    return (f"{path}.rs", f"{path}/mod.rs")
