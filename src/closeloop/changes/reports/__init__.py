"""A report in the formats that people, hosts and other tools read."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.model.errors import unknown
from closeloop.model.finding import Rule
from closeloop.model.report import Report

FORMATS = ("gitlab", "junit", "markdown", "sarif")


def render(format: str, report: Report, rules: Sequence[Rule] = ()) -> str:  # noqa: A002
    """The text of a file in that format; BadInput names those there are."""
    import msgspec

    from closeloop.changes.reports import gitlab, junit, markdown, sarif

    made: object
    match format:
        case "markdown":
            return markdown.comment(report)
        case "junit":
            return junit.junit(report)
        case "sarif":
            made = sarif.of_report(report, rules)
        case "gitlab":
            made = gitlab.code_quality(report)
        case _:
            raise unknown("report format", format, FORMATS)
    return msgspec.json.format(msgspec.json.encode(made)).decode() + "\n"
