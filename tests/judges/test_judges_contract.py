"""Every judge that is installed keeps to what the others count on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from closeloop import plugins
from closeloop.contracts import SECRET_MARK, check_judge
from closeloop.judges import checks
from closeloop.records.evaluation import JudgeCase, PosedQuestion, Rubric


@pytest.mark.parametrize("name", plugins.installed_plugins("judges"))
def test_the_judge_keeps_the_contract(name: str) -> None:
    check_judge(plugins.load_plugin("judges", name))


def test_a_judge_that_puts_the_work_into_its_instructions_is_found_out() -> None:
    def pose(case: JudgeCase, rubric: Rubric, temperature: float) -> PosedQuestion:
        posed = checks.pose(case, rubric, temperature)
        system = f"{posed.request.system} {SECRET_MARK}"
        return replace(posed, request=replace(posed.request, system=system))

    careless = SimpleNamespace(name="careless", version=1, pose=pose, read=checks.read)
    with pytest.raises(AssertionError, match="instructions"):
        check_judge(careless)
