"""Projects of the Fivetran Connector SDK: `connector.py` with `update` and `schema`.

Source: the documentation of the Fivetran Connector SDK, version 3. The project runs in an
environment of its own (`fivetran_runner`). Its state is that of all tables.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json
from chronolake.errors import ConfigurationError, SourceError
from chronolake.formatting import did_you_mean
from chronolake.source.connectors import fivetran_runner
from chronolake.source.connectors.environments import environment
from chronolake.source.connectors.json_lines import RecordGroups, messages_in
from chronolake.source.connectors.process import ConnectorProcess
from chronolake.source.connectors.program import arguments_of, json_files, program_in
from chronolake.source.protocol import CaptureMethod
from chronolake.source.records.identity import Identity
from chronolake.source.records.messages import Complete, Deletions, Emptied, Progress, Records
from chronolake.source.records.reader import RecordStream
from chronolake.source.records.source import RecordSource
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from chronolake.config import FivetranSource, Project
    from chronolake.masking import Secrets
    from chronolake.source.connectors.json_lines import Content
    from chronolake.source.records.messages import Message

_FILE: Final = "connector.py"
_CONFIGURATION: Final = "configuration.json"
_REQUIREMENTS: Final = "requirements.txt"
_DECLARE: Final = (
    "Add it to `schema` of connector.py, or to source.keys with its key columns: `{name}: [id]`."
)
_ADVICE: Final = "Correct the primary_key of the table in `schema` of connector.py."
#: The types of the SDK; others are texts.
_KINDS: Final = {
    "BOOLEAN": Kind.BOOLEAN,
    "BINARY": Kind.BINARY,
    "SHORT": Kind.SHORT,
    "INT": Kind.LONG,
    "LONG": Kind.LONG,
    "FLOAT": Kind.DOUBLE,
    "DOUBLE": Kind.DOUBLE,
    "NAIVE_DATE": Kind.NAIVE_DATE,
    "NAIVE_DATETIME": Kind.NAIVE_DATETIME,
    "UTC_DATETIME": Kind.UTC_DATETIME,
    "JSON": Kind.JSON,
}


#: What operations contain (`messages_in`).
_ROW: Final[dict[str, type]] = {"table": str, "data": dict}
_CONTENT: Final[Content] = {
    "SCHEMA": {"tables": list},
    "UPSERT": _ROW,
    "UPDATE": _ROW,
    "DELETE": _ROW,
    "TRUNCATE": {"table": str},
    "STATE": {"value": dict},
}


class FivetranProject(RecordSource):
    """The tables of a project of the Connector SDK."""

    def __init__(self, project: Project, pipeline: str, config: FivetranSource) -> None:
        super().__init__(project, pipeline)
        self._config = config
        self._folder = project.file.parent / config.path

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """Return the project's configuration: from chronolake.yml, or from its own file."""
        file = self._folder / _CONFIGURATION
        if self._config.config or not file.is_file():
            return self._config.config
        try:
            found = exact_json.loads(file.read_bytes())
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigurationError(
                f"{file} is not a JSON object.", hint="Correct it, or set source.config."
            )
        return found

    @property
    def _secrets(self) -> Secrets:
        return self.secrets_of([self._settings, self._config.environment])

    @cached_property
    def _python(self) -> list[str]:
        """Return the Python that runs the project; its packages are installed if necessary."""
        if not (self._folder / _FILE).is_file():
            raise ConfigurationError(
                f"The folder {self._config.path} has no {_FILE}.",
                hint="Set source.path to the folder of a project of the Fivetran Connector SDK.",
            )
        if self._config.python is not None:
            return [program_in(self.project.file.parent, self._config.python)]
        file = self._folder / _REQUIREMENTS
        lines = file.read_text().splitlines() if file.is_file() else []
        own = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        return [str(environment([self._config.sdk, *own]) / "bin" / "python")]

    def _start(self, command: str, paths: Mapping[str, str]) -> ConnectorProcess:
        runner = str(Path(fivetran_runner.__file__))
        words = [runner, str(self._folder.resolve()), command]
        return ConnectorProcess(
            [*self._python, *words, *arguments_of(paths, ["config", "state"])],
            pipeline=self.pipeline,
            folder=self._folder,
            secrets=self._secrets,
            silent_seconds=self._config.silent_seconds,
            variables=self._config.environment,
            name=_FILE,
        )

    @cached_property
    def _tables(self) -> dict[str, Mapping[str, Any]]:
        """Return the configured tables as the project declares them."""
        found: list[Mapping[str, Any]] = []
        with json_files({"config": self._settings}) as paths:
            for message in messages_in(self._start("schema", paths), _CONTENT):
                if message["type"] == "SCHEMA":
                    found = message["tables"]
        for table in found:
            if not isinstance(table, dict) or not isinstance(table.get("table"), str):
                raise SourceError(
                    f"{self._config.path}: `schema` of {_FILE} returns a table without a name.",
                    hint='Return a list of dictionaries, such as {"table": "orders"}.',
                )
        tables = {_name_of(table.get("schema"), table["table"]): table for table in found}
        for name, key in self._config.keys.items():
            declared = tables.setdefault(name, {"table": name.rpartition(".")[2]})
            tables[name] = {**declared, "primary_key": declared.get("primary_key") or key}
        if not tables:
            raise ConfigurationError(
                f"{self._config.path}: the connector declares no tables.",
                hint=_DECLARE.format(name="orders"),
            )
        for name in self._config.only or ():
            if name not in tables:
                raise ConfigurationError(
                    f"{self.project.file}: pipelines.{self.pipeline}.source.only: the connector "
                    f"has no table {name!r}.",
                    hint=did_you_mean(name, tables, f"It has: {', '.join(tables) or 'none'}."),
                )
        return {name: table for name, table in tables.items() if self._is_wanted(name)}

    def _is_wanted(self, name: str) -> bool:
        wanted = self._config.only
        return (wanted is None or name in wanted) and self.is_selected(name)

    def streams(self) -> list[RecordStream]:
        """Return the tables that `schema` of the project or the configuration declares."""
        return [
            RecordStream(
                name,
                # Each operation is a change of its own: an update continues the one before it.
                CaptureMethod.EVERY_CHANGE,
                Identity(tuple((key,) for key in table.get("primary_key") or ()), advice=_ADVICE),
                self.folder_of(name),
                _types_of(table.get("columns") or {}),
                default_table=table["table"],
            )
            for name, table in self._tables.items()
        ]

    def messages(
        self, states: Mapping[str, Any], shared: Any, *, new: Collection[str]
    ) -> Iterator[Message]:
        """Run `update`, and yield its operations on the selected tables."""
        # A new table needs all of its rows, and the state is that of all tables.
        state = {} if shared is None or new else shared
        contents = {"config": self._settings, "state": state}
        is_whole = self._tables.keys() <= states.keys()
        with json_files(contents) as paths:
            groups = RecordGroups()
            for message in messages_in(self._start("update", paths), _CONTENT):
                if message["type"] == "UPSERT":
                    name = _name_of(message["schema"], message["table"])
                    self._expect_declared(name)
                    if name in states:
                        yield from groups.add(name, message["data"])
                    continue
                yield from groups.pass_on()
                yield from self._other(message, states, is_whole=is_whole)
            yield from groups.pass_on()
        yield from (Complete(name) for name in states)

    def _other(
        self, message: Mapping[str, Any], states: Mapping[str, Any], *, is_whole: bool
    ) -> Iterator[Message]:
        kind = message["type"]
        if kind == "STATE":
            if is_whole:
                yield Progress(message["value"])
            return
        if kind == "ERROR":
            said = self._secrets.mask(str(message["message"]))
            raise SourceError(
                f"The connector reports: {said}",
                hint="Run the sync again; it continues after the last state.",
            )
        if "table" not in message:
            return
        name = _name_of(message["schema"], message["table"])
        self._expect_declared(name)
        if name not in states:
            return
        if kind in {"UPDATE", "DELETE"} and not self._tables[name].get("primary_key"):
            raise SourceError(
                f"The connector calls op.{kind.lower()} for the table {name}, which has no key to "
                "identify the row.",
                hint=f"Declare its primary_key in `schema` of connector.py, or its key columns in "
                f"source.keys: `{{{name}: [id]}}`.",
            )
        match kind:
            case "UPDATE":
                yield Records(name, [message["data"]], omit_others=True)
            case "DELETE":
                yield Deletions(name, [message["data"]])
            case "TRUNCATE":
                yield Emptied(name)

    def _expect_declared(self, name: str) -> None:
        if name not in self._tables and self._is_wanted(name):
            raise SourceError(
                f"The connector writes the table {name}, which its schema does not declare.",
                hint=_DECLARE.format(name=name),
            )


def _name_of(schema: str | None, table: str) -> str:
    return f"{schema}.{table}" if schema else table


def _types_of(columns: Mapping[str, Any]) -> dict[str, ColumnType]:
    found = {}
    for name, declared in columns.items():
        if isinstance(declared, dict):
            parameters = declared.get("precision"), declared.get("scale")
            if declared.get("type") == "DECIMAL":
                found[name] = ColumnType(Kind.DECIMAL, *parameters)
            continue
        if str(declared) in _KINDS:
            found[name] = ColumnType(_KINDS[str(declared)])
        elif str(declared) == "STRING":
            found[name] = ColumnType(Kind.STRING)
    return found
