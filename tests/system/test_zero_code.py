"""Everything by configuration alone: the experiments of the Hydra specification, each in its corrected form.

python run_pipeline.py                                            rlvr train --config-name gsm8k
model.model_name_or_path=M train.max_steps=500                    model.name_or_path=M trainer.max_steps=500
data_component=finqa                                              task=finqa
reward.reward_functions[0].params.correct_reward=5.0              reward.parts.correct.weight=5.0
model.load_in_4bit=true train.per_device_train_batch_size=8       model.load_in_4bit=true model.lora.enabled=true
                                                                  rollout.prompts_per_step=8
prompts=math_reasoning                                            prompt=math_reasoning
"""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from tests.system.harness import DATA, ON_DATA, Cli, metrics, once, rlvr
from tests.unit.models.test_hub import Server, use

Words = Callable[..., list[str]]
Trained = Callable[..., Path]


@pytest.fixture
def words(qwen: Path, here: Path) -> Words:
    """Words of a short training in an empty folder, from the small checkpoint."""
    return lambda *more: once("train", "--config-name", "gsm8k", *ON_DATA, f"model.name_or_path={qwen}", *more)


@pytest.fixture
def trained(words: Words, cli: Cli) -> Trained:
    """`trained("task=finqa")`: the folder of such a training, which must succeed."""

    def run(*more: str, folder: str = "run") -> Path:
        cli.ok(*words(*more, f"run_dir={folder}"))
        return Path(folder)

    return run


def in_order(row: dict[str, float], name: str) -> bool:
    """Whether a score is within its interval."""
    return 0 <= row[f"{name}_low"] <= row[name] <= row[f"{name}_high"] <= 1


def config(folder: Path) -> Any:
    return yaml.safe_load((folder / "config.yaml").read_text())


def rollouts(folder: Path) -> list[EpisodeRecord]:
    return read_rollouts(folder / "rollouts" / "step_000001.jsonl.gz")


# -------------------------------------------------------------------------------------------------------- training


@pytest.mark.long
def test_basic_training_as_a_user_starts_it(qwen: Path, tmp_path: Path) -> None:
    short = [word for word in ON_DATA if not word.startswith("tracker.console")]
    words = ["train", "--config-name", "gsm8k", f"model.name_or_path={qwen}", *short]
    done = rlvr(*words, cwd=tmp_path, environment={"RLVR_DATA": str(DATA)})
    assert done.code == 0, done.err
    plan = f"task: gsm8k ({DATA / 'gsm8k'})\nmodel: {qwen}, float32\nreward: 3 x correct + 1 x format + 0.5 x markers\n"
    assert done.err.startswith(plan)
    assert "12 training and 6 held-out examples" in done.err
    assert "trainable: all 34," in done.err
    assert re.match(r"gsm8k: held-out accuracy \d\.\d{3} -> \d\.\d{3} \(95 % interval ", done.out)
    latest = tmp_path / "runs" / "latest"
    assert latest.resolve().name.startswith("gsm8k-")
    assert (latest / "final" / "model.safetensors").is_file()
    assert {record.score_status for record in rollouts(latest)} <= {"scored", "invalid"}


def test_model_steps_and_learning_rate(trained: Trained, qwen: Path) -> None:
    few = ("trainer.max_steps=2", "trainer.learning_rate=1e-5")
    first = trained(*few, folder="first")
    again = trained(*few, "model.name_or_path=first/final", folder="next")
    assert [row["step"] for row in metrics(again)] == [0, 1, 2]
    assert metrics(again)[1]["policy/learning_rate"] == 1e-5
    assert config(again)["model"]["name_or_path"] == str((first / "final").resolve())
    weights = [load_file(folder / "model.safetensors") for folder in (qwen, first / "final", again / "final")]
    for a, b in pairwise(weights):
        assert any((a[name] != b[name]).any() for name in a)


def test_one_choice_switches_data_reward_and_prompt(trained: Trained) -> None:
    folder = trained("task=finqa")
    found = config(folder)
    assert found["task"]["name"] == "finqa"
    assert found["reward"]["parts"]["correct"]["type"] == "finqa_numeric"
    assert "financial report" in found["prompt"]["system"]
    records = rollouts(folder)
    prompts = {record.turns[0].prompt for record in records}
    assert all("financial report" in prompt and "<SOLUTION>" in prompt and " | " in prompt for prompt in prompts)
    assert {record.answer for record in records} <= {"0.25", "35", "yes", "-32", "415", "-0.36", "20", "no"}
    assert set(records[0].reward_parts) == {"correct", "format", "markers"}
    row = metrics(folder)[-1]
    assert in_order(row, "eval/finqa/accuracy")
    assert not any(name.startswith("eval/gsm8k/") for name in row)
    own = trained("--config-name", "finqa", folder="own")  # the same as the configuration of that name
    same = [[record.turns for record in rollouts(each)] for each in (folder, own)]
    assert same[0] == same[1]


def test_what_follows_the_data_can_still_be_chosen(trained: Trained, words: Words, cli: Cli) -> None:
    chosen = ("task=finqa", "prompt=short_answer", "reward=text")
    found = yaml.safe_load(cli.ok(*words(*chosen, "--cfg", "job")).out)
    assert (found["task"]["name"], found["reward"]["parts"]["correct"]["type"]) == ("finqa", "text")
    assert found["prompt"]["system"] == "Answer with the answer alone, without an explanation."
    record = rollouts(trained(*chosen, "prompt.few_shot=1"))[0]
    assert record.turns[0].prompt.count("Question: ") == 2  # the shown one and the asked one
    assert set(record.reward_parts) == {"correct"}
    program = ["task=finqa", "task.answer=program", "reward=finqa_program", "prompt=financial_program"]
    assert all("(" in record.answer for record in rollouts(trained(*program, folder="program")))


def test_a_weight_changes_the_reward_and_nothing_else(trained: Trained) -> None:
    many = "rollout.prompts_per_step=8"
    three, five = trained(many), trained(many, "reward.parts.correct.weight=5.0", folder="five")
    pairs = list(zip(rollouts(three), rollouts(five), strict=True))
    assert [a.turns for a, _ in pairs] == [b.turns for _, b in pairs]
    assert any(a.reward_parts["correct"] == 1.0 for a, _ in pairs)
    for a, b in pairs:
        assert a.reward is not None
        assert a.reward_parts["correct"] is not None
        assert b.reward == a.reward + 2.0 * a.reward_parts["correct"]
    assert metrics(five)[1]["reward/mean"] > metrics(three)[1]["reward/mean"]


def test_few_bits_steps_and_batches(trained: Trained, words: Words, cli: Cli) -> None:
    more = ["model.load_in_4bit=true", "model.lora.enabled=true", "model.lora.r=4", "rollout.prompts_per_step=3"]
    folder = trained(*more, "rollout.group_size=2", "trainer.max_steps=2", "trainer.microbatch_tokens=512")
    assert {row["rollout/episodes"] for row in metrics(folder)[1:]} == {6.0}
    adapter = load_file(folder / "final" / "adapter_model.safetensors")
    assert {tensor.shape[0] for name, tensor in adapter.items() if "lora_A" in name} == {4}
    assert not (folder / "final" / "model.safetensors").exists()
    done = cli.ok("eval", folder, "--num-examples", "2", "--json")
    assert json.loads(done.out)["eval/gsm8k/num_examples"] == 2
    cli.refuses(2, words("model.load_in_4bit=true"), "set model.lora.enabled=true")


def test_multirun_over_two_data_sets(words: Words, cli: Cli) -> None:
    done = cli.ok(*words("--multirun", "task=gsm8k,finqa", "run_dir=data"))
    assert [line.split()[0] for line in done.out.splitlines()] == ["run", "task=gsm8k", "task=finqa"]
    for name in ("gsm8k", "finqa"):
        assert f"eval/{name}/accuracy" in metrics(Path(f"data/task-{name}"))[-1]


TRANSLATED = {
    "data.dataset_path": f"task.path={DATA / 'gsm8k'}",
    "data.max_train_samples": "task.max_train_examples=5",
    "data.max_eval_samples, eval.eval_num_samples": "evaluation.num_examples=3",
    "model.attn_implementation": "model.attn_implementation=eager",
    "model.full_finetuning, lora_config.use_lora": "model.lora.enabled=true",
    "lora_config.r": "model.lora.r=8",
    "lora_config.lora_alpha": "model.lora.alpha=16",
    "lora_config.target_modules": "model.lora.target_modules=[q_proj,k_proj,v_proj,o_proj]",
    "markers": "prompt.markers=think",
    "train.output_dir, save_model_path, log_dir": "run_dir=everything",
    "train.learning_rate": "trainer.learning_rate=5e-6",
    "train.max_steps": "trainer.max_steps=2",
    "train.max_prompt_length": "task.max_prompt_tokens=120",
    "train.max_completion_length": "rollout.max_completion_tokens=20",
    "train.per_device_train_batch_size": "rollout.prompts_per_step=2",
    "train.gradient_accumulation_steps": "trainer.microbatch_tokens=300",
    "train.warmup_ratio": "trainer.warmup_steps=1",
    "train.lr_scheduler_type": "trainer.schedule=cosine",
    "train.optim_name": "trainer.weight_decay=0.01",
    "train.logging_steps": "tracker.log_every=1",
    "train.save_steps": "trainer.checkpoint_every=1",
    "train.num_generations": "rollout.group_size=3",
    "train.log_completions_to_wandb, observers, report_to": "tracker.rollouts_every=1",
    "logging_level": "tracker.console=plain",
    "eval.eval_datasets_names": "evaluation.also=[finqa]",
    "eval.eval_steps": "evaluation.every=1",
    "eval.eval_batch_size": "engine.max_batch_size=64",
}


def test_every_key_of_the_specification_has_its_equivalent(qwen: Path, here: Path, cli: Cli) -> None:
    cli.ok("train", "--config-name", "gsm8k", f"model.name_or_path={qwen}", *TRANSLATED.values())
    folder = Path("everything")
    found = config(folder)
    for line in TRANSLATED.values():
        key, _, value = line.partition("=")
        there = found
        for name in key.split("."):
            there = there[name]
        if key == "evaluation.also":
            assert list(there) == ["finqa"]
        elif key != "run_dir":  # a repeated run is another one
            assert there == (float(value) if isinstance(there, float) else yaml.safe_load(value)), key
    rows = metrics(folder)
    assert [row["rollout/episodes"] for row in rows[1:]] == [6.0, 6.0]
    assert [row["eval/gsm8k/num_examples"] for row in rows] == [3.0, 3.0, 3.0]
    assert len([row for row in rows if "eval/finqa/accuracy" in row]) == 3
    assert "<think>" in rollouts(folder)[0].turns[0].prompt
    assert {path.name for path in (folder / "checkpoints").iterdir()} > {"step_000001", "step_000002"}


# ------------------------------------------------------------------------------------------------------ evaluation


def test_a_run_is_evaluated_greedily_and_sampled(trained: Trained, cli: Cli) -> None:
    folder = trained()
    greedy = cli.ok("eval", folder, "--num-examples", "3").out
    assert "run/final on gsm8k, 3 held-out examples" in greedy
    assert re.search(r"^accuracy +\d+\.\d%   \d+\.\d% to \d+\.\d%$", greedy, re.MULTILINE)
    assert "pass@" not in greedy
    many = ["--split", "train", "--num-examples", "8", "--samples-per-example", "4", "--output", "said.jsonl"]
    sampled = json.loads(cli.ok("eval", folder, *many, "--json").out)
    found = {name.removeprefix("eval/gsm8k/"): value for name, value in sampled.items()}
    assert found["samples_per_example"] == 4
    names = ("accuracy", "sampled_accuracy", "pass_at_2", "pass_at_4", "maj_at_4")
    assert [name for name in names if not in_order(found, name)] == []
    assert 0 < found["sampled_accuracy"] < found["pass_at_2"] < found["pass_at_4"] <= 1
    records = [json.loads(line) for line in Path("said.jsonl").read_text().splitlines()]
    right = [record["correct"] for record in records if record["sample_index"] > 0]
    assert (len(right), sum(right) / len(right)) == (32, found["sampled_accuracy"])


@pytest.mark.parametrize("task", ["gsm8k", "finqa"])
def test_any_model_is_evaluated_on_any_task(task: str, qwen: Path, cli: Cli) -> None:
    done = cli.ok("eval", qwen, "--task", task, "--set", "rollout.max_completion_tokens=24", "--json")
    found = json.loads(done.out)
    assert found["task"] == task
    assert in_order(found, f"eval/{task}/accuracy")


def test_several_sets_are_evaluated_at_once(trained: Trained, cli: Cli) -> None:
    folder = trained(
        "evaluation.also={finqa: {}, short: {task: gsm8k, set: ['prompt=short_answer', 'reward=numeric']}}"
    )
    for row in metrics(folder):
        assert all(in_order(row, f"eval/{name}/accuracy") for name in ("gsm8k", "finqa", "short"))
    start = metrics(folder)[0]
    assert start["eval/short/completion_tokens_mean"] != start["eval/gsm8k/completion_tokens_mean"]
    done = cli.ok("eval", folder, "--json")
    assert [json.loads(line)["task"] for line in done.out.splitlines()] == ["gsm8k", "finqa", "short"]


def test_a_mix_has_the_metrics_of_each_task(trained: Trained) -> None:
    folder = trained("task=mix", "task.parts={gsm8k: 2, finqa: 1}", "rollout.prompts_per_step=6")
    row = metrics(folder)[-1]
    assert (row["task/gsm8k/episodes"], row["task/finqa/episodes"]) == (16.0, 8.0)
    assert row["task/gsm8k/reward_mean"] != row["task/finqa/reward_mean"]
    assert all(in_order(row, f"eval/{name}/accuracy") for name in ("gsm8k", "finqa", "mix"))
    assert row["eval/mix/num_examples"] == row["eval/gsm8k/num_examples"] + row["eval/finqa/num_examples"]
    prompts = {"financial report" in record.turns[0].prompt for record in rollouts(folder)}
    assert prompts == {True, False}  # each with its own


# ------------------------------------------------------------------------------------------------------ no network


def refused_after_its_plan(cli: Cli, code: int, *words: str) -> tuple[list[str], str]:
    """The five lines of the plan, and the error; nothing is written."""
    done = cli("train", *words)
    assert (done.code, done.out) == (code, "")
    *plan, error = done.err.splitlines()
    assert [line.partition(":")[0] for line in plan] == ["task", "model", "reward", "training", "evaluation"]
    assert error.startswith("rlvr: error: ")
    assert not Path("runs").exists()
    return plan, error


@pytest.mark.parametrize(("name", "source"), [("gsm8k", "openai/gsm8k"), ("finqa", "ibm-research/finqa")])
def test_without_a_network_the_plan_is_printed_and_one_sentence(
    name: str, source: str, online: pytest.MonkeyPatch, here: Path, cli: Cli
) -> None:
    use(online, "http://127.0.0.1:9")
    online.delenv("RLVR_DATA")
    plan, error = refused_after_its_plan(cli, 1, "--config-name", name, "model.name_or_path=Qwen/Qwen2.5-0.5B-Instruct")
    assert plan[:2] == [f"task: {name} ({source})", "model: Qwen/Qwen2.5-0.5B-Instruct, float32"]
    assert error.startswith("rlvr: error: the model 'Qwen/Qwen2.5-0.5B-Instruct' is no folder here, and the Hub at ")
    assert "cannot be reached" in error
    assert "check the network, or name a model folder" in error


GATED, REFUSED = (403, {"X-Error-Code": "GatedRepo"}), (401, {"X-Error-Message": "Invalid credentials"})
MODEL, DATA_SET = "model.name_or_path=some/model", "task.path=some/data"
HUB = {
    "gated model": (GATED, MODEL, "'some/model' is gated: ask for access"),
    "refused token": (REFUSED, MODEL, "the Hub refused your token for the model 'some/model'"),
    "gated data": (GATED, DATA_SET, "refuses access to the data set some/data"),
    "token refused for data": (REFUSED, DATA_SET, "refuses access to the data set some/data"),
    "no such data": ((404, {"X-Error-Code": "RepoNotFound"}), DATA_SET, "the Hub has no such data set"),
    "down": ((503, {}), DATA_SET, "the Hub cannot be reached (it answers 503)"),
}


@pytest.mark.parametrize("case", HUB)
def test_what_the_hub_refuses_is_one_sentence(
    case: str, online: pytest.MonkeyPatch, qwen: Path, here: Path, cli: Cli
) -> None:
    answer, line, sentence = HUB[case]
    server = Server({"": answer})
    use(online, server.url)
    words = once("--config-name", "gsm8k", f"model.name_or_path={qwen}", f"task.path={DATA / 'gsm8k'}", line)
    with server.running():
        _, error = refused_after_its_plan(cli, 2 if case == "no such data" else 1, *words)
    assert sentence in error
