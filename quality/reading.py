"""Read findings on real sessions one by one: how often is a rule right, and what does it miss?

    python quality/reading.py FOLDER … --reader NAME                   read on this terminal
    python quality/reading.py FOLDER … --export OUT                    files for readers elsewhere
    python quality/reading.py --verdicts OUT/answers.csv --reader NAME take their answers back
    python quality/reading.py FOLDER … --sessions 60 [--export OUT]    whole sessions, for recall
    python quality/reading.py FOLDER … --sessions 60 --verdicts OUT/answers.csv --reader NAME
    python quality/reading.py FOLDER … --refresh                       after a rule was changed
    python quality/reading.py [--write]                                print, or publish, the table

FOLDER holds recordings in any format that `closeloop import` reads. `docs/reading-findings.md` says
more. Verdicts go to quality/readings/SOURCE.jsonl: ids, numbers and names, no text of a recording.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import page
from own import scores
from reading_answers import (
    ITEMS,
    ReaderName,
    export_findings,
    export_sessions,
    notes_from_answers,
    read_answers,
    verdicts_from_answers,
)
from reading_records import (
    READINGS,
    ReadingLine,
    count_readings,
    latest_notes,
    load_readings,
    readings_path,
    save_reading,
    summarise_readings,
)
from reading_sample import (
    SampledFinding,
    SessionSet,
    carry_verdicts,
    count_findings,
    count_met_failures,
    list_absent_sessions,
    open_sessions,
    refresh_notes,
    sample_findings,
    sample_sessions,
)
from reading_terminal import read_findings, read_sessions

from closeloop import plugins
from closeloop.process.rulebook import decide_gate, rate_readings
from closeloop.records.errors import BadInput, Fault
from closeloop.records.estimate import wilson_rate


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    options.add_argument("--source", help="name of this set of sessions; else the folder's")
    options.add_argument("--rule", action="append", default=[], help="only this one; repeatable")
    options.add_argument("--each", type=int, default=30, help="findings of each rule: 30")
    options.add_argument("--per-session", type=int, default=1, help="of a rule in a session: 1")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--sessions", type=int, metavar="N", help="read N whole sessions")
    options.add_argument("--reader", help="who reads")
    options.add_argument("--model", action="store_true", help="the reader is a model")
    options.add_argument("--export", type=Path, metavar="OUT")
    options.add_argument("--verdicts", type=Path, metavar="FILE", help="answers, CSV or JSON lines")
    options.add_argument("--items", type=Path, help="the items.jsonl of the answers; else beside")
    options.add_argument("--count", action="store_true", help="only count what the rules find")
    options.add_argument("--refresh", action="store_true", help="hold readings against new rules")
    options.add_argument("--write", action="store_true", help="write docs and quality.json")
    options.add_argument("--readings", type=Path, default=READINGS, help=argparse.SUPPRESS)
    return options.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the options say; 2 where they cannot be followed."""
    given = parse_options(arguments)
    try:
        if given.folders:
            source = given.source or given.folders[0].resolve().name
            readings_path(source)
            with open_sessions(given.folders, source) as known:
                work_on_sessions(given, known)
        elif given.verdicts:
            items = given.items or given.verdicts.with_name(ITEMS)
            rows = read_answers(given.verdicts)
            verdicts = list(verdicts_from_answers(rows, items, name_reader(given)))
            for verdict in verdicts:
                save_reading(verdict, given.readings)
            sys.stdout.write(f"{len(verdicts)} verdicts taken over.\n")
        else:
            report_readings(given.readings, write=given.write)
    except Fault as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def work_on_sessions(given: argparse.Namespace, known: SessionSet) -> None:
    """Whatever needs the recordings themselves."""
    sample = sample_findings(
        known, rules=given.rule, each=given.each, per_session=given.per_session, seed=given.seed
    )
    whole = sample_sessions(known, given.sessions or 0, given.seed)
    if given.refresh:
        refresh_readings(sample, known, given.readings)
    elif given.count:
        for rule, findings, sessions in count_findings(known):
            sys.stdout.write(f"{rule:32} {findings:6} findings in {sessions} sessions\n")
    elif given.export and given.sessions:
        export_sessions(whole, known, given.export)
        sys.stdout.write(f"{len(whole)} sessions are in {given.export}.\n")
    elif given.export:
        export_findings(sample, known, given.export)
        sys.stdout.write(f"{len(sample)} findings are in {given.export}.\n")
    elif given.verdicts:
        rows = read_answers(given.verdicts)
        notes = list(notes_from_answers(rows, known, rule_versions(), name_reader(given)))
        for one in notes:
            save_reading(one, given.readings)
        sys.stdout.write(f"{len(notes)} sessions taken over.\n")
    elif given.sessions:
        read_sessions(whole, known, rule_versions(), name_reader(given), given.readings)
    else:
        read_findings(sample, known, name_reader(given), given.readings)


def refresh_readings(sample: Sequence[SampledFinding], known: SessionSet, folder: Path) -> None:
    """After rules were changed: keep what still holds, and compare whole sessions anew."""
    lines = load_readings(folder)
    carried = carry_verdicts(sample, lines)
    refreshed = list(refresh_notes(latest_notes(lines), known, rule_versions()))
    for line in (*carried, *refreshed):
        save_reading(line, folder)
    outdated = sum(one.outdated for one in refreshed)
    sys.stdout.write(
        f"{len(carried)} verdicts of earlier versions still hold; "
        f"{len(refreshed) - outdated} sessions compared anew, {outdated} have to be read again.\n"
    )
    absent = list_absent_sessions(lines, known)
    if absent:
        sys.stdout.write(
            f"{len(absent)} sessions that were read are not in these folders, and stay as they "
            f"were: {', '.join(absent[:5])}{', …' if absent[5:] else ''}\n"
        )
    print_met_failures(load_readings(folder), known)


def print_met_failures(lines: Sequence[ReadingLine], known: SessionSet) -> None:
    """How many of the failures noted in this source the rules meet."""
    versions = rule_versions()
    counts = count_readings(lines, versions)
    rules = [one.rule for one in plugins.load_plugins("detectors")]
    gating = {
        rule.name for rule in rules if decide_gate(rule, rate_readings(counts.get(rule.name))).gates
    }
    met = count_met_failures(lines, known, versions, gating)
    for count, words in (
        (met.by_own_rule, "by the rule that is about it"),
        (met.by_any_rule, "by any rule"),
        (met.by_gating_rule, "by a rule that gates"),
    ):
        rate = page.told(wilson_rate(count, met.failures))
        sys.stdout.write(f"failures met {words}: {count}: {rate}\n")
    sys.stdout.write(f"by any rule, at any other place of the session: {met.elsewhere:.1f}\n")


def name_reader(given: argparse.Namespace) -> ReaderName:
    if not given.reader:
        raise BadInput("Say who reads: --reader NAME, and --model where it is none of us people.")
    return ReaderName(
        reader=given.reader,
        by="model" if given.model else "person",
        date=str(datetime.now(UTC).date()),
    )


def rule_versions() -> dict[str, int]:
    return {one.rule.name: one.rule.version for one in plugins.load_plugins("detectors")}


def report_readings(folder: Path, *, write: bool) -> None:
    """Print the tables; with `write`, put them and the counts where they are published."""
    lines, versions = load_readings(folder), rule_versions()
    counts, summary = count_readings(lines, versions), summarise_readings(lines, versions)
    own = scores()
    tables = {
        "rules": page.rules(own, counts),
        "reading": page.reading(summary),
        "cases": page.cases(own),
    }
    sys.stdout.write(f"{tables['rules']}\n\n{tables['reading']}\n")
    if write:
        page.write(tables)
        page.keep(own, counts, summary)


if __name__ == "__main__":
    sys.exit(main())
