"""broken-layer: an import goes against the dependency direction of the repository's packages.

Which package uses which is declared (`check.layers`), or learned from the existing imports.
Go needs no such rule: its compiler rejects packages that import each other.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from closeloop.changes.file_kinds import classify_file, language_of
from closeloop.changes.quality.changed_file import (
    ChangedFile,
    is_example_file,
    list_changed_files,
    make_check_finding,
)
from closeloop.changes.risk.import_graph import ImportResolver
from closeloop.records.change import Inspection, SourceImport
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record
from closeloop.text.wording import matches_globs

rules = (
    Rule(
        name="broken-layer",
        version=1,
        about="An import reverses the direction of imports between two packages.",
        severity="warning",
        mode="context blindness",
        gates=True,
        thresholds={"importers": 5},
    ),
    Rule(
        name="bypassed-repository",
        version=1,
        about="A file uses the database directly, while similar files use a repository.",
        severity="warning",
        mode="context blindness",
        thresholds={"repositories": 2, "callers": 3},
    ),
)

MIN_IMPORTERS = 5
"""Minimum files of a package that use another, with none in return, to count as a direction."""
MIN_REPOSITORIES = 2
MIN_CALLERS = 3
"""Minimum modules that access the database, and files that import those, to count as a pattern."""
_DATABASE_CLIENTS = re.compile(
    r"sqlite3|aiosqlite|psycopg\d?|asyncpg|pymysql|MySQLdb|aiomysql|mysql|oracledb|cx_Oracle|pymongo"
    r"|motor|redis|boto3|aioboto3|sqlalchemy|sqlmodel|peewee|cassandra|elasticsearch|duckdb"
    r"|pg|mysql2|mongodb|mongoose|knex|better-sqlite3|ioredis|@prisma/client|typeorm|sequelize"
    r"|drizzle-orm|@aws-sdk/(?:client|lib)-dynamodb|database/sql|github\.com/jackc/pgx.*"
    r"|gorm\.io/gorm|github\.com/jmoiron/sqlx|go\.mongodb\.org/mongo-driver.*|java\.sql"
)
_HARMLESS_NAME = re.compile(r"(?i)\w*(?:error|exception|type|row)s?|exc|__version__")
_HARMLESS_MODULE = re.compile(r"\b(?:exc|exceptions|types)\b")
_REPOSITORY_PATH = re.compile(
    r"(?i)(?:^|[/_.-])(?:repositor(?:y|ies)|repos?|daos?|stores?|storage|persistence|databases?|db"
    r"|data_?access|gateways?|queries|crud|models?|entities|migrations?)(?=[/_.-])"
    r"|(?:Repository|Dao|Store)\.\w+$"
)


class _NewImport(Record):
    """An import that the change adds to a file."""

    file: ChangedFile
    line: SourceImport
    target: str | None
    """The file of the repository that it resolves to."""
    is_deferred: bool
    """Whether it is inside a function or block, so made deferred on purpose."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check the imports that the change adds; other files' imports are read only if needed."""
    added = _list_new_imports(inspection)
    findings: list[Finding] = []
    for new_import in added:
        finding = _find_declared_breach(new_import, inspection.settings.layers)
        if finding is not None:
            findings.append(finding)
    eager_imports = [new_import for new_import in added if not new_import.is_deferred]
    crossing = [
        new_import
        for new_import in eager_imports
        if _layer_pair(new_import.file.path, new_import.target) is not None
    ]
    clients = [
        new_import
        for new_import in eager_imports
        if new_import.target is None and _client_name(new_import.line)
    ]
    if (crossing and not inspection.settings.layers) or clients:
        imports = _imports_before(inspection)
        if not inspection.settings.layers:
            findings += _find_learned_breaches(crossing, imports)
        findings += _find_bypasses(clients, imports)
    return findings


def _list_new_imports(inspection: Inspection) -> list[_NewImport]:
    """Return imports on added lines that the file did not have before, even under an old path."""
    changed = [
        file
        for file in list_changed_files(inspection, "source")
        if file.after and not is_example_file(file.path) and file.old_path == file.path
    ]
    lines = {file.path: [*_new_import_lines(file)] for file in changed}
    if not any(lines.values()):
        return []
    resolver = ImportResolver(inspection.index.paths(), {})
    new_imports: list[_NewImport] = []
    for file in changed:
        for line in lines[file.path]:
            if file.after is None:
                continue
            targets = [*resolver.resolve_import(file.after.language, file.path, line)]
            text = file.line_at(line.line)
            new_imports.append(
                _NewImport(
                    file=file,
                    line=line,
                    target=targets[0] if targets else None,
                    is_deferred=text[:1].isspace() and not _is_continued(file, line.line),
                )
            )
    return new_imports


def _new_import_lines(file: ChangedFile) -> Iterator[SourceImport]:
    old = (
        {(old_import.module, old_import.name) for old_import in file.before.imports}
        if file.before
        else set()
    )
    for line in file.after.imports if file.after else ():
        if line.line in file.added and (line.module, line.name) not in old:
            yield line


def _is_continued(file: ChangedFile, line: int) -> bool:
    """Return whether an indented line continues a list of names in brackets."""
    return file.line_at(line).rstrip().endswith((",", ")")) or "import" not in file.line_at(line)


def _find_declared_breach(new_import: _NewImport, layers: Sequence[str]) -> Finding | None:
    """Return a finding if the import targets a higher layer; the first layer is the highest."""
    if new_import.target is None:
        return None
    layer_indexes = [
        next((index for index, glob in enumerate(layers) if matches_globs(path, [glob])), None)
        for path in (new_import.file.path, new_import.target)
    ]
    own, other = layer_indexes
    if own is None or other is None or other >= own:
        return None
    return make_check_finding(
        rules[0],
        f"{new_import.file.path} is in the layer {layers[own]} and imports {new_import.target} of "
        f"{layers[other]}, a higher layer (`check.layers`).",
        f"{new_import.file.path}:{new_import.line.line}",
        severity="error",
    )


def _layer_pair(path: str, target: str | None) -> tuple[str, str] | None:
    """Return the two packages at which the paths first differ; None unless both are folders."""
    if target is None or classify_file(target) != "source":
        return None
    source_parts, target_parts = PurePosixPath(path).parts, PurePosixPath(target).parts
    depth = 0
    while (
        depth < min(len(source_parts), len(target_parts)) - 1
        and source_parts[depth] == target_parts[depth]
    ):
        depth += 1
    if depth >= len(source_parts) - 1 or depth >= len(target_parts) - 1:
        return None
    return "/".join(source_parts[: depth + 1]), "/".join(target_parts[: depth + 1])


def _imports_before(inspection: Inspection) -> Mapping[str, Sequence[SourceImport]]:
    """Return what product code imported before the change, by path."""
    imports = {
        path: lines
        for path, lines in inspection.index.imports().items()
        if classify_file(path) == "source" and not is_example_file(path)
    }
    for file in inspection.files:
        module = inspection.modules.get(("before", file.old_path or file.path))
        if file.path in imports:
            imports[file.path] = module.imports if module else ()
    return imports


def _find_learned_breaches(
    crossing: Sequence[_NewImport], imports: Mapping[str, Sequence[SourceImport]]
) -> Iterator[Finding]:
    resolver = ImportResolver(imports.keys(), {})
    reported: set[tuple[str, str]] = set()
    importers: dict[str, Counter[tuple[str, str]]] = {}
    for new_import in crossing:
        pair = _layer_pair(new_import.file.path, new_import.target)
        if pair is None or (new_import.file.path, pair[1]) in reported:
            continue
        source, target = pair
        parent = source.rpartition("/")[0]
        if parent not in importers:
            importers[parent] = _count_importers(parent, imports, resolver)
        counts = importers[parent]
        chain = [] if counts[pair] else _find_direction(target, source, counts)
        if chain:
            reported.add((new_import.file.path, target))
            uses = ", whose files import ".join(f"{package}/" for package in chain[1:])
            yield make_check_finding(
                rules[0],
                f"{source}/ imports {target}/ for the first time, while "
                f"{counts[chain[0], chain[1]]} files of {target}/ import {uses}: keep the "
                "direction.",
                f"{new_import.file.path}:{new_import.line.line}",
                confidence=0.8,
            )


def _count_importers(
    parent: str, imports: Mapping[str, Sequence[SourceImport]], resolver: ImportResolver
) -> Counter[tuple[str, str]]:
    """Count the files of each package in a folder that import something from another one."""
    counts = Counter[tuple[str, str]]()
    for path, lines in imports.items():
        language = language_of(path)
        package = _package_in(parent, path)
        if language and package:
            targets = (
                _package_in(parent, target)
                for line in lines
                for target in resolver.resolve_import(language, path, line)
            )
            counts.update((package, target) for target in {*targets} - {None, package} if target)
    return counts


def _package_in(parent: str, path: str) -> str | None:
    """Return the package of a folder that a path lies in."""
    prefix = f"{parent}/" if parent else ""
    name, slash, _ = path.removeprefix(prefix).partition("/")
    return f"{prefix}{name}" if slash and path.startswith(prefix) else None


def _find_direction(start: str, end: str, counts: Counter[tuple[str, str]]) -> list[str]:
    """Return the shortest chain of packages of which each imports the next, by enough files and
    without an import in return; empty if there is none."""
    chains, seen = deque([[start]]), {start}
    while chains:
        chain = chains.popleft()
        if chain[-1] == end:
            return chain
        for (package, target), count in counts.items():
            is_directed = count >= MIN_IMPORTERS and not counts[target, package]
            if package == chain[-1] and is_directed and target not in seen:
                seen.add(target)
                chains.append([*chain, target])
    return []


def _client_name(line: SourceImport) -> str | None:
    """Return the database client that is imported for use; None for its errors or types only."""
    if _HARMLESS_NAME.fullmatch(line.name or "") or _HARMLESS_MODULE.search(line.module):
        return None
    module = line.module
    first = module.partition(".")[0]
    if _DATABASE_CLIENTS.fullmatch(module):
        return module
    return first if first and _DATABASE_CLIENTS.fullmatch(first) else None


def _find_bypasses(
    clients: Sequence[_NewImport], imports: Mapping[str, Sequence[SourceImport]]
) -> Iterator[Finding]:
    for new_import in clients:
        client = _client_name(new_import.line)
        if _REPOSITORY_PATH.search(new_import.file.path):
            continue
        users = [
            path
            for path, lines in imports.items()
            if path != new_import.file.path and any(_client_name(line) == client for line in lines)
        ]
        homes = [path for path in users if _REPOSITORY_PATH.search(path)]
        if len(homes) < MIN_REPOSITORIES or len(homes) < len(users):
            continue
        callers = _list_callers(homes, imports)
        if len(callers) >= MIN_CALLERS:
            home = homes[0].rpartition("/")[0] or homes[0]
            yield make_check_finding(
                rules[1],
                f"{new_import.file.path} uses `{client}` directly; {len(callers)} files such "
                f"as {callers[0]} use {home}: do the same.",
                f"{new_import.file.path}:{new_import.line.line}",
                confidence=0.8,
            )


def _list_callers(homes: Sequence[str], imports: Mapping[str, Sequence[SourceImport]]) -> list[str]:
    """Return files outside the repository modules that import one of them."""
    resolver, home_paths = ImportResolver(imports.keys(), {}), set(homes)
    callers = []
    for path, lines in imports.items():
        language = language_of(path)
        if language and not _REPOSITORY_PATH.search(path):
            targets = (
                target for line in lines for target in resolver.resolve_import(language, path, line)
            )
            if not home_paths.isdisjoint(targets):
                callers.append(path)
    return sorted(callers)
