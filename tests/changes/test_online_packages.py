"""Package indexes and OSV are asked only where that is allowed; no answer of theirs does harm."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from risk_repository import changed, commit

from closeloop.changes.risk import assess_risk
from closeloop.changes.risk.dependencies import DependencyChange, find_dependency_changes
from closeloop.changes.risk.online_packages import (
    AGE_RULE,
    KEPT_SECONDS,
    MAX_BODY_BYTES,
    VULNERABILITY_RULE,
    Ecosystem,
    PackageAnswer,
    PackageQuery,
    ask_services,
)
from closeloop.changes.risk.risk_model import RiskModel
from closeloop.records.finding import Unmeasured
from closeloop.records.settings import CheckSettings
from command_line import typed

NOW = datetime.now(UTC)
Reply = tuple[int, dict[str, str], bytes]


def day(ago: int) -> str:
    return (NOW - timedelta(days=ago)).strftime("%Y-%m-%dT%H:%M:%S.123Z")


def python_page(*days: int) -> Reply:
    files = [{"filename": f"x-{one}.tar.gz", "upload-time": day(one)} for one in days]
    return 200, {}, json.dumps({"meta": {"api-version": "1.1"}, "files": files}).encode()


def osv_answer(*ids: str, name: str = "some-pkg") -> Reply:
    package = {"ecosystem": "PyPI", "name": name}
    entries = [{"id": one, "affected": [{"package": package, "versions": ["2.5"]}]} for one in ids]
    return 200, {}, json.dumps({"vulns": entries} if entries else {}).encode()


class PackageServices:
    """A package index of each kind and OSV, on this machine; tests say what they answer."""

    def __init__(self) -> None:
        self.index: Reply | Callable[[BaseHTTPRequestHandler], None] = python_page(900, 10)
        self.osv: Reply | Callable[[BaseHTTPRequestHandler], None] = osv_answer()
        self.asked: list[str] = []
        self.queries: list[dict[str, object]] = []
        self.address = ""
        self.closed = threading.Event()

    @property
    def settings(self) -> CheckSettings:
        indexes = {"pypi": f"{self.address}/simple", "npm": self.address, "crates": self.address}
        return CheckSettings(online=True, osv=self.address, indexes=indexes)


@pytest.fixture
def services() -> Iterator[PackageServices]:
    played = PackageServices()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.play(played.index)

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            played.queries.append(json.loads(self.rfile.read(length)))
            self.play(played.osv)

        def play(self, reply: Reply | Callable[[BaseHTTPRequestHandler], None]) -> None:
            played.asked.append(f"{self.command} {self.path}")
            if callable(reply):
                reply(self)
                return
            status, headers, body = reply
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                """Whoever asked had enough."""

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        played.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield played
        played.closed.set()
        server.shutdown()


def find_changes(
    folder: Path, settings: CheckSettings, added: str = "some-pkg==2.5\n"
) -> tuple[list[DependencyChange], list[Unmeasured]]:
    before = {"requirements.txt": "six==1\n"}
    with changed(folder, before, {"requirements.txt": f"six==1\n{added}"}) as inspection:
        online = msgspec.structs.replace(inspection, settings=settings)
        return find_dependency_changes(online)


def test_nothing_is_asked_unless_it_is_allowed(tmp_path: Path, services: PackageServices) -> None:
    offline = msgspec.structs.replace(services.settings, online=False)
    with changed(tmp_path / "r", {"requirements.txt": ""}, {"requirements.txt": "x==1\n"}) as one:
        risk = assess_risk(
            msgspec.structs.replace(one, settings=offline), history=None, model=RiskModel()
        )

    assert services.asked == []
    assert [gap.reason for gap in risk.unmeasured if gap.rule == AGE_RULE] == [
        "unknown, because network access is off; `check.online` allows it"
    ]


@pytest.mark.parametrize(
    ("days", "warnings"),
    [
        ((900, 10), ()),
        ((29, 2), ("its first release is less than 30 days old",)),
        ((31, 2), ()),
        ((4000, 1100), ("there was no release for 3 years",)),
        ((4000, 1090), ()),
    ],
)
def test_the_age_of_a_new_dependency_is_told(
    tmp_path: Path, services: PackageServices, days: tuple[int, int], warnings: tuple[str, ...]
) -> None:
    services.index = python_page(*days, *days)

    changes, unknown = find_changes(tmp_path / "r", services.settings)

    first, newest = (day(one)[:10] for one in days)
    told = f"adds the dependency `some-pkg` ==2.5, first released {first}, last {newest}"
    assert [(one.text, one.warnings) for one in changes] == [(told, warnings)]
    assert not unknown
    assert sorted(services.asked) == ["GET /simple/some-pkg/", "POST /v1/query"]


def test_known_vulnerabilities_are_asked_for_by_version(
    tmp_path: Path, services: PackageServices
) -> None:
    services.osv = osv_answer("PYSEC-1", "PYSEC-2")

    changes, unknown = find_changes(tmp_path / "r", services.settings)

    assert changes[0].warnings == ("PYSEC-1, PYSEC-2 affects version 2.5",)
    assert not unknown
    assert services.queries == [
        {"package": {"name": "some-pkg", "ecosystem": "PyPI"}, "version": "2.5"}
    ]


def test_of_a_bumped_dependency_only_vulnerabilities_are_asked(
    tmp_path: Path, services: PackageServices
) -> None:
    services.osv = osv_answer("PYSEC-1")
    before, after = {"requirements.txt": "some-pkg==2.4\n"}, {"requirements.txt": "some-pkg==2.5\n"}
    with changed(tmp_path / "r", before, after) as one:
        online = msgspec.structs.replace(one, settings=services.settings)
        changes, _ = find_dependency_changes(online)

    assert changes[0].warnings == ("PYSEC-1 affects version 2.5",)
    assert services.asked == ["POST /v1/query"]


def test_what_comes_from_elsewhere_is_told_to_nobody(
    tmp_path: Path, services: PackageServices
) -> None:
    added = "secret-pkg @ git+https://host/secret.git\n"
    find_changes(tmp_path / "r", services.settings, added)

    assert services.asked == []


NPM_PAGE = {"time": {"created": day(4000), "modified": day(0), "1.0.0": day(90), "1.1.0": day(50)}}
CRATE_PAGE = {"versions": [{"created_at": day(50)}, {"created_at": day(90)}]}


@pytest.mark.parametrize(
    ("ecosystem", "name", "page", "path"),
    [
        ("npm", "@scope/pkg", NPM_PAGE, "/@scope%2Fpkg"),
        ("crates", "serde_x", CRATE_PAGE, "/serde_x"),
    ],
)
def test_other_indexes_are_read_in_their_own_format(
    services: PackageServices, ecosystem: Ecosystem, name: str, page: object, path: str
) -> None:
    services.index = (200, {}, json.dumps(page).encode())

    report = ask_services([PackageQuery(ecosystem=ecosystem, name=name)], services.settings, None)

    released = report.releases[ecosystem, name]
    assert released.first_release is not None
    assert released.newest_release is not None
    assert str(released.first_release.date()) == day(90)[:10]
    assert str(released.newest_release.date()) == day(50)[:10]
    assert f"GET {path}" in services.asked


QUERY = PackageQuery(ecosystem="pypi", name="some-pkg", version="2.5")


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """An answer that goes on and never ends."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.05)
    except OSError:
        """Whoever asked had enough."""


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((200, {}, b""), "is not in its format"),
        ((200, {}, b"\xff\x00garbage"), "is not in its format"),
        ((200, {}, b"[" * 200_000), "is not in its format"),
        ((200, {}, b'{"files": [{"upload-time": "soon"}], "vulns": 3}'), "is not in its format"),
        (
            (200, {}, b'{"files": [], "vulns": [{"affected": [{"package": 1}]}]}'),
            "is not in its format",
        ),
        ((200, {}, b'{"files": 7, "vulns": [null]}'), "is not in its format"),
        ((200, {"content-encoding": "gzip"}, b"x"), "sent compressed content"),
        ((404, {}, b"{}"), "does not know it"),
        ((500, {}, b"{}"), "answered 500"),
        ((200, {"content-length": "900"}, b"{}"), "could not be reached (RemoteProtocolError)"),
    ],
)
def test_a_bad_answer_is_not_known(services: PackageServices, reply: Reply, reason: str) -> None:
    services.index = services.osv = reply

    report = ask_services([QUERY], services.settings, None)

    assert not report.releases
    assert not report.advisories
    assert [gap.rule for gap in report.unknown] == [AGE_RULE, VULNERABILITY_RULE]
    for gap in report.unknown:
        assert gap.reason.startswith("unknown for `some-pkg`: 127.0.0.1:")
        assert reason in gap.reason


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_redirects_are_not_followed(services: PackageServices, host: str) -> None:
    elsewhere = services.address.replace("127.0.0.1", host) + "/elsewhere"
    services.index = services.osv = (302, {"location": elsewhere}, b"")

    report = ask_services([QUERY], services.settings, None)

    assert sorted(services.asked) == ["GET /simple/some-pkg/", "POST /v1/query"]
    assert all(gap.reason.endswith("answered 302") for gap in report.unknown)


def test_an_answer_without_end_is_left(services: PackageServices) -> None:
    services.index = (200, {}, b'{"files": [' + b" " * MAX_BODY_BYTES)

    report = ask_services([QUERY], services.settings, None)

    assert report.unknown[0].reason.endswith("sent more than 32 MiB")


def test_slow_services_do_not_hold_up_the_check(services: PackageServices) -> None:
    services.index = trickle

    def stay_silent(_: BaseHTTPRequestHandler) -> None:
        services.closed.wait()

    services.osv = stay_silent

    report = ask_services([QUERY], services.settings, None, seconds=0.5)

    late = "unknown for `some-pkg`: there was no response within 0.5 s"
    assert [gap.reason for gap in report.unknown] == [late, late]


def test_a_service_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    nobody = CheckSettings(
        online=True, osv="http://127.0.0.1:9", indexes={"pypi": "http://127.0.0.1:9"}
    )

    changes, unknown = find_changes(tmp_path / "r", nobody)

    assert changes[0].text == "adds the dependency `some-pkg` ==2.5"
    assert ["could not be reached (ConnectError)" in gap.reason for gap in unknown] == [True, True]


@pytest.mark.parametrize(
    "address",
    [
        "http://example.org",
        "file:///etc/passwd",
        "https://me:pw@example.org",
        "https://me:pw@example.org\N{FULLWIDTH SOLIDUS}x",
        "https://[",
        "x",
        "",
    ],
)
def test_an_address_that_is_not_safe_is_not_asked(address: str) -> None:
    settings = CheckSettings(online=True, osv=address, indexes={"pypi": address})

    report = ask_services([QUERY], settings, None)

    assert [gap.rule for gap in report.unknown] == [AGE_RULE, VULNERABILITY_RULE]
    assert not any("pw" in gap.reason for gap in report.unknown)


@pytest.mark.parametrize("name", ["..", "../admin", "a/../b", "@/x", "a?x=1", "a#b", "a b", "é"])
def test_a_name_cannot_lead_to_another_page(services: PackageServices, name: str) -> None:
    report = ask_services([PackageQuery(ecosystem="npm", name=name)], services.settings, None)

    assert services.asked == ["POST /v1/query"]
    assert report.unknown[0].reason.endswith("this is not a valid package name")


def test_hostile_ids_and_versions_are_bounded(tmp_path: Path, services: PackageServices) -> None:
    evil = "\x1b[31m<script>|`@all" + "x" * 5000
    package = {"ecosystem": "PyPI", "name": "some-pkg"}
    events = [{"introduced": "0"}, {"fixed": "9" * 10_000}]
    entry = {"id": evil, "affected": [{"package": package, "ranges": [{"events": events}]}]}
    services.osv = (200, {}, json.dumps({"vulns": [entry]}).encode())

    changes, _ = find_changes(tmp_path / "r", services.settings)

    (warning,) = changes[0].warnings
    assert warning.startswith("??31m?script????all")
    assert len(warning) < 120


def test_an_answer_is_kept_for_a_day(tmp_path: Path, services: PackageServices) -> None:
    services.osv = osv_answer("PYSEC-1")
    first = ask_services([QUERY], services.settings, tmp_path)
    assert ask_services([QUERY], services.settings, tmp_path) == first
    assert len(services.asked) == 2

    for path in (tmp_path / "packages").iterdir():
        answer = msgspec.msgpack.decode(path.read_bytes(), type=PackageAnswer)
        past = msgspec.structs.replace(answer, at=answer.at - KEPT_SECONDS)
        path.write_bytes(msgspec.msgpack.encode(past))
    ask_services([QUERY], services.settings, tmp_path)
    assert len(services.asked) == 4

    for path in (tmp_path / "packages").iterdir():
        path.write_bytes(b"garbage")
    ask_services([QUERY], services.settings, tmp_path)
    assert len(services.asked) == 6


def test_what_was_not_answered_is_asked_again(tmp_path: Path, services: PackageServices) -> None:
    services.index = services.osv = (500, {}, b"")
    ask_services([QUERY], services.settings, tmp_path)
    services.index, services.osv = python_page(900), osv_answer()

    assert not ask_services([QUERY], services.settings, tmp_path).unknown


def test_a_change_cannot_open_the_network_for_its_own_check(
    tmp_path: Path, services: PackageServices
) -> None:
    repo = tmp_path / "r"
    wanted = f'osv = "{services.address}"\nindexes.pypi = "{services.address}/simple"\n'
    commit(repo, {"requirements.txt": "six==1\n", "closeloop.toml": ""})
    settings = {"closeloop.toml": f"[check]\nonline = true\n{wanted}"}
    commit(repo, {"requirements.txt": "some-pkg==2.5\n", **settings})
    commit(repo, {"requirements.txt": "some-pkg==2.5\nother==1\n"})
    arguments = ("--tier", "risk", "--json")

    told = typed(repo, "check", "HEAD~2..HEAD~1", *arguments, XDG_CACHE_HOME=str(tmp_path / "c"))
    assert services.asked == []
    assert "check.online, check.indexes, check.osv" in " ".join(told.stderr.split())

    trusted = typed(repo, "check", "HEAD~1..HEAD", *arguments, XDG_CACHE_HOME=str(tmp_path / "c"))
    assert sorted(services.asked) == ["GET /simple/other/", "POST /v1/query"]
    assert f"`other` ==1, first released {day(900)[:10]}" in trusted.stdout
    assert list((tmp_path / "c" / "closeloop" / "packages").iterdir())
