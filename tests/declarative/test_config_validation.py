"""A configuration is completed by the manifest's rules; errors name missing keys, never secrets."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.manifests.config_validation import (
    create_mask,
    find_violation,
    missing_keys,
    prepare_config,
    raise_if_incomplete,
)
from chronolake.source.declarative.manifests.manifest import Manifest, parse, to_mapped

_SECRET = "a-secret-nobody-may-see"


def _manifest(
    *transformations: dict[str, Any],
    validations: list[dict[str, Any]] | None = None,
    migrations: list[dict[str, Any]] | None = None,
    specification: dict[str, Any] | None = None,
) -> Manifest:
    rules = {
        "type": "ConfigNormalizationRules",
        "config_migrations": [{"type": "ConfigMigration", "transformations": migrations or []}],
        "transformations": list(transformations),
        "validations": validations or [],
    }
    spec = {"type": "Spec", "connection_specification": specification or {"type": "object"}}
    whole = {"spec": {**spec, "config_normalization_rules": rules}, "streams": []}
    return parse(to_mapped(whole), Path("manifest.yaml"))


def _ready(config: dict[str, Any], *transformations: dict[str, Any], **more: Any) -> dict[str, Any]:
    before = deepcopy(config)
    found = prepare_config(config, _manifest(*transformations, **more))
    assert config == before
    return found


def _remap(path: list[str], table: Any) -> dict[str, Any]:
    return {"type": "ConfigRemapField", "field_path": path, "map": table}


def _add(path: list[str], value: str, **more: Any) -> dict[str, Any]:
    kind = {key: more.pop(key) for key in ("value_type",) if key in more}
    field = {"type": "AddedFieldDefinition", "path": path, "value": value, **kind}
    return {"type": "ConfigAddFields", "fields": [field], **more}


def _remove(*pointers: list[str], **more: Any) -> dict[str, Any]:
    return {"type": "ConfigRemoveFields", "field_pointers": list(pointers), **more}


def _asks(schema: Any, **of_what: Any) -> dict[str, Any]:
    kind = "PredicateValidator" if "value" in of_what else "DpathValidator"
    strategy = {"type": "ValidateAdheresToSchema", "base_schema": schema}
    return {"type": kind, "validation_strategy": strategy, **of_what}


@pytest.mark.parametrize(
    ("config", "path", "table", "expected"),
    [
        ({"mode": "old"}, ["mode"], {"old": "new"}, {"mode": "new"}),
        ({"mode": "other"}, ["mode"], {"old": "new"}, {"mode": "other"}),
        ({"a": {"b": "x"}}, ["a", "b"], {"x": 1}, {"a": {"b": 1}}),
        ({"a": "x"}, ["a", "b"], {"x": 1}, {"a": "x"}),
        ({}, ["a"], {"x": 1}, {}),
        ({"a": ["x"]}, ["a"], {"x": 1}, {"a": ["x"]}),
        ({"k": "a", "a": 1}, ["{{ config['k'] }}"], {"1": "one"}, {"k": "a", "a": 1}),
        ({"a": "x", "y": 7}, ["a"], {"x": "{{ config['y'] }}"}, {"a": 7, "y": 7}),
        ({"list": [{"a": "x"}]}, ["list", "*", "a"], {"x": 1}, {"list": [{"a": "x"}]}),
    ],
)
def test_values_are_replaced(
    config: dict[str, Any], path: list[str], table: Any, expected: dict[str, Any]
) -> None:
    assert _ready(config, _remap(path, table)) == expected


def test_fields_are_added() -> None:
    config = {"region": "eu", "count": "07"}
    assert _ready(
        config,
        _add(["host"], "{{ config['region'] }}.example"),
        _add(["deep", "host"], "https://{{ config['host'] }}"),
        _add(["n"], "{{ 2 * 2 }}"),
        _add(["text"], "{{ 2 * 2 }}", value_type="string"),
        _add(["left out"], "x", condition="{{ config['region'] == 'us' }}"),
        _add(["there"], "x", condition="{{ value == 'x' and path == ['there'] }}"),
    ) == {
        **config,
        "host": "eu.example",
        "deep": {"host": "https://eu.example"},
        "n": 4,
        "text": "4",
        "there": "x",
    }


def test_a_field_has_to_have_a_place() -> None:
    with pytest.raises(ConfigurationError, match=r"add a\.b to the configuration"):
        _ready({"a": "x"}, _add(["a", "b"], "y"))


def test_fields_are_removed() -> None:
    config = {"a": 1, "b": {"c": 2, "d": 3}, "list": [1, 2, {"x": 1}]}
    assert _ready(config, _remove(["a"], ["b", "c"], ["nothing", "here"], ["list", "*", "x"])) == {
        "b": {"d": 3},
        "list": [1, 2, {}],
    }
    assert _ready(config, _remove(["a"], condition="{{ config['a'] > 1 }}")) == config


def test_migrations_run_first_and_python_is_skipped() -> None:
    custom = {"type": "CustomConfigTransformation", "class_name": "source_x.components.Old"}
    found = _ready(
        {"key": "k"},
        _add(["seen"], "{{ config['credentials']['key'] }}"),
        migrations=[custom, _add(["credentials", "key"], "{{ config['key'] }}"), _remove(["key"])],
    )
    assert found == {"credentials": {"key": "k"}, "seen": "k"}


def test_python_in_the_rules_is_refused() -> None:
    manifest = _manifest({"type": "CustomConfigTransformation", "class_name": "source_x.New"})
    [problem, _] = manifest.problems
    assert problem.path == "spec.config_normalization_rules.transformations[0]"
    assert "which is not run" in problem.message
    with pytest.raises(ConfigurationError, match="which is not run"):
        prepare_config({}, manifest)


def test_a_configuration_without_rules_stays_as_it_is() -> None:
    whole = {"spec": {"type": "Spec", "connection_specification": {}}, "streams": []}
    manifest = parse(to_mapped(whole), Path("manifest.yaml"))
    assert prepare_config({"a": [1]}, manifest) == {"a": [1]}


@pytest.mark.parametrize(
    ("config", "required", "message"),
    [
        ({"n": 1}, _asks({"type": "integer"}, field_path=["n"]), None),
        ({"n": 1}, _asks({"type": "string"}, field_path=["m"]), None),
        ({"n": 1}, _asks({"type": "string"}, field_path=["n"]), "configuration's n .* string"),
        ({"n": "x"}, _asks({"type": "string"}, field_path=["n"]), "not valid JSON"),
        ({"n": '"x"'}, _asks({"type": "string"}, field_path=["n"]), None),
        ({"l": [{"a": 1}, {}]}, _asks({"type": "integer"}, field_path=["l", "*", "a"]), None),
        ({"l": [1, "2", None]}, _asks({"type": "integer"}, field_path=["l", "*"]), "l.*"),
        (
            {"o": {"p": [1]}},
            _asks({"properties": {"p": {"items": False}}}, field_path=["o"]),
            "p/0",
        ),
        ({"n": 1}, _asks({"minimum": 2}, value="{{ config['n'] }}"), "less than 2"),
        ({}, _asks({"required": ["a"]}, value={"b": None}), "lacks a"),
        ({}, _asks({"required": ["b"]}, value={"b": None}), None),
    ],
)
def test_violations_of_the_spec_are_reported_without_values(
    config: dict[str, Any], required: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert _ready(config, validations=[required]) == config
        return
    with pytest.raises(ConfigurationError, match=message):
        _ready(config, validations=[required])


def test_secrets_are_in_no_message() -> None:
    required = _asks({"enum": ["a"]}, field_path=["token"])
    with pytest.raises(ConfigurationError) as refused:
        _ready({"token": {"inner": _SECRET}}, validations=[required])
    assert _SECRET not in f"{refused.value} {refused.value.hint}"


def test_what_the_rules_move_is_neither_missing_nor_shown() -> None:
    specification = {
        "type": "object",
        "required": ["token", "other"],
        "properties": {"token": {"type": "string", "airbyte_secret": True}},
    }
    manifest = _manifest(_add(["token"], "{{ config['old_token'] }}"), specification=specification)
    config = {"old_token": _SECRET}
    assert missing_keys(config, manifest) == ["other"]
    assert missing_keys({}, manifest) == ["token", "other"]
    assert create_mask(config, manifest)(f"https://a.example/?key={_SECRET}").endswith("****")
    with pytest.raises(ConfigurationError, match=r"shop\.yml lacks other\."):
        raise_if_incomplete(config, manifest, "shop.yml")


def test_a_secret_is_hidden_as_urls_spell_it() -> None:
    specification = {"properties": {"token": {"type": "string", "airbyte_secret": True}}}
    mask = create_mask({"token": "a b+c/d"}, _manifest(specification=specification))
    assert mask("a b+c/d, a%20b%2Bc/d, a+b%2Bc%2Fd") == "****, ****, ****"


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({"type": ["integer", "null"]}, [1, 2.0, None], [True, 1.5, "1"]),
        ({"type": "number"}, [1.5], [False, "x"]),
        ({"enum": [1, "a", [True]]}, [1.0, "a", [True]], [True, [1]]),
        ({"const": {"a": 1}}, [{"a": 1}], [{"a": True}, {"a": 1, "b": 2}]),
        ({"properties": {"a": {"type": "string"}}}, [{}, {"a": "x"}, 5], [{"a": 1}]),
        ({"additionalProperties": False, "properties": {"a": {}}}, [{"a": 1}], [{"b": 1}]),
        ({"patternProperties": {"^x": {"type": "null"}}}, [{"x1": None, "y": 1}], [{"x": 1}]),
        (
            {"patternProperties": {"^x": {}}, "additionalProperties": {"type": "null"}},
            [{"xy": 1, "z": None}],
            [{"z": 1}],
        ),
        ({"propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"ab": 1}]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 1}]),
        ({"dependencies": {"a": ["b"]}}, [{"c": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, [{}], [{"a": 1}]),
        ({"items": {"type": "integer"}}, [[1], []], [["x"]]),
        ({"items": [{"type": "integer"}], "additionalItems": False}, [[1]], [["x"], [1, 2]]),
        ({"prefixItems": [{"type": "null"}], "items": False}, [[None]], [[1], [None, 1]]),
        ({"contains": {"const": 1}}, [[0, 1]], [[], [0]]),
        ({"minItems": 1, "maxItems": 2, "uniqueItems": True}, [[1, True]], [[], [1, 1], [1, 2, 3]]),
        ({"minLength": 1, "maxLength": 2, "pattern": "b"}, ["ab"], ["", "a", "abb"]),
        ({"minimum": 1, "exclusiveMaximum": 3, "multipleOf": 1}, [1, 2], [0, 3, 1.5]),
        ({"maximum": 1, "exclusiveMinimum": 0}, [1], [0, 2]),
        ({"allOf": [{"minimum": 1}, {"maximum": 1}]}, [1], [0, 2]),
        ({"anyOf": [{"type": "null"}, {"const": 1}]}, [None, 1], [2]),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, [0, 3], [1]),
        ({"not": {"type": "null"}}, [1], [None]),
        ({"if": {"minimum": 5}, "then": {"maximum": 6}, "else": {"const": 0}}, [5, 0], [7, 1]),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"const": 1}}}, [1], [2]),
        ({"format": "date", "unknown": 5}, ["x"], []),
    ],
)
def test_values_fit_schemas(schema: Any, fitting: list[Any], others: list[Any]) -> None:
    assert [find_violation(value, schema) for value in fitting] == [None] * len(fitting)
    assert all(find_violation(value, schema) for value in others)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://a.example/schema"},
        {"$ref": "#/nothing"},
        {"$ref": "#"},
        {"pattern": "("},
        {"minLength": "x"},
        {"items": 5},
        "text",
    ],
)
def test_an_invalid_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="JSON schema"):
        find_violation(["x"] if schema == {"items": 5} else "x", schema)
