"""Custom classes: located, instantiated and called.

Where the connector's own classes are: in `components.py` beside its manifest, or in its package.

Nothing else can be named: a manifest chooses among the classes that its connector brings.

Calls of the connector's own classes: one at a time, and with errors that say where they are.

Making instances of the connector's own classes, with what the manifest gives them.

A class that is one of airbyte-cdk's kinds is made by airbyte-cdk, which is installed then. Whatever
makes requests within it is ours: limits, waits, credentials and logs are those of the stream.
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.source.declarative.models.base import CustomComponent, Origin


FILE_NAME: Final = "components.py"
#: The base classes that most connectors use; they come with a package of their own.
BASES: Final = "airbyte_cdk"
#: What manifests call the module beside them.
_BESIDE: Final = re.compile(r"((source_declarative_manifest|source_[a-z0-9_]+)\.)?components")
_lock = threading.RLock()
_loaded: dict[str, ModuleType] = {}


def class_of(class_name: str, manifest: Path) -> type[Any]:
    """A class that a manifest names; the module that has it is run when it is asked for first.

    Args:
        class_name: as `source_declarative_manifest.components.Class`.
        manifest: the manifest's file.

    Raises:
        ConfigurationError: the name leads elsewhere, or the module cannot be imported.
    """
    module_name, _, name = class_name.rpartition(".")
    home = manifest.parent
    if not (module_name and all(part.isidentifier() for part in class_name.split("."))):
        raise _elsewhere(class_name, manifest)
    if _is_package(module_name, home):
        package = module_name.partition(".")[0]
        with _importing(class_name, home):
            module = importlib.import_module(module_name)
        found = getattr(module, name, None)
        is_own = f"{getattr(found, '__module__', '')}.".startswith(f"{package}.")
    elif _BESIDE.fullmatch(module_name):
        module = _module_beside(class_name, home / FILE_NAME)
        found = getattr(module, name, None)
        is_own = getattr(found, "__module__", "") == module.__name__
    else:
        raise _elsewhere(class_name, manifest)
    if not (isinstance(found, type) and is_own):
        raise ConfigurationError(
            f"{module.__file__} has no class {name} of its own, which {manifest} names.",
            hint="Correct the class_name, or write the class.",
        )
    return found


def _is_package(module_name: str, home: Path) -> bool:
    """Whether a module belongs to the installed package that the manifest is in."""
    package = module_name.partition(".")[0]
    if package != home.name or not (home / "__init__.py").is_file():
        return False
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    places = (spec and spec.submodule_search_locations) or ()
    return any(Path(place).resolve() == home.resolve() for place in places)


def _module_beside(class_name: str, file: Path) -> ModuleType:
    try:
        content = file.read_bytes()
    except OSError as failure:
        raise ConfigurationError(
            f"{file} cannot be read, which has the class {class_name}: {failure.strerror}.",
            hint="Put the connector's components.py beside its manifest.",
        ) from failure
    # By what it holds, as a file may have changed since it was read.
    name = f"chronolake_components_{hashlib.sha256(bytes(file) + content).hexdigest()[:16]}"
    with _lock:
        if name not in _loaded:
            module = ModuleType(name)
            module.__file__ = str(file)
            # Dataclasses look their module up by its name.
            sys.modules[name] = module
            try:
                with _importing(class_name, file.parent):
                    exec(compile(content, str(file), "exec"), module.__dict__)  # noqa: S102 - allowed
            except BaseException:
                del sys.modules[name]
                raise
            _loaded[name] = module
        return _loaded[name]


@contextmanager
def _importing(class_name: str, home: Path) -> Iterator[None]:
    """Runs a module; what it does to logging and warnings does not stay."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ModuleNotFoundError as failure:
        missing = str(failure.name)
        raise ConfigurationError(
            f"The class {class_name} cannot be used: its module imports {missing}, which is not "
            "there.",
            hint=_hint_for(missing),
        ) from failure
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as failure:
        raise ConfigurationError(
            f"The class {class_name} cannot be used: {where(failure, home)} "
            f"{type(failure).__name__}: {failure}.",
            hint="It is the connector's own code; mend it there.",
        ) from failure
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _hint_for(missing: str) -> str:
    if missing == BASES:
        return "It needs airbyte-cdk: pip install 'chronolake[components]'."
    if missing.startswith(f"{BASES}."):
        return (
            "It was written for another version of airbyte-cdk than the one that is installed: "
            "take a newer version of the connector, or an older airbyte-cdk."
        )
    return f"Install what has {missing} into the environment that runs Chronolake."


def where(failure: BaseException, home: Path) -> str:
    """The file and line of the connector's own code in which something failed, and a colon.

    Args:
        failure: what was raised.
        home: the folder of the connector's code.
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
    """Whether a file is the connector's own, and not of what is installed below its folder."""
    return file.is_relative_to(home) and "site-packages" not in file.relative_to(home).parts


def is_of_cdk(kind: type[Any]) -> bool:
    """Whether a class is one of airbyte-cdk's kinds of components."""
    return any(base.__module__.partition(".")[0] == BASES for base in kind.__mro__)


def by_cdk(make: Callable[[], Any]) -> Any:
    """What airbyte-cdk makes, without what importing it does to logging and warnings."""
    with _importing(BASES, Path(BASES)):
        return make()


def _elsewhere(class_name: str, manifest: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{manifest} names the class {class_name}, which may not be imported.",
        hint=f"A class is in {FILE_NAME} beside the manifest (source_declarative_manifest."
        "components.Class), or in the installed package that has the manifest.",
    )


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
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
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
        reported = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        return SourceError(
            f"{place or 'In what it is based on:'} {self._name}.{method}, which the stream "
            f"{self._origin.stream} needs, failed with {type(failure).__name__}: {reported}",
            hint="It is the connector's own code; mend it there.",
        )


#: Makes what stands for a component within a component, or None: it is left as it is.
Handles = Callable[[Mapping[str, Any]], Any]

_FACTORY: Final = "airbyte_cdk.sources.declarative.parsers.model_to_component_factory"
_MODELS: Final = "airbyte_cdk.sources.declarative.models.declarative_component_schema"


@dataclass(frozen=True)
class Setting:
    """What classes are given.

    Attributes:
        owner: whose instances they are; each owner has its own.
        config: what the user has set.
        mask: hides the configuration's secrets in a text.
        requesting: makes what stands for components that make requests.
        reading: makes what stands for those that read answers; airbyte-cdk has its own of these.
    """

    owner: object
    config: Mapping[str, Any]
    mask: Callable[[str], str]
    requesting: Handles
    reading: Handles


def made(component: CustomComponent, setting: Setting, **given: Any) -> Calls:
    """The instance of a component, made at the first time.

    Args:
        component: as the manifest has it.
        setting: what it is given.
        given: fields that its place gives it; its class need not have them.

    Raises:
        ConfigurationError: there is no such class.
        SourceError: its constructor fails.
    """
    if not component.is_bound_to(setting.owner):
        origin = component.origin
        kind = class_of(component.class_name, origin.file)
        make = _made_by_cdk if is_of_cdk(kind) else _made_here
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


def _made_here(
    kind: type[Any], component: CustomComponent, setting: Setting, given: dict[str, Any]
) -> Any:
    hints = _hints(kind)

    def handle(described: Mapping[str, Any]) -> Any:
        found = setting.requesting(described)
        return setting.reading(described) if found is None else found

    fields = {
        # What a class does to its own stays its own.
        "config": deepcopy(dict(setting.config)),
        "parameters": deepcopy(component.parameters),
        **_handled(component, hints, handle),
        **given,
    }
    names = _accepted(kind, hints)
    return kind(**{name: value for name, value in fields.items() if name in names})


def _made_by_cdk(
    kind: type[Any], component: CustomComponent, setting: Setting, given: dict[str, Any]
) -> Any:
    fields = _handled(component, _hints(kind), setting.requesting)
    plain = {name: value for name, value in fields.items() if isinstance(value, _PLAIN)}
    objects = {name: value for name, value in fields.items() if name not in plain}
    described = {
        **plain,
        "type": component.type,
        # The module is there by this name, whatever the manifest calls it.
        "class_name": f"{kind.__module__}.{kind.__qualname__}",
        "$parameters": deepcopy(component.parameters),
    }
    factory = by_cdk(lambda: importlib.import_module(_FACTORY)).ModelToComponentFactory()
    model = getattr(importlib.import_module(_MODELS), component.type)
    return factory.create_component(
        model, described, deepcopy(dict(setting.config)), **{**objects, **given}
    )


_PLAIN: Final = (dict, str, int, float, bool, type(None))


def _handled(
    component: CustomComponent, hints: Mapping[str, Any], handle: Handles
) -> dict[str, Any]:
    """The fields that the manifest gives, of which components are what stands for them."""

    def of(value: Any, hint: Any) -> Any:
        if isinstance(value, dict):
            kind = value.get("type") or _named(hint)
            found = handle({**value, "type": kind}) if isinstance(kind, str) else None
            return plain(value) if found is None else found
        if isinstance(value, list | tuple):
            return [of(one, hint) for one in value]
        return value

    reported = component.model_extra or {}
    return {name: of(value, hints.get(name)) for name, value in reported.items()}


def plain(value: Any) -> Any:
    """What was read from a manifest, without the lines it stands in."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):
        # Names that are there for type checkers only.
        merged: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            merged |= inspect.get_annotations(base)
        return merged


def _named(hint: Any) -> str | None:
    """The name of the class that a field is declared to be, or a list of, or that or nothing."""
    while get_origin(hint) is not None and get_args(hint):
        hint = get_args(hint)[0]
    is_class = isinstance(hint, type) and hint.__module__ != "builtins"
    return hint.__name__ if is_class else None


def _accepted(kind: type[Any], hints: Mapping[str, Any]) -> set[str]:
    """What a class can be given by name."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return set(hints)
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    names = {parameter.name for parameter in parameters if parameter.kind in named}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        names |= set(hints)
    return names
