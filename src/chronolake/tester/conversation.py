"""Calls to the destination: checks of the responses, counts and reports.

Described tables are compared with the model. A report prints one line per call, as text or as JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from rich.console import Console
from rich.text import Text

from chronolake.formatting import format_count
from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.tester import client
from chronolake.tester.client import UNIMPLEMENTED
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from chronolake.tester.client import Answer, Destination
    from chronolake.tester.definition import ColumnSpec, TableDefinition
    from chronolake.tester.model import Model, ModelTable
    from chronolake.tester.options import RunOptions


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed check.

    Attributes:
        what: the subject of the check.
        expected: the expected value.
        actual: the actual value.
    """

    what: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, got {self.actual}"


@dataclass(slots=True)
class CallChecks:
    """The result of the checks of one call.

    Attributes:
        checked: the subjects of the checks, in a few words each.
        failures: the failed checks.
        notices: remarks that are not failures.
    """

    checked: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def expect(self, what: str, expected: object, actual: object) -> bool:
        """Check that two values are equal; return True if they are."""
        self.checked.append(what)
        if expected == actual:
            return True
        self.failures.append(Failure(what, str(expected), str(actual)))
        return False


def check_description(
    description: TableDefinition,
    table: ModelTable,
    *,
    accepted: Mapping[Kind, Kind],
) -> CallChecks:
    """Compare a described table with the expected one, column by column.

    Args:
        description: the destination's description.
        table: the expected table, including retained columns.
        accepted: for a declared type, another type that may be described instead.

    Returns:
        The checks: the set of columns, and for each column its type, its decimal parameters and
        whether it belongs to the key.
    """
    result = CallChecks()
    described_columns = {column.name: column for column in description.columns}
    wanted = {column.name: column for column in table.definition.columns}
    result.checked.append(f"{len(wanted)} columns")
    # One failure for each column: a list would be another finding after each change of the table.
    result.failures += [
        Failure(f"column {name!r}", "in the table", "missing")
        for name in wanted
        if name not in described_columns
    ]
    result.failures += [
        Failure(f"column {name!r}", "not in the table", "described")
        for name in described_columns
        if name not in wanted
    ]
    if len(described_columns) < len(description.columns):
        result.failures.append(Failure("columns", "unique names", "a duplicate name"))
    retained = [name for name in wanted if name not in table.sent]
    if retained:
        result.checked.append(f"{len(retained)} retained columns")
    for name, column in wanted.items():
        actual = described_columns.get(name)
        if actual is not None:
            _check_type(result, column, actual, accepted)
            if actual.key != column.key:
                words = {True: "in the primary key", False: "not in the primary key"}
                result.failures.append(
                    Failure(f"column {name!r}", words[column.key], words[actual.key])
                )
    result.checked.append("types, decimals and primary key")
    return result


def _check_type(
    result: CallChecks, column: ColumnSpec, actual: ColumnSpec, accepted: Mapping[Kind, Kind]
) -> None:
    what = f"type of {column.name!r}"
    if actual.kind is not column.kind:
        if accepted.get(column.kind) is actual.kind:
            result.notices.append(f"{what} is {actual.kind} in place of {column.kind}.")
        else:
            result.failures.append(Failure(what, column.type_name, actual.type_name))
    elif column.kind is Kind.DECIMAL:
        if actual.precision is None:
            result.notices.append(
                f"{what} is described without precision and scale: they will never be widened."
            )
        elif column.precision is not None and column.type_name != actual.type_name:
            result.failures.append(Failure(what, column.type_name, actual.type_name))


_RPC_WIDTH: Final = 18
_Subject = TypeVar("_Subject", Failure, str)


@dataclass(frozen=True, slots=True)
class CallReport:
    """One call with its checks.

    Attributes:
        answer: the result of the call.
        table: the table that the call concerns, or "".
        detail: a short description of the request.
        outcome: the checks; only findings that no earlier call had.
        known: number of findings that an earlier call had.
        ok: whether all checks passed.
    """

    answer: Answer
    table: str
    detail: str
    outcome: CallChecks
    known: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure or notice of one call and table, which may occur repeatedly.

    Attributes:
        schema: the schema, or "" before the first scenario.
        rpc: the call, or "" for a notice that does not concern one call.
        table: the table, or "".
        what: the failed check, or the text of a notice.
    """

    schema: str
    rpc: str
    table: str
    what: Failure | str


@dataclass(slots=True)
class Tally:
    """Counts of a run; each finding counts once, however often it occurs."""

    scenarios: int = 0
    calls: int = 0
    checks: int = 0
    notices: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    findings: Counter[Finding] = field(default_factory=Counter)

    def add(
        self, answer: Answer, schema: str, table: str, detail: str, outcome: CallChecks
    ) -> CallReport:
        """Count one call, and return its report."""

        def count_new(subjects: list[_Subject]) -> list[_Subject]:
            keys = [Finding(schema, answer.rpc, table, what) for what in subjects]
            self.findings.update(keys)
            return [key.what for key in keys if self.findings[key] == 1]  # type: ignore[misc]

        failures, notices = count_new(outcome.failures), count_new(outcome.notices)
        self.calls += 1
        self.checks += len(outcome.checked)
        self.notices += len(notices)
        self.failures.extend(failures)
        self.seconds += answer.seconds
        known = len(outcome.failures) + len(outcome.notices) - len(failures) - len(notices)
        return CallReport(
            answer,
            table,
            detail,
            replace(outcome, failures=failures, notices=notices),
            known,
            ok=not outcome.failures,
        )

    def add_notice(self, schema: str, text: str) -> bool:
        """Count a notice that does not concern one call; return whether it is a new one."""
        finding = Finding(schema, "", "", text)
        self.findings[finding] += 1
        is_new = self.findings[finding] == 1
        self.notices += is_new
        return is_new

    @property
    def repeated_findings(self) -> list[tuple[Finding, int]]:
        """Return the findings that occurred more than once, with counts, most frequent first."""
        return [(finding, count) for finding, count in self.findings.most_common() if count > 1]


class Report(Protocol):
    """The output of a run."""

    def begin(self, options: RunOptions, *, seed: int, folder: str) -> None:
        """Report the start of the run."""

    def scenario(self, file: str, schema: str) -> None:
        """Report the start of a scenario."""

    def waiting(self, seconds: float, reason: str) -> None:
        """Report that the destination does not respond yet, and the seconds since the first try."""

    def call(self, call: CallReport) -> None:
        """Report a call."""

    def notice(self, text: str) -> None:
        """Report a notice."""

    def error(self, text: str, **parts: Any) -> None:
        """Report an error that ends the run; programs also get the parts of the text."""

    def finish(self, tally: Tally) -> None:
        """Report the end of the run."""


class TextReport:
    """A report for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream; with colours only if it is a terminal."""
        self._console = Console(file=stream, highlight=False, soft_wrap=True)

    def begin(self, options: RunOptions, *, seed: int, folder: str) -> None:
        """Report the start of the run."""
        form = f"{options.compression}, {'AES' if options.encrypted else 'not encrypted'}"
        self._line(
            ("test-destination ", "bold"),
            (options.target, "bold cyan"),
            (f"  files: {form}, in {folder}  --shuffle-seed {seed}", "dim"),
        )

    def scenario(self, file: str, schema: str) -> None:
        """Report the start of a scenario."""
        self._line(("\n" + file, "bold"), (f"  schema {schema}", "dim"))

    def waiting(self, seconds: float, reason: str) -> None:
        """Report that the destination does not respond yet."""
        self._line((f"  waiting for {seconds:.0f} s: {reason}", "dim"))

    def call(self, call: CallReport) -> None:
        """Report a call."""
        outcome, answer, good = call.outcome, call.answer, call.ok
        self._line(
            ("  ✓ " if good else "  ✗ ", "green" if good else "bold red"),
            (f"{answer.rpc:<{_RPC_WIDTH}} ", ""),
            (f"{call.table}  " if call.table else "", "cyan"),
            (f"{call.detail}  " if call.detail else "", ""),
            (f"{answer.member or 'answered'}  ", "green" if good else "red"),
            (f"{answer.seconds * 1000:.0f} ms", "dim"),
            (f"  checked: {'; '.join(outcome.checked)}" if outcome.checked else "", "dim"),
            (f"  {format_count(call.known, 'finding')} as before" if call.known else "", "dim"),
        )
        if answer.text:
            self._line((f"      {answer.text}", "yellow"))
        for failure in outcome.failures:
            self._line((f"      {failure.what}", "red"))
            self._line((f"        expected  {failure.expected}", "green"))
            self._line((f"        actual    {failure.actual}", "red"))
        for notice in outcome.notices:
            self.notice(notice)

    def notice(self, text: str) -> None:
        """Report a notice."""
        self._line((f"      note: {text}", "yellow"))

    def error(self, text: str, **parts: Any) -> None:
        """Report an error that ends the run."""
        del parts
        self._line(("error: ", "bold red"), (text, ""))

    def finish(self, tally: Tally) -> None:
        """Report the end of the run."""
        if tally.repeated_findings:
            self._line(("\nrepeated findings", "bold"))
        for finding, count in tally.repeated_findings:
            what = finding.what if isinstance(finding.what, str) else str(finding.what)
            self._line(
                (f"  {count:>4} times  ", ""),
                (f"{finding.rpc}  " if finding.rpc else "", ""),
                (f"{finding.table}  " if finding.table else "", "cyan"),
                (what, "yellow" if isinstance(finding.what, str) else "red"),
            )
        failed = len(tally.failures)
        self._line(
            ("\n" + ("all checks passed" if not failed else f"{failed} failed"), _color_of(failed)),
            (
                (
                    f"  {tally.scenarios} scenarios, {tally.calls} calls, {tally.checks} checks, "
                    f"{tally.notices} notes, {tally.seconds:.1f} s in calls"
                ),
                "dim",
            ),
        )

    def _line(self, *parts: tuple[str, str]) -> None:
        self._console.print(Text.assemble(*parts))


def _color_of(failed: int) -> str:
    return "bold red" if failed else "bold green"


class JsonReport:
    """A report for programs: one JSON object per line, each with an `event`."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream."""
        self._stream = stream

    def begin(self, options: RunOptions, *, seed: int, folder: str) -> None:
        """Report the start of the run."""
        self._write("begin", target=options.target, shuffle_seed=seed, work_dir=folder)

    def scenario(self, file: str, schema: str) -> None:
        """Report the start of a scenario."""
        self._write("scenario", file=file, schema=schema)

    def waiting(self, seconds: float, reason: str) -> None:
        """Report that the destination does not respond yet."""
        self._write("waiting", seconds=round(seconds, 1), reason=reason)

    def call(self, call: CallReport) -> None:
        """Report a call."""
        outcome = call.outcome
        self._write(
            "call",
            rpc=call.answer.rpc,
            table=call.table or None,
            detail=call.detail or None,
            answer=call.answer.member or None,
            text=call.answer.text or None,
            seconds=round(call.answer.seconds, 6),
            ok=call.ok,
            known=call.known,
            checked=outcome.checked,
            failures=[
                {"what": failure.what, "expected": failure.expected, "actual": failure.actual}
                for failure in outcome.failures
            ],
            notices=outcome.notices,
        )

    def notice(self, text: str) -> None:
        """Report a notice."""
        self._write("notice", text=text)

    def error(self, text: str, **parts: Any) -> None:
        """Report an error that ends the run."""
        self._write("error", text=text, **parts)

    def finish(self, tally: Tally) -> None:
        """Report the end of the run."""
        self._write(
            "finish",
            ok=not tally.failures,
            scenarios=tally.scenarios,
            calls=tally.calls,
            checks=tally.checks,
            notices=tally.notices,
            failures=len(tally.failures),
            repeated=[
                {
                    "schema": finding.schema or None,
                    "rpc": finding.rpc or None,
                    "table": finding.table or None,
                    "what": str(finding.what),
                    "count": count,
                }
                for finding, count in tally.repeated_findings
            ],
            seconds=round(tally.seconds, 6),
        )

    def _write(self, event: str, **content: Any) -> None:
        line = json.dumps({"event": event, **content}, ensure_ascii=False)
        self._stream.write(line + "\n")
        self._stream.flush()


#: Calls for which known destinations leave the response's oneof unset on success.
_MAY_BE_UNSET: Final = frozenset({"WriteBatch", "WriteHistoryBatch", "Truncate"})


class SyncStopped(Exception):  # noqa: N818 - an outcome: the destination has ended the sync
    """The destination returned a task or a gRPC error, which ends a real sync."""


class Conversation:
    """The calls to one destination, with their checks and counts."""

    def __init__(
        self,
        destination: Destination,
        report: Report,
        *,
        configuration: Mapping[str, str],
        accepted_types: Mapping[Kind, Kind],
    ) -> None:
        """Start with a connection and a report.

        Args:
            destination: the connection.
            report: the report of all calls.
            configuration: part of every request that has a configuration.
            accepted_types: see `check_description`.
        """
        self._destination = destination
        self._report = report
        self._accepted = accepted_types
        self.configuration = configuration
        self.tally = Tally()
        self._schema = ""

    def send(
        self,
        rpc: str,
        request: Any,
        *,
        table: str = "",
        detail: str = "",
        good: tuple[str, ...] = ("success",),
        refusal: str | None = None,
        refusal_due: bool = True,
        unimplemented: str | None = None,
        check: Callable[[Answer, CallChecks], None] | None = None,
    ) -> Answer:
        """Make a call and check its response.

        Args:
            rpc: name of the call.
            request: its request.
            table: the table that the call concerns, for the report.
            detail: a short description of the request, for the report.
            good: the valid members of the response; a warning is always valid. Ignored if the
                response has no oneof.
            refusal: why the destination may refuse, or None if it must not.
            refusal_due: whether the guides require a refusal, so that a success is a failure.
            unimplemented: the consequence if the destination does not implement the call; None if
                the call is required.
            check: further checks of a valid response.

        Raises:
            SyncStopped: the response is a task or a gRPC error, and no refusal was expected.
        """
        answer = self._destination.call(rpc, request)
        outcome = CallChecks()
        outcome.checked.append("gRPC status" if answer.member == "" else "answer")
        is_missing = answer.member == UNIMPLEMENTED and unimplemented is not None
        if is_missing:
            outcome.notices.append(f"the destination does not implement {rpc}: {unimplemented}.")
        elif refusal is not None:
            _check_refusal(answer, outcome, refusal, due=refusal_due)
        elif _check_answer(answer, outcome, good) and check is not None:
            check(answer, outcome)
        call = self.tally.add(answer, self._schema, table, detail, outcome)
        self._report.call(call)
        if answer.is_refused and refusal is None and not is_missing:
            raise SyncStopped(rpc)
        return answer

    def begin_scenario(self, file: str, schema: str) -> None:
        """Count and report the start of a scenario."""
        self.tally.scenarios += 1
        self._schema = schema
        self._report.scenario(file, schema)

    def notice(self, text: str) -> None:
        """Count a notice, and report it the first time."""
        if self.tally.add_notice(self._schema, text):
            self._report.notice(text)

    def look_up(self, schema: str, table: str) -> TableDefinition | None:
        """Return a table's columns, or None if the destination does not find the table.

        Raises:
            SyncStopped: the destination returned an error.
        """
        answer = self.send(
            "DescribeTable",
            self._describe_request(schema, table),
            table=table,
            good=("table", "not_found"),
        )
        if answer.member != "table":
            return None
        definition, unknown = client.table_definition(answer.message.table)
        for name in unknown:
            self.notice(f"{table}.{name} is described with an unknown type and is ignored.")
        return definition

    def expect_absent(self, schema: str, table: str) -> bool:
        """Check that a table is not found; return True if so.

        Raises:
            SyncStopped: the destination returned an error.
        """
        answer = self.send(
            "DescribeTable", self._describe_request(schema, table), table=table, good=("not_found",)
        )
        return answer.member == "not_found"

    def verify(self, schema: str, model: Model, table: str) -> None:
        """Check that a table's description matches the model.

        A table that the model does not contain must not be found.

        Raises:
            SyncStopped: the destination returned an error.
        """
        wanted = model.tables.get(table)
        if wanted is None:
            self.expect_absent(schema, table)
            return
        self.send(
            "DescribeTable",
            self._describe_request(schema, table),
            table=table,
            good=("table",),
            check=lambda answer, outcome: self._compare(answer, outcome, model, wanted),
        )

    def _compare(
        self, answer: Answer, outcome: CallChecks, model: Model, expected: ModelTable
    ) -> None:
        outcome.expect("name", expected.name, answer.message.table.name)
        described, unknown = client.table_definition(answer.message.table)
        for name in unknown:
            outcome.failures.append(Failure(f"type of {name!r}", "a type", "UNSPECIFIED"))
        found = check_description(described, expected, accepted=self._accepted)
        outcome.checked.extend(found.checked)
        outcome.failures.extend(found.failures)
        outcome.notices.extend(found.notices)
        model.settle_decimals(expected.name, described)

    def _describe_request(self, schema: str, table: str) -> sdk.DescribeTableRequest:
        return sdk.DescribeTableRequest(
            configuration=self.configuration, schema_name=schema, table_name=table
        )


def _check_answer(answer: Answer, outcome: CallChecks, good: tuple[str, ...]) -> bool:
    """Check the member of a response; return True if it is valid."""
    if answer.is_refused:
        outcome.failures.append(Failure("answer", " or ".join(good) or "OK", answer.member))
    elif answer.member == "warning":
        outcome.notices.append("a warning: the sync continues.")
    elif answer.member == "unset" and answer.rpc in _MAY_BE_UNSET:
        outcome.notices.append("the response is empty: it should be success.")
    elif answer.member and (answer.member not in good or answer.text == "false"):
        actual = f"{answer.member}=false" if answer.text == "false" else answer.member
        outcome.failures.append(Failure("answer", " or ".join(good), actual))
    else:
        return True
    return False


def _check_refusal(answer: Answer, outcome: CallChecks, refusal: str, *, due: bool) -> None:
    """Check a response to a request that the destination must, or may, refuse."""
    outcome.checked.append("refusal")
    if answer.is_refused:
        outcome.notices.append(f"refused, as it {'must' if due else 'may'} be: {refusal}.")
    elif not due:
        outcome.notices.append(f"not refused, although {refusal}.")
    elif answer.member != "unsupported":
        outcome.failures.append(Failure("answer", f"a task, because {refusal}", answer.member))
