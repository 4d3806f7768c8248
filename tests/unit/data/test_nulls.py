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
