"""Which rules apply with which thresholds: the installed ones with the project's settings."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import msgspec

from closeloop import plugins
from closeloop.code_digest import digest_code, load_derived, save_derived
from closeloop.records.change import TraceReading
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import Estimate, Rate, wilson_rate
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.protocols import Detector
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import SilenceSettings
from closeloop.text.wording import count_with_noun, format_percent

# How often each rule is right, from two sets, and whether that is enough to fail a build.
#
# Labelled examples show that a rule follows its definition. Findings on real sessions that nobody
# tuned on, reviewed one by one, show how often it is right: only these decide whether it may gate.


MIN_READ_FINDINGS = 20
"""Findings of a rule that must be read before it may gate."""
MIN_PRECISION_BOUND = 0.7
"""Minimum lower Wilson bound of its precision: 19 of 20, 27 of 30, 36 of 40 reach it."""


class RuleCounts(Record):
    """Labelled examples in which a rule was right, silent, or wrong."""

    right: int
    missed: int
    wrong: int
    labelled: int


class ReadingCounts(Record):
    """Readers' verdicts on a rule's findings in real sessions."""

    version: int
    """Version of the rule that was read; another version has other findings."""
    right: int = 0
    wrong: int = 0
    unsure: int = 0
    """Undecided by the evidence: counted as read and not as right."""
    caught: int = 0
    """Failures noted by readers in whole sessions that the rule found."""
    missed: int = 0


class ReaderAgreement(Record):
    """Agreement of two readers on the items that both read."""

    agreeing: Estimate
    kappa: Estimate | None = None
    """Cohen's; None where all labels are the same."""
    ac1: Estimate
    """Gwet's."""


class ReaderCounts(Record):
    """One reader's verdicts on one version of a rule."""

    reader: str
    version: int
    right: int
    read: int


class RuleReaders(Record):
    """All readers of a rule's findings, including earlier versions."""

    counts: tuple[ReaderCounts, ...]
    shared: int = 0
    """Number of pairs of readings of one finding."""
    agreeing: int = 0


class ReadingSummary(Record):
    """Who read what, and how far readers agree."""

    people: int = 0
    models: int = 0
    """Number of readers that are models."""
    findings: int = 0
    sessions: int = 0
    """Number of whole sessions."""
    failures: int = 0
    """Clear process failures noted in these, including those that no rule is about."""
    caught: int = 0
    """Those found by the rule that is about them."""
    caught_otherwise: int = 0
    """Those found at the same events only by another rule."""
    finding_agreement: ReaderAgreement | None = None
    session_agreement: ReaderAgreement | None = None
    """Agreement on whether a whole session shows a clear process failure."""
    readers: dict[str, RuleReaders] = {}
    """By rule."""


class MeasuredQuality(Record):
    """The measured quality of all rules, with its source."""

    date: str
    method: str
    rules: dict[str, RuleCounts]
    readings: dict[str, ReadingCounts] = {}
    reading_summary: ReadingSummary = ReadingSummary()


class ReadQuality(Record):
    """Quality of a rule on real sessions that were read."""

    version: int
    precision: Rate | None
    """Right findings of those read; None if none was."""
    unsure: int
    recall: Rate | None
    """Failures noted in whole sessions that it found; None if none was noted."""


class RuleQuality(Record):
    """How far a rule can be trusted."""

    precision: Rate | None
    """On labelled examples; None if it found nothing."""
    recall: Rate | None
    """Share of what is there that it finds; None if there was nothing."""
    labelled: int
    """Number of labelled traces for this rule."""
    read: ReadQuality | None = None
    """On real sessions; None if nobody read any."""
    readers: RuleReaders | None = None


class GateDecision(Record):
    """Whether the findings of a rule may fail a build, and why."""

    gates: bool
    reason: str


@cache
def load_measured_quality() -> MeasuredQuality:
    """Load the counts that ship with closeloop; `make quality` and `make reading` write them."""
    text = Path(__file__).with_name("quality.json").read_bytes()
    return msgspec.json.decode(text, type=MeasuredQuality)


def quality_by_rule() -> dict[str, RuleQuality]:
    """Return the quality by rule; unmeasured rules are missing."""
    measured = load_measured_quality()
    return {
        name: RuleQuality(
            precision=wilson_rate(counts.right, counts.right + counts.wrong),
            recall=wilson_rate(counts.right, counts.right + counts.missed),
            labelled=counts.labelled,
            read=rate_readings(measured.readings.get(name)),
            readers=measured.reading_summary.readers.get(name),
        )
        for name, counts in measured.rules.items()
    }


def rate_readings(counts: ReadingCounts | None) -> ReadQuality | None:
    """Convert counts to rates with intervals."""
    if counts is None:
        return None
    return ReadQuality(
        version=counts.version,
        precision=wilson_rate(counts.right, counts.right + counts.wrong + counts.unsure),
        unsure=counts.unsure,
        recall=wilson_rate(counts.caught, counts.caught + counts.missed),
    )


def decide_gate(rule: Rule, read: ReadQuality | None, setting: bool | None = None) -> GateDecision:
    """Whether a rule gates: as configured, else by the readings of this version."""
    if setting is not None:
        return GateDecision(gates=setting, reason="set in closeloop.toml")
    if not rule.gates:
        return GateDecision(gates=False, reason="advisory by design")
    precision = read.precision if read and read.version == rule.version else None
    if precision is None:
        reason = f"no finding on real sessions was read yet; {MIN_READ_FINDINGS} are needed"
        return GateDecision(gates=False, reason=reason)
    hit_share = f"{precision.hits:g} of {precision.of} right"
    missing_count = MIN_READ_FINDINGS - precision.of
    best = wilson_rate(precision.hits + max(missing_count, 0), precision.of + max(missing_count, 0))
    assert best is not None
    if best.low < MIN_PRECISION_BOUND:
        required = format_percent(MIN_PRECISION_BOUND)
        reason = f"{hit_share}: the lower bound {100 * precision.low:.1f} % is below {required}"
        return GateDecision(gates=False, reason=reason)
    if missing_count > 0:
        verb = "has" if missing_count == 1 else "have"
        return GateDecision(
            gates=False, reason=f"{hit_share}: {missing_count} more {verb} to be read"
        )
    return GateDecision(gates=True, reason=f"{hit_share}, at least {format_percent(precision.low)}")


def describe_readers(readers: RuleReaders) -> str:
    """Describe each reader's figures and their agreement, in at most two sentences."""
    parts = [
        f"{count.reader} {count.right} of {count.read} right (version {count.version})"
        for count in readers.counts
    ]
    description = f"By reader: {', '.join(parts)}."
    if readers.shared:
        noun = "finding" if readers.shared == 1 else "findings"
        description += f" Two readers agree on {readers.agreeing} of {readers.shared} {noun}."
    return description


def describe_readings(summary: ReadingSummary) -> list[str]:
    """Describe who read what, what the rules missed, and how far readers agree."""
    people = count_with_noun(summary.people, "person", "people") if summary.people else ""
    models = count_with_noun(summary.models, "model") if summary.models else ""
    readers = " and ".join(filter(None, (people, models)))
    no_person = ", by no person" if models and not people else ""
    findings = count_with_noun(summary.findings, "finding")
    lines = [f"{findings} on real sessions read by {readers}{no_person}."]
    if summary.sessions:
        lines.append(
            f"{count_with_noun(summary.sessions, 'whole session')} read, with "
            f"{count_with_noun(summary.failures, 'clear process failure')}: "
            f"{summary.caught} found by the rule for it, {summary.caught_otherwise} "
            "only by another rule."
        )
    for subject, agreement in (
        ("findings", summary.finding_agreement),
        ("whether a session shows a failure", summary.session_agreement),
    ):
        if agreement is not None:
            lines.append(
                f"Two readers agree on {subject} in {format_percent(agreement.agreeing.value)} of "
                f"{agreement.agreeing.n} cases: Cohen's kappa {_format_estimate(agreement.kappa)}, "
                f"Gwet's AC1 {_format_estimate(agreement.ac1)}."
            )
    return lines if readers else ["No finding on real sessions was read yet."]


def _format_estimate(estimate: Estimate | None) -> str:
    return (
        "–"
        if estimate is None
        else f"{estimate.value:.2f} ({estimate.low:.2f}–{estimate.high:.2f})"
    )


MEASURE_MODULES = ("closeloop.process.trace_measurement", "closeloop.process.trace_reading")
"""Modules that read and measure a trace, besides the rules."""
SWITCHES = ("enabled", "gates")
"""Settings of every rule besides its thresholds."""


class InstalledDetector(Record):
    """A detector that is installed; its code is imported when it first reads a trace."""

    name: str
    place: str
    """Where its entry point says it is."""
    rule: Rule

    def detect(
        self, reading: TraceReading, limits: Mapping[str, float]
    ) -> Sequence[Finding] | Unmeasured:
        return _load_detector(self.name).detect(reading, limits)


@cache
def _load_detector(name: str) -> Detector:
    detector: Detector = plugins.load_plugin("detectors", name)
    return detector


def installed_detectors() -> list[InstalledDetector]:
    """Every detector that is installed, in the order of their names.

    What ships with closeloop is imported only where no earlier process has read the rules of the
    same code.
    """
    entry_points = {
        name: entry.value for name, entry in sorted(plugins.installed_plugins("detectors").items())
    }
    builtin = [
        entry_point for entry_point in entry_points.values() if entry_point.startswith("closeloop.")
    ]
    key = f"rules-{digest_code(*builtin)[:16]}"
    cached_rules = load_derived(key, dict[str, Rule]) or {}
    rules = {
        name: cached_rules.get(entry_point) or _load_detector(name).rule
        for name, entry_point in entry_points.items()
    }
    if not cached_rules.keys() >= {*builtin}:
        save_derived(
            key,
            {
                entry_points[name]: rule
                for name, rule in rules.items()
                if entry_points[name] in builtin
            },
        )
    return [
        InstalledDetector(name=name, place=entry_points[name], rule=rule)
        for name, rule in rules.items()
    ]


class ConfiguredDetector(Record):
    """A detector with its configured thresholds."""

    detector: Detector
    limits: Mapping[str, float]
    gate: GateDecision
    """Whether its findings may fail a build here."""


class Rulebook(Record):
    """All rules that are applied."""

    chosen: tuple[ConfiguredDetector, ...]
    silences: tuple[SilenceSettings, ...] = ()
    own_checks: tuple[str, ...] = ()
    """The project's own commands that check the work."""
    unreviewed_completes: bool = False
    """Whether an unreviewed change may count as completed: `pulls` in the settings."""
    identity: str = ""
    """Equal rulebooks say the same of a trace: a digest of the code that measures, of the rules
    and of their settings."""


def build_rulebook(
    detectors: Sequence[Detector],
    settings: Mapping[str, Mapping[str, bool | float]],
    silences: Iterable[SilenceSettings] = (),
    own_checks: Iterable[str] = (),
) -> Rulebook:
    """Build a rulebook of the enabled detectors."""
    names = {detector.rule.name: detector.rule for detector in detectors}
    for name, rule_settings in settings.items():
        if name not in names:
            raise unknown_name_error("rule", name, names)
        for key, value in rule_settings.items():
            _check_rule_setting(name, key, value, names[name].thresholds)
    all_silences = tuple(silences)
    for silence in all_silences:
        if silence.rule not in names:
            raise unknown_name_error("rule", silence.rule, names)
        if not silence.reason.strip():
            raise BadInput(
                f"Give the reason in `reason` why findings of {silence.rule!r} do not count."
            )
    known_quality = quality_by_rule()
    configured_detectors = tuple(
        _configure_detector(
            detector, settings.get(detector.rule.name, {}), known_quality.get(detector.rule.name)
        )
        for detector in sorted(detectors, key=lambda detector: detector.rule.name)
        if settings.get(detector.rule.name, {}).get("enabled", True)
    )
    commands = tuple(dict.fromkeys(own_checks))
    rule_modules = sorted(
        {name for configured in configured_detectors for name in _list_modules(configured.detector)}
    )
    return Rulebook(
        chosen=configured_detectors,
        silences=all_silences,
        own_checks=commands,
        identity=content_digest(
            digest_code(*MEASURE_MODULES, *rule_modules),
            [
                (configured.detector.rule.name, configured.detector.rule.version, configured.limits)
                for configured in configured_detectors
            ],
            all_silences,
            commands,
        )[:16],
    )


def _configure_detector(
    detector: Detector, settings: Mapping[str, bool | float], quality: RuleQuality | None
) -> ConfiguredDetector:
    gates = settings.get("gates")
    return ConfiguredDetector(
        detector=detector,
        limits={
            key: float(settings.get(key, default))
            for key, default in detector.rule.thresholds.items()
        },
        gate=decide_gate(
            detector.rule, quality.read if quality else None, None if gates is None else bool(gates)
        ),
    )


def list_gating_rules(rulebook: Rulebook) -> frozenset[str]:
    """Return the names of the rules whose findings may fail a build."""
    return frozenset(
        configured.detector.rule.name for configured in rulebook.chosen if configured.gate.gates
    )


def _list_modules(detector: Detector) -> set[str]:
    """Return the modules of a rule's code: a rule is a module, or an object with the same names."""
    if isinstance(detector, InstalledDetector):
        is_module = ":" not in detector.place
        return {detector.place} if is_module else _list_modules(_load_detector(detector.name))
    if isinstance(detector, ModuleType):
        return {detector.__name__}
    names = {type(detector).__module__, getattr(detector.detect, "__module__", None)}
    return {
        name for name in names if name and name.partition(".")[0] not in sys.stdlib_module_names
    }


def _check_rule_setting(
    rule: str, key: str, value: object, thresholds: Mapping[str, float]
) -> None:
    if key in SWITCHES:
        if not isinstance(value, bool):
            raise BadInput(f"`{key}` of the rule {rule!r} must be true or false, not {value!r}.")
    elif key not in thresholds:
        raise unknown_name_error(f"setting of the rule {rule!r}", key, [*SWITCHES, *thresholds])
    elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadInput(
            f"`{key}` of the rule {rule!r} must be a number of 0 or more, not {value!r}."
        )
