"""Transformations: changes to records after extraction.

A transformation is prepared once per stream and once per page, so that only the work that depends
on the record is repeated for each record.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any, assert_never

from chronolake.source.declarative.field_paths import (
    evaluate_path,
    find_places,
    get_only_value,
    is_pattern,
    put,
    remove,
)
from chronolake.source.declarative.models.base import CustomTransformation
from chronolake.source.declarative.models.records import (
    AddedFieldDefinition,
    AddFields,
    DpathFlattenFields,
    FlattenFields,
    KeysReplace,
    KeysToLower,
    KeysToSnakeCase,
    RemoveFields,
    Transformation,
)
from chronolake.source.declarative.stream_slice import slice_for_class
from chronolake.source.declarative.templating.templates import as_truth, evaluate
from chronolake.source.records.lookup import MISSING

Record = dict[str, Any]
Context = Mapping[str, Any]
#: Changes one record, in place or not.
Change = Callable[[Record], Record]
#: Creates the change for a page; the context contains the config and the slice.
Step = Callable[[Context], Change]
#: Returns a template's value for a record.
_Value = Callable[[Record], Any]

#: The manifest's names of value types.
KINDS: dict[str, type] = {"string": str, "number": float, "integer": int, "boolean": bool}
_SCALARS = (str, int, float, bool, type(None))
_TOKEN = re.compile(r"(?P<gap>[\W_]+)|[A-Z]+[a-z]*|[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_LATIN = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L"}
)
_FEW = 3


def create_step(component: Transformation, config: Mapping[str, Any]) -> Step:
    """Return a transformation, prepared for many pages.

    Its changes raise SourceError if a record has no place for an added field.
    """
    step: Step
    match component:
        case AddFields():
            step = _create_add_fields(component)
        case RemoveFields():
            step = _create_remove_fields(component)
        case KeysReplace():
            step = _create_keys_replace(component)
        case DpathFlattenFields():
            step = _create_flatten_object(component, config)
        case FlattenFields():
            step = _same_for_all_pages(partial(_flatten, lists=component.flatten_lists))
        case KeysToLower():
            step = _same_for_all_pages(
                lambda record: {key.lower(): value for key, value in record.items()}
            )
        case KeysToSnakeCase():
            step = _same_for_all_pages(partial(_rename_keys, name=_to_snake_case))
        case CustomTransformation():
            step = _create_custom_step(component)
        case _:
            assert_never(component)
    return step


def _create_custom_step(component: CustomTransformation) -> Step:
    """Return a transformation by a custom class; its return value is ignored."""
    calls = component.calls
    own: list[Any] = []

    def of_page(context: Context) -> Change:
        if not own:
            # The class gets its own copy, so that its changes to the config have no other effect.
            own.append(deepcopy(dict(context["config"])))
        reported = {
            "config": own[0],
            "stream_state": {},
            "stream_slice": slice_for_class(context["stream_slice"]),
        }

        def change(record: Record) -> Record:
            calls.call("transform", record, **reported)
            return record

        return change

    return of_page


def _same_for_all_pages(change: Change) -> Step:
    return lambda _: change


def _compile_template(
    text: str, parameters: Context, context: Context, kinds: tuple[type, ...] = ()
) -> _Value:
    """Return a function that evaluates a template for the records of a page.

    A template that does not refer to records is evaluated once, unless its value is a list or an
    object, because each record must have its own.
    """
    variables = {**context, "parameters": parameters}

    def of_record(record: Record) -> Any:
        variables["record"] = record
        return evaluate(text, variables, default=text, kinds=kinds)

    if "record" in text:
        return of_record
    constant = of_record({})
    return (lambda _: constant) if isinstance(constant, _SCALARS) else of_record


def _create_add_fields(component: AddFields) -> Step:
    def of_page(context: Context) -> Change:
        fields = [(field.path, _field_value(field, context)) for field in component.fields]
        variables = {**context, "parameters": component.parameters}

        def is_wanted(path: list[str], value: Any, record: Record) -> bool:
            variables.update(path=path, value=value, record=record)
            return as_truth(component.condition, variables)

        def change(record: Record) -> Record:
            for path, value_of in fields:
                value = value_of(record)
                if component.condition and not is_wanted(path, value, record):
                    continue
                if len(path) == 1:
                    record[path[0]] = value
                else:
                    put(record, path, value)
            return record

        return change

    return of_page


def _field_value(field: AddedFieldDefinition, context: Context) -> _Value:
    kinds = (KINDS[field.value_type],) if field.value_type else ()
    return _compile_template(field.value, field.parameters, context, kinds)


def _create_remove_fields(component: RemoveFields) -> Step:
    pointers = [pointer for pointer in component.field_pointers if pointer]
    names = [pointer[0] for pointer in pointers if len(pointer) == 1 and not is_pattern(pointer[0])]
    paths = [pointer for pointer in pointers if len(pointer) > 1 or is_pattern(pointer[0])]

    def change(record: Record) -> Record:
        for name in names:
            record.pop(name, None)
        for path in paths:
            for place in tuple(find_places(record, path)):
                remove(place)
        return record

    def of_page(context: Context) -> Change:
        variables: dict[str, Any] = {"config": context["config"], "parameters": {}}

        # With a condition, the reference removes every value that meets it, at any depth.
        def conditional(record: Record) -> Record:
            for _ in component.field_pointers:
                for place in tuple(find_places(record, ["**"])):
                    variables["property"] = place.value
                    if isinstance(place.value, _SCALARS) and as_truth(
                        component.condition, variables
                    ):
                        remove(place)
            return record

        return conditional if component.condition else change

    return of_page


def _create_keys_replace(component: KeysReplace) -> Step:
    def of_page(context: Context) -> Change:
        old = _compile_template(component.old, component.parameters, context)
        new = _compile_template(component.new, component.parameters, context)

        def change(record: Record) -> Record:
            before, after = str(old(record)), str(new(record))
            return _rename_keys(record, lambda key: key.replace(before, after))

        return change

    return of_page


def _rename_keys(record: Record, name: Callable[[str], str]) -> Record:
    return {
        name(key): _rename_keys(value, name) if isinstance(value, dict) else value
        for key, value in record.items()
    }


def _create_flatten_object(component: DpathFlattenFields, config: Mapping[str, Any]) -> Step:
    path = evaluate_path(component.field_path, config, component.parameters)
    prefix, suffix = "", ""
    if keys := component.key_transformation:
        variables = {"config": config, "parameters": component.parameters}
        prefix = str(evaluate(keys.prefix, variables, default=keys.prefix) or "")
        suffix = str(evaluate(keys.suffix, variables, default=keys.suffix) or "")

    def change(record: Record) -> Record:
        if "*" in path:
            found = next((place.value for place in find_places(record, path)), MISSING)
        else:
            found = get_only_value(record, path)
        if not isinstance(found, dict):
            return record
        lifted = {f"{prefix}{key}{suffix}": value for key, value in found.items()}
        if component.replace_record and lifted:
            return lifted
        if lifted.keys() & record.keys():
            return record
        if component.delete_origin_value and path:
            for place in tuple(find_places(record, path)):
                remove(place)
        return record | lifted

    return _same_for_all_pages(change)


def _flatten(record: Record, *, lists: bool) -> Record:
    """Return a record with nested values flattened, in the reference's order: the last one first.

    If a name is already used, it is prefixed with the name of the enclosing value. After the first
    item of a list, all names are prefixed.
    """
    flat: Record = {}
    ahead: list[tuple[str, Any]] = [("_", record)]
    is_within_list = False
    while ahead:
        name, value = ahead.pop()
        if isinstance(value, dict):
            ahead.extend(
                (f"{name}.{key}" if is_within_list or key in flat else key, inner)
                for key, inner in value.items()
            )
        elif isinstance(value, list) and lists:
            is_within_list = is_within_list or bool(value)
            ahead.extend((f"{name}.{at}", inner) for at, inner in enumerate(value))
        else:
            flat[name] = value
    return flat


@lru_cache(maxsize=4096)
def _to_snake_case(key: str) -> str:
    plain = unicodedata.normalize("NFKD", key.translate(_LATIN))
    text = "".join(sign for sign in plain if not unicodedata.combining(sign))
    tokens = ["" if found["gap"] else found[0] for found in _TOKEN.finditer(text)]
    if len(tokens) >= _FEW:
        tokens = [tokens[0], *filter(None, tokens[1:-1]), tokens[-1]]
    if tokens and tokens[0].isdigit():
        tokens.insert(0, "")
    return "_".join(tokens).lower()
