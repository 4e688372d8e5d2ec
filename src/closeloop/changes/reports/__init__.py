"""A report in the formats that people, hosts and other tools read."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.records.change import ChangeReport
from closeloop.records.errors import unknown_name_error
from closeloop.records.finding import Rule

REPORT_FORMATS = ("gitlab", "junit", "markdown", "sarif")


def render_report(format: str, report: ChangeReport, rules: Sequence[Rule] = ()) -> str:  # noqa: A002
    """The text of a file in that format; BadInput names those there are."""
    import msgspec

    from closeloop.changes.reports import markdown_report, report_files

    document: object
    match format:
        case "markdown":
            return markdown_report.render_comment(report)
        case "junit":
            return report_files.render_junit(report)
        case "sarif":
            document = report_files.sarif_from_report(report, rules)
        case "gitlab":
            document = report_files.build_code_quality(report)
        case _:
            raise unknown_name_error("report format", format, REPORT_FORMATS)
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"
