"""Rows of Arrow (Parquet files, data sets of the Hub) as JSON would have them."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow
from pyarrow import types


def plain_data(schema: pyarrow.Schema) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Turns Arrow's rows of a schema into what JSON could hold: the shortest decimal of a narrow float (0.6, not
    0.6000000238418579), the number of a decimal, ISO's text of a date or time."""
    converted = {column.name: convert for column in schema if (convert := _conversion(column.type)) is not None}
    if not converted:
        return lambda row: row
    return lambda row: row | {name: convert(row[name]) for name, convert in converted.items()}


def _conversion(kind: pyarrow.DataType) -> Callable[[Any], Any] | None:
    """What makes a value of this type plain; None for a type that needs nothing."""

    def filled(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: None if value is None else convert(value)

    if isinstance(kind, pyarrow.ExtensionType):
        return _conversion(kind.storage_type)
    if types.is_float16(kind) or types.is_float32(kind):
        narrow = np.float16 if types.is_float16(kind) else np.float32
        return filled(lambda value: float(str(narrow(value))))
    if types.is_decimal(kind):
        return filled(_number)
    if types.is_temporal(kind) and not types.is_duration(kind) and not types.is_interval(kind):
        return filled(lambda value: value.isoformat())
    if types.is_struct(kind):
        return filled(plain_data(pyarrow.schema(list(kind)))) if any(_conversion(one.type) for one in kind) else None
    if types.is_dictionary(kind):
        return _conversion(kind.value_type)
    if types.is_map(kind):
        inner = _conversion(kind.item_type)
        return inner and filled(lambda pairs: [(key, inner(value)) for key, value in pairs])
    if types.is_nested(kind) and (inner := _conversion(getattr(kind, "value_type", pyarrow.null()))) is not None:
        return filled(lambda values: [inner(value) for value in values])
    return None


def _number(value: Decimal) -> int | float | str:
    """Exact: as text, if no float is."""
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else format(value, "f")
