"""Removes secrets from what is stored: records, and agents' patches."""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind
from msgspec.structs import replace

from closeloop.records.attempt import Grade, Proof, TestRun
from closeloop.records.change import Change
from closeloop.records.record import Record
from closeloop.text.untrusted import join_surrogates
from closeloop.text.wording import compile_lazily

# The forms of secrets.
#
# The forms of provider keys follow the rules of gitleaks (https://github.com/gitleaks/gitleaks, MIT
# licence, copyright 2019 Zachary Rice), rewritten for our search: each form begins with a word that
# can be found quickly, and a key longer than known is matched whole. Names and the test of
# randomness are our own, designed not to match code that only mentions secrets.


class Form(Record):
    """The form of one kind of secret."""

    rule: str
    words: str
    """Words, one of which it starts with, or contains `back` bytes after its start."""
    pattern: str
    """Matches from its start; the first group is the secret if there is one."""
    entropy: float = 2.5
    """A placeholder such as `ghp_xxxxxxxx` has less."""
    back: int = 0


# Not inside a word; but an escape such as \n in quoted text is not part of a word, and names of MCP
# tools are joined by two underscores.
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
    Form(rule="buildkite-token", words="bkua_", pattern=START + r"bkua_[a-f0-9]{40}"),
    Form(rule="circleci-token", words="CCIPAT_ CCIPRJ_",
         pattern=r"CCIP(?:AT|RJ)_[A-Za-z0-9]{22}_[a-f0-9]{40}"),
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
    Form(rule="docker-token", words="dckr_pat_ dckr_oat_",
         pattern=r"dckr_[po]at_[\w-]{27,}", entropy=3),
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
    # Their headers are JSON in base64, the second and third beginning with a line break.
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
    Form(rule="sidekiq-key", words="__CONTRIBSYS__COM __contribsys__com",
         pattern=r"__(?i:CONTRIBSYS__COM)[\w.-]{0,20}[\W]{1,8}([a-f0-9]{8}:[a-f0-9]{8})"),
    Form(rule="slack-token", words="xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp-",
         pattern=r"(?:xox[abeoprs]|xapp)[.-](?=[A-Za-z.-]*\d|\w*[a-z]\w*[A-Z])[A-Za-z0-9.-]{8,}",
         entropy=3),
    Form(rule="slack-webhook", words="hooks.slack.com/",
         pattern=r"hooks\.slack\.com/(?:services|workflows|triggers)/([\w+/]{40,60})"),
    Form(rule="sourcegraph-token", words="sgp_",
         pattern=START + r"sgp_(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}"),
    Form(rule="square-token", words="sq0atp- sq0csp-", pattern=r"sq0[ac][ts]p-[\w-]{22,60}"),
    Form(rule="square-token", words="EAAA", entropy=3.8, pattern=START +
         r"EAAA(?=\D*\d)[\w-]{22,60}(?![\w+/=-])"),
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
    Form(rule="freemius-key", words="secret_key", entropy=3.5,
         pattern=r"(?<=[\"'])sk_\S{29}(?=[\"'])"),
    Form(rule="vault-token", words="vault Vault VAULT", entropy=3.5, pattern=START +
         r"s\.(?=[A-Za-z]*\d)[A-Za-z0-9]{24}(?![\w.])"),
)  # fmt: skip
"""Forms that only their surroundings distinguish: a word must be within `NEAR_BYTES`."""
NEAR_BYTES = 200

URL_PASSWORD = compile_lazily(
    rb"://[^\s/?#@:\"'`\\<>{}$]{0,80}:"
    rb"((?:[^\s/?#@\"'`\\<>{}$\[\]%]|%[0-9A-Fa-f]{2}){3,120})@[\w\[]"
)
BEARER_TOKEN = compile_lazily(rb"[ \t]+([\w.~+/=-]{16,512})")
BASIC_CREDENTIALS = compile_lazily(rb"[ \t]+([A-Za-z0-9+/]{12,512}={0,2})(?![A-Za-z0-9+/=])")
CURL_USER = compile_lazily(
    rb"curl\b[^\n\\|;]{0,400}?[ \t](?:-u|--user)[ \t=]*[\\\"']*[^\s:\"'\\$]{1,80}:"
    rb"([^\s\"'\\$<>{}]{3,120})"
)


# In JSON a line break is two characters, and so is a quote: each of these matches both forms.
_GAP = rb"(?:[ \t\r\n]|\\+[trn]){1,20}"
_WORD = rb"[^\x00-\x20\x7f\"'`\\]{1,100}"
_PASSWORD_VALUE = rb"\\*[\"']?([^\x00-\x20\x7f\"'`\\$<>{}()\[\]|;&]{3,120})"
NETRC_PASSWORD = compile_lazily(
    rb"(?:machine" + _GAP + _WORD + rb"|default)" + _GAP + rb"login" + _GAP + _WORD + _GAP
    + rb"password" + _GAP + _PASSWORD_VALUE
)  # fmt: skip
SSHPASS_PASSWORD = compile_lazily(
    rb"sshpass +(?:-[evP][^\x00-\x20\\]{0,40} +){0,3}-p *" + _PASSWORD_VALUE
)
MYSQL_PASSWORD = compile_lazily(
    rb"[a-z-]{5,12} (?:[^\x00-\x1f\\|;&]|\\+[\"']){0,300}?(?<= )-p" + _PASSWORD_VALUE
)
MYSQL_PROGRAMS = "mysql mysqladmin mysqldump mysqlimport mariadb mariadb-admin mariadb-dump"
JWT_IN_BASE64 = compile_lazily(START.encode() + rb"ZXlK[A-Za-z0-9+/\\_-]{40,}={0,2}")
JWT = compile_lazily(rb"eyJ[\w-]{14,}\.eyJ[\w-]{14,}")
KUBERNETES_DATA = compile_lazily(
    rb"(?:\n|\\n|^) {0,4}data:((?:(?:\n|\\n) +[\w.-]+: *[\"']?[A-Za-z0-9+/]{8,}={0,2}[\"']?)+)"
)
DOCKER_AUTH = compile_lazily(
    rb"auth\\*[\"'] {0,3}: {0,3}\\*[\"']([A-Za-z0-9+/]{8,512}={0,2})\\*[\"']"
)

WORDS = "password passwd passphrase secret token credentials"
KEY_PREFIXES = (
    "api access private auth account encryption signing master storage consumer shared license"
)


PASSWORD_WORDS = (b"password", b"passwd", b"passphrase", b"pwd")
NAME_SEPARATORS = "_-.=: \"'\\,>"
HARMLESS_PREFIX = compile_lazily(rb"(?i:public[_-]?key[_-]?|csrf[_-]?)$")


def secret_name_words() -> list[str]:
    """Return words that occur in the names of secrets."""
    words = ["pwd", "Pwd", "apikey", "APIKEY", "api key ", "API key "]
    for word in WORDS.split():
        styles = (word, word.upper(), word.capitalize())
        # Agents often mention tokens; only text that may begin a value is examined.
        ends = NAME_SEPARATORS if word == "token" else ("",)
        words += [style + end for style in styles for end in ends]
    for word in KEY_PREFIXES.split():
        first = word.capitalize()
        words += [f"{word}_key", f"{word.upper()}_KEY", f"{word}Key", f"{first}Key"]
        words += [f"{word}-key", f"{first}-Key"]
    return words


_NAME_REST = r"([\w.-]{0,24}+)"
QUOTED_VALUE = compile_lazily(
    rf"{_NAME_REST}(?:{_QUOTE}\]?)?\s{{0,3}}"
    rf"(?::[ \t]{{0,2}}[A-Za-z][\w.\[\] |]{{1,30}}=|string[ \t]{{1,2}}=|=>|={{1,3}}|:{{1,3}}=|[.+]="
    rf"|\?{{1,2}}=|:|(?<=[\"'`]),)"
    rf"\s{{0,3}}[bfru]{{0,2}}({_QUOTE})([^\s\"'`\\]{{6,512}})\2".encode()
)
BARE_VALUE = compile_lazily(
    rf"{_NAME_REST}(?:=|:[ \t]{{1,3}}|[ \t]=[ \t]|>\s{{0,40}})"
    r"([^\s\"'`\\;,&|<>(){}\[\]$]{6,512})(?=[\s;,&\"'`<\\)]|$)".encode()
)
VALUE_ATTRIBUTE = compile_lazily(
    rf"{_QUOTE}[ \t]{{0,3}}value=({_QUOTE})([^\s\"'`\\<>]{{6,512}})\1".encode()
)
"""`<add key="Password" value="…">`."""
PROSE_VALUE = compile_lazily(
    rb"[ \t]+(?:(?:(?:is|was|are|will be):?|=|:)[ \t]+(?:now[ \t]+)?)?\\*[\"'`*(<]{0,3}"
    rb"(?=[A-Za-z_./+=-]{0,40}\d)"
    rb"([^\s\"'`*\\<>(){}\[\]$|]{8,512})"
)
"""As in prose: `the token is …`, `use the token …`."""
FLAG_VALUE = compile_lazily(rb"[= ]\\*[\"'`]?([^\s\"'`\\;|<>(){}$]{6,512})")

_PLACEHOLDER = compile_lazily(
    r"example|your|placeholder|change.?me|dummy|redact|insert|xxxx|\*\*\*|\.\.\.|sample|environ|"
    r"getenv|process\.env|[<>{}()\[\]$\s]|%[sdr(]|^/|^\.|://|^sha\d+[-:]|^\d{4}-\d\d-\d\d",
    re.IGNORECASE,
)
_SPEAKING_WORD = compile_lazily(
    "pass|pwd|secret|token|key|test|fake|mock|demo|abc123|abcdef|12345|qwerty", re.IGNORECASE
)
_NAME_OR_TYPE = compile_lazily(r"[A-Za-z_]\w*(?:[.:][A-Za-z_]\w*)+|[a-z]+\?")
"""A dotted name, or an optional type: `"password": "string?"`."""
_HEX = compile_lazily(r"[0-9a-fA-F-]+")
_DIGIT = compile_lazily(r"\d")
_SERVICE_KEY = compile_lazily(r"[\w=%:.+/~-]{14,200}")
_SERVICES = (
    "adafruit adobe airtable algolia alibaba asana atlassian beamer bitbucket bittrex cloudflare "
    "codecov cohere coinbase confluence confluent contentful datadog discord droneci dropbox etsy "
    "facebook fastly finicity finnhub flickr freshbooks gitter gocardless heroku hubspot instagram "
    "intercom jfrog jira kraken kucoin launchdarkly linear linked-?in lob looker mailchimp mailgun "
    "mapbox mattermost meraki message.?bird netlify new.?relic nytimes okta plaid private.?ai "
    "rapidapi sendbird sentry snyk sonar sourcegraph squarespace sumo telegr travis trello twilio "
    "twitch twitter typeform vault yandex zendesk zoom"
)
SERVICE_NAME = compile_lazily(rf"(?i:{'|'.join(_SERVICES.split())})[\w .-]{{0,20}}$".encode())
"""The beginning of a name whose value is a key, however little it looks random."""


def shannon_entropy(text: str) -> float:
    """Return the Shannon entropy in bits per character."""
    size = len(text)
    return -sum(n / size * math.log2(n / size) for n in Counter(text).values())


def is_placeholder(value: str) -> bool:
    """Whether a value only stands for a secret, or describes one."""
    return bool(_PLACEHOLDER.search(value) or _SPEAKING_WORD.search(value))


def is_random(value: str) -> bool:
    """Whether a value is machine-generated, and not a word, name, path, date or digest."""
    # One in 64 keys in base64 begins as a path does.
    if len(value) < 16 or _PLACEHOLDER.search(value.removeprefix("/")):
        return False
    kinds = ["u" if c.isupper() else "l" if c.islower() else "d" for c in value if c.isalnum()]
    changes = sum(kind != next_kind for kind, next_kind in pairwise(kinds))
    # Joined words change case too, but less often than random text.
    min_share = 0.4 if "u" in kinds and "l" in kinds else 0.2
    min_entropy = 3.0 if _HEX.fullmatch(value) else 3.5
    return (
        "d" in kinds
        and changes >= max(3, min_share * len(kinds))
        and shannon_entropy(value) >= min_entropy
    )


def is_password(value: str) -> bool:
    """Whether a quoted value is one that a person would choose as a password."""
    if not 6 <= len(value) <= 64 or _NAME_OR_TYPE.fullmatch(value):
        return False
    if is_placeholder(value):
        return False
    mixed = any(not c.isalpha() and c not in "-_. " for c in value)
    return mixed and any(c.isalpha() for c in value) and len(set(value)) > 3


def is_chosen_password(value: str) -> bool:
    """Whether a value in the place of a password is not a placeholder."""
    return is_random(value) or is_password(value + "1")


def is_service_key(value: str) -> bool:
    """Whether a value may be the key of a service that its name mentions."""
    if not _DIGIT.search(value) or not _SERVICE_KEY.fullmatch(value) or is_placeholder(value):
        return False
    return shannon_entropy(value) >= (2.3 if value.isdigit() else 2.8)


def is_said_password(value: str) -> bool:
    """Whether a word in prose can only be a password, with mixed letters, digits and signs."""
    kinds = (str.isupper, str.islower, str.isdigit, lambda character: not character.isalnum())
    mixed = sum(any(map(kind, value)) for kind in kinds) >= 3
    return mixed and any(map(str.isdigit, value)) and is_password(value) and "/" not in value


# Find secrets in any text: a quick search for the few words that every secret is near.


SecretSpan = tuple[int, int, str]
"""Start and end of a secret, and its rule."""

_CompiledForm = tuple[str, re.Pattern[bytes], int, float]
_WORDS_PER_GROUP = 60
"""Up to about this many words at once are searched at memory speed."""
_MAX_PASSES = 8
_MAX_URL_BYTES = len("://") + 80 + len(":") + 120 * len("%20")
"""Maximum distance of a URL's start before its `@`."""
_SEPARATORS = NAME_SEPARATORS.encode()


def find_secrets(data: bytes) -> Iterator[SecretSpan]:
    """Yield every secret, in the order of the words that lead to them."""
    for searcher, forms in _build_searchers():
        for index, start, end in searcher.find_matches_as_indexes(data):
            for form in forms[index]:
                span = form(data, start, end)
                if span is not None:
                    yield span
    yield from _search_urls(data)


def redact_secrets(data: bytes, counts: dict[str, int]) -> bytes:
    """Replace every secret by `[redacted: RULE]` and add it to the counts."""
    for _ in range(_MAX_PASSES):
        spans = sorted(find_secrets(data), key=lambda span: (span[0], -span[1]))
        if not spans:
            return data
        pieces, position = [], 0
        for start, end, rule in spans:
            if start >= position:
                pieces += [data[position:start], f"[redacted: {rule}]".encode()]
                counts[rule] = counts.get(rule, 0) + 1
                position = end
        data = b"".join([*pieces, data[position:]])
    return data


def _match_form(form: _CompiledForm, data: bytes, start: int, end: int) -> SecretSpan | None:
    """Match a secret with a form of its own."""
    rule, pattern, back, entropy = form
    for position in range(max(start - back, 0), start + 1) if back else (start,):
        if match := pattern.match(data, position):
            group = 1 if pattern.groups else 0
            if entropy == 0 or shannon_entropy(match[group].decode("latin-1")) >= entropy:
                return (*match.span(group), rule)
            return None
    return None


_RESOURCE_TYPE = compile_lazily(rb'"\w+::\w+::\w*$')
"""A quoted type of CloudFormation, whose value is no key: `"AWS::IAM::AccessKey": "6f1c…"`."""


def _match_assignment(data: bytes, start: int, end: int) -> SecretSpan | None:
    """Match a secret by the name it is assigned to."""
    end = start + len(data[start:end].rstrip(_SEPARATORS))
    if data[end : end + 1].islower():
        return None  # `secrets`, `passwords`: many names, or another word
    name = data[start:end]
    is_password_name = name.lower() in PASSWORD_WORDS
    if match := QUOTED_VALUE.match(data, end):
        in_list = b"," in data[match.start(2) - 3 : match.start(2)]
        is_typed = is_password_name and not match[1] and not in_list
    elif data[max(start - 2, 0) : start] == b"--" and (match := FLAG_VALUE.match(data, end)):
        is_typed = is_password_name
    elif match := BARE_VALUE.match(data, end):
        # NAME=value in capitals is typical of shells and .env files, and rare in code.
        is_env_style = name.isupper() and data[end : end + 1] == b"="
        is_typed = is_password_name and is_env_style and not match[1]
    elif data[end : end + 1] in (b" ", b"\t"):
        return _match_prose(data, end, password=is_password_name)
    elif is_password_name and (match := VALUE_ATTRIBUTE.match(data, end)):
        is_typed = True
    else:
        return None
    span = match.span(match.re.groups)
    value = match[match.re.groups].decode("latin-1")
    if not (
        is_random(value)
        or (is_typed and is_password(value))
        or (is_service_key(value) and _names_service(data, start))
    ):
        return None
    if HARMLESS_PREFIX.search(data[max(start - 11, 0) : start]):
        return None
    if _RESOURCE_TYPE.search(data[max(start - 80, 0) : start]):
        return None
    return (*span, "password" if is_password_name else "assignment")


def _names_service(data: bytes, start: int) -> bool:
    """Whether the name of a value begins with the name of a service."""
    return SERVICE_NAME.search(data[max(start - 40, 0) : start]) is not None


def _match_prose(data: bytes, end: int, *, password: bool) -> SecretSpan | None:
    """Match `The token is …` without the full stop after it."""
    match = PROSE_VALUE.match(data, end)
    if match is None:
        return None
    value = match[1].rstrip(b".,;:!?").decode("latin-1")
    if is_random(value) or (password and is_said_password(value)):
        rule = "password" if password else "assignment"
        return match.start(1), match.start(1) + len(value), rule
    return None


def _match_nearby(form: _CompiledForm, data: bytes, start: int, end: int) -> SecretSpan | None:
    """Match a secret that counts only near a certain word."""
    rule, pattern, _, entropy = form
    reach = NEAR_BYTES
    for match in pattern.finditer(data, max(start - reach, 0), end + reach):
        if shannon_entropy(match[0].decode("latin-1")) >= entropy:
            return (*match.span(), rule)
    return None


def _match_base64_token(data: bytes, start: int, end: int) -> SecretSpan | None:
    """Match a JSON web token in base64."""
    match = JWT_IN_BASE64.match(data, start)
    if match is None:
        return None
    letters = re.sub(rb"\\.", b"", match[0]).rstrip(b"=")
    decoded = base64.urlsafe_b64decode(letters.replace(b"+", b"-").replace(b"/", b"_") + b"==")
    return (*match.span(), "json-web-token") if JWT.match(decoded) else None


def _match_kubernetes(data: bytes, start: int, end: int) -> SecretSpan | None:
    """Match the values of a `kind: Secret`, before or after it in the same document."""
    previous_separator = data.rfind(b"---", max(start - 2000, 0), start)
    next_separator = data.find(b"---", end, end + 2000)
    start_position = max(start - 2000, 0) if previous_separator < 0 else previous_separator
    match = KUBERNETES_DATA.search(
        data, start_position, end + 2000 if next_separator < 0 else next_separator
    )
    return None if match is None else (*match.span(1), "kubernetes-secret")


def _search_urls(data: bytes) -> Iterator[SecretSpan]:
    """Search URLs with an `@`; only the last before each can matter."""
    end = 0
    while (at_sign := data.find(b"@", end)) >= 0:
        start = data.rfind(b"://", max(end, at_sign - _MAX_URL_BYTES), at_sign)
        if start >= 0 and (span := _match_url_password(data, start)) is not None:
            yield span
        end = at_sign + 1


def _match_url_password(data: bytes, start: int) -> SecretSpan | None:
    """Return the place of the password in `scheme://user:password@host`; None without one."""
    match = URL_PASSWORD.match(data, start)
    if match is None:
        return None
    user, value = match[0][3:].split(b":", 1)[0].lower(), match[1].lower()
    common = value == user or value in (
        b"password",
        b"pass",
        b"passwd",
        b"pwd",
        b"secret",
        b"token",
    )
    return None if common or len({*value}) < 3 else (*match.span(1), "url-password")


def _match_header(data: bytes, start: int, end: int) -> SecretSpan | None:
    """Return the place of the secret in `Authorization: Bearer …` or `Basic …`; None if none."""
    basic = data[start:end].lower() == b"basic"
    match = (BASIC_CREDENTIALS if basic else BEARER_TOKEN).match(data, end)
    if match is None or not is_random(match[1].decode("latin-1")):
        return None
    return (*match.span(1), "authorization")


def _password_matcher(
    pattern: re.Pattern[bytes], rule: str
) -> Callable[[bytes, int, int], SecretSpan | None]:
    """Build a matcher of a password at a known place of a command line or login file."""

    def match_password(data: bytes, start: int, end: int) -> SecretSpan | None:
        match = pattern.match(data, start)
        if match is None or not is_chosen_password(match[1].decode("latin-1")):
            return None
        return (*match.span(1), rule)

    return match_password


def _match_docker_auth(data: bytes, start: int, end: int) -> SecretSpan | None:
    """`"auth": "…"`, a user's name and password in base64."""
    match = DOCKER_AUTH.match(data, start)
    if match is None:
        return None
    try:
        user, colon, password = base64.b64decode(match[1], validate=True).decode().partition(":")
    except ValueError:
        return None
    is_credential = user.isprintable() and colon and is_chosen_password(password)
    return (*match.span(1), "docker-auth") if is_credential else None


def _as_matcher(form: Any) -> Any:
    return form if callable(form) else partial(_match_form, form)


@cache
def _build_searchers() -> list[tuple[BytesAhoCorasick, list[tuple[Any, ...]]]]:
    """Build groups of words, each with its matchers."""
    table: dict[str, list[Any]] = {}
    for form in SECRET_FORMS:
        pattern = compile_lazily(form.pattern.encode())
        for word in form.words.split():
            table.setdefault(word, []).append((form.rule, pattern, form.back, form.entropy))
    for form in NEARBY_FORMS:
        compiled_form = (form.rule, compile_lazily(form.pattern.encode()), 0, form.entropy)
        for word in form.words.split():
            table.setdefault(word, []).append(partial(_match_nearby, compiled_form))
    table["ZXlK"] = [_match_base64_token]
    table["kind: Secret"] = [_match_kubernetes]
    for word in secret_name_words():
        table.setdefault(word, []).append(_match_assignment)
    for word in ("Bearer", "bearer", "Basic", "basic"):
        table.setdefault(word, []).append(_match_header)
    table["curl "] = [_password_matcher(CURL_USER, "curl-user")]
    table["sshpass "] = [_password_matcher(SSHPASS_PASSWORD, "sshpass")]
    for word in ("machine", "default login"):
        table[word] = [_password_matcher(NETRC_PASSWORD, "netrc")]
    for word in MYSQL_PROGRAMS.split():
        table[f"{word} "] = [_password_matcher(MYSQL_PASSWORD, "mysql-password")]
    for quote in "\"'\\":
        table[f"auth{quote}"] = [_match_docker_auth]
    # A word that is the prefix of another must also find the forms of the longer one, and vice
    # versa.
    shorter_forms = {
        word: [
            form
            for size in range(1, len(word))
            for form in table.get(word[:size], ())
            if not callable(form)
        ]
        for word in table
    }
    # Words of one length together: the search examines as many letters as the shortest has.
    words = sorted(table, key=lambda word: (min(len(word), 4), word))
    short_count = sum(len(word) < 4 for word in words)
    starts = [0, *range(short_count, len(words), _WORDS_PER_GROUP), len(words)]
    groups = [words[first:last] for first, last in pairwise(starts)]
    return [
        (
            BytesAhoCorasick(
                [word.encode() for word in group],
                matchkind=MatchKind.LeftmostLongest,
                implementation=Implementation.DFA,
            ),
            [tuple(map(_as_matcher, (*table[word], *shorter_forms[word]))) for word in group],
        )
        for group in groups
    ]


# Redact the patches that agents leave: lines, file names and the content of binary files.
#
# A redacted patch has the same lines and the same hunks as the
# original, so that it can still be parsed and shown; if context
# lines contain a secret, only the exact patch can be applied.

MAX_INFLATED_BYTES = 64 << 20
BINARY_LEFT_OUT = b"[redacted: binary content]"

_HUNK = compile_lazily(rb"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_BINARY_PART = compile_lazily(rb"(?:literal|delta) \d+")
_FILE = compile_lazily(rb"^diff --git ", re.MULTILINE)
_OLD, _NEW = b" -", b" +"

Span = tuple[int, int, str]
"""Start and end of a secret in a line, and its rule."""


def redact_change(change: Change) -> Change:
    """Return the change without secrets in its patch and file names; itself if it has none."""
    patch = redact_patch(change.patch)
    files = tuple(
        replace(
            file,
            path=redact_path(file.path),
            old_path=None if file.old_path is None else redact_path(file.old_path),
        )
        for file in change.files
    )
    if patch == change.patch and files == change.files:
        return change
    return replace(change, patch=patch, files=files)


def redact_path(path: str) -> str:
    """Return a path with `[redacted: RULE]` for every secret in the name of a folder or file."""
    return _decode_bytes(_redact_names(_encode_text(path)))


def redact_patch(patch: str) -> str:
    """Return a patch with `[redacted: RULE]` for every secret, line by line."""
    data = _encode_text(patch)
    redacted = b"\n".join(_redact_lines(data.split(b"\n"), known_text=None))
    return patch if redacted == data else _decode_bytes(redacted)


def redact_new_secrets(patch: str) -> str:
    """Return a patch that applies as before but brings no secret into the repository.

    Secrets in context lines and removed lines stay, as the repository holds them. Binary files
    with a secret in them are left out.
    """
    data = _encode_text(patch)
    header_starts = [match.start() for match in _FILE.finditer(data)]
    starts = [0, *(start for start in header_starts if start > 0)]
    sections = [
        data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)
    ]
    pieces = []
    for section in sections:
        lines = section.split(b"\n")
        known_text = b"\n".join(_side_lines(lines, _OLD))
        is_new = any(line.startswith(b"new file mode ") for line in lines[:3])
        redacted = list(_redact_lines(lines, known_text=known_text, redact_names=is_new))
        if BINARY_LEFT_OUT not in redacted:
            pieces.append(b"\n".join(redacted))
    redacted_patch = b"".join(pieces)
    return patch if redacted_patch == data else _decode_bytes(redacted_patch)


def _redact_lines(
    lines: list[bytes], known_text: bytes | None, *, redact_names: bool = True
) -> Iterator[bytes]:
    """Redact the lines of a patch; `known_text` is what the repository contains and may keep."""
    index = 0
    while index < len(lines):
        line = lines[index]
        if header := _HUNK.match(line):
            end = _hunk_end(lines, index + 1, header)
            yield line if known_text is not None else redact_secrets(line, {})
            yield from _redact_hunk(lines[index + 1 : end], known_text)
            index = end
        elif _BINARY_PART.fullmatch(line):
            end = next(
                (number for number in range(index + 1, len(lines)) if not lines[number]), len(lines)
            )
            has_secret = _holds_secret(lines[index + 1 : end])
            yield from [BINARY_LEFT_OUT] if has_secret else lines[index:end]
            index = end
        else:
            yield _redact_names(line) if redact_names else line
            index += 1


def _hunk_end(lines: list[bytes], index: int, header: re.Match[bytes]) -> int:
    """Return the index after the last line that a hunk's header announces."""
    old, new = (1 if size is None else int(size) for size in header.groups())
    while index < len(lines) and (old > 0 or new > 0 or lines[index][:1] == b"\\"):
        sign = lines[index][:1]
        if sign not in b"+-\\ \r":
            break
        old -= sign not in b"+\\" or not sign
        new -= sign not in b"-\\" or not sign
        index += 1
    return index


def _redact_hunk(lines: list[bytes], known_text: bytes | None) -> Iterator[bytes]:
    """Redact the lines of one hunk; the old and the new text are searched separately."""
    spans: list[list[Span]] = [[] for _ in lines]
    sides = (_NEW,) if known_text is not None else (_NEW, _OLD)
    for signs in sides:
        numbers = [number for number, line in enumerate(lines) if (line[:1] or b" ") in signs]
        text = b"\n".join(lines[number][1:] for number in numbers)
        for start, end, rule in find_secrets(text):
            if known_text is None:
                _mark_secret(spans, lines, numbers, (start, end, rule))
            elif text[start:end] not in known_text:
                added_numbers = [number for number in numbers if lines[number][:1] == b"+"]
                _mark_secret(spans, lines, numbers, (start, end, rule), only_numbers=added_numbers)
    for line, line_spans in zip(lines, spans, strict=True):
        yield line[:1] + _replace_spans(line[1:], line_spans) if line_spans else line


def _mark_secret(
    spans: list[list[Span]],
    lines: list[bytes],
    numbers: list[int],
    secret: Span,
    only_numbers: Iterable[int] | None = None,
) -> None:
    """Mark a secret on every line that it spans, in the text of these lines."""
    start, end, rule = secret
    offset = 0
    for number in numbers:
        size = len(lines[number][1:])
        first, last = max(start - offset, 0), min(end - offset, size)
        if first < last and (only_numbers is None or number in only_numbers):
            spans[number].append((first, last, rule))
        offset += size + 1
        if offset >= end:
            break


def _replace_spans(text: bytes, spans: list[Span]) -> bytes:
    pieces, position = [], 0
    for start, end, rule in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= position:
            pieces += [text[position:start], f"[redacted: {rule}]".encode()]
        position = max(position, end)
    return b"".join([*pieces, text[position:]])


def _side_lines(lines: list[bytes], signs: bytes) -> Iterator[bytes]:
    """Yield the old or the new text of all hunks."""
    index = 0
    while index < len(lines):
        if header := _HUNK.match(lines[index]):
            end = _hunk_end(lines, index + 1, header)
            yield from (line[1:] for line in lines[index + 1 : end] if (line[:1] or b" ") in signs)
            index = end
        else:
            index += 1


def _redact_names(line: bytes) -> bytes:
    """Redact each part of a path separately: a secret may be a whole file name."""
    return b"/".join(map(_redact_name, line.split(b"/")))


@lru_cache(maxsize=1024)
def _redact_name(name: bytes) -> bytes:
    """Cached, because folder names occur in many paths."""
    return redact_secrets(name, {})


def _holds_secret(lines: list[bytes]) -> bool:
    """Whether the base-85 lines of a binary file contain a secret, also in UTF-16."""
    try:
        packed = b"".join(base64.b85decode(line[1:])[: _line_bytes(line)] for line in lines)
        content = zlib.decompressobj().decompress(packed, MAX_INFLATED_BYTES)
    except (ValueError, zlib.error):
        return True  # its content is unknown
    plain = content.replace(b"\0", b"")
    return (
        next(find_secrets(content), None) is not None or next(find_secrets(plain), None) is not None
    )


def _line_bytes(line: bytes) -> int:
    """Return the number of bytes of a base-85 line, from its first letter."""
    code = line[0]
    return code - ord("A") + 1 if code <= ord("Z") else code - ord("a") + 27


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode_bytes(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


RecordType = TypeVar("RecordType", bound=Record)

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def redact_record(record: RecordType) -> tuple[RecordType, dict[str, int]]:
    """Return the record without secrets, and the number removed by rule."""
    counts: dict[str, int] = {}
    try:
        if next(find_secrets(msgspec.json.encode(record)), None) is None:
            return record, counts
    except (UnicodeEncodeError, OverflowError, RecursionError):
        pass  # not everything can be encoded; what is returned can, unless it is nested too deeply
    return _redact_any(record, counts), counts


def redact_value(value: Any) -> Any:
    """Redact decoded JSON or msgpack."""
    return _redact_any(value, {})


def redact_json(body: bytes) -> bytes:
    """Redact a JSON document; unchanged if it has no secrets."""
    if next(find_secrets(body), None) is None:
        return body
    try:
        return msgspec.json.encode(_redact_any(msgspec.json.decode(body), {}))
    except (ValueError, OverflowError, RecursionError):
        return redact_secrets(body, {})  # better broken than stored


def redact_text(text: str, counts: dict[str, int]) -> str:
    """Redact a text, and add to the counts."""
    data = text.encode("utf-8", "surrogatepass")
    redacted = redact_secrets(data, counts)
    return text if redacted == data else redacted.decode("utf-8", "surrogatepass")


def redact_grade(grade: Grade) -> Grade:
    """Return a grade without secrets: in outputs, messages, names of tests and of files."""
    redacted = replace(
        grade,
        out_of_scope=tuple(map(redact_path, grade.out_of_scope)),
        restored=tuple(map(redact_path, grade.restored)),
    )
    return redact_record(redacted)[0]


def redact_proof(proof: Proof) -> Proof:
    """Return a proof without secrets in its runs' output; later runs need their test ids."""
    return replace(
        redact_record(replace(proof, before=None, reference=None))[0],
        before=None if proof.before is None else _redact_run(proof.before),
        reference=None if proof.reference is None else _redact_run(proof.reference),
    )


def _redact_run(run: TestRun) -> TestRun:
    tests, flaky = run.tests, run.flaky
    bare = redact_record(replace(run, tests=(), flaky=()))[0]
    if all(test.message is None for test in tests):
        return replace(bare, tests=tests, flaky=flaky)
    redacted_tests = tuple(replace(redact_record(test)[0], id=test.id) for test in tests)
    return replace(bare, tests=redacted_tests, flaky=flaky)


def _redact_any(value: Any, counts: dict[str, int]) -> Any:
    """Redact all texts of a value, and make it storable; the same object if nothing changes."""
    match value:
        case str():
            return redact_text(join_surrogates(value), counts)
        case int() if not _LEAST <= value <= _MOST:
            return min(max(value, _LEAST), _MOST)
        case msgspec.Struct():
            before = {name: getattr(value, name) for name in value.__struct_fields__}
            after = {name: _redact_any(field, counts) for name, field in before.items()}
            changed = {name: field for name, field in after.items() if field is not before[name]}
            return msgspec.structs.replace(value, **changed) if changed else value
        case dict():
            return {
                _redact_any(key, counts): _redact_entry(key, entry, counts)
                for key, entry in value.items()
            }
        case list() | tuple():
            cleaned = [_redact_any(item, counts) for item in value]
            if all(cleaned_item is item for cleaned_item, item in zip(cleaned, value, strict=True)):
                return value
            return type(value)(cleaned)
    return value


def _redact_entry(key: Any, value: Any, counts: dict[str, int]) -> Any:
    """Redact a value under a name that may be a secret's."""
    if isinstance(key, str) and isinstance(value, str) and len(value) <= 512:
        pair = msgspec.json.encode({key.encode("utf-8", "replace").decode(): "?"})
        encoded = value.encode("utf-8", "replace")
        for start, end, rule in find_secrets(pair.replace(b'"?"', b'"' + encoded + b'"')):
            if end - start == len(encoded):
                counts[rule] = counts.get(rule, 0) + 1
                return f"[redacted: {rule}]"
    return _redact_any(value, counts)
