"""Typed errors survive the conversion to and from an executor's error text."""

from __future__ import annotations

import base64
import json

import pytest

from chronolake import errors
from chronolake.errors import ChronolakeError, ValueRefusedError
from chronolake.executor_errors import error_of, seal


def test_an_error_round_trips() -> None:
    error = ValueRefusedError(
        "A cell does not fit.",
        hint="Größe 😀 ]",
        table='odd."table"',
        batch="b-1",
        file="/a path/with 'quotes' and ${dollars} {braces} \n 漢字.csv",
        row=12,
        column="c]",
    )
    text = f"Job aborted: Traceback\n  chronolake.X: {seal(error)}\n\tat org.example.Java(1)"
    found = error_of(RuntimeError(text))
    assert type(found) is ValueRefusedError
    assert (found.message, found.hint, found.place) == (error.message, error.hint, error.place)


def test_an_error_is_found_in_a_cause() -> None:
    inner = seal(errors.DecryptionError("No key.", file="f"))
    outer = RuntimeError("outer")
    outer.__cause__ = RuntimeError("middle")
    outer.__cause__.__cause__ = inner
    assert isinstance(error_of(outer), errors.DecryptionError)


def code(parts: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()
    return f"[chronolake-error:{body}]"


@pytest.mark.parametrize(
    "text",
    [
        "nothing here",
        "[chronolake-error:####]",
        "[chronolake-error:abc]",
        code([1]),
        code({"kind": "Exception", "message": "x"}),
        code({"kind": "annotations", "message": "x"}),
        code({"kind": "__builtins__", "message": "x"}),
        code({}),
    ],
)
def test_other_text_holds_no_error(text: str) -> None:
    assert error_of(RuntimeError(text)) is None


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ChronolakeError)
    ],
)
def test_every_error_survives(kind: type[ChronolakeError]) -> None:
    assert type(error_of(seal(kind("m")))) is kind
