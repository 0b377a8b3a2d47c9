"""The switch of a pipeline's table, at once and also while the pipeline is synced."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.cli.app import console, open_lake, print_json
from chronolake.errors import (
    ChronolakeError,
    ConfigurationError,
    LakeError,
    PipelineBusyError,
    TableNotFoundError,
)
from chronolake.failpoints import reach
from chronolake.formatting import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.config import LakeConfig, Project
    from chronolake.inspect.catalog import CatalogTable
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.store import Store
    from chronolake.pipeline.streams import Stream
    from chronolake.pipeline.switch_requests import SwitchRequest
    from chronolake.types import Mode, TableName

#: Seconds between two looks at the lease and the request.
_POLL_SECONDS: Final = 0.2


def switch(
    config: LakeConfig,
    table: CatalogTable,
    filled_by: str,
    wanted: Mode,
    *,
    find: Callable[[], Project],
    dry_run: bool,
    json: bool,
) -> None:
    """Switch the table of a pipeline to the mode that chronolake.yml sets for it.

    Args:
        config: the lake.
        table: the table.
        filled_by: the pipeline and stream that write it.
        wanted: its new mode.
        find: returns the project whose pipelines write the lake.
        dry_run: whether to print only what would change.
        json: whether to print JSON.

    Raises:
        ConfigurationError: chronolake.yml has another mode, or none is possible.
        LakeError: the table could not be switched.
    """
    pipeline, _, name = filled_by.partition("/")
    stream = _stream_of(find, pipeline, name, table, wanted)
    if table.mode is wanted or dry_run:
        _print(_outcome(config, table, stream, is_done=False), json=json)
        return
    _Switch(config, table, stream, json).run()
    outcome = _outcome(config, table, stream, is_done=True)
    if not outcome["done"]:
        raise LakeError(
            "The table still has its previous mode.",
            table=str(table.name),
            hint=f"Run `chronolake sync {pipeline}`, which reports the reason.",
        )
    _print(outcome, json=json)


def not_created_yet(
    name: TableName, wanted: Mode, find: Callable[[], Project]
) -> TableNotFoundError | None:
    """Return the error for a table that a pipeline will create; None if none is known to do so."""
    from chronolake.cli.pipelines import find_stream

    try:
        # Another pipeline's source may be unreachable.
        stream = find_stream(find(), name, failed=lambda _: None)
    except ChronolakeError:
        return None
    if stream is None:
        return None
    hint = f"The first sync creates it in {stream.mode} mode."
    if stream.mode is not wanted:
        setting = _yaml_setting(stream.pipeline, stream.name, wanted)
        hint += f" For {wanted} mode, set `{setting}` in chronolake.yml before."
    return TableNotFoundError(
        f"No sync of the pipeline {stream.pipeline} has created the table yet, so there is "
        "nothing to switch.",
        table=str(name),
        hint=hint,
    )


def _stream_of(
    find: Callable[[], Project], pipeline: str, name: str, table: CatalogTable, wanted: Mode
) -> Stream:
    """Return the stream that writes a table, as chronolake.yml configures it.

    Raises:
        ConfigurationError: the stream does not have the wanted mode there, or cannot have it.
    """
    from chronolake.pipeline.streams import list_streams, source_of
    from chronolake.stream_modes import check_mode

    refusal = ConfigurationError(
        f"The pipeline {pipeline} fills the table, so chronolake.yml determines its mode.",
        table=str(table.name),
        hint=f"Set `{_yaml_setting(pipeline, name, wanted)}` in chronolake.yml, and run the "
        "command again.",
    )
    try:
        project = find()
        listing = list_streams(project, pipeline, source_of(project, pipeline), any_mode=True)
    except ChronolakeError as failure:
        # `check` reports errors of the file or the source in detail.
        raise refusal from failure
    for stream in listing.streams:
        if stream.name == name:
            check_mode(stream.descriptor.capabilities, wanted, table=stream.table)
            if stream.mode is wanted:
                return stream
    raise refusal


def _yaml_setting(pipeline: str, stream: str, target: Mode) -> str:
    """Return the setting for chronolake.yml."""
    import yaml

    setting = {"pipelines": {pipeline: {"streams": {stream: {"mode": target.value}}}}}
    written = yaml.safe_dump(setting, default_flow_style=True, width=math.inf, allow_unicode=True)
    # The outer braces are optional.
    return str(written).strip()[1:-1]


@dataclass
class _Switch:
    """A switch: by this process if nothing runs the pipeline, or else by the one that does."""

    config: LakeConfig
    table: CatalogTable
    stream: Stream
    json: bool
    _is_begun: bool = False

    def run(self) -> None:
        """Return when the table has its new mode.

        Raises:
            ChronolakeError: the table could not be switched.
        """
        from chronolake.pipeline.lease import greatest_token_read, hold_lease
        from chronolake.pipeline.store import Store
        from chronolake.pipeline.switch_requests import RequestReader, RequestState, set_state

        store = Store.open(self.config)
        requests = RequestReader(self.config.store_database)
        above = greatest_token_read([self.table])
        request: SwitchRequest | None = None
        try:
            while True:
                with ExitStack() as held:
                    try:
                        lease = held.enter_context(
                            hold_lease(store, self.stream.pipeline, above=above)
                        )
                    except PipelineBusyError as busy:
                        if request is None:
                            request = self._request(store, busy)
                    else:
                        self._switch_here(lease)
                        if request is not None:
                            set_state(store, request, RequestState.DONE)
                        return
                if request is not None and self._is_answered(requests.current(request)):
                    return
                time.sleep(_POLL_SECONDS)
        except BaseException:
            if request is not None:
                set_state(store, request, RequestState.CANCELLED)
            raise

    def _request(self, store: Store, busy: PipelineBusyError) -> SwitchRequest:
        from chronolake.pipeline.switch_requests import store_request

        request = store_request(store, self.stream.pipeline, self.stream.name, self.stream.mode)
        reach("switch.requested")
        self._show(
            f"{busy.message} Waiting for the sync of the pipeline {self.stream.pipeline} to pause."
        )
        return request

    def _switch_here(self, lease: Lease) -> None:
        from chronolake.pipeline.mode_switch import switch_table

        self._show(f"Switching {self.stream.table} to {self.stream.mode} mode.")
        with open_lake(self.config, json=self.json) as lake:
            switch_table(lake, self.stream, lease)

    def _is_answered(self, now: SwitchRequest | None) -> bool:
        """Return whether another process has switched the table, from the current request.

        Raises:
            LakeError: it could not, or a later request has replaced this one.
        """
        from chronolake.pipeline.switch_requests import RequestState

        if now is None:
            raise LakeError(
                "A later command has requested another switch of the table.",
                table=str(self.stream.table),
                hint="`chronolake runs` shows the switches of the pipeline.",
            )
        if now.state is RequestState.REFUSED:
            raise LakeError(
                now.error or "The table could not be switched.",
                table=str(self.stream.table),
                hint=now.hint or "`chronolake runs` shows the errors of the pipeline.",
            )
        if now.state is RequestState.SWITCHING and not self._is_begun:
            self._is_begun = True
            self._show(f"The sync is paused. Switching {self.stream.table}.")
        return now.state is RequestState.DONE

    def _show(self, text: str) -> None:
        if not self.json:
            console(stderr=True).print(text, style="dim", markup=False, highlight=False)


def _outcome(
    config: LakeConfig, before: CatalogTable, stream: Stream, *, is_done: bool
) -> dict[str, Any]:
    """Return the planned or completed change as JSON types."""
    from chronolake import inspect

    after = inspect.look_up(config, before.name) if is_done else before
    old, new = ([column.name for column in table.columns] for table in (before, after))
    return {
        "table": str(before.name),
        "pipeline": stream.pipeline,
        "stream": stream.name,
        "from": before.mode.value,
        "to": stream.mode.value,
        "done": is_done and after.mode is stream.mode,
        "added_columns": [name for name in new if name not in old],
        "dropped_columns": [name for name in old if name not in new],
    }


def _print(outcome: dict[str, Any], *, json: bool) -> None:
    from rich.text import Text

    from chronolake.types import TableName

    if json:
        print_json(outcome)
        return
    schema, _, table = outcome["table"].partition(".")
    name = (name_of(TableName(schema, table)), "bold")
    if outcome["from"] == outcome["to"]:
        text = f"  is in {outcome['to']} mode; nothing to do"
    else:
        words = "switched" if outcome["done"] else "would be rebuilt from its landing files"
        text = f"  {words} from {outcome['from']} to {outcome['to']} mode"
    console().print(Text.assemble(name, text))
