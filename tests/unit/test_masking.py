"""Masking: which parts of a text look like a secret, and which do not."""

from __future__ import annotations

import re
import time

import pytest
from pydantic import ValidationError

from chronolake.config import CatalogConfig
from chronolake.errors import ConfigurationError, SourceError
from chronolake.masking import holds_secret, is_broken_by_password, mask_text
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.mysql import connection as mysql_connection
from chronolake.source.postgres.connection import connect


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:hunter2@example.org/x", "https://•••@example.org/x"),
        ("https://me:hun/ter@2@example.org/x", "https://•••@example.org/x"),
        ("jdbc:oracle:thin:me/hunter2@//h:1521/x", "jdbc:oracle:thin:•••@//h:1521/x"),
        ("https://h/?a=1&key=hunter2&b=2", "https://h/?a=1&key=•••&b=2"),
        ("AccountKey=hunter2==;EndpointSuffix=x", "AccountKey=•••;EndpointSuffix=x"),
        ("password = hunter2", "password = •••"),
        ("Authorization: Bearer hunter2", "Authorization: ••• •••"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("monkey=banana", "monkey=banana"),
        ('[{"names": ["password"]}]', '[{"names": ["password"]}]'),
    ],
)
def test_secrets_are_masked_and_nothing_else(text: str, shown: str) -> None:
    assert mask_text(text) == shown


@pytest.mark.parametrize(
    "part", ["a", "://", "://a:", "@://a:", "token", "token ", "&key=", "thin:@", '"password": "']
)
def test_no_long_text_takes_long(part: str) -> None:
    text = part * (200_000 // len(part))
    begun = time.process_time()
    mask_text(text)
    holds_secret(text)
    assert time.process_time() - begun < 5


_PASSWORDS = ["fox@yak", "fox/yak", "fox@yak/elk", "fox@yak@elk", "fox#yak@elk", "fox/yak?elk",
              "12?yak", "fox%40yak", "fox", "fox:yak"]  # fmt: skip


@pytest.mark.parametrize("password", _PASSWORDS)
@pytest.mark.parametrize("scheme", ["postgresql", "https"])
def test_no_part_of_a_password_in_an_address_is_shown(password: str, scheme: str) -> None:
    address = f"{scheme}://user:{password}@db.example:5432/lake"
    parts = [part for part in re.split(r"[@/?#:]", password) if part]

    assert is_broken_by_password(address) == any(sign in password for sign in "@/?#")
    own = f"postgresql://user:{password}@127.0.0.1:1/lake"
    with pytest.raises(SourceError) as caught, connect(own):
        pass
    shown = [str(caught.value)]
    try:
        mysql_connection.Address.of(f"mysql://user:{password}@127.0.0.1:1/lake")
    except ConfigurationError as failure:
        shown.append(str(failure))
    try:
        shown.append(CatalogConfig(uri=address).label)
    except ValidationError as failure:
        shown.append(str(failure.errors(include_input=False)[0]["msg"]))
    with http_client() as client:
        shown.append(Network(client).redact_url(address))
    for text in shown:
        assert not any(part in text for part in parts if part.isalpha())


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://db.example/lake?application_name=a@b",
        "postgresql://user@db.example/lake",
        "postgresql://user:p@db.example:5432/lake?options=-c%20a",
    ],
)
def test_an_address_that_is_whole_is_not_refused(address: str) -> None:
    assert not is_broken_by_password(address)
