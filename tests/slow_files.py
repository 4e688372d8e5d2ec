"""Which files of tests take long, so that none of them is begun when all others have ended."""

from __future__ import annotations

from collections.abc import Sequence

SLOW_FILES = {
    "tests/examples/test_demo_content.py": 60,
    "tests/runs/integrity/test_integrity_javascript_forgeries.py": 50,
    "tests/web/test_browser.py": 50,
    "tests/examples/test_tutorial.py": 40,
    "tests/test_docs.py": 40,
    "tests/test_kill_commands.py": 35,
    "tests/web/test_boards_browser.py": 30,
    "tests/test_bench.py": 30,
    "tests/test_kill.py": 20,
    "tests/web/test_prompts_story.py": 15,
    "tests/web/test_schemathesis.py": 10,
}
"""Those with tests of ten seconds or more, and about how many seconds each takes on two cores."""


def order_tests(files: Sequence[str], workers: int) -> list[int]:
    """The order in which to run tests, given the file of each: positions in that list.

    Each worker process gets an equal share of the list, one after the other. The slow files are
    dealt out, so that every share begins with some; the other tests stay in their order.
    """
    slow: dict[str, list[int]] = {}
    others = []
    for position, file in enumerate(files):
        (slow.setdefault(file, []) if file in SLOW_FILES else others).append(position)
    hands: list[list[int]] = [[] for _ in range(workers)]
    seconds = [0] * workers
    for file in sorted(slow, key=lambda file: -SLOW_FILES[file]):
        least = seconds.index(min(seconds))
        hands[least] += slow[file]
        seconds[least] += SLOW_FILES[file]
    ordered: list[int] = []
    for number, hand in enumerate(hands):
        share = (len(files) - len(ordered)) // (workers - number)
        taken = max(share - len(hand), 0)
        ordered += [*hand, *others[:taken]]
        del others[:taken]
    return ordered + others
