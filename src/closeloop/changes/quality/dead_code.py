"""dead-code: code is added that nothing uses, that cannot be reached, or that is commented out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import PurePosixPath
from textwrap import dedent

from closeloop.changes.quality.changed_file import (
    ChangedFile,
    OldFunctions,
    find_old_function,
    index_old_functions,
    is_example_file,
    list_changed_files,
    make_check_finding,
)
from closeloop.changes.syntax import parse_module
from closeloop.records.change import (
    Inspection,
    Language,
    SourceFunction,
    SourceImport,
    SourceModule,
    SourceType,
)
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record
from closeloop.text.wording import INSTALL_CHECK_TOOLS

# Commented-out code: a part of dead-code.


MIN_COMMENTED_LINES = 3
"""Minimum consecutive lines of commented-out code."""
_CODE_LINE = re.compile(
    r"[;{}]\s*$|^\s*(?:return|raise|throw|import|from|def|class|if|for|while|else|elif|try|func|fn"
    r"|let|const|var)\b.*[:;{)\w]$|^\s*[\w.\[\]'\"]+\s*[-+*/:]?=\s*\S|^\s*[\w.]+\(.*\)[;,]?\s*$"
)
_EXAMPLE = re.compile(
    r"\b(?:examples?|e\.g\.|for instance|usage|for example|like this|such as|equivalent)\b|>>> ",
    re.IGNORECASE,
)
_LEAD_IN = re.compile(r"^\s*(?:#|//)+ ?[A-Z][a-z]*(?: [\w`\"'(),.-]+){2,}:\s*$", re.MULTILINE)
"""A sentence that ends in a colon: the following lines are an example."""
_WRAPPERS = {
    "go": "package p\nfunc f() {\n%s\n}\n",
    "java": "class A { void f() {\n%s\n} }\n",
    "rust": "fn f() {\n%s\n}\n",
}


def find_commented_code(file: ChangedFile, language: Language) -> Iterator[tuple[int, str]]:
    """Yield comment blocks that parse as code and look like it."""
    comment_start = re.compile(r"\s*#(?![!:])" if language == "python" else r"\s*//(?![/!])")
    for first, lines in file.added_blocks():
        start = 0
        while start < len(lines):
            end = start
            while end < len(lines) and comment_start.match(lines[end]):
                end += 1
            if end - start >= MIN_COMMENTED_LINES and not _is_example(lines[start:end]):
                block = [comment_start.sub("", line, count=1) for line in lines[start:end]]
                if _is_code(block, language):
                    yield (
                        first + start,
                        f"{end - start} lines of code are commented out: remove them.",
                    )
            start = max(end, start + 1)


def _is_example(comment: list[str]) -> bool:
    """Return whether the comment shows usage: it says so, or introduces it with a sentence."""
    text = "\n".join(comment)
    return _EXAMPLE.search(text) is not None or _LEAD_IN.search(text) is not None


def _is_code(block: list[str], language: Language) -> bool:
    nonblank = [line for line in block if line.strip()]
    if sum(_CODE_LINE.search(line) is not None for line in nonblank) < max(2, 0.7 * len(nonblank)):
        return False
    text = dedent("\n".join(block))
    return any(
        not parse_module(language, source.encode()).broken_lines
        for source in (text, _WRAPPERS.get(language, "%s") % text)
    )


# Unreachable statements.

_END_KEYWORDS = {
    "return_statement": "return",
    "raise_statement": "raise",
    "throw_statement": "throw",
    "break_statement": "break",
    "continue_statement": "continue",
}
_LANGUAGES = {"python": "python", "javascript": "javascript", "typescript": "typescript",
              "tsx": "tsx", "go": "go"}  # fmt: skip
"""Languages checked here; the compilers of the others report it themselves."""
_ALLOWED_AFTER_END = frozenset(
    {"function_declaration", "generator_function_declaration", "class_declaration", "comment",
     "break_statement", "labeled_statement", "type_alias_declaration", "interface_declaration",
     "empty_statement"}
)  # fmt: skip
"""Statements allowed there: declarations for the whole block, or the end of a returning case."""
_BLOCKS = frozenset({"block", "statement_block", "statement_list"})
MAX_TEXT_CHARS = 1_000_000


def find_unreachable_code(file: ChangedFile) -> Iterator[tuple[int, str]]:
    """Yield the first unreachable line, if it or the statement before it is new."""
    language = _LANGUAGES.get(file.after.language) if file.after else None
    text = "\n".join(file.lines)
    if language is None or len(text) > MAX_TEXT_CHARS:
        return
    from ast_grep_py import SgRoot

    kinds = [kind for kind in _END_KEYWORDS if language == "python" or kind != "raise_statement"]
    kinds = [kind for kind in kinds if language not in ("python", "go") or kind[:5] != "throw"]
    for node in SgRoot(text, language).root().find_all(any=[{"kind": kind} for kind in kinds]):
        following = node.next()
        while following is not None and (
            not following.is_named() or following.kind() in _ALLOWED_AFTER_END
        ):
            following = following.next()
        parent = node.parent()
        if following is None or parent is None or parent.kind() not in _BLOCKS:
            continue
        line = following.range().start.line + 1
        if "yield" in following.text() or not {line, node.range().start.line + 1} & file.added:
            continue
        yield (
            line,
            f"This is unreachable: the line before it ends with `{_END_KEYWORDS[node.kind()]}`.",
        )


# Imports, private functions and private types that nothing uses.

LineMessage = tuple[int, str]

_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_SCRIPTS = ("javascript", "typescript", "tsx")
_ENTRY_STEMS = frozenset({"__init__", "index", "mod", "lib", "conftest", "main", "apps"})
_PLAIN_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "property", "cached_property", "functools.cache", "cache",
     "functools.lru_cache", "lru_cache", "contextmanager", "contextlib.contextmanager"}
)  # fmt: skip
"""Decorators that do not register the function; others may pass it on."""
_HOOKS = frozenset({"readObject", "writeObject", "readResolve", "writeReplace", "main", "init"})


def count_added_words(inspection: Inspection) -> Counter[str]:
    """Count every word of all added lines, in any file."""
    added_counts: Counter[str] = Counter()
    for file in list_changed_files(inspection):
        for number in file.added:
            added_counts.update(_WORD.findall(file.line_at(number)))
    return added_counts


def find_unused_definitions(
    file: ChangedFile, module: SourceModule, added_counts: Counter[str], inspection: Inspection
) -> Iterator[LineMessage]:
    """Yield unused definitions. A mere mention counts as a use, so what remains is certain."""
    word_counts = Counter(word for line in file.lines for word in _WORD.findall(line[:2000]))
    yield from _unused_imports(file, module, word_counts)
    yield from _unused_definitions(file, module, added_counts, inspection)


def _unused_imports(
    file: ChangedFile, module: SourceModule, word_counts: Counter[str]
) -> Iterator[LineMessage]:
    if module.language in ("go", "rust") or PurePosixPath(file.path).stem in _ENTRY_STEMS:
        # Go's compiler reports it; in Rust a trait is used without its name.
        return
    old = (
        {(old_import.module, old_import.name) for old_import in file.before.imports}
        if file.before
        else set()
    )
    for source_import in module.imports:
        name = source_import.alias or source_import.name or source_import.module.partition(".")[0]
        line = file.line_at(source_import.line)
        if (
            source_import.line not in file.added
            or (source_import.module, source_import.name) in old
        ):
            continue
        if name in ("*", "React") or name.startswith("_") or source_import.module == "__future__":
            continue
        if not _is_used_locally(source_import, file, module) or not _WORD.fullmatch(name):
            continue
        if word_counts[name] <= _WORD.findall(line).count(name):
            yield source_import.line, f"`{name}` is imported but not used."


def _is_used_locally(source_import: SourceImport, file: ChangedFile, module: SourceModule) -> bool:
    """Return whether it is at the top of the file, and only for use in it."""
    line = file.line_at(source_import.line)
    if source_import.alias == source_import.name and source_import.alias is not None:
        return False
    if module.language in _SCRIPTS:
        binds_name = source_import.name is not None or source_import.alias is not None
        return (
            binds_name
            and not re.match(r"\s*export\b", line)
            and not _is_exported(source_import, file)
        )
    if module.language == "python":
        if "#" in line:
            return False
        for number in range(source_import.line, max(source_import.line - 100, 0), -1):
            if re.match(r"\s*(?:from|import)\b", file.line_at(number)):
                return not file.line_at(number)[:1].isspace()
        return False
    return True


def _is_exported(source_import: SourceImport, file: ChangedFile) -> bool:
    """Return whether it is part of an `export { … } from` over several lines."""
    lines_above = (
        file.line_at(number)
        for number in range(source_import.line, max(source_import.line - 100, 0), -1)
    )
    start = next((line for line in lines_above if re.match(r"\s*(?:import|export)\b", line)), "")
    return start.lstrip().startswith("export")


def _unused_definitions(
    file: ChangedFile, module: SourceModule, added_counts: Counter[str], inspection: Inspection
) -> Iterator[LineMessage]:
    if module.language in _SCRIPTS and not (
        module.imports or any("export" in x for x in file.lines)
    ):
        # A script of a page: its functions may be called from there.
        return
    free = [function for function in module.functions if _is_free(function, module)]
    plain_types = [type_ for type_ in module.types if not type_.bases]
    definitions: list[SourceFunction | SourceType] = [*free, *plain_types]
    for definition in definitions:
        if (
            definition.public
            or definition.first_line not in file.added
            or not _has_own_declaration(definition, file, module)
        ):
            continue
        own_lines = range(definition.first_line, definition.last_line + 1)
        own_count = sum(
            _WORD.findall(file.line_at(number)).count(definition.name)
            for number in own_lines
            if number in file.added
        )
        if added_counts[definition.name] <= own_count and not _is_mentioned_elsewhere(
            definition.name, added_counts, inspection
        ):
            yield definition.first_line, f"Nothing uses `{definition.qualified}`."


def _has_own_declaration(
    definition: SourceFunction | SourceType, file: ChangedFile, module: SourceModule
) -> bool:
    """Return whether it has its own declaration and its name follows no convention."""
    name, line = definition.name, file.line_at(definition.first_line)
    if name.startswith("__") or name in _HOOKS or not _WORD.fullmatch(name):
        return False
    if module.language in _SCRIPTS:
        return bool(
            re.search(rf"\b(?:function\*?|const|let|var|class)\s+{re.escape(name)}\b", line)
        )
    if module.language == "java":
        return "private " in line
    if module.language == "rust":
        return definition.qualified == name
    return True


def _is_free(function: SourceFunction, module: SourceModule) -> bool:
    """Return whether no decorator registers it and no base class requires it."""
    plain = {decorator.partition("(")[0] for decorator in function.decorators} <= _PLAIN_DECORATORS
    owner = function.qualified.rpartition(".")[0]
    owner_type = next((type_ for type_ in module.types if type_.qualified == owner), None)
    return plain and not (owner_type and owner_type.bases)


def _is_mentioned_elsewhere(name: str, added_counts: Counter[str], inspection: Inspection) -> bool:
    """Return whether the name, or a prefix to build it from (`_do_` for `_do_get`), is
    elsewhere."""
    parts = [
        name[: index + 1] for index, letter in enumerate(name[:-1]) if letter == "_" and index > 0
    ]
    return any(inspection.index.known(part) for part in (name, *parts)) or any(
        added_counts[part] for part in parts
    )


# Variables and parameters that a function never reads.

_ASSIGNED_NAME = r"([A-Za-z_$][\w$]*)\s*(?::[^=]{1,60})?=(?![=>])"
_SCRIPT_ASSIGNMENT = re.compile(r"\s*(?:const|let|var)\s+" + _ASSIGNED_NAME)
_PYTHON_ASSIGNMENT = re.compile(r"\s*" + _ASSIGNED_NAME)
_READS_ALL = frozenset({"locals", "vars", "eval", "exec", "global", "arguments"})
_STUB = re.compile(r"pass$|\.\.\.$|raise NotImplementedError|return NotImplemented|.*\"\"\"$")


class _ModuleUses(Record):
    """How a file uses its names."""

    assigned: frozenset[tuple[int, str]]
    """Where each name is assigned: line and name."""
    values: frozenset[str]
    """Names passed as values, not only called."""
    in_types: frozenset[int]
    """Lines of types, whose fields may be read elsewhere."""


def find_unused_locals(
    file: ChangedFile, module: SourceModule, before: OldFunctions
) -> Iterator[LineMessage]:
    """Yield names that occur only once in their function, where they are assigned."""
    if module.language in ("go", "java", "rust"):
        # Their compilers and linters report it.
        return
    uses: _ModuleUses | None = None
    for function in module.functions:
        function_lines = range(function.first_line, function.last_line + 1)
        if file.added.isdisjoint(function_lines):
            continue
        uses = uses or _collect_uses(module)
        word_counts = Counter(
            word for number in function_lines for word in _WORD.findall(file.line_at(number))
        )
        if _READS_ALL.isdisjoint(word_counts):
            yield from _unused_variables(file, function, word_counts, uses)
            if module.language == "python":
                yield from _unused_parameters(file, function, word_counts, uses, before)


def _collect_uses(module: SourceModule) -> _ModuleUses:
    return _ModuleUses(
        assigned=frozenset(
            (name.line, name.text) for name in module.names if name.kind == "definition"
        ),
        values=frozenset(
            name.text for name in module.names if name.kind not in ("call", "definition")
        ),
        in_types=frozenset(
            number
            for type_ in module.types
            for number in range(type_.first_line, type_.last_line + 1)
        ),
    )


def _unused_variables(
    file: ChangedFile, function: SourceFunction, word_counts: Counter[str], uses: _ModuleUses
) -> Iterator[LineMessage]:
    pattern = (
        _PYTHON_ASSIGNMENT if file.path.endswith((".py", ".pyi", ".pyw")) else _SCRIPT_ASSIGNMENT
    )
    is_method = function.first_line in uses.in_types
    for number in range(function.first_line + 1, function.last_line + 1):
        match = pattern.match(file.line_at(number)) if number in file.added else None
        if match is None or word_counts[match[1]] > 1 or match[1].startswith("_"):
            continue
        if (number, match[1]) not in uses.assigned or match[1] in map(
            _parameter_name, function.parameters
        ):
            continue
        if is_method or number not in uses.in_types:
            yield number, f"`{match[1]}` is assigned but not used."


def _unused_parameters(
    file: ChangedFile,
    function: SourceFunction,
    word_counts: Counter[str],
    uses: _ModuleUses,
    past: OldFunctions,
) -> Iterator[LineMessage]:
    """Yield new unused parameters of plain functions that are only called, never passed on."""
    if "." in function.qualified or function.decorators or function.name in uses.values:
        return
    before = find_old_function(past, file, function)
    if (before is None and function.public) or _STUB.match(
        file.line_at(function.last_line).strip()
    ):
        return
    old = set(map(_parameter_name, before.parameters)) if before else set()
    for name in map(_parameter_name, function.parameters):
        if name and name not in old and word_counts[name] == 1:
            yield function.first_line, f"`{function.name}` does not use its parameter `{name}`."


def _parameter_name(parameter: str) -> str | None:
    """Return its name; None for variadic ones, or if `_` marks it as unused."""
    match = re.match(r"[A-Za-z]\w*", parameter)
    return match[0] if match and match[0] not in ("self", "cls", "args", "kwargs") else None


rules = (
    Rule(
        name="dead-code",
        version=2,
        about="Added code is unused or unreachable.",
        severity="warning",
    ),
)


MAX_FINDINGS = 10
"""Maximum findings per file: with more, the file is unfinished."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check for dead code that is not public, no hook and no override."""
    findings: list[Finding | Unmeasured] = []
    has_ast_grep = find_spec("ast_grep_py") is not None
    added_counts: Counter[str] | None = None
    before = index_old_functions(inspection)
    for file in list_changed_files(inspection, "source"):
        if file.after is None or file.after.broken_lines or is_example_file(file.path):
            continue
        if added_counts is None:
            added_counts = count_added_words(inspection)
        messages = [
            *find_unused_definitions(file, file.after, added_counts, inspection),
            *find_unused_locals(file, file.after, before),
            *(find_unreachable_code(file) if has_ast_grep else ()),
        ]
        findings += [
            make_check_finding(rules[0], message, f"{file.path}:{line}", confidence=0.9)
            for line, message in messages[:MAX_FINDINGS]
        ]
        findings += [
            make_check_finding(
                rules[0], message, f"{file.path}:{line}", severity="info", confidence=0.7
            )
            for line, message in find_commented_code(file, file.after.language)
        ]
    if added_counts is not None and not has_ast_grep:
        reason = f"finding code after a return needs ast-grep: {INSTALL_CHECK_TOOLS}"
        findings.append(Unmeasured(rule=rules[0].name, reason=reason))
    return findings
