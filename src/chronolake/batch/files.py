"""What a request says about its batch files: where they are, and in what form.

Sources: `seeds/destination-connector.txt` ("Batch files", "WriteBatchRequest").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from chronolake.changes import Op


@dataclass(frozen=True, slots=True)
class BatchFile:
    """One file of a request.

    Attributes:
        path: as the request spelled it; errors name the file by it.
        op: the list of the request that it stood in.
        key: the 32 bytes that decrypt it, or None. Never shown.
        root: real path of the folder that the file must lie in when it is opened, or None.
    """

    path: str
    op: Op
    key: bytes | None = field(default=None, repr=False)
    root: str | None = None


@dataclass(frozen=True, slots=True)
class FileForm:
    """How all files of a request are written.

    Attributes:
        format: `csv` or `parquet`.
        compression: `off`, `zstd` or `gzip`, under the encryption.
        encrypted: whether AES-256-CBC lies around the file.
        null_string: the cell text that means NULL, in every kind of file.
        unmodified_string: the cell text that means "keep the stored value", in update files.
            Empty: there is no such text.
    """

    format: Literal["csv", "parquet"]
    compression: Literal["off", "zstd", "gzip"]
    encrypted: bool
    null_string: str
    unmodified_string: str
