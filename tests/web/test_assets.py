"""What pages are made with: ours or unchanged from others, and nothing between the lines."""

from __future__ import annotations

import gzip
import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from closeloop.store import open_store
from closeloop.web.app import build_web_app
from closeloop.web.render import load_assets

WEB = Path(str(files("closeloop.web")))
VENDORED = {
    "d3.min.js": "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "idiomorph.min.js": "5811b9a7eda14878b7dab4378bf60432e1bb6f11fcfb970cc26540642650181e",
    "plot.min.js": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
}
"""d3 7.9.2, htmx 2.0.11, idiomorph 0.8.0 and Observable Plot 0.6.17, as they were released."""


def test_what_others_made_is_unchanged_and_has_its_licence() -> None:
    folder = WEB / "static" / "vendor"
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.js")
    }
    assert found == VENDORED
    for name in VENDORED:
        assert (folder / f"{name.partition('.')[0]}.LICENSE.txt").stat().st_size > 100


def test_a_file_is_served_packed_under_the_name_of_its_content() -> None:
    with (
        open_store(":memory:") as store,
        TestClient(build_web_app(store, token="x"), base_url="http://127.0.0.1") as client,
    ):
        for asset in load_assets().values():
            answer = client.get(asset.address, headers={"accept-encoding": "identity"})
            assert answer.content == asset.content
            assert "immutable" in answer.headers["cache-control"]
            assert hashlib.sha256(asset.content).hexdigest()[:12] in asset.address
            if asset.packed is not None:
                assert gzip.decompress(asset.packed) == asset.content
        assert client.get("/static/app.css").status_code == 404
        assert client.get("/static/../app.py").status_code in (401, 404)
        assert client.get("/static/..%2fapp.py").status_code == 404


@pytest.mark.parametrize("path", sorted((WEB / "templates").glob("*.html")), ids=lambda p: p.name)
def test_a_template_holds_no_script_and_no_style(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", text)
    assert "|safe" not in text.replace(" ", "")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text), "all comes from here"


def test_there_are_few_custom_elements() -> None:
    scripts = [path.read_text(encoding="utf-8") for path in (WEB / "static").glob("*.js")]
    defined = re.findall(r"customElements\.define\(\"([\w-]+)\"", "".join(scripts))
    assert len(defined) == len(set(defined)) <= 8
    assert not re.search(r"\beval\(|new Function|innerHTML|insertAdjacentHTML", "".join(scripts))


def test_colours_that_mean_something_are_there_in_both_themes() -> None:
    sheet = (WEB / "static" / "app.css").read_text(encoding="utf-8")
    light, *dark = [
        set(re.findall(r"--[\w-]+(?=:)", block))
        for block in re.findall(r":root[^{]*\{([^}]*--ground[^}]*--shadow[^}]*)\}", sheet)
    ]
    fonts = {"--mono", "--sans"}
    assert len(dark) >= 2
    for theme in dark[:2]:
        assert theme == light - fonts
