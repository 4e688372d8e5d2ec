"""What is written can be read again; what is begun can be finished by a person."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.settings import CommandSettings
from closeloop.records.task import Acceptance, Task
from closeloop.tasks.task_files import (
    PROMPT_PLACEHOLDER,
    load_task,
    render_new_task,
    render_task_files,
    text_with_field,
    write_new_file,
)

PATCH = "--- a/tests/test_new.py\r\n+++ b/tests/test_new.py\n@@ -1 +1 @@\n-ä\n+b\r\n"

text = st.text(st.characters(codec="utf-8"), max_size=12)
texts = st.lists(text, max_size=3).map(tuple)
filled = text.filter(bool)
prompts = st.text(st.characters(codec="utf-8")).map(str.strip)
acceptances = st.builds(
    Acceptance,
    run=filled,
    runner=st.none() | st.sampled_from(["pytest", "go"]),
    report=st.none() | text,
    fail_to_pass=texts,
    pass_to_pass=st.none() | texts,
    patch=st.none() | st.just(PATCH),
    commands=texts,
    answer=st.none() | text.map(re.escape),
    timeout=st.floats(min_value=0.1, max_value=1e9),
)
tasks = st.builds(
    Task,
    id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    prompt=prompts.filter(lambda prompt: prompt and "\r\n" not in prompt and "<!" not in prompt),
    repo=st.sampled_from(["/somewhere/else", "https://example.org/x.git"]),
    base=st.from_regex(r"[0-9a-f]{40}", fullmatch=True),
    setup=texts,
    scope=texts,
    acceptance=acceptances,
    protected=texts,
    reference=st.none() | st.just(PATCH),
    rubric=st.none() | text,
    facts=texts,
    ambiguous=st.booleans(),
    answers=st.dictionaries(text.map(re.escape), text, max_size=3),
    tags=texts,
    split=st.sampled_from(["dev", "held-out"]),
    origin=text,
    version=st.integers(min_value=0, max_value=10**6),
)


def same(repo: str, revision: str) -> str:
    return revision


def written(task: Task, folder: Path) -> Task:
    files = render_task_files(task, folder)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode())
    return load_task(folder / next(iter(files)), None, same, setup=["the project's own"])


@given(tasks)
@settings(max_examples=100, deadline=None)
def test_a_task_that_is_written_is_read_as_the_same(
    tmp_path_factory: pytest.TempPathFactory, task: Task
) -> None:
    folder = tmp_path_factory.mktemp("tasks")
    read = written(task, folder)
    derived = {"digest": read.digest, "grading": read.grading}
    assert read == msgspec.structs.replace(task, **derived)
    assert written(read, folder) == read


def test_a_question_without_a_repository_is_written_and_read(tmp_path: Path) -> None:
    task = Task(id="q", prompt="Why?", acceptance=Acceptance(answer="because"))
    assert written(task, tmp_path).repo is None


def test_a_repository_is_written_from_the_folder_so_that_both_can_move(tmp_path: Path) -> None:
    task = Task(id="t", prompt="p", repo=str(tmp_path / "code"), acceptance=Acceptance(run="t"))
    assert "repo: ../code\n" in render_task_files(task, tmp_path / "tasks")["t.md"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ('uv run pytest -k "a: b # c"', {"runner": None, "report": None}),
        ("./mvnw -B test", {"runner": "junit", "report": "**/target/surefire-reports/TEST-*.xml"}),
        (
            "cd app && gradle test",
            {"runner": "junit", "report": "**/build/test-results/test/TEST-*.xml"},
        ),
    ],
)
def test_a_new_task_lacks_only_the_request(
    tmp_path: Path, command: str, expected: dict[str, str | None]
) -> None:
    path = tmp_path / "new.md"
    path.write_text(render_new_task("new", CommandSettings(test=command), "f" * 40))
    with pytest.raises(BadInput, match="the prompt is missing"):
        load_task(path, tmp_path, same)
    path.write_text(path.read_text().replace(PROMPT_PLACEHOLDER, "Do it."))
    task = load_task(path, tmp_path, same, setup=["a: b"])
    assert (task.id, task.base, task.setup, task.prompt) == ("new", "f" * 40, ("a: b",), "Do it.")
    assert task.acceptance.run == command
    assert {name: getattr(task.acceptance, name) for name in expected} == expected


@pytest.mark.parametrize("command", [None, "pytest", "mvn test"])
def test_a_new_task_with_its_prompt_can_be_run_as_it_is(
    tmp_path: Path, command: str | None
) -> None:
    path = tmp_path / "new.md"
    path.write_text(render_new_task("new", CommandSettings(test=command), "f" * 40, "Do it."))
    task = load_task(path, tmp_path, same, setup=["a: b"])
    assert (task.id, task.base, task.setup, task.prompt) == ("new", "f" * 40, ("a: b",), "Do it.")
    assert task.acceptance == Acceptance()


def test_what_explains_the_fields_of_an_acceptance_stands_in_one_column() -> None:
    written = render_new_task("new", CommandSettings(test="pytest"), "f" * 40, "Do it.")
    lines = [line for line in written.splitlines() if line.startswith("  # ")]
    assert len({line.rindex(" # ") for line in lines if line.count(" # ") > 1}) == 1


def test_a_plain_prompt_can_be_given_fields(tmp_path: Path) -> None:
    for end in ("\n", "\r\n"):
        edited = text_with_field(f"Do it.{end}Well.{end}", "tags", ("billing",), "x.md")
        assert edited == f"---{end}tags: [billing]{end}---{end}{end}Do it.{end}Well.{end}"
        assert text_with_field(edited, "tags", None, "x.md").endswith(f"Do it.{end}Well.{end}")


def test_every_field_that_a_new_task_explains_is_one_that_can_be_read(tmp_path: Path) -> None:
    """Uncomment all of it: what the examples say must load."""
    for name in ("new.patch", "new.tests.patch"):
        (tmp_path / name).write_bytes(PATCH.encode())
    explained = render_new_task("new", CommandSettings(test="pytest"), "f" * 40, "Do it.")
    path = tmp_path / "new.md"
    path.write_text(re.sub(r"^( *)# (\w+: )", r"\1\2", explained, flags=re.MULTILINE))
    task = load_task(path, None, same)
    assert task.repo == str((tmp_path.resolve() / ".." / "other").resolve())
    assert task.reference == PATCH == task.acceptance.patch
    assert (task.split, task.ambiguous, task.answers) == ("held-out", True, {"currency": "Euro."})


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "x.md"
    write_new_file(path, "mine")
    with pytest.raises(BadInput, match="already exists"):
        write_new_file(path, "yours")
    assert path.read_text() == "mine"
    with pytest.raises(MachineFailed, match="cannot be written"):
        write_new_file(path / "below" / "a file", "x")
