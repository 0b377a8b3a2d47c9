"""Every error that Chronolake raises on purpose, in one tree.

```
ChronolakeError
├── ConfigurationError        chronolake.yml, a flag or an environment variable is wrong
├── ScenarioError             a scenario for `test-destination` is invalid
├── MissingRequirementError   Java, a jar or an optional package is not there
├── LakeError                 the lake's catalog or folder cannot be used
│   ├── StorageError          a disk is full, or a folder cannot be written
│   └── LakeLocationError     the lake, or a table, is not where it belongs: copied or moved
├── TableNotFoundError
├── TableExistsError
├── QueryError                a question in SQL that reads nothing, or cannot be answered
├── SchemaError               the wanted columns make no table
│   ├── UnknownColumnError
│   ├── UnsupportedTypeError
│   ├── TypeChangeError       stored values do not fit the new type
│   └── DuplicateKeyError     a new primary key would not be unique
├── SourceError               a source cannot be read, or gives what cannot be kept
│   └── BadFileError          files of a data lake cannot be read, or hold what cannot be kept
├── PipelineBusyError         another process runs the pipeline (retryable)
├── LeaseLostError            another process took the pipeline over
├── CallCancelledError        the caller of the destination has gone (retryable)
├── StoppingError             the server is stopping and gave a call up (retryable)
├── BatchError                a request that no table state could satisfy
│   ├── IncompleteRowsError   landed rows lack their key, time or sequence
│   └── BatchFileError        a batch file cannot be read; nothing was written
│       ├── FileAccessError   missing or unreadable
│       │   └── RefusedPathError  outside the files root, or no regular file
│       ├── DecryptionError   no key, wrong key, or a truncated file
│       ├── DecompressionError
│       ├── MalformedFileError  not the CSV or Parquet that was promised
│       ├── OversizeError       more in one piece than memory is kept for
│       └── ValueRefusedError   one value does not fit its column
└── CommitError
    ├── CommitConflictError   another writer was first (retryable)
    └── CommitUnknownError    the catalog's answer was lost, the outcome is unknown (retryable)
```

An error says what was wrong (`message`), where (`table`, `batch`, `file`, `row`, `column`) and what
to do (`hint`). Messages never hold keys, credentials or cell values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ChronolakeError(Exception):
    """The root of the tree.

    Attributes:
        message: what was wrong, one sentence.
        hint: what to do about it, or None.
        table: `schema.table` the error is about, or None.
        batch: identity of the batch, or None.
        file: path of the batch file as the request spelled it, or None.
        row: 1-based number of the data row in the file (the header is row 0), or None.
        column: name of the column, or None.
        retryable: whether the same call may succeed later without anybody changing anything.
    """

    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        table: str | None = None,
        batch: str | None = None,
        file: str | None = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.table = table
        self.batch = batch
        self.file = file
        self.row = row
        self.column = column

    @property
    def place(self) -> dict[str, str | int]:
        """Where it happened: the known ones of table, batch, file, row and column."""
        named = {
            "table": self.table,
            "batch": self.batch,
            "file": self.file,
            "row": self.row,
            "column": self.column,
        }
        return {name: value for name, value in named.items() if value is not None}

    @property
    def statement(self) -> str:
        """What was wrong and where, without what to do."""
        where = ", ".join(f"{name} {value!r}" for name, value in self.place.items())
        return f"{self.message} ({where})" if where else self.message

    def __str__(self) -> str:
        return f"{self.statement} {self.hint}" if self.hint else self.statement

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, {"hint": self.hint, **self.place}))


def _rebuild(kind: type[ChronolakeError], message: str, details: dict[str, Any]) -> ChronolakeError:
    return kind(message, **details)


class ConfigurationError(ChronolakeError):
    """chronolake.yml, a flag or an environment variable is wrong."""


class ScenarioError(ChronolakeError):
    """A scenario for `chronolake test-destination` is invalid."""


class MissingRequirementError(ChronolakeError):
    """Java, a jar or an optional package is not there."""


class LakeError(ChronolakeError):
    """The lake's catalog or folder cannot be used."""


class StorageError(LakeError):
    """A disk is full, or a folder or file cannot be written; `file` is its path."""


class LakeLocationError(LakeError):
    """The lake or a table is not where it belongs: it was copied or moved; nothing was changed."""


class TableNotFoundError(ChronolakeError):
    """The table does not exist."""


class TableExistsError(ChronolakeError):
    """The table exists already."""


class QueryError(ChronolakeError):
    """A question in SQL would not only read, or cannot be answered."""


class SchemaError(ChronolakeError):
    """The wanted columns make no table."""


class UnknownColumnError(SchemaError):
    """A column is named that the table does not have."""


class UnsupportedTypeError(SchemaError):
    """A column's type cannot be kept."""


class TypeChangeError(SchemaError):
    """Stored values do not fit the new type; the table is unchanged."""


class DuplicateKeyError(SchemaError):
    """A new primary key would not be unique; the table is unchanged."""


class SourceError(ChronolakeError):
    """A source cannot be read, or gives what cannot be kept; the table is unchanged."""


class BadFileError(SourceError):
    """Files of a data lake cannot be read, or hold rows that cannot be kept.

    Attributes:
        files: each of them: `mark`, `reason` and `column`.
    """

    files: Sequence[Mapping[str, Any]] = ()


class ReplicationProtocolError(SourceError):
    """A server's stream of changes is not understood."""


class PipelineBusyError(ChronolakeError):
    """Another process runs the pipeline; nothing was done."""

    retryable = True


class LeaseLostError(ChronolakeError):
    """Another process took the pipeline over; what this one had not published is not there."""


class CallCancelledError(ChronolakeError):
    """The caller cancelled the call, or its deadline has passed; the table is as it was."""

    retryable = True


class StoppingError(ChronolakeError):
    """The server is stopping and gave a call up; the table is as it was."""

    retryable = True


class BatchError(ChronolakeError):
    """A request that no table state could satisfy; the table is unchanged."""


class IncompleteRowsError(BatchError):
    """Rows of files lack their key, their time or their sequence.

    Attributes:
        files: the names of the first thousand of these files.
    """

    files: Sequence[str] = ()


class BatchFileError(BatchError):
    """A batch file cannot be read; the table is unchanged."""


class FileAccessError(BatchFileError):
    """The file is missing or unreadable."""


class RefusedPathError(FileAccessError):
    """The file lies outside the files root, or is no regular file."""


class DecryptionError(BatchFileError):
    """No key, a wrong key, or a truncated file."""


class DecompressionError(BatchFileError):
    """The file is not a whole stream of the announced compression."""


class MalformedFileError(BatchFileError):
    """The content is not the CSV or Parquet that was promised."""


class OversizeError(BatchFileError):
    """A row, or a file that has to be held as a whole, is larger than memory is kept for."""


class ValueRefusedError(BatchFileError):
    """One value does not fit its column."""


class CommitError(ChronolakeError):
    """A change could not be published."""

    retryable = True


class CommitConflictError(CommitError):
    """Another writer was first, more often than the write was willing to start again."""


class CommitUnknownError(CommitError):
    """The catalog's answer was lost, and the table does not tell what became of the change."""


class HistoryWarning(UserWarning):
    """A question about a time from before a table kept history: the answer may lack records."""


class LakeLocationWarning(UserWarning):
    """A table that is read lies outside the opened lake: the lake was copied or moved."""
