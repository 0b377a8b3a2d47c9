"""Where the connector's own classes are: in `components.py` beside its manifest, or in its package.

Nothing else can be named: a manifest chooses among the classes that its connector brings.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import re
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
