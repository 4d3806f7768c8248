"""MuSiQue, HotpotQA and 2Wiki through the command, with a small checkpoint that calls their tools."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from tests.system.harness import Cli, metrics, once, split

TASK = ("prompt.system='Answer with tools.'", "task.max_turns=4")
SHORT = split("""
    rollout.prompts_per_step=2 rollout.group_size=4 rollout.max_completion_tokens=32
    trainer.max_steps=2 trainer.warmup_steps=0 trainer.learning_rate=1e-3 trainer.checkpoint_every=null
    evaluation.every=2 evaluation.num_examples=6 tracker.console=none tracker.rollouts_every=1 run_dir=run
""")
Words = Callable[..., list[str]]


@pytest.fixture
def words(tool_qwen: Path, here: Path) -> Words:
    """Words of a short training in an empty folder, from the checkpoint that calls tools."""

    def train(*more: str, name: str = "musique") -> list[str]:
        return once("train", "--config-name", name, *SHORT, f"model.name_or_path={tool_qwen}", *more)

    return train


def episodes(folder: Path = Path("run")) -> list[EpisodeRecord]:
    return [record for file in sorted((folder / "rollouts").iterdir()) for record in read_rollouts(file)]


def test_musique_trains_with_tools_and_its_run_can_be_evaluated(words: Words, cli: Cli) -> None:
    cli.ok(*words(*TASK))
    first, last = metrics(Path("run"))[0], metrics(Path("run"))[-1]
    assert {"eval/musique/accuracy", "eval/musique/answer_f1", "eval/musique/paragraphs_recall"} <= set(first)
    assert {f"eval/musique/accuracy_{hops}_hops" for hops in (2, 3, 4)} <= set(last)
    found = episodes()
    assert len(found) == 16
    assert max(len(each.turns) for each in found) > 1
    assert len({each.reward for each in found}) > 1
    assert any(each.diagnostics["paragraphs_recall"] != 0 for each in found)
    later = [turn.prompt for each in found for turn in each.turns[1:]]
    assert any("Document ID: " in prompt for prompt in later)  # what the tool found is in the next prompt
    done = cli.ok("eval", "run", "--retriever", "golden", "--num-examples", "4", "--json")
    assert "eval/musique/accuracy" in json.loads(done.out.splitlines()[-1])


def test_tool_format_is_the_same_in_training_and_evaluation(words: Words, cli: Cli) -> None:
    llama = "respond with JSON for a function call"
    few = ("task.tools=[complete]", "rollout.max_completion_tokens=8", "trainer.max_steps=1")
    cli.ok(*words(*TASK, "prompt.tool_format=llama", *few))
    assert all(llama in each.turns[0].prompt for each in episodes())
    for command in ("eval", "predict"):
        cli.ok(command, "run", "--num-examples", "2", "--output", f"{command}.jsonl")
        records = [json.loads(line) for line in Path(f"{command}.jsonl").read_text().splitlines()]
        assert records
        assert all(llama in record["prompt"] for record in records)


@pytest.mark.parametrize("name", ["hotpotqa", "wiki2"])
def test_the_other_data_sets_train_too(name: str, words: Words, cli: Cli) -> None:
    cli.ok(*words(*TASK, "task.curriculum=hops", "task.noise_rate=0.5", name=name))
    assert f"eval/{name}/accuracy_2_hops" in metrics(Path("run"))[-1]
    assert {each.diagnostics["hops"] for each in episodes()[:4]} == {2.0}


def test_progress_shapes_the_advantages_within_an_episode(words: Words, cli: Cli) -> None:
    """With progress_coef the tokens after a search that found something have another advantage than those before."""
    more = ("algorithm=ppo", "algorithm.whiten_advantages=false", "algorithm.gamma=0.9", "task.retriever=golden")
    found = []
    for coef in (0, 1):
        cli.ok(*words(*TASK, *more, "trainer.max_steps=1", f"task.progress_coef={coef}", f"run_dir=run{coef}"))
        found.append(episodes(Path(f"run{coef}")))
    plain, shaped = found
    assert [each.reward for each in plain] == [each.reward for each in shaped]  # what is reported is the reward itself
    assert [[row.ids for row in each.rows] for each in plain] == [[row.ids for row in each.rows] for each in shaped]
    pairs = zip(plain, shaped, strict=True)
    different = {a.example_id for a, b in pairs if a.rows[0].advantages != b.rows[0].advantages}
    assert different
    assert different <= {each.example_id for each in shaped if each.diagnostics["paragraphs_recall"]}


def test_a_mix_of_a_task_with_tools_and_one_without(words: Words, cli: Cli) -> None:
    cli.ok(*words("task=mix", "task.parts={musique: {set: ['task.max_turns=3']}, gsm8k: 1}"))
    last = metrics(Path("run"))[-1]
    assert {"task/musique/reward_mean", "task/gsm8k/reward_mean"} <= set(last)
    assert {"eval/musique/accuracy", "eval/gsm8k/accuracy"} <= set(last)


def test_a_service_that_is_down_ends_the_run_with_one_sentence(words: Words, cli: Cli) -> None:
    down = ("task.retriever=rerank", "task.retrieval.rerank_url=http://127.0.0.1:9/rerank")
    done = cli(*words(*TASK, *down, "task.retrieval.max_retries=0"))
    assert done.code == 1
    assert "127.0.0.1:9" in done.err
    assert "Traceback" not in done.err
    assert not Path("run/metrics.jsonl").exists()  # it was down at the first evaluation
