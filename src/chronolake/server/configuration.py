"""The setup form: what a customer may choose, and the tests that the form offers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake import table
from chronolake.protos import common_pb2
from chronolake.types import SYNCED, Column, ColumnType, Kind, TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chronolake.lake import Lake

SCHEMA_PREFIX: Final = "schema_prefix"
PROBE_SCHEMA: Final = "chronolake_setup_test"
_PROBE_COLUMNS: Final = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column(SYNCED, ColumnType(Kind.UTC_DATETIME)),
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What one customer chose.

    Attributes:
        schema_prefix: text put before the name of every schema, "" by default.
    """

    schema_prefix: str = ""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Configuration:
        """Read the values that come with every request.

        A value that is missing or empty means its default. Keys that are not in the form are
        ignored: a saved form may be older or newer than this server.
        """
        # A message's map creates what is asked for by [], hence the test.
        prefix = values[SCHEMA_PREFIX] if SCHEMA_PREFIX in values else ""  # noqa: SIM401
        return cls(schema_prefix=prefix)


def form() -> common_pb2.ConfigurationFormResponse:
    """The setup form. The lake itself is not in it: whoever runs the server chooses that."""
    return common_pb2.ConfigurationFormResponse(
        schema_selection_supported=True,
        table_selection_supported=True,
        fields=[
            common_pb2.FormField(
                name=SCHEMA_PREFIX,
                label="Schema prefix",
                required=False,
                description="Text that is put before the name of every schema, to keep several "
                "connections apart in one lake.",
                text_field=common_pb2.PlainText,
                placeholder="team_a_",
            )
        ],
        tests=[
            common_pb2.ConfigurationTest(name=name, label=label)
            for name, (label, _) in TESTS.items()
        ],
    )


def _reads(lake: Lake) -> None:
    lake.tables()


def _writes(lake: Lake) -> None:
    probe = TableName(PROBE_SCHEMA, f"probe_{secrets.token_hex(8)}")
    table.create(lake, probe, _PROBE_COLUMNS)
    lake.catalog.drop(probe, purge=True)


#: The tests by name: the label in the form, and what raises when the test does not hold.
TESTS: Final[dict[str, tuple[str, Callable[[Lake], None]]]] = {
    "connection": ("The lake's catalog can be read", _reads),
    "write": ("Tables can be created and removed", _writes),
}
