"""What secrets look like.

The forms of provider keys follow the rules of gitleaks (https://github.com/gitleaks/gitleaks,
MIT licence, copyright 2019 Zachary Rice), said anew for our search: each form begins with a word
that can be looked for quickly, and a key longer than known is taken whole. Names and what counts
as random are our own, made so that code which only speaks of secrets is left alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise

from closeloop.records.record import Record


class Form(Record):
    """How one kind of secret is written."""

    rule: str
    words: str
    """What it begins with, or holds `back` bytes after its beginning: one of these."""
    pattern: str
    """From its beginning; its first group is the secret where there is more than that."""
    entropy: float = 2.5
    """A placeholder such as `ghp_xxxxxxxx` has less."""
    back: int = 0


# Not inside a word; but an escape such as \n, in text that was quoted, is no word, and the names
# of MCP tools are joined by two underlines.
START = r"(?:(?<![A-Za-z0-9_+-])|(?<=__)|(?<=\\[nrt])|(?<=\\u00[0-9a-f]{2}))"
_QUOTE = r"\\*[\"'`]"
_KEY_LINE = r"(?:\\+[nr]|[\s\"'+,])*[A-Za-z0-9+/=]{16,}"

SECRET_FORMS = (
    Form(rule="adobe-client-secret", words="p8e-", pattern=r"p8e-[A-Za-z0-9]{32,}"),
    Form(rule="age-secret-key", words="AGE-SECRET-KEY-1",
         pattern=r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    Form(rule="alibaba-access-key", words="LTAI", pattern=START + r"LTAI[A-Za-z0-9]{20,}"),
    Form(rule="authress-key", words=".acc_ .acc-", back=40, pattern=START +
         r"(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9-]{10,32}"
         r"\.[\w+/=-]{30,120}"),
    Form(rule="anthropic-key", words="sk-ant-", pattern=r"sk-ant-[a-z0-9]+-[\w-]{20,}"),
    Form(rule="artifactory-key", words="AKCp cmVmd", pattern=START +
         r"(?:AKCp[A-Za-z0-9]{69,}|cmVmd[A-Za-z0-9]{59,})", entropy=4.5),
    Form(rule="atlassian-token", words="ATATT3", pattern=r"ATATT3[\w=-]{100,}"),
    Form(rule="aws-access-key", words="AKIA ASIA ABIA ACCA", pattern=START +
         r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])", entropy=3),
    Form(rule="aws-bedrock-key", words="ABSK bedrock-api-key-",
         pattern=r"(?:ABSK[A-Za-z0-9+/]{109,}|bedrock-api-key-[A-Za-z0-9+/]{28,})={0,2}"),
    Form(rule="azure-client-secret", words=" ".join(f"{n}Q~" for n in range(10)),
         pattern=START + r"[\w~.]{3}\dQ~[\w~.-]{31,40}", entropy=3, back=3),
    Form(rule="clickhouse-key", words="4b1d", entropy=3.5, pattern=START +
         r"4b1d(?=[A-Za-z0-9]*[g-zG-Z])[A-Za-z0-9]{38}(?![A-Za-z0-9])"),
    Form(rule="clojars-token", words="CLOJARS_", pattern=r"CLOJARS_[A-Za-z0-9]{60}"),
    Form(rule="cloudflare-origin-key", words="v1.0-",
         pattern=r"v1\.0-[a-f0-9]{24}-[a-f0-9]{100,}"),
    Form(rule="databricks-token", words="dapi", pattern=START + r"dapi[a-f0-9]{32}(?:-\d)?"),
    Form(rule="defined-networking-token", words="dnkey-", pattern=r"dnkey-[\w=-]{26}-[\w=-]{52}"),
    Form(rule="digitalocean-token", words="doo_v1_ dop_v1_ dor_v1_",
         pattern=r"do[opr]_v1_[a-f0-9]{64}"),
    Form(rule="django-key", words="django-insecure-",
         pattern=r"django-insecure-[\w!@#$%^&*(=+)-]{40,60}"),
    Form(rule="doppler-token", words="dp.pt. dp.st.", pattern=r"dp\.[ps]t\.[\w.-]{40,}"),
    Form(rule="duffel-token", words="duffel_", pattern=r"duffel_(?:test|live)_[\w=-]{43}"),
    Form(rule="dynatrace-token", words="dt0c01.",
         pattern=r"dt0c01\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{64}"),
    Form(rule="easypost-token", words="EZAK EZTK", pattern=START + r"EZ[AT]K[A-Za-z0-9]{54}"),
    Form(rule="facebook-token", words="EAAM EAAC", pattern=START + r"EAA[MC][A-Za-z0-9]{100,}",
         entropy=4),
    Form(rule="figma-token", words="figd_", pattern=START + r"figd_[\w-]{40,}", entropy=3),
    Form(rule="flutterwave-key", words="FLWSECK FLWPUBK",
         pattern=r"FLW(?:SEC|PUB)K(?:_TEST)?-[A-Za-z0-9]{12,}(?:-X)?"),
    Form(rule="flyio-token", words="fo1_ fm1a_ fm1r_ fm2_",
         pattern=START + r"f(?:o1_[\w-]{43}|m1[ar]_[\w+/]{100,}|m2_[\w+/]{100,})={0,3}"),
    Form(rule="frameio-token", words="fio-u-", pattern=r"fio-u-[\w=-]{64}"),
    Form(rule="github-token", words="ghp_ gho_ ghu_ ghs_ ghr_",
         pattern=r"gh[pousr]_[0-9A-Za-z]{36,251}", entropy=3),
    Form(rule="github-pat", words="github_pat_", pattern=r"github_pat_\w{60,255}", entropy=3),
    Form(rule="gitlab-token", words="glpat- gldt- glft- glffct- glimt- glagent- gloas- glptt- "
         "glrt- glsoat- glcbt- GR1348941",
         pattern=r"(?:gl(?:pat|dt|ft|ffct|imt|agent|oas|ptt|rt|soat|cbt)-|GR1348941)[\w.-]{20,}",
         entropy=3),
    Form(rule="gitlab-session", words="_gitlab_session",
         pattern=r"_gitlab_session\W{1,8}([0-9a-z]{32})(?![0-9A-Za-z])", entropy=3),
    Form(rule="google-key", words="AIza", pattern=START + r"AIza[\w-]{35}", entropy=3.5),
    Form(rule="google-oauth", words="GOCSPX- ya29.",
         pattern=r"(?:GOCSPX-[\w-]{28}|ya29\.[\w-]{40,})", entropy=3.5),
    Form(rule="grafana-token", words="glc_ glsa_ eyJrIjoi", pattern=START +
         r"(?:glc_[\w+/]{32,}|glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}|eyJrIjoi[A-Za-z0-9]{70,})={0,3}",
         entropy=3),
    Form(rule="groq-key", words="gsk_", pattern=START + r"gsk_[A-Za-z0-9]{40,}", entropy=3.5),
    Form(rule="harness-key", words="pat. sat.", pattern=START +
         r"[ps]at\.[\w-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}(?![A-Za-z0-9])", entropy=3.5),
    Form(rule="hashicorp-token", words=".atlasv1.",
         pattern=r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,}", entropy=3.5, back=14),
    Form(rule="heroku-key", words="HRKU-", pattern=r"HRKU-[\w-]{36,}", entropy=3),
    Form(rule="huggingface-token", words="hf_ api_org_",
         pattern=START + r"(?:hf_|api_org_)[A-Za-z]{34,}", entropy=3),
    Form(rule="infracost-key", words="ico-", pattern=START + r"ico-[A-Za-z0-9]{32}", entropy=3),
    Form(rule="intra42-secret", words="s-s4t2", pattern=START + r"s-s4t2(?:ud|af)-[a-f0-9]{64}"),
    # Their headers are JSON in base64, the second and third begun by a new line.
    Form(rule="json-web-token", words="eyJ ewog ew0K", entropy=3, pattern=START +
         r"(?:eyJ|ewog|ew0K)[\w-]{14,}\.(?:eyJ|ewog|ew0K)[\w-]{14,}(?:\.[\w-]{10,})?"),
    Form(rule="langfuse-key", words="sk-lf-", pattern=r"sk-lf-[0-9a-f-]{32,}", entropy=3),
    Form(rule="langsmith-key", words="lsv2_", pattern=r"lsv2_(?:pt|sk)_[0-9a-f]{32}_\w+"),
    Form(rule="linear-key", words="lin_api_", pattern=r"lin_api_[A-Za-z0-9]{40}"),
    Form(rule="maxmind-key", words="_mmk", pattern=r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk",
         entropy=3.5, back=36),
    Form(rule="netlify-token", words="nfp_", pattern=START + r"nfp_[A-Za-z0-9]{36,}", entropy=3),
    Form(rule="new-relic-key", words="NRAK- NRJS- NRII-",
         pattern=r"NR(?:AK-[A-Za-z0-9]{27}|JS-[a-f0-9]{19}|II-[\w-]{32})"),
    Form(rule="notion-token", words="ntn_", pattern=START + r"ntn_[0-9]{11}[A-Za-z0-9]{35}"),
    Form(rule="npm-token", words="npm_", pattern=START + r"npm_[A-Za-z0-9]{36}", entropy=3),
    Form(rule="nvidia-key", words="nvapi-", pattern=r"nvapi-[\w-]{60,}", entropy=3.5),
    Form(rule="octopus-key", words="API-",
         pattern=START + r"API-[A-Z0-9]{26}(?![A-Za-z0-9])", entropy=3),
    Form(rule="onepassword-key", words="A3-", entropy=3.5, pattern=START +
         r"A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}(?![A-Za-z0-9])"),
    Form(rule="onepassword-token", words="ops_eyJ", pattern=r"ops_eyJ[A-Za-z0-9+/]{100,}={0,3}"),
    Form(rule="openai-key", words="sk-proj- sk-svcacct- sk-admin- sk-or-v1-",
         pattern=r"sk-(?:proj|svcacct|admin|or-v1)-[\w-]{32,}", entropy=3.5),
    Form(rule="openai-key", words="sk-", pattern=START + r"sk-[A-Za-z0-9]{32,}(?![\w-])",
         entropy=3.5),
    Form(rule="openshift-token", words="sha256~", pattern=r"sha256~[\w-]{43}", entropy=3.5),
    Form(rule="perplexity-key", words="pplx-", pattern=r"pplx-[A-Za-z0-9]{48,}", entropy=3.5),
    Form(rule="planetscale-token", words="pscale_", pattern=r"pscale_(?:tkn|oauth|pw)_[\w=.-]{32,}",
         entropy=3),
    Form(rule="postman-key", words="PMAK-", pattern=r"PMAK-[A-Za-z0-9]{24}-[A-Za-z0-9]{34}"),
    Form(rule="prefect-token", words="pnu_ pnb_", pattern=START + r"pn[ub]_[A-Za-z0-9]{36}"),
    Form(rule="private-key", words="-----BEGIN", entropy=0,
         pattern=r"-----BEGIN[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----"
         r"(?:(?:\\+[nr]|\s)*[A-Z][A-Za-z-]+: [^\n\\]{1,80}){0,4}"
         rf"({_KEY_LINE}(?:{_KEY_LINE})+(?:(?:\\+[nr]|[\s\"'+,])*[A-Za-z0-9+/=]{{1,76}})?)"),
    Form(rule="pulumi-token", words="pul-", pattern=START + r"pul-[a-f0-9]{40}"),
    Form(rule="pypi-token", words="pypi-AgE", pattern=r"pypi-AgE[\w-]{50,}"),
    Form(rule="readme-token", words="rdme_", pattern=r"rdme_[a-z0-9]{70}"),
    Form(rule="replicate-token", words="r8_", pattern=START + r"r8_[A-Za-z0-9]{37}", entropy=3.5),
    Form(rule="rubygems-token", words="rubygems_", pattern=r"rubygems_[a-f0-9]{48}"),
    Form(rule="scalingo-token", words="tk-us-", pattern=START + r"tk-us-[\w-]{48}", entropy=3),
    Form(rule="sendgrid-token", words="SG.", pattern=START +
         r"SG\.(?:[\w-]{16,32}\.[\w-]{16,64}|[\w=.-]{66}(?![\w=.-]))", entropy=3.5),
    Form(rule="sendinblue-token", words="xkeysib-",
         pattern=r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}"),
    Form(rule="sentry-token", words="sntrys_ sntryu_", pattern=r"sntry[su]_[\w+/=]{40,}"),
    Form(rule="settlemint-token", words="sm_aat_ sm_pat_ sm_sat_",
         pattern=START + r"sm_[aps]at_[A-Za-z0-9]{16}", entropy=3),
    Form(rule="shippo-token", words="shippo_", pattern=r"shippo_(?:live|test)_[a-fA-F0-9]{40}"),
    Form(rule="shopify-token", words="shpat_ shpca_ shppa_ shpss_",
         pattern=r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
    Form(rule="sidekiq-key", words="__CONTRIBSYS__COM",
         pattern=r"__CONTRIBSYS__COM[\w.-]{0,20}[\W]{1,8}([a-f0-9]{8}:[a-f0-9]{8})"),
    Form(rule="slack-token", words="xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp-",
         pattern=r"(?:xox[abeoprs]|xapp)[.-](?=[A-Za-z.-]*\d)[A-Za-z0-9.-]{10,}", entropy=3),
    Form(rule="slack-webhook", words="hooks.slack.com/",
         pattern=r"hooks\.slack\.com/(?:services|workflows|triggers)/([\w+/]{40,60})"),
    Form(rule="sourcegraph-token", words="sgp_",
         pattern=START + r"sgp_(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}"),
    Form(rule="square-token", words="sq0atp- sq0csp-", pattern=r"sq0[ac][ts]p-[\w-]{22,60}"),
    Form(rule="square-token", words="EAAAE EAAAl", entropy=3.8, pattern=START +
         r"EAAA[El][\w-]{22,60}(?![\w+/=-])"),
    Form(rule="stripe-key", words="sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ whsec_",
         pattern=START + r"(?:[sr]k_(?:live|test|prod)_|whsec_)[A-Za-z0-9]{10,}",
         entropy=3),
    Form(rule="supabase-token", words="sbp_", pattern=START + r"sbp_[a-f0-9]{40}"),
    Form(rule="tailscale-key", words="tskey-", pattern=START + r"tskey-[a-z]+-[\w-]{20,}"),
    Form(rule="tavily-key", words="tvly-", pattern=START + r"tvly-[\w-]{32,}", entropy=3),
    Form(rule="teams-webhook", words="webhook.office.com/",
         pattern=r"webhook\.office\.com/(webhookb2/[\w@/-]{60,})"),
    Form(rule="telegram-token", words=":AA", pattern=START +
         r"\d{5,16}:AA[\w-]{33}(?![\w-])", entropy=3.5, back=16),
    Form(rule="twilio-key", words=" ".join(f"SK{digit}" for digit in "0123456789abcdefABCDEF"),
         pattern=START + r"SK[0-9a-fA-F]{32}(?![0-9A-Za-z])", entropy=3),
    Form(rule="typeform-token", words="tfp_", pattern=START + r"tfp_[\w.=-]{59}", entropy=3),
    Form(rule="vault-token", words="hvs. hvb.", pattern=START + r"hv[sb]\.[\w-]{24,}", entropy=3.5),
    Form(rule="yandex-key", words="AQVN", pattern=START + r"AQVN[\w-]{35,38}", entropy=3),
    Form(rule="xai-key", words="xai-", pattern=START + r"xai-[A-Za-z0-9]{70,}", entropy=3.5),
)  # fmt: skip

NEARBY_FORMS = (
    Form(rule="airtable-token", words="airtable Airtable AIRTABLE", pattern=START +
         r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}(?![A-Za-z0-9])"),
    Form(rule="facebook-token", words="facebook Facebook FACEBOOK", entropy=3, pattern=START +
         r"\d{15,16}[|%][\w-]{27,40}(?![\w-])"),
    Form(rule="vault-token", words="vault Vault VAULT", entropy=3.5, pattern=START +
         r"s\.(?=[A-Za-z]*\d)[A-Za-z0-9]{24}(?![\w.])"),
)  # fmt: skip
"""What only its surroundings tell from other text: it stands within `NEAR_BYTES` of a word."""
NEAR_BYTES = 200

URL_PASSWORD = re.compile(
    rb"://[^\s/?#@:\"'`\\<>{}$]{0,80}:"
    rb"((?:[^\s/?#@\"'`\\<>{}$\[\]%]|%[0-9A-Fa-f]{2}){3,120})@[\w\[]"
)
BEARER_TOKEN = re.compile(rb"[ \t]+([\w.~+/=-]{16,512})")
BASIC_CREDENTIALS = re.compile(rb"[ \t]+([A-Za-z0-9+/]{12,512}={0,2})(?![A-Za-z0-9+/=])")
CURL_USER = re.compile(
    rb"curl\b[^\n\\|;]{0,400}?[ \t](?:-u|--user)[ \t=]*[\\\"']*[^\s:\"'\\$]{1,80}:"
    rb"([^\s\"'\\$<>{}]{3,120})"
)


# In JSON a line's end is two characters, and so is a quote: each of these reads both alike.
_GAP = rb"(?:[ \t\r\n]|\\+[trn]){1,20}"
_WORD = rb"[^\x00-\x20\x7f\"'`\\]{1,100}"
_PASSWORD_VALUE = rb"\\*[\"']?([^\x00-\x20\x7f\"'`\\$<>{}()\[\]|;&]{3,120})"
NETRC_PASSWORD = re.compile(
    rb"(?:machine" + _GAP + _WORD + rb"|default)" + _GAP + rb"login" + _GAP + _WORD + _GAP
    + rb"password" + _GAP + _PASSWORD_VALUE
)  # fmt: skip
SSHPASS_PASSWORD = re.compile(
    rb"sshpass +(?:-[evP][^\x00-\x20\\]{0,40} +){0,3}-p *" + _PASSWORD_VALUE
)
MYSQL_PASSWORD = re.compile(
    rb"[a-z-]{5,12} (?:[^\x00-\x1f\\|;&]|\\+[\"']){0,300}?(?<= )-p" + _PASSWORD_VALUE
)
MYSQL_PROGRAMS = "mysql mysqladmin mysqldump mysqlimport mariadb mariadb-admin mariadb-dump"
JWT_IN_BASE64 = re.compile(START.encode() + rb"ZXlK[A-Za-z0-9+/\\_-]{40,}={0,2}")
JWT = re.compile(rb"eyJ[\w-]{14,}\.eyJ[\w-]{14,}")
KUBERNETES_DATA = re.compile(
    rb"(?:\n|\\n|^) {0,4}data:((?:(?:\n|\\n) +[\w.-]+: *[\"']?[A-Za-z0-9+/]{8,}={0,2}[\"']?)+)"
)
DOCKER_AUTH = re.compile(rb"auth\\*[\"'] {0,3}: {0,3}\\*[\"']([A-Za-z0-9+/]{8,512}={0,2})\\*[\"']")

WORDS = "password passwd passphrase secret token credentials"
KEY_PREFIXES = (
    "api access private auth account encryption signing master storage consumer shared license"
)


PASSWORD_WORDS = (b"password", b"passwd", b"passphrase", b"pwd")
NAME_SEPARATORS = "_-.=: \"'\\,"
HARMLESS_PREFIX = re.compile(rb"(?i:public[_-]?key[_-]?|csrf[_-]?)$")


def secret_name_words() -> list[str]:
    """What the names of secrets hold, as people write it."""
    words = ["pwd", "Pwd", "apikey", "APIKEY", "api key ", "API key "]
    for word in WORDS.split():
        styles = (word, word.upper(), word.capitalize())
        # Agents speak of tokens all the time; only what may begin a value is worth a look.
        ends = NAME_SEPARATORS if word == "token" else ("",)
        words += [style + end for style in styles for end in ends]
    for word in KEY_PREFIXES.split():
        first = word.capitalize()
        words += [f"{word}_key", f"{word.upper()}_KEY", f"{word}Key", f"{first}Key"]
        words += [f"{word}-key", f"{first}-Key"]
    return words


_NAME_REST = r"([\w.-]{0,24}+)"
QUOTED_VALUE = re.compile(
    rf"{_NAME_REST}(?:{_QUOTE}\]?)?\s{{0,3}}"
    rf"(?::[ \t]{{0,2}}[A-Za-z][\w.\[\] |]{{1,30}}=|=>|:=|={{1,3}}|:|(?<=[\"'`]),)"
    rf"\s{{0,3}}[bfru]{{0,2}}({_QUOTE})([^\s\"'`\\]{{6,512}})\2".encode()
)
BARE_VALUE = re.compile(
    rf"{_NAME_REST}(?:=|:[ \t]{{1,3}}|[ \t]=[ \t])([^\s\"'`\\;,&|<>(){{}}\[\]$]{{6,512}})"
    r"(?=[\s;,&\"'`<\\)]|$)".encode()
)
VALUE_ATTRIBUTE = re.compile(
    rf"{_QUOTE}[ \t]{{1,3}}value=({_QUOTE})([^\s\"'`\\<>]{{6,512}})\1".encode()
)
"""`<add key="Password" value="…">`."""
PROSE_VALUE = re.compile(
    rb"[ \t]+(?:(?:is|was|are|will be|=|:)[ \t]+(?:now[ \t]+)?)?\\*[\"'`*(<]{0,3}"
    rb"(?=[A-Za-z_./+=-]{0,40}\d)"
    rb"([^\s\"'`*\\<>(){}\[\]$|]{8,512})"
)
"""As people say it: `the token is …`, `use the token …`."""
FLAG_VALUE = re.compile(rb"[= ]\\*[\"'`]?([^\s\"'`\\;|<>(){}$]{6,512})")

_PLACEHOLDER = re.compile(
    r"example|your|placeholder|change.?me|dummy|redact|insert|xxxx|\*\*\*|\.\.\.|sample|environ|"
    r"getenv|process\.env|[<>{}()\[\]$\s]|%[sdr(]|^/|^\.|://|^sha\d+[-:]|^\d{4}-\d\d-\d\d",
    re.IGNORECASE,
)
_SPEAKING_WORD = re.compile(
    "pass|pwd|secret|token|key|test|fake|mock|demo|abc123|abcdef|12345|qwerty", re.IGNORECASE
)
_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(?:[.:][A-Za-z_]\w*)+")
_HEX = re.compile(r"[0-9a-fA-F-]+")
_DIGIT = re.compile(r"\d")
_SERVICE_KEY = re.compile(r"[\w=%:.+/~-]{14,200}")
_SERVICES = (
    "adafruit adobe airtable algolia alibaba asana atlassian beamer bitbucket bittrex cloudflare "
    "codecov cohere coinbase confluence confluent contentful datadog discord droneci dropbox etsy "
    "facebook fastly finicity finnhub flickr freshbooks gitter gocardless heroku hubspot instagram "
    "intercom jfrog jira kraken kucoin launchdarkly linear linkedin lob looker mailchimp mailgun "
    "mapbox mattermost meraki message.?bird netlify new.?relic nytimes okta plaid private.?ai "
    "rapidapi sendbird sentry snyk sonar sourcegraph squarespace sumo telegr travis trello twilio "
    "twitch twitter typeform vault yandex zendesk zoom"
)
SERVICE_NAME = re.compile(rf"(?i:{'|'.join(_SERVICES.split())})[\w .-]{{0,20}}$".encode())
"""Of what a name begins with: then its value is a key, however little it looks like chance."""


def shannon_entropy(text: str) -> float:
    """Bits for each character, by Shannon."""
    size = len(text)
    return -sum(n / size * math.log2(n / size) for n in Counter(text).values())


def is_placeholder(value: str) -> bool:
    """Whether a value only stands for a secret, or speaks of one."""
    return bool(_PLACEHOLDER.search(value) or _SPEAKING_WORD.search(value))


def is_random(value: str) -> bool:
    """Whether a value is what a machine made up, and no word, name, path, date or digest."""
    # One in 64 keys in base64 begins as a path does.
    if len(value) < 16 or _PLACEHOLDER.search(value.removeprefix("/")):
        return False
    kinds = ["u" if c.isupper() else "l" if c.islower() else "d" for c in value if c.isalnum()]
    changes = sum(one != other for one, other in pairwise(kinds))
    # Words written together change case too, but less often than chance does.
    wanted = 0.4 if "u" in kinds and "l" in kinds else 0.2
    least = 3.0 if _HEX.fullmatch(value) else 3.5
    return (
        "d" in kinds and changes >= max(3, wanted * len(kinds)) and shannon_entropy(value) >= least
    )


def is_password(value: str) -> bool:
    """Whether a quoted value is what a person would choose as a password."""
    if not 6 <= len(value) <= 64 or _DOTTED_NAME.fullmatch(value):
        return False
    if is_placeholder(value):
        return False
    mixed = any(not c.isalpha() and c not in "-_. " for c in value)
    return mixed and any(c.isalpha() for c in value) and len(set(value)) > 3


def is_chosen_password(value: str) -> bool:
    """Whether a value that can only be a password is no placeholder for one."""
    return is_random(value) or is_password(value + "1")


def is_service_key(value: str) -> bool:
    """Whether a value may be the key of a service that its name tells."""
    if not _DIGIT.search(value) or not _SERVICE_KEY.fullmatch(value) or is_placeholder(value):
        return False
    return shannon_entropy(value) >= (2.3 if value.isdigit() else 2.8)


def is_said_password(value: str) -> bool:
    """Whether a word in prose can only be a password: its letters, digits and signs are mixed."""
    kinds = (str.isupper, str.islower, str.isdigit, lambda one: not one.isalnum())
    mixed = sum(any(map(kind, value)) for kind in kinds) >= 3
    return mixed and any(map(str.isdigit, value)) and is_password(value) and "/" not in value
