"""A conversation with a destination: calls whose answers are checked, counted and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronolake.drive import wire
from chronolake.drive.checks import Checked, Failure, check_description
from chronolake.drive.destination import UNIMPLEMENTED
from chronolake.drive.report import Report, Tally
from chronolake.protos import destination_sdk_pb2 as sdk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chronolake.drive.definition import TableDefinition
    from chronolake.drive.destination import Answer, Destination
    from chronolake.drive.model import Model, ModelTable
    from chronolake.types import Kind

#: Known destinations leave the oneof of these answers unset when all went well.
_MAY_BE_UNSET: Final = frozenset({"WriteBatch", "WriteHistoryBatch", "Truncate"})


class SyncStopped(Exception):  # noqa: N818 - an outcome: the destination has ended the sync
    """A task or a gRPC error came back, which ends a real sync."""


class Conversation:
    """Asks one destination, and keeps the tally."""

    def __init__(
        self,
        destination: Destination,
        report: Report,
        *,
        configuration: Mapping[str, str],
        accepted_types: Mapping[Kind, Kind],
    ) -> None:
        """Begin with a connection and a report.

        Args:
            destination: whom to ask.
            report: where every call is told.
            configuration: goes with every request that carries one.
            accepted_types: see `check_description`.
        """
        self._destination = destination
        self._report = report
        self._accepted = accepted_types
        self.configuration = configuration
        self.tally = Tally()
        self._schema = ""

    def ask(
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
        inspect: Callable[[Answer, Checked], None] | None = None,
    ) -> Answer:
        """Make a call and check its answer.

        Args:
            rpc: name of the call.
            request: its request.
            table: the table it is about, for the report.
            detail: what is sent, for the report.
            good: the members of the response that are right; a warning always is. None are looked
                at when the response has no oneof.
            refusal: why the destination may refuse, if it may.
            refusal_due: whether the guides want it to, so that a success is wrong.
            unimplemented: what follows if the destination does not implement the call; None: it
                must.
            inspect: further checks of a good answer.

        Raises:
            SyncStopped: the answer is a task or a gRPC error, and no refusal was due.
        """
        answer = self._destination.call(rpc, request)
        outcome = Checked()
        outcome.checked.append("gRPC status" if answer.member == "" else "answer")
        is_missing = answer.member == UNIMPLEMENTED and unimplemented is not None
        if is_missing:
            outcome.notices.append(f"the destination does not implement {rpc}: {unimplemented}.")
        elif refusal is not None:
            _judge_refusal(answer, outcome, refusal, due=refusal_due)
        elif _judge(answer, outcome, good) and inspect is not None:
            inspect(answer, outcome)
        call = self.tally.add(answer, self._schema, table, detail, outcome)
        self._report.call(call)
        if answer.refused and refusal is None and not is_missing:
            raise SyncStopped(rpc)
        return answer

    def begin_scenario(self, file: str, schema: str) -> None:
        """Tell that a scenario begins."""
        self.tally.scenarios += 1
        self._schema = schema
        self._report.scenario(file, schema)

    def notice(self, text: str) -> None:
        """Tell something that is no failure."""
        self.tally.notices += 1
        self._report.notice(text)

    def look_up(self, schema: str, table: str) -> TableDefinition | None:
        """Ask for a table's columns; None if it is not found.

        Raises:
            SyncStopped: the destination cannot say.
        """
        answer = self.ask(
            "DescribeTable",
            self._description(schema, table),
            table=table,
            good=("table", "not_found"),
        )
        if answer.member != "table":
            return None
        definition, unknown = wire.table_definition(answer.message.table)
        for name in unknown:
            self.notice(f"{table}.{name} is described without a known type and is left out.")
        return definition

    def expect_absent(self, schema: str, table: str) -> bool:
        """Check that a table is not found; True if so.

        Raises:
            SyncStopped: the destination cannot say.
        """
        answer = self.ask(
            "DescribeTable", self._description(schema, table), table=table, good=("not_found",)
        )
        return answer.member == "not_found"

    def verify(self, schema: str, model: Model, table: str) -> None:
        """Check that a table is described as the model says; a table it lacks must not be found.

        Raises:
            SyncStopped: the destination cannot say.
        """
        wanted = model.tables.get(table)
        if wanted is None:
            self.expect_absent(schema, table)
            return
        self.ask(
            "DescribeTable",
            self._description(schema, table),
            table=table,
            good=("table",),
            inspect=lambda answer, outcome: self._compare(answer, outcome, model, wanted),
        )

    def _compare(self, answer: Answer, outcome: Checked, model: Model, wanted: ModelTable) -> None:
        outcome.expect("name", wanted.name, answer.message.table.name)
        described, unknown = wire.table_definition(answer.message.table)
        for name in unknown:
            outcome.failures.append(Failure(f"type of {name!r}", "a type", "UNSPECIFIED"))
        found = check_description(described, wanted, accepted=self._accepted)
        outcome.checked.extend(found.checked)
        outcome.failures.extend(found.failures)
        outcome.notices.extend(found.notices)
        model.settle_decimals(wanted.name, described)

    def _description(self, schema: str, table: str) -> sdk.DescribeTableRequest:
        return sdk.DescribeTableRequest(
            configuration=self.configuration, schema_name=schema, table_name=table
        )


def _judge(answer: Answer, outcome: Checked, good: tuple[str, ...]) -> bool:
    """Check which member an answer has; True if it is a good one."""
    if answer.refused:
        outcome.failures.append(Failure("answer", " or ".join(good) or "OK", answer.member))
    elif answer.member == "warning":
        outcome.notices.append("a warning: the sync goes on.")
    elif answer.member == "unset" and answer.rpc in _MAY_BE_UNSET:
        outcome.notices.append("the response is empty: it should say success.")
    elif answer.member and (answer.member not in good or answer.text == "false"):
        said = f"{answer.member}=false" if answer.text == "false" else answer.member
        outcome.failures.append(Failure("answer", " or ".join(good), said))
    else:
        return True
    return False


def _judge_refusal(answer: Answer, outcome: Checked, refusal: str, *, due: bool) -> None:
    """Check an answer to what the destination must, or may, refuse."""
    outcome.checked.append("refusal")
    if answer.refused:
        outcome.notices.append(f"refused, as it {'must' if due else 'may'} be: {refusal}.")
    elif not due:
        outcome.notices.append(f"not refused, although {refusal}.")
    elif answer.member != "unsupported":
        outcome.failures.append(Failure("answer", f"a task, because {refusal}", answer.member))
