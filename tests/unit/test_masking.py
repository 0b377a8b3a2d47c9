"""What looks like a secret in a text, and what does not."""

from __future__ import annotations

import time

import pytest

from chronolake.masking import holds_secret, masked_text


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
    assert masked_text(text) == shown


@pytest.mark.parametrize(
    "part", ["a", "://", "://a:", "@://a:", "token", "token ", "&key=", "thin:@", '"password": "']
)
def test_no_long_text_takes_long(part: str) -> None:
    text = part * (200_000 // len(part))
    begun = time.process_time()
    masked_text(text)
    holds_secret(text)
    assert time.process_time() - begun < 5
