"""Errors become texts that fit into a response and contain no secret."""

from __future__ import annotations

from urllib.parse import quote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake import errors
from chronolake.server.calls import (
    STATUS_BYTES,
    describe_failure,
    is_actionable,
    status_of,
    status_text,
    text_of,
)


@given(st.text(st.characters(exclude_categories=[])), st.integers(20, 200))
def test_a_status_text_fits_its_header_and_is_whole_characters(text: str, limit: int) -> None:
    cut = status_text(text * 20, limit)
    assert len(quote(cut, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")) < limit
    assert cut.encode().decode() == cut


def test_a_short_status_text_is_left_alone() -> None:
    text = "x" * (STATUS_BYTES - 100)
    assert status_text(text) == text


@pytest.mark.parametrize(
    ("error", "is_task"),
    [
        (errors.ConfigurationError, True),
        (errors.LakeError, True),
        (errors.TableNotFoundError, True),
        (errors.TableExistsError, True),
        (errors.TypeChangeError, True),
        (errors.DuplicateKeyError, True),
        (errors.BatchError, True),
        (errors.ValueRefusedError, True),
        (errors.OversizeError, True),
        (errors.RefusedPathError, True),
        (errors.FileAccessError, False),
        (errors.DecryptionError, False),
        (errors.DecompressionError, False),
        (errors.MalformedFileError, False),
        (errors.CommitConflictError, False),
        (errors.StoppingError, False),
    ],
)
def test_what_a_user_can_fix_is_a_task(
    error: type[errors.ChronolakeError], *, is_task: bool
) -> None:
    assert is_actionable(error("no")) is is_task


def test_only_what_may_pass_by_itself_is_unavailable() -> None:
    assert status_of(errors.CommitUnknownError("lost")) is grpc.StatusCode.UNAVAILABLE
    assert status_of(errors.MalformedFileError("bad")) is grpc.StatusCode.INTERNAL


def test_credentials_of_a_url_are_not_reported() -> None:
    error = errors.LakeError("postgresql://user:hunter2@db/lake does not answer.")
    assert text_of(error) == "postgresql://db/lake does not answer."


def test_an_unexpected_failure_is_reported_by_type_and_location_only() -> None:
    def fail() -> None:
        status_text(None)  # type: ignore[arg-type]

    try:
        try:
            fail()
        except AttributeError as inner:
            raise ValueError("cell value 4711") from inner
    except ValueError as failure:
        facts = describe_failure(failure)
    assert facts == {"error": "ValueError", "cause": "AttributeError"}
    assert "4711" not in str(facts)
