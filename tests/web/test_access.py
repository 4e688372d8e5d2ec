"""Who may read and write, and how others are kept out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from closeloop.records.errors import BadInput
from closeloop.records.settings import (
    ACCESS_SCOPES,
    AccessScope,
    AccessToken,
    ServeSettings,
    Settings,
)
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.auth_middleware import AddressRateLimit, required_scope
from closeloop.web.page import PageContext

HERE = "http://127.0.0.1:4318"
HTML = {"accept": "text/html"}
NOW = datetime.now(UTC)


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


@pytest.fixture
def kept(store_url: str) -> Iterator[Store]:
    """Of each engine in turn."""
    with open_store(store_url) as opened:
        yield opened


@contextmanager
def served(
    store: Store,
    *,
    token: str | None = None,
    is_open: bool | None = None,
    serve: ServeSettings | None = None,
) -> Iterator[TestClient]:
    """A server with one thing to write, by a browser that keeps its cookies."""
    desk = PageContext(store, Settings(serve=serve or ServeSettings()))
    app = build_web_app(store, token=token, is_open=is_open, page_context=desk)

    async def write(request: Request) -> Response:
        return JSONResponse({"written": (await request.body()).decode()})

    app.router.routes.insert(0, Route("/write", write, methods=["POST"]))
    with TestClient(app, base_url=HERE, follow_redirects=False) as client:
        yield client


def made(store: Store, *scopes: AccessScope) -> str:
    """The secret of a new token."""
    secret = f"closeloop_{len(store.access.list_tokens())}_{'-'.join(scopes)}"
    number = str(len(store.access.list_tokens()))
    store.access.save_token(
        AccessToken(id=f"t{number}", name=f"n{number}", scopes=scopes, at=NOW), secret
    )
    return secret


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_on_this_machine_reading_is_open_and_writing_is_not(store: Store) -> None:
    with served(store) as client:
        assert client.get("/api/attempts").status_code == 200
        client.cookies.clear()
        refused = client.post("/write", content=b"x")
        assert refused.status_code == 401
        assert "Bearer" in refused.json()["message"]
        assert "Send the header" in refused.json()["message"]
        wrong = client.post("/write", headers=bearer("guessed"))
        assert wrong.status_code == 401
        assert "This token is unknown or revoked" in wrong.json()["message"]
        assert client.post("/write", headers=bearer(made(store, "review"))).status_code == 200


def test_another_name_for_this_machine_is_refused(store: Store) -> None:
    with served(store) as client:
        for host in ("evil.example", "127.0.0.1.evil.example:4318", ""):
            assert client.get("/attempts", headers={"host": host}).status_code == 400
        assert client.get("/attempts", headers={"host": "localhost:4318"}).status_code == 200
        assert client.get("/attempts", headers={"host": "[::1]:4318"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"origin": HERE, "x-csrf-token": "{csrf}"}, True),
        ({"sec-fetch-site": "same-origin", "x-csrf-token": "{csrf}"}, True),
        ({"origin": HERE}, False),
        ({"origin": HERE, "x-csrf-token": "made up"}, False),
        ({"x-csrf-token": "{csrf}"}, False),
        ({"origin": "http://127.0.0.1:9999", "x-csrf-token": "{csrf}"}, False),
        ({"origin": "https://evil.example", "x-csrf-token": "{csrf}"}, False),
        ({"origin": "null", "x-csrf-token": "{csrf}"}, False),
    ],
)
def test_a_browser_writes_only_from_our_own_pages(
    store: Store, headers: dict[str, str], allowed: bool
) -> None:
    with served(store) as client:
        csrf = token_of(client)
        sent = {name: value.format(csrf=csrf) for name, value in headers.items()}
        answer = client.post("/write", content=b"said", headers=sent)
        assert answer.status_code == (200 if allowed else 403)
        assert (answer.json().get("written") == "said") is allowed


def token_of(client: TestClient) -> str:
    found = re.search(r'"X-CSRF-Token": "(\w+)"', client.get("/attempts", headers=HTML).text)
    assert found is not None
    return found[1]


def test_a_plain_form_brings_its_token_along(store: Store) -> None:
    with served(store) as client:
        form = {"csrf": token_of(client), "answer": "yes"}
        answer = client.post("/write", data=form, headers={"origin": HERE})
        assert "answer=yes" in answer.json()["written"]
        form["csrf"] = "0" * 32
        assert client.post("/write", data=form, headers={"origin": HERE}).status_code == 403
        large = {**form, "answer": "x" * (1 << 20)}
        assert client.post("/write", data=large, headers={"origin": HERE}).status_code == 413


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(store: Store) -> None:
    with served(store) as client:
        cookie = client.get("/attempts", headers=HTML).headers["set-cookie"]
        assert cookie.startswith("closeloop_4318=")
        for part in ("HttpOnly", "SameSite=Lax", "Path=/"):
            assert part in cookie
        again = client.get("/attempts", headers=HTML)
        assert "set-cookie" not in again.headers


def test_with_a_token_set_nothing_is_open(store: Store) -> None:
    with served(store, token="the one") as client:
        assert client.get("/health").status_code == 200
        assert client.get("/api/attempts").status_code == 401
        assert client.post("/v1/traces", content=b"").status_code == 401
        assert client.get("/api/attempts", headers=bearer("the one")).status_code == 200
        sent = client.get("/attempts?outcome=fail", headers=HTML)
        assert sent.status_code == 303
        assert sent.headers["location"] == "/login?next=%2Fattempts%3Foutcome%3Dfail"


@pytest.mark.parametrize("scope", ACCESS_SCOPES)
def test_a_token_may_do_what_its_scopes_say(store: Store, scope: AccessScope) -> None:
    with served(store, is_open=False) as client:
        headers = bearer(made(store, scope))
        got = {
            "read": client.get("/api/attempts", headers=headers).status_code == 200,
            "review": client.post("/write", headers=headers).status_code == 200,
            "ingest": client.post("/v1/traces", headers=headers).status_code != 403,
        }
    assert got == {name: name == scope or scope == "admin" for name in got}


def log_in(client: TestClient, secret: str, place: str = "/") -> Response:
    form = {"token": secret, "next": place}
    answer: Response = client.post("/login", data=form, headers={"origin": HERE})  # type: ignore[assignment]
    return answer


def test_a_browser_comes_in_with_a_token_and_leaves(store: Store) -> None:
    with served(store, is_open=False) as client:
        assert "token" in client.get("/login").text
        assert log_in(client, "wrong").status_code == 403
        assert "set-cookie" not in log_in(client, "").headers
        answer = log_in(client, made(store, "read", "review"), "/tasks")
        assert (answer.status_code, answer.headers["location"]) == (303, "/tasks")
        csrf = token_of(client)
        own = {"origin": HERE, "x-csrf-token": csrf}
        assert client.post("/write", headers=own).status_code == 200
        kept = dict(client.cookies)
        assert client.post("/logout", headers=own).status_code == 303
        client.cookies.update(kept)
        assert client.get("/api/attempts").status_code == 401


def test_a_login_ends_with_its_token(store: Store) -> None:
    with served(store, is_open=False) as client:
        log_in(client, made(store, "read"))
        assert client.get("/api/attempts").status_code == 200
        store.access.revoke_token("t0", NOW)
        assert client.get("/api/attempts").status_code == 401


def test_a_login_by_the_servers_token_ends_when_that_changes(store: Store) -> None:
    with served(store, token="first") as client:
        log_in(client, "first")
        assert client.get("/api/attempts").status_code == 200
        kept = dict(client.cookies)
    with served(store, token="second") as client:
        client.cookies.update(kept)
        assert client.get("/api/attempts").status_code == 401


def test_a_login_by_another_site_is_refused(store: Store) -> None:
    with served(store, is_open=False) as client:
        form = {"token": made(store, "read")}
        away = {"origin": "https://evil.example"}
        assert client.post("/login", data=form, headers=away).status_code == 403


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/\t/evil", ""]
)
def test_after_a_login_nobody_is_sent_elsewhere(store: Store, place: str) -> None:
    with served(store, is_open=False) as client:
        assert log_in(client, made(store, "read"), place).headers["location"] == "/"


def test_a_login_is_not_for_ever(kept: Store) -> None:
    kept.access.save_login("secret", "t0", NOW + timedelta(seconds=5))
    assert kept.access.find_login_token("secret", NOW) == "t0"
    assert kept.access.find_login_token("secret", NOW + timedelta(seconds=6)) is None
    assert kept.access.find_login_token("another", NOW) is None


def test_guesses_are_slowed_down(store: Store) -> None:
    with served(store, is_open=False) as client:
        answers = [log_in(client, f"guess {number}") for number in range(30)]
        statuses = [answer.status_code for answer in answers]
        assert statuses[:10] == [403] * 10
        refused = answers[statuses.index(429)]
        assert int(refused.headers["retry-after"]) > 0


def test_a_limit_is_of_one_address() -> None:
    limit = AddressRateLimit(max_requests=2, seconds=600)
    assert [limit.count_request("a"), limit.count_request("a")] == [None, None]
    assert limit.count_request("a") is not None
    assert limit.count_request("b") is None


def trusted(**changes: object) -> ServeSettings:
    given = {"user_header": "X-User", "proxies": ("testclient",), **changes}
    return ServeSettings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        (trusted(), {"x-user": "ann"}, 200),
        (trusted(), {}, 401),
        (trusted(proxies=("10.0.0.1",)), {"x-user": "ann"}, 401),
        (ServeSettings(), {"x-user": "ann"}, 401),
        (trusted(user_scopes=("review",)), {"x-user": "ann"}, 403),
    ],
)
def test_a_proxy_is_believed_only_where_it_was_named(
    store: Store, settings: ServeSettings, headers: dict[str, str], status: int
) -> None:
    with served(store, is_open=False, serve=settings) as client:
        assert client.get("/api/attempts", headers=headers).status_code == status


def test_whom_the_proxy_does_not_name_is_nobody_even_on_this_machine(store: Store) -> None:
    with served(store, serve=trusted(hosts=("dash.example",))) as client:
        assert client.get("/api/attempts", headers={"host": "dash.example"}).status_code == 401
        named = {"host": "dash.example", "x-user": "ann"}
        assert client.get("/api/attempts", headers=named).status_code == 200


def test_a_proxy_that_speaks_https_for_us_is_no_other_origin(store: Store) -> None:
    with served(store, is_open=False, serve=trusted()) as client:
        client.headers["x-user"] = "ann"
        page = client.get("/attempts", headers={**HTML, "x-forwarded-proto": "https"})
        assert "Secure" in page.headers["set-cookie"]
        found = re.search(r'"X-CSRF-Token": "(\w+)"', page.text)
        assert found is not None
        cookie = page.headers["set-cookie"].partition(";")[0]
        own = {"origin": "https://127.0.0.1:4318", "x-csrf-token": found[1], "cookie": cookie}
        assert client.post("/write", headers=own).status_code == 200


def test_somebody_who_may_only_read_can_leave(store: Store) -> None:
    with served(store, is_open=False) as client:
        log_in(client, made(store, "read"))
        own = {"origin": HERE, "x-csrf-token": token_of(client)}
        assert client.post("/logout", headers=own).status_code == 303
        assert client.get("/api/attempts").status_code == 401


def test_whom_a_proxy_names_writes_only_from_our_own_pages(store: Store) -> None:
    with served(store, is_open=False, serve=trusted()) as client:
        client.headers["x-user"] = "ann"
        csrf = token_of(client)
        assert client.post("/write", headers={"origin": HERE}).status_code == 403
        own = {"origin": HERE, "x-csrf-token": csrf}
        assert client.post("/write", headers=own).status_code == 200


def test_secrets_are_kept_only_as_hashes(kept: Store) -> None:
    secret = made(kept, "read")
    kept.access.save_login("browser secret", "t0", NOW)
    rows = kept._read(
        lambda on: [
            *map(str, on.execute_sql("SELECT * FROM tokens").fetchall()),
            *map(str, on.execute_sql("SELECT * FROM logins").fetchall()),
        ]
    )
    assert len(rows) == 2
    assert not any(secret in row or "browser secret" in row for row in rows)


def test_a_token_that_is_not_there_cannot_be_revoked(kept: Store) -> None:
    with pytest.raises(BadInput, match="No token named 'nobody'"):
        kept.access.revoke_token("nobody", NOW)
    made(kept, "read")
    kept.access.revoke_token("t0", NOW)
    kept.access.revoke_token("t0", NOW + timedelta(days=1))
    assert [token.revoked for token in kept.access.list_tokens()] == [
        NOW.replace(microsecond=NOW.microsecond)
    ]


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/attempts", "read"),
        ("HEAD", "/api/attempts", "read"),
        ("GET", "/health", None),
        ("GET", "/healthy", "read"),
        ("POST", "/login", None),
        ("GET", "/static/app.css", None),
        ("POST", "/webhooks/github", None),
        ("POST", "/v1/traces", "ingest"),
        ("POST", "/api/evaluations", "review"),
        ("DELETE", "/anything", "review"),
        ("POST", "/settings/x", "admin"),
    ],
)
def test_what_a_request_needs(method: str, path: str, scope: AccessScope | None) -> None:
    assert required_scope(method, path) == scope
