"""Projects of other languages: JavaScript and TypeScript, Go, Rust, Java, and Make."""

from __future__ import annotations

import re
from typing import Any

from closeloop.records.record import Record
from closeloop.tasks.projects.manifest_folder import (
    DetectedProject,
    ManifestFolder,
    ProjectCommand,
    nested_table,
)

MANIFEST_FILE = "package.json"

_RUNNER_CALL = re.compile(
    r"(?P<environment>(?:\w+=\S+ +)*)"
    r"(?:(?:nyc|c8)(?: +-\S+)* +)?"
    r"(?P<line>(?:cross-env +(?:\w+=\S+ +)*)?"
    r"(?:jest|vitest|mocha|(?:node|tsx)(?= [^&|;]*--test(?: |$)))\b[^&|;]*)"
)
_CHECKER_CALL = re.compile(
    r"(?:npx +)?(?:xo|eslint|standard|prettier|tsd|tsc +--noEmit)(?: [^|;]*)?"
    r"|(?:npm|pnpm|yarn|bun)(?: run)? (?:lint|format|type-?check|types|test:types)(?:[:-][\w:-]+)?"
)
"""What comes before or after the tests in many scripts, and does nothing for them."""
_TEST_SCRIPTS = ("test", "test:unit", "test-unit", "unit", "unit-test", "test:ci")


class PackageManager(Record):
    """How a package manager is spoken to."""

    name: str
    install: str
    run: str
    execute: str


_MANAGERS = {
    "npm": PackageManager(name="npm", install="npm install", run="npm run", execute="npx"),
    "pnpm": PackageManager(
        name="pnpm", install="pnpm install --frozen-lockfile", run="pnpm run", execute="pnpm exec"
    ),
    "yarn": PackageManager(
        name="yarn", install="yarn install --frozen-lockfile", run="yarn run", execute="yarn"
    ),
    "bun": PackageManager(
        name="bun", install="bun install --frozen-lockfile", run="bun run", execute="bunx"
    ),
}
_LOCK_FILES = {
    "pnpm-lock.yaml": "pnpm",
    "yarn.lock": "yarn",
    "bun.lock": "bun",
    "bun.lockb": "bun",
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
}


def probe_javascript_project(folder: ManifestFolder) -> DetectedProject | None:
    """Scripts first, for they are the project's own words; then the tools it depends on."""
    if MANIFEST_FILE not in folder:
        return None
    package = folder.read_json(MANIFEST_FILE)
    scripts = {
        name: line
        for name, line in nested_table(package, "scripts").items()
        if isinstance(line, str)
    }
    tools = {**nested_table(package, "dependencies"), **nested_table(package, "devDependencies")}
    manager = _find_package_manager(folder, package)

    def command(wanted: tuple[str, ...], *fallbacks: str) -> ProjectCommand | None:
        script = next((name for name in wanted if name in scripts), None)
        if script:
            return ProjectCommand(
                line=f"{manager.run} {script}", source=f"{MANIFEST_FILE}, script {script!r}"
            )
        for line in fallbacks:
            if _tool_package(line) in tools:
                return ProjectCommand(
                    line=f"{manager.execute} {line}", source=f"{MANIFEST_FILE}, dependencies"
                )
        return None

    return DetectedProject(
        kind="JavaScript",
        setup=(_setup_command(folder, manager),),
        test=_test_command(scripts, tools, manager),
        lint=command(("lint",), "eslint .", "biome check ."),
        types=command(
            ("typecheck", "type-check", "types", "check-types", "check:types", "test:types"),
            *(("tsc --noEmit",) if "tsconfig.json" in folder else ()),
        ),
        build=command(("build",)),
    )


def _find_package_manager(folder: ManifestFolder, package: dict[str, Any]) -> PackageManager:
    """As `packageManager` says, else by the lock file; npm when nothing tells."""
    manager_name = str(package.get("packageManager", "")).partition("@")[0]
    lock = next((name for name in _LOCK_FILES if name in folder), None)
    return _MANAGERS.get(manager_name) or _MANAGERS[_LOCK_FILES[lock] if lock else "npm"]


def _setup_command(folder: ManifestFolder, manager: PackageManager) -> ProjectCommand:
    lock = next(
        (name for name, owner in _LOCK_FILES.items() if owner == manager.name and name in folder),
        None,
    )
    if lock is None:
        return ProjectCommand(line=f"{manager.name} install", source=MANIFEST_FILE)
    if manager.name == "npm":
        return ProjectCommand(line="npm ci", source=lock)
    if manager.name == "yarn" and ".yarnrc.yml" in folder:
        return ProjectCommand(line="yarn install --immutable", source=".yarnrc.yml")
    return ProjectCommand(line=manager.install, source=lock)


def _test_command(
    scripts: dict[str, str], tools: dict[str, Any], manager: PackageManager
) -> ProjectCommand | None:
    """The runner itself where a script is nothing but it: so its results can be read per test."""
    for name in _TEST_SCRIPTS:
        parts = [part.strip() for part in scripts.get(name, "").split("&&")]
        called = _RUNNER_CALL.fullmatch(
            " && ".join(part for part in parts if not _CHECKER_CALL.fullmatch(part))
        )
        if called:
            # Without `run`, vitest waits for files to change.
            line = re.sub(r"\bvitest(?! run\b)( watch\b)?", "vitest run", called["line"], count=1)
            execute = "" if line.startswith("node ") else f"{manager.execute} "
            whole = f"{called['environment']}{execute}{line}".strip()
            return ProjectCommand(line=whole, source=f"{MANIFEST_FILE}, script {name!r}")
    script = scripts.get("test", "")
    if script and "no test specified" not in script:
        line = "npm test" if manager.name == "npm" else f"{manager.run} test"
        return ProjectCommand(line=line, source=f"{MANIFEST_FILE}, script 'test'")
    for tool, line in {"vitest": "vitest run", "jest": "jest", "mocha": "mocha"}.items():
        if tool in tools:
            return ProjectCommand(
                line=f"{manager.execute} {line}", source=f"{MANIFEST_FILE}, dependencies"
            )
    return None


def _tool_package(line: str) -> str:
    program = line.split(maxsplit=1)[0]
    return {"biome": "@biomejs/biome", "tsc": "typescript"}.get(program, program)


# Go, Rust and Java: one tool does it all, and its manifest says which.


def probe_go_project(folder: ManifestFolder) -> DetectedProject | None:
    """go.mod, or go.work with the modules it uses."""
    source = folder.find_first("go.mod", "go.work")
    if source is None:
        return None
    packages = "./..."
    if source == "go.work":
        used = re.findall(r"^(?:use\s+|\s+)(\.\S*)\s*$", folder.read_text(source), re.MULTILINE)
        packages = " ".join(f"{place.rstrip('/')}/..." for place in used) or packages
    config = folder.find_first(
        ".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json"
    )
    lint = ProjectCommand(line="golangci-lint run", source=config) if config else None
    return DetectedProject(
        kind="Go",
        setup=(ProjectCommand(line="go mod download", source=source),),
        test=ProjectCommand(line=f"go test {packages}", source=source),
        lint=lint or ProjectCommand(line=f"go vet {packages}", source=source),
        build=ProjectCommand(line=f"go build {packages}", source=source),
    )


def probe_rust_project(folder: ManifestFolder) -> DetectedProject | None:
    """Cargo.toml; all members where it is a workspace."""
    source = "Cargo.toml"
    if source not in folder:
        return None
    whole = " --workspace" if "workspace" in folder.read_toml(source) else ""

    def cargo(line: str) -> ProjectCommand:
        return ProjectCommand(line=f"cargo {line}", source=source)

    return DetectedProject(
        kind="Rust",
        setup=(cargo("fetch"),),
        test=cargo(f"test{whole}"),
        lint=cargo(f"clippy{whole} --all-targets"),
        types=cargo(f"check{whole} --all-targets"),
        build=cargo(f"build{whole}"),
    )


def probe_java_project(folder: ManifestFolder) -> DetectedProject | None:
    """Maven or Gradle, through the project's own wrapper where it has one."""
    if "pom.xml" in folder:
        return _maven_project(folder)
    source = folder.find_first(
        "build.gradle.kts", "build.gradle", "settings.gradle.kts", "settings.gradle"
    )
    if source is None:
        return None
    gradle = "./gradlew" if "gradlew" in folder else "gradle"
    return DetectedProject(
        kind="Java",
        test=ProjectCommand(line=f"{gradle} test", source=source),
        lint=ProjectCommand(line=f"{gradle} check -x test", source=source),
        build=ProjectCommand(line=f"{gradle} assemble", source=source),
    )


def _maven_project(folder: ManifestFolder) -> DetectedProject:
    source = "pom.xml"
    maven = "./mvnw" if "mvnw" in folder else "mvn"

    def goal(goals: str) -> ProjectCommand:
        return ProjectCommand(line=f"{maven} -B {goals}", source=source)

    plugins = {
        "spotless-maven-plugin": "spotless:check",
        "maven-checkstyle-plugin": "checkstyle:check",
    }
    text = folder.read_text(source)
    lint = next((goal(check) for plugin, check in plugins.items() if plugin in text), None)
    return DetectedProject(
        kind="Java",
        setup=(goal("dependency:go-offline"),),
        test=goal("test"),
        lint=lint,
        build=goal("-DskipTests package"),
    )


# Make: the targets that people name alike.

_TARGET = re.compile(r"^([A-Za-z0-9][\w ./-]*?)\s*::?(?!=)", re.MULTILINE)


def probe_makefile(folder: ManifestFolder) -> DetectedProject | None:
    """The Makefile's targets for testing, linting, types and building."""
    name = folder.find_first("GNUmakefile", "makefile", "Makefile")
    if name is None:
        return None
    targets = {
        target for line in _TARGET.findall(folder.read_text(name)) for target in line.split()
    }

    def command(*wanted: str) -> ProjectCommand | None:
        target = next((target for target in wanted if target in targets), None)
        return ProjectCommand(line=f"make {target}", source=name) if target else None

    project = DetectedProject(
        kind="Make",
        test=command("test", "tests", "check"),
        lint=command("lint"),
        types=command("typecheck", "type-check", "types", "typing", "mypy"),
        build=command("build"),
    )
    return project if project != DetectedProject(kind="Make") else None
