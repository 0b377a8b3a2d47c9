"""A test run: plays scenarios in order and returns the exit code.

The order of the calls is that of the vendor's tester. Per run: ConfigurationForm, Test for each
test of the form, Capabilities. Per scenario: CreateTable, AlterTable, WriteBatch or
WriteHistoryBatch, Truncate, schema migrations, DescribeTable. Every schema change is checked with
DescribeTable immediately.
"""

from __future__ import annotations

import json
import random
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronolake.errors import ChronolakeError, ConfigurationError, ScenarioError
from chronolake.protos import common_pb2 as common
from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.tester import client, values
from chronolake.tester.client import Destination
from chronolake.tester.connector_types import connector_scenarios
from chronolake.tester.conversation import (
    Conversation,
    Failure,
    JsonReport,
    Report,
    SyncStopped,
    TextReport,
)
from chronolake.tester.definition import DELETED_COLUMN, TableDefinition, with_system_columns
from chronolake.tester.files import BatchFolder, FileForm, FileFormat
from chronolake.tester.migration_run import Migrator
from chronolake.tester.model import Model, ModelRefusal
from chronolake.tester.options import FlushMode, RunOptions
from chronolake.tester.rows import Event, check_rows, history_changes, plain_changes
from chronolake.tester.scenario import (
    RowStep,
    Scenario,
    TableForm,
    TruncateStep,
    read_scenario,
    scenario_files,
)
from chronolake.types import DELETED, SYNCED, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

    from chronolake.tester.client import Answer
    from chronolake.tester.conversation import CallChecks


_MILLIS_BETWEEN_OPERATIONS = 2


class WallClock:
    """A clock in milliseconds since the epoch whose times are at least two milliseconds apart."""

    def __init__(self) -> None:
        """Start without a previous time."""
        self._last = 0

    def __call__(self) -> int:
        """Return the time, after waiting until it is two milliseconds after the previous one."""
        while (now := time.time_ns() // 1_000_000) < self._last + _MILLIS_BETWEEN_OPERATIONS:
            time.sleep(0.001)
        self._last = now
        return now


def check_setup(conversation: Conversation, configuration: dict[str, str]) -> FileFormat:
    """Request the configuration form, run its tests, and request the capabilities.

    Args:
        conversation: the calls to the destination.
        configuration: the configuration to test.

    Returns:
        The format of batch files that the destination accepts.

    Raises:
        SyncStopped: the destination failed.
    """
    form = conversation.send(
        "ConfigurationForm", common.ConfigurationFormRequest(), check=_check_form
    )
    required = [field.name for field in form.message.fields if field.required]
    for name in required:
        if not configuration.get(name):
            conversation.notice(f"the form requires {name!r}; the configuration does not have it.")
    for test in form.message.tests:
        conversation.send(
            "Test",
            common.TestRequest(name=test.name, configuration=configuration),
            detail=test.name,
            unimplemented="the configuration is not tested",
        )
    answer = conversation.send(
        "Capabilities", sdk.CapabilitiesRequest(), unimplemented="batch files are CSV"
    )
    if answer.message is None:
        return FileFormat.CSV
    number = answer.message.batch_file_format
    if number not in sdk.BatchFileFormat.values():
        conversation.notice(f"the destination prefers an unknown format ({number}) and gets CSV.")
    return FileFormat.PARQUET if number == sdk.PARQUET else FileFormat.CSV


def _check_form(answer: Answer, outcome: CallChecks) -> None:
    names = client.form_names(answer.message.fields)
    twice = sorted({name for name in names if names.count(name) > 1})
    outcome.expect("unique field names", "no duplicates", ", ".join(twice) or "no duplicates")
    if not answer.message.tests:
        outcome.notices.append("the form has no tests.")


class Session:
    """A session that plays scenarios against one schema and maintains the model of its tables."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        schema: str,
        options: RunOptions,
        folder: BatchFolder,
        shuffler: random.Random,
        clock: WallClock,
    ) -> None:
        """Start with an empty schema.

        Args:
            conversation: the calls to the destination.
            schema: the schema of the tables.
            options: the options of the run.
            folder: the writer of the batch files.
            shuffler: determines the order of columns in requests.
            clock: returns the time of each operation.
        """
        self.model = Model()
        self.schema = schema
        self._conversation = conversation
        self._options = options
        self._folder = folder
        self._shuffler = shuffler
        self._clock = clock
        self._migrator = Migrator(
            conversation, schema=schema, strict=options.strict_migrations, now_millis=clock
        )

    def play(self, scenario: Scenario) -> None:
        """Play one scenario.

        Raises:
            ScenarioError: its rows do not fit their tables; nothing was changed for this scenario,
                unless they do not fit because an AlterTable had to be refused.
            SyncStopped: the destination ended the sync.
        """
        for text in scenario.notices:
            self._conversation.notice(text)
        self._adopt_tables((*scenario.alter, *sorted(scenario.written_tables)), scenario)
        created, altered = self._definitions(scenario)
        current = {name: table.request for name, table in self.model.tables.items()}
        check_rows(scenario, current | created | altered)
        self._check_truncates(scenario, current | created | altered)
        for name, definition in created.items():
            self._create(name, definition)
        for name, definition in altered.items():
            self._alter(name, definition)
        # A change that the model refuses leaves columns that the rows may not fit.
        check_rows(scenario, {name: self.model.tables[name].request for name in altered})
        self._run_steps(scenario)
        for migration in scenario.migrations:
            self.model = self._migrator.run(self.model, migration)
        for name in scenario.describe:
            self._conversation.verify(self.schema, self.model, name)

    def _adopt_tables(self, names: Iterable[str], scenario: Scenario) -> None:
        """Read the definitions of tables that the run has not created from the destination."""
        for name in dict.fromkeys(names):
            if name in self.model.tables or name in scenario.create:
                continue
            found = self._conversation.look_up(self.schema, name)
            if found is not None:
                self.model.adopt(name, found)
            else:
                self._conversation.notice(
                    f"there is no table {name!r}: its operations are skipped."
                )

    def _definitions(
        self, scenario: Scenario
    ) -> tuple[dict[str, TableDefinition], dict[str, TableDefinition]]:
        """Return the columns for CreateTable and for AlterTable, each by table."""
        created, altered = {}, {}
        for name, form in scenario.create.items():
            if name in self.model.tables:
                self._conversation.notice(
                    f"the table {name!r} exists from an earlier scenario: AlterTable in place of "
                    "CreateTable."
                )
                altered[name] = self._definition(name, form, scenario)
            else:
                created[name] = self._definition(name, form, scenario)
        for name, form in scenario.alter.items():
            if name in self.model.tables or name in created:
                altered[name] = self._definition(name, form, scenario)
        for name in scenario.soft_deleted_tables - created.keys() - altered.keys():
            table = self.model.tables.get(name)
            if table and not table.definition.history and DELETED not in table.sent:
                altered[name] = table.request.with_column(DELETED_COLUMN)
        return created, altered

    def _definition(self, name: str, form: TableForm, scenario: Scenario) -> TableDefinition:
        table = self.model.tables.get(name)
        has_marker = table is not None and DELETED in table.definition.names
        wanted = with_system_columns(
            [
                kind.column(column, key=column in form.primary_key)
                for column, kind in form.columns.items()
            ],
            history=form.history_mode,
            soft_deleted=name in scenario.soft_deleted_tables or has_marker,
            version=self._options.tester_version,
        )
        created = scenario.create.get(name)
        had_history = (
            table.definition.history if table is not None else created and created.history_mode
        )
        if had_history is not None and had_history is not wanted.history:
            raise ScenarioError(
                f"The table {name!r} cannot change history_mode by its definition.",
                hint="Use a migration, or --schema-per-file.",
                file=str(scenario.path),
            )
        return wanted

    def _check_truncates(self, scenario: Scenario, definitions: dict[str, TableDefinition]) -> None:
        for step in scenario.steps:
            if isinstance(step, TruncateStep) and step.soft:
                for name in step.tables:
                    if name in definitions and definitions[name].history:
                        raise ScenarioError(
                            f"{step.place}: The history table {name!r} has no {DELETED!r} column "
                            "to set.",
                            hint="Use truncate_before.",
                            file=str(scenario.path),
                        )

    def _create(self, name: str, definition: TableDefinition) -> None:
        if not self._conversation.expect_absent(self.schema, name):
            self._conversation.notice("use another --schema-name, or drop the table first.")
        self._migrator.create_table(name, definition, detail=f"{len(definition.columns)} columns")
        self.model.create(name, definition)
        self._conversation.verify(self.schema, self.model, name)

    def _alter(self, name: str, definition: TableDefinition) -> None:
        refusal = None
        try:
            self.model.alter(name, definition)
        except ModelRefusal as reason:
            refusal = str(reason)
        self._migrator.alter_table(
            name, definition, detail=f"{len(definition.columns)} columns", refusal=refusal
        )
        self._conversation.verify(self.schema, self.model, name)

    def _run_steps(self, scenario: Scenario) -> None:
        events: dict[str, list[Event]] = {}
        truncates: list[tuple[str, bool, int]] = []
        for step in scenario.steps:
            stamp = self._clock()
            if isinstance(step, RowStep):
                synced = values.time_text(stamp * values.NANOS_PER_MILLI)
                for name, rows in step.tables.items():
                    if name in self.model.tables:
                        group = events.setdefault(name, [])
                        group.extend(Event(step.operation, row, synced) for row in rows)
                continue
            truncates.extend((name, step.soft, stamp) for name in step.tables)
            if self._options.mode is FlushMode.SEQUENTIAL:
                self._flush(scenario, events, truncates)
        self._flush(scenario, events, truncates)

    def _flush(
        self,
        scenario: Scenario,
        events: dict[str, list[Event]],
        truncates: list[tuple[str, bool, int]],
    ) -> None:
        for name, group in events.items():
            self._write(scenario, name, group)
        for name, soft, stamp in truncates:
            self._truncate(name, soft=soft, stamp=stamp)
        events.clear()
        truncates.clear()

    def _write(self, scenario: Scenario, name: str, events: list[Event]) -> None:
        table = self.model.table(name)
        history = table.definition.history
        try:
            changes = (history_changes if history else plain_changes)(name, table.request, events)
        except ScenarioError as failure:
            raise ScenarioError(
                failure.message, hint=failure.hint, file=str(scenario.path)
            ) from failure
        if not changes.records:
            return
        self._note_parquet(table.request)
        files = self._folder.write(changes, scenario.name)
        request = client.write_request(
            schema=self.schema,
            configuration=self._conversation.configuration,
            table=client.table_message(name, table.request, shuffler=self._shuffler),
            files=files,
            form=self._folder.form,
            history=history,
        )
        rpc = "WriteHistoryBatch" if history else "WriteBatch"
        detail = ", ".join(
            f"{sum(file.rows for file in group)} {kind}"
            + (f" in {len(group)} files" if len(group) > 1 else "")
            for kind, group in files.items()
        )
        self._conversation.send(rpc, request, table=name, detail=detail)
        (self.model.write_history if history else self.model.write)(changes)
        if self._options.replay:
            self._conversation.send(rpc, request, table=name, detail=f"{detail}, again")

    def _note_parquet(self, definition: TableDefinition) -> None:
        naive = [c.name for c in definition.columns if c.kind is Kind.NAIVE_DATETIME]
        if naive and self._folder.form.format is FileFormat.PARQUET:
            self._conversation.notice(
                f"Parquet cannot represent NAIVE_DATETIME; {', '.join(naive)} is written as text."
            )

    def _truncate(self, name: str, *, soft: bool, stamp: int) -> None:
        request = sdk.TruncateRequest(
            configuration=self._conversation.configuration,
            schema_name=self.schema,
            table_name=name,
            synced_column=SYNCED,
            utc_delete_before=client.timestamp(stamp),
            soft=sdk.SoftTruncate(deleted_column=DELETED) if soft else None,
        )
        before = values.time_text(stamp * values.NANOS_PER_MILLI)
        detail = f"{'soft, ' if soft else ''}before {before}"
        self._conversation.send("Truncate", request, table=name, detail=detail)
        self.model.truncate(
            name, before_micros=stamp * 1000, deleted_column=DELETED if soft else None
        )


EXIT_GOOD: Final = 0
EXIT_FAILED: Final = 1
EXIT_WRONG_INPUT: Final = 2
_SEEDS: Final = 2**32


@dataclass(frozen=True, slots=True)
class _Play:
    """A scenario, and the schema of its tables."""

    schema: str
    scenario: Scenario


def run(paths: Sequence[Path], options: RunOptions, *, stream: TextIO | None = None) -> int:
    """Play scenarios against a destination and report the results.

    Args:
        paths: scenario files, or folders of them, in the order of execution; those of
            `options.connectors` follow.
        options: the options of the run.
        stream: the output of the report; None is standard output.

    Returns:
        The exit code: 0 if all checks pass, 1 if a check fails, 2 if a scenario or an option is
        invalid.
    """
    stream = stream or sys.stdout
    report: Report = JsonReport(stream) if options.json_lines else TextReport(stream)
    try:
        plays = list(_plays(paths, options))
        if not plays:
            raise ConfigurationError(
                "No scenario is given.",
                hint="Pass a scenario's JSON file, or a folder of them, or --connector.",
            )
        return _run_plays(plays, options, report)
    except ChronolakeError as failure:
        report.error(
            str(failure),
            error=type(failure).__name__,
            message=failure.message,
            **failure.place,
            hint=failure.hint,
            retryable=failure.retryable,
        )
        return EXIT_WRONG_INPUT


def _plays(paths: Sequence[Path], options: RunOptions) -> Iterator[_Play]:
    for path in scenario_files(paths):
        scenario = read_scenario(path)
        suffix = f"_{scenario.name}" if options.schema_per_file else ""
        yield _Play(f"{options.schema}{suffix}", scenario)
    for found in connector_scenarios(options.connectors, log_rows=options.log_rows):
        yield _Play(f"{options.schema}_{found.connector}", found.scenario)


def _run_plays(plays: Sequence[_Play], options: RunOptions, report: Report) -> int:
    seed = options.shuffle_seed
    if seed is None:
        seed = secrets.randbelow(_SEEDS)
    with ExitStack() as stack:
        folder = _work_dir(options, stack)
        destination = stack.enter_context(
            Destination(
                options.target,
                timeout=options.timeout,
                tls=options.tls,
                ca_certificate=options.ca_certificate,
            )
        )
        report.begin(options, seed=seed, folder=str(folder))
        conversation = Conversation(
            destination,
            report,
            configuration=options.configuration,
            accepted_types=options.accepted_types,
        )
        unreachable = destination.wait_until_reachable(options.connect_timeout, report.waiting)
        if unreachable is None:
            shuffler = random.Random(seed)  # noqa: S311 - only for the order of columns
            files = BatchFolder(
                folder,
                form=FileForm(compression=options.compression, encrypted=options.encrypted),
                shuffler=shuffler,
                split=options.split,
                minimal_deletes=options.minimal_deletes,
            )
            if not options.keep_files:
                stack.callback(files.remove)
            sessions = _play_all(plays, options, conversation, files, shuffler)
            _write_model(sessions, options.dump_model)
        else:
            failure = Failure("connection", f"a server at {options.target}", unreachable)
            report.error(str(failure))
            conversation.tally.failures.append(failure)
        report.finish(conversation.tally)
        return EXIT_FAILED if conversation.tally.failures else EXIT_GOOD


def _play_all(
    plays: Sequence[_Play],
    options: RunOptions,
    conversation: Conversation,
    files: BatchFolder,
    shuffler: random.Random,
) -> dict[str, Session]:
    """Play all scenarios and return the sessions by schema."""
    sessions: dict[str, Session] = {}
    clock = WallClock()
    try:
        wanted = check_setup(conversation, dict(options.configuration))
        if options.format is not None and options.format is not wanted:
            conversation.notice(
                f"the destination prefers {wanted} files but gets {options.format} files."
            )
        files.form = replace(files.form, format=options.format or wanted)
        for play in plays:
            if play.schema not in sessions:
                sessions[play.schema] = Session(
                    conversation,
                    schema=play.schema,
                    options=options,
                    folder=files,
                    shuffler=shuffler,
                    clock=clock,
                )
            conversation.begin_scenario(str(play.scenario.path), play.schema)
            sessions[play.schema].play(play.scenario)
    except SyncStopped:
        pass  # it is already in the report and in the tally
    return sessions


def _work_dir(options: RunOptions, stack: ExitStack) -> Path:
    if options.work_dir is not None:
        try:
            options.work_dir.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise ConfigurationError(
                f"The work folder cannot be created: {failure.strerror}.",
                hint="Choose another one with --work-dir.",
                file=str(options.work_dir),
            ) from failure
        return options.work_dir.resolve()
    if options.keep_files:
        return Path(tempfile.mkdtemp(prefix="chronolake-drive-")).resolve()
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chronolake-drive-")))


def _write_model(sessions: Mapping[str, Session], path: Path | None) -> None:
    if path is None:
        return
    content = {schema: session.model.dump() for schema, session in sessions.items()}
    try:
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    except OSError as failure:
        raise ConfigurationError(
            f"The expected contents cannot be written: {failure.strerror}.",
            hint="Choose another file with --dump-model.",
            file=str(path),
        ) from failure
