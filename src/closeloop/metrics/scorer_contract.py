"""What the rest of closeloop counts on in a scorer, as a test that its author can call.

from closeloop.metrics.scorer_contract import check_scorer

def test_the_scorer_keeps_the_contract():
    check_scorer(scorer)
"""

from __future__ import annotations

import msgspec

from closeloop.metrics.score_columns import read_scorer_answer
from closeloop.metrics.score_definitions import build_catalogue
from closeloop.records.attempt import Attempt
from closeloop.records.change import Change
from closeloop.records.protocols import ScoredAttempt, Scorer
from closeloop.records.task import Task
from closeloop.records.trace import Trace


def check_scorer(scorer: Scorer, *shown: ScoredAttempt) -> None:
    """AssertionError says what the scorer does not keep to; give it attempts of your own, too."""
    assert scorer.scores, "a scorer without scores scores nothing"
    build_catalogue({}, [scorer])  # BadInput of a name that is taken, or of a range that is none
    attempt = Attempt(id="0", origin="production", exit="finished")
    trace = Trace(reader="none", reader_version=1)
    bare = ScoredAttempt(attempt=attempt)
    whole = ScoredAttempt(
        attempt=attempt, task=Task(id="t", prompt="Please."), trace=trace, change=Change(base=None)
    )
    for one in (bare, whole, *shown):
        before = msgspec.json.encode(one)
        answer = scorer.score_attempt(one)
        read_scorer_answer(scorer, answer)  # a Fault of what is not declared or out of range
        assert dict(answer) == dict(scorer.score_attempt(one)), "the same attempt, other scores"
        assert msgspec.json.encode(one) == before, "what is shown must not be changed"
