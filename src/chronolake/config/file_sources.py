"""Sources that are files: records and events, dated copies of tables, and tables of versions."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from chronolake.config.section import Section
from chronolake.config.sections import CatalogConfig, check_location
from chronolake.config.storage import StorageConfig  # noqa: TC001 - pydantic reads it
from chronolake.errors import SchemaError
from chronolake.types import ColumnType, TableName

_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d+)?) ?%")
_WHOLE: Final = 100.0
_SFTP: Final = "sftp://"


class FileFormat(StrEnum):
    """The format of files, which may be compressed."""

    PARQUET = "parquet"
    AVRO = "avro"
    CSV = "csv"
    #: A JSON object on each line.
    JSON_LINES = "jsonl"
    #: An Iceberg table; not for `files`.
    ICEBERG = "iceberg"
    #: A Delta table; not for `files`.
    DELTA = "delta"


#: Formats of tables with versions, each of which may be a copy.
VERSIONED: Final = frozenset({FileFormat.ICEBERG, FileFormat.DELTA})


def check_time_zone(name: str) -> str:
    """Check the name of a time zone, and return it.

    Raises:
        ValueError: there is no such time zone.
    """
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError("unknown time zone; write a name such as Europe/Berlin") from None
    return name


def _check_share(text: str) -> str:
    found = _PERCENT.fullmatch(text)
    if found is None or float(found[1]) > _WHOLE:
        raise ValueError("write a percentage, such as 20%")
    return text


def _check_types(types: dict[str, str]) -> dict[str, str]:
    for name, text in types.items():
        try:
            ColumnType.parse(text.upper())
        except ValueError:
            raise ValueError(
                f"{text!r} is not a valid type for {name!r}; write one such as LONG, DOUBLE, "
                "DECIMAL(10,2), BOOLEAN, NAIVE_DATE or UTC_DATETIME"
            ) from None
    return types


def check_file_location(path: str) -> str:
    """Check a folder, or the URL of a bucket or SFTP server, and return it.

    Raises:
        ValueError: it is a URL of another scheme, or not a valid one.
    """
    if not path.startswith(_SFTP):
        return check_location(path)
    host, _, _ = path.removeprefix(_SFTP).partition("/")
    user, at, _ = host.rpartition("@")
    if ":" in user:
        raise ValueError("the URL contains a password; set sftp.password instead")
    if not host.removeprefix(user + at) or not host.isprintable():
        raise ValueError("write sftp://user@host/folder")
    try:
        _ = urlsplit(f"{_SFTP}{host}").port
    except ValueError:
        raise ValueError("the URL's port is not a number") from None
    return path


def _check_table_name(name: str) -> str:
    try:
        TableName.parse(name)
    except SchemaError as failure:
        raise ValueError(f"{failure.message} {failure.hint}".rstrip(".")) from None
    return name


def _check_table_folder(path: str) -> None:
    if path.startswith(_SFTP) or {"{", "*"} & set(path):
        raise ValueError("the path of a table is a folder or bucket without placeholders")


class SftpSettings(Section):
    """How an SFTP server is reached."""

    password: str | None = Field(
        default=None,
        min_length=1,
        repr=False,
        description="The user's password. Take it from the environment: ${PASSWORD}.",
    )
    private_key: str | None = Field(
        default=None,
        min_length=1,
        repr=False,
        description="The user's private key: a file, or its content. Default: the keys in ~/.ssh "
        "and of the SSH agent.",
    )
    passphrase: str | None = Field(
        default=None, min_length=1, repr=False, description="The passphrase of the private key."
    )
    known_hosts: str | None = Field(
        default=None,
        min_length=1,
        description="A file with the keys of known servers. Default: ~/.ssh/known_hosts.",
    )
    host_key: str | None = Field(
        default=None,
        min_length=1,
        description="Instead of known_hosts: the server's public key, such as 'ssh-ed25519 AAAA…'.",
    )


class FileSettings(Section):
    """How files are found and read."""

    format: FileFormat | None = Field(
        default=None,
        description="parquet, avro, csv or jsonl (a JSON object on each line). Default: by the "
        "ending of the path: .parquet, .avro, .csv, .tsv, .jsonl, .ndjson or .json; CSV and JSON "
        "with .gz or .zst if compressed. "
        "iceberg or delta, only for copies and history: the path is the folder of a table; each of "
        "its snapshots or versions is a copy.",
    )
    delimiter: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="The character between two values of a CSV file. Default: a comma; a tab for "
        ".tsv.",
    )
    types: Annotated[dict[str, str], AfterValidator(_check_types)] = Field(
        default_factory=dict,
        description="Types of columns in CSV and JSON files, keyed by their names: LONG, DOUBLE, "
        "DECIMAL(10,2), BOOLEAN, NAIVE_DATE, UTC_DATETIME. Default: STRING for CSV, and for JSON "
        "the types of the values.",
    )
    storage: StorageConfig | None = Field(
        default=None,
        description="How the object store is reached. Default: as that of the lake.",
    )
    sftp: SftpSettings | None = Field(
        default=None, description="How the server of a path sftp://user@host/folder is reached."
    )

    def column_types(self) -> dict[str, ColumnType]:
        """Return the types of columns by name."""
        return {name: ColumnType.parse(text.upper()) for name, text in self.types.items()}


def _imply_iceberg(values: Any) -> Any:
    """Set the format of sources that name a table of a catalog."""
    if isinstance(values, dict) and values.get("format") is None:
        tables = values.get("tables")
        sections = [values, *(tables.values() if isinstance(tables, dict) else ())]
        if any(isinstance(given, dict) and given.get("table") for given in sections):
            return {**values, "format": FileFormat.ICEBERG}
    return values


class TableSettings(FileSettings):
    """How files, or tables of Iceberg and Delta, are found and read."""

    catalog: Annotated[CatalogConfig, BeforeValidator(CatalogConfig.section_of)] | None = Field(
        default=None,
        description="The catalog of Iceberg tables that are named by `table`, with the keys of "
        "lake.catalog, or its URI. Default: the catalog of the lake.",
    )

    @model_validator(mode="before")
    @classmethod
    def _imply_format(cls, values: Any) -> Any:
        return _imply_iceberg(values)

    def expect_places(self, *places: tuple[str | None, str | None]) -> None:
        """Check where tables are.

        Args:
            places: a path and a table of a catalog each.

        Raises:
            ValueError: both are set, or one does not fit the format.
        """
        has_tables = False
        for path, table in places:
            has_tables |= table is not None
            if path is not None and table is not None:
                raise ValueError("set path, or table: the name of a table in a catalog")
            if table is not None and self.format is not FileFormat.ICEBERG:
                raise ValueError("table is only for the format iceberg")
            if path is not None and self.format in VERSIONED:
                _check_table_folder(path)
        if self.catalog is not None and not has_tables:
            raise ValueError("catalog needs table: the name of a table, such as gold.orders")


class CopiesTable(Section):
    """A table of which there are dated copies."""

    table: Annotated[str, AfterValidator(_check_table_name)] | None = Field(
        default=None,
        min_length=1,
        description="Instead of a path: the name of an Iceberg table in the source's catalog.",
    )

    path: Annotated[str, AfterValidator(check_file_location)] | None = Field(
        default=None,
        min_length=1,
        description="The path of the table's copies. Default: that of the source.",
    )
    key: list[str] | None = Field(
        default=None,
        min_length=1,
        description="The columns that identify a row. Default: those of the source.",
    )


class CopiesSource(TableSettings):
    """Dated copies of tables: files or folders with a date in their path, or table versions."""

    type: Literal["copies"]
    table: Annotated[str, AfterValidator(_check_table_name)] | None = Field(
        default=None,
        min_length=1,
        description="Instead of a path: the name of an Iceberg table in `catalog`, each of whose "
        "snapshots is a copy, such as gold.orders.",
    )
    path: Annotated[str, AfterValidator(check_file_location)] | None = Field(
        default=None,
        min_length=1,
        description="The path of the copies with their date, such as "
        "dumps/orders_{date:%Y-%m-%d}.parquet. {stream} is the name of a table, and * matches any "
        "characters. All files with the same date are one copy. A folder, s3://bucket/path, "
        "gs://bucket/path or abfss://container@account.dfs.core.windows.net/path. A relative path "
        "is resolved against the folder of chronolake.yml.",
    )
    key: list[str] | None = Field(
        default=None, min_length=1, description="The columns that identify a row."
    )
    stream: str | None = Field(
        default=None,
        min_length=1,
        description="The stream's name, if the path has no {stream}. Default: the part of the path "
        "before the date.",
    )
    tables: dict[str, CopiesTable] | None = Field(
        default=None,
        min_length=1,
        description="The tables to replicate, keyed by name, with a path or key of their own. "
        "Default: all tables that {stream} matches.",
    )
    time_zone: Annotated[str, AfterValidator(check_time_zone)] = Field(
        default="UTC", description="Time zone of dates without an offset, such as Europe/Berlin."
    )
    min_rows: int = Field(
        default=1,
        ge=0,
        description="A copy with fewer rows is rejected. 0 accepts an empty copy, which deletes "
        "all records.",
    )
    max_deleted: Annotated[str, AfterValidator(_check_share)] | None = Field(
        default=None,
        description="A copy that lacks more than this share of the rows of the copy before it is "
        "rejected: 20%. Default: no limit.",
    )

    @property
    def most_deleted(self) -> float | None:
        """Return the greatest share of deleted rows as a fraction."""
        found = None if self.max_deleted is None else _PERCENT.fullmatch(self.max_deleted)
        return None if found is None else float(found[1]) / _WHOLE

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        tables = (self.tables or {}).values()
        self.expect_places(
            (self.path, self.table), *((known.path, known.table) for known in tables)
        )
        if self.table is not None and self.tables:
            raise ValueError("set table, or tables with a table each")
        return self

    @model_validator(mode="after")
    def _check_paths_and_keys(self) -> Self:
        tables = self.tables or {}
        if self.path is None and self.table is None and not tables:
            raise ValueError("set path, or tables with a path each")
        if not tables and self.key is None:
            raise ValueError("set key: the columns that identify a row")
        for name, table in tables.items():
            has_place = table.path is not None or table.table is not None
            if not has_place and self.path is None:
                raise ValueError(f"the table {name!r} has no path")
            if not has_place and "{stream}" not in (self.path or ""):
                raise ValueError(f"the path has no {{stream}}; set a path for the table {name!r}")
            if table.key is None and self.key is None:
                raise ValueError(f"the table {name!r} has no key")
        if self.stream is not None and (tables or "{stream}" in (self.path or "")):
            raise ValueError("stream names a single table; remove it, or tables and {stream}")
        return self


class HistorySource(TableSettings):
    """An existing table of versions, such as a dbt snapshot, as the history of a table."""

    type: Literal["history"]
    path: Annotated[str, AfterValidator(check_file_location)] | None = Field(
        default=None,
        min_length=1,
        description="The table's files: a file, a folder, or a path with *. With the format "
        "iceberg or delta, the folder of a table; or the metadata file of an Iceberg table, "
        "….metadata.json. In a folder, or s3://bucket/path, gs://bucket/path or "
        "abfss://container@account.dfs.core.windows.net/path. A relative path is resolved against "
        "the folder of chronolake.yml.",
    )
    table: Annotated[str, AfterValidator(_check_table_name)] | None = Field(
        default=None,
        min_length=1,
        description="Instead of a path: the name of an Iceberg table in `catalog`, such as "
        "snapshots.customers.",
    )
    stream: str = Field(min_length=1, description="The stream's name, and that of its table.")
    key: list[str] = Field(min_length=1, description="The columns that identify a record.")
    start: str = Field(
        min_length=1,
        description="The column with the time from which a version is valid: dbt_valid_from, "
        "_fivetran_start, __START_AT.",
    )
    end: str = Field(
        min_length=1,
        description="The column with the time up to which a version is valid: dbt_valid_to, "
        "_fivetran_end, __END_AT. Null, or a time in the year 9999: the version is active.",
    )
    deleted: str | None = Field(
        default=None,
        min_length=1,
        description="A column that is true in versions that stand for deleted records, such as "
        "dbt_is_deleted.",
    )
    exclude: list[str] = Field(
        default_factory=list,
        description="Columns that are not imported. Columns whose names begin with _fivetran_ and "
        "dbt_scd_id, dbt_valid_from, dbt_valid_to, dbt_updated_at and dbt_is_deleted never are.",
    )
    time_zone: Annotated[str, AfterValidator(check_time_zone)] = Field(
        default="UTC",
        description="Time zone of times without an offset, such as Europe/Berlin.",
    )

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        self.expect_places((self.path, self.table))
        if self.path is None and self.table is None:
            raise ValueError("set path, or table")
        return self

    @property
    def location(self) -> str:
        """Return the table's path, or its name."""
        return self.path or self.table or ""


class FilesSource(FileSettings):
    """Files with records or events, each of which is read once."""

    type: Literal["files"]
    path: Annotated[str, AfterValidator(check_file_location)] = Field(
        min_length=1,
        description="The path of the files, such as exports/{stream}/*.csv.gz. {stream} is the "
        "name of a table, * matches any characters, and {date:%Y-%m-%d} is the time of the file's "
        "rows. A folder, s3://bucket/path, gs://bucket/path or "
        "abfss://container@account.dfs.core.windows.net/path. A relative path is resolved against "
        "the folder of chronolake.yml.",
    )
    key: list[str] | None = Field(
        default=None,
        min_length=1,
        description="The columns that identify a record. Default: each row is an event of its own, "
        "which its file and row number identify (source_file, source_row).",
    )
    stream: str | None = Field(
        default=None,
        min_length=1,
        description="The stream's name, if the path has no {stream}. Default: the part of the path "
        "before the first placeholder or *.",
    )
    modified: str | None = Field(
        default=None,
        min_length=1,
        description="The column with the time of a row's change. Default: the date in the path; "
        "without one, the time when the file was written.",
    )
    deleted: str | None = Field(
        default=None,
        min_length=1,
        description="A column that is true in rows whose record was deleted. Files may lack it.",
    )
    time_zone: Annotated[str, AfterValidator(check_time_zone)] = Field(
        default="UTC",
        description="Time zone of times and dates without an offset, such as Europe/Berlin.",
    )

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.format in VERSIONED:
            raise ValueError(
                f"the format {self.format} is only supported for sources of the types copies "
                "and history"
            )
        if self.deleted is not None and self.key is None:
            raise ValueError("deleted needs a key: only records can be deleted")
        if self.stream is not None and "{stream}" in self.path:
            raise ValueError("stream names a single table; remove it, or {stream}")
        return self
