"""The report of a run: one line for every call, readable or as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from typing import TextIO

    from chronolake.drive.checks import Checked, Failure
    from chronolake.drive.destination import Answer
    from chronolake.drive.options import DriveOptions

_RPC_WIDTH: Final = 18


@dataclass(frozen=True, slots=True)
class CallReport:
    """One call, and what was checked about it.

    Attributes:
        answer: what came back.
        table: the table it is about, or "".
        detail: what was sent, in a few words.
        outcome: the checks.
    """

    answer: Answer
    table: str
    detail: str
    outcome: Checked


@dataclass(slots=True)
class Tally:
    """What a run has come to so far."""

    scenarios: int = 0
    calls: int = 0
    checks: int = 0
    notices: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, call: CallReport) -> None:
        """Count one call."""
        self.calls += 1
        self.checks += len(call.outcome.checked)
        self.notices += len(call.outcome.notices)
        self.failures.extend(call.outcome.failures)
        self.seconds += call.answer.seconds


class Report(Protocol):
    """Where a run tells what it does."""

    def begin(self, options: DriveOptions, *, seed: int, folder: str) -> None:
        """The run begins."""

    def scenario(self, file: str, schema: str) -> None:
        """A scenario begins."""

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

    def call(self, call: CallReport) -> None:
        """A call was made."""
        outcome, answer = call.outcome, call.answer
        good = not outcome.failures
        self._line(
            ("  ✓ " if good else "  ✗ ", "green" if good else "bold red"),
            (f"{answer.rpc:<{_RPC_WIDTH}} ", ""),
            (f"{call.table}  " if call.table else "", "cyan"),
            (f"{call.detail}  " if call.detail else "", ""),
            (f"{answer.member or 'answered'}  ", "green" if good else "red"),
            (f"{answer.seconds * 1000:.0f} ms", "dim"),
            (f"  checked: {'; '.join(outcome.checked)}" if outcome.checked else "", "dim"),
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
            ok=not outcome.failures,
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
            seconds=round(tally.seconds, 6),
        )

    def _write(self, event: str, **content: Any) -> None:
        line = json.dumps({"event": event, **content}, ensure_ascii=False)
        self._stream.write(line + "\n")
        self._stream.flush()
