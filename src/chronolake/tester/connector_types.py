"""Scenarios that look like what the vendor's connectors of each type send.

Source: `seeds/destination-connector.txt` ("Testing"). `scenarios/` has a folder for each connector,
whose files are the syncs of one connection, in their order. The logs of the platform connector,
which are too large for files, are made here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ConfigurationError
from chronolake.tester.scenario import parse_scenario, read_scenario, scenario_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chronolake.tester.scenario import Scenario

FOLDER: Final = Path(__file__).with_name("scenarios")
#: The name that selects all connectors.
ALL: Final = "all"
PLATFORM: Final = "platform"
DEFAULT_LOG_ROWS: Final = 10_000
#: One of this many rows of a log is sent again with the next batch.
_REPEATED_EVERY: Final = 100
_EVENTS: Final = ("read_start", "records_modified", "read_end", "write_to_table_start")


@dataclass(frozen=True, slots=True)
class ConnectorScenario:
    """A sync of a connector.

    Attributes:
        connector: the connector's name, a part of the name of its schema.
        scenario: what the sync sends.
    """

    connector: str
    scenario: Scenario


def connector_names() -> tuple[str, ...]:
    """Return the names of all connectors, in alphabetical order."""
    return tuple(sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir()))


def connector_scenarios(names: Iterable[str], *, log_rows: int) -> Iterator[ConnectorScenario]:
    """Yield the syncs of connectors, those of one connector in their order.

    Args:
        names: names of connectors, or `all`.
        log_rows: the rows of each large batch of the platform connector's log; 0 leaves them out.

    Raises:
        ConfigurationError: a connector does not exist.
    """
    known = connector_names()
    wanted = dict.fromkeys(name for given in names for name in (known if given == ALL else [given]))
    for name in wanted:
        if name not in known:
            raise ConfigurationError(
                f"Unknown connector: {name!r}.",
                hint=f"Use {', '.join(known)}, or {ALL}.",
            )
        for path in scenario_files([FOLDER / name]):
            yield ConnectorScenario(name, read_scenario(path))
        if name == PLATFORM and log_rows > 0:
            for number, label in ((0, "3_high_volume"), (1, "4_high_volume_again")):
                path = FOLDER / name / f"{label}.json"
                content = _log_batch(number, log_rows)
                yield ConnectorScenario(name, parse_scenario(content, path))


def _log_batch(number: int, rows: int) -> dict[str, Any]:
    """Return a batch of the append-only log; some rows of the one before are sent again."""
    begin = number * rows
    repeated = range(begin - rows, begin, _REPEATED_EVERY) if number else ()
    entries = [_log_entry(ordinal) for ordinal in (*repeated, *range(begin, begin + rows))]
    return {"ops": [{"upsert": {"log": entries}}], "describe_table": ["log"]}


def _log_entry(ordinal: int) -> dict[str, Any]:
    seconds, millis = divmod(ordinal, 1_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return {
        # The key that replaces a missing one is a hash of the row.
        "_fivetran_id": hashlib.sha256(f"volume {ordinal}".encode()).hexdigest()[:27],
        "time_stamp": f"2024-07-{1 + days:02d}T{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}Z",
        "connection_id": f"conn_{ordinal % 50}",
        "event": "INFO" if ordinal % 10 else "WARNING",
        "message_event": _EVENTS[ordinal % len(_EVENTS)],
        "message_data": {"table": f"t{ordinal % 997}", "count": ordinal % 100_000},
        "sync_id": f"sync-{ordinal // 5_000}",
    }
