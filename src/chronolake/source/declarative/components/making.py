"""Making instances of the connector's own classes, with what the manifest gives them.

A class that is one of airbyte-cdk's kinds is made by airbyte-cdk, which is installed then. Whatever
makes requests within it is ours: limits, waits, credentials and logs are those of the stream.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from chronolake.source.declarative.components.calls import Calls
from chronolake.source.declarative.components.loading import by_cdk, class_of, is_of_cdk

if TYPE_CHECKING:
    from chronolake.source.declarative.language.custom import CustomComponent

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

    told = component.model_extra or {}
    return {name: of(value, hints.get(name)) for name, value in told.items()}


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
    names = {one.name for one in parameters if one.kind in named}
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        names |= set(hints)
    return names
