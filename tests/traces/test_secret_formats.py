"""Every kind of secret that is known is found, in code, in configuration and in what people say."""

from __future__ import annotations

import base64

import pytest
from secret_samples import FORMS, NAMED, fill

from closeloop.text.redaction import find_secrets, redact_text

SEEDS = range(3)
FORM_LINES = [tuple(line.split(" ", 1)) for line in FORMS.strip().splitlines()]
NAMED_LINES = [tuple(line.split(" ", 1)) for line in NAMED.strip().splitlines()]
ANY = "<a40>"


def is_found(text: str, secret: str) -> bool:
    """Whether most of a secret is gone."""
    rest = redact_text(text, {})
    return secret not in rest and "[redacted: " in rest


@pytest.mark.parametrize(("kind", "template"), FORM_LINES, ids=[kind for kind, _ in FORM_LINES])
def test_a_secret_is_known_by_its_form(kind: str, template: str) -> None:
    for seed in SEEDS:
        secret = fill(template, seed)
        for context in ('x = "{}"', "{}\n", "see {} there", '{{"k": "{}"}}', "a/{}", "\\n{}\\n"):
            if "/" in secret and context == "a/{}":
                continue
            assert is_found(context.format(secret), secret), context.format(secret)


NAMED_CONTEXTS = (
    *('{}_api_token = "{}"', '"{}_token": "{}"', "{}_SECRET_KEY='{}'"),
    *('var {}Token string = "{}"', '${}Token .= "{}"', '{}_TOKEN :::= "{}"', '{}_TOKEN ?= "{}"'),
    "<{0}Token>\n    {1}\n</{0}Token>",
)
"""As in JSON, Python, shells, Go, PHP, Makefiles and XML."""


@pytest.mark.parametrize(
    ("service", "template"), NAMED_LINES, ids=[f"{one} {other}" for one, other in NAMED_LINES]
)
def test_the_key_of_a_service_is_known_by_its_name(service: str, template: str) -> None:
    for seed in SEEDS:
        secret = fill(template, seed)
        for context in NAMED_CONTEXTS:
            text = context.format(service, secret)
            assert is_found(text, secret), text


def test_nearly_two_hundred_kinds_are_known() -> None:
    assert len(FORM_LINES) + len(NAMED_LINES) >= 220


PROSE = (
    "the token is {}",
    "My API key is: {}",
    "The bearer token is {}.",
    "Your new API key is `{}`, keep it.",
    "use the token {} for that",
    "my token: {}",
    "The secret is now **{}**!",
)


@pytest.mark.parametrize("sentence", PROSE)
def test_a_token_is_known_in_prose(sentence: str) -> None:
    for seed in SEEDS:
        secret = fill(ANY, seed)
        rest = redact_text(sentence.format(secret), {})
        assert rest == sentence.format("[redacted: assignment]")


SAID = """\
the token is invalid, so a new one is asked for
the password is required
the token is base64-encoded-json-web-token-v2
the secret is to keep functions short
token 12043 of 4096 is out of range
an API key is needed: see docs/keys2.md
the password is case-insensitive
the token is 3f2504e0
the secret is s.makeKubeConfigController2
vault uses s.AcceptanceTimeoutSecondsNow
facebook 2024-05-01 12:00:00|some-text-that-goes-on-and-on
kind: Secret
"password": "string?",
<token>the-token-of-the-service</token>
{"AWS::ApiGateway::ApiKey": "48205d4ffd7feba3"}
"""


@pytest.mark.parametrize("line", SAID.splitlines())
def test_what_is_only_said_of_secrets_is_left_alone(line: str) -> None:
    assert redact_text(line, {}) == line


def test_tokens_in_odd_places_are_known() -> None:
    token = fill("eyJ<a24>.eyJ<a40>.<w43>", 1)
    inside = base64.b64encode(token.encode()).decode()
    value = base64.b64encode(fill("<a24>", 1).encode()).decode()
    manifest = f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\ndata:\n  pass: {value}\n"
    above = f"data:\n  pass: {value}\nkind: Secret\n"
    old_vault = fill("s.<a24>", 2)
    facebook = fill("<d16>|<w27>", 1)
    airtable = fill("pat<a14>.<h64>", 1)
    for text, secret in (
        (f"x: {inside}", inside),
        (manifest, value),
        (f"---\n{above}", value),
        (f"VAULT_ADDR=http://v\nvault login {old_vault}\n", old_vault),
        (f"facebook {facebook}", facebook),
        (f"# airtable\nkey: {airtable}\n", airtable),
        ('<add key="ClearTextPassword" value="hunter2!x" />', "hunter2!x"),
        (f"BUNDLE_ENTERPRISE__CONTRIBSYS__COM={fill('<h8>:<h8>', 3)}", fill("<h8>:<h8>", 3)),
        (f"bundle_gems__contribsys__com = '{fill('<h8>:<h8>', 3)}'", fill("<h8>:<h8>", 3)),
        ("'secret_key' => 'sk_r0n4.{ANiVMdR^iN19_Q[m.ez&P,;'", "sk_r0n4.{ANiVMdR^iN19_Q[m.ez&P,;"),
        ("xoxr-KipxEoGqcI", "xoxr-KipxEoGqcI"),
        (f"mcp__github__{fill('AKIA<t16>', 1)}", fill("AKIA<t16>", 1)),
    ):
        assert is_found(text, secret), text


def test_a_digest_is_no_secret() -> None:
    for line in (
        "4b1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d",
        "EAAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BB",
        "sha256:9f8f1515c2b0c1c1b8a7d6e5f4a3b2c1d0e9f8a79f8f1515c2b0c1c1b8a7d6e5",
    ):
        assert list(find_secrets(line.encode())) == []
