"""Sizes of a model are read from its text config: models that also see or hear nest the language model's own there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlvr

PACKAGE = Path(rlvr.__file__).parent
OF_TEXT = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings", "layer_types"),
    *("sliding_window", "final_logit_softcapping", "attn_logit_softcapping", "logit_scale", "logits_scaling"),
}
"""Names that `Gemma3Config` and its like do not have themselves."""
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


def reads(scope: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """Where `x.vocab_size` or `getattr(x, "vocab_size")` stands, and x."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and node.attr in OF_TEXT and isinstance(node.ctx, ast.Load):
            yield node.lineno, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in OF_TEXT:
                yield node.lineno, node.args[0]


def is_text(value: ast.expr) -> bool:
    """Whether the expression is a call to `get_text_config`."""
    return isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "get_text_config"


def outer_reads(source: str) -> list[int]:
    """Lines that read a size from the config of a model, not from its text config.

    The config is what is called `config`, alone or as an attribute; a local name is a text config once it is set to
    one, or to something that ends in `.get_text_config()`.
    """
    tree = ast.parse(source)
    wrong = set[int]()
    for scope in [node for node in ast.walk(tree) if isinstance(node, Scope)]:
        set_to = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
        names = {
            target.id: is_text(value)
            for node in set_to
            for target, value in _pairs(node)
            if isinstance(target, ast.Name)
            and (is_text(value) or (isinstance(value, ast.Attribute) and value.attr == "config"))
        }
        for line, base in reads(scope):
            named = base.id if isinstance(base, ast.Name) else None
            outer = isinstance(base, ast.Attribute) and base.attr == "config"
            if outer or (named is not None and not names.get(named, named != "config")):
                wrong.add(line)
            elif named is not None and names.get(named):
                wrong.discard(line)
    return sorted(wrong)


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)  # a starred one ends it
        else:
            yield target, node.value


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("size = policy.model.config.vocab_size", [1]),
        ("size = getattr(model.config, 'head_dim', None)", [1]),
        ("config = model.config\nsize = config.hidden_size", [2]),
        ("one, two = 1, model.config\nsize = two.hidden_size", [2]),
        ("def f(config):\n    return config.num_hidden_layers", [2]),
        ("size = model.config.get_text_config().vocab_size", []),
        ("def f(config):\n    config = config.get_text_config()\n    return config.num_hidden_layers", []),
        ("text = model.config.get_text_config()\nsize = getattr(text, 'head_dim', None)", []),
        ("one, text = 1, model.config.get_text_config()\nsize = text.head_dim", []),
        ("size = settings.hidden_size", []),
    ],
)
def test_the_rule_tells_them_apart(source: str, lines: list[int]) -> None:
    assert outer_reads(source) == lines


def test_no_file_reads_a_size_from_an_outer_config() -> None:
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE.parents[1] / "plugins").rglob("src/**/*.py")]
    wrong = {f"{file.relative_to(PACKAGE.parent)}:{line}" for file in files for line in outer_reads(file.read_text())}
    assert wrong == set()
