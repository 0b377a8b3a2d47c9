"""One run of the tester, from the scenario files to the exit code."""

from __future__ import annotations

import json
import random
import secrets
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronolake.drive.checks import Failure
from chronolake.drive.conversation import Conversation, SyncStopped
from chronolake.drive.destination import Destination
from chronolake.drive.files import BatchFolder, FileForm
from chronolake.drive.report import JsonReport, Report, TextReport
from chronolake.drive.scenario import Scenario, read_scenario, scenario_files
from chronolake.drive.session import Session, WallClock, introduce
from chronolake.errors import ChronolakeError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from chronolake.drive.options import DriveOptions

EXIT_GOOD: Final = 0
EXIT_FAILED: Final = 1
EXIT_WRONG_INPUT: Final = 2
_SEEDS: Final = 2**32


def run(paths: Sequence[Path], options: DriveOptions, *, stream: TextIO | None = None) -> int:
    """Play scenarios against a destination and report.

    Args:
        paths: scenario files, or folders of them; played in this order.
        options: how to play.
        stream: where the report goes; None is standard output.

    Returns:
        The exit code: 0 if every check holds, 1 if one does not, 2 if a scenario or an option is
        wrong.
    """
    stream = stream or sys.stdout
    report: Report = JsonReport(stream) if options.json_lines else TextReport(stream)
    try:
        scenarios = [read_scenario(path) for path in scenario_files(paths)]
        if not scenarios:
            raise ConfigurationError(
                "No scenario is named.", hint="Name a scenario's JSON file, or a folder of them."
            )
        return _play(scenarios, options, report)
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


def _play(scenarios: Sequence[Scenario], options: DriveOptions, report: Report) -> int:
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
        unreachable = destination.reach(options.connect_timeout, report.waiting)
        if unreachable is None:
            shuffler = random.Random(seed)  # noqa: S311 - only the order of columns
            files = BatchFolder(
                folder,
                form=FileForm(compression=options.compression, encrypted=options.encrypted),
                shuffler=shuffler,
                split=options.split,
                minimal_deletes=options.minimal_deletes,
            )
            if not options.keep_files:
                stack.callback(files.remove)
            sessions = _sessions(scenarios, options, conversation, files, shuffler)
            _dump(sessions, options.dump_model)
        else:
            failure = Failure("connection", f"a server at {options.target}", unreachable)
            report.error(str(failure))
            conversation.tally.failures.append(failure)
        report.finish(conversation.tally)
        return EXIT_FAILED if conversation.tally.failures else EXIT_GOOD


def _sessions(
    scenarios: Sequence[Scenario],
    options: DriveOptions,
    conversation: Conversation,
    files: BatchFolder,
    shuffler: random.Random,
) -> dict[str, Session]:
    """Play all scenarios; the sessions by schema."""
    sessions: dict[str, Session] = {}
    clock = WallClock()
    try:
        wanted = introduce(conversation, dict(options.configuration))
        if options.format is not None and options.format is not wanted:
            conversation.notice(
                f"the destination wants {wanted} files and gets {options.format} files."
            )
        files.form = replace(files.form, format=options.format or wanted)
        for scenario in scenarios:
            name = options.schema
            schema = f"{name}_{scenario.name}" if options.schema_per_file else name
            if schema not in sessions:
                sessions[schema] = Session(
                    conversation,
                    schema=schema,
                    options=options,
                    folder=files,
                    shuffler=shuffler,
                    clock=clock,
                )
            conversation.begin_scenario(str(scenario.path), schema)
            sessions[schema].play(scenario)
    except SyncStopped:
        pass  # it is in the report and in the tally already
    return sessions


def _work_dir(options: DriveOptions, stack: ExitStack) -> Path:
    if options.work_dir is not None:
        try:
            options.work_dir.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise ConfigurationError(
                f"The work folder cannot be made: {failure.strerror}.",
                hint="Name another with --work-dir.",
                file=str(options.work_dir),
            ) from failure
        return options.work_dir.resolve()
    if options.keep_files:
        return Path(tempfile.mkdtemp(prefix="chronolake-drive-")).resolve()
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chronolake-drive-")))


def _dump(sessions: Mapping[str, Session], path: Path | None) -> None:
    if path is None:
        return
    content = {schema: session.model.dump() for schema, session in sessions.items()}
    try:
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    except OSError as failure:
        raise ConfigurationError(
            f"The expected contents cannot be written: {failure.strerror}.",
            hint="Name another file with --dump-model.",
            file=str(path),
        ) from failure
