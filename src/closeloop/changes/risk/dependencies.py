"""Dependencies of a project, those that a change adds or bumps, and what speaks against them."""

from __future__ import annotations

import configparser
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from xml.etree import ElementTree

import msgspec

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, is_lockfile
from closeloop.records.finding import Unmeasured
from closeloop.records.inspection import (
    Inspection,
)
from closeloop.records.record import Record

# What a manifest asks for: the dependencies that a project names, in any common ecosystem.

Ecosystem = Literal["pypi", "npm", "go", "crates", "maven", "rubygems", "packagist"]
_MAX_MANIFEST_BYTES = 2_000_000
_REQUIREMENT = re.compile(
    r"\s*([A-Za-z0-9][\w.-]{0,100})\s*(?:\[[^\]]{0,200}\])?\s*(@\s*\S{1,500}|[^;#@]{0,300})"
)
_GO_REQUIREMENT = re.compile(
    r"^\s*(?:require\s+)?([\w.-]{1,80}\.[\w.-]{1,20}/\S{1,200}|[\w.-]+\.[a-z]+)\s+(v\S+)", re.M
)
_GO_REPLACE = re.compile(
    r"^\s*(?:replace\s+)?(\S{1,200})(?: v\S+)?\s+=>\s+(\S{1,300})(?:\s+(v\S+))?", re.M
)
_GRADLE_DEPENDENCY = re.compile(
    r"\b(\w*(?:[iI]mplementation|[aA]pi|[cC]ompileOnly|[rR]untimeOnly|classpath|kapt))\b"
    r"[\s(]{1,5}(?:platform\()?[\"']([\w.-]+:[\w.-]+)(?::([^\"'@]{1,80}))?"
)
_GEM_LINE = re.compile(r"^\s*gem\s*\(?\s*[\"']([\w.-]{1,100})[\"'](.{0,300})", re.M)
_INSTALL_HOOKS = (
    "preinstall",
    "install",
    "postinstall",
    "prepare",
    "pre-install-cmd",
    "post-install-cmd",
)


class Dependency(Record):
    """One line of a manifest."""

    name: str
    version: str = ""
    """As written; nothing where any will do."""
    origin: str | None = None
    """Where it comes from, where not from the ecosystem's registry."""


class Manifest(Record):
    """What one manifest asks for, by name."""

    ecosystem: Ecosystem
    dependencies: Mapping[str, Dependency] = {}
    scripts: Mapping[str, str] = {}
    """Commands that run when it is installed."""


def read_manifest(path: str, content: bytes) -> Manifest | None:
    """None for files that are no manifests; ValueError for one that cannot be read."""
    ecosystem_reader = _find_reader(PurePosixPath(path).name)
    if ecosystem_reader is None:
        return None
    if len(content) > _MAX_MANIFEST_BYTES:
        raise ValueError("it is too large")
    ecosystem, reader = ecosystem_reader
    try:
        text = content.decode("utf-8-sig")
        dependencies = {one.name: one for one in reader(text)}
        scripts = _install_scripts(text) if PurePosixPath(path).suffix == ".json" else {}
    except (ValueError, TypeError, AttributeError, RecursionError, *_PARSE_ERRORS) as error:
        raise ValueError(f"it cannot be parsed ({error})"[:200]) from None
    return Manifest(ecosystem=ecosystem, dependencies=dependencies, scripts=scripts)


_PARSE_ERRORS = (ElementTree.ParseError, configparser.Error, msgspec.MsgspecError)
ManifestReader = Callable[[str], Iterator[Dependency]]


def _find_reader(name: str) -> tuple[Ecosystem, ManifestReader] | None:
    if re.fullmatch(r"(?:.*-)?(?:requirements|constraints).*\.(?:txt|in)", name):
        return "pypi", _read_requirements
    return _READERS.get(name)


def parse_requirement(text: str) -> Dependency | None:
    """A line as pip takes it."""
    if origin := re.search(r"\b(?:git|hg)\+\S{1,500}|\bhttps?://\S{1,500}", text):
        name = re.search(r"#egg=([\w.-]+)", text) or re.match(r"\s*([\w.-]+)[^@]{0,200}@", text)
        fallback = origin[0].rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        return Dependency(
            name=normalise_python_name(name[1] if name else fallback), origin=origin[0]
        )
    matched = _REQUIREMENT.match(text)
    if not matched or text.lstrip().startswith("-"):
        return None
    return Dependency(name=normalise_python_name(matched[1]), version=matched[2].strip(" ()"))


def normalise_python_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_requirements(text: str) -> Iterator[Dependency]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        bare = re.sub(r"(?:^|\s)#.*|^\s*(?:-e|--editable)\s+", "", line).split(" --", 1)[0]
        if bare.strip() and (dependency := parse_requirement(bare)):
            yield dependency


def _parse_requirements(lines: Any) -> Iterator[Dependency]:
    for line in lines or ():
        if isinstance(line, str) and (dependency := parse_requirement(line)):
            yield dependency


def _read_pyproject(text: str) -> Iterator[Dependency]:
    data = tomllib.loads(text)
    project = data.get("project", {})
    yield from _parse_requirements(project.get("dependencies"))
    for group in (project.get("optional-dependencies", {}), data.get("dependency-groups", {})):
        for lines in group.values():
            yield from _parse_requirements(lines)
    yield from _parse_requirements(data.get("build-system", {}).get("requires"))
    poetry = data.get("tool", {}).get("poetry", {})
    tables = [poetry.get("dependencies", {}), poetry.get("dev-dependencies", {})]
    tables += [group.get("dependencies", {}) for group in poetry.get("group", {}).values()]
    for table in tables:
        yield from (
            one for one in _read_table(table, normalise_python_name) if one.name != "python"
        )


def _read_table(
    table: Mapping[str, Any], named: Callable[[str], str] = str
) -> Iterator[Dependency]:
    """`name = "1.0"` or `name = { version = …, git = … }`."""
    for name, wanted in table.items():
        facts = wanted if isinstance(wanted, dict) else {"version": wanted}
        local = facts.get("path")
        origin = facts.get("git") or facts.get("url") or (f"./{local}" if local else None)
        version = facts.get("version") or facts.get("rev") or facts.get("tag") or ""
        workspace = "workspace" if facts.get("workspace") else ""
        yield Dependency(
            name=named(facts.get("package") or name),
            version=str(version if version != "*" else "") or workspace,
            origin=str(origin) if origin else None,
        )


def _read_setup_cfg(text: str) -> Iterator[Dependency]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(text)
    if parser.has_section("options"):
        for option in ("install_requires", "setup_requires", "tests_require"):
            yield from _parse_requirements(parser.get("options", option, fallback="").splitlines())
    if parser.has_section("options.extras_require"):
        for _, lines in parser.items("options.extras_require"):
            yield from _parse_requirements(lines.splitlines())


def _json_reader(*names: str) -> ManifestReader:
    def read(text: str) -> Iterator[Dependency]:
        data = msgspec.json.decode(text)
        for name in names:
            for package, version in (data.get(name) or {}).items():
                if package == "php" or package.startswith("ext-"):
                    continue
                far = re.match(r"(?:git|https?|file|link|github:|[\w-]+/[\w.-]+(?:#|$))", version)
                loose = version in ("*", "latest", "", "x")
                yield Dependency(
                    name=package,
                    version="" if loose or far else version,
                    origin=version if far else None,
                )

    return read


def _install_scripts(text: str) -> dict[str, str]:
    scripts = msgspec.json.decode(text).get("scripts") or {}
    return {name: str(scripts[name]) for name in _INSTALL_HOOKS if name in scripts}


def _read_go_mod(text: str) -> Iterator[Dependency]:
    text = re.sub(r"//.*", "", text)
    text = re.sub(
        r"^(?:exclude|retract|module|go|toolchain)\b(?:\s*\([^)]*\)|.*)", "", text, flags=re.M
    )
    for name, version in _GO_REQUIREMENT.findall(re.sub(r"^.*=>.*$", "", text, flags=re.M)):
        yield Dependency(name=name, version=version)
    for name, origin, version in _GO_REPLACE.findall(text):
        yield Dependency(name=f"{name} (replaced)", version=version, origin=origin)


def _read_cargo(text: str) -> Iterator[Dependency]:
    data = tomllib.loads(text)
    places = [data, data.get("workspace", {}), *data.get("target", {}).values()]
    for place in places:
        for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
            yield from _read_table(place.get(kind, {}))


def _read_pom(text: str) -> Iterator[Dependency]:
    root = ElementTree.fromstring(text)  # noqa: S314  expat bounds entities, and the size is bounded above
    for element in root.iter():
        if element.tag.rsplit("}", 1)[-1] not in ("dependency", "plugin"):
            continue
        facts = {child.tag.rsplit("}", 1)[-1]: (child.text or "").strip() for child in element}
        if facts.get("artifactId"):
            name = f"{facts.get('groupId', '')}:{facts['artifactId']}"
            # Without a version the parent's dependencyManagement pins it.
            yield Dependency(name=name, version=facts.get("version", "managed"))


def _read_gradle(text: str) -> Iterator[Dependency]:
    for _, name, version in _GRADLE_DEPENDENCY.findall(text):
        yield Dependency(
            name=name, version="" if version in ("+", "latest.release") else version or "managed"
        )


def _read_gemfile(text: str) -> Iterator[Dependency]:
    for name, rest in _GEM_LINE.findall(text):
        origin = re.search(r"\b(?:git|github|path):\s*[\"']([^\"']{1,300})", rest)
        version = re.match(r"\s*,\s*[\"']([^\"']{1,80})[\"']", rest)
        yield Dependency(
            name=name, version=version[1] if version else "", origin=origin[1] if origin else None
        )


_NPM_TABLES = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies")
_READERS: dict[str, tuple[Ecosystem, ManifestReader]] = {
    "pyproject.toml": ("pypi", _read_pyproject),
    "setup.cfg": ("pypi", _read_setup_cfg),
    "package.json": ("npm", _json_reader(*_NPM_TABLES)),
    "go.mod": ("go", _read_go_mod),
    "Cargo.toml": ("crates", _read_cargo),
    "pom.xml": ("maven", _read_pom),
    "build.gradle": ("maven", _read_gradle),
    "build.gradle.kts": ("maven", _read_gradle),
    "Gemfile": ("rubygems", _read_gemfile),
    "composer.json": ("packagist", _json_reader("require", "require-dev")),
}


# Names that impostors imitate: the packages most often installed, by ecosystem.

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
    """The popular package that this name is one slip of the finger away from, if it is not one."""
    known = POPULAR[ecosystem]
    if name in known or len(name) < 5:
        return None
    return next((one for one in sorted(known) if len(one) >= 5 and _is_one_slip(name, one)), None)


def _is_one_slip(left: str, right: str) -> bool:
    """One sign inserted, left out or replaced, or two neighbours swapped."""
    if abs(len(left) - len(right)) > 1 or left == right:
        return False
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    left, right = left[start:], right[start:]
    if len(left) == len(right):
        return left[1:] == right[1:] or (left[:2] == right[1::-1] and left[2:] == right[2:])
    return left[1:] == right or left == right[1:]


_COPYLEFT = re.compile(r"\b(?:A|L)?GPL|GNU (?:Affero |Lesser )?General Public", re.IGNORECASE)
_LOCAL = re.compile(r"^(?:\.{1,2}(?:/|$)|file:|link:|workspace)")


class DependencyChange(Record):
    """One difference in what is depended on."""

    name: str
    path: str
    new: bool
    """Else it is another version of one that was there."""
    text: str
    warnings: tuple[str, ...] = ()


def find_dependency_changes(
    inspection: Inspection,
) -> tuple[list[DependencyChange], list[Unmeasured]]:
    """By comparing both sides of every manifest that was changed."""
    sides: ChangeSides = inspection.sides
    changes: list[DependencyChange] = []
    unread: list[Unmeasured] = []
    for file in inspection.change.files:
        if classify_file(file.path) != "manifest" or file.status == "deleted" or file.binary:
            continue
        old = file.old_path or file.path
        try:
            after = read_manifest(file.path, sides.read("after", file.path) or b"")
        except ValueError as error:
            unread.append(Unmeasured(rule="dependencies", reason=f"{file.path}: {error}"))
            continue
        try:
            before = read_manifest(old, sides.read("before", old) or b"{}")
        except ValueError:
            before = None
        if after is not None:
            changes += _compare_manifests(sides, file.path, before, after)
    return changes, unread


def _compare_manifests(
    sides: ChangeSides, path: str, before: Manifest | None, after: Manifest
) -> Iterator[DependencyChange]:
    old = before.dependencies if before else {}
    for name, wanted in after.dependencies.items():
        was = old.get(name)
        if was == wanted:
            continue
        if was is None:
            warnings = tuple(_dependency_warnings(sides, path, after.ecosystem, wanted))
            text = f"adds the dependency `{name}`" + (
                f" {wanted.version}" if wanted.version else ""
            )
            yield DependencyChange(name=name, path=path, new=True, text=text, warnings=warnings)
        else:
            now, then = (one.origin or one.version or "any" for one in (wanted, was))
            warnings = tuple(_origin_warnings(wanted)) if wanted.origin != was.origin else ()
            text = f"takes `{name}` {now}, took {then}"
            yield DependencyChange(name=name, path=path, new=False, text=text, warnings=warnings)
    for hook, command in after.scripts.items():
        if (before.scripts if before else {}).get(hook) != command:
            text = f"runs `{command[:80]}` on {hook}"
            yield DependencyChange(
                name=hook, path=path, new=True, text=text, warnings=("it runs on install",)
            )


def _dependency_warnings(
    sides: ChangeSides, path: str, ecosystem: Ecosystem, wanted: Dependency
) -> Iterator[str]:
    if (like := imitated_package(ecosystem, wanted.name)) and not wanted.origin:
        yield f"its name is one letter from `{like}`"
    yield from _origin_warnings(wanted)
    if not wanted.version and not wanted.origin and not _has_lockfile(sides, path):
        yield "no version is given, and there is no lock file"
    licence = _installed_licence(sides.root, ecosystem, wanted.name)
    if licence and _COPYLEFT.search(licence):
        yield f"its licence is {licence}"


def _origin_warnings(wanted: Dependency) -> Iterator[str]:
    if wanted.origin and not _LOCAL.match(wanted.origin):
        yield f"it comes from {wanted.origin[:100]}, not from the registry"


def _has_lockfile(sides: ChangeSides, path: str) -> bool:
    folder = posixpath.dirname(path)
    return any(
        is_lockfile(other) and posixpath.dirname(other) in (folder, "")
        for other in sides.tree("after")
    )


def _installed_licence(root: Path, ecosystem: Ecosystem, name: str) -> str | None:
    """As the installed package says, where it is installed beside the sources."""
    try:
        if ecosystem == "npm" and re.fullmatch(r"(?:@[\w.-]+/)?[\w.-]+", name) and ".." not in name:
            content = (root / "node_modules" / name / "package.json").read_bytes()[:200_000]
            licence = msgspec.json.decode(content).get("license")
            return licence if isinstance(licence, str) else None
        if ecosystem == "pypi":
            for place in (".venv", "venv"):
                for folder in (root / place).glob("lib/python3*/site-packages/*.dist-info"):
                    if normalise_python_name(folder.name.partition("-")[0]) == name:
                        return _metadata_licence(folder / "METADATA")
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return None


def _metadata_licence(path: Path) -> str | None:
    head = path.read_text("utf-8", "replace")[:20_000].partition("\n\n")[0]
    stated = re.search(r"^(?:License-Expression|License):\s*(.{1,80})$", head, re.MULTILINE)
    listed = re.search(r"^Classifier: License ::.*:: (.{1,80})$", head, re.MULTILINE)
    chosen = stated or listed
    return chosen[1].strip() if chosen else None
