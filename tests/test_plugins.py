"""Plug-ins are found by name, whoever installed them."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args

import pytest

from closeloop import plugins
from closeloop.records.errors import BadInput, PluginFailed


def install(folder: Path, name: str, target: str) -> None:
    """What pip leaves behind for a package with one agent."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[closeloop.agents]\n{name} = {target}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_built_in_agent_comes_through_the_same_door() -> None:
    assert plugins.installed_plugins("agents")["builtin"].value == "closeloop.agents.builtin:agent"


def test_an_installed_agent_is_found_by_its_name(packages: Path) -> None:
    install(packages, "parrot", "parrot_agent:agent")
    (packages / "parrot_agent.py").write_text("agent = 'squawk'\n")
    assert plugins.load_plugin("agents", "parrot") == "squawk"
    sys.modules.pop("parrot_agent")


def test_entry_points_are_those_that_python_finds(packages: Path) -> None:
    install(packages, "parrot", "parrot_agent:agent [loud]")
    (packages / "Zope.Parrot-2.0.dist-info").mkdir()
    kinds = get_args(plugins.PluginKind)
    found = {kind: plugins.installed_plugins(kind) for kind in kinds}
    for kind in kinds:
        expected = {entry.name: entry for entry in entry_points(group=f"closeloop.{kind}")}
        assert found[kind].keys() == expected.keys()
        assert all(found[kind][name].module == entry.module for name, entry in expected.items())


def test_plugins_are_found_beside_an_archive(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(packages, "parrot", "parrot_agent:agent")
    (packages / "other.zip").write_bytes(b"")
    monkeypatch.syspath_prepend(packages / "other.zip")
    assert plugins.installed_plugins("agents")["parrot"].module == "parrot_agent"


def test_an_unknown_agent_is_bad_input_that_names_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"No agent named 'bultin'\. Did you mean 'builtin'\?"):
        plugins.load_plugin("agents", "bultin")


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("broken_agent:agent", "raise RuntimeError('no brain')"),
        ("broken_agent:agent", "brain = 1"),
        ("missing_agent:agent", ""),
    ],
)
def test_an_agent_that_cannot_be_loaded_is_the_plugins_fault(
    packages: Path, target: str, source: str
) -> None:
    install(packages, "broken", target)
    (packages / "broken_agent.py").write_text(source)
    with pytest.raises(PluginFailed, match=f"agent 'broken' could not be loaded.*{target}"):
        plugins.load_plugin("agents", "broken")
    sys.modules.pop("broken_agent", None)
