"""The algorithms of `examples/algorithms`: each is short, and trains by its docstring's command; numbers by hand."""

import ast
import importlib
import json
import math
import shlex
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from rlvr.config.compose import load_config
from rlvr.errors import ConfigError
from rlvr.types import Completion, Episode, Example, Group, Score, StopReason, Turn
from tests.system.harness import SMALL, Cli, pretrained, run_train
from tests.unit.algorithms.cases import batch_of
from tests.variants import variants

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "algorithms"
FILES = sorted(FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def command_of(file: Path) -> list[str]:
    """The overrides in its docstring."""
    lines = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()
    return shlex.split(next(line.strip() for line in lines if line.strip().startswith("rlvr train ")))[2:]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_short_and_its_command_fits(file: Path) -> None:
    tree = ast.parse(file.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert len(classes) == 1
    assert sum(len(node.body) for node in functions) <= 18
    assert load_config(command_of(file)).algorithm.name == f"{file.stem}:{classes[0].name}"


@pytest.mark.parametrize("file", variants(FILES, always=2), ids=lambda file: file.stem)
def test_an_example_trains_and_is_called_healthy(file: Path, model: Path, tmp_path: Path, cli: Cli) -> None:
    words = (*SMALL, *pretrained(model), *command_of(file), "trainer.learning_rate=3e-3")
    rows = run_train(tmp_path / "run", *words).rows
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[1]["policy/grad_norm"] > 0
    checks = [json.loads(line) for line in cli("doctor", tmp_path / "run", "--json").out.splitlines()]
    assert len(checks) > 30
    assert [check for check in checks if check["status"] == "fail"] == []


def test_each_example_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    assert [file.name for file in FILES if f"](../examples/algorithms/{file.name})" not in page] == []


def group(*rewards: float) -> Group:
    scores = [Score(value=r, status="error" if r != r else "scored") for r in rewards]
    episodes = [
        Episode(example_id="", sample_index=i, seed=0, turns=(), score=score, stop_reason=StopReason.STOP)
        for i, score in enumerate(scores)
    ]
    return Group(example=Example(id="", messages=(), answer=""), episodes=tuple(episodes))


def advantages(algorithm: Any, rewards: list[float]) -> list[float]:
    """Of one group, with the columns that the trainer computes."""
    made = group(*rewards)
    columns = {
        name: torch.tensor([column.value(made, episode) for episode in made.episodes]).double()
        for name, column in algorithm.columns().items()
    }
    batch = batch_of([[1]] * len(rewards), rewards, columns=columns)
    mask = torch.ones(len(rewards), 1, dtype=torch.bool)
    return algorithm.advantages(batch, torch.zeros(len(rewards), 1).double(), mask).advantages[:, 0].tolist()


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_the_mean_over_all_sets(k: int) -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    sets = list(combinations(range(6), k))
    reward = {one: float(any(rewards[i] for i in one)) for one in sets}
    mean = fmean(reward.values())
    std = fmean((value - mean) ** 2 for value in reward.values()) ** 0.5
    expected = [fmean((reward[one] - mean) / std for one in sets if i in one) for i in range(6)]
    assert advantages(importlib.import_module("pass_at_k").PassAtK(k=k), rewards) == pytest.approx(expected)


def test_pass_at_k_of_sets_that_are_all_alike() -> None:
    algorithm = importlib.import_module("pass_at_k").PassAtK(k=3)
    assert advantages(algorithm, [1.0, 1.0, 0.0, 0.0]) == [0.0] * 4  # each set of three has a right one
    assert advantages(algorithm, [0.0] * 4) == advantages(algorithm, [1.0] * 4) == [0.0] * 4


def test_max_rl_divides_by_the_mean() -> None:
    algorithm = importlib.import_module("max_rl").MaxRL()
    assert advantages(algorithm, [1.0, 0.0, 0.0, 0.0]) == pytest.approx([3.0, -1.0, -1.0, -1.0])
    assert advantages(algorithm, [0.0] * 4) == [0.0] * 4


def test_clip_cov_takes_the_gradient_of_the_largest_covariance() -> None:
    algorithm = importlib.import_module("clip_cov").ClipCov(share=0.1)
    logprobs = torch.linspace(-3, 0, 20).double().reshape(2, 10)
    batch = batch_of([[1] * 10] * 2, [0.0, 1.0], behavior_logprobs=logprobs)
    found = algorithm.advantages(batch, torch.zeros(2, 10).double(), batch.loss_mask).advantages
    plain = super(type(algorithm), algorithm).advantages(batch, torch.zeros(2, 10).double(), batch.loss_mask).advantages
    assert (found == 0).nonzero().tolist() == [[0, 0], [1, 9]]  # unlikely and bad, likely and good: they sharpen
    assert torch.equal(found[found != 0], plain[found != 0])


def test_gdpo_normalizes_each_part() -> None:
    """Two parts of very different scale count alike."""
    algorithm = importlib.import_module("gdpo").Gdpo(weights={"a": 1.0, "b": 1.0})
    parts = torch.tensor([[100.0, 0.0], [0.0, 1.0], [100.0, 1.0], [0.0, 0.0]]).double()
    batch = batch_of([[1]] * 4, [0.0] * 4, columns={"parts": parts})
    found = algorithm.advantages(batch, torch.zeros(4, 1).double(), batch.loss_mask).advantages[:, 0]
    assert found[0].item() == pytest.approx(found[1].item(), abs=1e-3)
    assert found[2] > 1 > 0 > found[3]


def test_gdpo_refuses_a_part_that_the_reward_does_not_have() -> None:
    words = ["algorithm=gdpo:Gdpo", "reward=rpn_combined"]
    assert load_config([*words, "algorithm.weights={boxed: 0.3, correct: 0.7}"]).algorithm.name == "gdpo:Gdpo"
    with pytest.raises(ConfigError, match="the reward has no part corect; there are boxed, correct"):
        load_config([*words, "algorithm.weights={boxed: 0.3, corect: 0.7}"])


def of_turns(reward: float, *prompts: int) -> Episode:
    """An episode with turns of one token, each behind a prompt of one token."""
    completion = Completion(
        token_ids=(9,),
        behavior_logprobs=(0.0,),
        sampling_logprobs=(0.0,),
        stop_reason=StopReason.STOP,
        policy_version=0,
    )
    turns = tuple(Turn(prompt_ids=(prompt,), completion=completion) for prompt in prompts)
    return replace(group(reward).episodes[0], turns=turns)


def test_gigpo_compares_the_turns_that_begin_alike() -> None:
    algorithm = importlib.import_module("gigpo").GiGPO(gamma=0.5)
    episodes = of_turns(1.0, 1, 2), of_turns(0.0, 1, 3), of_turns(1.0, 1, 2, 4), of_turns(float("nan"), 1)
    made = replace(group(), episodes=(*episodes[:3], replace(episodes[3], score=Score(value=0.0, status="error"))))
    values = [algorithm.of_turns(made, episode) for episode in made.episodes]
    # of the first state: 0.5, 0 and 0.25, with mean 0.25; of the second: 1 and 0.5; the others are alone
    std = (2 * 0.25**2 / 3) ** 0.5
    assert [value for one in values for value in one] == pytest.approx(
        [0.25 / std, 1.0, -0.25 / std, 0.0, 0.0, -1.0, 0.0, 0.0], abs=1e-3
    )


def test_gigpo_adds_so_much_of_the_advantage_of_turns() -> None:
    gigpo = importlib.import_module("gigpo").GiGPO
    turns = torch.tensor([[2.0], [-3.0]]).double()
    batch = batch_of([[1], [1]], [1.0, 0.0], columns={"turns": turns})
    none, some = (gigpo(weight=weight).advantages(batch, 0 * turns, turns != 0).advantages for weight in (0.0, 0.5))
    assert torch.allclose(some - none, 0.5 * turns)
    assert none[0] > 0 > none[1]


def test_igpo_compares_gains_of_probability_in_the_whole_group() -> None:
    algorithm = importlib.import_module("igpo").IGPO()
    made = replace(group(), episodes=(of_turns(1.0, 1, 2, 3), of_turns(0.0, 1, 2), of_turns(float("nan"), 1)))
    gold = [[math.log(p) for p in one] for one in ((0.1, 0.2, 0.5), (0.1, 0.7), (0.1,))]
    found = algorithm.of_turns(made, gold)
    gains = [0.1, 0.3, 0.6]
    mean = sum(gains) / 3
    std = (sum((gain - mean) ** 2 for gain in gains) / 3) ** 0.5
    first, second, third = ((gain - mean) / std for gain in gains)
    assert found[0] == pytest.approx([first + second + 1, second + 1, 1], abs=1e-2)  # rewards 1 and 0: 1 and -1
    assert found[1] == pytest.approx([third - 1, -1], abs=1e-2)
    assert found[2] == [0.0]  # an error says nothing, and moves no mean


def test_igpo_credits_a_turn_with_its_gain_and_what_follows() -> None:
    algorithm = importlib.import_module("igpo").IGPO(weight=2.0)
    made = replace(group(), episodes=(of_turns(1.0, 1, 2, 3), of_turns(0.0, 1)))
    gold = [[math.log(p) for p in (0.1, 0.2, 0.5)], [math.log(0.1)]]
    found = algorithm.of_turns(made, gold)  # gains 0.1 and 0.3: normalized -1 and 1; rewards 1 and -1
    assert found[0] == pytest.approx([2 * (-1) + 2 * 1 + 1, 2 * 1 + 1, 1], abs=1e-2)
    assert found[1] == pytest.approx([-1], abs=1e-2)
