"""The event that started a workflow, written by anyone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.changes import report_publishing
from closeloop.changes.report_publishing import MAX_REQUEST_CHARS, WorkflowPull, read_pull_event
from closeloop.records.errors import BadInput
from report_example import BASE, HEAD

SHARED = Path(__file__).resolve().parents[3] / "shared" / "github" / "payloads"
PULLS = sorted(SHARED.glob("pull_request/*.json"))
OTHERS = sorted(path for path in SHARED.glob("*/*.json") if "pull_request" not in path.parent.name)


def event(**changes: Any) -> dict[str, Any]:
    """An event of a pull request, with some fields set otherwise: `pull_request__title`."""
    made: dict[str, Any] = {
        "action": "opened",
        "repository": {"full_name": "ann/tally", "html_url": "https://github.com/ann/tally"},
        "pull_request": {
            "number": 7,
            "title": "Parse dates",
            "body": "As asked in the meeting.",
            "base": {"sha": BASE, "repo": {"full_name": "ann/tally"}},
            "head": {"sha": HEAD, "repo": {"full_name": "ann/tally"}},
        },
    }
    for path, value in changes.items():
        *folders, name = path.split("__")
        place = made
        for folder in folders:
            place = place[folder]
        place[name] = value
    return made


def read(tmp_path: Path, content: Any) -> WorkflowPull:
    path = tmp_path / "event.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return read_pull_event(path)


def test_an_event_names_the_pull_request(tmp_path: Path):
    assert read(tmp_path, event()) == WorkflowPull(
        repo="ann/tally",
        number=7,
        base=BASE,
        head=HEAD,
        request="Parse dates\n\nAs asked in the meeting.",
        address="https://github.com/ann/tally",
    )


def test_files_are_shown_at_the_head(tmp_path: Path):
    pull = read(tmp_path, event())
    assert pull.files_url == f"https://github.com/ann/tally/blob/{HEAD}"
    assert pull.title == "#7"


@pytest.mark.parametrize("source", [{"full_name": "mallory/tally"}, None])
def test_a_fork_is_recognised_also_when_it_is_gone(tmp_path: Path, source: Any):
    assert read(tmp_path, event(pull_request__head__repo=source)).fork


def test_a_pull_request_may_say_nothing_about_itself(tmp_path: Path):
    assert read(tmp_path, event(pull_request__body=None)).request == "Parse dates"


def test_what_it_says_is_cut_where_it_is_long(tmp_path: Path):
    pull = read(tmp_path, event(pull_request__body="x" * 1_000_000))
    assert len(pull.request) == MAX_REQUEST_CHARS


@pytest.mark.parametrize(
    "changes",
    [
        {"pull_request__number": 0},
        {"pull_request__number": "7"},
        {"pull_request__number": 7.5},
        {"pull_request__head__sha": "main"},
        {"pull_request__head__sha": f"{HEAD}\n"},
        {"pull_request__head__sha": f"--upload-pack={HEAD}"},
        {"pull_request__base__sha": "A" * 40},
        {"repository__full_name": "ann/.."},
        {"repository__full_name": "ann/tally/../../user"},
        {"repository__full_name": "ann/tally?x"},
        {"repository__full_name": "ann/tally\n"},
        {"repository__full_name": "ann"},
        {"repository__html_url": "javascript:alert(1)"},
        {"repository__html_url": "https://github.com/ann/tally)![x](https://evil.example"},
        {"pull_request": None},
        {"pull_request": []},
        {"repository": None},
    ],
)
def test_an_event_that_is_not_as_it_should_be_is_refused(tmp_path: Path, changes: dict[str, Any]):
    with pytest.raises(BadInput, match="on: pull_request"):
        read(tmp_path, event(**changes))


def test_an_address_of_another_repository_is_not_linked_to(tmp_path: Path):
    pull = read(tmp_path, event(repository__html_url="https://evil.example/ann/other"))
    assert pull.files_url is None


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b"7"])
def test_what_is_no_event_is_told_in_a_sentence(tmp_path: Path, content: bytes):
    with pytest.raises(BadInput, match="is not an event"):
        read(tmp_path, content)


def test_an_event_that_is_not_there_is_told_in_a_sentence(tmp_path: Path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_pull_event(tmp_path / "nothing.json")


def test_an_event_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report_publishing, "MAX_EVENT_BYTES", 100)
    with pytest.raises(BadInput, match="not from GitHub"):
        read(tmp_path, event())


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.dictionaries(
            st.sampled_from(
                ["repository", "pull_request", "full_name", "number", "base", "head", "sha"]
            ),
            inner,
        ),
    )
)
def test_no_event_breaks_anything(tmp_path_factory: pytest.TempPathFactory, content: Any):
    path = tmp_path_factory.getbasetemp() / "any-event.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput):
        read_pull_event(path)


@pytest.mark.skipif(not PULLS, reason="no shared payloads here")
@pytest.mark.parametrize("path", PULLS, ids=lambda path: path.name)
def test_every_real_event_of_a_pull_request_is_read(path: Path):
    payload, pull = json.loads(path.read_text()), read_pull_event(path)
    assert pull.number == payload["pull_request"]["number"]
    assert pull.head == payload["pull_request"]["head"]["sha"]
    assert pull.repo == payload["repository"]["full_name"]
    assert pull.request.startswith(payload["pull_request"]["title"])
    assert pull.files_url == f"https://github.com/{pull.repo}/blob/{pull.head}"


@pytest.mark.skipif(not OTHERS, reason="no shared payloads here")
@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_other_real_event_says_what_to_do(path: Path):
    with pytest.raises(BadInput, match="on: pull_request"):
        read_pull_event(path)
