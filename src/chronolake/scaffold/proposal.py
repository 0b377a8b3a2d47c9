"""What `chronolake init --from` proposes: pipelines, their streams, and the variables they need."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.scaffold.document import Entry

_REFERENCE: Final = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True)
class Variable:
    """An environment variable that a proposed file references.

    Attributes:
        name: its name.
        purpose: what its value is.
        value: the value, if it is known; it is not written anywhere.
    """

    name: str
    purpose: str
    value: str | None = None


@dataclass(frozen=True)
class ProposedStream:
    """A stream, and what it captures.

    Attributes:
        name: its name in the source.
        table: the table that it writes, as schema.table.
        key: the columns that identify a record.
        cursor: the field of incremental reads, or None.
        capture_method: `every-change`, `observed-changes` or `snapshot-diff`.
        deletes: whether and how deleted records are noticed.
        mode: the mode of its table.
    """

    name: str
    table: str
    key: tuple[str, ...]
    cursor: str | None
    capture_method: str
    deletes: str
    mode: str


@dataclass(frozen=True)
class ProposedPipeline:
    """A pipeline.

    Attributes:
        name: its name.
        source: the entries of its source.
        settings: further entries of the pipeline.
        variables: the environment variables that it needs.
        notes: what is to be known about it, for comments and the terminal.
        steps: what is to be done before its first sync.
        streams: its streams; None: they are not known.
        excluded: streams that cannot be replicated, with the reasons.
    """

    name: str
    source: tuple[Entry, ...]
    settings: tuple[Entry, ...] = ()
    variables: tuple[Variable, ...] = ()
    notes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    streams: tuple[ProposedStream, ...] | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)


def name_from(text: str, default: str = "source") -> str:
    """Return a name for a pipeline: letters, digits and underscores."""
    name = _NO_NAME.sub("_", text).strip("_").lower()
    return name or default


def password_variable(pipeline: str, key: str, value: str, purpose: str) -> Variable:
    """Return the variable of a password, which may already be a reference to one.

    Args:
        pipeline: the pipeline's name.
        key: the name of the password's setting.
        value: the password, or the reference.
        purpose: what its value is.
    """
    if (given := _REFERENCE.fullmatch(value)) is not None:
        return Variable(given[1], purpose, os.environ.get(given[1]))
    return Variable(variable_name(pipeline, key), purpose, value)


def variable_name(*parts: str) -> str:
    """Return the name of an environment variable."""
    name = "_".join(_NO_NAME.sub("_", part).strip("_") for part in parts if part).upper()
    # Names with this prefix are settings of a lake, and those with digits are not valid.
    return f"SOURCE_{name}" if name.startswith("CHRONOLAKE") or not name[:1].isalpha() else name
