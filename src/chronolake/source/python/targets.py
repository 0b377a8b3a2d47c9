"""What `source.run` names: how it is found, and what a source needs of it."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.formatting import did_you_mean
from chronolake.source.python.declarations import StreamDeclaration, declarations_of
from chronolake.source.python.failures import describe_failure
from chronolake.source.python.functions import Function, is_dlt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from chronolake.config import PythonSource
    from chronolake.masking import Secrets
    from chronolake.source.records.messages import Message

_TARGET: Final = "Write `run: module:name`, such as `run: mymodule:orders`."
_REMOVE: Final = "Remove the setting from chronolake.yml, or the decorator."
_APPLY: Final = "Remove the setting, and set hints in the module: resource.apply_hints(...)."


class Target(Protocol):
    """A function, class, or source of dlt that yields records."""

    @property
    def path(self) -> str:
        """Return its module and name, as configured."""
        ...

    @property
    def streams(self) -> Mapping[str, StreamDeclaration]:
        """Return the streams that it yields, by name."""
        ...

    @property
    def is_shared(self) -> bool:
        """Return whether it has one state for all streams."""
        ...

    @property
    def takes_window(self) -> bool:
        """Return whether it can be asked for the records of a time range."""
        ...

    def read(
        self,
        config: Mapping[str, Any],
        state: Any,
        *,
        streams: Collection[str],
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
            window: begin and end (exclusive) of the time range that is wanted, if the target takes
                one; None: whatever is new.

        Raises:
            ConfigurationError: parameters are missing or unknown.
            SourceError: it fails, or yields something that is not a record.
        """
        ...


@runtime_checkable
class ImportingTarget(Target, Protocol):
    """A target that continues the state of another program."""

    def import_state(self, sources: Mapping[str, Any]) -> Any:
        """Return the state that continues a pipeline of dlt; None if it did not load this source.

        Args:
            sources: the states of the pipeline's sources, by name.

        Raises:
            ConfigurationError: the state does not fit.
        """
        ...


def load_target(path: str, folder: Path, config: PythonSource) -> Target:
    """Import a function, a class, or a source or resource of dlt.

    Args:
        path: its module and name: `mymodule:orders`.
        folder: the project's folder, where its modules are found before installed ones.
        config: the configuration of the pipeline's source.

    Raises:
        ConfigurationError: it does not exist, or its module cannot be imported.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigurationError(f"{path!r} is not the path of a function.", hint=_TARGET)
    called = _attribute_of(_import(module_name, folder), name)
    settings = config.options
    if is_dlt(called):
        _expect_unset(settings, f"{path} is a source of dlt, which has its own hints", _APPLY)
        return _dlt_target(path, called, config.config)
    if not callable(called):
        raise ConfigurationError(
            f"{path} is not a function or class, but of the type {type(called).__name__}.",
            hint=_TARGET,
        )
    declared = declarations_of(called)
    if declared is not None:
        _expect_unset(settings, f"{path} declares its streams", _REMOVE)
    streams = declared or {getattr(called, "__name__", name): StreamDeclaration.of(**settings)}
    return Function(path, called, streams, is_shared=declared is not None and len(declared) > 1)


def _expect_unset(settings: Iterable[str], reason: str, hint: str) -> None:
    if given := ", ".join(settings):
        raise ConfigurationError(
            f"{reason}, and chronolake.yml sets source.{given} as well.", hint=hint
        )


def _dlt_target(path: str, found: Any, config: Mapping[str, Any]) -> Target:
    try:
        # dlt is optional, and takes a second to import.
        from chronolake.source.python.dlt_sources import DltTarget  # noqa: PLC0415
    except ImportError as failure:
        raise ConfigurationError(
            f"The installed version of dlt cannot be used: {failure}.",
            hint="Install a version that docs/sources/python.md names.",
        ) from failure
    return DltTarget.of(path, found, config)


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
                f"The Python module {name} does not exist.",
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
            f"The Python module {name} cannot be imported: {describe_failure(failure)}",
            hint="Correct the module.",
        ) from failure


def _attribute_of(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            offered = [known for known in vars(found) if not known.startswith("_")]
            raise ConfigurationError(
                f"The Python module {module.__name__} has no {name}.",
                hint=did_you_mean(part, offered, _TARGET),
            )
        found = getattr(found, part)
    return found
