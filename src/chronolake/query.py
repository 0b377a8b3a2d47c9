"""Read-only queries of a lake in Spark SQL, with results read row by row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    FloatType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from chronolake.errors import QueryError
from chronolake.formatting import Cell, date, instant, plain, single
from chronolake.frames import rename, select
from chronolake.iceberg import java_class_of
from chronolake.types import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.lake import Lake

_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]*)\] *(.*)")
_NAMES: Final = "`chronolake tables --json` lists the names of tables and columns."
#: Hints by the prefix of Spark's error conditions.
_HINTS: Final = {
    "PARSE_": "Write one statement of Spark SQL, such as SELECT * FROM schema.table LIMIT 10.",
    "TABLE_OR_VIEW_NOT_FOUND": _NAMES,
    "SCHEMA_NOT_FOUND": _NAMES,
    "UNRESOLVED_COLUMN": _NAMES,
    "UNRESOLVED_ROUTINE": '`chronolake query "SHOW FUNCTIONS"` lists Spark\'s functions.',
    "FIELD_NOT_FOUND": _NAMES,
    "AMBIGUOUS_REFERENCE": "Qualify the column with the table's name, or write it in its exact "
    "case.",
    "CAST_INVALID_INPUT": "With `try_cast` such values become NULL.",
    "DIVIDE_BY_ZERO": "With `try_divide` the result is NULL.",
}
_CASE: Final = "spark.sql.caseSensitive"
_SCRIPT_ERROR: Final = "SqlScriptingException"
# Statements that are not queries, but only describe tables.
_DESCRIBING: Final = frozenset(
    {
        "DescribeColumn",
        "DescribeFunction",
        "DescribeNamespace",
        "DescribeQueryCommand",
        "DescribeRelation",
        "DescribeRelationJsonCommand",
        "ShowCatalogsCommand",
        "ShowColumns",
        "ShowCreateTable",
        "ShowCurrentNamespaceCommand",
        "ShowFunctions",
        "ShowIcebergViews",
        "ShowNamespaces",
        "ShowNamespacesCommand",
        "ShowPartitions",
        "ShowProceduresCommand",
        "ShowTableProperties",
        "ShowTables",
        "ShowTablesExtended",
        "ShowViews",
    }
)
#: Times within arrays, structs and maps, with all of their digits.
_JSON_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_NESTED: Final = (StructType, ArrayType, MapType)
# Classes of plan nodes that change something, or run nested statements.
_CHANGING: Final = ("Command", "ParsedStatement", "CompoundPlanStatement")


@dataclass(frozen=True)
class QueryResult:
    """The result of a query.

    Attributes:
        columns: the column names; duplicates are numbered from the second on.
        frame: the rows as a Spark DataFrame that has not been read.
    """

    columns: tuple[str, ...]
    frame: DataFrame

    @property
    def nested(self) -> frozenset[str]:
        """Return the names of struct, array and map columns: their cells are JSON texts."""
        fields = zip(self.columns, self.frame.schema, strict=True)
        return frozenset(name for name, field in fields if isinstance(field.dataType, _NESTED))

    def rows(self, limit: int | None = None) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows in order, with one partition in memory at a time.

        Args:
            limit: maximum number of rows; None for all.

        Raises:
            QueryError: Spark fails while it computes the rows.
        """
        frame = self.frame if limit is None else self.frame.limit(limit)
        forms = [_form(field.dataType) for field in frame.schema]
        # Columns are numbered because names may be duplicates, or contain dots and backticks.
        names = [f"c{place}" for place in range(len(forms))]
        cells = [form.format(name) for name, (form, _) in zip(names, forms, strict=True)]
        stored = select(rename(frame, names), cells)
        try:
            for row in stored.toLocalIterator():
                yield tuple(
                    None if value is None else read(value)
                    for value, (_, read) in zip(row, forms, strict=True)
                )
        except (PySparkException, Py4JJavaError) as failure:
            raise _query_error(failure) from failure


def run_query(lake: Lake, statement: str) -> QueryResult:
    """Run one read-only statement of Spark SQL; tables are `schema.table`.

    Column names are case-insensitive unless that would be ambiguous. Only queries, SHOW and
    DESCRIBE are accepted. This prevents mistakes, but it is not a security boundary against
    untrusted SQL, because Spark's functions can do more than read.

    Raises:
        QueryError: the text is not such a statement, or Spark rejects it.
    """
    text = statement.strip().removesuffix(";").strip()
    _expect_read_only(lake.spark, text)
    frame = _analyze(lake.spark, text)
    return QueryResult(_number_duplicates(frame.columns), frame)


def _expect_read_only(spark: SparkSession, text: str) -> None:
    """Raise if the text is not a read-only statement by Spark's own grammar.

    The session's parser accepts any statement, because Iceberg's extension does not distinguish
    queries from others. Spark's plain parser does, but it may stop before the end of the text. So
    the plain parser must accept the text as a query, and the session's plan must not contain
    commands.

    Raises:
        QueryError: the text is not such a statement.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    plain = getattr(jvm.org.apache.spark.sql.catalyst.parser, "CatalystSqlParser$").__getattr__(
        "MODULE$"
    )
    try:
        statement = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # noqa: SLF001
    except ParseException as failure:
        raise _query_error(failure) from failure
    except Py4JJavaError as failure:
        # Spark 4.0 does not run scripts (`BEGIN … END`), and PySpark does not translate its error.
        if not java_class_of(failure).endswith(_SCRIPT_ERROR):
            raise
        raise _refusal() from failure
    if str(statement.getClass().getSimpleName()) in _DESCRIBING:
        return
    try:
        plain.parseQuery(text)
        only_reads = not _commands(jvm, statement)
    except ParseException:
        only_reads = False
    if not only_reads:
        raise _refusal()


def _refusal() -> QueryError:
    return QueryError(
        "Only SELECT, SHOW and DESCRIBE are allowed.",
        hint="Write a single SELECT, SHOW or DESCRIBE statement. Tables are changed by batches and "
        "syncs.",
    )


def _commands(jvm: Any, plan: Any) -> bool:
    """Return whether a parsed plan contains a node that changes something."""
    logical = "org.apache.spark.sql.catalyst.plans.logical"
    kinds = [jvm.java.lang.Class.forName(f"{logical}.{kind}") for kind in _CHANGING]
    open_nodes = [plan]
    while open_nodes:
        node = open_nodes.pop()
        if any(kind.isInstance(node) for kind in kinds):
            return True
        for nodes in (node.children(), node.innerChildren()):
            open_nodes += [
                nodes.apply(place)
                for place in range(nodes.size())
                if hasattr(nodes.apply(place), "innerChildren")
            ]
    return False


def _analyze(spark: SparkSession, text: str) -> DataFrame:
    """Return the query's DataFrame; names are case-sensitive in the first attempt only."""
    kept = spark.conf.get(_CASE)
    try:
        spark.conf.set(_CASE, "true")
        return spark.sql(text)
    except AnalysisException as as_spelled:
        spark.conf.set(_CASE, "false")
        try:
            return spark.sql(text)
        except AnalysisException:
            raise _query_error(as_spelled) from as_spelled
    except PySparkException as failure:
        raise _query_error(failure) from failure
    finally:
        spark.conf.set(_CASE, str(kept))


def _query_error(failure: PySparkException | Py4JJavaError) -> QueryError:
    if isinstance(failure, Py4JJavaError):
        # The failure occurred in a task: the innermost cause is the reason, the others are the
        # context.
        cause = failure.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.getMessage())
    else:
        text = str(failure)
    first = text.strip().partition("\n")[0].partition(" SQLSTATE:")[0]
    named = _CONDITION.match(first)
    condition, message = named.groups() if named else (type(failure).__name__, first)
    hint = next(
        (hint for begin, hint in _HINTS.items() if condition.startswith(begin)),
        "Change the statement, or look the condition up in Spark's documentation.",
    )
    return QueryError(
        f"Spark cannot run the statement ({condition}): {message.rstrip('.;')}.", hint=hint
    )


def _number_duplicates(names: list[str]) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(distinct)


def _form(  # noqa: PLR0911 - one line a type
    kind: DataType,
) -> tuple[str, Callable[..., Cell]]:
    """Return the SQL that reads a column `{}`, and how each value is converted to a cell.

    Times are read as integers, because Python's datetime does not support the ends of the range.
    """
    match kind:
        case TimestampType():
            return "unix_micros({})", instant
        case TimestampNTZType():
            return "unix_micros(CAST({} AS TIMESTAMP))", _naive
        case DateType():
            return "unix_date({})", date
        case FloatType():
            return "{}", single
        case _ if isinstance(kind, _NESTED):
            options = ", ".join(literal(text) for pair in _JSON_TIMES.items() for text in pair)
            return f"to_json({{}}, map({options}))", plain
        case DayTimeIntervalType() | YearMonthIntervalType() | VariantType():
            return "CAST({} AS STRING)", plain
        case _:
            return "{}", plain


def _naive(micros: int) -> str:
    return instant(micros, zone="")
