"""Agents read what reviewers taught over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from team import day

from closeloop.reviews.rule_editing import add_rule
from closeloop.store import open_store

mcp = pytest.importorskip("mcp", reason="the extra closeloop[mcp] is not installed")


def test_the_resource_tells_the_rules_the_nearest_to_the_task_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from closeloop.cli.mcp import build_server

    (tmp_path / "closeloop.toml").write_text('[memory]\nencoder = "ngrams"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    with open_store(str(tmp_path / ".closeloop" / "closeloop.db")) as store:
        add_rule(store, "Write migrations that can be rolled back.", None, "ann", day(0))
        add_rule(store, "Log what happens in the cart.", None, "ann", day(0))

    async def go() -> Any:
        async with mcp.Client(build_server()) as client:
            listed = await client.list_resources()
            assert [str(one.uri) for one in listed.resources] == ["closeloop://context"]
            plain = await client.read_resource("closeloop://context")
            near = await client.read_resource("closeloop://context/Empty%20the%20cart")
            with pytest.raises(mcp.MCPError, match="There is no resource"):
                await client.read_resource("closeloop://secrets")
            return plain.contents[0].text, near.contents[0].text

    plain, near = anyio.run(go)
    assert "rolled back" in plain
    assert near.index("cart") < near.index("rolled back")
