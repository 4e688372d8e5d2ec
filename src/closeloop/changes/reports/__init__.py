"""A report in the formats that people, hosts and other tools read."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.records.change_report import ChangeReport
from closeloop.records.errors import unknown_name_error
from closeloop.records.finding import Rule

REPORT_FORMATS = ("gitlab", "junit", "markdown", "sarif")


def render_report(format: str, report: ChangeReport, rules: Sequence[Rule] = ()) -> str:  # noqa: A002
    """The text of a file in that format; BadInput names those there are."""
    import msgspec

    from closeloop.changes.reports import gitlab_report, junit_report, markdown_report, sarif_report

    document: object
    match format:
        case "markdown":
            return markdown_report.render_comment(report)
        case "junit":
            return junit_report.render_junit(report)
        case "sarif":
            document = sarif_report.sarif_from_report(report, rules)
        case "gitlab":
            document = gitlab_report.build_code_quality(report)
        case _:
            raise unknown_name_error("report format", format, REPORT_FORMATS)
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"
