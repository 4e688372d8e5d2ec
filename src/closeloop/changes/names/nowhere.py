"""Names that exist nowhere: not in the repository, not in the change, not in a library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from pathlib import PurePosixPath

from closeloop.changes.kinds import language_of
from closeloop.changes.names.near import nearest, slips
from closeloop.changes.names.surroundings import SCRIPTS, Scope, Surroundings
from closeloop.changes.names.suspects import Suspect, Use, bound_as, bound_in, uses
from closeloop.changes.syntax import words
from closeloop.model.inspection import Import, Inspection, Module

LONGEST_LINE = 2000
MOST_SIBLINGS = 20
_QUOTED = re.compile(rb"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`")
_FIRST = re.compile(r"\w+")
_DOTTED = re.compile(r"\w+(?:\.\w+)*")


class Search:
    """One change's names."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self.around = Surroundings(inspection)
        self._modules: dict[str, Module] = {}
        self._made: dict[str, frozenset[str]] = {}
        self._bound: dict[str, frozenset[str]] = {}

    def suspects(self) -> Iterator[Suspect]:
        for use in uses(self.inspection):
            if len(use.text) >= 3 and not use.text.startswith("__") and (found := self.judged(use)):
                yield found

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
        foreign = origin is not None and self.around.is_foreign(use.language, origin)
        return self.member(use, foreign)

    def bare(self, use: Use) -> Suspect | None:
        """A name that is looked up in the file and what lies around it."""
        bound = self.bound(use.path)
        if use.text in bound or self.around.is_own(use.language, use.text):
            return None
        known = self.exists(use.text, use) or self.is_offered(use)
        if use.language == "go":
            if self.is_in_package(use):
                return None
        elif use.language in SCRIPTS:
            if known and self.is_global(use):
                return None
        elif known and not (use.language == "python" and self.is_closed(use.path)):
            return None
        near = next(iter(slips(use.text, bound.__contains__)), None) or nearest(use.text, bound)
        if near:
            return Suspect(use=use, near=near, certain=True)
        found = self.near(use)
        if found is None and use.language not in ("go", *SCRIPTS):
            return None
        return Suspect(use=use, near=found[0] if found else None, certain=False)

    def missing(self, use: Use, scope: Scope) -> Suspect | None:
        """A name that is looked up in a module whose names are all known."""
        if use.text in scope.names or (scope.own and self.is_made(use.text, use)):
            return None
        if use.language == "python" and not scope.own and self.exists(use.text, use):
            return None
        near = nearest(use.text, scope.names)
        if near is None and (not scope.own or self.exists(use.text, use)):
            return None
        return Suspect(use=use, near=near, where=scope.label, certain=near is not None)

    def member(self, use: Use, foreign: bool) -> Suspect | None:
        """A name that exists nowhere, looked up on something that is not known."""
        here = list(slips(use.text, self.around.words_of(use.path).__contains__))
        used = [
            name
            for name in here
            if self.is_used(f"{use.receiver}.{name}" if foreign else f".{name}", use)
        ]
        if foreign:
            # Others' names often differ by an ending only.
            used = [
                name
                for name in used
                if not name.startswith(use.text) and not use.text.startswith(name)
            ]
            return Suspect(use=use, near=used[0]) if used else None
        if used:
            return Suspect(use=use, near=used[0], certain=True)
        near = next(iter(slips(use.text, self.is_member(use))), None)
        return Suspect(use=use, near=near) if near else None

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

    def near(self, use: Use) -> tuple[str, bool] | None:
        """What was probably meant, and whether it stands in the same file."""
        here = self.around.words_of(use.path)
        found = slips(use.text, self.is_anything(use))
        inside = [other for other in found if other in here]
        return ((inside or found)[0], bool(inside)) if found else None

    def is_anything(self, use: Use) -> Callable[[str], bool]:
        around, language = self.around, use.language
        return lambda name: self.exists(name, use) or around.is_standard(language, name)

    def exists(self, name: str, use: Use) -> bool:
        """Whether the repository has the name, or the change makes it."""
        return self.inspection.index.known(name) or self.is_made(name, use)

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

    def is_closed(self, path: str) -> bool:
        """Whether everything that a file brings in stands in it."""
        return all(one.name != "*" for one in self.module(path).imports)

    def is_global(self, use: Use) -> bool:
        """Whether files nearby use it without having made it."""
        folder = str(PurePosixPath(use.path).parent)
        for path in self.around.folders.get(folder, ())[:MOST_SIBLINGS]:
            if use.text in self.around.words_of(path) and path not in self.inspection.added:
                module = self.inspection.index.module(path)
                if module and use.text not in bound_in(module):
                    return True
        places = self.inspection.index.defined(use.text)
        return any(path.endswith(".d.ts") for path, _ in places)

    def is_used(self, written: str, use: Use) -> bool:
        """Whether lines of this file that are not new, or a file beside it, have that text."""
        pattern = re.compile(rb"(?<![\w$])" + re.escape(written.encode()) + rb"(?![\w$])")
        if written.startswith("."):
            pattern = re.compile(re.escape(written.encode()) + rb"(?![\w$])")
        folder = str(PurePosixPath(use.path).parent)
        beside = self.around.folders.get(folder, ())[:MOST_SIBLINGS]
        return any(
            pattern.search(self.old_text(path)) for path in dict.fromkeys((use.path, *beside))
        )

    def old_text(self, path: str) -> bytes:
        """A file without the lines that are new."""
        content: bytes = self.inspection.sides.read("after", path) or b""
        added = self.inspection.added.get(path)
        if not added:
            return content
        lines = enumerate(content.split(b"\n"), 1)
        return b"\n".join(line for at, line in lines if at not in added)

    def origin(self, use: Use) -> Import | None:
        """The import that brought in what a name is looked up on."""
        found = _FIRST.match(use.receiver or "")
        if found is None or found[0] in self.made(use.path):
            return None
        module = self.module(use.path)
        return next(
            (one for one in module.imports if found[0] in bound_as(one, use.language)), None
        )

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
            self._bound[path] = frozenset(bound_in(self.module(path)))
        return self._bound[path]

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
        lines = (self.inspection.sides.read("after", path) or b"").split(b"\n")
        for line in self.inspection.added[path]:
            if line <= len(lines):
                for text in _QUOTED.findall(lines[line - 1][:LONGEST_LINE]):
                    yield from (word.decode("utf-8", "replace") for word in words(text))
