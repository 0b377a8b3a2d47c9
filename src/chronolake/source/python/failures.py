"""Errors for exceptions in the code of authors."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from chronolake.errors import SourceError
from chronolake.masking import mask_text

if TYPE_CHECKING:
    from chronolake.masking import Secrets


def failure_of(path: str, failure: Exception, secrets: Secrets) -> SourceError:
    """Return the error for an exception in the code of an author, with its line there."""
    message = f"{type(failure).__name__}: {secrets.mask(mask_text(str(failure)))}"
    own = [
        frame
        for frame in traceback.extract_tb(failure.__traceback__)
        if Path(frame.filename).parent != Path(__file__).parent
    ]
    place = own[-1] if own else None
    return SourceError(
        f"{path} failed with {message}",
        file=None if place is None else f"{Path(place.filename).name}, line {place.lineno}",
        hint="Correct it, and run the sync again: it continues after its last state.",
    )


def describe_failure(failure: Exception) -> str:
    """Return the type and the message of an exception, with secrets masked."""
    return mask_text(f"{type(failure).__name__}: {failure}")
