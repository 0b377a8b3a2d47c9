"""Declarations of streams by decorators: their keys, cursors and how they capture changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chronolake.errors import ConfigurationError
from chronolake.formatting import did_you_mean
from chronolake.source.protocol import CaptureMethod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.types import ColumnType

#: The attribute of a decorated function or class.
_DECLARED: Final = "__chronolake_streams__"
_CAPTURES: Final = {
    "log": CaptureMethod.EVERY_CHANGE,
    "polling": CaptureMethod.OBSERVED_CHANGES,
    "snapshot": CaptureMethod.SNAPSHOT_DIFF,
}
_OPTIONS: Final = ("key", "cursor", "deletes", "capture")

#: What a function yields when its state is valid for everything that it has yielded before.
CHECKPOINT: Final = object()

Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True)
class StreamDeclaration:
    """What an author declares of a stream.

    Attributes:
        key: the fields that identify a record; empty: the whole record does.
        cursor: the field with the time of a record's last change, or None.
        deletes: the field that is set in deleted records, or None.
        capture: how changes are captured.
        types: the declared types of its fields.
        table: the table's name unless the configuration sets one; None: the stream's name.
    """

    key: tuple[str, ...] = ()
    cursor: str | None = None
    deletes: str | None = None
    capture: CaptureMethod = CaptureMethod.SNAPSHOT_DIFF
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    table: str | None = None

    @classmethod
    def of(
        cls,
        *,
        key: str | Sequence[str] | None = None,
        cursor: str | None = None,
        deletes: str | None = None,
        capture: str | None = None,
    ) -> StreamDeclaration:
        """Return the declaration for options as authors write them.

        Raises:
            ConfigurationError: an option is not valid.
        """
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        method = capture or ("snapshot" if cursor is None else "polling")
        if method not in _CAPTURES:
            raise ConfigurationError(
                f"A stream's capture cannot be {method!r}.",
                hint=did_you_mean(method, _CAPTURES, f"Set one of {', '.join(_CAPTURES)}."),
            )
        if deletes is not None and not keys:
            raise ConfigurationError(
                "A stream that reports deleted records needs a key.",
                hint="Set key to the fields that identify a record.",
            )
        if deletes is not None and method == "snapshot":
            raise ConfigurationError(
                "A stream whose runs yield all records cannot mark deleted ones: a record that is "
                "missing was deleted.",
                hint='Leave such records out, or set capture to "polling" or "log".',
            )
        return cls(keys, cursor, deletes, _CAPTURES[method])


def stream(
    *,
    name: str | None = None,
    key: str | Sequence[str] | None = None,
    cursor: str | None = None,
    deletes: str | None = None,
    capture: str | None = None,
) -> Callable[[Target], Target]:
    """Declare that a function, generator or class yields the records of a stream.

    It may have parameters of the names of `source.config`, and a parameter `state`: a dictionary
    that JSON can represent. It is stored when the function has ended, and at each `CHECKPOINT`.

    Args:
        name: the stream's name. Default: the name of the function or class.
        key: the field or fields that identify a record. Default: the whole record.
        cursor: the field with the time of a record's last change: a record's version begins then,
            and not when it was read.
        deletes: the field that is set in records that were deleted: true, a number that is not 0,
            or a time; null, false, 0 and an empty text are not set.
        capture: `snapshot` if each run yields all records (the default without a cursor), so that
            missing ones were deleted; `polling` if it yields those that have changed since the
            state (the default with a cursor); `log` if each record is a change of its own.

    Returns:
        A decorator that returns its argument.

    Raises:
        ConfigurationError: an option is not valid.
    """
    declaration = StreamDeclaration.of(key=key, cursor=cursor, deletes=deletes, capture=capture)

    def declare(target: Target) -> Target:
        setattr(target, _DECLARED, {name or target.__name__: declaration})
        return target

    return declare


def streams(**options: Mapping[str, Any]) -> Callable[[Target], Target]:
    """Declare that a function, generator or class yields the records of several streams.

    It yields pairs of a stream's name and its records, and its state is that of all streams.

    Args:
        options: for each stream the options `key`, `cursor`, `deletes` and `capture` of `stream`.

    Returns:
        A decorator that returns its argument.

    Raises:
        ConfigurationError: an option is not valid.
    """
    found = {}
    for name, given in options.items():
        for option in given:
            if option not in _OPTIONS:
                raise ConfigurationError(
                    f"The stream {name} has an unknown option {option!r}.",
                    hint=did_you_mean(option, _OPTIONS, f"It has {', '.join(_OPTIONS)}."),
                )
        found[name] = StreamDeclaration.of(**given)

    def declare(target: Target) -> Target:
        setattr(target, _DECLARED, found)
        return target

    return declare


def declarations_of(target: object) -> Mapping[str, StreamDeclaration] | None:
    """Return the streams that a function or class declares, by name; None if it declares none."""
    found: Mapping[str, StreamDeclaration] | None = getattr(target, _DECLARED, None)
    return found
