"""Whatever stands in an address, the answer is a page, a record or one sentence: never a crash."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import msgspec
import pytest
from dashboard_store import HANDOFF, LONG, SPIRAL, fill
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from closeloop.store import open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import Page
from closeloop.web.pages import PAGES

HERE = "http://127.0.0.1:4318"
ODD = ("", "\0", "%", "'", '"', "../..", "\U0010ffff", "é", "true", "null", "1e9", "nan", "sealed-")
KNOWN = ("pass", "fail", "grid", SPIRAL, HANDOFF, LONG, SPIRAL[:3], "eyJzdGFydGVkIjpudWxsfQ")
VALUES = st.one_of(
    st.text(max_size=20), st.integers(-(10**20), 10**20).map(str), st.sampled_from(ODD + KNOWN)
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with open_store(":memory:") as opened:
        fill(opened)
        with TestClient(build_web_app(opened, token=None), base_url=HERE) as client:
            yield client


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_address_is_answered(client: TestClient, page: Page, data: st.DataObject) -> None:
    fields = [field.name for field in msgspec.structs.fields(page.query_type)]
    parts = []
    for part in page.path.split("/"):
        if part.startswith("{"):
            known = st.sampled_from([SPIRAL, HANDOFF, "missing-cent", "1"])
            parts.append(quote(data.draw(known | VALUES), safe="") or "x")
        else:
            parts.append(part)
    asked = data.draw(st.dictionaries(st.sampled_from([*fields, "other"]), VALUES, max_size=4))
    query = "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in asked.items())
    path = "/".join(parts)
    for place in (path, f"/api{path}"):
        answer = client.get(f"{place}?{query}", follow_redirects=False)
        assert answer.status_code in (200, 303, 307, 400, 404), answer.text
        if answer.status_code >= 400 and place != path:
            assert set(answer.json()) == {"message"}
