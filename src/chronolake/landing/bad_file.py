"""Bad files of a data lake, and their quarantine (dead letters): they cannot be read or applied."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

import orjson

from chronolake.errors import BadFileError, ChronolakeError, IncompleteRowsError
from chronolake.landing.layout import rank_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chronolake.landing.layout import DataFile

#: Table property: the files that were skipped for this table, as JSON.
QUARANTINED_PROPERTY: Final = "chronolake.quarantined"

# Spark reports the file, and Java's causes contain the reason, the innermost last.
_FILE: Final = re.compile(r"error while reading file (\S+?\.parquet)\b")
_CAUSE: Final = re.compile(r"^\s*Caused by: [\w.$]*?(\w+)(?:: ([^\n]*))?$", re.MULTILINE)
# Failures that can be fixed without another file: the file itself is not bad.
_LOST: Final = re.compile(r"FILE_NOT_EXIST|Permission denied|Input/output error|AccessControl")
_RESTORE: Final = (
    "Restore the file. A source of type data_lake skips such files if it has `on_bad_file: "
    "quarantine`."
)


@dataclass(frozen=True)
class BadFile:
    """A file that was skipped for a table.

    Attributes:
        mark: the file, as in a watermark.
        reason: the reason why it cannot be read or applied; never contains a cell's value.
        column: the affected column, or None.
    """

    mark: str
    reason: str
    column: str | None = None


@dataclass(frozen=True)
class Quarantine:
    """The files that were skipped for a table.

    Attributes:
        files: the files, in the order in which they were written.
    """

    files: tuple[BadFile, ...] = ()

    @classmethod
    def from_json(cls, text: str | None) -> Self:
        """Return the value of a table's property; empty for None."""
        return cls(tuple(BadFile(**reported) for reported in orjson.loads(text or "[]")))

    def to_json(self) -> str:
        """Return the value of `QUARANTINED_PROPERTY`."""
        reported = [
            {name: value for name, value in vars(file).items() if value is not None}
            for file in self.files
        ]
        return orjson.dumps(reported).decode()

    @property
    def marks(self) -> frozenset[str]:
        """Return the files as watermarks."""
        return frozenset(file.mark for file in self.files)

    def with_files(self, files: Iterable[BadFile]) -> Self:
        """Return a copy with more files; existing files keep their first reason."""
        by_mark = {file.mark: file for file in (*files, *self.files)}
        return type(self)(tuple(by_mark[mark] for mark in sorted(by_mark, key=rank_of)))

    def without(self, files: Iterable[DataFile]) -> Self:
        """Return a copy without files that could be read after all."""
        read = {file.mark for file in files}
        return type(self)(tuple(file for file in self.files if file.mark not in read))

    def readable(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Return the files that are not in quarantine."""
        marks = self.marks
        return [file for file in files if file.mark not in marks]


def bad_file_error(files: Sequence[DataFile], bad: Sequence[BadFile]) -> BadFileError:
    """Return the error about files that cannot be read, with the first file and their number.

    Args:
        files: files of the lake, including the bad ones.
        bad: the bad files, at least one.
    """
    first = bad[0]
    path = next((str(file.path) for file in files if file.mark == first.mark), first.mark)
    more = f" {len(bad) - 1:,} more files cannot be read either." if len(bad) > 1 else ""
    error = BadFileError(f"{first.reason}{more}", file=path, column=first.column, hint=_RESTORE)
    error.files = [vars(file) for file in bad]
    return error


def bad_files_in(failure: BaseException, files: Sequence[DataFile]) -> list[BadFile]:
    """Return the files that caused a failure; empty if it has another cause.

    `failure` is the exception from reading or writing the rows of these files.
    """
    if isinstance(failure, BadFileError):
        return [BadFile(**reported) for reported in failure.files]
    if isinstance(failure, IncompleteRowsError):
        incomplete = set(failure.files)
        return [
            BadFile(file.mark, "Rows lack their key, modification time or sequence.")
            for file in files
            if file.path.name in incomplete or file.mark in incomplete
        ]
    by_path = {str(file.path): file for file in files}
    text = _text_of(failure)
    if _LOST.search(text):
        return []
    for found in _FILE.finditer(text):
        file = by_path.get(unquote(urlsplit(found[1]).path)) or by_path.get(unquote(found[1]))
        if file is not None:
            return [BadFile(file.mark, f"The file cannot be read: {_cause_in(text)}.")]
    return []


@contextmanager
def naming_bad_files(files: Sequence[DataFile]) -> Iterator[None]:
    """Convert a failure of reading files into an error with the file and the reason.

    Raises:
        BadFileError: replaces Spark's exception about one of the files.
    """
    try:
        yield
    except ChronolakeError:
        raise
    except Exception as failure:
        bad = bad_files_in(failure, files)
        if bad:
            raise bad_file_error(files, bad) from failure
        raise


def _text_of(failure: Any) -> str:
    """Return the Java message, with its causes."""
    stack = getattr(failure, "_stackTrace", None) or getattr(failure, "stackTrace", None)
    return f"{failure}\n{stack or ''}"


def _cause_in(text: str) -> str:
    causes = _CAUSE.findall(text)
    if not causes:
        return "Spark reported no reason"
    kind, words = causes[-1]
    return f"{words.strip().rstrip('.')} ({kind})" if words.strip() else kind
