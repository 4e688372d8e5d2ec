"""Names that exist nowhere: not in the repository, not in the change, not in a library."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from pathlib import PurePosixPath

from msgspec.structs import replace

from closeloop.changes.kinds import is_test, language_of
from closeloop.changes.names.builtin import AMBIENT
from closeloop.changes.names.habits import Habits
from closeloop.changes.names.near import is_meant, is_misspelt, is_other_word, nearest, slips, split
from closeloop.changes.names.surroundings import SCRIPTS, Scope, Surroundings
from closeloop.changes.names.suspects import Suspect, Use, bound_as, bound_in, uses
from closeloop.changes.syntax import words
from closeloop.model.inspection import Import, Inspection, Module

LONGEST_LINE = 2000
MOST_SIBLINGS = 20
MOST_SEARCHED = 500
"""So often it is asked what was meant; after that nothing more is said."""
SHORTEST = 3
TYPED = ("java", "rust")
"""There constants of an enum, inherited, wildcard and generated names need no import."""
_QUOTED = re.compile(rb"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`")
_LAST = re.compile(r"[\w$]*$")
_CASE = re.compile(rb"\s*case\s+[^=.,)\s]")
_FIRST = re.compile(r"\w+")
_DECLARED = re.compile(
    rb"\b(?:namespace|module|enum|interface|type|record|union|static|mod|macro_rules!)\s{1,9}(\w+)"
)
"""What makes names in ways that not every grammar tells."""
_PASSED = re.compile(rb"\bexport\s{1,9}(?:type\s{1,9})?\{([^{}]{0,20000})\}\s{0,9}from\b")
"""What a script passes on from another, without making it its own."""
_CRATE = re.compile(r"[a-z]\w*")
_DOTTED = re.compile(r"\w+(?:\.\w+)*")


class Search:
    """One change's names."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self.around = Surroundings(inspection)
        self.habits = Habits(inspection, self.around)
        self.searched = 0
        self._modules: dict[str, Module] = {}
        self._made: dict[str, frozenset[str]] = {}
        self._bound: dict[str, frozenset[str]] = {}
        self._judged: dict[tuple[str | None, ...], Suspect | None] = {}

    def suspects(self) -> Iterator[Suspect]:
        for use in uses(self.inspection):
            module = use.target.module if use.target else None
            key = use.path, use.text, use.kind, use.receiver, module
            if key not in self._judged:
                told = len(use.text) >= SHORTEST and not use.text.startswith("__")
                # `aria-label` and the like are words of HTML.
                told = told and "-" not in use.text
                self._judged[key] = self.judged(use) if told else None
            if found := self._judged[key]:
                yield replace(found, use=use)

    def judged(self, use: Use) -> Suspect | None:
        """What speaks against one name, if anything does."""
        if use.receiver is None and use.kind in ("call", "name"):
            return self.bare(use)
        origin = use.target or self.origin(use)
        if origin is not None and use.kind != "keyword":
            scope = self.scope(use, origin)
            if scope is not None:
                return self.missing(use, scope)
        if self.exists(use.text, use) or self.is_offered(use):
            return None
        if use.target:
            return self.brought(use, use.target)
        origin = origin or self.path(use)
        foreign = origin is not None and self.around.is_foreign(use.language, origin)
        return self.member(use, foreign)

    def bare(self, use: Use) -> Suspect | None:
        """A name that is looked up in the file and what lies around it."""
        bound, own = self.bound(use.path), self.around.own(use.language)
        if use.text in bound or use.text in own or self.is_around(use):
            return None
        near = _fitting(use, self.likeliest(use, bound | own))
        if near is None and use.language not in TYPED:
            near = nearest(use.text, bound)
        if near:
            return Suspect(use=use, near=near, certain=True)
        near = _fitting(use, self.near(use))
        if self.is_ambient(use) or (near is None and use.language not in ("go", *SCRIPTS)):
            return None
        return Suspect(use=use, near=near)

    def is_ambient(self, use: Use) -> bool:
        """Whether what runs a script may have put it there, as test runners and pages do."""
        return use.language in SCRIPTS and (is_test(use.path) or len(split(use.text)) == 1)

    def is_around(self, use: Use) -> bool:
        """Whether a bare name may come from somewhere else than its file."""
        if use.language == "go":
            return self.is_in_package(use)
        known = self.exists(use.text, use) or self.is_offered(use)
        if use.language in SCRIPTS:
            ambient = use.text[0].isupper() and self.around.is_standard(use.language, use.text)
            ambient |= use.text in AMBIENT
            return ambient or self.is_element(use) or (known and self.is_global(use))
        return known and not (use.language == "python" and self.is_closed(use.path))

    def missing(self, use: Use, scope: Scope) -> Suspect | None:
        """A name that is looked up in a module whose names are all known."""
        if use.text in scope.names or (scope.own and self.is_made(use.text, use)):
            return None
        if use.language == "python" and not scope.own and self.exists(use.text, use):
            return None
        near = self.likeliest(use, scope.names)
        if near is None and use.language != "java":
            # Much of a Java package may be generated.
            near = nearest(use.text, scope.names)
        if near is None and (not scope.own or self.exists(use.text, use)):
            return None
        if use.language == "java" and (near is None or is_other_word(use.text, near)):
            return None
        return Suspect(use=use, near=near, where=scope.label, certain=near is not None)

    def member(self, use: Use, foreign: bool) -> Suspect | None:
        """A name that exists nowhere, looked up on something that is not known."""
        owner = _LAST.search(use.receiver or "") if foreign else None
        before = owner[0] if owner else ""
        does = self.habits.gives if use.kind == "keyword" else self.habits.looks_up
        here = self.around.words_of(use.path)
        found = self.slips(use, lambda name: does(before, name, use.path), SHORTEST)
        used = [name for name in found if self.is_likely(name, use, foreign)]
        if used:
            near = min(used, key=lambda name: name not in here)
            return Suspect(use=use, near=near, certain=not foreign and near in here)
        if foreign:
            return None
        found = [
            *self.slips(use, self.bound(use.path).__contains__, SHORTEST),
            *(one for one in self.slips(use, self.is_member(use)) if is_meant(use.text, one)),
        ]
        likely = next((name for name in found if self.is_likely(name, use, foreign)), None)
        return Suspect(use=use, near=likely) if likely else None

    def is_likely(self, name: str, use: Use, foreign: bool) -> bool:
        """Names of others often differ by an ending or their case only."""
        if not is_misspelt(use.text, name):
            return False
        alike = use.text.startswith(name) or name.startswith(use.text)
        alike |= use.text.replace("_", "").lower() == name.replace("_", "").lower()
        ours = not foreign and name in self.around.words_of(use.path)
        ours = ours and (not use.receiver or self.is_customary(name, use))
        return not is_other_word(use.text, name) and (ours or not alike)

    def is_customary(self, name: str, use: Use) -> bool:
        """Whether the repository makes it, or looks it up on what is called alike."""
        owner = _LAST.search(use.receiver or "")
        looked_up = owner is not None and self.habits.looks_up(owner[0], name, use.path)
        return looked_up or bool(self.inspection.index.defined(name))

    def brought(self, use: Use, target: Import) -> Suspect | None:
        """A name that is imported from a module that is not known."""
        module = self.module(use.path)
        bare = {
            one.text
            for one in module.names
            if one.kind in ("call", "name") and one.receiver is None
        }
        free = bare - self.bound(use.path) - self.around.own(use.language)
        near = next(iter(self.slips(use, free.__contains__)), None)
        if near and not is_other_word(use.text, near):
            return Suspect(use=use, near=near, certain=True)
        foreign = self.around.is_foreign(use.language, target)
        found = self.slips(use, self.habits.imports(target.module).__contains__)
        if not found and not foreign:
            found = self.slips(use, self.is_member(use))
        likely = next((name for name in found if self.is_likely(name, use, foreign)), None)
        return Suspect(use=use, near=likely) if likely else None

    def slips(self, use: Use, exists: Callable[[str], bool], shortest: int = 4) -> list[str]:
        """As long as there are few: a thousand unknown names are no slips."""
        self.searched += 1
        return slips(use.text, exists, shortest) if self.searched <= MOST_SEARCHED else []

    def likeliest(self, use: Use, names: Set[str]) -> str | None:
        """The name one slip away; of several one that the file has already."""
        found = self.slips(use, names.__contains__, SHORTEST)
        here = self.around.words_of(use.path)
        return next((name for name in found if name in here), found[0] if found else None)

    def is_member(self, use: Use) -> Callable[[str], bool]:
        """Whether something of that name is defined, in the same language."""
        family = self.around.family(use.language)

        def defined(name: str) -> bool:
            if name in self.defined or self.around.is_standard(use.language, name):
                return True
            return any(
                self.around.family(language_of(path)) == family
                for path, _ in self.inspection.index.defined(name)
            )

        return defined

    def near(self, use: Use) -> str | None:
        """What was probably meant, of all there is; best something in the same file."""
        here = self.around.words_of(use.path)
        found = self.slips(use, self.is_anything(use))
        return next((name for name in found if name in here), found[0] if found else None)

    def is_anything(self, use: Use) -> Callable[[str], bool]:
        around, language = self.around, use.language
        return lambda name: self.exists(name, use) or around.is_standard(language, name)

    def exists(self, name: str, use: Use) -> bool:
        """Whether the repository has the name, or the change makes it."""
        known = self.inspection.index.known(name) or name in self.before
        return known or self.is_made(name, use)

    def is_made(self, name: str, use: Use) -> bool:
        """Whether the change makes it: an import does not make what it names."""
        return name in self.defined and not (use.kind == "import" and name in self.imported)

    def is_offered(self, use: Use) -> bool:
        """Whether a library or something that we do not read has the name."""
        if self.around.is_standard(use.language, use.text):
            return True
        if use.text.encode() in self.around.other_words:
            return True
        module = self.module(use.path)
        return any(
            use.text in (self.around.installed.names(use.language, package) or ())
            for package in {self.around.package(one.module, use.language) for one in module.imports}
        )

    def is_in_package(self, use: Use) -> bool:
        """Whether another file of the same folder defines it, or it may come from anywhere."""
        folder = PurePosixPath(use.path).parent
        module = self.module(use.path)
        return any(one.alias == "." for one in module.imports) or any(
            PurePosixPath(path).parent == folder
            for path, _ in self.inspection.index.defined(use.text)
        )

    def is_element(self, use: Use) -> bool:
        """Whether it is one of HTML, which a parser may take for a name where code is broken."""
        content = self.inspection.sides.read("after", use.path) or b""
        return use.text.islower() and f"<{use.text}".encode() in content

    def is_closed(self, path: str) -> bool:
        """Whether everything that a file brings in stands in it."""
        return all(one.name != "*" for one in self.module(path).imports)

    def is_global(self, use: Use) -> bool:
        """Whether files nearby use it without having made it, or none of all makes it."""
        folder = str(PurePosixPath(use.path).parent)
        for path in self.around.folders.get(folder, ())[:MOST_SIBLINGS]:
            if use.text in self.around.words_of(path) and path not in self.inspection.added:
                module = self.inspection.index.module(path)
                if module and use.text not in bound_in(module):
                    return True
        places = self.inspection.index.defined(use.text)
        ambient = not places and self.inspection.index.known(use.text)
        return ambient or any(path.endswith(".d.ts") for path, _ in places)

    def origin(self, use: Use) -> Import | None:
        """The import that brought in what a name is looked up on."""
        found = _FIRST.match(use.receiver or "")
        if found is None or found[0] in self.made(use.path):
            return None
        module = self.module(use.path)
        return next(
            (one for one in module.imports if found[0] in bound_as(one, use.language)), None
        )

    def path(self, use: Use) -> Import | None:
        """Of a path in Rust, which needs no import, the crate that it begins with."""
        first = (use.receiver or "").partition("::")[0]
        if use.language != "rust" or not _CRATE.fullmatch(first) or self.exists(first, use):
            return None
        return Import(module=first, line=use.line)

    def scope(self, use: Use, origin: Import) -> Scope | None:
        """The module that a name is looked up in."""
        if use.target is None:
            if not _DOTTED.fullmatch(use.receiver or ""):
                return None
            rest = (use.receiver or "").partition(".")[2]
            inner = self.around.inner(origin, rest, use.language)
            if inner is None:
                return None
            origin = inner
        return self.around.scope(use.path, use.language, origin)

    def module(self, path: str) -> Module:
        if path not in self._modules:
            self._modules[path] = self.inspection.modules["after", path]
        return self._modules[path]

    @cached_property
    def changed(self) -> Sequence[str]:
        """Files with new lines."""
        return [
            path
            for side, path in self.inspection.modules
            if side == "after" and path in self.inspection.added
        ]

    def bound(self, path: str) -> frozenset[str]:
        """Every name that the file itself makes or brings in."""
        if path not in self._bound:
            captured = self.captured(path) if path.endswith(".py") else ()
            content = self.inspection.sides.read("after", path) or b""
            passed = b" ".join(_PASSED.findall(content)) if language_of(path) in SCRIPTS else b""
            found = (*_DECLARED.findall(content), *words(passed))
            declared = (one.decode("utf-8", "replace") for one in found)
            self._bound[path] = frozenset((*bound_in(self.module(path)), *captured, *declared))
        return self._bound[path]

    def captured(self, path: str) -> Iterator[str]:
        """Names in the patterns of Python's `match`, which give values to some of them."""
        lines = (self.inspection.sides.read("after", path) or b"").split(b"\n")
        depth, patterns = 0, set[int]()
        for number, line in enumerate(lines, 1):
            if depth > 0 or _CASE.match(line):
                patterns.add(number)
                opened = sum(map(line.count, (b"(", b"[", b"{")))
                depth += opened - sum(map(line.count, (b")", b"]", b"}")))
        return (name.text for name in self.module(path).names if name.line in patterns)

    def made(self, path: str) -> frozenset[str]:
        """Those that it makes itself."""
        if path not in self._made:
            module = self.module(path)
            self._made[path] = frozenset(bound_in(module, imports=False))
        return self._made[path]

    @cached_property
    def defined(self) -> Set[str]:
        """Names that added lines define, or give in a string."""
        found: set[str] = set()
        for path in self.changed:
            found |= self.bound(path)
            found.update(self.quoted(path))
        return found

    @cached_property
    def before(self) -> Set[str]:
        """Words that changed files had: a line that is changed says most of it again."""
        found: set[bytes] = set()
        for side, path in self.inspection.modules:
            if side == "before":
                found |= words(self.inspection.sides.read("before", path) or b"")
        return {word.decode("utf-8", "replace") for word in found}

    @cached_property
    def imported(self) -> Set[str]:
        """Names that the change only imports."""
        modules = [
            module for (side, _), module in self.inspection.modules.items() if side == "after"
        ]
        brought = {
            name for one in modules for imp in one.imports for name in bound_as(imp, one.language)
        }
        made = {name for one in modules for name in bound_in(one, imports=False)}
        return brought - made

    def quoted(self, path: str) -> Iterator[str]:
        """Words inside strings: by them names are made that no syntax shows."""
        used: dict[int, set[str]] = defaultdict(set)
        for name in self.module(path).names:
            # What stands in a string as code, as in Python's f"{name}", is no word of it.
            used[name.line].add(name.text)
        lines = (self.inspection.sides.read("after", path) or b"").split(b"\n")
        for line in self.inspection.added[path]:
            if line <= len(lines):
                written = lines[line - 1][:LONGEST_LINE]
                for text in _QUOTED.findall(written):
                    for word in words(text):
                        decoded = word.decode("utf-8", "replace")
                        if decoded not in used[line] or written.count(word) > 1:
                            yield decoded


def _fitting(use: Use, near: str | None) -> str | None:
    """The name, unless it is another one on purpose."""
    if near is None or is_other_word(use.text, near):
        return None
    return None if use.language in TYPED and near[0].isupper() != use.text[0].isupper() else near
