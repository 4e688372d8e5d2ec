"""Release dates and known vulnerabilities of packages, queried online if that is allowed.

The package index has the release dates, OSV the vulnerabilities. Answers are hostile input: bounded
in time and size, read into dates and ids, redirects never followed. They are cached for a day.
Without an answer the facts are unknown, and the check goes on.
"""

from __future__ import annotations

import hashlib
import re
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

import anyio
import msgspec

from closeloop import __version__
from closeloop.code_digest import replace_file
from closeloop.records.errors import BadInput
from closeloop.records.finding import Unmeasured
from closeloop.records.record import Record, Time
from closeloop.records.settings import CheckSettings, PackageIndex

if TYPE_CHECKING:
    import httpx


# Names that impostors imitate: the most installed packages, by ecosystem.


Ecosystem = Literal["pypi", "npm", "go", "crates", "maven", "rubygems", "packagist"]

_NAMES: dict[Ecosystem, str] = {
    "pypi": """
        aiohttp alembic anyio attrs azure-core babel bcrypt beautifulsoup4 black boto3 botocore
        cachetools celery certifi cffi chardet charset-normalizer click cloudpickle colorama
        coverage cryptography cython dask datasets django django-rest-framework djangorestframework
        docker elasticsearch fastapi filelock flake8 flask gevent google-auth greenlet grpcio
        gunicorn h11 httpx huggingface-hub hypothesis idna importlib-metadata ipython isort
        itsdangerous jinja2 jmespath joblib jsonschema jupyter keras langchain loguru lxml markdown
        markupsafe matplotlib mock mypy networkx nltk notebook numpy oauthlib openai openpyxl orjson
        packaging pandas paramiko pathspec pillow pipenv platformdirs playwright pluggy poetry
        prometheus-client protobuf psutil psycopg2 psycopg2-binary pyarrow pyasn1 pycparser
        pycryptodome pydantic pygments pyjwt pylint pymongo pymysql pyopenssl pyparsing pytest
        pytest-cov pytest-xdist python-dateutil python-dotenv pytz pyyaml redis regex requests
        requests-oauthlib rich ruamel-yaml s3transfer scikit-learn scipy seaborn selenium sentry-sdk
        setuptools simplejson six sphinx sqlalchemy starlette streamlit structlog sympy tabulate
        tenacity tensorflow tokenizers toml tomli torch torchvision tornado tox tqdm transformers
        twisted typer typing-extensions tzdata ujson urllib3 uvicorn virtualenv watchdog websocket
        websockets werkzeug wheel wrapt xlrd zipp""",
    "npm": """
        angular async axios babel-core bluebird body-parser bootstrap chalk cheerio chokidar
        classnames colors commander concurrently cookie-parser core-js cors cross-env cross-spawn
        crypto-js dayjs debug dotenv electron esbuild eslint eventemitter3 execa express fs-extra
        glob graphql gulp helmet husky immer inquirer jest jquery js-yaml jsdom jsonwebtoken knex
        lint-staged lodash lodash-es lru-cache luxon marked minimatch minimist mkdirp mocha moment
        mongodb mongoose morgan multer mysql mysql2 nanoid next node-fetch nodemailer nodemon ora
        passport playwright postcss prettier prisma prop-types puppeteer ramda react react-dom
        react-redux react-router react-router-dom redux request rimraf rollup rxjs sass semver
        sequelize sharp shelljs sinon socket.io styled-components superagent supertest svelte
        tailwindcss terser three through2 ts-jest ts-node tslib tsx turbo typeorm typescript
        underscore uuid vite vitest vue vue-router webpack webpack-cli winston workbox yargs zod
        zustand""",
    "crates": """
        actix-web ahash anyhow async-trait axum base64 bincode bitflags bytes cfg-if chrono clap
        crossbeam dashmap diesel either env_logger futures getrandom hashbrown hyper image indexmap
        itertools lazy_static libc log memchr mio native-tls nom num num-traits num_cpus once_cell
        openssl parking_lot petgraph proc-macro2 prost quote rand rayon regex reqwest ring rocket
        rustls semver serde serde_derive serde_json serde_yaml sha2 smallvec socket2 sqlx structopt
        strum syn tempfile thiserror time tokio tokio-util toml tonic tower tracing
        tracing-subscriber unicode-width url uuid walkdir warp winapi""",
    "go": """
        github.com/gin-gonic/gin github.com/go-sql-driver/mysql github.com/golang-jwt/jwt
        github.com/google/uuid github.com/gorilla/mux github.com/gorilla/websocket
        github.com/jackc/pgx github.com/labstack/echo github.com/lib/pq github.com/pkg/errors
        github.com/prometheus/client_golang github.com/redis/go-redis github.com/sirupsen/logrus
        github.com/spf13/cobra github.com/spf13/viper github.com/stretchr/testify
        github.com/urfave/cli go.uber.org/zap google.golang.org/grpc google.golang.org/protobuf
        gopkg.in/yaml.v3 gorm.io/gorm k8s.io/client-go""",
    "maven": """
        ch.qos.logback:logback-classic com.fasterxml.jackson.core:jackson-databind
        com.google.code.gson:gson com.google.guava:guava com.squareup.okhttp3:okhttp
        com.h2database:h2 commons-io:commons-io io.netty:netty-all junit:junit
        mysql:mysql-connector-java org.apache.commons:commons-lang3
        org.apache.httpcomponents:httpclient org.apache.logging.log4j:log4j-core
        org.assertj:assertj-core org.hibernate:hibernate-core org.junit.jupiter:junit-jupiter
        org.mockito:mockito-core org.postgresql:postgresql org.projectlombok:lombok
        org.slf4j:slf4j-api org.springframework.boot:spring-boot-starter-web
        org.springframework:spring-core""",
    "rubygems": """
        activerecord activesupport aws-sdk bcrypt bootsnap bundler byebug capistrano capybara
        concurrent-ruby devise dotenv excon factory_bot faker faraday ffi httparty i18n jbuilder
        json jwt kaminari minitest mysql2 nokogiri octokit paperclip puma pundit rack rails rake
        redis resque rest-client rspec rspec-core rubocop sass sidekiq simplecov sinatra sqlite3
        thor tzinfo unicorn webmock webpacker""",
    "packagist": """
        aws/aws-sdk-php doctrine/dbal doctrine/orm fakerphp/faker firebase/php-jwt
        friendsofphp/php-cs-fixer guzzlehttp/guzzle laravel/framework league/flysystem
        mockery/mockery monolog/monolog nesbot/carbon phpstan/phpstan phpunit/phpunit predis/predis
        psr/log ramsey/uuid symfony/console symfony/http-foundation symfony/process symfony/yaml
        twig/twig vlucas/phpdotenv""",
}
POPULAR: dict[Ecosystem, frozenset[str]] = {
    ecosystem: frozenset(names.split()) for ecosystem, names in _NAMES.items()
}


def imitated_package(ecosystem: Ecosystem, name: str) -> str | None:
    """Return the popular package that this name is one typo away from; None if it is popular
    itself."""
    popular = POPULAR[ecosystem]
    if name in popular or len(name) < 5:
        return None
    return next(
        (
            package
            for package in sorted(popular)
            if len(package) >= 5 and _is_one_slip(name, package)
        ),
        None,
    )


def _is_one_slip(left: str, right: str) -> bool:
    """Return whether one character is inserted, removed or replaced, or two neighbours swapped."""
    if abs(len(left) - len(right)) > 1 or left == right:
        return False
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    left, right = left[start:], right[start:]
    if len(left) == len(right):
        return left[1:] == right[1:] or (left[:2] == right[1::-1] and left[2:] == right[2:])
    return left[1:] == right or left == right[1:]


# Known vulnerabilities of packages, from entries in the OSV format.


MAX_ADVISORY_BYTES = 500_000_000
OSV_ECOSYSTEMS: dict[Ecosystem, str] = {
    "pypi": "PyPI",
    "npm": "npm",
    "go": "Go",
    "crates": "crates.io",
    "maven": "Maven",
    "rubygems": "RubyGems",
    "packagist": "Packagist",
}
_ECOSYSTEMS = {name.lower(): ecosystem for ecosystem, name in OSV_ECOSYSTEMS.items()}
_MAX_VERSION_CHARS = 100
_PRERELEASE = re.compile(r"(?<=\d)[-.]?(?:a|b|c|rc|alpha|beta|dev|pre|preview)(?=[\d.-]|$)")


class Advisory(Record):
    """One affected package of one entry."""

    id: str
    ecosystem: Ecosystem
    package: str
    versions: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str | None, bool], ...] = ()
    """First version, last version, and whether the last one is affected too."""


def read_advisories(path: Path) -> list[Advisory]:
    """Read all entries of a file, archive or folder; BadInput if there are none."""
    try:
        advisories = [
            advisory for content in _list_contents(path) for advisory in parse_advisories(content)
        ]
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        zipfile.BadZipFile,
    ) as error:
        raise BadInput(
            f"The advisories in {path.name} cannot be read ({error}): `check.advisories` names a"
            " file or folder in the OSV format."
        ) from None
    if not advisories:
        raise BadInput(f"There are no advisories in {path.name}: is it in the OSV format?")
    return advisories


def list_vulnerabilities(
    advisories: Sequence[Advisory], ecosystem: Ecosystem, package: str, version: str | None
) -> list[str]:
    """Return ids of a version's vulnerabilities; without a version, those never fixed."""
    plain = version.lstrip("v") if version else None
    return sorted(
        {
            advisory.id
            for advisory in advisories
            if (advisory.ecosystem, advisory.package) == (ecosystem, package)
            and _is_affected(advisory, plain)
        }
    )


def _list_contents(path: Path) -> Iterator[bytes]:
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield _read_bounded(file)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_ADVISORY_BYTES:
                raise ValueError("it is too large")
            for entry in archive.infolist():
                if entry.filename.endswith(".json"):
                    yield archive.read(entry)
    elif path.suffix == ".jsonl":
        yield from filter(bytes.strip, _read_bounded(path).split(b"\n"))
    else:
        yield _read_bounded(path)


def _read_bounded(path: Path) -> bytes:
    if path.stat().st_size > MAX_ADVISORY_BYTES:
        raise ValueError("it is too large")
    return path.read_bytes()


def parse_advisories(content: bytes) -> Iterator[Advisory]:
    """Parse one entry, a list of them, or a query's response."""
    data = msgspec.json.decode(content)
    entries = data if isinstance(data, list) else data.get("vulns", [data])
    for entry in entries:
        if entry.get("withdrawn"):
            continue
        for affected in entry.get("affected") or ():
            package = affected.get("package") or {}
            ecosystem = _ECOSYSTEMS.get(str(package.get("ecosystem")).partition(":")[0].lower())
            if ecosystem:
                yield Advisory(
                    id=re.sub(r"[^\w.:-]", "?", str(entry["id"])[:80], flags=re.ASCII),
                    ecosystem=ecosystem,
                    package=_normalise_name(ecosystem, str(package.get("name"))),
                    versions=frozenset(map(str, affected.get("versions") or ())),
                    ranges=tuple(_parse_ranges(affected.get("ranges") or ())),
                )


def _parse_ranges(ranges: Sequence[Any]) -> Iterator[tuple[str, str | None, bool]]:
    for version_range in ranges:
        if version_range.get("type") == "GIT":
            continue
        start: str | None = None
        for event in version_range.get("events") or ():
            if "introduced" in event:
                start = str(event["introduced"])
            elif start is not None and ("fixed" in event or "last_affected" in event):
                inclusive = "last_affected" in event
                yield start, str(event["last_affected" if inclusive else "fixed"]), inclusive
                start = None
        if start is not None:
            yield start, None, False


def _normalise_name(ecosystem: Ecosystem, name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower() if ecosystem == "pypi" else name


def _is_affected(advisory: Advisory, version: str | None) -> bool:
    if version is None:
        return any(end is None for _, end, _ in advisory.ranges)
    if version in advisory.versions:
        return True
    key = version_key(version)
    return any(
        version_key(start) <= key
        and (end is None or key < version_key(end) or (inclusive and key == version_key(end)))
        for start, end, inclusive in advisory.ranges
    )


def version_key(version: str) -> tuple[tuple[int, ...], int]:
    """Return a sort key by numbers, without trailing zeros; a release follows its pre-releases."""
    plain = version[:_MAX_VERSION_CHARS].lstrip("v").partition("+")[0]
    early = _PRERELEASE.search(plain)
    release = plain[: early.start()] if early else plain
    numbers = [int(part) for part in re.findall(r"\d+", release)]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers), 0 if early else 1


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
"""Total timeout in seconds for all queries of one check."""
KEPT_SECONDS = 86_400.0
AGE_RULE, VULNERABILITY_RULE = "age of dependencies", "vulnerabilities of dependencies"
_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
_INDEXED_NAME = re.compile(r"(?:@[\w-][\w.-]{0,100}/)?\w[\w.-]{0,200}", re.ASCII)
_BAD_ANSWERS = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class PackageQuery(Record):
    """A package as its ecosystem names it."""

    ecosystem: Ecosystem
    name: str
    version: str | None = None
    """The installed version, else the lowest that the manifest accepts."""
    new: bool = True
    """Whether it is new; else only its version changed, and its age does not matter."""
    public: bool = True
    """Whether it comes from the registry, so that services know its name."""


class PackageAnswer(Record):
    """One service's answer about one package."""

    at: float
    first_release: Time | None = None
    newest_release: Time | None = None
    advisories: tuple[Advisory, ...] = ()


class PackageReport(Record):
    """The answers of all services."""

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
    """Query every public package; a query without an answer is named."""
    unknown: dict[tuple[str, str], list[str]] = defaultdict(list)
    answered: list[tuple[_ServiceQuestion, PackageAnswer]] = []
    open_questions: list[_ServiceQuestion] = []
    public = list(dict.fromkeys(package for package in packages if package.public))
    requests = [(AGE_RULE, _make_index_question, package) for package in public if package.new]
    requests += [(VULNERABILITY_RULE, _make_osv_question, package) for package in public]
    for rule, make_question, package in requests:
        try:
            question = make_question(package, settings)
        except ValueError as reason:
            unknown[rule, str(reason)].append(package.name)
            continue
        if cached := _load_answer(cache, question):
            answered.append((question, cached))
        elif len(open_questions) < MAX_QUESTIONS:
            open_questions.append(question)
        else:
            unknown[rule, f"a check makes at most {MAX_QUESTIONS} requests"].append(package.name)
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
        advisories=tuple(advisory for _, answer in answered for advisory in answer.advisories),
        unknown=tuple(_describe_unknown(unknown)),
    )


def _describe_unknown(unknown: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[Unmeasured]:
    for (rule, reason), names in unknown.items():
        suffix = f" and {len(names) - 3} more" if len(names) > 3 else ""
        shown_names = ", ".join(f"`{name[:80]}`" for name in names[:3])
        yield Unmeasured(rule=rule, reason=f"unknown for {shown_names}{suffix}: {reason}")


def _make_index_question(package: PackageQuery, settings: CheckSettings) -> _ServiceQuestion:
    """Build the query for release dates; ValueError if there is no index to ask."""
    ecosystem, name = package.ecosystem, package.name
    indexes: dict[str, str] = dict((*PUBLIC_INDEXES.items(), *settings.indexes.items()))
    if ecosystem not in indexes:
        raise ValueError(f"the index of {OSV_ECOSYSTEMS[ecosystem]} is not queried")
    if not _INDEXED_NAME.fullmatch(name):
        raise ValueError("this is not a valid package name")
    address = indexes[ecosystem]
    _require_safe_address(address, f"check.indexes.{ecosystem}")
    url = f"{address.rstrip('/')}/{quote(name, safe='@')}"
    if ecosystem == "pypi":
        accept = "application/vnd.pypi.simple.v1+json"
        return _ServiceQuestion(rule=AGE_RULE, package=package, url=f"{url}/", accept=accept)
    return _ServiceQuestion(rule=AGE_RULE, package=package, url=url)


def _make_osv_question(package: PackageQuery, settings: CheckSettings) -> _ServiceQuestion:
    _require_safe_address(settings.osv, "check.osv")
    package_id = {"name": package.name[:300], "ecosystem": OSV_ECOSYSTEMS[package.ecosystem]}
    query: dict[str, Any] = {"package": package_id}
    if package.version:
        query["version"] = package.version[:100].removeprefix("v")
    return _ServiceQuestion(
        rule=VULNERABILITY_RULE,
        package=package,
        url=f"{settings.osv.rstrip('/')}/v1/query",
        payload=msgspec.json.encode(query),
    )


def _require_safe_address(address: str, setting: str) -> None:
    """Raise ValueError without the address, which may contain a password."""
    try:
        parts = urlsplit(address)
        local = parts.scheme == "http" and parts.hostname in _LOCAL_HOSTS
        if (parts.scheme == "https" or local) and parts.hostname and "@" not in parts.netloc:
            return
    except ValueError:
        pass
    raise ValueError(f"`{setting}` must start with https:// and contain no password")


# One query and its answer.


async def _ask_all(
    questions: Sequence[_ServiceQuestion], seconds: float
) -> list[tuple[_ServiceQuestion, PackageAnswer | str]]:
    """Return every query with its answer, or why there is none, within the time limit."""
    import httpx

    answers: dict[int, PackageAnswer | str] = {}
    limiter = anyio.Semaphore(MAX_CONNECTIONS)
    headers = {"user-agent": f"closeloop/{__version__}", "accept-encoding": "identity"}

    async def ask(number: int, question: _ServiceQuestion) -> None:
        # A proxy for external hosts would not reach a server on this machine.
        is_local = urlsplit(question.url).hostname in _LOCAL_HOSTS
        async with limiter:
            answers[number] = await _fetch_answer(
                local_client if is_local else remote_client, question
            )

    with anyio.move_on_after(seconds):
        async with (
            httpx.AsyncClient(headers=headers, trust_env=False) as local_client,
            httpx.AsyncClient(headers=headers) as remote_client,
            anyio.create_task_group() as group,
        ):
            for number, question in enumerate(questions):
                group.start_soon(ask, number, question)
    late = f"there was no response within {seconds:g} s"
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
        return f"{host} sent a response that is not in its format"


async def _read_body(client: httpx.AsyncClient, question: _ServiceQuestion) -> bytes | str:
    """Return the response's content, or why there is none; redirects are not followed."""
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
            return "sent compressed content"
        async for chunk in response.aiter_raw():
            received += chunk
            if len(received) > MAX_BODY_BYTES:
                return f"sent more than {MAX_BODY_BYTES >> 20} MiB"
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
    return _span_releases([file.upload_time for file in page.files if file.upload_time])


def _parse_npm_page(body: bytes) -> PackageAnswer:
    """Parse npm's page; in `time`, `created` and `modified` are not releases."""
    dates = msgspec.json.decode(body, type=_NpmPage).time
    released = {version: date for version, date in dates.items() if version[:1].isdigit()}
    return _span_releases(list(msgspec.convert(released, dict[str, Time]).values()))


def _parse_crate_page(body: bytes) -> PackageAnswer:
    versions = msgspec.json.decode(body, type=_CratePage).versions
    return _span_releases([version.created_at for version in versions])


def _parse_osv_answer(body: bytes) -> PackageAnswer:
    return PackageAnswer(at=time.time(), advisories=tuple(parse_advisories(body)))


def _span_releases(dates: Sequence[datetime]) -> PackageAnswer:
    """Return the first and last release; ValueError if there is no date."""
    return PackageAnswer(at=time.time(), first_release=min(dates), newest_release=max(dates))


_PARSERS: Mapping[str, Callable[[bytes], PackageAnswer]] = {
    "pypi": _parse_python_page,
    "npm": _parse_npm_page,
    "crates": _parse_crate_page,
    "osv": _parse_osv_answer,
}


# Answers are cached for a day.


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
    """Save on a best-effort basis: an answer that cannot be saved is queried again."""
    if cache is None:
        return
    try:
        replace_file(cache / "packages" / question.cache_name, msgspec.msgpack.encode(answer))
        for old in (cache / "packages").glob("*.msgpack"):
            if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                old.unlink(missing_ok=True)
    except OSError:
        return
