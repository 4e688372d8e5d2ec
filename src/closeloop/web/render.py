"""Templates: every value is escaped; characters that reorder or hide text are made visible."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from closeloop import __version__
from closeloop.metrics.variant_pairs import is_ratio_bounded
from closeloop.records.attempt import AttemptRow, is_incomplete_recording
from closeloop.records.record import Record
from closeloop.text.untrusted import make_visible
from closeloop.text.wording import (
    count_with_noun,
    format_dollars,
    format_duration,
    format_percent,
    format_points,
    short_repository_name,
    truncate_words,
)
from closeloop.web.diff_view import colour_diff, pair_lines

# Static files of pages, served from memory under names that change with their content.

ASSET_PATH = "/static/"
CACHE_FOREVER = "public, max-age=31536000, immutable"
MIN_GZIP_BYTES = 500
"""Bytes from which compression pays off."""


class StaticAsset(Record):
    """One file, plain and compressed."""

    address: str
    content: bytes
    packed: bytes | None
    media_type: str


@cache
def load_assets() -> dict[str, StaticAsset]:
    """Load the files by name, such as `app.css` or `vendor/htmx.min.js`."""
    return {
        name: _build_asset(name, content)
        for name, content in _list_files_under(_static_folder(), "")
    }


def asset_address(name: str) -> str:
    """Return the URL of a static file."""
    return load_assets()[name].address


async def serve_asset(request: Request) -> Response:
    """Serve a file by its URL; it may be cached forever, because new content gets a new URL."""
    asset = _assets_by_address().get(request.url.path)
    if asset is None:
        return Response("No such file.", 404, media_type="text/plain")
    headers = {"cache-control": CACHE_FOREVER, "vary": "accept-encoding"}
    if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(asset.packed, headers=headers, media_type=asset.media_type)
    return Response(asset.content, headers=headers, media_type=asset.media_type)


@cache
def _assets_by_address() -> dict[str, StaticAsset]:
    return {asset.address: asset for asset in load_assets().values()}


def _static_folder() -> Traversable:
    return files(__package__).joinpath("static")


def _list_files_under(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    named_files: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        name = path + entry.name
        if entry.is_dir():
            named_files += _list_files_under(entry, f"{name}/")
        else:
            named_files.append((name, entry.read_bytes()))
    return named_files


def _build_asset(name: str, content: bytes) -> StaticAsset:
    stem, _, ending = name.rpartition(".")
    media_type = mimetypes.guess_type(name)[0] or "text/plain"
    return StaticAsset(
        address=f"{ASSET_PATH}{stem}.{hashlib.sha256(content).hexdigest()[:12]}.{ending}",
        content=content,
        packed=gzip.compress(content, 9, mtime=0) if len(content) > MIN_GZIP_BYTES else None,
        media_type=media_type,
    )


# A safe subset of Markdown, for text by agents and people.
#
# Paragraphs, lists, headings, code and bold. Every character is escaped; there is no HTML and
# no image, and a link is rendered as its text with the URL beside it, not as a hyperlink.

MAX_PROSE_CHARS = 50_000
MIN_WRAPPED_CHARS = 60
"""Characters of a line below which its line break was intended."""
_LIST_ITEM = re.compile(r"\s{0,12}(?:[-*+•]|(\d{1,4})[.)])\s+(.*)")
_HEADING_LINE = re.compile(r"#{1,6}\s+(.*)")
_FENCE_LINE = re.compile(r"\s*```[^`]*")
_INLINE_MARKUP = re.compile(r"`{1,3}([^`\n]{1,500})`{1,3}|\*\*([^*\n]{1,500})\*\*")
_LINE_BREAK = Markup("<br>")
_NUMBERED, _LISTED = Markup("<ol>{}</ol>"), Markup("<ul>{}</ul>")
_CODE, _BOLD = Markup("<code>{}</code>"), Markup("<strong>{}</strong>")


def render_prose(text: str | None) -> Markup:
    """Render the text as HTML."""
    visible_text = make_visible((text or "")[:MAX_PROSE_CHARS])
    return Markup("\n").join(_render_blocks(visible_text.split("\n")))


def render_sentence(text: str | None) -> Markup:
    """Render one of our own sentences; text between backticks becomes code."""
    return _render_inline(make_visible(text or ""))


def _render_blocks(lines: list[str]) -> Iterator[Markup]:
    pending_lines: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if _FENCE_LINE.fullmatch(line):
            yield from _render_paragraphs(pending_lines)
            code, index = _read_fenced_code(lines, index)
            yield Markup("<pre class='output'><code>{}</code></pre>").format(code)
        elif heading := _HEADING_LINE.fullmatch(line):
            yield from _render_paragraphs(pending_lines)
            yield Markup("<p class='heading'>{}</p>").format(_render_inline(heading[1]))
        elif not line.strip():
            yield from _render_paragraphs(pending_lines)
        else:
            pending_lines.append(line)
    yield from _render_paragraphs(pending_lines)


def _read_fenced_code(lines: list[str], start: int) -> tuple[str, int]:
    """Return the lines of a code block, and the index at which the text continues."""
    end = start
    while end < len(lines) and not lines[end].lstrip().startswith("```"):
        end += 1
    return "\n".join(lines[start:end]), end + 1


def _render_paragraphs(pending_lines: list[str]) -> Iterator[Markup]:
    """Render consecutive lines: a list, indented code or a paragraph."""
    lines, pending_lines[:] = list(pending_lines), []
    if lines and all(line.startswith(("    ", "\t")) for line in lines):
        yield Markup("<pre class='output'>{}</pre>").format("\n".join(lines))
        return
    paragraph: list[str] = []
    items: list[tuple[str | None, list[str]]] = []
    for line in lines:
        if item := _LIST_ITEM.fullmatch(line):
            items.append((item[1], [item[2]]))
        elif items and line.startswith(" "):
            items[-1][1].append(line.strip())
        elif items:
            yield from _render_words_and_list(paragraph, items)
            paragraph, items = [line], []
        else:
            paragraph.append(line)
    yield from _render_words_and_list(paragraph, items)


def _render_words_and_list(
    paragraph: list[str], items: list[tuple[str | None, list[str]]]
) -> Iterator[Markup]:
    if paragraph:
        yield Markup("<p>{}</p>").format(_join_wrapped_lines(paragraph))
    if items:
        item_htmls = (
            Markup("<li{}>{}</li>").format(
                Markup(' value="{}"').format(number) if number else "", _join_wrapped_lines(lines)
            )
            for number, lines in items
        )
        list_template = _NUMBERED if items[0][0] else _LISTED
        yield list_template.format(Markup("").join(item_htmls))


def _join_wrapped_lines(lines: list[str]) -> Markup:
    """Join lines that were only wrapped; short lines keep their line break."""
    joined_html = Markup("")
    for index, line in enumerate(lines):
        joined_html += _render_inline(line.strip())
        if index + 1 < len(lines):
            joined_html += _LINE_BREAK if len(line) < MIN_WRAPPED_CHARS else Markup(" ")
    return joined_html


def _render_inline(line: str) -> Markup:
    inline_html, position = Markup(""), 0
    for markup_match in _INLINE_MARKUP.finditer(line):
        inline_html += escape(line[position : markup_match.start()])
        inline_html += (
            _CODE.format(markup_match[1]) if markup_match[1] else _BOLD.format(markup_match[2])
        )
        position = markup_match.end()
    return inline_html + escape(line[position:])


ABSENT_MARK = "–"


def render_template(template: str, **values: Any) -> str:
    """Render a template with values."""
    return template_environment().get_template(template).render(**values)


@cache
def template_environment() -> Environment:
    jinja_environment = Environment(
        loader=PackageLoader("closeloop.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize_value,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    jinja_environment.filters |= {
        "bounded": is_ratio_bounded,
        "chart": chart_json,
        "count": format_thousands,
        "clock": format_clock,
        "duration": format_seconds,
        "figure": format_figure,
        "money": format_money,
        "named": shorten_name,
        "moment": format_moment,
        "percent": format_share,
        "plural": count_with_noun,
        "points": format_points,
        "prose": render_prose,
        "sentence": render_sentence,
        "repository": short_repository_name,
        "pull_link": pull_request_link,
        "short": shorten_text,
        "side": name_side,
        "week": format_week,
    }
    jinja_environment.globals |= {
        "address": address_with_changes,
        "in_range": address_with_range,
        "other_pairs": query_pairs_without,
        "api_of": api_address,
        "asset": asset_address,
        "colour_diff": colour_diff,
        "pair_lines": pair_lines,
        "exit_label": exit_label,
        "result": attempt_result,
        "version": __version__,
    }
    return jinja_environment


def _finalize_value(value: Any) -> Any:
    """Show None as a dash; make control characters in untrusted text visible."""
    if value is None:
        return ABSENT_MARK
    if isinstance(value, str) and not isinstance(value, Markup):
        return make_visible(value)
    return value


def address_with_changes(here: Any, **changes: str | None) -> str:
    """Return the current URL with some parameters changed; None removes one."""
    query_pairs = [(name, value) for name, value in parse_qsl(here.query) if name not in changes]
    query_pairs += [(name, value) for name, value in changes.items() if value is not None]
    return f"{here.path}?{urlencode(query_pairs)}" if query_pairs else str(here.path)


def address_with_range(here: Any, address: str) -> str:
    """Return one of our URLs with the current time range, unless it has its own."""
    path, _, query = address.partition("?")
    pairs = parse_qsl(query)
    given_names = {name for name, _ in pairs}
    if given_names.isdisjoint(("since", "until")):
        pairs += here.range_pairs
    return f"{path}?{urlencode(pairs)}" if pairs else path


def query_pairs_without(here: Any, *names: str) -> list[tuple[str, str]]:
    """Return the URL's parameters except some, for a form to send along."""
    return [pair for pair in parse_qsl(here.query) if pair[0] not in names]


def api_address(here: Any) -> str:
    """Return the URL of the same page as JSON."""
    path = here.page.api or f"/api{here.path}"
    return path + (f"?{here.query}" if here.query else "")


_REQUEST_PATH = re.compile(r"/(?:-/)?(?:pull|pulls|merge_requests)/\d{1,12}/?")


def pull_request_link(url: str | None, repo: str) -> str | None:
    """Return the URL of a pull request if it clearly belongs to this repository, else None."""
    host, separator, rest = (url or "").partition(f"/{repo}/")
    is_host = re.fullmatch(r"https://[a-z0-9.-]{1,200}(?::\d{1,5})?", host) is not None
    return url if separator and is_host and _REQUEST_PATH.fullmatch(f"/{rest}") else None


def chart_json(points: Any) -> str:
    """Return a chart's data as JSON; what has no name is `unknown`."""
    return msgspec.json.encode(points).decode().replace('"name":"–"', '"name":"unknown"')


def format_thousands(number: int | None) -> str:
    """Format a number: `12,345`."""
    return ABSENT_MARK if number is None else f"{number:,}"


def format_seconds(seconds: float | None) -> str:
    """Format a duration as the command line does."""
    return ABSENT_MARK if seconds is None else format_duration(seconds)


def format_clock(seconds: float) -> str:
    """Format a time since a start so that it fits a narrow column: `8.2 s`, `1:56`, `12:05:00`."""
    if not 59.5 <= seconds < 86_400:
        return format_duration(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_money(amount: float | None) -> str:
    """Format an amount as metrics do."""
    return ABSENT_MARK if amount is None else format_dollars(amount)


def format_figure(value: float | None, unit: str = "", signed: bool = False) -> str:
    """Format a value: `0.67`, `4`, `$0.02`, `12 min`; a difference has its sign."""
    if value is None:
        return ABSENT_MARK
    size = abs(value)
    number = f"{size:,.0f}" if size >= 1000 else f"{size:.3g}"
    text = f"{number} {unit.removesuffix('s') if number == '1' else unit}".rstrip()
    if unit in ("$", "s"):
        text = format_money(size) if unit == "$" else format_duration(size)
    sign = "−" if value < 0 else "+" if signed and value else ""
    return sign + text


def format_share(share: float | None) -> str:
    """Format a share: `83 %`, or a dash if unknown."""
    return ABSENT_MARK if share is None else format_percent(share)


def format_moment(time: datetime | None) -> str:
    """Format a time: `2026-03-01 14:05`, in UTC."""
    return ABSENT_MARK if time is None else f"{time:%Y-%m-%d %H:%M}"


def format_week(week: str) -> str:
    """Format a week: `15 Jun 2026`, the Monday of `2026-W25`."""
    try:
        return f"{datetime.strptime(f'{week}-1', '%G-W%V-%u'):%-d %b %Y}"
    except ValueError:
        return week


def shorten_text(text: str | None, most: int = 80) -> str | None:
    """Return the beginning of a text, in one line."""
    return None if text is None else truncate_words(text[: 4 * most], most)


def shorten_name(name: str | None, most: int = 40) -> str | None:
    """Truncate a long name in the middle; its end distinguishes it from similar names."""
    text = shorten_text(name, 1000)
    if text is None or len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 1]}…{text[-end:]}"


AGENT_NAMES = {
    "aider": "Aider",
    "claude-code": "Claude Code",
    "cline": "Cline",
    "codex": "Codex",
    "copilot-cli": "Copilot CLI",
    "cursor": "Cursor",
    "droid": "Droid",
    "gemini-cli": "Gemini CLI",
    "goose": "Goose",
    "kimi": "Kimi",
    "kiro": "Kiro",
    "mini-swe-agent": "mini-SWE-agent",
    "opencode": "OpenCode",
    "openhands": "OpenHands",
    "qwen-code": "Qwen Code",
    "roo-code": "Roo Code",
    "swe-agent": "SWE-agent",
}
_SIDE_PERIOD = re.compile(r"(\d{4}-\d\d-\d\d)?\.\.(\d{4}-\d\d-\d\d)?")


def name_side(name: str | None) -> str | None:
    """Return a readable name of a compared side: `Codex` for `agent:codex`, `since 2026-11-01`; a
    variant keeps its own name."""
    if name is None:
        return None
    parts = [_name_side_part(part.strip()) for part in name.split(",")]
    return ", ".join(part for part in parts if part) if None not in parts else name


def _name_side_part(part: str) -> str | None:
    """Return the readable name of a label or period; None for anything else."""
    kind, _, value = part.partition(":")
    if value and kind in ("agent", "model", "repo", "user", "prompt", "experiment"):
        labels = {
            "agent": AGENT_NAMES.get(value, value),
            "repo": short_repository_name(value) or value,
            "prompt": f"prompt {value[:12]}",
            "experiment": f"experiment {value}",
        }
        return labels.get(kind, value)
    period = _SIDE_PERIOD.fullmatch(part)
    if period is None or not any(period.groups()):
        return None
    since, until = period.groups()
    if since and until:
        return f"{since} to {until}"
    return f"since {since}" if since else f"until {until}"


EXIT_LABELS = {
    "gave_up": "gave up",
    "out_of_time": "time limit reached",
    "idle": "stopped responding",
    "out_of_budget": "budget reached",
    "crashed": "crashed",
    "machine": "machine failure",
}


def exit_label(row: AttemptRow) -> str:
    """Return how an attempt ended; a recording that just stops says nothing about the agent."""
    if is_incomplete_recording(row.origin, row.cause):
        return "recording incomplete"
    return EXIT_LABELS.get(row.exit, row.exit.replace("_", " "))


def attempt_result(row: AttemptRow) -> str:
    """Return pass, fail or unscored; an ungraded session has no result."""
    if row.outcome is None and row.origin == "production":
        return "session"
    return row.outcome or "unscored"
