"""Functions, generators and classes of a project: how they are called and read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json
from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.formatting import did_you_mean
from chronolake.source.python.declarations import CHECKPOINT, StreamDeclaration
from chronolake.source.python.failures import failure_of
from chronolake.source.python.groups import YieldedRecords
from chronolake.source.records.messages import Complete, Progress

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from chronolake.masking import Secrets
    from chronolake.source.records.messages import Message

_STATE: Final = "state"
_WINDOW: Final = "window"
#: The packages and names of dlt's classes; dlt is imported only by those who use it.
_OF_DLT: Final = {("dlt", "DltResource"), ("dlt", "DltSource"), ("dlt", "SourceFactory")}


@dataclass(frozen=True)
class Function:
    """A function, generator or class that yields records; a `Target`.

    Attributes:
        path: its module and name, as configured.
        called: the function or class.
        streams: the streams that it yields, by name.
        is_shared: whether it yields pairs of a stream's name and its records.
    """

    path: str
    called: Callable[..., Any]
    streams: Mapping[str, StreamDeclaration]
    is_shared: bool

    @property
    def takes_window(self) -> bool:
        """Return whether it can be asked for the records of a time range."""
        return _WINDOW in inspect.signature(self.called).parameters

    def read(
        self,
        config: Mapping[str, Any],
        state: Any,
        *,
        streams: Collection[str],  # noqa: ARG002 - a function yields the records of all streams
        new: Collection[str],
        secrets: Secrets,
        window: tuple[datetime, datetime] | None = None,
    ) -> Iterator[Message]:
        """Call it, and yield its records and states.

        Args:
            config: the values of its parameters.
            state: the stored state, or None.
            streams: the selected streams.
            new: those of which all records are needed.
            secrets: what errors must not contain.
            window: begin and end (exclusive) of the time range that is wanted; None: whatever is
                new.

        Raises:
            ConfigurationError: parameters are missing or unknown.
            SourceError: it fails, or yields something that is not a record.
        """
        is_new = state is None or bool(new)
        current: dict[str, Any] = {} if is_new else exact_json.loads(exact_json.dumps(state))
        arguments = self._arguments(config, current, window)
        groups = YieldedRecords()
        try:
            made = self.called(**arguments)
            if inspect.isclass(self.called) and callable(made):
                made = made()
            items = _items_of(made, self.path)
            with closing(items) if isinstance(items, GeneratorType) else closing(_Open()):
                for item in items:
                    if item is CHECKPOINT:
                        yield from groups.pass_on()
                        yield from self._progress(arguments)
                    else:
                        yield from groups.add(*self._split(item))
        except ChronolakeError:
            raise
        except Exception as failure:
            # The state may already be ahead of what was yielded.
            yield from groups.pass_on()
            error = failure_of(self.path, failure, secrets)
            if secrets.hides_messages:
                raise error from None
            raise error from failure
        yield from groups.pass_on()
        yield from self._progress(arguments)
        yield from (Complete(name) for name in self.streams)

    def _split(self, item: Any) -> tuple[str, Any]:
        """Return the stream and the records of something that was yielded."""
        if not self.is_shared:
            return next(iter(self.streams)), item
        match item:
            case (str() as name, rows):
                pass
            case _:
                raise SourceError(
                    f"{self.path} yielded {type(item).__name__}, and not a stream's name with its "
                    "records.",
                    hint='Yield pairs, such as `yield "orders", rows`.',
                )
        if name not in self.streams:
            raise SourceError(
                f"{self.path} yielded records of the unknown stream {name!r}.",
                hint=did_you_mean(name, self.streams, "Declare it in `streams`."),
            )
        return name, rows

    def _progress(self, arguments: Mapping[str, Any]) -> Iterator[Progress]:
        """Yield the state, if the function has one; it is valid for what was passed on."""
        if _STATE not in arguments:
            return
        try:
            state = exact_json.loads(exact_json.dumps(arguments[_STATE]))
        except (TypeError, ValueError):
            raise SourceError(
                f"The state of {self.path} is not JSON.",
                hint="Store only texts, numbers, lists and dictionaries in `state`.",
            ) from None
        yield Progress(state, None if self.is_shared else next(iter(self.streams)))

    def _arguments(
        self,
        config: Mapping[str, Any],
        state: dict[str, Any],
        window: tuple[datetime, datetime] | None,
    ) -> dict[str, Any]:
        parameters = inspect.signature(self.called).parameters
        takes_all = any(given.kind is given.VAR_KEYWORD for given in parameters.values())
        for name in config:
            if name not in parameters and not takes_all:
                raise ConfigurationError(
                    f"{self.path} has no parameter {name!r}, which source.config sets.",
                    hint=did_you_mean(name, parameters, "Remove it, or add the parameter."),
                )
        missing = [
            name
            for name, given in parameters.items()
            if name not in config
            and name not in {_STATE, _WINDOW}
            and given.default is given.empty
            and given.kind not in {given.VAR_KEYWORD, given.VAR_POSITIONAL}
        ]
        if missing:
            raise ConfigurationError(
                f"{self.path} needs values for {', '.join(missing)}.",
                hint="Set them below source.config in chronolake.yml.",
            )
        own = {_STATE: state, _WINDOW: window}
        return {**config, **{name: own[name] for name in own if name in parameters}}


class _Open:
    def close(self) -> None:
        """Do nothing."""


def is_dlt(found: object) -> bool:
    """Return whether an object is a source or resource of dlt, or a function that returns one."""
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(found).__mro__}
    return bool(names & _OF_DLT)


def _items_of(made: Any, path: str) -> Iterator[Any]:
    if is_dlt(made):
        raise SourceError(
            f"{path} returned a dlt source or resource, whose state would be lost.",
            hint="Assign it to a variable of the module, and set source.run to the variable; or "
            "decorate the function with @dlt.source.",
        )
    if isinstance(made, Mapping) or hasattr(made, "__arrow_c_stream__"):
        return iter([made])
    if not isinstance(made, Iterable) or isinstance(made, str | bytes):
        raise SourceError(
            f"{path} returned {type(made).__name__}, and not records.",
            hint="Return a list of records, or yield them.",
        )
    return iter(made)
