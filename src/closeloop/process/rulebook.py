"""Which rules apply, and by which numbers: the installed ones, as the project has set them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from closeloop.code_digest import digest_code
from closeloop.process.rule_quality import (
    GateDecision,
    RuleQuality,
    decide_gate,
    quality_by_rule,
)
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.protocols import Detector
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import SilenceSettings

MEASURE_MODULES = ("closeloop.process.trace_measurement", "closeloop.process.trace_reading")
"""What reads and measures a trace, besides the rules."""
SWITCHES = ("enabled", "gates")
"""What can be set of every rule, besides its thresholds."""


class ConfiguredDetector(Record):
    """A detector with its thresholds as they are set here."""

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
    """Whether a change that nobody reviewed may count as completed: `pulls` in the settings."""
    identity: str = ""
    """Equal rulebooks say the same of a trace: a digest of the code that measures, of the rules
    and of their settings."""


def build_rulebook(
    detectors: Sequence[Detector],
    settings: Mapping[str, Mapping[str, bool | float]],
    silences: Iterable[SilenceSettings] = (),
    own_checks: Iterable[str] = (),
) -> Rulebook:
    """Those of the detectors that are switched on."""
    names = {detector.rule.name: detector.rule for detector in detectors}
    for name, given in settings.items():
        if name not in names:
            raise unknown_name_error("rule", name, names)
        for key, value in given.items():
            _check_rule_setting(name, key, value, names[name].thresholds)
    all_silences = tuple(silences)
    for silence in all_silences:
        if silence.rule not in names:
            raise unknown_name_error("rule", silence.rule, names)
        if not silence.reason.strip():
            raise BadInput(f"Say in `reason` why findings of {silence.rule!r} are not to count.")
    known_quality = quality_by_rule()
    chosen = tuple(
        _configure_detector(
            detector,
            settings.get(detector.rule.name, {}),
            known_quality.get(detector.rule.name),
        )
        for detector in sorted(detectors, key=lambda detector: detector.rule.name)
        if settings.get(detector.rule.name, {}).get("enabled", True)
    )
    commands = tuple(dict.fromkeys(own_checks))
    rule_modules = sorted({name for one in chosen for name in _list_modules(one.detector)})
    return Rulebook(
        chosen=chosen,
        silences=all_silences,
        own_checks=commands,
        identity=content_digest(
            digest_code(*MEASURE_MODULES, *rule_modules),
            [(one.detector.rule.name, one.detector.rule.version, one.limits) for one in chosen],
            all_silences,
            commands,
        )[:16],
    )


def _configure_detector(
    detector: Detector, given: Mapping[str, bool | float], quality: RuleQuality | None
) -> ConfiguredDetector:
    gates = given.get("gates")
    return ConfiguredDetector(
        detector=detector,
        limits={
            key: float(given.get(key, default)) for key, default in detector.rule.thresholds.items()
        },
        gate=decide_gate(
            detector.rule,
            quality.read if quality else None,
            None if gates is None else bool(gates),
        ),
    )


def list_gating_rules(book: Rulebook) -> frozenset[str]:
    """The names of the rules whose findings may fail a build."""
    return frozenset(one.detector.rule.name for one in book.chosen if one.gate.gates)


def _list_modules(detector: Detector) -> set[str]:
    """Where a rule's code begins: it is a module, or an object with the same names."""
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
            raise BadInput(f"`{key}` of the rule {rule!r} is true or false, not {value!r}.")
    elif key not in thresholds:
        raise unknown_name_error(f"setting of the rule {rule!r}", key, [*SWITCHES, *thresholds])
    elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadInput(f"`{key}` of the rule {rule!r} is a number from 0 up, not {value!r}.")
