"""Options that contradict each other, or would expose the server, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronolake.errors import ConfigurationError
from chronolake.server import ServeOptions
from chronolake.server.listener import is_loopback

PEM = Path("some.pem")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hosts": ("0.0.0.0",)}, "--allow-plaintext"),
        ({"hosts": ("127.0.0.1", "::")}, "--allow-plaintext"),
        ({"tls_cert": PEM}, "both a certificate"),
        ({"tls_key": PEM}, "both a certificate"),
        ({"tls_client_ca": PEM}, "require TLS"),
        ({"port": 65_536}, "--port"),
        ({"port": -1}, "--port"),
        ({"max_workers": 0}, "--max-workers"),
        ({"grace": -1.0}, "--grace"),
        ({"metrics_port": 70_000}, "--metrics-port"),
        ({"hosts": ()}, "--host"),
        ({"hosts": ("no such host!",)}, "not a valid address"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ServeOptions(**given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"hosts": ("localhost",)},
        {"hosts": ("0.0.0.0", "::"), "allow_plaintext": True},
        {"hosts": ("0.0.0.0",), "tls_cert": PEM, "tls_key": PEM},
    ],
)
def test_options_that_are_safe_or_meant_are_taken(given: dict) -> None:
    assert ServeOptions(**given).port == 50052


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_addresses_are_distinguished_from_others(host: str, *, is_own: bool) -> None:
    assert is_loopback(host) is is_own
