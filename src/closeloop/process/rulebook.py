"""Which rules apply, and by which numbers: the installed ones, as the project has set them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import ModuleType

import msgspec

from closeloop.code_digest import digest_code
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.protocols import Detector
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import SilenceSettings

MEASURE_MODULES = ("closeloop.process.trace_measurement", "closeloop.process.trace_reading")
"""What reads and measures a trace, besides the rules."""


class ConfiguredDetector(Record):
    """A detector with its thresholds as they are set here."""

    detector: Detector
    limits: Mapping[str, float]


class Rulebook(Record):
    """All rules that are applied."""

    chosen: tuple[ConfiguredDetector, ...]
    silences: tuple[SilenceSettings, ...] = ()
    own_checks: tuple[str, ...] = ()
    """The project's own commands that check the work."""
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
    chosen = tuple(
        ConfiguredDetector(
            detector=detector,
            limits={
                key: float(settings.get(detector.rule.name, {}).get(key, default))
                for key, default in detector.rule.thresholds.items()
            },
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
    if key == "enabled":
        if not isinstance(value, bool):
            raise BadInput(f"`enabled` of the rule {rule!r} is true or false, not {value!r}.")
    elif key not in thresholds:
        raise unknown_name_error(f"setting of the rule {rule!r}", key, ["enabled", *thresholds])
    elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadInput(f"`{key}` of the rule {rule!r} is a number from 0 up, not {value!r}.")


# How often each rule is right, as measured on labelled traces when it was released.


class RuleCounts(Record):
    """Cases in which a rule was right, missed what is there, and found what is not there."""

    right: int
    missed: int
    wrong: int
    labelled: int


class MeasuredQuality(Record):
    """The measured quality of all rules, with where it comes from."""

    date: str
    method: str
    rules: dict[str, RuleCounts]


class RuleQuality(Record):
    """How far a rule can be trusted."""

    precision: Rate | None
    """Of what it finds, how much is there; None where it found nothing."""
    recall: Rate | None
    """Of what is there, how much it finds; None where there was nothing."""
    labelled: int
    """Labelled traces that say of this rule whether it should speak."""


@cache
def load_measured_quality() -> MeasuredQuality:
    """The counts that ship with closeloop; `make quality` writes them."""
    text = files(__package__).joinpath("quality.json").read_bytes()
    return msgspec.json.decode(text, type=MeasuredQuality)


def quality_by_rule() -> dict[str, RuleQuality]:
    """By rule; one that was never measured is not there."""
    return {
        name: RuleQuality(
            precision=wilson_rate(counts.right, counts.right + counts.wrong),
            recall=wilson_rate(counts.right, counts.right + counts.missed),
            labelled=counts.labelled,
        )
        for name, counts in load_measured_quality().rules.items()
    }
