"""How good is the check of names? Real commits, as they are and with one name made up.

    python quality/names.py [--commits N] [--mutants N] [--tell] REPOSITORY …

REPOSITORY: a git folder, bare or not, or a folder of such. Of each the last commits without merges
that add names are checked as they are: whatever is found there counts as a false alarm. Then one
name on an added line is turned into another that exists nowhere; it must be found on that line,
and the real name told.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from closeloop.changes import names
from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.names.suspect_names import is_test_input, list_standard_names
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.changes.syntax import extract_words
from closeloop.records.change import Inspection
from closeloop.records.errors import BadInput
from closeloop.records.estimate import Rate, pool_rates, wilson_rate
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings

COMMITS, MUTANTS = 40, 3
LARGEST = 100
"""Changes of more files are moves and reformattings, not work."""
SHORTEST = 4
"""Shorter names are a slip away from too many others, for a reader too."""
_PAIRS = """
get:fetch set:assign add:append remove:delete delete:remove make:create create:make find:search
list:items name:title text:string value:content path:location file:document key:identifier
error:failure parse:decode read:load write:save size:length start:begin end:finish test:verify
is:has has:contains type:kind item:element data:payload args:arguments options:settings
index:position count:number
"""
SYNONYMS = dict(pair.split(":") for pair in _PAIRS.split())
OPTION = re.compile(r"(?<![\w-])--([a-z][\w-]{3,})")
KEY = re.compile(r"^\s*([A-Za-z][\w-]{3,})\s*[=:]")


class Spot(Record):
    """A name on an added line."""

    path: str
    line: int
    kind: str
    text: str
    language: str
    decidable: bool
    """Whether the real name stands in the repository before, or in the language. What other
    tools take, as options and keys, never counts as such."""


class Mutant(Record):
    """A name that was made up, and what became of it."""

    commit: str
    spot: Spot
    made: str
    how: str
    found: bool
    named: bool
    """Whether the real name was told."""
    said: str | None = None


class Score(Record):
    """What came out for one repository."""

    repository: str
    commits: int
    flagged: tuple[tuple[str, str], ...]
    """Commit and message."""
    mutants: tuple[Mutant, ...]

    @property
    def alarms(self) -> Rate | None:
        return wilson_rate(len({commit for commit, _ in self.flagged}), self.commits)


def score(repository: Path, cache: Path, *, commits: int, mutants: int) -> Score:
    """Walk back through a repository."""
    seen, flagged, made = 0, [], list[Mutant]()
    for commit in _commits(repository):
        if seen == commits:
            break
        with _opened(repository, cache, ChangeQuery(range=commit)) as inspection:
            spots = list(_spots(inspection)) if inspection else []
            if inspection is None or not spots:
                continue
            seen += 1
            flagged += [(commit, one.message) for one in _found(inspection)]
            chance = random.Random(commit)  # noqa: S311
            chosen = list(_chosen(spots, inspection, chance, mutants))
        for spot, name, how in chosen:
            made += _checked(repository, cache, commit, (spot, name, how))
    return Score(
        repository=_name(repository), commits=seen, flagged=tuple(flagged), mutants=tuple(made)
    )


def _commits(repository: Path) -> list[str]:
    command = ["rev-list", "--first-parent", "--no-merges", "--min-parents=1", "-n", "2000", "HEAD"]
    return _git(repository, *command).decode().split()


def _name(repository: Path) -> str:
    own = repository.resolve()
    return own.parent.name if own.name in ("repo", ".git") else own.name


def _git(repository: Path, *arguments: str) -> bytes:
    command = ["git", "-c", "core.quotepath=off", "-C", str(repository), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


@contextmanager
def _opened(repository: Path, cache: Path, wanted: ChangeQuery) -> Iterator[Inspection | None]:
    """None for a change that is none, or too large."""
    settings = CheckSettings()
    with ExitStack() as stack:
        try:
            sides = stack.enter_context(open_sides(repository, wanted))
        except BadInput:
            yield None
            return
        index = stack.enter_context(open_index(sides, cache / _name(repository), settings))
        small = len(sides.change.files) <= LARGEST
        yield inspect_change(sides, index, settings=settings) if small else None


def _found(inspection: Inspection) -> list[Finding]:
    return [
        one
        for one in names.check(inspection)
        if isinstance(one, Finding) and one.severity in ("error", "warning")
    ]


def _spots(inspection: Inspection) -> Iterator[Spot]:
    """Names on added lines that stand there once, so that it is clear which is meant."""
    for file in inspection.files:
        if is_test_input(file.path):
            continue
        module = inspection.modules.get(("after", file.path))
        added = inspection.added.get(file.path, frozenset())
        content = inspection.sides.read("after", file.path) or b""
        lines = content.decode("utf-8", "replace").split("\n")
        if module is None:
            yield from _settings(inspection, file.path, lines)
            continue
        used = {(one.line, one.text, one.kind) for one in module.names if one.kind != "definition"}
        used |= {(one.line, one.name, "import") for one in module.imports if one.name}
        for line, text, kind in sorted(used):
            alone = (
                line <= len(lines)
                and len(re.findall(rf"\b{re.escape(text)}\b", lines[line - 1])) == 1
            )
            if line in added and len(text) >= SHORTEST and text.isidentifier() and alone:
                known = inspection.index.known(text) or text in list_standard_names(module.language)
                yield Spot(
                    path=file.path,
                    line=line,
                    kind=kind,
                    text=text,
                    language=module.language,
                    decidable=known,
                )


def _settings(inspection: Inspection, path: str, lines: list[str]) -> Iterator[Spot]:
    """Options in scripts, and keys of configuration."""
    script = path.endswith((".sh", ".yml", ".yaml", "Makefile"))
    table = path.endswith((".toml", ".cfg", ".ini"))
    for line in sorted(inspection.added.get(path, ())):
        text = lines[line - 1] if line <= len(lines) else ""
        found = OPTION.findall(text) if script else KEY.findall(text)[:1] if table else []
        for name in found:
            if text.count(name) == 1:
                yield Spot(
                    path=path,
                    line=line,
                    kind="option" if script else "key",
                    text=name,
                    language="settings",
                    decidable=False,
                )


def _chosen(
    spots: Sequence[Spot], inspection: Inspection, chance: random.Random, most: int
) -> Iterator[tuple[Spot, str, str]]:
    """A few of them, of as many kinds as there are, each with its made-up name."""
    by_kind: dict[str, list[Spot]] = {}
    for spot in chance.sample(list(spots), len(spots)):
        by_kind.setdefault(spot.kind, []).append(spot)
    left = most
    while left and by_kind:
        for kind in list(by_kind):
            spot = by_kind[kind].pop()
            if not by_kind[kind]:
                del by_kind[kind]
            options = [one for one in _near(spot.text, chance) if _is_new(one[0], spot, inspection)]
            if options and left:
                left -= 1
                yield spot, *chance.choice(options)


def _near(name: str, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Near misses, as a person or a model would make them."""
    at = chance.randrange(1, len(name) - 1)
    yield name[:at] + name[at + 1] + name[at] + name[at + 2 :], "swapped"
    yield name[:at] + name[at + 1 :], "dropped"
    yield name.removesuffix("s") if name.endswith("s") else f"{name}s", "plural"
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[\W_]+|\d+", name)
    for number, part in enumerate(parts):
        if other := SYNONYMS.get(part.lower()):
            other = other.capitalize() if part[0].isupper() else other
            yield "".join([*parts[:number], other, *parts[number + 1 :]]), "synonym"
            break
    if "_" in name.strip("_") and name.islower():
        first, *rest = name.strip("_").split("_")
        yield first + "".join(word.capitalize() for word in rest), "case"
    elif re.search(r"[a-z][A-Z]", name):
        yield re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(), "case"


def _is_new(name: str, spot: Spot, inspection: Inspection) -> bool:
    if spot.language == "settings":
        return name.encode() not in extract_words(inspection.sides.read("after", spot.path) or b"")
    language = inspection.modules["after", spot.path].language
    return (
        name != spot.text
        and not inspection.index.known(name)
        and name not in list_standard_names(language)
        and not re.search(rf"\b{re.escape(name)}\b", inspection.change.patch)
    )


def _checked(
    repository: Path, cache: Path, commit: str, made: tuple[Spot, str, str]
) -> Iterator[Mutant]:
    spot, name, how = made
    patch = _git(repository, "diff", "--binary", "--full-index", f"{commit}^1", commit)
    with tempfile.NamedTemporaryFile(suffix=".patch") as file:
        changed = _mutated(patch, spot, name)
        if changed is None:
            return
        file.write(changed)
        file.flush()
        wanted = ChangeQuery(patch=Path(file.name), base=f"{commit}^1")
        with _opened(repository, cache, wanted) as inspection:
            told = _found(inspection) if inspection else []
    place = f"{spot.path}:{spot.line}"
    there = [one.message.replace("`--", "`") for one in told if place in one.places]
    here = [one for one in there if f"`{name}`" in one]
    yield Mutant(
        commit=commit,
        spot=spot,
        made=name,
        how=how,
        found=bool(here),
        said=here[0] if here else None,
        named=any(f"did you mean `{spot.text}`" in one for one in here),
    )


def _mutated(patch: bytes, spot: Spot, name: str) -> bytes | None:
    """The patch with another name on that line."""
    lines = patch.split(b"\n")
    path, at = b"", 0
    for number, line in enumerate(lines):
        if line.startswith(b"+++ ") and lines[number - 1].startswith(b"--- "):
            path = line[6:].rstrip(b"\t")
        elif line.startswith(b"@@ ") and (start := re.search(rb" \+(\d+)", line)):
            at = int(start[1]) - 1
        elif line[:1] in (b"+", b" "):
            at += 1
            if path == spot.path.encode() and at == spot.line and line[:1] == b"+":
                word = rb"(?<![\w$])" + re.escape(spot.text.encode()) + rb"(?![\w$])"
                lines[number] = re.sub(word, name.encode(), line, count=1)
                return b"\n".join(lines) if lines[number] != line else None
    return None


def table(scores: Sequence[Score]) -> str:
    """What was reached, by repository."""
    every = [mutant for one in scores for mutant in one.mutants]
    alarms = pool_rates(*(one.alarms for one in scores))
    rows = [(one.repository, one.commits, one.alarms, one.mutants) for one in scores]
    rows.append(("all", sum(one.commits for one in scores), alarms, every))
    return "\n".join(
        (
            "| repository | commits | flagged | found | found, if decidable | real name told |",
            "| --- | --- | --- | --- | --- | --- |",
            *(
                f"| {name} | {commits} | {_told(share)} | {_shares(mutants)} |"
                for name, commits, share, mutants in rows
            ),
        )
    )


def groups(scores: Sequence[Score], by: str) -> str:
    """The same by kind of name, by what was done to it, or by language."""
    every = [mutant for one in scores for mutant in one.mutants]
    found: dict[str, list[Mutant]] = {}
    for mutant in every:
        key = mutant.how if by == "how" else getattr(mutant.spot, by)
        found.setdefault(key, []).append(mutant)
    rows = [f"| {by} | found | found, if decidable | real name told |", "| --- | --- | --- | --- |"]
    rows += [f"| {key} | {_shares(found[key])} |" for key in sorted(found)]
    return "\n".join(rows)


def _shares(mutants: Sequence[Mutant]) -> str:
    decidable = [one for one in mutants if one.spot.decidable]
    found = [one for one in mutants if one.found]
    return " | ".join(
        (
            _told(wilson_rate(len(found), len(mutants))),
            _told(wilson_rate(sum(one.found for one in decidable), len(decidable))),
            _told(wilson_rate(sum(one.named for one in found), len(found))),
        )
    )


def _told(share: Rate | None) -> str:
    if share is None:
        return "–"
    return f"{share.value:.3f} of {share.of} ({share.low:.3f}–{share.high:.3f})"


def repositories(folders: Sequence[Path]) -> list[Path]:
    """Git folders among these, and in them."""
    found = []
    for folder in folders:
        inside = [folder, *sorted(folder.glob("*")), *sorted(folder.glob("*/*"))]
        there = [one for one in inside if (one / "HEAD").is_file() or (one / ".git").exists()]
        found += there[:1] if there[:1] == [folder] else there
    return found


def report(scores: Sequence[Score]) -> str:
    """All tables."""
    return "\n\n".join([table(scores), *(groups(scores, by) for by in ("language", "kind", "how"))])


def lapses(score: Score) -> Iterator[str]:
    """Every false alarm and miss, one a line."""
    for commit, message in score.flagged:
        yield f"ALARM {score.repository} {commit[:10]} {message}"
    for one in score.mutants:
        if not one.named:
            what = "UNNAMED" if one.found else "MISSED"
            where = f"{score.repository} {one.commit[:10]} {one.spot.path}:{one.spot.line}"
            how = f"{one.spot.kind} {one.spot.text} → {one.made} ({one.how})"
            yield f"{what} {where} {how} decidable={one.spot.decidable} {one.said or ''}"


def measured(
    folders: Sequence[Path], *, commits: int = COMMITS, mutants: int = MUTANTS
) -> list[Score]:
    """Each repository in turn, with a cache that is thrown away."""
    with tempfile.TemporaryDirectory() as cache:
        return [
            score(one, Path(cache), commits=commits, mutants=mutants)
            for one in repositories(folders)
        ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", type=Path, nargs="+")
    options.add_argument("--commits", type=int, default=COMMITS)
    options.add_argument("--mutants", type=int, default=MUTANTS)
    options.add_argument("--tell", action="store_true", help="tell every miss and false alarm")
    given = options.parse_args()
    scores = measured(given.repositories, commits=given.commits, mutants=given.mutants)
    told = [line for one in scores for line in lapses(one)] if given.tell else []
    sys.stdout.write("\n".join([*told, report(scores)]) + "\n")


if __name__ == "__main__":
    main()
