"""What a reader sees of a finding or a session: the evidence and the rule's words, not its code."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Collection, Iterable, Iterator
from functools import cache

from reading_sample import SampledFinding

from closeloop import plugins
from closeloop.cli.show import describe_trace_event
from closeloop.records.trace import AnyEvent, Command, Edit, Message, Read, ToolUse, Trace
from closeloop.text.untrusted import make_visible, truncate_middle
from closeloop.text.wording import truncate_words

CONTEXT_EVENTS = 2
"""Shown in full before and after each event that is cited."""
MAX_CITED_CHARS = 2_500
MAX_CONTEXT_CHARS = 700
MAX_REQUEST_CHARS = 2_000
OUTLINE_NEAR = 12
"""Events of the outline around each that is cited."""
OUTLINE_ENDS = 8
MAX_OUTLINE_EVENTS = 120
OUTLINE_CHARS = 110


@cache
def describe_rule(name: str) -> str:
    """What the rule's page says that it looks for."""
    (detector,) = (one for one in plugins.load_plugins("detectors") if one.rule.name == name)
    page = inspect.getdoc(detector) or ""
    _, _, rest = page.partition("## What it looks for\n")
    return f"{detector.rule.about}\n\n{rest.partition('## ')[0].strip()}"


def list_rules() -> str:
    """Every rule with its sentence: what a reader of whole sessions chooses from."""
    rules = [one.rule for one in plugins.load_plugins("detectors")]
    return "\n".join(f"{rule.name:30} {rule.about}" for rule in rules)


def render_finding(sampled: SampledFinding, trace: Trace) -> str:
    """One finding: what it says, what was asked for, an outline, and what it cites in full."""
    finding = sampled.finding
    cited = ", ".join(f"#{number}" for number in finding.events)
    return "\n\n".join(
        (
            f"FINDING {sampled.item}  {finding.rule}  session {sampled.session}"
            f" ({len(trace.events)} events)  cites {cited}\n{make_visible(finding.message)}",
            f"REQUEST\n{_indent(render_request(trace))}",
            f"OUTLINE (* is cited)\n{render_outline(trace, finding.events)}",
            f"EVIDENCE\n{render_cited(trace, finding.events)}",
        )
    )


def render_request(trace: Trace) -> str:
    """What the user asked for first."""
    texts = [one.text for one in trace.events if isinstance(one, Message) and one.role == "user"]
    if not texts:
        return "(The recording holds no request.)"
    return make_visible(truncate_middle(texts[0], max_chars=MAX_REQUEST_CHARS))


def render_outline(trace: Trace, cited: Collection[int]) -> str:
    """A line an event: both ends of the session, and all from before the first to after the last
    event that is cited, as what is missing shows only there; less of it where that is long."""
    first, last = min(cited, default=0), max(cited, default=0)
    shown = set(range(first - OUTLINE_NEAR, last + OUTLINE_NEAR + 1))
    if len(shown) > MAX_OUTLINE_EVENTS:
        shown = _numbers_near(cited, OUTLINE_NEAR)
    end = len(trace.events) - OUTLINE_ENDS
    chosen = [
        event
        for place, event in enumerate(trace.events)
        if event.number in shown or place < OUTLINE_ENDS or place >= end
    ]
    lines = (f"{'*' if event.number in cited else ' '}{outline_event(event)}" for event in chosen)
    return "\n".join(_mark_gaps(chosen, lines))


def render_cited(trace: Trace, cited: Collection[int]) -> str:
    """The events that are cited, each with those around it."""
    near = _numbers_near(cited, CONTEXT_EVENTS)
    chosen = [event for event in trace.events if event.number in near]
    texts = (
        render_event(event, MAX_CITED_CHARS if event.number in cited else MAX_CONTEXT_CHARS)
        for event in chosen
    )
    return "\n".join(_mark_gaps(chosen, texts))


def render_session(trace: Trace, most: int = MAX_CITED_CHARS) -> str:
    """A whole session, event by event."""
    return "\n".join(render_event(event, most) for event in trace.events)


def outline_event(event: AnyEvent) -> str:
    """One event in one line: its title, or the beginning of what was said."""
    title, body, _ = describe_trace_event(event)
    end = ""
    if isinstance(event, Command):
        # The title's first line ends in the exit code, which must not be cut off.
        _, arrow, code = title.partition("\n")[0].rpartition("   → ")
        title, end = f"$ {event.command}", arrow + code
    elif not isinstance(event, Edit | Read | ToolUse):
        title = f"{title}: {body or ''}"
    line = truncate_words(title, OUTLINE_CHARS)
    return f"{_event_head(event)} {make_visible(line + end)}"


def render_event(event: AnyEvent, most: int) -> str:
    """One event with its text, the middle left out where it is long."""
    title, body, _ = describe_trace_event(event)
    if isinstance(event, Read):
        body = event.text
    head, *more = truncate_middle(title, max_chars=most).splitlines() or [""]
    rest = "\n".join([*more, truncate_middle(body or "", max_chars=most)]).strip("\n")
    first = f"{_event_head(event)} {make_visible(head)}"
    return f"{first}\n{_indent(make_visible(rest))}" if rest else first


def _numbers_near(cited: Iterable[int], distance: int) -> set[int]:
    return {number for one in cited for number in range(one - distance, one + distance + 1)}


def _event_head(event: AnyEvent) -> str:
    lane = "" if event.lane == "root" else f" [{make_visible(event.lane)[:20]}]"
    return f"#{event.number}{lane}"


def _mark_gaps(events: list[AnyEvent], texts: Iterator[str]) -> Iterator[str]:
    """With a line wherever events are left out between two texts."""
    last = 0
    for event, text in zip(events, texts, strict=True):
        if event.number > last + 1:
            yield f"  … {event.number - last - 1} events left out …"
        last = event.number
        yield text


def _indent(text: str) -> str:
    return textwrap.indent(text, "    ")
