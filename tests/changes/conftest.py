"""A GitHub, and the key of an app, for every test that wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_github import FakeGitHub, serving

from report_example import HEAD


@pytest.fixture
def host() -> Iterator[FakeGitHub]:
    with serving(FakeGitHub(HEAD)) as running:
        yield running


@pytest.fixture(scope="session")
def app_key() -> tuple[bytes, bytes]:
    """A private key of RSA and its public half, as PEM."""
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    forms = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.TraditionalOpenSSL, forms.NoEncryption()
    )
    public = key.public_key().public_bytes(
        forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo
    )
    return private, public
