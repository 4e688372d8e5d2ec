"""Breaks of public APIs that are found between releases, beside what their changelogs tell.

    python quality/api.py REPOSITORY...

Labels are in api.json. `told`: breaks in the changelog that can be seen in the sources, a name or
`name(parameter)`; changes of behaviour, settings and templates are left out. `kept`: names that the
release only deprecates. Where a release is `judged`, every break that was reported was read, in
doubt with the sources beside it; `wrong` has those that were none. Where versions are on lines of
their own, the later one is compared with where it left the earlier one's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.changes.risk.api_changes import ApiChange, find_api_changes
from closeloop.records.estimate import Rate, pool_rates, wilson_rate
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings

LABELS = Path(__file__).with_suffix(".json")


class Release(Record):
    """Two versions, and what people say of their difference."""

    repository: str
    before: str
    after: str
    told: tuple[str, ...]
    kept: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    judged: bool = False


class Score(Record):
    """How well one release was understood."""

    release: Release
    missed: tuple[str, ...]
    mistaken: tuple[str, ...]
    recall: Rate | None
    precision: Rate | None


def scores(repositories: Sequence[Path]) -> Iterator[Score]:
    """Every labelled release of these repositories."""
    known = {_name(path): path for path in repositories}
    for release in msgspec.json.decode(LABELS.read_bytes(), type=list[Release]):
        name = release.repository.rpartition("/")[2]
        if name in known:
            yield score(release, changes(known[name], release))


def changes(repository: Path, release: Release) -> list[ApiChange]:
    """What is found between the two versions."""
    wanted, settings = ChangeQuery(range=f"{release.before}..{release.after}"), CheckSettings()
    with (
        tempfile.TemporaryDirectory() as cache,
        open_sides(repository, wanted) as sides,
        open_index(sides, Path(cache), settings) as index,
    ):
        return find_api_changes(inspect_change(sides, index, settings=settings))


def score(release: Release, found: Sequence[ApiChange]) -> Score:
    """Breaks that were told and found; and those found that are none."""
    missed = [label for label in release.told if not any(_is(one, label) for one in found)]
    breaks = [one for one in found if one.breaking]
    mistaken = [
        one.text
        for one in breaks
        if any(_is(one, label) for label in (*release.kept, *release.wrong))
    ]
    return Score(
        release=release,
        missed=tuple(missed),
        mistaken=tuple(mistaken),
        recall=wilson_rate(len(release.told) - len(missed), len(release.told)),
        precision=wilson_rate(len(breaks) - len(mistaken), len(breaks)) if release.judged else None,
    )


def _is(change: ApiChange, label: str) -> bool:
    """By the last two parts of the name: packages hand names on; or what it is in is gone."""
    name, _, parameter = label.rstrip(")").partition("(")
    if change.kind in ("removed", "renamed") and name.startswith(f"{change.name}."):
        return True
    parts = change.name.split("."), name.split(".")
    short = [part[-2:] if part[-1][:1].islower() or "." in name else part[-1:] for part in parts]
    same = change.name == name or short[0] == short[1] or _is_class(parts[0], parts[1])
    return same and (not parameter or f"`{parameter}`" in change.text)


def _is_class(one: Sequence[str], other: Sequence[str]) -> bool:
    """The same class, in a package that hands it on and in its module."""
    return one[-1] == other[-1] and one[-1][:1].isupper() and one[0] == other[0]


def _name(repository: Path) -> str:
    folder = repository.parent if repository.name == "repo" else repository
    return folder.name.rpartition("+")[2].removesuffix(".git")


def table(found: Sequence[Score]) -> str:
    """Release by release, and all together."""
    lines = ["| release | recall | precision | missed or mistaken |", "| --- " * 4 + "|"]
    for one in found:
        release = one.release
        name = f"{release.repository} {release.before} → {release.after}"
        odd = ", ".join((*one.missed, *one.mistaken))
        lines.append(f"| {name} | {_told(one.recall)} | {_told(one.precision)} | {odd} |")
    recall = pool_rates(*(one.recall for one in found))
    precision = pool_rates(*(one.precision for one in found))
    lines.append(f"| all | {_told(recall)} | {_told(precision)} | |")
    return "\n".join(lines)


def _told(share: Rate | None) -> str:
    return "–" if share is None else f"{share.value:.2f} of {share.of}"


if __name__ == "__main__":
    sys.stdout.write(table(list(scores([Path(one) for one in sys.argv[1:]]))) + "\n")
