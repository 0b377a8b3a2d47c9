"""The report of a run: one line for every call, readable or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from rich.console import Console
from rich.text import Text

from chronolake.drive.checks import Failure
from chronolake.spelling import counted

if TYPE_CHECKING:
    from typing import TextIO

    from chronolake.drive.checks import Checked
    from chronolake.drive.destination import Answer
    from chronolake.drive.options import DriveOptions

_RPC_WIDTH: Final = 18
_Found = TypeVar("_Found", Failure, str)


@dataclass(frozen=True, slots=True)
class CallReport:
    """One call, and what was checked about it.

    Attributes:
        answer: what came back.
        table: the table it is about, or "".
        detail: what was sent, in a few words.
        outcome: the checks; of their findings those that no earlier call had.
        known: number of findings that an earlier call had.
        ok: whether every check holds.
    """

    answer: Answer
    table: str
    detail: str
    outcome: Checked
    known: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure or a notice about one call and table, which every such call may have again.

    Attributes:
        schema: the schema, or "" before the first scenario.
        rpc: the call.
        table: the table, or "".
        what: the failed check, or the text of a notice.
    """

    schema: str
    rpc: str
    table: str
    what: Failure | str


@dataclass(slots=True)
class Tally:
    """Counts of a run; each finding counts once, however often it came."""

    scenarios: int = 0
    calls: int = 0
    checks: int = 0
    notices: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    findings: Counter[Finding] = field(default_factory=Counter)

    def add(
        self, answer: Answer, schema: str, table: str, detail: str, outcome: Checked
    ) -> CallReport:
        """Count one call, and return the report of it."""

        def are_new(found: list[_Found]) -> list[_Found]:
            keys = [Finding(schema, answer.rpc, table, what) for what in found]
            self.findings.update(keys)
            return [key.what for key in keys if self.findings[key] == 1]  # type: ignore[misc]

        failures, notices = are_new(outcome.failures), are_new(outcome.notices)
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

    @property
    def repeated(self) -> list[tuple[Finding, int]]:
        """The findings that came more than once, with their counts, the most frequent first."""
        return [(finding, count) for finding, count in self.findings.most_common() if count > 1]


class Report(Protocol):
    """Where a run tells what it does."""

    def begin(self, options: DriveOptions, *, seed: int, folder: str) -> None:
        """The run begins."""

    def scenario(self, file: str, schema: str) -> None:
        """A scenario begins."""

    def waiting(self, seconds: float, reason: str) -> None:
        """The destination does not answer yet; seconds since the first try."""

    def call(self, call: CallReport) -> None:
        """A call was made."""

    def notice(self, text: str) -> None:
        """Something worth saying."""

    def error(self, text: str, **parts: Any) -> None:
        """The run cannot go on; a program gets what the text is made of, too."""

    def finish(self, tally: Tally) -> None:
        """The run is over."""


class TextReport:
    """A report for a reader at a terminal."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream; colours only where it is a terminal."""
        self._console = Console(file=stream, highlight=False, soft_wrap=True)

    def begin(self, options: DriveOptions, *, seed: int, folder: str) -> None:
        """The run begins."""
        form = f"{options.compression}, {'AES' if options.encrypted else 'not encrypted'}"
        self._line(
            ("drive ", "bold"),
            (options.target, "bold cyan"),
            (f"  files: {form}, in {folder}  --shuffle-seed {seed}", "dim"),
        )

    def scenario(self, file: str, schema: str) -> None:
        """A scenario begins."""
        self._line(("\n" + file, "bold"), (f"  schema {schema}", "dim"))

    def waiting(self, seconds: float, reason: str) -> None:
        """The destination does not answer yet."""
        self._line((f"  waiting for {seconds:.0f} s: {reason}", "dim"))

    def call(self, call: CallReport) -> None:
        """A call was made."""
        outcome, answer, good = call.outcome, call.answer, call.ok
        self._line(
            ("  ✓ " if good else "  ✗ ", "green" if good else "bold red"),
            (f"{answer.rpc:<{_RPC_WIDTH}} ", ""),
            (f"{call.table}  " if call.table else "", "cyan"),
            (f"{call.detail}  " if call.detail else "", ""),
            (f"{answer.member or 'answered'}  ", "green" if good else "red"),
            (f"{answer.seconds * 1000:.0f} ms", "dim"),
            (f"  checked: {'; '.join(outcome.checked)}" if outcome.checked else "", "dim"),
            (f"  {counted(call.known, 'finding')} as before" if call.known else "", "dim"),
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
        """Something worth saying."""
        self._line((f"      note: {text}", "yellow"))

    def error(self, text: str, **parts: Any) -> None:
        """The run cannot go on."""
        del parts
        self._line(("error: ", "bold red"), (text, ""))

    def finish(self, tally: Tally) -> None:
        """The run is over."""
        if tally.repeated:
            self._line(("\nfindings that came more than once", "bold"))
        for finding, count in tally.repeated:
            what = finding.what if isinstance(finding.what, str) else str(finding.what)
            self._line(
                (f"  {count:>4} times  ", ""),
                (f"{finding.rpc}  ", ""),
                (f"{finding.table}  " if finding.table else "", "cyan"),
                (what, "yellow" if isinstance(finding.what, str) else "red"),
            )
        failed = len(tally.failures)
        self._line(
            ("\n" + ("every check holds" if not failed else f"{failed} failed"), _colour(failed)),
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


def _colour(failed: int) -> str:
    return "bold red" if failed else "bold green"


class JsonReport:
    """A report for a program: one JSON object a line, each with an `event`."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream."""
        self._stream = stream

    def begin(self, options: DriveOptions, *, seed: int, folder: str) -> None:
        """The run begins."""
        self._write("begin", target=options.target, shuffle_seed=seed, work_dir=folder)

    def scenario(self, file: str, schema: str) -> None:
        """A scenario begins."""
        self._write("scenario", file=file, schema=schema)

    def waiting(self, seconds: float, reason: str) -> None:
        """The destination does not answer yet."""
        self._write("waiting", seconds=round(seconds, 1), reason=reason)

    def call(self, call: CallReport) -> None:
        """A call was made."""
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
                {"what": one.what, "expected": one.expected, "actual": one.actual}
                for one in outcome.failures
            ],
            notices=outcome.notices,
        )

    def notice(self, text: str) -> None:
        """Something worth saying."""
        self._write("notice", text=text)

    def error(self, text: str, **parts: Any) -> None:
        """The run cannot go on."""
        self._write("error", text=text, **parts)

    def finish(self, tally: Tally) -> None:
        """The run is over."""
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
                    "rpc": finding.rpc,
                    "table": finding.table or None,
                    "what": str(finding.what),
                    "count": count,
                }
                for finding, count in tally.repeated
            ],
            seconds=round(tally.seconds, 6),
        )

    def _write(self, event: str, **content: Any) -> None:
        line = json.dumps({"event": event, **content}, ensure_ascii=False)
        self._stream.write(line + "\n")
        self._stream.flush()
