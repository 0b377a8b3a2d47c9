"""The section `targets` of chronolake.yml: databases that get copies of the lake's tables."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, field_validator

from chronolake.config.section import Section
from chronolake.schedule import Timing

#: Characters of PostgreSQL's longest identifier.
_LONGEST_NAME: Final = 63


class _Target(Section):
    """What all targets have."""

    tables: list[str] = Field(
        min_length=1,
        description="The tables of the lake to publish, as schema.table; * and ? match any "
        "characters.",
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="Names in the target that differ from the lake's, keyed by schema.table: "
        "`orders`, or for PostgreSQL also `schema.orders`.",
    )
    every: str | None = Field(
        default=None,
        description="When `up` and `serve` publish: an interval (30s, 5m, 1h), or a cron "
        "expression in UTC. Default: after each change of a table.",
    )

    @field_validator("every")
    @classmethod
    def _check_every(cls, every: str | None) -> str | None:
        if every is not None:
            Timing.parse(every)
        return every


class _RelationalTarget(_Target):
    """What targets in relational databases have."""

    detect_changes: bool = Field(
        default=True,
        description="Whether triggers record changes of target tables by others. Without them, "
        "only dropped, emptied and altered tables, and rows that are not as published, are "
        "noticed.",
    )


class PostgresTarget(_RelationalTarget):
    """A PostgreSQL database that gets tables of the lake."""

    type: Literal["postgres"]
    dsn: str = Field(
        min_length=1,
        repr=False,
        description="The database's address as libpq accepts it: "
        "postgresql://user:${PASSWORD}@host:5432/database.",
    )
    schema_: str | None = Field(
        default=None,
        alias="schema",
        min_length=1,
        max_length=_LONGEST_NAME,
        description="The schema of the target tables. Default: the schema of each table in the "
        "lake. It is created if it does not exist.",
    )
    state_schema: str = Field(
        default="chronolake",
        min_length=1,
        max_length=_LONGEST_NAME,
        description="The schema of Chronolake's own tables in the target.",
    )


class MysqlTarget(_RelationalTarget):
    """A database of a MySQL or MariaDB server that gets tables of the lake."""

    type: Literal["mysql"]
    dsn: str = Field(
        min_length=1,
        repr=False,
        description="The database's address: mysql://user:${PASSWORD}@host:3306/database, with "
        "the options of sources of the type `mysql`. All target tables are in this database.",
    )


class KafkaTarget(_Target):
    """Apache Kafka, which `check` knows by its limits only: nothing is published to it."""

    type: Literal["kafka"]
    servers: str = Field(min_length=1, description="The bootstrap servers.")


RelationalTarget: TypeAlias = PostgresTarget | MysqlTarget
TargetConfig: TypeAlias = Annotated[
    PostgresTarget | MysqlTarget | KafkaTarget, Field(discriminator="type")
]
