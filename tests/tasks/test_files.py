"""Task files as people write them, and the faults they read when they err."""

from __future__ import annotations

from pathlib import Path

import pytest

import small_project
from closeloop.records.errors import BadInput
from closeloop.records.settings import CommandSettings, Settings
from closeloop.records.task import Acceptance, Task
from closeloop.tasks.task_files import load_task, load_tasks, select_tasks
from closeloop.tasks.task_sets import load_task_files

PATCH = "--- a/tests/test_new.py\n+++ b/tests/test_new.py\n@@ -1 +1 @@\n-a\n+b\n"
FULL = """\
---
id: rounding
base: 1e7
setup: make
scope: [src/billing/**]
acceptance:
  run: python -m pytest
  runner: pytest
  fail_to_pass: tests/test_bill.py::test_rounds
  pass_to_pass: ["tests/sub/test_x.py::test_a[1]", billing::tests::rounds]
  patch: hidden.patch
  commands: [ruff check .]
  timeout: 90
protected: [fixtures/**]
reference: fix.patch
facts: [no]
ambiguous: true
answers:
  currency|euro: yes
tags: [billing, 1.0]
split: held-out
version: 2
---

Fix the rounding.

--- is no fence here.
"""


def resolve(repo: str, revision: str) -> str:
    if revision == "missing":
        raise BadInput(f"{repo} has no commit 'missing'.")
    return f"id-of-{revision}"


def write(folder: Path, text: str, name: str = "x.md") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def load(folder: Path, text: str) -> Task:
    return load_task(write(folder, text), folder, resolve)


def small(
    fields: str = "", prompt: str = "Do it.", acceptance: str = "acceptance: {run: t}"
) -> str:
    return f"---\n{fields}\n{acceptance}\n---\n{prompt}\n"


def test_a_task_without_setup_uses_that_of_the_project_and_is_another_task_for_it(
    tmp_path: Path,
) -> None:
    def load_with(fields: str, *setup: str) -> Task:
        return load_task(write(tmp_path, small(fields)), tmp_path, resolve, setup)

    inherited = load_with("", "make deps")
    assert inherited.setup == ("make deps",)
    written = load_with("setup: [make deps]", "another")
    assert (inherited.digest, inherited.grading) == (written.digest, written.grading)
    changed, without = load_with("", "make other"), load_with("setup: []", "make deps")
    assert without.setup == ()
    assert load_with("setup:", "make deps") == inherited
    for of in ("digest", "grading"):
        assert len({getattr(task, of) for task in (inherited, changed, without)}) == 3
    question = load_with("repo: none", "make deps")
    assert question.setup == ()


def test_the_tasks_of_a_project_are_loaded_with_its_setup(tmp_path: Path) -> None:
    small_project.git(tmp_path, "init", "-q")
    small_project.git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Start")
    write(tmp_path, small(), "tasks/a.md")
    settings = Settings(commands=CommandSettings(setup=("make deps",)))
    assert [task.setup for task in select_tasks(settings, tmp_path, [])] == [("make deps",)]
    [one] = load_task_files(settings, tmp_path)
    assert one.task.setup == ("make deps",)


def test_a_task_is_read_whole_and_nothing_is_guessed_from_its_spelling(tmp_path: Path) -> None:
    write(tmp_path, PATCH, "hidden.patch")
    write(tmp_path, PATCH.replace("tests/test_new", "src/fix"), "fix.patch")
    task = load(tmp_path, FULL)
    assert task.id == "rounding"
    assert task.prompt == "Fix the rounding.\n\n--- is no fence here."
    assert task.base == "id-of-1e7"
    assert task.setup == ("make",)
    assert task.facts == ("no",)
    assert task.tags == ("billing", "1.0")
    assert task.answers == {"currency|euro": "yes"}
    assert (task.ambiguous, task.split, task.version) == (True, "held-out", 2)
    assert task.acceptance.fail_to_pass == ("tests/test_bill.py::test_rounds",)
    assert task.acceptance.timeout == 90
    assert task.acceptance.patch == PATCH
    assert task.reference is not None
    assert "src/fix" in task.reference


def test_the_id_is_the_file_name_and_the_base_is_head_when_not_given(tmp_path: Path) -> None:
    task = load(tmp_path, small())
    assert (task.id, task.base, task.repo) == ("x", "id-of-HEAD", str(tmp_path.resolve()))


def test_fields_without_a_value_are_absent(tmp_path: Path) -> None:
    task = load(tmp_path, small("rubric:\nreference: ~\nscope: null\nfacts: ['null', '']"))
    assert (task.rubric, task.reference, task.scope, task.facts) == (None, None, (), ("null", ""))


def test_a_repository_is_found_from_the_task_file(tmp_path: Path) -> None:
    path = write(tmp_path, small("repo: ../other"), "tasks/x.md")
    assert load_task(path, None, resolve).repo == str(tmp_path.resolve() / "other")
    for address in ("https://example.org/x.git", "git@example.org:x.git", "ssh://example.org/x"):
        assert load(tmp_path, small(f"repo: {address}")).repo == address


def test_a_task_without_a_check_is_left_to_people_and_judges(tmp_path: Path) -> None:
    assert load(tmp_path, small()).acceptance.is_given
    for text in (small(acceptance=""), "Fix it.\n"):
        task = load(tmp_path, text)
        assert (task.id, task.base, task.acceptance) == ("x", "id-of-HEAD", Acceptance())
        assert not task.acceptance.is_given
    assert task.prompt == "Fix it."


def test_a_folder_of_prompts_is_named_by_its_files(tmp_path: Path) -> None:
    write(tmp_path, "One.", "prompts/Fix the header!.md")
    write(tmp_path, "Two.\n\n---\n\nMore.", "prompts/second.md")
    small_project.git(tmp_path, "init", "-q")
    small_project.git(tmp_path, "add", ".")
    small_project.git(tmp_path, "commit", "-qm", "start")
    for place in (f"{tmp_path}/prompts/", f"{tmp_path}/prompts"):
        tasks = select_tasks(Settings(), tmp_path, [place])
        assert [task.id for task in tasks] == ["Fix-the-header", "second"]
    assert tasks[1].prompt == "Two.\n\n---\n\nMore."
    with pytest.raises(BadInput, match=r"There are no tasks in .*none"):
        select_tasks(Settings(), tmp_path, ["none/"])


def test_a_prompt_that_says_nothing_more_may_lie_in_its_base(tmp_path: Path) -> None:
    """There is no answer to read: only the request, which the agent has anyway."""
    path = write(tmp_path, "Fix it.", "prompts/x.md")
    small_project.git(tmp_path, "init", "-q")
    small_project.git(tmp_path, "add", ".")
    small_project.git(tmp_path, "commit", "-qm", "start")
    head = small_project.git(tmp_path, "rev-parse", "HEAD").strip()
    assert load_task(path, tmp_path, lambda repo, revision: head).prompt == "Fix it."
    write(tmp_path, "---\nrubric: No new dependency.\n---\nFix it.", "prompts/x.md")
    with pytest.raises(BadInput, match=r"the agent would find 'x\.md'"):
        load_task(path, tmp_path, lambda repo, revision: head)


def test_a_question_needs_no_repository(tmp_path: Path) -> None:
    question = small("repo: none", acceptance="acceptance: {answer: '(?i)utf-8'}")
    task = load_task(write(tmp_path, question), None, resolve)
    assert (task.repo, task.base) == (None, None)


def test_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    plain = load(tmp_path, small("id: x"))
    assert load(tmp_path, "\ufeff" + small("id: x").replace("\n", "\r\n")) == plain


def test_a_long_list_of_tests_is_read(tmp_path: Path) -> None:
    tests = "\n".join(f"    - tests/test_{n}.py::test_that_this_works[{n}]" for n in range(10_000))
    text = small(acceptance=f"acceptance:\n  run: t\n  pass_to_pass:\n{tests}")
    assert len(load(tmp_path, text).acceptance.pass_to_pass or ()) == 10_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (small("acceptence: {}"), "no field 'acceptence'. Did you mean 'acceptance'?"),
        (
            small(acceptance="acceptance: {run: t, fail_to_pas: []}"),
            "no field 'acceptance.fail_to_pas'. Did you mean 'acceptance.fail_to_pass'?",
        ),
        (small("digest: abc"), "no field 'digest'. Known: acceptance, ambiguous,"),
        (small("prompt: hello"), "below the front matter is the prompt"),
        (small("tags: [a]\ntags: [b]"), "line 3: the field 'tags' occurs twice"),
        (small(acceptance="acceptance: {run: a, run: b}"), "'run' occurs twice"),
        (small(prompt=""), "the prompt is missing"),
        (small(prompt="<!-- Write\n here -->\n"), "the prompt is missing"),
        (small(acceptance="acceptance: {timeout: 5}"), "'acceptance' has no check"),
        (small(acceptance="acceptance: {patch: x.patch}"), "'acceptance' has no check"),
        (small(acceptance="acceptance: pytest"), "'acceptance' must be a section with fields"),
        (small(acceptance="acceptance: {commands: t, fail_to_pass: x}"), "needs 'acceptance.run'"),
        (
            small(acceptance="acceptance: {run: t, timeout: soon}"),
            "'acceptance.timeout' must be a n",
        ),
        (
            small(acceptance="acceptance: {run: t, timeout: nan}"),
            "'acceptance.timeout' must be a number of sec",
        ),
        (
            small(acceptance="acceptance: {run: t, timeout: -1}"),
            "'acceptance.timeout' must be a number of sec",
        ),
        (
            small(acceptance="acceptance: {run: t, runner: nose}"),
            "cannot be 'nose'. Did you mean 'node'? Known: cargo, go",
        ),
        (small(acceptance="acceptance: {run: t, runner: pytst}"), "Did you mean 'pytest'?"),
        (small(acceptance="acceptance: {run: t, runner: junit}"), "'acceptance.report' is missing"),
        (small(acceptance="acceptance: {answer: '('}"), "'acceptance.answer' is not a regular"),
        (small(acceptance="acceptance: {run: [a, b]}"), "'acceptance.run' must be text"),
        (small("answers: {'[': x}"), "'answers', '[' is not a regular expression"),
        (small("answers: {a: [b]}"), "'answers.a' must be text"),
        (small("split: train"), "'split' cannot be 'train'. Known: dev, held-out"),
        (small("ambiguous: perhaps"), "'ambiguous' must be true or false"),
        (small("version: one"), "'version' must be a whole number"),
        (small("scope: {a: b}"), "'scope' must be a list"),
        (small("scope: [[a]]"), "'scope[0]' must be text"),
        (small("scope: [a, ]\nfacts: [a"), "invalid YAML in line"),
        (small("a: b: c"), "invalid YAML in line 2"),
        (small("scope: [**/x]"), "in quotes"),
        (small("scope: [*a]"), "line 2: no aliases"),
        (small("scope: &a [x]\nfacts: *a"), "line 2: no aliases"),
        (small("- a"), "invalid YAML"),
        ("---\n- a\n---\nx\n", "must be fields"),
        (small("scope: " + "[" * 50 + "]" * 50), "nested too deeply"),
        (small("? [a]\n: b"), "a field's name must be plain text"),
        ("---\nid: x\n", "the front matter does not end"),
        ("", "the prompt is missing"),
        (small("id: a/b"), "'id' must be letters"),
        (small("id: -rf"), "'id' must be letters"),
        (small("reference: none.patch"), "'none.patch' of 'reference' does not exist"),
        (small("reference: ."), "does not exist"),
        (small("reference: x.md"), "not a patch"),
        (small("reference: empty.patch"), "is empty"),
        (small("reference: latin.patch"), "not UTF-8"),
        (small("base: missing"), "has no commit 'missing'"),
        (small("repo: none\nbase: HEAD"), "'base' needs a repository"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_field(tmp_path: Path, text: str, why: str) -> None:
    write(tmp_path, "", "empty.patch")
    (tmp_path / "latin.patch").write_bytes(PATCH.encode() + b"\xe4")
    with pytest.raises(BadInput) as fault:
        load(tmp_path, text)
    assert why in str(fault.value)
    assert str(fault.value).startswith(str(tmp_path / "x.md"))
    assert "\n" not in str(fault.value)


def test_an_alias_bomb_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    with pytest.raises(BadInput, match="no aliases"):
        load(tmp_path, small("\n".join(lines)))


def test_what_is_not_text_or_too_large_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_bytes(small().encode() + b"\xff")
    with pytest.raises(BadInput, match="not UTF-8"):
        load_task(path, tmp_path, resolve)
    path.write_bytes(b"x" * (5 << 20))
    with pytest.raises(BadInput, match="larger than 4 MB"):
        load_task(path, tmp_path, resolve)
    with pytest.raises(BadInput, match="cannot be read"):
        load_task(tmp_path / "no.md", tmp_path, resolve)


def test_a_task_outside_any_repository_must_name_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'repo' is missing"):
        load_task(write(tmp_path, small()), None, resolve)


def test_a_folder_of_tasks_is_read_in_order_without_its_read_me(tmp_path: Path) -> None:
    for name in ("b.md", "a.md", "sub/c.md"):
        write(tmp_path, small(prompt=name), name)
    for name in ("README.md", ".hidden/d.md", "notes.txt"):
        write(tmp_path, "no task", name)
    assert [task.id for task in load_tasks(tmp_path, tmp_path, resolve)] == ["a", "b", "c"]
    named = [tmp_path / "b.md", tmp_path / "sub", tmp_path / "sub" / ".." / "b.md"]
    assert [task.id for task in load_tasks(named, tmp_path, resolve)] == ["b", "c"]


def test_two_tasks_must_differ_in_id_and_in_what_they_ask(tmp_path: Path) -> None:
    write(tmp_path, small("id: same", prompt="one"), "a.md")
    write(tmp_path, small("id: same", prompt="two"), "b.md")
    with pytest.raises(BadInput, match=r"b\.md: the id 'same' is already used by .*a\.md"):
        load_tasks(tmp_path, tmp_path, resolve)
    write(tmp_path, small("id: other", prompt="one"), "b.md")
    with pytest.raises(BadInput, match=r"b\.md has the same content as .*a\.md"):
        load_tasks(tmp_path, tmp_path, resolve)


def test_an_empty_folder_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="closeloop task new"):
        load_tasks(tmp_path, tmp_path, resolve)


def test_a_commit_is_looked_up_once_for_many_tasks(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, small(prompt=str(number)), f"{number}.md")
    asked: list[str] = []

    def counting(repo: str, revision: str) -> str:
        asked.append(revision)
        return resolve(repo, revision)

    load_tasks(tmp_path, tmp_path, counting)
    assert asked == ["HEAD"]


def test_a_task_that_lies_in_its_own_base_is_refused(tmp_path: Path) -> None:
    """An agent would read there how it is graded: hidden tests, the reference, the answer."""
    path = write(tmp_path, small(), "tasks of mine/x.md")
    small_project.git(tmp_path, "init", "-q")
    small_project.git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Start")
    start = small_project.git(tmp_path, "rev-parse", "HEAD").strip()
    small_project.git(tmp_path, "add", "-A")
    small_project.git(tmp_path, "commit", "-qm", "Add a task")
    end = small_project.git(tmp_path, "rev-parse", "HEAD").strip()
    assert load_task(path, tmp_path, lambda repo, revision: start).base == start
    with pytest.raises(
        BadInput, match=r"would find 'x.md' in the commit it starts from: set 'base'"
    ):
        load_task(path, tmp_path, lambda repo, revision: end)


def test_a_patch_that_lies_in_the_base_is_refused_too(tmp_path: Path) -> None:
    write(tmp_path, PATCH, "patches/fix.patch")
    small_project.git(tmp_path, "init", "-q")
    small_project.git(tmp_path, "add", "-A")
    small_project.git(tmp_path, "commit", "-qm", "Add a patch")
    base = small_project.git(tmp_path, "rev-parse", "HEAD").strip()
    path = write(tmp_path, small("reference: ../patches/fix.patch"), "tasks/x.md")
    with pytest.raises(BadInput, match=r"fix\.patch"):
        load_task(path, tmp_path, lambda repo, revision: base)
