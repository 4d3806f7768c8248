"""A call makes the configuration of the same command."""

from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.calls import Call, evaluation, training
from rlvr.config import Config
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.errors import ConfigError, UserError
from rlvr.settings import dumped

pytestmark = pytest.mark.slow

PATH = "tests.unit.cli.test_calls:reward"


def reward(completion: str) -> float:
    return float(len(completion))


def other(completion: str) -> float:
    return 0.0


def trained(**arguments: Any) -> Config:
    names = {name: arguments.pop(name, None) for name in ("model", "data", "eval_data", "reward")}
    config_name, config_dir = arguments.pop("config_name", None), arguments.pop("config_dir", None)
    return training(Call(**names, values=arguments), config_name, config_dir)


def command(*lines: str, name: str = "gsm8k") -> Config:
    return load_config(lines, config_name=name)


def refusal(**arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        trained(**arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_is_the_default_command() -> None:
    assert trained() == load_config([])
    assert trained(config_name="finqa", seed=3) == command("seed=3", name="finqa")


def test_data_start_from_the_configuration_of_data() -> None:
    assert trained(data="/a b.jsonl") == command("name=jsonl", "task=jsonl", "task.path='/a b.jsonl'")
    both = command("task=jsonl", "task.path=/a", "task.eval_path=/b", "name=mine")
    assert trained(data="/a", eval_data="/b", name="mine") == both
    assert trained(config_name="gsm8k", eval_data="/b", task={"name": "jsonl", "path": "/a"}, name="mine") == both


@pytest.mark.parametrize(
    ("model", "lines"),
    [
        ("Qwen/Qwen3-0.6B", ["model.name_or_path=Qwen/Qwen3-0.6B"]),
        (Path("/it's/here"), ["model.name_or_path='/it\\'s/here'"]),
        ({"lora": {"enabled": True, "r": 4}}, ["model.lora.enabled=true", "model.lora.r=4"]),
        ("scratch_bpe", ["model=scratch_bpe"]),
        ({"name": "scratch_bpe", "num_layers": 2}, ["model=scratch_bpe", "model.num_layers=2"]),
    ],
)
def test_models(model: Any, lines: list[str]) -> None:
    short = "rollout.max_completion_tokens=64"
    assert trained(model=model, config_name="gsm8k", rollout={"max_completion_tokens": 64}) == command(short, *lines)


def test_a_function_is_a_reward_asked_plainly() -> None:
    config = trained(data="/a", reward=reward)
    custom = ["reward=custom", f"reward.parts.custom.function={PATH}"]
    assert config == command("name=jsonl", "task=jsonl", "task.path=/a", *custom, "prompt=plain")
    assert Call(data="/a", reward=reward).functions == {PATH: reward}
    assert trained(reward=reward) == load_config(custom)  # on generated problems as well


USER = {"user": "{question}!"}


@pytest.mark.parametrize(
    ("chosen", "answer_in"), [("boxed", "boxed"), ({"name": "boxed", **USER}, "boxed"), (USER, "whole")]
)
def test_another_prompt_can_be_chosen(chosen: Any, answer_in: str) -> None:
    prompt = trained(data="/a", reward=reward, prompt=chosen).prompt
    assert prompt.answer_in == answer_in
    assert (prompt.user == USER["user"]) == (chosen != "boxed")


def test_a_function_that_yields_examples_is_a_task() -> None:
    def rows(size: int) -> list[tuple[str, str]]:
        return [("1 + 1", "2")] * size

    config = trained(data=rows, task={"settings": {"size": 3}})
    assert config.task.name == "generator"
    assert config.task.settings == {"size": 3}  # type: ignore[union-attr]
    assert Call(data=rows).functions == {config.task.source: rows}  # type: ignore[union-attr]


CALL = {"data": "/a", "eval_data": "/b", "reward": reward, "seed": 3, "algorithm": "rloo"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with a reward function, as far as its configuration."""
    return written(tmp_path / "run", trained(**CALL))


@pytest.fixture
def own(run: Path) -> Config:
    """The configuration of that run."""
    return load_config([], config_name="config", config_dir=str(run))


def written(root: Path, config: Config) -> Path:
    root.mkdir()
    (root / "config.yaml").write_text(to_run_yaml(config))
    return root


def test_a_run_goes_on_with_its_own_configuration(run: Path, own: Config) -> None:
    expected = own.model_copy(update={"run_dir": str(run), "resume": True})
    assert trained(run_dir=run, resume=True) == expected
    assert trained(run_dir=run, resume=True, reward=reward) == expected
    assert trained(**CALL, run_dir=run, resume=True) == expected
    longer = trained(run_dir=run, resume=True, reward=reward, trainer={"max_steps": 7})
    assert longer.trainer.max_steps == 7
    assert (longer.seed, longer.algorithm.name) == (3, "rloo")


def test_a_run_without_a_function_takes_none(tmp_path: Path) -> None:
    run = written(tmp_path / "numeric", trained(data="/a"))
    assert "leave reward out" in refusal(run_dir=run, resume=True, reward=reward)


def test_a_new_run_folder_is_no_run_to_go_on_with(tmp_path: Path) -> None:
    assert trained(run_dir=tmp_path / "new") == load_config([f"run_dir={tmp_path / 'new'}"])
    assert "holds no run to resume" in refusal(run_dir=tmp_path / "new", resume=True)


def test_a_run_is_evaluated_on_its_own_task(run: Path, own: Config) -> None:
    assert evaluation(Call(), str(run), None) == own
    config = evaluation(Call(values={"evaluation.num_examples": 7}), str(run / "final"), None)
    assert config.evaluation.num_examples == 7
    assert evaluation(Call(reward=reward), str(run), None) == own


def test_a_run_on_rows_is_evaluated_on_others(run: Path, own: Config) -> None:
    config = evaluation(Call(data="/c"), str(run), None)
    assert config.task == own.task.model_copy(update={"eval_path": "/c"})
    assert (config.prompt, config.reward, config.rollout) == (own.prompt, own.reward, own.rollout)


def test_a_run_on_another_data_set_is_asked_as_before(tmp_path: Path) -> None:
    own = trained(config_name="gsm8k", prompt={"user": "Please: {question}"}, evaluation={"also": ["finqa"]})
    run = written(tmp_path / "gsm8k", own)
    config = evaluation(Call(data="/c", values={"task.question_field": "q"}), str(run), None)
    expected = {"name": "jsonl", "path": "/c", "eval_path": "/c", "question_field": "q", "metric": "numeric"}
    assert dumped(config.task).items() >= expected.items()
    assert (config.prompt, config.reward) == (own.prompt, own.reward)
    assert config.evaluation.also == {}


def test_prompt_and_reward_of_its_own_task_only_are_dropped(tmp_path: Path) -> None:
    rows = load_config(["task=jsonl", "task.path=/c"], config_name="gsm8k")
    rpn = evaluation(Call(data="/c"), str(written(tmp_path / "rpn", trained())), None)
    assert (rpn.prompt, rpn.reward) == (rows.prompt, rows.reward)
    changes = {"task": {"answer": "program"}, "reward": "finqa_program", "prompt": "financial_program"}
    programs = trained(config_name="finqa", **changes)
    finqa = evaluation(Call(data="/c"), str(written(tmp_path / "finqa", programs)), None)
    assert (finqa.prompt, finqa.reward) == (programs.prompt, rows.reward)


def test_a_bare_model_is_evaluated_on_rows_or_on_a_task(tmp_path: Path) -> None:
    rows = ["task=jsonl", "task.path=/c", "task.eval_path=/c"]
    assert evaluation(Call(data="/c"), str(tmp_path), None) == command(*rows)
    assert evaluation(Call(data="/c"), str(tmp_path), "finqa") == command(*rows, name="finqa")
    assert evaluation(Call(), str(tmp_path), "gsm8k") == command()
    assert evaluation(Call(data="/c", reward=reward), str(tmp_path), None).prompt.answer_in == "whole"
    with pytest.raises(UserError, match="is no run folder and so has no task of its own"):
        evaluation(Call(), str(tmp_path), None)
