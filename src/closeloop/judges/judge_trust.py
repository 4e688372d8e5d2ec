"""What a judge's word is worth: whether it may block, or only advises."""

from __future__ import annotations

from closeloop.judges.rubric_scoring import reaches_threshold
from closeloop.records.evaluation import Evaluation, Evaluations
from closeloop.store import Store


def list_blocking_reasons(made: Evaluations, store: Store) -> list[str]:
    """Why the work must not go on: facts, and judges that people have found reliable."""
    return [why for one in made.evaluations for why in _evaluation_reasons(one, store)]


def _evaluation_reasons(one: Evaluation, store: Store) -> list[str]:
    if one.passed is not False:
        return []
    facts = [issue.text for issue in one.issues if issue.criterion is None]
    if facts:
        return [f"{one.task}: {text}" for text in facts]
    calibration = store.judged.load_calibration(one.judge)
    if calibration is None:
        return []
    trusted = {trust.asked for trust in calibration.trust if trust.may_block}
    failed = {
        part.name
        for part in one.criteria
        if part.score is not None and not reaches_threshold(part.score, calibration.judge.floor)
    }
    if "overall" in trusted:
        return [f"{one.task}: it fails, and this judge may block"]
    return [f"{one.task}: its {name} fails, and this judge may block" for name in failed & trusted]
