"""JavaScript and TypeScript: package.json and what lies beside it."""

from __future__ import annotations

import re
from typing import Any

from closeloop.model.record import Record
from closeloop.tasks.projects.folder import Command, Folder, Project, table

SOURCE = "package.json"

_RUNNER = re.compile(
    r"(?P<environment>(?:\w+=\S+ +)*)"
    r"(?:(?:nyc|c8)(?: +-\S+)* +)?"
    r"(?P<line>(?:cross-env +(?:\w+=\S+ +)*)?"
    r"(?:jest|vitest|mocha|(?:node|tsx)(?= [^&|;]*--test(?: |$)))\b[^&|;]*)"
)
_CHECKER = re.compile(
    r"(?:npx +)?(?:xo|eslint|standard|prettier|tsd|tsc +--noEmit)(?: [^|;]*)?"
    r"|(?:npm|pnpm|yarn|bun)(?: run)? (?:lint|format|type-?check|types|test:types)(?:[:-][\w:-]+)?"
)
"""What comes before or after the tests in many scripts, and does nothing for them."""
_TEST_SCRIPTS = ("test", "test:unit", "test-unit", "unit", "unit-test", "test:ci")


class Manager(Record):
    """How a package manager is spoken to."""

    name: str
    install: str
    run: str
    execute: str


_MANAGERS = {
    "npm": Manager(name="npm", install="npm install", run="npm run", execute="npx"),
    "pnpm": Manager(
        name="pnpm", install="pnpm install --frozen-lockfile", run="pnpm run", execute="pnpm exec"
    ),
    "yarn": Manager(
        name="yarn", install="yarn install --frozen-lockfile", run="yarn run", execute="yarn"
    ),
    "bun": Manager(
        name="bun", install="bun install --frozen-lockfile", run="bun run", execute="bunx"
    ),
}
_LOCKS = {
    "pnpm-lock.yaml": "pnpm",
    "yarn.lock": "yarn",
    "bun.lock": "bun",
    "bun.lockb": "bun",
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
}


def look(folder: Folder) -> Project | None:
    """Scripts first, for they are the project's own words; then the tools it depends on."""
    if SOURCE not in folder:
        return None
    package = folder.json(SOURCE)
    scripts = {
        name: line for name, line in table(package, "scripts").items() if isinstance(line, str)
    }
    tools = {**table(package, "dependencies"), **table(package, "devDependencies")}
    manager = _manager(folder, package)

    def command(wanted: tuple[str, ...], *fallbacks: str) -> Command | None:
        script = next((name for name in wanted if name in scripts), None)
        if script:
            return Command(line=f"{manager.run} {script}", source=f"{SOURCE}, script {script!r}")
        for line in fallbacks:
            if _package_of(line) in tools:
                return Command(line=f"{manager.execute} {line}", source=f"{SOURCE}, dependencies")
        return None

    return Project(
        kind="JavaScript",
        setup=(_setup(folder, manager),),
        test=_test(scripts, tools, manager),
        lint=command(("lint",), "eslint .", "biome check ."),
        types=command(
            ("typecheck", "type-check", "types", "check-types", "check:types", "test:types"),
            *(("tsc --noEmit",) if "tsconfig.json" in folder else ()),
        ),
        build=command(("build",)),
    )


def _manager(folder: Folder, package: dict[str, Any]) -> Manager:
    """As `packageManager` says, else by the lock file; npm when nothing tells."""
    named = str(package.get("packageManager", "")).partition("@")[0]
    lock = next((name for name in _LOCKS if name in folder), None)
    return _MANAGERS.get(named) or _MANAGERS[_LOCKS[lock] if lock else "npm"]


def _setup(folder: Folder, manager: Manager) -> Command:
    lock = next(
        (name for name, owner in _LOCKS.items() if owner == manager.name and name in folder), None
    )
    if lock is None:
        return Command(line=f"{manager.name} install", source=SOURCE)
    if manager.name == "npm":
        return Command(line="npm ci", source=lock)
    if manager.name == "yarn" and ".yarnrc.yml" in folder:
        return Command(line="yarn install --immutable", source=".yarnrc.yml")
    return Command(line=manager.install, source=lock)


def _test(scripts: dict[str, str], tools: dict[str, Any], manager: Manager) -> Command | None:
    """The runner itself where a script is nothing but it: so its results can be read per test."""
    for name in _TEST_SCRIPTS:
        parts = [part.strip() for part in scripts.get(name, "").split("&&")]
        called = _RUNNER.fullmatch(
            " && ".join(part for part in parts if not _CHECKER.fullmatch(part))
        )
        if called:
            # Without `run`, vitest waits for files to change.
            line = re.sub(r"\bvitest(?! run\b)( watch\b)?", "vitest run", called["line"], count=1)
            execute = "" if line.startswith("node ") else f"{manager.execute} "
            whole = f"{called['environment']}{execute}{line}".strip()
            return Command(line=whole, source=f"{SOURCE}, script {name!r}")
    script = scripts.get("test", "")
    if script and "no test specified" not in script:
        line = "npm test" if manager.name == "npm" else f"{manager.run} test"
        return Command(line=line, source=f"{SOURCE}, script 'test'")
    for tool, line in {"vitest": "vitest run", "jest": "jest", "mocha": "mocha"}.items():
        if tool in tools:
            return Command(line=f"{manager.execute} {line}", source=f"{SOURCE}, dependencies")
    return None


def _package_of(line: str) -> str:
    program = line.split(maxsplit=1)[0]
    return {"biome": "@biomejs/biome", "tsc": "typescript"}.get(program, program)
