"""What a run of the tester is asked to do."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from chronolake.errors import ConfigurationError
from chronolake.tester.definition import VendorVersion
from chronolake.tester.files import Compression, FileFormat
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_SCHEMA: Final = "tester"
#: A host or an address, IPv6 in brackets, and its port; or a socket of this machine.
_TARGET: Final = re.compile(r"(dns:/{0,3})?(\[[^]]+\]|[^]:/[]+):[0-9]{1,5}|unix:.+")
_CONFIGURATION: Final = TypeAdapter(dict[str, str])


class FlushMode(StrEnum):
    """When the rows of a scenario's operations are sent.

    `merged` sends all of them in one request a table and the truncates after that, as the vendor's
    tester does; `sequential` sends what has come together before every truncate.
    """

    MERGED = "merged"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveOptions:
    """The options of a run.

    Attributes:
        target: `host:port` of the destination.
        configuration: what a customer has filled in; goes with every request.
        schema: name of the schema that the tables are made in.
        schema_per_file: give every scenario a schema of its own, `<schema>_<scenario>`.
        tester_version: whose rule about `_fivetran_deleted` to follow.
        mode: when rows are sent.
        format: what the batch files hold; None asks the destination (Capabilities).
        compression: how the files are compressed.
        encrypted: whether the files are encrypted.
        split: into how many files the rows of a kind are spread.
        minimal_deletes: reduce delete files to the key (and `_fivetran_end` with history).
        replay: send every write twice.
        strict_migrations: count an `unsupported` migration as a failure.
        accepted_types: for a declared type another one that may be described in its place.
        shuffle_seed: decides about the order of columns; None takes a new one, which is printed.
        work_dir: where the batch files go; None makes a temporary folder.
        keep_files: leave the batch files there.
        timeout: seconds that one call may take.
        connect_timeout: seconds to wait for the destination to answer its first call.
        tls: use TLS.
        ca_certificate: PEM file with the authorities to trust; implies TLS.
        dump_model: where to write the expected contents as JSON.
        json_lines: report as JSON lines instead of text.
    """

    target: str
    configuration: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str = DEFAULT_SCHEMA
    schema_per_file: bool = False
    tester_version: VendorVersion = VendorVersion.V2_26
    mode: FlushMode = FlushMode.MERGED
    format: FileFormat | None = None
    compression: Compression = Compression.ZSTD
    encrypted: bool = True
    split: int = 1
    minimal_deletes: bool = False
    replay: bool = False
    strict_migrations: bool = False
    accepted_types: Mapping[Kind, Kind] = field(default_factory=dict)
    shuffle_seed: int | None = None
    work_dir: Path | None = None
    keep_files: bool = False
    timeout: float = 300.0
    connect_timeout: float = 120.0
    tls: bool = False
    ca_certificate: Path | None = None
    dump_model: Path | None = None
    json_lines: bool = False

    def __post_init__(self) -> None:
        """Refuse what makes no run.

        Raises:
            ConfigurationError: no host and port to call, fewer than one file a kind, or no schema
                name.
        """
        if not _TARGET.fullmatch(self.target):
            raise ConfigurationError(
                f"--target {self.target!r} is no host and port.",
                hint="Write HOST:PORT, such as localhost:50052 or [::1]:50052.",
            )
        if self.split < 1:
            raise ConfigurationError("--split must be at least 1.")
        if not self.schema:
            raise ConfigurationError("--schema-name must not be empty.")


def read_configuration(path: Path) -> dict[str, str]:
    """Read a configuration file: one JSON object, every value a text.

    Raises:
        ConfigurationError: the file cannot be read or is something else; no value is named.
    """
    try:
        return _CONFIGURATION.validate_python(json.loads(path.read_bytes()), strict=True)
    except OSError as failure:
        raise ConfigurationError(
            f"The configuration cannot be read: {failure.strerror}.",
            hint="--configuration names a JSON file.",
            file=str(path),
        ) from failure
    except ValidationError as failure:
        first = failure.errors(include_input=False, include_url=False)[0]
        place = ".".join(["$", *(str(step) for step in first["loc"])])
        raise ConfigurationError(
            f"The configuration must be one JSON object of texts; look at {place}.",
            hint='Put quotes around every value, such as {"port": "5432"}.',
            file=str(path),
        ) from None
    except ValueError:
        raise ConfigurationError(
            "The configuration is not JSON.",
            hint='Write one JSON object of texts, such as {"port": "5432"}.',
            file=str(path),
        ) from None


def accepted_type(text: str) -> tuple[Kind, Kind]:
    """Read `JSON=STRING`: a declared type, and what may be described in its place.

    Raises:
        ConfigurationError: the text is something else.
    """
    declared, _, described = text.partition("=")
    try:
        return Kind(declared.strip().upper()), Kind(described.strip().upper())
    except ValueError:
        raise ConfigurationError(
            f"--accept-type {text!r} does not name two types.", hint="Write JSON=STRING."
        ) from None
