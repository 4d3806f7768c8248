"""Arguments whose nulls their schema knows, also where a type refers to another one."""

from typing import Any

import pytest

from rlvr.data.nulls import allowed

NODE = {
    "type": "object",
    "properties": {"size": {"type": ["integer", "null"]}, "name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}, "all": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    "$defs": {"Node": NODE},
}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"root": {"size": None, "name": None}}, {"root": {"size": None}}),
        ({"root": {"next": {"next": {"size": None, "name": None}}}}, {"root": {"next": {"next": {"size": None}}}}),
        ({"all": [{"size": None}, {"name": None, "size": 1}]}, {"all": [{"size": None}, {"size": 1}]}),
        ({"root": None, "other": None, "more": 1}, {"more": 1}),
    ],
)
def test_nulls_that_a_referred_type_allows_stay(given: dict[str, Any], kept: dict[str, Any]) -> None:
    assert allowed(given, TREE) == kept


@pytest.mark.parametrize(
    ("schema", "given", "filled"),
    [
        ({"type": "object", "properties": {}}, {"a": None, "any": None}, {}),  # a tool without parameters
        ({"type": "object"}, {"a": None, "b": {"c": None, "d": 1}}, {"b": {"d": 1}}),
        ({"properties": {"free": {"type": "object"}}}, {"free": {"a": None, "b": 1}}, {"free": {"b": 1}}),
        ({"properties": {"all": {"type": "array"}}}, {"all": [{"a": None}, 1, None]}, {"all": [{}, 1, None]}),
        ({}, {"a": None}, {}),
    ],
)
def test_where_no_property_is_named_only_the_nulls_of_arrow_go(
    schema: dict[str, Any], given: dict[str, Any], filled: dict[str, Any]
) -> None:
    assert allowed(given, schema, fills_nulls=True) == filled
    assert allowed(given, schema) == given


@pytest.mark.parametrize(
    ("schema", "stays"),
    [
        ({"enum": ["a", None]}, True),
        ({"enum": ["a", "b"]}, False),
        ({"type": ["string", "null"]}, True),
        ({"type": "string"}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
    ],
)
def test_a_null_stays_where_its_type_or_enumeration_has_it(schema: dict[str, Any], stays: bool) -> None:
    assert allowed({"a": None}, {"properties": {"a": schema}}) == ({"a": None} if stays else {})
