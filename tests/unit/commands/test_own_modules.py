"""User modules are found in `--config-dir`; a missing or wrong one is an error of the user."""

import sys
from pathlib import Path

import pytest

from rlvr import imports
from rlvr.commands.benchmark.body import BenchmarkPlan, make_cells
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.errors import ConfigError
from rlvr.run.sources import own_config
from rlvr.run.tasks import open_tasks

SHOP = """from rlvr.tasks.generator import ExamplesTask


class Shop(ExamplesTask):
    def examples(self):
        for number in range(100):
            yield f"What is {number} + {number}?", 2 * number


class Unread(Shop):
    def load(self, context):
        return {}["rows"]


class Answerless(Shop):
    def examples(self):
        return [{"question": "?"}]
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, and the folder of a run of its task."""
    monkeypatch.setattr(imports, "folders", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_shop", raising=False)
    (tmp_path / "own_shop.py").write_text(SHOP)
    return tmp_path


def test_a_run_folder_has_the_name_of_the_task(shop: Path) -> None:
    lines = ["task=own_shop:Shop", "model=scratch_bpe"]
    assert load_config(lines, config_dir=str(shop)).name == "shop"
    assert load_config(["task=gsm8k", "model=scratch_bpe"]).name == "gsm8k"
    assert load_config([*lines, "name=mine"], config_dir=str(shop)).name == "mine"


@pytest.mark.slow
def test_benchmark_and_serve_find_what_train_finds(shop: Path) -> None:
    lines = ("model=scratch_bpe", "rollout.max_completion_tokens=40")
    plan = BenchmarkPlan(models=("a",), tasks=("own_shop:Shop",), changes=lines, config_dir=str(shop))
    assert [cell.own_task for cell in make_cells(plan)] == ["shop"]
    run = shop / "run"
    run.mkdir()
    (run / "config.yaml").write_text(to_run_yaml(load_config(["task=own_shop:Shop", *lines], config_dir=str(shop))))
    imports.folders.clear()
    del sys.modules["own_shop"]
    sys.path.remove(str(shop))
    with pytest.raises(ConfigError, match="module own_shop cannot be imported"):
        own_config(str(run))
    found = own_config(str(run), config_dir=str(shop))
    assert found is not None
    assert found.task.name == "own_shop:Shop"


@pytest.mark.parametrize(
    ("name", "told"), [("Unread", "KeyError: 'rows'"), ("Answerless", "field 'answer' is missing")]
)
def test_an_error_of_a_user_task_is_a_config_error(shop: Path, name: str, told: str) -> None:
    config = load_config([f"task=own_shop:{name}", "model=scratch_bpe"], config_dir=str(shop))
    with pytest.raises(ConfigError, match=told), open_tasks(config, None, {}):
        pass
