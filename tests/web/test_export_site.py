"""The dashboard as files: every link leads somewhere, and nothing needs a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from boards_store import PLAN, fill_boards
from dashboard_store import SECRET_NAME

from closeloop.records.errors import BadInput
from closeloop.store import Store, open_store
from closeloop.web import static_export
from closeloop.web.page import PageContext
from closeloop.web.static_export import address_file_name, export_pages
from command_line import typed

FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        fill_boards(opened)
        yield opened


def test_every_link_of_an_export_leads_to_a_file(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    written = export_pages(PageContext(store), folder)
    assert written.written > 60
    ours = {path.name for path in folder.glob("*.html")}
    assert {"index.html", "attempts.html", "experiments.html", f"plans_{PLAN}.html"} <= ours
    for path in folder.glob("*.html"):
        text = path.read_text()
        assert " hx-" not in text
        assert "<form" not in text
        assert SECRET_NAME not in text
        for link in re.findall(r' (?:href|src)="([^"#]*)', text):
            assert not link.startswith("/"), (path.name, link)
            assert not link or (folder / link).exists(), (path.name, link)


def test_an_export_is_written_over_an_earlier_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_export, "MAX_PAGES", 20)
    folder = tmp_path / "site"
    assert [export_pages(PageContext(store), folder).written for _ in range(2)] == [20, 20]
    assert len([*folder.glob("*.html")]) == 20


def test_an_export_does_not_mix_with_other_files(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("dear")
    with pytest.raises(BadInput, match="new folder"):
        export_pages(PageContext(store), tmp_path)


def test_files_have_names_that_every_disk_can_hold() -> None:
    assert address_file_name("/") == "index.html"
    assert address_file_name("/plans/abc") == "plans_abc.html"
    odd = address_file_name("/prompts/../../etc/passwd\0?x=1")
    assert re.fullmatch(r"[\w.-]+\.html", odd)
    assert address_file_name("/attempts?a=1") != address_file_name("/attempts?a=2")


def test_writing_the_pages_says_how_far_it_is(tmp_path: Path) -> None:
    assert typed(tmp_path, "import", str(FIXTURES / "claude_code"), "--json").returncode == 0
    ran = typed(tmp_path, "report", "--html", str(tmp_path / "site"))
    assert ran.returncode == 0
    assert "measured" in ran.stderr
    assert "page 1 of " in ran.stderr
