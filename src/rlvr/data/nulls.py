"""Nulls that Arrow fills in: it has one type a column, so each struct has the fields of all the others.

tools of two rows      {"properties": {"a": {...}}}                  {"properties": {"name": {...}}}
read from Parquet      {"properties": {"a": {...}, "name": null}}    {"properties": {"a": null, "name": {...}}}
"""

from collections.abc import Mapping
from typing import Any

_CHOICES = ("anyOf", "oneOf", "allOf")


def without_nulls(value: Any) -> Any:
    """Objects, at any depth, without the fields that are null."""
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(one) for key, one in value.items() if one is not None}


def plain_schema(schema: Any, *, names: bool = False) -> Any:
    """A JSON schema, or a tool with one, without keywords and properties that are null. A default or a constant may be,
    where the schema allows it. The keys of `names` are no keywords."""
    if isinstance(schema, list):
        return [plain_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    values = ("default", "const") if not names and _takes_null(_forms(schema, {})) else ()
    inside = ("properties", "$defs", "definitions") if not names else ()
    kept = {key: value for key, value in schema.items() if value is not None or key in values}
    return {key: plain_schema(value, names=key in inside) for key, value in kept.items()}


def allowed(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, *, fills_nulls: bool = False
) -> Any:
    """Arguments without the nulls that their schema does not know or does not allow. Where it names no properties,
    only those that Arrow filled in (`fills_nulls`) go."""
    root = schema if root is None else root
    forms = _forms(schema, root)
    if isinstance(value, list):
        items = next((form["items"] for form in forms if isinstance(form.get("items"), Mapping)), {})
        return [allowed(one, items, root, fills_nulls=fills_nulls) for one in value]
    known = {name: one for form in forms for name, one in _mapping(form.get("properties")).items()}
    if not isinstance(value, dict):
        return value
    if not known:
        return without_nulls(value) if fills_nulls else value
    return {
        key: allowed(one, _mapping(known.get(key)), root, fills_nulls=fills_nulls)
        for key, one in value.items()
        if one is not None or (key in known and _takes_null(_forms(_mapping(known[key]), root)))
    }


def _forms(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schema, its alternatives and what they refer to."""
    forms = [schema]
    for form in forms:
        name = str(form.get("$ref") or "").rpartition("/")[2]
        referred = _mapping(root.get("$defs") or root.get("definitions")).get(name)
        choices = (form.get(key) for key in _CHOICES)
        inner = [referred, *(one for some in choices if isinstance(some, list) for one in some)]
        forms += [one for one in inner if isinstance(one, Mapping) and one not in forms]
    return forms


def _mapping(schema: Any) -> Mapping[str, Any]:
    """A schema that is none, as `true` or what a client got wrong, says nothing."""
    return schema if isinstance(schema, Mapping) else {}


def _takes_null(forms: list[Mapping[str, Any]]) -> bool:
    def takes(form: Mapping[str, Any]) -> bool:
        kinds, enum = form.get("type"), form.get("enum")
        if kinds is not None:
            return "null" in (kinds if isinstance(kinds, list) else [kinds])
        return None in enum if isinstance(enum, list) else not any(form.get(key) for key in ("$ref", *_CHOICES))

    return any(map(takes, forms))
