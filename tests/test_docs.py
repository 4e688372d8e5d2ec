"""What the pages in docs/ say is so: commands are run, examples read, tables complete.

A comment before a block says what is done with it, in one project, page after page:
`<!-- run -->` runs its `$` lines (`<!-- run: exit 1 -->` when they end so), each followed by lines
that must come, in this order; `<!-- file: PATH -->` writes it, `<!-- add: PATH -->` appends it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import closeloop
from closeloop import plugins
from closeloop.cli import COMMAND_CHAPTERS, COMMAND_GROUPS, main
from closeloop.cli.config import read_config_file
from closeloop.providers.scripted_model import load_script
from closeloop.records.attempt import Exit
from closeloop.records.errors import MachineFailed
from closeloop.records.record import Record
from closeloop.records.score import ScoreSettings
from closeloop.records.settings import (
    ExperimentSettings,
    ModelSettings,
    SandboxSettings,
    Settings,
    VariantSettings,
    WebhookSettings,
)
from closeloop.records.task import Acceptance, Task, TestRunner
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.tasks.task_files import load_task
from closeloop.web.pages import PAGES as WEB_PAGES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCES = (*ROOT.glob("src/closeloop/**/*.py"), *ROOT.glob("tests/**/*.py"))
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
WALK = (
    *("tasks.md", "run.md", "commands.md", "record.md", "triage.md", "orchestrate.md"),
    "deliver.md",
)
"""Pages with blocks to run, in the order that a reader takes."""
HOME = "/home/ann/billing"
HIDDEN_TESTS = """\
--- a/tests/test_x.py
+++ b/tests/test_x.py
@@ -1 +1,2 @@
 import x
+import y
"""

_BLOCK = re.compile(r"(?:^<!-- (.+?) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CAGED = re.compile(r"(closeloop (?:run|task check|orchestrate|deliver))")
_ID = re.compile(r"\b(?:[0-9a-f]{40}|[0-9a-f]{12})\b")


class Block(Record):
    page: str
    mark: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [
        Block(page=page, mark=found[1] or "", language=found[2], text=found[3])
        for found in _BLOCK.finditer(PAGES[page])
    ]


def examples(language: str) -> list[Any]:
    found = [block for page in PAGES for block in blocks(page) if block.language == language]
    return [pytest.param(block, id=f"{block.page}-{i}") for i, block in enumerate(found, 1)]


def first_cells(text: str) -> list[list[str]]:
    """Rows of all tables in a text whose first cell is code: the cells, as written."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def documented(text: str) -> set[str]:
    return {name for row in first_cells(text) for name in re.findall(r"`([^`]+)`", row[0])}


def section(page: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGES[page], re.M | re.S)
    assert found, f"{page} has no section {title!r}"
    return found[1]


# The commands on the pages


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The repository of tasks.md: two commits with ids that are the same everywhere."""
    folder = tmp_path / "billing"
    (folder / "tests").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    code = (
        '"""Prices in whole cents."""\n\n\ndef net(cents: int, discount: int) -> int:\n'
        '    """The price after a discount in per cent."""\n    return {}\n'
    )
    tests = (
        "from billing import net\n\n\ndef test_no_discount_changes_nothing():\n"
        "    assert net(1000, 0) == 1000\n\n\ndef test_half_price():\n"
        "    assert net(1000, 50) == 500\n"
    )
    # With four assertions, a test that a pass hangs on is probed in two rooms, not in four.
    more = (
        "\n\ndef test_half_a_cent_goes_up():\n    assert net(25, 50) == 13\n"
        "    assert net(75, 50) == 38\n    assert net(1, 50) == 1\n    assert net(5, 10) == 5\n"
    )
    shell(folder, "git init -q -b main")
    for message, expression, test in (
        ("Start", "cents * (100 - discount) // 100", tests),
        ("Round half a cent up", "(cents * (100 - discount) + 50) // 100", tests + more),
    ):
        (folder / "billing.py").write_text(code.format(expression))
        (folder / "tests" / "test_billing.py").write_text(test)
        shell(folder, f"git add . && git commit -qm '{message}'")
    return folder


def shell(folder: Path, command: str, exit_code: int = 0) -> str:
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == exit_code, f"$ {command}\n{ran.stdout}"
    return ran.stdout


def environment() -> dict[str, str]:
    who = {f"GIT_{role}_NAME": "Ann" for role in ("AUTHOR", "COMMITTER")}
    who |= {f"GIT_{role}_EMAIL": "ann@example.org" for role in ("AUTHOR", "COMMITTER")}
    who |= {f"GIT_{role}_DATE": "2026-01-05T09:00:00Z" for role in ("AUTHOR", "COMMITTER")}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("CLOSELOOP_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**plain, **who, "GIT_CONFIG_GLOBAL": "/dev/null", "PATH": path, "PAGER": "cat"}


def test_the_commands_on_the_pages_do_what_the_pages_show(project: Path) -> None:
    ids: dict[str, str] = {}
    cages = sandbox_flag(project.parent / "cache")
    for block in (block for page in WALK for block in blocks(page)):
        action, _, detail = block.mark.partition(": ")
        if action == "run":
            exit_code = int(detail.removeprefix("exit ") or 0)
            for command, expected in steps(block.text):
                ours = _ID.sub(lambda shown: ids.get(shown[0], shown[0]), command)
                ours = _CAGED.sub(rf"\1{cages}", ours)
                came = shell(project, ours, exit_code).replace(str(project.resolve()), HOME)
                compare(command, expected, came, ids)
        elif action in ("file", "add"):
            path = project / detail
            path.parent.mkdir(exist_ok=True)
            with path.open("w" if action == "file" else "a", encoding="utf-8") as opened:
                opened.write(block.text)


def sandbox_flag(cache: Path) -> str:
    """Nothing where a sandbox works, as on any machine of a reader."""
    try:
        WorkspacePool(cache, SandboxSettings()).close()
    except MachineFailed:
        return " --set sandbox.kind=none"
    return ""


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *expected = step.splitlines()
        yield command, [line for line in expected if line.strip() not in ("", "…")]


def compare(command: str, expected: list[str], came: str, ids: dict[str, str]) -> None:
    """Every line of the page comes, in this order; ids and measured numbers may differ."""
    lines = iter(came.splitlines())
    for wanted in expected:
        found = next((line for line in lines if plain(line) == plain(wanted)), None)
        assert found is not None, f"$ {command}\nhas no line {wanted!r} here:\n{came}"
        ids.update(zip(_ID.findall(wanted), _ID.findall(found), strict=True))


def plain(line: str) -> str:
    line = re.sub(r"\d+[.,]\d+", "N", _ID.sub("ID", line))
    return " ".join(line.split())


def test_blocks_with_commands_are_run_only_where_the_walk_goes() -> None:
    assert {page for page in PAGES for block in blocks(page) if block.mark == "run"} <= {*WALK}


# The examples on the pages


@pytest.mark.parametrize("block", examples("toml"))
def test_settings_on_the_pages_can_be_read(block: Block, tmp_path: Path) -> None:
    if "entry-points" in block.text:
        return
    (tmp_path / "closeloop.toml").write_text(block.text, encoding="utf-8")
    settings = read_config_file(tmp_path / "closeloop.toml")
    for variant in settings.variants.values():
        assert variant.model in settings.models or (variant.model or "").startswith("scripted:")


@pytest.mark.parametrize("block", examples("markdown"))
def test_tasks_on_the_pages_can_be_loaded(block: Block, tmp_path: Path) -> None:
    for name in re.findall(r"\S+\.patch$", block.text, re.MULTILINE):
        (tmp_path / name).write_text(HIDDEN_TESTS)
    (tmp_path / "example.md").write_text(block.text, encoding="utf-8")
    task = load_task(tmp_path / "example.md", tmp_path, lambda repo, revision: "0" * 40)
    assert task.digest
    assert task.grading


@pytest.mark.parametrize("block", examples("yaml"))
def test_scripts_on_the_pages_can_be_loaded(block: Block, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(block.text, encoding="utf-8")
    assert load_script(tmp_path / "script.yaml").dialogues


def test_the_plugins_on_the_page_keep_their_contracts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = blocks("plugins.md")
    for block in page:
        if block.mark.startswith("file: "):
            (tmp_path / block.mark.removeprefix("file: ")).write_text(block.text)
    entries = next(tomllib.loads(block.text) for block in page if block.language == "toml")
    about = tmp_path / "one_patch-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: one-patch\nVersion: 1\n")
    named = entries["project"]["entry-points"]["closeloop.agents"].items()
    lines = "".join(f"{name} = {target}\n" for name, target in named)
    (about / "entry_points.txt").write_text(f"[closeloop.agents]\n{lines}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "one_patch", raising=False)
    assert plugins.load_plugin("agents", "one-patch").name == "one-patch"
    importlib.import_module("test_one_patch").test_the_agent_keeps_the_contract()
    importlib.import_module(
        "test_forced_push"
    ).test_the_rule_keeps_the_contract_and_finds_its_pattern()
    importlib.import_module(
        "test_left_breakpoint"
    ).test_the_check_keeps_the_contract_and_finds_its_pattern_where_it_is_new()
    recording = tmp_path / "recording"
    recording.mkdir()
    importlib.import_module(
        "test_echo_reader"
    ).test_the_reader_keeps_the_contract_and_reads_its_format(recording)
    importlib.import_module("test_small_change").test_the_scorer_keeps_the_contract()
    for name in ("one_patch", "forced_push", "left_breakpoint", "echo_reader", "small_change"):
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, f"test_{name}")


def test_every_kind_of_plugin_is_on_the_page() -> None:
    kinds = {f"closeloop.{kind}" for kind in get_args(plugins.PluginKind)}
    listed = re.findall(r"^\| \[\w+\]\S+ \| `([^`]+)`", PAGES["plugins.md"], re.MULTILINE)
    assert {*listed} == kinds


# What CONTRIBUTING.md and README.md name and count


def test_every_path_that_contributors_are_told_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "closeloop"
    names = {path.name for path in package.rglob("*")}
    named = set(re.findall(r"`([\w.-]+(?:/[\w.-]*)+|\w+\.(?:py|css))`", text))
    assert len(named) > 40
    for name in named:
        path = re.sub(r"^closeloop/|NAME.*", "", name)
        there = any((folder / path).exists() for folder in (ROOT, package)) or path in names
        assert there or "NAME" in name, name


def test_every_name_of_the_code_that_contributors_are_told_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for module, name in re.findall(r"`(closeloop(?:\.\w+)+)\.(\w+)(?:\(\w*\))?`", text):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    for name in re.findall(r"`([A-Z][A-Za-z]*(?:_[A-Z]+)*)`", text.partition("## Recipes")[2]):
        assert re.search(rf"^ *(?:class )?{name}\b *[:=(]", code, re.MULTILINE), name


def test_the_readme_counts_what_is_installed() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    agents = plugins.installed_plugins("agents").keys() - {
        "builtin",
        "command",
        "noop",
        "reference",
    }
    for what, number in (
        (r"\[(\S+) rules\]", len(plugins.installed_plugins("detectors"))),
        (r"(\S+) native formats", len(plugins.installed_plugins("readers"))),
        (r"\[(\S+) agents\]", len(agents)),
    ):
        counts = [one.capitalize() for one in re.findall(what, text)]
        assert counts == [in_words(number)], "correct the number in README.md"


def in_words(number: int) -> str:
    ones = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
    if number <= len(ones):
        return ones[number - 1]
    tens, one = divmod(number, 10)
    ten = {2: "Twenty", 3: "Thirty", 4: "Forty"}[tens]
    return f"{ten}-{ones[one - 1].lower()}" if one else ten


def test_every_page_of_the_navigation_is_on_the_page_about_the_dashboard() -> None:
    listed = re.findall(r"^\| ([\w ]+) \|", PAGES["dashboard.md"], re.MULTILINE)
    assert {page.section for page in WEB_PAGES if page.key} <= {*listed}


# The tables on the pages


def test_every_field_of_a_task_is_documented_and_none_is_invented() -> None:
    written = {*Task.__struct_fields__} - {"prompt", "digest", "grading"}
    written |= {f"acceptance.{name}" for name in Acceptance.__struct_fields__}
    rows = {re.findall(r"`([^`]+)`", row[0])[0] for row in first_cells(fields_section())}
    assert rows == written


def test_the_defaults_of_a_task_are_those_of_the_code() -> None:
    for row in first_cells(fields_section()):
        name, shown = row[0].strip("`"), row[2] if len(row) > 2 else ""
        kind = Acceptance if name.startswith("acceptance.") else Task
        field = next(f for f in msgspec.structs.fields(kind) if f.name == name.split(".")[-1])
        if name not in ("base", "acceptance") and re.fullmatch("`.+`", shown):
            assert str(field.default).lower().removesuffix(".0") == shown.strip("`"), name


def fields_section() -> str:
    return section("tasks.md", "Every field")


def test_every_runner_and_every_exit_is_documented() -> None:
    assert documented(section("tasks.md", "Test runners")) >= {*get_args(TestRunner)}
    assert documented(section("run.md", "Grading")) == {*get_args(Exit)}


NAMED: dict[str, type[Any]] = {
    "experiments": ExperimentSettings,
    "models": ModelSettings,
    "scores": ScoreSettings,
    "variants": VariantSettings,
    "webhooks": WebhookSettings,
}


def settings_fields(kind: type[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Every key that people may write, with its default."""
    for field in msgspec.structs.fields(kind):
        name = prefix + field.name
        if field.name in NAMED and kind is Settings:
            yield from settings_fields(NAMED[field.name], f"{name}.NAME.")
        elif isinstance(field.default, msgspec.Struct):
            yield from settings_fields(type(field.default), f"{name}.")
        elif field.default_factory is not msgspec.NODEFAULT:
            yield name, field.default_factory()
        else:
            yield name, field.default


def test_every_setting_is_documented_with_its_default_and_none_is_invented() -> None:
    tables, _, environment_table = PAGES["configuration.md"].partition("## Environment")
    shown = {row[0].strip("`"): row[1] for row in first_cells(tables)}
    known = dict(settings_fields(Settings, ""))
    assert shown.keys() == known.keys()
    for name, default in known.items():
        if default is msgspec.NODEFAULT:
            assert shown[name] == "required", name
        elif default is None:
            assert shown[name] == "–", name
        else:
            written = tomllib.loads(f"value = {shown[name].strip('`')}")["value"]
            assert written == (list(default) if isinstance(default, tuple) else default), name
    assert {"CLOSELOOP_STORE", "CLOSELOOP_CACHE"} <= documented(environment_table)


def test_every_variable_that_the_command_line_reads_is_documented() -> None:
    source = Path(inspect.getfile(main)).parent
    read_there = {
        name
        for file in source.glob("*.py")
        for name in re.findall(r"\bCLOSELOOP_[A-Z]+\b", file.read_text(encoding="utf-8"))
    }
    assert read_there == set(re.findall(r"\bCLOSELOOP_[A-Z]+\b", PAGES["configuration.md"]))


def commands() -> dict[str, Callable[..., Any]]:
    """Every command line, without its arguments, with the function that does it; as listed."""
    found: dict[str, Any] = {}
    for name, (target, _) in (
        one for chapter in COMMAND_CHAPTERS.values() for one in chapter.items()
    ):
        module, _, attribute = target.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    return found


@pytest.mark.parametrize(("name", "command"), commands().items())
def test_every_argument_of_a_command_is_documented_and_none_is_invented(
    name: str, command: Callable[..., Any]
) -> None:
    parameters = inspect.signature(command).parameters
    expected = {
        f"--{one.name.rstrip('_').replace('_', '-')}"
        if one.kind is one.KEYWORD_ONLY
        else one.name.upper()
        for one in parameters.values()
    }
    rows = first_cells(section("commands.md", f"closeloop {name}"))
    about = {row[0].strip("`"): row[1] for row in rows}
    assert about.keys() == expected
    own = [one for one in expected if one.startswith("--") and one != "--json"]
    assert len(own) <= 8, "rare options belong into closeloop.toml"


def test_the_commands_stand_in_the_order_of_the_help_and_none_is_invented() -> None:
    titles = re.findall(r"^## closeloop (.+)$", PAGES["commands.md"], re.MULTILINE)
    assert titles == [*commands()]
    index = PAGES["commands.md"].partition("## ")[0]
    assert re.findall(r"\[([a-z ]+)\]\(#closeloop-", index) == titles
    assert re.findall(r"^\| (.+?) \| \[", index, re.MULTILINE) == [*COMMAND_CHAPTERS]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_exists_and_has_the_flags_it_is_given(page: str) -> None:
    known = commands()
    blocks_of_code = [block.text for block in blocks(page) if block.language != "python"]
    inline = re.findall(r"`(closeloop [^`]+)`", _BLOCK.sub("", PAGES[page]))
    for typed in re.findall(
        r"(?:^|\$ |&& |\| )closeloop ([a-z][^`|&#\n]*)", "\n".join([*blocks_of_code, *inline]), re.M
    ):
        words = typed.split()
        name = next((one for one in (" ".join(words[:2]), words[0]) if one in known), None)
        assert name or words[0] in COMMAND_GROUPS or words[0] in ("help", "listens"), typed
        if name is None:
            continue
        flags = {
            f"--{one.rstrip('_').replace('_', '-')}"
            for one in inspect.signature(known[name]).parameters
        }
        given = set(re.findall(r"(?<!\S)--[a-z-]+", typed))
        assert given <= flags | {"--set", "--help", "--quiet", "--verbose"}, typed


@pytest.mark.parametrize("name", ["", *COMMAND_GROUPS, *commands()])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*name.split(), "--help"])
    assert left.value.code in (0, None)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"closeloop {name}".strip() in shown
    if name in commands():
        about, _, _ = inspect.getdoc(commands()[name]).partition("\n\nParameters\n")
        assert " ".join(about.split()) in shown


# The pages themselves


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_pages_made_of_docstrings_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_pages", DOCS / "make_pages.py")
    assert spec is not None
    assert spec.loader is not None
    make_pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_pages)
    written = make_pages.render_pages()
    assert {path.name for path in written if path.parent.name == "rules"} == {
        path.name for path in (DOCS / "rules").glob("*.md") if path.name != "README.md"
    }
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"


def test_the_page_about_python_has_every_name_that_is_exported() -> None:
    titles = re.findall(r"^### (\w+)$", PAGES["python-api.md"], re.MULTILINE)
    assert sorted(titles) == sorted({*closeloop.__all__, "open"})
    for name in titles:
        assert inspect.getdoc(getattr(closeloop, name)), name


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    prose = _BLOCK.sub("", PAGES[page])
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = DOCS / file if file else DOCS / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_index_leads_to_every_page() -> None:
    for page in PAGES.keys() - {"README.md"}:
        assert f"({page})" in PAGES["README.md"], page


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]* src=.?https?:", text), page
        assert not re.findall(r"<link[^>]* rel=.?(?:stylesheet|preconnect)[^>]*https?:", text), page
