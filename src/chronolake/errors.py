"""The tree of all errors that Chronolake raises on purpose.

```
ChronolakeError
├── ConfigurationError        chronolake.yml, a flag or an environment variable is wrong
├── ScenarioError             a scenario for `test-destination` is invalid
├── MissingRequirementError   Java, a jar or an optional package is missing
│   └── MissingExtraError     an extra of the package, such as chronolake[ui], is not installed
├── LakeError                 the lake's catalog or folder cannot be used
│   ├── StorageError          a disk is full, or a folder cannot be written
│   │   └── ObjectStoreError  an object store refuses a request, or does not respond
│   ├── CatalogError          a REST catalog refuses a request, or does not respond
│   └── LakeLocationError     the lake or a table was copied or moved
├── TableNotFoundError
├── TableExistsError
├── QueryError                a SQL statement is not read-only, or fails
├── SchemaError               the requested columns are not a valid table schema
│   ├── UnknownColumnError
│   ├── UnsupportedTypeError
│   ├── TypeChangeError       stored values do not fit the new type
│   └── DuplicateKeyError     a new primary key would not be unique
├── SourceError               a source cannot be read, or its data cannot be stored
│   └── BadFileError          files of a data lake cannot be read, or contain unsupported rows
├── TargetError               a target cannot be written, or cannot hold a table
│   ├── TargetChangedError    somebody else has changed a target table
│   └── TargetBusyError       another process publishes the table (retryable)
├── PipelineBusyError         another process runs the pipeline (retryable)
├── LeaseLostError            another process took over the pipeline
├── CallCancelledError        the caller of the destination has disconnected (retryable)
├── StoppingError             the server is stopping and aborted a call (retryable)
├── BatchError                a request that is invalid for every state of the table
│   ├── IncompleteRowsError   landed rows lack their key, time or sequence
│   └── BatchFileError        a batch file cannot be read; nothing was written
│       ├── FileAccessError   missing or unreadable
│       │   └── RefusedPathError  outside the files root, or not a regular file
│       ├── DecryptionError   missing key, wrong key, or a truncated file
│       ├── DecompressionError
│       ├── MalformedFileError  not in the announced format (CSV or Parquet)
│       ├── OversizeError       a row or file is larger than the memory limit
│       └── ValueRefusedError   a value does not fit its column
└── CommitError
    ├── CommitConflictError   another writer committed first (retryable)
    └── CommitUnknownError    the catalog's response was lost, the outcome is unknown (retryable)
```

An error contains what was wrong (`message`), where (`table`, `batch`, `file`, `row`, `column`) and
what to do (`hint`). Messages never contain keys, credentials or cell values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ChronolakeError(Exception):
    """The root of the error tree.

    Attributes:
        message: what was wrong, one sentence.
        hint: what to do about it, or None.
        table: the affected table as `schema.table`, or None.
        batch: identity of the batch, or None.
        file: path of the batch file as it was spelled in the request, or None.
        row: 1-based number of the data row in the file (the header is row 0), or None.
        column: name of the column, or None.
        retryable: whether the same call may succeed later without any change by the caller.
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
        """Return the known ones of table, batch, file, row and column."""
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
        """Return the message and the place, without the hint."""
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
    """Java, a jar or an optional package is missing."""


class MissingExtraError(MissingRequirementError):
    """Packages of an extra are not installed; nothing was done."""


class LakeError(ChronolakeError):
    """The lake's catalog or folder cannot be used."""


class StorageError(LakeError):
    """A disk is full, or a folder or file cannot be written; `file` is its path."""


class ObjectStoreError(StorageError):
    """An object store refuses a request or does not respond; `file` is the object's URL."""


class CatalogError(LakeError):
    """A REST catalog refuses a request, or does not respond."""


class LakeLocationError(LakeError):
    """The lake or a table was copied or moved; nothing was changed."""


class TableNotFoundError(ChronolakeError):
    """The table does not exist."""


class TableExistsError(ChronolakeError):
    """The table already exists."""


class QueryError(ChronolakeError):
    """A SQL statement is not read-only, or fails."""


class SchemaError(ChronolakeError):
    """The requested columns are not a valid table schema."""


class UnknownColumnError(SchemaError):
    """A column does not exist in the table."""


class UnsupportedTypeError(SchemaError):
    """A column's type is not supported."""


class TypeChangeError(SchemaError):
    """Stored values do not fit the new type; the table is unchanged."""


class DuplicateKeyError(SchemaError):
    """A new primary key would not be unique; the table is unchanged."""


class SourceError(ChronolakeError):
    """A source cannot be read, or its data cannot be stored; the table is unchanged."""


class BadFileError(SourceError):
    """Files of a data lake cannot be read, or contain rows that cannot be stored.

    Attributes:
        files: one mapping for each file, with `mark`, `reason` and `column`.
    """

    files: Sequence[Mapping[str, Any]] = ()


class ReplicationProtocolError(SourceError):
    """A server's change stream violates the replication protocol."""


class TargetError(ChronolakeError):
    """A target cannot be written, or cannot hold a table."""


class TargetChangedError(TargetError):
    """Somebody else has changed a target table."""


class TargetBusyError(TargetError):
    """Another process publishes the table; publishing it later is right."""

    retryable = True


class PipelineBusyError(ChronolakeError):
    """Another process runs the pipeline; nothing was done."""

    retryable = True


class LeaseLostError(ChronolakeError):
    """Another process took over the pipeline; unpublished changes were discarded."""


class CallCancelledError(ChronolakeError):
    """The caller cancelled the call, or its deadline has passed; the table is unchanged."""

    retryable = True


class StoppingError(ChronolakeError):
    """The server is stopping and aborted a call; the table is unchanged."""

    retryable = True


class BatchError(ChronolakeError):
    """A request is invalid for every state of the table; the table is unchanged."""


class IncompleteRowsError(BatchError):
    """Rows of files lack their key, their time or their sequence.

    Attributes:
        files: the names of up to 1,000 of these files.
    """

    files: Sequence[str] = ()


class BatchFileError(BatchError):
    """A batch file cannot be read; the table is unchanged."""


class FileAccessError(BatchFileError):
    """The file is missing or unreadable."""


class RefusedPathError(FileAccessError):
    """The file is outside the files root, or is not a regular file."""


class DecryptionError(BatchFileError):
    """The key is missing or wrong, or the file is truncated."""


class DecompressionError(BatchFileError):
    """The file is not a complete stream of the announced compression."""


class MalformedFileError(BatchFileError):
    """The content is not valid for the announced format (CSV or Parquet)."""


class OversizeError(BatchFileError):
    """A row, or a file that must be read as a whole, is larger than the memory limit."""


class ValueRefusedError(BatchFileError):
    """A value does not fit its column."""


class CommitError(ChronolakeError):
    """A change could not be published."""

    retryable = True


class CommitConflictError(CommitError):
    """Another writer committed first, and the write's retries are used up."""


class CommitUnknownError(CommitError):
    """The catalog's response was lost, and the table does not show the outcome of the change."""


class HistoryWarning(UserWarning):
    """A query reads a time before a table kept history: its result may lack records."""


class LakeLocationWarning(UserWarning):
    """A table that is read is outside the opened lake: the lake was copied or moved."""
