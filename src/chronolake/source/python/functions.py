"""Functions and classes of a project: how they are found, called and read."""

from __future__ import annotations

import importlib
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json
from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.formatting import did_you_mean
from chronolake.masking import mask_text
from chronolake.source.python.declarations import CHECKPOINT, StreamDeclaration, declarations_of
from chronolake.source.python.rows import rows_in
from chronolake.source.records.messages import Complete, Progress, Records

if TYPE_CHECKING:
    from datetime import datetime

    from chronolake.masking import Secrets
    from chronolake.source.records.messages import Message

#: Records are passed on in groups of this size, or after this time in seconds.
_ROWS: Final = 5_000
_SECONDS: Final = 5.0
_STATE: Final = "state"
_WINDOW: Final = "window"
_TARGET: Final = "Write `run: module:name`, such as `run: mymodule:orders`."


@dataclass(frozen=True)
class Target:
    """A function, generator or class that yields records.

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
        secrets: Secrets,
        window: tuple[datetime, datetime] | None = None,
    ) -> Iterator[Message]:
        """Call it, and yield its records and states.

        Args:
            config: the values of its parameters.
            state: the stored state, or None.
            secrets: what errors must not contain.
            window: begin and end (exclusive) of the time range that is wanted; None: whatever is
                new.

        Raises:
            ConfigurationError: parameters are missing or unknown.
            SourceError: it fails, or yields something that is not a record.
        """
        current: dict[str, Any] = {} if state is None else exact_json.loads(exact_json.dumps(state))
        arguments = self._arguments(config, current, window)
        groups = _Groups(self, None if _STATE not in arguments else current)
        try:
            made = self.called(**arguments)
            if inspect.isclass(self.called) and callable(made):
                made = made()
            items = _items_of(made, self.path)
            with closing(items) if isinstance(items, GeneratorType) else closing(_Open()):
                for item in items:
                    yield from groups.add(item)
        except ChronolakeError:
            raise
        except Exception as failure:
            # The state may already be ahead of what was yielded.
            yield from groups.pass_on()
            raise _failure_of(self, failure, secrets) from failure
        yield from groups.checkpoint()
        yield from (Complete(name) for name in self.streams)

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


class _Groups:
    """Records that are passed on in groups, and the state at checkpoints."""

    def __init__(self, target: Target, state: dict[str, Any] | None) -> None:
        self._target = target
        self._state = state
        self._only = next(iter(target.streams))
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._count = 0
        self._began = time.monotonic()

    def add(self, item: Any) -> Iterator[Message]:
        """Take something that was yielded, and yield the groups that are full."""
        if item is CHECKPOINT:
            yield from self.checkpoint()
            return
        name, rows = self._split(item) if self._target.is_shared else (self._only, item)
        for row in rows_in(rows, stream=name):
            if isinstance(row, dict):
                self._rows.setdefault(name, []).append(row)
                self._count += 1
                if self._count >= _ROWS:
                    yield from self.pass_on()
            else:
                yield from self.pass_on()
                yield Records(name, row)
        if time.monotonic() - self._began >= _SECONDS:
            yield from self.pass_on()

    def checkpoint(self) -> Iterator[Message]:
        """Yield what was not passed on, and the state after it."""
        yield from self.pass_on()
        if self._state is not None:
            yield Progress(self._copied_state(), None if self._target.is_shared else self._only)

    def pass_on(self) -> Iterator[Message]:
        """Yield what was not passed on."""
        for name, rows in self._rows.items():
            yield Records(name, rows)
        self._rows, self._count, self._began = {}, 0, time.monotonic()

    def _split(self, item: Any) -> tuple[str, Any]:
        match item:
            case (str() as name, rows):
                pass
            case _:
                raise self._pair_error(item)
        if name not in self._target.streams:
            raise SourceError(
                f"{self._target.path} yielded records of the unknown stream {name!r}.",
                hint=did_you_mean(name, self._target.streams, "Declare it in `streams`."),
            )
        return name, rows

    def _pair_error(self, item: Any) -> SourceError:
        return SourceError(
            f"{self._target.path} yielded {type(item).__name__}, and not a stream's name with its "
            "records.",
            hint='Yield pairs, such as `yield "orders", rows`.',
        )

    def _copied_state(self) -> Any:
        try:
            return exact_json.loads(exact_json.dumps(self._state))
        except (TypeError, ValueError):
            raise SourceError(
                f"The state of {self._target.path} is not JSON.",
                hint="Store only texts, numbers, lists and dictionaries in `state`.",
            ) from None


def load_target(
    path: str, folder: Path, default: StreamDeclaration, settings: Iterable[str]
) -> Target:
    """Import a function or class.

    Args:
        path: its module and name: `mymodule:orders`.
        folder: the project's folder, where its modules are found before installed ones.
        default: what a function without a decorator yields.
        settings: the options that the configuration sets, which only such a function has.

    Raises:
        ConfigurationError: it does not exist, or its module cannot be imported.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigurationError(f"{path!r} is not the path of a function.", hint=_TARGET)
    called = _attribute_of(_import(module_name, folder), name, path)
    declared = declarations_of(called)
    if declared is not None and (given := ", ".join(settings)):
        raise ConfigurationError(
            f"{path} declares its streams, and chronolake.yml sets source.{given} as well.",
            hint="Remove the setting from chronolake.yml, or the decorator.",
        )
    streams = declared or {getattr(called, "__name__", name): default}
    return Target(path, called, streams, is_shared=declared is not None and len(declared) > 1)


def _import(name: str, folder: Path) -> Any:
    place = str(folder)
    if place not in sys.path:
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as failure:
        if failure.name is not None and (
            name == failure.name or name.startswith(f"{failure.name}.")
        ):
            raise ConfigurationError(
                f"There is no Python module {name}.",
                hint=f"Create {name.replace('.', '/')}.py beside chronolake.yml, or install its "
                "package.",
            ) from None
        raise ConfigurationError(
            f"The Python module {name} needs the module {failure.name}, which is not installed.",
            hint="Install its package where chronolake is installed.",
        ) from failure
    except ChronolakeError:
        raise
    except Exception as failure:
        raise ConfigurationError(
            f"The Python module {name} cannot be imported: {_described(failure)}",
            hint="Correct the module.",
        ) from failure


def _attribute_of(module: Any, name: str, path: str) -> Callable[..., Any]:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            offered = [known for known in vars(found) if not known.startswith("_")]
            raise ConfigurationError(
                f"The Python module {module.__name__} has no {name}.",
                hint=did_you_mean(part, offered, _TARGET),
            )
        found = getattr(found, part)
    if not callable(found):
        raise ConfigurationError(
            f"{path} is not a function or class, but of the type {type(found).__name__}.",
            hint=_TARGET,
        )
    result: Callable[..., Any] = found
    return result


def _items_of(made: Any, path: str) -> Iterator[Any]:
    if isinstance(made, Mapping) or hasattr(made, "__arrow_c_stream__"):
        return iter([made])
    if not isinstance(made, Iterable) or isinstance(made, str | bytes):
        raise SourceError(
            f"{path} returned {type(made).__name__}, and not records.",
            hint="Return a list of records, or yield them.",
        )
    return iter(made)


def _failure_of(target: Target, failure: Exception, secrets: Secrets) -> SourceError:
    message = secrets.mask(_described(failure))
    own = [
        frame
        for frame in traceback.extract_tb(failure.__traceback__)
        if Path(frame.filename).parent != Path(__file__).parent
    ]
    place = own[-1] if own else None
    return SourceError(
        f"{target.path} failed with {message}",
        file=None if place is None else f"{Path(place.filename).name}, line {place.lineno}",
        hint="Records that it yielded before are kept. Correct it, and run the sync again.",
    )


def _described(failure: Exception) -> str:
    return mask_text(f"{type(failure).__name__}: {failure}")
