"""Calls of the connector's own classes: one at a time, and with errors that say where they are."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ChronolakeError, SourceError
from chronolake.source.declarative.components.loading import where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chronolake.source.declarative.language.custom import Origin

_LONGEST: Final = 500


class Calls:
    """One instance of a class. Its methods are called by one thread at a time, also by several.

    Every method raises SourceError where the class raises anything.
    """

    def __init__(
        self,
        class_name: str,
        origin: Origin,
        make: Callable[[], Any],
        *,
        mask: Callable[[str], str] = str,
    ) -> None:
        """Make the instance.

        Args:
            class_name: as the manifest has it.
            origin: where the manifest has it.
            make: makes it.
            mask: hides the configuration's secrets in a text.

        Raises:
            SourceError: it cannot be made.
        """
        self._name = class_name.rpartition(".")[2]
        self._origin = origin
        self._mask = mask
        self._lock = threading.RLock()
        self._instance: Any = None
        self._instance = self._run("__init__", make)

    @property
    def instance(self) -> Any:
        """The instance, for what calls it by itself."""
        return self._instance

    def of(self, instance: Any) -> Calls:
        """Calls of something that the instance has."""
        return Calls(type(instance).__name__, self._origin, lambda: instance, mask=self._mask)

    def has(self, method: str) -> bool:
        """Whether there is such a method."""
        # A class can always be called; that is not what is asked for.
        return inspect.getattr_static(self._instance, method, None) is not None

    def takes(self, method: str, argument: str) -> bool:
        """Whether a method knows an argument by its name."""
        try:
            parameters = inspect.signature(getattr(self._instance, method)).parameters
        except (TypeError, ValueError):
            return False
        return argument in parameters or any(
            one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()
        )

    def value(self, name: str, default: Any = None) -> Any:
        """An attribute, or a default where there is none."""
        if inspect.getattr_static(self._instance, name, self) is self:
            return default
        with self._lock:
            return self._run(name, lambda: getattr(self._instance, name))

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """What a method gives."""
        with self._lock:
            try:
                return getattr(self._instance, method)(*arguments, **named)
            except ChronolakeError:
                raise
            except (Exception, SystemExit) as failure:  # noqa: BLE001 - anything may come of it
                raise self._error(method, failure) from None

    def listed(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """All that a method gives, one after the other."""

        def all_of_it() -> list[Any]:
            return list(getattr(self._instance, method)(*arguments, **named) or ())

        with self._lock:
            found: list[Any] = self._run(method, all_of_it)
        return found

    def mapping(self, method: str, *arguments: Any, **named: Any) -> dict[str, Any] | None:
        """The names and values that a method gives, or None."""
        found = self.call(method, *arguments, **named)
        if found is not None and not isinstance(found, Mapping):
            raise SourceError(
                f"{self._name}.{method}, which the stream {self._origin.stream} needs, gives "
                f"{type(found).__name__}, and no names with values.",
                hint="It is the connector's own code; mend it there.",
            )
        return None if found is None else dict(found)

    def each(self, method: str, **named: Any) -> Iterator[Any]:
        """What a method gives, as it comes. Other methods may be called meanwhile."""
        iterator = self._run(method, lambda: iter(getattr(self._instance, method)(**named) or ()))
        nothing = object()
        while (one := self._run(method, lambda: next(iterator, nothing))) is not nothing:
            yield one

    def _run(self, method: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except ChronolakeError:
            raise
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - anything may come of it
            # What it was raised from may quote what nobody may see.
            raise self._error(method, failure) from None

    def _error(self, method: str, failure: BaseException) -> SourceError:
        place = where(failure, self._origin.file.parent)
        text = self._mask(str(failure))
        told = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        return SourceError(
            f"{place or 'In what it is based on:'} {self._name}.{method}, which the stream "
            f"{self._origin.stream} needs, failed with {type(failure).__name__}: {told}",
            hint="It is the connector's own code; mend it there.",
        )
