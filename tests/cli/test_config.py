"""closeloop.toml: found upwards, read once, every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest

from closeloop.cli.config import load_project
from closeloop.records.errors import BadInput
from closeloop.records.settings import Settings

FULL = """
tasks = "evals"
retries = 1

[commands]
setup = "make"
test = "pytest"

[models.big]
provider = "openai"
model = "x"
input_price = 3

[variants.one]
model = "big"
settings = {temperature = 0.5, careful = true}
limits = {turns = 9}

[limits]
seconds = 60
"""


def write(folder: Path, text: str) -> Path:
    (folder / "closeloop.toml").write_text(text)
    return folder


def test_the_nearest_file_upwards_is_read(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    write(tmp_path, FULL)
    found = load_project(below, environ={})
    assert (found.root, found.file) == (tmp_path, tmp_path / "closeloop.toml")
    assert (found.settings.tasks, found.settings.commands.setup) == ("evals", ("make",))
    assert found.settings.models["big"].input_price == 3
    variant = found.settings.variants["one"]
    assert variant.settings == {"temperature": 0.5, "careful": True}
    assert (variant.limits, found.settings.limits.seconds) == ({"turns": 9}, 60)
    write(below, "retries = 0")
    assert load_project(below, environ={}).settings.retries == 0


def test_without_a_file_the_defaults_hold_at_the_root_of_the_repository(tmp_path: Path) -> None:
    below = tmp_path / "a"
    below.mkdir()
    assert load_project(below, environ={}).root == below
    (tmp_path / ".git").mkdir()
    found = load_project(below, environ={})
    assert (found.root, found.file, found.settings) == (tmp_path, None, Settings())


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    write(tmp_path, 'store = "file.db"\ncache = "file"')
    assert load_project(tmp_path, environ={}).settings.store == "file.db"
    environ = {"CLOSELOOP_STORE": "environ.db", "CLOSELOOP_CACHE": "/cache"}
    below = tmp_path / "below"
    below.mkdir()
    found = load_project(below, environ=environ)
    assert (found.settings.store, found.settings.cache) == (str(below / "environ.db"), "/cache")
    url = "postgresql://host/name"
    assert load_project(below, environ={"CLOSELOOP_STORE": url}).settings.store == url
    assert load_project(below, environ={"CLOSELOOP_STORE": ""}).settings.store == "file.db"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("taks = 'x'", "no field 'taks'. Did you mean 'tasks'?"),
        ("[commands]\ntests = 'x'", "no field 'commands.tests'. Did you mean 'commands.test'?"),
        (
            "[models.big]\nprovider = 'openai'\nmodle = 'x'\nmodel = 'x'",
            "no field 'models.big.modle'. Did you mean 'models.big.model'?",
        ),
        ("[models.big]\nprovider = 'openai'", "'models.big.model' is missing"),
        (
            "[models.big]\nprovider = 'opnai'\nmodel = 'x'",
            "'models.big.provider' cannot be 'opnai'. Did",
        ),
        ("[variants.a.limits]\nturn = 1", "no field 'variants.a.limits.turn'. Did you mean"),
        ("zzz = 1", "no field 'zzz'. Known: cache, check, commands,"),
        ("tasks = 1", "'tasks' must be text"),
        ("[limits]\nturns = 'many'", "'limits.turns' must be a whole number"),
        ("[limits]\nturns = 1.5", "'limits.turns' must be a whole number"),
        ("[limits]\ntokens = 'x'", "'limits.tokens' must be a whole number"),
        ("[limits]\nseconds = 0", "'limits.seconds' must be more than 0"),
        ("[limits]\nmoney = nan", "'limits.money' must be more than 0"),
        ("[variants.a.limits]\nseconds = -1", "'variants.a.limits.seconds' must be more than 0"),
        ("retries = -1", "'retries' must not be negative"),
        ("[due]\ncommits = -1", "'due.commits' must be more than 0"),
        ("[due]\ndays = 0", "'due.days' must be more than 0"),
        ("[check]\nmax_files = -1", "'check.max_files' must be more than 0"),
        ("[review]\ndouble = 3", "'review.double' must be between 0 and 1"),
        ("[review]\ngolden = nan", "'review.golden' must be between 0 and 1"),
        ("[memory]\ncontrol = -0.1", "'memory.control' must be between 0 and 1"),
        ('[review.questions]\nready = ""', "the question 'ready' has no text"),
        ('[review.questions]\n"Is it?" = "x"', "must consist of lower-case letters"),
        ("retries = true", "'retries' must be a whole number"),
        ("limits = 3", "'limits' must be a section with fields"),
        ("models = ['x']", "'models' must be a section with fields"),
        ("[sandbox]\nread = 3", "'sandbox.read' must be a list"),
        ("[sandbox]\nread = ['a', 3]", "'sandbox.read[1]' must be text"),
        ("[sandbox]\nkind = 'docker'", "'sandbox.kind' cannot be 'docker'. Known: auto, bwrap"),
        ("[sandbox]\nkind = ['bwrap']", "'sandbox.kind' cannot be"),
        ("[variants.a]\nsettings = {x = [1]}", "'variants.a.settings.x' must be"),
        ("a = \n", "not valid TOML: Invalid value (at line 1"),
        ("a = 1\na = 2\n", "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_place(tmp_path: Path, text: str, why: str) -> None:
    write(tmp_path, text)
    with pytest.raises(BadInput) as fault:
        load_project(tmp_path, environ={})
    assert why in str(fault.value)
    assert str(fault.value).startswith(str(tmp_path / "closeloop.toml"))


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closeloop.toml").write_bytes(b"tasks = '\xff'")
    with pytest.raises(BadInput, match="not UTF-8"):
        load_project(tmp_path, environ={})
    (tmp_path / "closeloop.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(BadInput, match="too large"):
        load_project(tmp_path, environ={})


def test_a_byte_order_mark_and_other_line_ends_change_nothing(tmp_path: Path) -> None:
    plain = load_project(write(tmp_path, FULL), environ={})
    (tmp_path / "closeloop.toml").write_bytes(b"\xef\xbb\xbf" + FULL.replace("\n", "\r\n").encode())
    assert load_project(tmp_path, environ={}) == plain
