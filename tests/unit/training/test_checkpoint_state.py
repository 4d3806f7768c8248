"""A tree of state comes back as it was; `test_state` has the real ones."""

import json

import pytest

from rlvr.training.checkpoint_state import flatten, unflatten


def test_a_tree_comes_back_as_it_was() -> None:
    tree = {"a": (1, [2.5, None, True]), 3: {"x": float("inf")}, "t": (), "e": {}, "s": "text"}
    structure = flatten(tree, "n", {})
    assert unflatten(json.loads(json.dumps(structure, allow_nan=False)), {}.__getitem__) == tree


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="n/a holds a set"):
        flatten({"a": {1}}, "n", {})
