"""The command up: the long-running process of a project."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from chronolake.cli.app import ProjectOption, SettingOption, app, main
from chronolake.cli.pipelines import project_of
from chronolake.engine import client, lock
from chronolake.errors import ConfigurationError, LakeError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import TextIO

    from chronolake.config import DestinationConfig, Project, WatchedProject
    from chronolake.engine.server import Engine
    from chronolake.engine.tasks import Task
    from chronolake.schedule import Moment

_POLL_SECONDS: Final = 0.1
#: Time in which an engine that no longer listens ends, with its Java.
_END_SECONDS: Final = 20.0


@app.command(
    epilog="Example: chronolake up. It is what systemd, containers and Kubernetes run. SIGTERM "
    "ends it after the current syncs, or after `up.grace`."
)
def up(*, project: ProjectOption = None, settings: SettingOption = None) -> None:
    """Run the pipelines of the project on their schedules, and the web UI; log JSON lines.

    Pipelines with `every` in chronolake.yml are synced on schedule. The sections `up.ui`,
    `up.health` and `up.destination` configure the web UI, /healthz and /metrics, and the gRPC
    destination. Other commands of the project run in this process's engine, with Spark running.
    """
    from chronolake.config import WatchedProject
    from chronolake.engine.server import Engine
    from chronolake.engine.tasks import Tasks
    from chronolake.extras import require
    from chronolake.server import logs

    if not client.is_supported():
        raise ConfigurationError(
            "`up` needs Linux.", hint="Elsewhere, run `chronolake sync --every 5m`."
        )
    read = partial(project_of, project, None, settings)
    found = read()
    if found.up.ui != "off":
        require("ui", "The web UI of `up` (`up.ui`)")
    if found.up.destination is not None:
        require("serve", "The destination of `up` (`up.destination`)")
    output = logs.reserve_standard_output()
    logs.configure(output)
    watched = WatchedProject(found, read, _log_invalid)
    started = Engine(
        found.lake.path,
        found.file,
        lambda: watched.current().lake,
        main,
        tasks=Tasks(partial(_tasks, watched, output, {})),
        grace_seconds=found.up.grace_seconds,
    )
    _stop_idle_engine(found.lake.path)
    _run(started)
    if started.has_failed:
        # systemd restarts what has failed, and alerts.
        raise LakeError(
            "`up` has ended because Java ended several times in a row.",
            hint="Its memory was probably too small: raise spark.conf.spark.driver.memory in "
            "chronolake.yml.",
        )
    if started.has_moved:
        # Everything begins again, for the other lake.
        os.dup2(output.fileno(), 1)
        os.execv(sys.executable, [sys.executable, "-m", "chronolake", *sys.argv[1:]])  # noqa: S606


def _stop_idle_engine(lake: Path) -> None:
    """End an engine that a command left running, and wait until its commands have ended."""
    state = client.control(lake, "status")
    if state is None or state["tasks"]:
        return
    client.control(lake, "stop")
    while client.control(lake, "status") is not None:
        time.sleep(_POLL_SECONDS)


def _run(engine: Engine) -> None:
    """Run the engine as soon as the one before has ended, with its commands.

    Raises:
        LakeError: the lake has another engine that does not end.
        StorageError: the lake's folder cannot be written.
    """
    import structlog

    began = time.monotonic()
    has_logged = False
    while not engine.run():
        if client.control(engine.lake, "status") is not None:
            raise LakeError(
                f"Another `up` of {engine.lake} is running.",
                hint="Stop it with `chronolake engine stop`.",
            )
        holder = lock.holder_of(engine.lake)
        if holder is None or not holder.may_run:
            if not has_logged:
                has_logged = True
                structlog.get_logger(__name__).warning(
                    "up_waits", reason="a command or run of the last engine has not ended"
                )
        elif time.monotonic() - began > _END_SECONDS:
            raise LakeError(
                f"Another engine of {engine.lake} is running, and does not respond: {holder}.",
                hint="Stop it there with `chronolake engine stop`.",
            )
        time.sleep(_POLL_SECONDS)


def _log_invalid(failure: Exception) -> None:
    import structlog

    structlog.get_logger(__name__).error("configuration_not_reloaded", reason=str(failure))


def _tasks(
    watched: WatchedProject, output: TextIO, schedules: dict[tuple[str, str], Moment]
) -> Mapping[str, Task]:
    """Return the tasks of the current project by name.

    A name contains what requires another process if it changes.

    Args:
        watched: the project.
        output: the log.
        schedules: when each pipeline's schedule began, which is kept for restarted tasks.
    """
    from chronolake.config import parse_address
    from chronolake.engine.tasks import Task
    from chronolake.schedule import Moment

    project = watched.current()
    tasks = {}
    for name, pipeline in project.pipelines.items():
        if pipeline.every is not None:
            since = schedules.setdefault((name, pipeline.every), Moment.now())
            tasks[f"pipeline {name}"] = Task(partial(_run_pipeline, watched, name, since))
    for name in project.targets:
        tasks[f"target {name}"] = Task(partial(_run_target, watched, name))
    if (ui := parse_address(project.up.ui)) is not None:
        tasks[f"ui {project.up.ui}"] = Task(partial(_run_ui, project, ui), uses_java=False)
    if (health := parse_address(project.up.health)) is not None:
        tasks[f"health {project.up.health}"] = Task(
            partial(_run_health, watched, health), uses_java=False
        )
    if (destination := project.up.destination) is not None:
        name = f"destination {destination.port}"
        tasks[name] = Task(partial(_run_destination, project, destination, output))
    return tasks


def _run_pipeline(watched: WatchedProject, name: str, since: Moment) -> None:
    from chronolake.lake import Lake
    from chronolake.pipeline.scheduled import sync_on_schedule

    is_stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_stopped.set())
    with Lake.prepare(watched.current().lake) as lake:
        sync_on_schedule(lake, watched.current, name, is_stopped, since)


def _run_target(watched: WatchedProject, name: str) -> None:
    from chronolake.lake import Lake
    from chronolake.target.runner import publish_on_schedule

    is_stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_stopped.set())
    with Lake.prepare(watched.current().lake) as lake:
        publish_on_schedule(lake, watched.current, name, is_stopped)


def _run_ui(project: Project, address: tuple[str, int]) -> None:
    import structlog

    from chronolake import ui

    log = structlog.get_logger(__name__)
    host, port = address
    ui.serve(
        project.lake,
        ui.UiOptions(host, port),
        lambda found: log.info("ui_listening", host=found.host, port=found.port, url=found.url),
        project=project.file,
    )


def _run_health(watched: WatchedProject, address: tuple[str, int]) -> None:
    from chronolake.engine import health

    def state() -> dict[str, Any] | None:
        return client.control(watched.current().lake.path, "status")

    health.serve(address, watched.current, state)


def _run_destination(project: Project, config: DestinationConfig, output: TextIO) -> None:
    from chronolake import server

    def resolved(file: Path | None) -> Path | None:
        return None if file is None else project.file.parent / file

    options = server.ServeOptions(
        port=config.port,
        hosts=tuple(config.hosts) or server.LOOPBACK,
        allow_plaintext=config.allow_plaintext,
        files_root=resolved(config.files_root),
        batch_format=config.batch_format,
        tls_cert=resolved(config.tls_cert),
        tls_key=resolved(config.tls_key),
        tls_client_ca=resolved(config.tls_client_ca),
        metrics_port=config.metrics_port,
        max_workers=config.max_workers,
        grace=project.up.grace_seconds,
    )
    code = server.serve(project.lake, options, output)
    if code:
        os._exit(code)
