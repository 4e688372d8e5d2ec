"""Write the pages that are made of the code: `make docs`. A rule's docstring is its page."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from closeloop import plugins
from closeloop.process.rule_quality import (
    RuleQuality,
    decide_gate,
    describe_readers,
    quality_by_rule,
)
from closeloop.records.estimate import Rate
from closeloop.records.finding import Rule

RULES = Path(__file__).resolve().parent / "rules"


def render_rule_pages() -> dict[Path, str]:
    """The page of every rule that ships: its docstring, and how often it was right."""
    known = quality_by_rule()
    return {
        RULES / f"{one.rule.name}.md": f"# {one.rule.name}\n\n{inspect.getdoc(one)}\n\n"
        + render_rule_quality(one.rule, known.get(one.rule.name))
        for one in plugins.load_plugins("detectors")
    }


def render_rule_quality(rule: Rule, quality: RuleQuality | None) -> str:
    """The last section: both sets, and what follows for the gate."""
    read = quality.read if quality else None
    gate = decide_gate(rule, read)
    rows = (
        ("real sessions, read one by one", read.precision if read else None,
         read.recall if read else None),
        ("labelled examples", quality.precision if quality else None,
         quality.recall if quality else None),
    )  # fmt: skip
    return "\n".join(
        (
            "## How often it is right",
            "",
            "| | precision | recall |",
            "| --- | --- | --- |",
            *(f"| {name} | {_rate(first)} | {_rate(second)} |" for name, first, second in rows),
            "",
            f"Version {rule.version} {'gates' if gate.gates else 'advises'}: {gate.reason}"
            " ([how this is read](../reading-findings.md)).",
            *(("", describe_readers(quality.readers)) if quality and quality.readers else ()),
            "",
        )
    )


def _rate(rate: Rate | None) -> str:
    return "–" if rate is None else f"{rate.hits:g} of {rate.of} ({rate.low:.2f}–{rate.high:.2f})"


def main() -> int:
    """Write what differs, and name it."""
    for path, text in render_rule_pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
