"""When packages were released and what is known against them, asked online where that is allowed.

The package index tells the dates of releases, OSV the vulnerabilities. Answers are hostile input:
bounded in time and size, read into dates and ids, never followed to another place. They are kept
for a day. Where none comes the facts are not known, and the check goes on.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import anyio
import msgspec

from closeloop import __version__
from closeloop.changes.risk.popular_packages import Ecosystem
from closeloop.changes.risk.vulnerabilities import OSV_ECOSYSTEMS, Advisory, parse_advisories
from closeloop.code_digest import replace_file
from closeloop.records.finding import Unmeasured
from closeloop.records.record import Record, Time
from closeloop.records.settings import CheckSettings, PackageIndex

if TYPE_CHECKING:
    import httpx

PUBLIC_INDEXES: Mapping[PackageIndex, str] = {
    "pypi": "https://pypi.org/simple",
    "npm": "https://registry.npmjs.org",
    "crates": "https://crates.io/api/v1/crates",
}
MAX_BODY_BYTES = 32 << 20
MAX_QUESTIONS = 100
MAX_CONNECTIONS = 8
ANSWER_SECONDS = 10.0
TOTAL_SECONDS = 20.0
"""For all questions of one check together."""
KEPT_SECONDS = 86_400.0
AGE_RULE, VULNERABILITY_RULE = "age of dependencies", "vulnerabilities of dependencies"
_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
_INDEXED_NAME = re.compile(r"(?:@[\w-][\w.-]{0,100}/)?\w[\w.-]{0,200}", re.ASCII)
_BAD_ANSWERS = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class PackageQuery(Record):
    """A package as its ecosystem knows it."""

    ecosystem: Ecosystem
    name: str
    version: str | None = None
    """That is installed, else the lowest that the manifest takes."""
    new: bool = True
    """Else it was there in another version, and its age is no news."""
    public: bool = True
    """It comes from the registry: services know what is meant by its name."""


class PackageAnswer(Record):
    """What one service says of one package."""

    at: float
    first_release: Time | None = None
    newest_release: Time | None = None
    advisories: tuple[Advisory, ...] = ()


class PackageReport(Record):
    """What all services say."""

    releases: Mapping[tuple[Ecosystem, str], PackageAnswer] = {}
    advisories: tuple[Advisory, ...] = ()
    unknown: tuple[Unmeasured, ...] = ()


class _ServiceQuestion(Record):
    rule: str
    package: PackageQuery
    url: str
    payload: bytes | None = None
    accept: str = "application/json"

    @property
    def cache_name(self) -> str:
        content = b"\0".join((self.url.encode(), self.payload or b""))
        return f"{hashlib.sha256(content).hexdigest()[:32]}.msgpack"


def ask_services(
    packages: Sequence[PackageQuery],
    settings: CheckSettings,
    cache: Path | None,
    seconds: float = TOTAL_SECONDS,
) -> PackageReport:
    """Ask about every package that is public; a question without an answer is named."""
    unknown: dict[tuple[str, str], list[str]] = defaultdict(list)
    answered: list[tuple[_ServiceQuestion, PackageAnswer]] = []
    open_questions: list[_ServiceQuestion] = []
    public = list(dict.fromkeys(one for one in packages if one.public))
    asked = [(AGE_RULE, _make_index_question, one) for one in public if one.new]
    asked += [(VULNERABILITY_RULE, _make_osv_question, one) for one in public]
    for rule, make_question, package in asked:
        try:
            question = make_question(package, settings)
        except ValueError as reason:
            unknown[rule, str(reason)].append(package.name)
            continue
        if kept := _load_answer(cache, question):
            answered.append((question, kept))
        elif len(open_questions) < MAX_QUESTIONS:
            open_questions.append(question)
        else:
            unknown[rule, f"a check asks {MAX_QUESTIONS} questions"].append(package.name)
    if open_questions:
        for question, answer in anyio.run(_ask_all, open_questions, seconds):
            if isinstance(answer, PackageAnswer):
                _save_answer(cache, question, answer)
                answered.append((question, answer))
            else:
                unknown[question.rule, answer].append(question.package.name)
    return PackageReport(
        releases={
            (question.package.ecosystem, question.package.name): answer
            for question, answer in answered
            if question.rule == AGE_RULE
        },
        advisories=tuple(one for _, answer in answered for one in answer.advisories),
        unknown=tuple(_describe_unknown(unknown)),
    )


def _describe_unknown(unknown: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[Unmeasured]:
    for (rule, reason), names in unknown.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        listed = ", ".join(f"`{name[:80]}`" for name in names[:3])
        yield Unmeasured(rule=rule, reason=f"not known of {listed}{more}: {reason}")


def _make_index_question(package: PackageQuery, settings: CheckSettings) -> _ServiceQuestion:
    """The question for the dates of releases; ValueError where there is nobody to ask."""
    ecosystem, name = package.ecosystem, package.name
    indexes: dict[str, str] = dict((*PUBLIC_INDEXES.items(), *settings.indexes.items()))
    if ecosystem not in indexes:
        raise ValueError(f"the index of {OSV_ECOSYSTEMS[ecosystem]} is not asked")
    if not _INDEXED_NAME.fullmatch(name):
        raise ValueError("no package can have this name")
    address = indexes[ecosystem]
    _require_safe_address(address, f"check.indexes.{ecosystem}")
    url = f"{address.rstrip('/')}/{quote(name, safe='@')}"
    if ecosystem == "pypi":
        accept = "application/vnd.pypi.simple.v1+json"
        return _ServiceQuestion(rule=AGE_RULE, package=package, url=f"{url}/", accept=accept)
    return _ServiceQuestion(rule=AGE_RULE, package=package, url=url)


def _make_osv_question(package: PackageQuery, settings: CheckSettings) -> _ServiceQuestion:
    _require_safe_address(settings.osv, "check.osv")
    about = {"name": package.name[:300], "ecosystem": OSV_ECOSYSTEMS[package.ecosystem]}
    query: dict[str, Any] = {"package": about}
    if package.version:
        query["version"] = package.version[:100].removeprefix("v")
    return _ServiceQuestion(
        rule=VULNERABILITY_RULE,
        package=package,
        url=f"{settings.osv.rstrip('/')}/v1/query",
        payload=msgspec.json.encode(query),
    )


def _require_safe_address(address: str, setting: str) -> None:
    """ValueError, without the address, which may hold a password."""
    try:
        parts = urlsplit(address)
        local = parts.scheme == "http" and parts.hostname in _LOCAL_HOSTS
        if (parts.scheme == "https" or local) and parts.hostname and "@" not in parts.netloc:
            return
    except ValueError:
        pass
    raise ValueError(f"`{setting}` should begin with https:// and hold no password")


# One question and its answer.


async def _ask_all(
    questions: Sequence[_ServiceQuestion], seconds: float
) -> list[tuple[_ServiceQuestion, PackageAnswer | str]]:
    """Every question with its answer, or with why there is none, before the time is over."""
    import httpx

    answers: dict[int, PackageAnswer | str] = {}
    limiter = anyio.Semaphore(MAX_CONNECTIONS)
    headers = {"user-agent": f"closeloop/{__version__}", "accept-encoding": "identity"}

    async def ask(number: int, question: _ServiceQuestion) -> None:
        # A proxy for the world outside would not find a server on this machine.
        is_local = urlsplit(question.url).hostname in _LOCAL_HOSTS
        async with limiter:
            answers[number] = await _fetch_answer(here if is_local else outside, question)

    with anyio.move_on_after(seconds):
        async with (
            httpx.AsyncClient(headers=headers, trust_env=False) as here,
            httpx.AsyncClient(headers=headers) as outside,
            anyio.create_task_group() as group,
        ):
            for number, question in enumerate(questions):
                group.start_soon(ask, number, question)
    late = f"there was no answer within {seconds:g} s"
    return [(question, answers.get(number, late)) for number, question in enumerate(questions)]


async def _fetch_answer(
    client: httpx.AsyncClient, question: _ServiceQuestion
) -> PackageAnswer | str:
    import httpx

    host = urlsplit(question.url).netloc
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            body = await _read_body(client, question)
        if isinstance(body, str):
            return f"{host} {body}"
        return _PARSERS[question.package.ecosystem if question.payload is None else "osv"](body)
    except (TimeoutError, httpx.TimeoutException):
        return f"{host} did not answer within {ANSWER_SECONDS:g} s"
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
        return f"{host} could not be reached ({type(error).__name__})"
    except _BAD_ANSWERS:
        return f"{host} answered something else than its format says"


async def _read_body(client: httpx.AsyncClient, question: _ServiceQuestion) -> bytes | str:
    """The content of the answer, or why it is none; redirects are not followed."""
    received = bytearray()
    method = "GET" if question.payload is None else "POST"
    headers = {"accept": question.accept}
    if question.payload is not None:
        headers["content-type"] = "application/json"
    async with client.stream(
        method, question.url, content=question.payload, headers=headers, timeout=ANSWER_SECONDS
    ) as response:
        if response.status_code == 404:
            return "does not know it"
        if response.status_code != 200:
            return f"answered {response.status_code}"
        if response.headers.get("content-encoding", "identity") != "identity":
            return "answered with compressed content"
        async for chunk in response.aiter_raw():
            received += chunk
            if len(received) > MAX_BODY_BYTES:
                return f"answered with more than {MAX_BODY_BYTES >> 20} MiB"
    return bytes(received)


class _PythonFile(Record, rename={"upload_time": "upload-time"}):
    upload_time: Time | None = None


class _PythonPage(Record):
    files: list[_PythonFile]


class _NpmPage(Record):
    time: dict[str, Any]


class _CrateVersion(Record):
    created_at: Time


class _CratePage(Record):
    versions: list[_CrateVersion]


def _parse_python_page(body: bytes) -> PackageAnswer:
    page = msgspec.json.decode(body, type=_PythonPage)
    return _span_releases([one.upload_time for one in page.files if one.upload_time])


def _parse_npm_page(body: bytes) -> PackageAnswer:
    """Beside versions, `time` says when the page was made and changed, which are no releases."""
    dates = msgspec.json.decode(body, type=_NpmPage).time
    released = {version: date for version, date in dates.items() if version[:1].isdigit()}
    return _span_releases(list(msgspec.convert(released, dict[str, Time]).values()))


def _parse_crate_page(body: bytes) -> PackageAnswer:
    versions = msgspec.json.decode(body, type=_CratePage).versions
    return _span_releases([one.created_at for one in versions])


def _parse_osv_answer(body: bytes) -> PackageAnswer:
    return PackageAnswer(at=time.time(), advisories=tuple(parse_advisories(body)))


def _span_releases(dates: Sequence[datetime]) -> PackageAnswer:
    """ValueError where there is no date."""
    return PackageAnswer(at=time.time(), first_release=min(dates), newest_release=max(dates))


_PARSERS: Mapping[str, Callable[[bytes], PackageAnswer]] = {
    "pypi": _parse_python_page,
    "npm": _parse_npm_page,
    "crates": _parse_crate_page,
    "osv": _parse_osv_answer,
}


# Answers are kept for a day.


def _load_answer(cache: Path | None, question: _ServiceQuestion) -> PackageAnswer | None:
    if cache is None:
        return None
    try:
        content = (cache / "packages" / question.cache_name).read_bytes()
        answer = msgspec.msgpack.decode(content, type=PackageAnswer)
    except (OSError, msgspec.MsgspecError):
        return None
    return answer if 0 <= time.time() - answer.at < KEPT_SECONDS else None


def _save_answer(cache: Path | None, question: _ServiceQuestion, answer: PackageAnswer) -> None:
    """Best effort: an answer that cannot be kept is asked for again."""
    if cache is None:
        return
    try:
        replace_file(cache / "packages" / question.cache_name, msgspec.msgpack.encode(answer))
        for old in (cache / "packages").glob("*.msgpack"):
            if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                old.unlink(missing_ok=True)
    except OSError:
        return
