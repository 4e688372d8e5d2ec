"""A judge held against people: how far it agrees, what its rates come to, whether it may block."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from math import sqrt
from typing import get_args

from closeloop.judges.scoring import reaches
from closeloop.judging.labels import Verdicts
from closeloop.model.calibration import Asked, Calibration, Drift, Label, Trust, Word
from closeloop.model.errors import BadInput
from closeloop.model.estimate import Agreement, Corrected, Estimate
from closeloop.model.evaluation import Evaluation, JudgeVersion
from closeloop.model.plural import plural
from closeloop.model.rates import Rate, rate
from closeloop.stats.agreement import agreement
from closeloop.stats.corrected import prediction_powered, rogan_gladen
from closeloop.stats.ratios import pooled

LEAST_ITEMS = 30
LEAST_DOUBLED = 0.2
AC1_FLOOR = 0.6
CLASS_FLOOR = 0.5
MOST_CHANGED = 20


def calibrate(
    judge: JudgeVersion, labels: Sequence[Label], verdicts: Verdicts, at: datetime
) -> Calibration:
    """All that labels and verdicts of the same items say; BadInput where there are none."""
    truth = consensus(labels)
    trust = [one for asked in get_args(Asked) if (one := trust_in(asked, truth, verdicts))]
    if not trust:
        raise BadInput(
            "No labelled item has a verdict of this judge: run `closeloop judge` on them first."
        )
    doubled = share_doubled(labels)
    return Calibration(
        judge=judge,
        at=at,
        items=len({item for item, _ in truth}),
        doubled=doubled,
        trust=tuple(trust),
        people=between_people(labels),
        golden=golden_rates(labels),
        notes=tuple(notes(labels, truth, verdicts, doubled)),
    )


def consensus(labels: Sequence[Label]) -> Verdicts:
    """What is so: what is known, else what most people say; of a tie nothing."""
    votes: dict[tuple[str, Asked], Counter[Word]] = defaultdict(Counter)
    for label in labels:
        votes[label.item, label.asked][label.label] += len(labels) + 1 if label.golden else 1
    found: Verdicts = {}
    for key, counts in votes.items():
        if counts["pass"] != counts["fail"]:
            found[key] = "pass" if counts["pass"] > counts["fail"] else "fail"
    return found


def trust_in(asked: Asked, truth: Verdicts, verdicts: Verdicts) -> Trust | None:
    """Of one criterion, or the whole; None where no item has both."""
    pairs = [
        (verdicts[key], label)
        for key, label in truth.items()
        if key[1] == asked and key in verdicts
    ]
    found = agreement(pairs)
    if found is None:
        return None
    judged = [word for (_, about), word in verdicts.items() if about == asked]
    alone = [word for key, word in verdicts.items() if key[1] == asked and key not in truth]
    why_not = obstacle(found, len(pairs))
    return Trust(
        asked=asked,
        agreement=found,
        judged=len(judged),
        passed=judged.count("pass"),
        corrected=rogan_gladen(judged.count("pass"), len(judged), found),
        powered=powered(pairs, alone, found) if len(alone) > 1 else None,
        may_block=why_not is None,
        why_not=why_not,
    )


def powered(
    pairs: Sequence[tuple[Word, Word]], alone: Sequence[Word], found: Agreement
) -> Corrected:
    """The share of passes, by what the judge says of items that nobody labelled."""
    labelled = [(float(one == "pass"), float(other == "pass")) for one, other in pairs]
    return prediction_powered(labelled, [float(word == "pass") for word in alone], found)


def obstacle(found: Agreement, items: int) -> str | None:
    """Why a judge only advises."""
    if items < LEAST_ITEMS:
        return f"{items} labelled items, {LEAST_ITEMS} are the least"
    if found.ac1.low < AC1_FLOOR:
        return f"AC1 may be as low as {found.ac1.low:.2f}, under {AC1_FLOOR}"
    for name in ("sensitivity", "specificity"):
        share: Estimate | None = getattr(found, name)
        if share is None:
            return f"no items to tell its {name} by"
        if share.low <= CLASS_FLOOR:
            return f"its {name} may be as low as {share.low:.2f}"
    return None


def share_doubled(labels: Sequence[Label]) -> float:
    people: dict[tuple[str, Asked], set[str]] = defaultdict(set)
    for label in labels:
        if not label.golden:
            people[label.item, label.asked].add(label.person)
    return sum(len(names) > 1 for names in people.values()) / len(people) if people else 0.0


def between_people(labels: Sequence[Label]) -> Agreement | None:
    """How far people agree themselves: more cannot be asked of a judge."""
    said: dict[tuple[str, Asked], dict[str, Word]] = defaultdict(dict)
    for label in labels:
        if not label.golden:
            said[label.item, label.asked][label.person] = label.label
    pairs = [
        (words[0], words[1])
        for by_person in said.values()
        if len(words := [by_person[name] for name in sorted(by_person)]) > 1
    ]
    return agreement(pairs)


def golden_rates(labels: Sequence[Label]) -> dict[str, Rate]:
    """By person, how often they say what is known to be so."""
    known = {(one.item, one.asked): one.label for one in labels if one.golden}
    right: dict[str, list[bool]] = defaultdict(list)
    for one in labels:
        if not one.golden and (one.item, one.asked) in known:
            right[one.person].append(one.label == known[one.item, one.asked])
    found = {name: rate(sum(hits), len(hits)) for name, hits in sorted(right.items())}
    return {name: one for name, one in found.items() if one is not None}


def notes(
    labels: Sequence[Label], truth: Verdicts, verdicts: Verdicts, doubled: float
) -> list[str]:
    """What is wanting."""
    items = {item for item, _ in truth}
    said = []
    if len(items) < LEAST_ITEMS:
        are = plural(len(items), "item is", "items are")
        said.append(f"Only {are} labelled: {LEAST_ITEMS} are the least.")
    if doubled < LEAST_DOUBLED:
        least = f"{LEAST_DOUBLED:.0%} are the least"
        said.append(f"{doubled:.0%} of the items have labels of two people: {least}.")
    split = len({(one.item, one.asked) for one in labels}) - len(truth)
    if split:
        said.append(f"{plural(split, 'item is', 'items are')} left out, as people disagree evenly.")
    missing = sum(key not in verdicts for key in truth)
    if missing:
        are = plural(missing, "label is", "labels are")
        said.append(f"{are} for what the judge has not judged or abstained from.")
    return said


# From stored evaluations


def verdicts_of(judged: Sequence[tuple[str, Evaluation]], judge: JudgeVersion) -> Verdicts:
    """As words: the whole by whether it passes, a criterion by the floor under which it fails."""
    found: Verdicts = {}
    for item, one in judged:
        if one.passed is not None:
            found[item, "overall"] = "pass" if one.passed else "fail"
        for part in one.criteria:
            if part.score is not None:
                found[item, part.name] = "pass" if reaches(part.score, judge.floor) else "fail"
    return found


def retest(judged: Sequence[Evaluation]) -> Estimate | None:
    """The spread of scores of the same output, asked again; None where nothing was."""
    groups = [[s.score for s in one.samples if s.score is not None] for one in judged]
    again: dict[str, list[float]] = defaultdict(list)
    for one in judged:
        if one.attempt and not one.samples and one.score is not None:
            again[one.attempt].append(one.score)
    known = [group for group in (*groups, *again.values()) if len(group) > 1]
    within, freedom = pooled(known)
    if not freedom:
        return None
    spread = sqrt(within)
    half = 1.96 * spread / sqrt(2 * freedom)
    return Estimate(
        value=spread,
        low=max(0.0, spread - half),
        high=spread + half,
        n=len(known),
        method="pooled standard deviation of outputs asked again",
    )


def drift(before: JudgeVersion, then: Verdicts, judge: JudgeVersion, now: Verdicts) -> Drift | None:
    """What another version said of the same items; None where there are none."""
    both = [key for key in then if key in now and key[1] == "overall"]
    if not both:
        return None
    changed = [key for key in both if then[key] != now[key]]
    return Drift(
        before=before,
        same=rate(len(both) - len(changed), len(both)),
        changed=tuple(f"{key[0]}: {then[key]} → {now[key]}" for key in changed[:MOST_CHANGED]),
        changes=differences(before, judge),
    )


def differences(one: JudgeVersion, other: JudgeVersion) -> tuple[str, ...]:
    names = {
        "model": ("model", "model_digest", "members"),
        "rubric": ("rubric_digest",),
        "prompt": ("prompt",),
        "temperature": ("temperature",),
    }
    return tuple(
        name
        for name, fields in names.items()
        if any(getattr(one, field) != getattr(other, field) for field in fields)
    )
