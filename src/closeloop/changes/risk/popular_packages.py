"""Names that impostors imitate: the packages most often installed, by ecosystem."""

from __future__ import annotations

from typing import Literal

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
