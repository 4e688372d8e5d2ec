"""Projects of other languages: JavaScript and TypeScript, Go, Rust, Java, and Make."""

from __future__ import annotations

import configparser
import fnmatch
import json
import re
import shlex
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

from closeloop.records.record import Record
from closeloop.text.wording import compile_lazily

# A folder to probe, and the result.


MAX_MANIFEST_BYTES = 1 << 20


class ProjectCommand(Record):
    """One command and the file it was found in."""

    line: str
    source: str


class DetectedProject(Record):
    """The commands of one kind of project in one folder."""

    kind: str
    setup: tuple[ProjectCommand, ...] = ()
    test: ProjectCommand | None = None
    lint: ProjectCommand | None = None
    types: ProjectCommand | None = None
    build: ProjectCommand | None = None


class ManifestFolder:
    """A folder's manifests, read once. Unreadable ones count as missing."""

    def __init__(self, path: Path, files: tuple[str, ...]) -> None:
        self.path = path
        self.files = files
        """Paths of the files in and below the folder, relative to it."""
        self._known = frozenset(files)
        self._texts: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def find_first(self, *names: str) -> str | None:
        """Return the first of the names (globs) that exists."""
        for name in names:
            if name in self._known:
                return name
            if "*" in name:
                matches = fnmatch.filter((path for path in self.files if "/" not in path), name)
                if matches:
                    return min(matches)
        return None

    def read_text(self, name: str) -> str:
        if name not in self._texts:
            self._texts[name] = self._load_text(name)
        return self._texts[name]

    def _load_text(self, name: str) -> str:
        if name not in self._known:
            return ""
        try:
            with (self.path / name).open("rb") as file:
                return file.read(MAX_MANIFEST_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def read_toml(self, name: str) -> dict[str, Any]:
        try:
            return tomllib.loads(self.read_text(name))
        except (tomllib.TOMLDecodeError, RecursionError):
            return {}

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.read_text(name) or "{}")
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def section_names(self, name: str) -> frozenset[str]:
        """Return the section names of an ini file."""
        return frozenset(self._parse_ini(name).sections())

    def read_section(self, name: str, section: str) -> dict[str, str]:
        """Return one section of an ini file."""
        parser = self._parse_ini(name)
        items = parser.items(section) if parser.has_section(section) else []
        return {key: value or "" for key, value in items}

    def _parse_ini(self, name: str) -> configparser.RawConfigParser:
        parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
        try:
            parser.read_string(self.read_text(name))
        except configparser.Error:
            return configparser.RawConfigParser()
        return parser

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        return self.read_toml("pyproject.toml")


def nested_table(value: Any, *path: str) -> dict[str, Any]:
    """Return the table at a path, or an empty one: manifests may have any shape."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


# Projects of other languages: JavaScript and TypeScript, Go, Rust, Java, and Make.


MANIFEST_FILE = "package.json"

_RUNNER_CALL = compile_lazily(
    r"(?P<environment>(?:\w+=\S+ +)*)"
    r"(?:(?:npx|bunx|pnpm(?: exec)?|yarn) +)?(?:(?:nyc|c8)(?: +-\S+)* +)?"
    r"(?P<line>(?:cross-env +(?:\w+=\S+ +)*)?"
    r"(?:jest|vitest|mocha|(?:node|tsx)(?= [^&|;]*--test(?: |$)))\b[^&|;]*)"
)
_RUNNER_FILE = compile_lazily(
    r"\bnode(?P<options>(?: +--[\w=-]+)*) +(?:\./)?node_modules/(?:\.bin/)?"
    r"(?P<runner>jest|vitest|mocha)(?:/\S*)?(?= |$)"
)
"""A runner that Node starts by its file."""
_LINT_CALL = compile_lazily(
    r"(?:npx +)?(?:xo|eslint|standard|prettier|biome|attw|publint|knip|depcheck)(?: [^|;]*)?"
    r"|(?:npm|pnpm|yarn|bun)(?: run)? (?:lint|format)(?:[:-][\w:-]+)?"
)
_TYPES_CALL = compile_lazily(
    r"(?:npx +)?(?:tsd|tstyche|(?:tsc|tsgo) +--noEmit)(?: [^|;]*)?"
    r"|(?:npm|pnpm|yarn|bun)(?: run)? (?:type-?check|types|test:types)(?:[:-][\w:-]+)?"
)
"""Commands before or after the tests in many scripts that do nothing for them."""
_COMPILER_CALL = compile_lazily(r"(?:npx +)?tsc(?: [^|;]*)?")
"""Produces what later parts run; after the tests, it only checks."""
_SCRIPT_CALL = compile_lazily(
    r"(?:npm|pnpm|yarn|bun)(?: +run)?(?: +(?:-s|--silent))?(?: +run)? +(?P<name>[\w:.-]+)"
)
_OWN_PROGRAM = compile_lazily(
    r"(?:npm|npx|pnpm|yarn|bun|bunx|node|rm|mkdir|cp|mv|make|sh|bash|\./\S*)\b"
)
MAX_SCRIPT_DEPTH = 4
_BUILD_STEP = compile_lazily(r"build|compile|tsc|babel|rollup|webpack|generate|prepare")
_TEST_SCRIPTS = ("test", "test:unit", "test-unit", "unit", "unit-test", "test:ci")


NPM_INSTALL = "npm install --no-audit --no-fund --no-package-lock --legacy-peer-deps"
"""For a project whose package manager may not be installed."""


def call_with_npm(line: str) -> str:
    """Return a command as npm runs it, from any package manager."""
    line = re.sub(r"\b(?:pnpm exec|bunx|yarn(?! run\b)) ", "npx ", line)
    return re.sub(r"\b(?:pnpm|yarn|bun) run ", "npm run ", line)


class PackageManager(Record):
    """The commands of a package manager."""

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
LOCK_FILES = {
    "pnpm-lock.yaml": "pnpm",
    "yarn.lock": "yarn",
    "bun.lock": "bun",
    "bun.lockb": "bun",
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
}


def probe_javascript_project(folder: ManifestFolder) -> DetectedProject | None:
    """Probe scripts first, as the project's own statement; then the tools it depends on."""
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

    def command(script_names: tuple[str, ...], *fallbacks: str) -> ProjectCommand | None:
        script = next((name for name in script_names if name in scripts), None)
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

    type_scripts = ("typecheck", "type-check", "types", "check-types", "check:types", "test:types")
    type_tools = ("tsc --noEmit",) if "tsconfig.json" in folder else ()
    return DetectedProject(
        kind="JavaScript",
        setup=(_setup_command(folder, manager),),
        test=_test_command(scripts, tools, manager),
        lint=command(("lint",))
        or _script_part(scripts, manager, "lint")
        or command((), "eslint .", "biome check ."),
        types=command(type_scripts)
        or _script_part(scripts, manager, "types")
        or command((), *type_tools),
        build=command(("build",)),
    )


def _find_package_manager(folder: ManifestFolder, package: dict[str, Any]) -> PackageManager:
    """Return the one that `packageManager` names, else by the lock file; npm by default."""
    manager_name = str(package.get("packageManager", "")).partition("@")[0]
    lock = next((name for name in LOCK_FILES if name in folder), None)
    return _MANAGERS.get(manager_name) or _MANAGERS[LOCK_FILES[lock] if lock else "npm"]


def _setup_command(folder: ManifestFolder, manager: PackageManager) -> ProjectCommand:
    lock = next(
        (name for name, owner in LOCK_FILES.items() if owner == manager.name and name in folder),
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
    """Return the runner itself if a script calls one, so that results can be read per test.

    Parts before it may build what is tested; parts that only check, and parts after it, are left
    out.
    """
    for name in _TEST_SCRIPTS:
        parts = _expand_script(scripts, name)
        calls = [_RUNNER_CALL.fullmatch(part) for part in parts]
        runner_indexes = [index for index, call in enumerate(calls) if call is not None]
        if not runner_indexes:
            continue
        lines = [
            _runner_line(call, manager) if call is not None else _call_locally(part, manager)
            for part, call in list(zip(parts, calls, strict=True))[: runner_indexes[-1] + 1]
            if call is not None or _find_checker_kind(part) is None
        ]
        return ProjectCommand(line=" && ".join(lines), source=f"{MANIFEST_FILE}, script {name!r}")
    script = scripts.get("test", "")
    if script and "no test specified" not in script:
        alias = _find_alias(scripts)
        line = "npm test" if manager.name == "npm" else f"{manager.run} test"
        line = f"{manager.run} {alias}" if alias else line
        return ProjectCommand(line=line, source=f"{MANIFEST_FILE}, script {alias or 'test'!r}")
    for tool, line in {"vitest": "vitest run", "jest": "jest", "mocha": "mocha"}.items():
        if tool in tools:
            return ProjectCommand(
                line=f"{manager.execute} {line}", source=f"{MANIFEST_FILE}, dependencies"
            )
    return None


def _find_alias(scripts: dict[str, str]) -> str | None:
    """Return the script that `test` only calls, so that its hooks, such as an audit, are skipped.

    Not if something is built before.
    """
    called = _SCRIPT_CALL.fullmatch(scripts.get("test", "").strip())
    if called is None or _BUILD_STEP.search(scripts.get("pretest", "")):
        return None
    return called["name"] if called["name"] in scripts else None


def _runner_line(call: re.Match[str], manager: PackageManager) -> str:
    # Without `run`, vitest waits for files to change.
    line = re.sub(r"\bvitest(?! run\b)( watch\b)?", "vitest run", call["line"].strip(), count=1)
    execute = "" if line.startswith("node ") else f"{manager.execute} "
    return f"{call['environment']}{execute}{line}".strip()


def _expand_script(scripts: dict[str, str], name: str, depth: int = MAX_SCRIPT_DEPTH) -> list[str]:
    """Return the commands of a script, with the scripts that it calls expanded."""
    if name not in scripts:
        return []
    before = _expand_script(scripts, f"pre{name}", depth - 1) if depth else []
    parts = [part.strip() for part in scripts[name].split("&&") if part.strip()]
    expanded = []
    for part in parts:
        called = _SCRIPT_CALL.fullmatch(part)
        inner_name = called["name"] if called and depth else name
        inner = _expand_script(scripts, inner_name, depth - 1) if inner_name != name else []
        starts_tests = any(_RUNNER_CALL.fullmatch(inner_part) for inner_part in inner)
        expanded += inner if starts_tests else [_name_runner(part)]
    return [*before, *expanded]


def _name_runner(part: str) -> str:
    """Return a command that starts a runner by name instead of by file."""

    def rename(match: re.Match[str]) -> str:
        options = match["options"].strip()
        return (
            f"NODE_OPTIONS={shlex.quote(options)} {match['runner']}" if options else match["runner"]
        )

    return _RUNNER_FILE.sub(rename, part, count=1)


def _find_checker_kind(part: str, *, is_after_tests: bool = False) -> str | None:
    """Return `lint` or `types` for a part of a test script that does nothing for the tests."""
    if _LINT_CALL.fullmatch(part):
        return "lint"
    is_compiled = is_after_tests and _COMPILER_CALL.fullmatch(part)
    return "types" if is_compiled or _TYPES_CALL.fullmatch(part) else None


def _script_part(
    scripts: dict[str, str], manager: PackageManager, kind: str
) -> ProjectCommand | None:
    """Return what the test script also checks, as a separate command."""
    for name in _TEST_SCRIPTS:
        parts = _expand_script(scripts, name)
        tests = [bool(_RUNNER_CALL.fullmatch(part)) for part in parts]
        lines = [
            _call_locally(part, manager)
            for index, part in enumerate(parts)
            if _find_checker_kind(part, is_after_tests=any(tests[:index])) == kind
        ]
        if lines and any(tests):
            source = f"{MANIFEST_FILE}, script {name!r}"
            return ProjectCommand(line=" && ".join(lines), source=source)
    return None


def _call_locally(part: str, manager: PackageManager) -> str:
    """Return a part of a script as called outside of one: the manager finds programs."""
    return part if _OWN_PROGRAM.match(part) else f"{manager.execute} {part}"


def _tool_package(line: str) -> str:
    program = line.split(maxsplit=1)[0]
    return {"biome": "@biomejs/biome", "tsc": "typescript"}.get(program, program)


# Go, Rust and Java: one tool does everything, and its manifest identifies it.


def probe_go_project(folder: ManifestFolder) -> DetectedProject | None:
    """Probe go.mod, or go.work with the modules it uses."""
    source = folder.find_first("go.mod", "go.work")
    if source is None:
        return None
    packages = "./..."
    if source == "go.work":
        module_paths = re.findall(
            r"^(?:use\s+|\s+)(\.\S*)\s*$", folder.read_text(source), re.MULTILINE
        )
        packages = (
            " ".join(f"{module_path.rstrip('/')}/..." for module_path in module_paths) or packages
        )
    config = folder.find_first(
        ".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json"
    )
    lint = ProjectCommand(line="golangci-lint run", source=config) if config else None
    # Vetted and compiled at the base commit, so that nobody has to wait for it again; `-exec=true`
    # runs no test. What does not compile is for the tests to say.
    setup = (
        "go mod download",
        f"go vet {packages} || true",
        f"go test -exec=true {packages} || true",
    )
    return DetectedProject(
        kind="Go",
        setup=tuple(ProjectCommand(line=line, source=source) for line in setup),
        test=ProjectCommand(line=f"go test {packages}", source=source),
        lint=lint or ProjectCommand(line=f"go vet {packages}", source=source),
        build=ProjectCommand(line=f"go build {packages}", source=source),
    )


def probe_rust_project(folder: ManifestFolder) -> DetectedProject | None:
    """Probe Cargo.toml; all members if it is a workspace."""
    source = "Cargo.toml"
    if source not in folder:
        return None
    workspace_option = " --workspace" if "workspace" in folder.read_toml(source) else ""

    def cargo(line: str) -> ProjectCommand:
        return ProjectCommand(line=f"cargo {line}", source=source)

    return DetectedProject(
        kind="Rust",
        setup=(cargo("fetch"), cargo(f"test{workspace_option} --no-run || true")),
        test=cargo(f"test{workspace_option}"),
        lint=cargo(f"clippy{workspace_option} --all-targets"),
        types=cargo(f"check{workspace_option} --all-targets"),
        build=cargo(f"build{workspace_option}"),
    )


def probe_java_project(folder: ManifestFolder) -> DetectedProject | None:
    """Probe Maven or Gradle, through the project's wrapper if it has one."""
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


# Make: targets with conventional names.

_TARGET = compile_lazily(r"^([A-Za-z0-9][\w ./-]*?)\s*::?(?!=)", re.MULTILINE)


def probe_makefile(folder: ManifestFolder) -> DetectedProject | None:
    """Probe the Makefile's targets for testing, linting, types and building."""
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
