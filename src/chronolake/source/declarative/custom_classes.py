"""Custom classes of a connector: finding, instantiating and calling them.

A connector's classes are defined in `components.py` next to its manifest, or in its package. A
manifest cannot refer to other classes.

Only one thread at a time calls an instance. Errors contain the file and line of the connector's
code.

airbyte-cdk, which must be installed then, instantiates classes that are subclasses of its own.
Their requests are sent by Chronolake's HTTP client, with the rate limits, backoff, credentials and
logs of the stream.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.source.declarative.models.base import CustomComponent, Origin


FILE_NAME: Final = "components.py"
#: The package with the base classes that most connectors use. It is an optional dependency.
BASES: Final = "airbyte_cdk"
#: The names that manifests use for the module next to them.
_BESIDE: Final = re.compile(r"((source_declarative_manifest|source_[a-z0-9_]+)\.)?components")
_lock = threading.RLock()
_loaded: dict[str, ModuleType] = {}


def import_class(class_name: str, manifest: Path) -> type[Any]:
    """Return a class that a manifest names; its module is executed at the first call.

    Args:
        class_name: for example `source_declarative_manifest.components.Class`.
        manifest: the path of the manifest.

    Raises:
        ConfigurationError: the name refers to another module, or the module cannot be imported.
    """
    module_name, _, name = class_name.rpartition(".")
    home = manifest.parent
    if not (module_name and all(part.isidentifier() for part in class_name.split("."))):
        raise _forbidden_class_error(class_name, manifest)
    if _is_package(module_name, home):
        package = module_name.partition(".")[0]
        with _isolate_import(class_name, home):
            module = importlib.import_module(module_name)
        found = getattr(module, name, None)
        is_own = f"{getattr(found, '__module__', '')}.".startswith(f"{package}.")
    elif _BESIDE.fullmatch(module_name):
        module = _load_module(class_name, home / FILE_NAME)
        found = getattr(module, name, None)
        is_own = getattr(found, "__module__", "") == module.__name__
    else:
        raise _forbidden_class_error(class_name, manifest)
    if not (isinstance(found, type) and is_own):
        raise ConfigurationError(
            f"{manifest} names the class {name}, which {module.__file__} does not define.",
            hint="Correct the class_name in the manifest, or define the class.",
        )
    return found


def _is_package(module_name: str, home: Path) -> bool:
    """Return whether a module belongs to the installed package that contains the manifest."""
    package = module_name.partition(".")[0]
    if package != home.name or not (home / "__init__.py").is_file():
        return False
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    places = (spec and spec.submodule_search_locations) or ()
    return any(Path(place).resolve() == home.resolve() for place in places)


def _load_module(class_name: str, file: Path) -> ModuleType:
    try:
        content = file.read_bytes()
    except OSError as failure:
        raise ConfigurationError(
            f"{file}, which defines the class {class_name}, cannot be read: {failure.strerror}.",
            hint="Put the connector's components.py next to its manifest.",
        ) from failure
    # The name depends on the content, because the file may have changed since it was read.
    name = f"chronolake_components_{hashlib.sha256(bytes(file) + content).hexdigest()[:16]}"
    with _lock:
        if name not in _loaded:
            module = ModuleType(name)
            module.__file__ = str(file)
            # Dataclasses look up their module by name.
            sys.modules[name] = module
            try:
                with _isolate_import(class_name, file.parent):
                    exec(compile(content, str(file), "exec"), module.__dict__)  # noqa: S102 - allowed by the user
            except BaseException:
                del sys.modules[name]
                raise
            _loaded[name] = module
        return _loaded[name]


@contextmanager
def _isolate_import(class_name: str, home: Path) -> Iterator[None]:
    """Import a module in this context, and undo its changes to logging and warnings."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ModuleNotFoundError as failure:
        missing = str(failure.name)
        raise ConfigurationError(
            f"The class {class_name} cannot be used: its module imports {missing}, "
            "which is not installed.",
            hint=_hint_for(missing),
        ) from failure
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as failure:
        raise ConfigurationError(
            f"The class {class_name} cannot be used: {find_failing_line(failure, home)} "
            f"{type(failure).__name__}: {failure}.",
            hint="The error is in the connector's own code. Correct it there.",
        ) from failure
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _hint_for(missing: str) -> str:
    if missing == BASES:
        return f"It needs airbyte-cdk: install it with `{install_command('components')}`."
    if missing.startswith(f"{BASES}."):
        return (
            "The connector was written for another version of airbyte-cdk. Install "
            "a newer version of the connector, or an older airbyte-cdk."
        )
    return f"Install the package that provides {missing} into the environment that runs Chronolake."


def find_failing_line(failure: BaseException, home: Path) -> str:
    """Return the file and line of the connector's code that raised an error, followed by a colon.

    `home` is the folder of the connector's code.
    """
    if isinstance(failure, SyntaxError) and failure.filename:
        return f"{failure.filename}, line {failure.lineno}:"
    found, trace = "", failure.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if _is_in(Path(file), home):
            found = f"{file}, line {trace.tb_lineno}:"
        trace = trace.tb_next
    return found


def _is_in(file: Path, home: Path) -> bool:
    """Return whether a file belongs to the connector, and not to packages inside its folder."""
    return file.is_relative_to(home) and "site-packages" not in file.relative_to(home).parts


def is_cdk_class(kind: type[Any]) -> bool:
    """Return whether a class is a subclass of one of airbyte-cdk's classes."""
    return any(base.__module__.partition(".")[0] == BASES for base in kind.__mro__)


def import_cdk(make: Callable[[], Any]) -> Any:
    """Call a function that imports airbyte-cdk, and undo its changes to logging and warnings."""
    with _isolate_import(BASES, Path(BASES)):
        return make()


def _forbidden_class_error(class_name: str, manifest: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{manifest} names the class {class_name}, which is not part of the connector.",
        hint=f"Define the class in {FILE_NAME} next to the manifest "
        "(source_declarative_manifest.components.Class), or in the installed "
        "package that contains the manifest.",
    )


_LONGEST: Final = 500


class Calls:
    """An instance of a custom class. Only one thread at a time calls its methods.

    Every method raises SourceError if the class raises any error.
    """

    def __init__(
        self,
        class_name: str,
        origin: Origin,
        make: Callable[[], Any],
        *,
        mask: Callable[[str], str] = str,
    ) -> None:
        """Create the instance.

        Args:
            class_name: the name in the manifest.
            origin: the location in the manifest.
            make: creates the instance.
            mask: masks the configuration's secrets in a text.

        Raises:
            SourceError: the constructor fails.
        """
        self._name = class_name.rpartition(".")[2]
        self._origin = origin
        self._mask = mask
        self._lock = threading.RLock()
        self._instance: Any = None
        self._instance = self._run("__init__", make)

    @property
    def instance(self) -> Any:
        """Return the instance, for callers that call it directly."""
        return self._instance

    def of(self, instance: Any) -> Calls:
        """Wrap another object that the instance returned."""
        return Calls(type(instance).__name__, self._origin, lambda: instance, mask=self._mask)

    def has(self, method: str) -> bool:
        """Return whether the class has a method."""
        # A static lookup: `__call__` counts only if the class defines it.
        return inspect.getattr_static(self._instance, method, None) is not None

    def takes(self, method: str, argument: str) -> bool:
        """Return whether a method accepts an argument with this name."""
        try:
            parameters = inspect.signature(getattr(self._instance, method)).parameters
        except (TypeError, ValueError):
            return False
        return argument in parameters or any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
        )

    def value(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or a default if it does not exist."""
        if inspect.getattr_static(self._instance, name, self) is self:
            return default
        with self._lock:
            return self._run(name, lambda: getattr(self._instance, name))

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method and return its result."""
        with self._lock:
            try:
                return getattr(self._instance, method)(*arguments, **named)
            except ChronolakeError:
                raise
            except (Exception, SystemExit) as failure:  # noqa: BLE001 - custom code may raise anything
                raise self._error(method, failure) from None

    def call_for_list(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """Call a method and return all items of its result."""

        def all_of_it() -> list[Any]:
            return list(getattr(self._instance, method)(*arguments, **named) or ())

        with self._lock:
            found: list[Any] = self._run(method, all_of_it)
        return found

    def call_for_mapping(self, method: str, *arguments: Any, **named: Any) -> dict[str, Any] | None:
        """Call a method and return the mapping that it returns, or None."""
        found = self.call(method, *arguments, **named)
        if found is not None and not isinstance(found, Mapping):
            raise SourceError(
                f"{self._name}.{method}, which the stream {self._origin.stream} needs, "
                f"returned {type(found).__name__} instead of a mapping.",
                hint="The error is in the connector's own code. Correct it there.",
            )
        return None if found is None else dict(found)

    def iterate(self, method: str, **named: Any) -> Iterator[Any]:
        """Yield the items of a method's result one by one.

        Other methods may be called in between.
        """
        iterator = self._run(method, lambda: iter(getattr(self._instance, method)(**named) or ()))
        nothing = object()
        while (item := self._run(method, lambda: next(iterator, nothing))) is not nothing:
            yield item

    def _run(self, method: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except ChronolakeError:
            raise
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - custom code may raise anything
            # The cause is dropped, because it may contain secrets.
            raise self._error(method, failure) from None

    def _error(self, method: str, failure: BaseException) -> SourceError:
        place = find_failing_line(failure, self._origin.file.parent)
        text = self._mask(str(failure))
        reported = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        return SourceError(
            f"{place or 'In code outside the connector:'} {self._name}.{method}, which the stream "
            f"{self._origin.stream} needs, failed with {type(failure).__name__}: {reported}",
            hint="The error is in the connector's own code. Correct it there.",
        )


#: Creates the object that replaces a nested component; None if the component is kept as it is.
ReplaceComponent = Callable[[Mapping[str, Any]], Any]

_FACTORY: Final = "airbyte_cdk.sources.declarative.parsers.model_to_component_factory"
_MODELS: Final = "airbyte_cdk.sources.declarative.models.declarative_component_schema"


@dataclass(frozen=True)
class Setting:
    """The arguments for custom classes.

    Attributes:
        owner: the owner of the instances; each owner has its own.
        config: the user's configuration.
        mask: masks the configuration's secrets in a text.
        requesting: creates the objects that replace components which send requests.
        reading: creates the objects that replace components which read responses; airbyte-cdk uses
            its own.
    """

    owner: object
    config: Mapping[str, Any]
    mask: Callable[[str], str]
    requesting: ReplaceComponent
    reading: ReplaceComponent


def get_instance(component: CustomComponent, setting: Setting, **given: Any) -> Calls:
    """Return the instance of a component, and create it at the first call.

    `given` contains additional fields, which are omitted if the class does not accept them.

    Raises:
        ConfigurationError: the class does not exist.
        SourceError: its constructor fails.
    """
    if not component.is_bound_to(setting.owner):
        origin = component.origin
        kind = import_class(component.class_name, origin.file)
        make = _create_by_cdk if is_cdk_class(kind) else _create_directly
        component.bind(
            setting.owner,
            Calls(
                component.class_name,
                origin,
                lambda: make(kind, component, setting, dict(given)),
                mask=setting.mask,
            ),
        )
    calls: Calls = component.calls
    return calls


def _create_directly(
    kind: type[Any], component: CustomComponent, setting: Setting, given: dict[str, Any]
) -> Any:
    hints = _type_hints(kind)

    def replace(component: Mapping[str, Any]) -> Any:
        found = setting.requesting(component)
        return setting.reading(component) if found is None else found

    fields = {
        # Copies, because a class may change its own arguments.
        "config": deepcopy(dict(setting.config)),
        "parameters": deepcopy(component.parameters),
        **_replace_nested(component, hints, replace),
        **given,
    }
    names = _accepted_names(kind, hints)
    return kind(**{name: value for name, value in fields.items() if name in names})


def _create_by_cdk(
    kind: type[Any], component: CustomComponent, setting: Setting, given: dict[str, Any]
) -> Any:
    fields = _replace_nested(component, _type_hints(kind), setting.requesting)
    plain_fields = {name: value for name, value in fields.items() if isinstance(value, _PLAIN)}
    objects = {name: value for name, value in fields.items() if name not in plain_fields}
    described = {
        **plain_fields,
        "type": component.type,
        # The module was imported with this name, whatever name the manifest uses.
        "class_name": f"{kind.__module__}.{kind.__qualname__}",
        "$parameters": deepcopy(component.parameters),
    }
    factory = import_cdk(lambda: importlib.import_module(_FACTORY)).ModelToComponentFactory()
    model = getattr(importlib.import_module(_MODELS), component.type)
    return factory.create_component(
        model, described, deepcopy(dict(setting.config)), **{**objects, **given}
    )


_PLAIN: Final = (dict, str, int, float, bool, type(None))


def _replace_nested(
    component: CustomComponent, hints: Mapping[str, Any], replace: ReplaceComponent
) -> dict[str, Any]:
    """Return the fields from the manifest, with nested components replaced."""

    def of(value: Any, hint: Any) -> Any:
        if isinstance(value, dict):
            kind = value.get("type") or _class_name_in(hint)
            found = replace({**value, "type": kind}) if isinstance(kind, str) else None
            return to_plain(value) if found is None else found
        if isinstance(value, list | tuple):
            return [of(item, hint) for item in value]
        return value

    reported = component.model_extra or {}
    return {name: of(value, hints.get(name)) for name, value in reported.items()}


def to_plain(value: Any) -> Any:
    """Convert values that were read from a manifest to plain values without line numbers."""
    if isinstance(value, dict):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in value]
    return value


def _type_hints(kind: type[Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):
        # Some names exist only for type checkers.
        merged: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            merged |= inspect.get_annotations(base)
        return merged


def _class_name_in(hint: Any) -> str | None:
    """Return the class name in a field's annotation, also inside `list[...]` or an optional."""
    while get_origin(hint) is not None and get_args(hint):
        hint = get_args(hint)[0]
    is_class = isinstance(hint, type) and hint.__module__ != "builtins"
    return hint.__name__ if is_class else None


def _accepted_names(kind: type[Any], hints: Mapping[str, Any]) -> set[str]:
    """Return the names of the keyword arguments that a class accepts."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return set(hints)
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    names = {parameter.name for parameter in parameters if parameter.kind in named}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        names |= set(hints)
    return names
