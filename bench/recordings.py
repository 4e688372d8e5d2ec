"""A folder of recordings as teams have them, made of the fixtures: every format, many sizes.

A fixture is a short session with short outputs. Here it becomes a longer one: its inner records
come again and again under fresh ids, and its texts of several lines get lines of generated source
in their midst, until a record is about as large as in sessions of real work (some 4 KB) and the
file as large as was drawn for it. What has no list of records, and what is no JSON, stays as it is.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from source_tree import SourceWriter

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "traces" / "fixtures"
SMALLEST, MEDIAN, LARGEST, SPREAD = 20_000, 150_000, 2_000_000, 1.1
"""How large sessions are: by the logarithm of their size, they spread as people's heights do."""
FEWEST = 5
"""Records that make a list worth repeating; two stay at its beginning and one at its end."""
LINES_ADDED = 55
"""To a text, on average; most get fewer and some many more."""
RECORD_BYTES = 1500
"""A record counts as at least this large: real sessions do not have thousands of tiny ones."""
SOURCE_MODULES = 100
JSON = (".json", ".jsonl", ".traj")
OTHERS = ("README.md", "served.json")
STATES = ("base_state.json",)
"""What has lists, but not of records."""
COMMANDS = ("action", "command", "cmd", "script")
"""Stay as they are: even in real work they seldom have many lines."""
_ID_KEY = re.compile(r"(?!.*model)(?:.*(?:_id|Id|ID|uuid|Uuid)|id)")

Change = Callable[[str], str]


def make_long(folder: str, megabytes: float) -> None:
    """Recordings of at least so many bytes, the same ones whenever this is called."""
    chance, writer = random.Random(1), SourceWriter(seed=1)
    modules = [writer.write_module("product.core") for _ in range(SOURCE_MODULES)]
    source = [line for text in modules for line in text.splitlines(keepends=True)]
    for place, file, change in _copies(Path(folder), megabytes, chance):
        if file.suffix not in JSON or file.name in STATES:
            place.write_bytes(file.read_bytes())
            continue
        values = _changed(_values(file), change)
        lists = [values] if len(values) >= FEWEST else list(_lists(values))
        size = int(random.Random(chance.random()).lognormvariate(0, SPREAD) * MEDIAN)
        _lengthen(lists, min(max(size, SMALLEST), LARGEST), chance, source)
        place.write_bytes(_written(values, file))


def make_short(folder: str, megabytes: float) -> None:
    """The fixtures as they are, but for their ids: sessions that ended soon after they began."""
    for place, file, change in _copies(Path(folder), megabytes, random.Random(2)):
        if file.suffix in JSON and file.stat().st_size > 4000:
            place.write_bytes(_written(_changed(_values(file), change), file))


def _copies(
    folder: Path, megabytes: float, chance: random.Random
) -> Iterator[tuple[Path, Path, Change]]:
    """Where to write a copy, of which fixture, and the ids that all files of a copy share."""
    files = [path for path in sorted(FIXTURES.rglob("*")) if _is_recording(path)]
    number = made = 0
    while made < megabytes * 1e6:
        number += 1
        fresh: dict[str, str] = {}
        for file in files:
            if file.suffix in JSON:
                found = chain(*map(_ids, _values(file)))
                fresh |= {one: _renamed(one, chance) for one in found if one not in fresh}
        for file in files:
            name = str(file.relative_to(FIXTURES))
            for old in filter(name.__contains__, fresh):
                name = name.replace(old, fresh[old])
            place = folder / str(number) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            yield place, file, _Texts(fresh)
            made += place.stat().st_size if place.exists() else 0


def _is_recording(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".py", ".pyc") and path.name not in OTHERS


def _lengthen(
    lists: Sequence[list[Any]], size: int, chance: random.Random, source: Sequence[str]
) -> None:
    """Repeat what is within some lists until it is as large as wished."""
    bodies = [items[2:-1] for items in lists]
    grown: list[list[Any]] = [[] for _ in bodies]
    inner = _inner_ids(bodies)
    fresh: dict[str, str] = {}
    while bodies and size > 0:
        before, fresh = fresh, {one: _renamed(one, chance) for one in inner}
        for place, body in enumerate(bodies):
            above, last = _first(body[0], "parentUuid", "parentId"), _first(body[-1], "uuid", "id")
            if above and last in before:
                fresh[above] = before[last]
            copy = _changed(body, _LongTexts(fresh, chance, source))
            grown[place] += copy
            size -= max(len(msgspec.json.encode(copy)), len(copy) * RECORD_BYTES)
    for items, copies in zip(lists, grown, strict=True):
        items[2:] = [*copies, *_changed(items[-1:], _Texts(fresh))]


class _Texts(dict[str, str]):
    """What becomes of the texts of some records: of the same text, the same."""

    def __call__(self, text: str) -> str:
        return self.get(text, text)


class _LongTexts(_Texts):
    """The same, with more in them."""

    def __init__(self, fresh: dict[str, str], chance: random.Random, source: Sequence[str]) -> None:
        super().__init__(fresh)
        self._chance, self._source = chance, source

    def __call__(self, text: str) -> str:
        if text not in self:
            self[text] = _longer(text, self._chance, self._source)
        return self[text]


def _longer(text: str, chance: random.Random, source: Sequence[str]) -> str:
    """A text of several lines with some more; what programs read, JSON or a stream, as it is."""
    if " " not in text or text.startswith(('{"', "[{", '["', "<", "event: ", "data: ")):
        return text
    head, _, tail = text.partition("\n")
    start = chance.randrange(len(source))
    added = source[start : start + int(chance.expovariate(1 / LINES_ADDED))]
    return f"{head}\n{''.join(added)}{tail}"


def _inner_ids(bodies: Sequence[list[Any]]) -> list[str]:
    """Ids of single records; what most records name is the session's."""
    counts: Counter[str] = Counter()
    for record in chain(*bodies):
        counts.update(set(_ids(record)))
    most = sum(map(len, bodies)) / 2
    return [one for one, times in counts.items() if times < most]


def _ids(value: Any, key: str = "") -> Iterator[str]:
    match value:
        case str() if _ID_KEY.fullmatch(key) and re.search(r"...*\d", value):
            yield value
        case dict():
            for name, one in value.items():
                yield from _ids(one, name)
        case list():
            for one in value:
                yield from _ids(one, key)


def _renamed(one: str, chance: random.Random) -> str:
    """Another id, which begins as the first did: some hold the time when they were made."""
    kept = one[:-8] if len(one) >= 12 else one
    return f"{kept}{chance.getrandbits(32):08x}"


def _first(record: Any, *names: str) -> str | None:
    found = (record.get(name) for name in names) if isinstance(record, dict) else ()
    return next((one for one in found if isinstance(one, str)), None)


def _lists(value: Any) -> Iterator[list[Any]]:
    """Lists of records that are in no other."""
    if isinstance(value, list) and len(value) >= FEWEST and isinstance(value[0], dict):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _lists(one)


def _changed(value: Any, change: Change) -> Any:
    match value:
        case str():
            return change(value)
        case dict():
            return {
                change(name): one if name in COMMANDS else _changed(one, change)
                for name, one in value.items()
            }
        case list():
            return [_changed(one, change) for one in value]
    return value


def _values(file: Path) -> list[Any]:
    content = file.read_bytes()
    if file.suffix == ".jsonl":
        return [msgspec.json.decode(line) for line in content.splitlines()]
    return [msgspec.json.decode(content)]


def _written(values: Sequence[Any], file: Path) -> bytes:
    """As the fixture is written: with spaces or without, on a line or on many."""
    with file.open("rb") as opened:
        head = opened.read(400)
    encoded = [msgspec.json.encode(value) for value in values]
    if file.suffix != ".jsonl" and (found := re.match(rb"[\[{]\n( *)", head)):
        encoded = [msgspec.json.format(one, indent=len(found[1])) for one in encoded]
    elif b'": ' in head:
        encoded = [msgspec.json.format(one, indent=0) for one in encoded]
    return b"\n".join(encoded) + b"\n"
