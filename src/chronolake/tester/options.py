"""The options of a test run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from chronolake.errors import ConfigurationError
from chronolake.tester.connector_types import DEFAULT_LOG_ROWS
from chronolake.tester.definition import VendorVersion
from chronolake.tester.files import Compression, FileFormat
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_SCHEMA: Final = "tester"
#: A host name or address (IPv6 in brackets) with a port, or a Unix socket.
_TARGET: Final = re.compile(r"(dns:/{0,3})?(\[[^]]+\]|[^]:/[]+):(?P<port>[0-9]{1,5})|unix:.+")
_LAST_PORT: Final = 65_535
_CONFIGURATION: Final = TypeAdapter(dict[str, str])


class FlushMode(StrEnum):
    """When the rows of a scenario's operations are sent.

    `merged` sends all rows in one request per table and the truncates after that, as the vendor's
    tester does. `sequential` sends the collected rows before each truncate.
    """

    MERGED = "merged"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run.

    Attributes:
        target: `host:port` of the destination.
        configuration: the values of the configuration form; part of every request.
        schema: name of the schema of the tables.
        schema_per_file: whether each scenario gets its own schema, `<schema>_<scenario>`.
        tester_version: the tester version whose `_fivetran_deleted` rule is applied.
        mode: when rows are sent.
        format: format of the batch files; None uses the destination's preference (Capabilities).
        compression: compression of the batch files.
        encrypted: whether the batch files are encrypted.
        split: the number of files for the rows of one kind.
        minimal_deletes: reduce delete files to the key (and `_fivetran_end` with history).
        replay: send every write twice.
        strict_migrations: count an `unsupported` migration as a failure.
        accepted_types: for a declared type, another type that may be described instead.
        shuffle_seed: seed of the order of columns; None uses a random one, which is printed.
        work_dir: folder for the batch files; None uses a temporary folder.
        keep_files: keep the batch files.
        timeout: maximum seconds for one call.
        connect_timeout: seconds to wait for the destination to respond to the first call.
        tls: use TLS.
        ca_certificate: PEM file with trusted authorities; implies TLS.
        dump_model: the file for the expected contents as JSON.
        json_lines: report as JSON lines instead of text.
        connectors: names of connectors whose scenarios are played after those of files, each in the
            schema `<schema>_<connector>`; `all` for all of them.
        log_rows: the rows of each large batch of the platform connector's log.
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
    connectors: tuple[str, ...] = ()
    log_rows: int = DEFAULT_LOG_ROWS

    def __post_init__(self) -> None:
        """Raise ConfigurationError if an option is invalid.

        Raises:
            ConfigurationError: the target has no host and port, `split` is less than 1, or the
                schema name is empty.
        """
        found = _TARGET.fullmatch(self.target)
        # gRPC connects to the remainder of a port beyond 65535.
        if found is None or (found["port"] and not 0 < int(found["port"]) <= _LAST_PORT):
            raise ConfigurationError(
                f"--target {self.target!r} is not a host and port.",
                hint="Use HOST:PORT, such as localhost:50052 or [::1]:50052.",
            )
        if self.split < 1:
            raise ConfigurationError("--split must be at least 1.")
        if not self.schema:
            raise ConfigurationError("--schema-name must not be empty.")


def read_configuration(path: Path) -> dict[str, str]:
    """Read a configuration file: one JSON object whose values are strings.

    Raises:
        ConfigurationError: the file cannot be read or has other contents; the message contains no
            values.
    """
    try:
        return _CONFIGURATION.validate_python(json.loads(path.read_bytes()), strict=True)
    except OSError as failure:
        raise ConfigurationError(
            f"The configuration cannot be read: {failure.strerror}.",
            hint="Set --configuration to a JSON file that can be read.",
            file=str(path),
        ) from failure
    except ValidationError as failure:
        first = failure.errors(include_input=False, include_url=False)[0]
        place = ".".join(["$", *(str(step) for step in first["loc"])])
        raise ConfigurationError(
            f"The configuration must be a JSON object of strings; {place} is not valid.",
            hint='Put quotes around every value, such as {"port": "5432"}.',
            file=str(path),
        ) from None
    except ValueError:
        raise ConfigurationError(
            "The configuration is not valid JSON.",
            hint='Use one JSON object of strings, such as {"port": "5432"}.',
            file=str(path),
        ) from None


def parse_accepted_type(text: str) -> tuple[Kind, Kind]:
    """Parse `JSON=STRING`: a declared type, and the type that may be described instead.

    Raises:
        ConfigurationError: the text is invalid.
    """
    declared, _, described = text.partition("=")
    try:
        return Kind(declared.strip().upper()), Kind(described.strip().upper())
    except ValueError:
        raise ConfigurationError(
            f"--accept-type {text!r} does not name two types.", hint="Use the form JSON=STRING."
        ) from None
