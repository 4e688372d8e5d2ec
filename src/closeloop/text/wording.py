"""Formatting of names, numbers and times: plurals, shares, moments, globs, repositories."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, AnyStr, cast

from closeloop.records.errors import BadInput


def count_with_noun(number: int, singular: str, plural: str | None = None) -> str:
    """Return a count with its noun: `1 finding`, `2 findings`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def truncate_words(text: str, limit: int) -> str:
    """Put a text on one line with single spaces, truncated at the limit."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def truncate_at_word(text: str, limit: int) -> str:
    """Return a text on one line, truncated between two words unless one is very long."""
    line = truncate_words(text, limit)
    head = line.rpartition(" ")[0]
    return f"{head}…" if line.endswith("…") and text[-1:] != "…" and len(head) > limit / 2 else line


def natural_order(text: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key in which `t2` comes before `t10`."""
    parts = _DIGITS.split(text[:MAX_ORDERED_CHARS])
    words, numbers = parts[::2], (*map(int, parts[1::2]), -1)
    return tuple(zip(words, numbers, strict=True))


MAX_ORDERED_CHARS = 1000
_DIGITS = re.compile(r"([0-9]{1,18})")


# Shares and money formatted for people: on pages, in the terminal, in sentences.


def format_percent(share: float) -> str:
    """Format `83 %`, without rounding to 0 or 100 what is neither."""
    rounded = round(share * 100)
    if rounded in (0, 100) and 0 < share < 1:
        return f"{min(max(share * 100, 0.1), 99.9):.1f} %"
    return f"{rounded} %"


def format_percent_range(low: float, high: float) -> str:
    """Return an interval of shares in percent: `39–86 %`."""
    return f"{format_percent(low).removesuffix(' %')}–{format_percent(high)}"


def format_points(share: float, signed: bool = False) -> str:
    """Format a difference of shares as `78 points`, or `+78 points` if signed."""
    size = abs(100 * share)
    points_text = (
        f"{max(size, 0.1):.1f} points" if 0 < size < 0.95 else count_with_noun(round(size), "point")
    )
    sign = "−" if share < 0 else "+" if share else ""
    return sign + points_text if signed else points_text


def format_points_estimate(value: float, low: float | None, high: float | None) -> str:
    """Format `+12 points (−5 to +29)`; without bounds if there are none."""
    points = format_points(value, signed=True)
    if low is None or high is None:
        return points
    bounds = (format_points(bound, signed=True).split()[0] for bound in (low, high))
    return f"{points} ({' to '.join(bounds)})"


def format_dollars(amount: float) -> str:
    """Format `$1.20`, `$0.01`; below ten cents with hundredths of a cent if any: `$0.0042`."""
    if 0 < abs(amount) < 0.0001:
        return "< $0.0001"
    dollars, _, cents = f"{amount:,.{4 if abs(amount) < 0.1 else 2}f}".partition(".")
    return f"${dollars}.{cents[:2]}{cents[2:].rstrip('0')}"


def format_duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole_seconds = round(seconds)
    for size, unit, less, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole_seconds >= size:
            return _format_two_units(
                whole_seconds // size, unit, whole_seconds % size // less, small
            )
    return (
        _format_two_units(whole_seconds // 60, "min", whole_seconds % 60, "s")
        if whole_seconds >= 60
        else f"{whole_seconds} s"
    )


def _format_two_units(large: int, unit: str, small_count: int, small: str) -> str:
    return f"{large} {unit} {small_count} {small}" if small_count else f"{large} {unit}"


# Times: what `since` and `until` accept everywhere.

_PERIOD = re.compile(r"(\d{1,4})([hdw])")
_PERIOD_HOURS = {"h": 1, "d": 24, "w": 168}
_DATE_CHARS = len("2026-11-01")


def parse_moment(
    text: str, now: datetime, *, zone: tzinfo | None = UTC, is_end: bool = False
) -> datetime | None:
    """Return when `24h`, `7d`, `2w`, a date or a time begins; None for `all`.

    With `is_end` a date stands for the end of its day. `zone` is that of times which name none;
    None is this machine's.
    """
    if text == "all":
        return None
    if period := _PERIOD.fullmatch(text):
        return now - timedelta(hours=int(period[1]) * _PERIOD_HOURS[period[2]])
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
        return moment + timedelta(days=1) if is_end and len(text) <= _DATE_CHARS else moment
    except (ValueError, OverflowError):
        raise BadInput(
            f"A time is 24h, 7d, 2w, a date such as 2026-11-01, or all; not {text!r}."
        ) from None


# Globs over the paths of a repository, as used in `scope` and `protected`.


def matches_globs(path: str, globs: Iterable[str]) -> bool:
    """Whether a path relative to the repository's root matches one of the globs.

    `*` and `?` stay within one folder, `**` does not, `[…]` is one of some characters, and the
    plain name of a folder matches everything below it.
    """
    return _compile_globs(tuple(globs)).fullmatch(_normalise_path(path)) is not None


def escape_glob(path: str) -> str:
    """Return a glob that matches exactly this path."""
    return re.sub(r"([*?[])", r"[\1]", path)


@lru_cache(maxsize=256)
def _compile_globs(globs: tuple[str, ...]) -> re.Pattern[str]:
    patterns = [_translate_glob(_normalise_path(glob)) for glob in globs if glob]
    return re.compile("|".join(patterns) or r"(?!)", re.DOTALL)


def _normalise_path(path: str) -> str:
    while path.startswith("./"):
        path = path[2:]
    return "" if path == "." else path.strip("/")


def _translate_glob(glob: str) -> str:
    if not glob:
        return ".*"
    parts = glob.split("/")
    expression = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if parts[index : index + 2] == ["**", "**"]:
            continue
        if part == "**":
            expression += ".+" if last else "(?:[^/]+/)*"
        else:
            expression += _translate_segment(part) + ("" if last else "/")
    # `src/*` must not reach into `src/a/b`, yet `packages/*/tests` means all that is below it.
    return expression if any(sign in parts[-1] for sign in "*?[") else expression + "(?:/.*)?"


def _translate_segment(part: str) -> str:
    expression, position = "", 0
    while position < len(part):
        sign = part[position]
        position += 1
        if sign == "*":
            expression += "" if expression.endswith("[^/]*") else "[^/]*"
        elif sign == "?":
            expression += "[^/]"
        elif sign == "[" and (end := part.find("]", position + 1)) > 0:
            # `(?s:` and `)\Z` surround the standard library's translation of the brackets.
            expression += "(?!/)" + fnmatch.translate(part[position - 1 : end + 1])[4:-3]
            position = end + 1
        else:
            expression += re.escape(sign)
    return expression


SOURCE_ROOTS = frozenset(
    ("src", "lib", "source", "packages", "crates", "pkg", "internal", "app", "apps", "cmd")
)


def package_folder(path: str) -> str:
    """Return the package or top folder: `src/tally/days.py` belongs to `src/tally`."""
    folders = path.split("/")[:-1]
    depth = 2 if folders and folders[0] in SOURCE_ROOTS else 1
    return "/".join(folders[:depth]) or "."


# Patterns in which `*` stands for anything, and nothing else is special.

MAX_MATCHED_CHARS = 300


def matches_wildcards(text: str | None, patterns: Iterable[str]) -> bool:
    """Whether a text matches one of the patterns, ignoring case."""
    return text is not None and any(
        _compile_wildcard(pattern).fullmatch(text[:MAX_MATCHED_CHARS]) is not None
        for pattern in patterns
    )


@lru_cache(maxsize=1000)
def _compile_wildcard(pattern: str) -> re.Pattern[str]:
    # Consecutive stars would only make it slow.
    parts = re.split(r"\*+", pattern)
    return re.compile(".*?".join(map(re.escape, parts)), re.IGNORECASE | re.DOTALL)


# Repositories by their common names.

_ADDRESS_PREFIX = re.compile(
    r"(?:\w{1,20}://(?:[^/@\s]{1,200}@)?[^/\s]{1,255}/|[\w.-]{1,100}@[\w.-]{1,255}:/?)"
)


def repository_name(address: str) -> str:
    """Return `owner/name` of an address at any host; a path stays unchanged."""
    match = _ADDRESS_PREFIX.match(address)
    if match is None:
        return address
    return address[match.end() :].strip("/").removesuffix(".git") or address


def name_score(label: str) -> str:
    """Return `scope creep` as the name of a score: `scope-creep`."""
    return "-".join(label.lower().replace(",", "").split())


def short_repository_name(address: str | None) -> str | None:
    """Return the last part of a repository's address."""
    if address is None:
        return None
    return address.rstrip("/").removesuffix(".git").replace(":", "/").rpartition("/")[2]


INSTALL_CHECK_TOOLS = "install it with pip install 'closeloop[check]'"
"""End of a sentence saying that ruff, ty or ast-grep is missing."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def without_formula(text: str) -> str:
    """Escape text for a spreadsheet cell, which would run a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


# Patterns that are compiled on first use: a command uses few of those it imports.


_PATTERN_ATTRIBUTES = tuple(name for name in dir(re.Pattern) if not name.startswith("_"))


class _LazyPattern:
    """Stands for a compiled pattern, and compiles it at the first use."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._arguments = pattern, flags

    def __getattr__(self, name: str) -> Any:
        compiled: re.Pattern[Any] = re.compile(*self._arguments)
        self.__dict__.update(
            (attribute, getattr(compiled, attribute)) for attribute in _PATTERN_ATTRIBUTES
        )
        return getattr(compiled, name)


def compile_lazily(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Compile a module's own pattern when it is first used.

    The functions of `re` do not accept the result.
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))
