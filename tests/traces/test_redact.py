"""Secrets are taken out of everything that is kept, and nothing else is."""

from __future__ import annotations

import base64
import random
import string
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.attempt import Usage
from closeloop.records.trace import (
    Command,
    Edit,
    Lane,
    Message,
    Note,
    Session,
    ToolUse,
    Trace,
    Turn,
)
from closeloop.text.redaction import find_secrets, redact_record, redact_text

ROOT = Path(__file__).parents[2]
_draw = random.Random(7)


def made(alphabet: str, size: int) -> str:
    """Random characters, at least one digit among them."""
    text = "".join(_draw.choice(alphabet) for _ in range(size - 1))
    return text[: size // 2] + "7" + text[size // 2 :]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ANY = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
KEY_LINES = "\n".join(made(ANY + "+/", 64) for _ in range(6))
# Put together here, so that no scanner takes this file for a leak.
SECRETS = {
    "anthropic-key": f"sk-{'ant'}-api03-{made(ANY, 93)}AA",
    "openai-key": f"sk-{'proj'}-{made(ANY, 74)}T3BlbkFJ{made(ANY, 74)}",
    "github-token": f"gh{'p'}_{made(ANY, 36)}",
    "github-pat": f"github_{'pat'}_{made(ANY, 82)}",
    "gitlab-token": f"gl{'pat'}-{made(ANY, 20)}",
    "aws-access-key": f"AK{'IA'}{made(string.ascii_uppercase + '234567', 16)}",
    "google-key": f"AI{'za'}{made(ANY, 35)}",
    "slack-token": f"xox{'b'}-{made(string.digits, 12)}-{made(string.digits, 12)}-{made(ANY, 24)}",
    "stripe-key": f"sk_{'live'}_{made(ANY, 24)}",
    "huggingface-token": f"h{'f'}_{made(string.ascii_letters, 34).replace('7', 'q')}",
    "npm-token": f"np{'m'}_{made(ANY, 36)}",
    "pypi-token": f"py{'pi'}-AgEIcHlwaS5vcmc{made(ANY, 60)}",
    "sendgrid-token": f"S{'G'}.{made(ANY, 22)}.{made(ANY, 43)}",
    "json-web-token": f"ey{'J'}{made(ANY, 20)}.eyJ{made(ANY, 40)}.{made(ANY, 43)}",
    "azure-client-secret": f"{made(ANY, 3)[:3]}8Q~{made(ANY, 34)}",
    "hashicorp-token": f"{made(ANY, 14)}.atlasv1.{made(ANY, 64)}",
    "telegram-token": f"{made(string.digits, 10)}:AA{made(ANY, 33)}",
    "groq-key": f"gs{'k'}_{made(ANY, 52)}",
    "defined-networking-token": f"dn{'key'}-{made(HEX, 26)}-{made(HEX, 52)}",
    "django-key": f"django-{'insecure'}-{made(ANY + '!@#%^&*(-_=+)', 50)}",
    "buildkite-token": f"bk{'ua'}_{made(HEX, 40)}",
    "circleci-token": f"CC{'IPAT'}_{made(ANY, 22)}_{made(HEX, 40)}",
    "docker-token": f"dck{'r'}_pat_{made(ANY, 27)}",
    "figma-token": f"fig{'d'}_{made(ANY, 43)}",
    "infracost-key": f"ic{'o'}-{made(ANY, 32)}",
    "langsmith-key": f"ls{'v2'}_pt_{made(HEX, 32)}_{made(HEX, 10)}",
    "netlify-token": f"nf{'p'}_{made(ANY, 36)}",
    "new-relic-key": f"NR{'AK'}-{made(string.ascii_uppercase + string.digits, 27)}",
    "octopus-key": f"AP{'I'}-{made(string.ascii_uppercase + string.digits, 26)}",
    "onepassword-token": f"op{'s'}_eyJ{made(ANY, 250)}",
    "scalingo-token": f"tk-{'us'}-{made(ANY, 48)}",
    "sourcegraph-token": f"sg{'p'}_{made(HEX, 16)}_{made(HEX, 40)}",
    "supabase-token": f"sb{'p'}_{made(HEX, 40)}",
    "tailscale-key": f"ts{'key'}-auth-{made(ANY, 12)}-{made(ANY, 32)}",
    "tavily-key": f"tv{'ly'}-{made(ANY, 32)}",
    "typeform-token": f"tf{'p'}_{made(ANY, 59)}",
    "twilio-key": f"S{'K'}{made(HEX, 32)}",
    "yandex-key": f"AQ{'VN'}{made(ANY, 36)}",
}
CONTEXTS = (
    "{}",
    "x = '{}'\n",
    "export A={}\n",
    '{{\\"k\\": \\"{}\\"}}',
    "line\\n{}\\nline",
    "é {}, ",
)
RANDOM = made(ANY, 40)
VALUES = {
    f'api_key = "{RANDOM}"': "assignment",
    f"API_KEY={RANDOM}\n": "assignment",
    f'"apiKey": "{RANDOM}",': "assignment",
    f'\\"client_secret\\": \\"{RANDOM}\\"': "assignment",
    f"aws_secret_access_key = {made(ANY + '+/', 40)}": "assignment",
    f"X-Api-Key: {made(HEX, 32)}": "assignment",
    f'os.environ["AUTH_TOKEN"] = "{RANDOM}"': "assignment",
    f'setenv("API_TOKEN", "{RANDOM}")': "assignment",
    f"--token {RANDOM}": "assignment",
    f"//registry.example.org/:_authToken={made(ANY, 36)}": "assignment",
    f"Authorization: Bearer {RANDOM}": "authorization",
    f"-H 'authorization: Basic {made(ANY, 28)}=='": "authorization",
    'password = "hunter2!"': "password",
    "DB_PASSWORD=hunter2x9\n": "password",
    "Server=db;Uid=sa;Pwd=Xk29!mz0QwLp8Rt5;": "password",
    '{"password": "c0rrect-horse"}': "password",
    "mysql --password=hunter2x9 db": "password",
    "postgresql://billing:hunter2@db.internal:5432/billing": "url-password",
    "https://ann:Tr0ub4dor@git.internal/x.git": "url-password",
    "redis://:n0tEasy@cache:6379/0": "url-password",
    "mongodb+srv://ann:Zx81kk%40a@cluster.example.net": "url-password",
    f"see a@b.c, ftp://{'u' * 80}:{'%5A%7a%24' * 40}@host/x": "url-password",
    "curl -s -u ann:Tr0ub4dor https://x.org": "curl-user",
    "machine git.internal login ann password Tr0ub4dor\n": "netrc",
    "machine git.internal\n\tlogin ann\n\tpassword Tr0ub4dor\n": "netrc",
    f"default login ann password {made(ANY, 40)}": "netrc",
    f'{{"auths": {{"r.internal": {{"auth": "{encoded("ann:Tr0ub4dor")}"}}}}}}': "docker-auth",
    f'{{\\"auth\\": \\"{encoded("AWS:" + made(ANY, 60))}\\"}}': "docker-auth",
    "sshpass -p Tr0ub4dor ssh ann@host": "sshpass",
    "sshpass -v -p 'Tr0ub4dor!' scp x ann@host:": "sshpass",
    "mysql -u root -pTr0ub4dor billing": "mysql-password",
    'mysqldump -h db -u "ann" -p"Tr0ub4dor" billing': "mysql-password",
    f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_LINES}\n-----END RSA PRIVATE KEY-----": "private-key",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY_LINES}": "private-key",
    f"-----BEGIN PRIVATE KEY-----{KEY_LINES}\n".replace("\n", "\\n"): "private-key",
}


@pytest.mark.parametrize("rule", SECRETS)
def test_a_key_is_taken_out_wherever_it_stands(rule: str) -> None:
    for context in CONTEXTS:
        counts: dict[str, int] = {}
        text = context.format(SECRETS[rule])
        assert redact_text(text, counts) == context.format(f"[redacted: {rule}]"), text
        assert counts == {rule: 1}


@pytest.mark.parametrize("text", VALUES)
def test_a_secret_is_known_by_the_name_it_is_given_to(text: str) -> None:
    counts: dict[str, int] = {}
    cleaned = redact_text(text, counts)
    assert counts == {VALUES[text]: 1}, cleaned
    assert RANDOM not in cleaned
    assert not any(line in cleaned for line in KEY_LINES.splitlines())


HARMLESS = """\
machine learning login flow: the password Reset1 page
machine example.com login daniel password qwerty
the machine has a default login page and a password box
{"auth": "bearer"}, {"auth": "dXNlcjpwYXNzd29yZA=="}, auth: "aGVsbG8gd29ybGQ="
"auth": "3f2504e04f8941d39a0c0305e82c3301"
requests.get(url, auth=("user", "pass"))
sshpass -p $PASSWORD ssh host; sshpass -f file ssh host; sshpass -p password ssh host
mysql -u root -p billing < dump.sql
mysql -uroot -p$MYSQL_PWD -e 'select 1'; mysql -h db -P3306 -ppassword
docker run --name mysql -p3306:3306 mysql -d
docker run -d mysql -p127.0.0.1:3306:3306
SKIP_TESTS=1 SK1 SKU0123456789abcdef0123456789abcdef SK0123
password = os.environ["DB_PASSWORD"]
password = getpass.getpass("Password: ")
password: str = Field(min_length=8)
token: str
token = secrets.token_urlsafe(32)
secret_key=SECRET_KEY
api_key=settings.openai_api_key_v2
apiKey: process.env.OPENAI_API_KEY,
OPENAI_API_KEY=${OPENAI_API_KEY}
API_KEY=your-api-key-here-1234567890
ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
access_token = await self.client2.fetch_access_token(refresh)
const tokenType2 = "oauth2AccessTokenResponseV2";
"password": "Password must have 8 characters",
<input type="password" name="password1" id="id_password1">
for token in tokenizer.encode(text, max_tokens=4096):
"input_tokens": 12043, "output_tokens": 8812345678901234
SECRET_NAME=projects/12345/secrets/billing-db
password_hash = bcrypt.hashpw(password.encode(), salt)
"integrity": "sha512-v2kDEe57lecTulaDIuNTPy3Ry4gLGJ6Z1O3vE1krgXZNrsQ+LFTGHVxVjcXPs17L==",
resolved "https://registry.example.org/x/-/x-1.0.0.tgz#5d4cf9a3a1d2b7e8f0c6b5a49382716055443322"
commit 9f8f1515c2b0c1c1b8a7d6e5f4a3b2c1d0e9f8a7
id = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
data = base64.b64decode("aGVsbG8gd29ybGQsIHRoaXMgaXMgbm90IGEgc2VjcmV0IQ==")
golang.org/x/crypto v0.1.0 h1:MDRAIl0xIo9Io2xV565hzXHw3zVseKrJKodhohM5CjU=
if "-----BEGIN PRIVATE KEY-----" in text: raise ValueError
url = f"postgresql://{user}:{password}@{host}/{name}"
postgresql://user:password@localhost/db
postgres://postgres:postgres@localhost:5432/test
https://example.org/a:b@c
git@github.com:gitleaks/gitleaks.git
http://127.0.0.1:8080/@fs/x
headers = {"Authorization": f"Bearer {token}"}
Authorization: Bearer $TOKEN
the secret: keep functions short
task-management-system-for-distributed-workers
public_key = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA7"
csrf_token: "f3a9c1d87b6e5f4a3b2c1d0e9f8a7b6c"
token_url: "https://login.example.org/oauth2/v2.0/token"
expires_token = "2026-11-15T05:41:50.123Z"
METHOD can be "trust", "md5", "password", "scram-sha-256"
uses: actions/checkout@b4ffde65f46336ab88eb53be808477a3936bae11
"""


@pytest.mark.parametrize("line", HARMLESS.splitlines())
def test_code_that_only_speaks_of_secrets_is_left_alone(line: str) -> None:
    assert redact_text(line, {}) == line


def test_our_own_sources_are_left_alone() -> None:
    for folder in ("src", "docs", "bench", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".toml", ".yaml"):
                assert list(find_secrets(path.read_bytes())) == [], path


def session(text: str) -> Session:
    events = (
        Message(number=1, lane="root", role="user", text=text),
        Command(number=2, lane="root", command=f"echo {text}", output=text),
        Edit(number=3, lane="root", path="x", before=text, after=text, patch=text, error=text),
        ToolUse(number=4, lane="root", name="web", arguments={"deep": [{"a": text}], text: 1}),
        Note(number=5, lane="root", text=text),
    )
    trace = Trace(reader="r", reader_version=1, lanes=(Lane(id="root"),), events=events)
    return Session(
        id="one", agent="a", trace=trace, system=text, summary=text, links={"x": text}, cause=text
    )


def test_every_text_of_a_session_is_looked_at() -> None:
    secret = SECRETS["github-token"]
    cleaned, counts = redact_record(session(secret))
    assert secret not in msgspec.json.encode(cleaned).decode()
    assert counts == {"github-token": 14}


def test_a_session_without_secrets_is_the_same_one() -> None:
    plain = session("nothing here, token by token")
    cleaned, counts = redact_record(plain)
    assert cleaned is plain
    assert counts == {}


def test_arguments_are_known_by_their_names() -> None:
    use = ToolUse(
        number=1, lane="root", name="x", arguments={"password": "hunter2!", "api_key": RANDOM}
    )
    cleaned, counts = redact_record(use)
    assert cleaned.arguments == {
        "password": "[redacted: password]",
        "api_key": "[redacted: assignment]",
    }
    assert counts == {"password": 1, "assignment": 1}


def test_texts_that_no_format_can_hold_are_looked_at_too() -> None:
    note = Note(number=1, lane="root", text=f"\ud800 {SECRETS['npm-token']} \udfff")
    cleaned, counts = redact_record(note)
    assert cleaned.text == "\ufffd [redacted: npm-token] \ufffd"
    assert counts == {"npm-token": 1}


def test_what_a_reader_should_not_have_given_can_be_kept_all_the_same() -> None:
    turn = Turn(usage=Usage(input_tokens=1 << 70, output_tokens=-(1 << 90)), model="m\ud83d")
    told = ToolUse(number=1, lane="root", name="x", arguments={"\udc00": [1 << 64, True, "\0"]})
    trace = Trace(
        reader="x", reader_version=1, lanes=(Lane(id="root", turns=(turn,)),), events=(told,)
    )
    session = Session(id="1\ud800", agent="a", trace=trace, links={"\ud800": "\ud800"})
    cleaned, counts = redact_record(session)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(cleaned), type=Session) == cleaned
    assert cleaned.trace.lanes[0].turns[0].usage.input_tokens == (1 << 63) - 1
    assert (cleaned.id, cleaned.agent, cleaned.links) == ("1\ufffd", "a", {"\ufffd": "\ufffd"})
    assert counts == {}


_pieces = st.sampled_from([*SECRETS.values(), *VALUES, *HARMLESS.splitlines()]) | st.text(
    max_size=9
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_pieces, max_size=5), st.sampled_from(["", " ", "\n", '"', "\x1b[1m", "\x00"]))
def test_redacting_twice_changes_nothing_more(pieces: list[str], joint: str) -> None:
    text = joint.join(pieces)
    once = redact_text(text, {})
    assert redact_text(once, {}) == once


@settings(max_examples=300, deadline=None)
@given(st.lists(_pieces, max_size=4), st.sampled_from(["", " ", "\n", '"', "\x1b", "\\", "\t"]))
def test_the_quick_look_misses_nothing_that_the_slow_one_finds(
    pieces: list[str], joint: str
) -> None:
    text = joint.join(pieces)
    note = Note(number=1, lane="root", text=text)
    assert redact_record(note)[0].text == redact_text(text, {})
