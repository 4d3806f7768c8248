"""MuSiQue, HotpotQA and 2Wiki through the command, with a small checkpoint that calls their tools."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr.cli.main import main
from rlvr.tracking.rollouts import EpisodeRecord, read_rollouts
from tests.system.harness import DATA, Finished, metrics, once

SHORT = (
    "prompt.system='Answer with tools.'",
    "task.max_turns=4",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "rollout.max_completion_tokens=32",
    "trainer.max_steps=2",
    "trainer.warmup_steps=0",
    "trainer.learning_rate=1e-3",
    "trainer.checkpoint_every=null",
    "evaluation.every=2",
    "evaluation.num_examples=6",
    "tracker.console=none",
    "tracker.rollouts_every=1",
)

Run = Callable[..., Finished]


@pytest.fixture
def run(
    tool_qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Finished]:
    """`rlvr WORDS` in an empty folder, the data in RLVR_DATA; a training is short and starts from the checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLVR_DATA", str(DATA))

    def call(*words: str, short: tuple[str, ...] = SHORT) -> Finished:
        capsys.readouterr()
        more = [*short, f"model.name_or_path={tool_qwen}", "run_dir=run"] if words[0] == "train" else []
        code = main([words[0], *once(*more, *words[1:])])
        out, err = capsys.readouterr()
        return Finished(code=code, out=out, err=err)

    return call


def episodes(folder: Path = Path("run")) -> list[EpisodeRecord]:
    return [record for file in sorted((folder / "rollouts").iterdir()) for record in read_rollouts(file)]


def test_musique_trains_with_tools_and_its_run_can_be_evaluated(run: Run) -> None:
    done = run("train", "--config-name", "musique")
    assert done.code == 0, done.err
    first, last = metrics(Path("run"))[0], metrics(Path("run"))[-1]
    assert {"eval/musique/accuracy", "eval/musique/answer_f1", "eval/musique/paragraphs_recall"} <= set(first)
    assert {f"eval/musique/accuracy_{hops}_hops" for hops in (2, 3, 4)} <= set(last)
    found = episodes()
    assert len(found) == 16
    assert max(len(each.turns) for each in found) > 1
    assert len({each.reward for each in found}) > 1
    assert any(each.diagnostics["paragraphs_recall"] != 0 for each in found)
    searched = [turn.prompt for each in found for turn in each.turns[1:] if "Document ID: " in turn.prompt]
    assert searched  # what the tool found stands in the next prompt
    done = run("eval", "run", "--retriever", "golden", "--num-examples", "4", "--json")
    assert done.code == 0, done.err
    assert "eval/musique/accuracy" in json.loads(done.out.splitlines()[-1])


def test_tool_format_is_the_same_in_training_and_evaluation(run: Run) -> None:
    llama = "respond with JSON for a function call"
    few = ("task.tools=[complete]", "rollout.max_completion_tokens=8", "trainer.max_steps=1")
    done = run("train", "--config-name", "musique", "prompt.tool_format=llama", *few)
    assert done.code == 0, done.err
    assert all(llama in each.turns[0].prompt for each in episodes())
    for command in ("eval", "predict"):
        done = run(command, "run", "--num-examples", "2", "--output", f"{command}.jsonl")
        assert done.code == 0, done.err
        records = [json.loads(line) for line in Path(f"{command}.jsonl").read_text().splitlines()]
        assert records
        assert all(llama in record["prompt"] for record in records)


@pytest.mark.parametrize("name", ["hotpotqa", "wiki2"])
def test_the_other_data_sets_train_too(run: Run, name: str) -> None:
    done = run("train", "--config-name", name, "task.curriculum=hops", "task.noise_rate=0.5")
    assert done.code == 0, done.err
    assert f"eval/{name}/accuracy_2_hops" in metrics(Path("run"))[-1]
    assert {each.diagnostics["hops"] for each in episodes()[:4]} == {2.0}


def test_progress_shapes_the_advantages_within_an_episode(run: Run) -> None:
    """With progress_coef the tokens after a search that found something have another advantage than those before."""
    for coef in ("0", "1"):
        words = ("algorithm=ppo", "algorithm.whiten_advantages=false", "algorithm.gamma=0.9", "trainer.max_steps=1")
        done = run("train", "--config-name", "musique", *words, f"task.progress_coef={coef}", "task.retriever=golden")
        assert done.code == 0, done.err
        Path("run").rename(f"run{coef}")
    plain, shaped = episodes(Path("run0")), episodes(Path("run1"))
    assert [each.reward for each in plain] == [each.reward for each in shaped]  # what is reported is the reward itself
    assert [[row.ids for row in each.rows] for each in plain] == [[row.ids for row in each.rows] for each in shaped]
    different = [
        a.example_id for a, b in zip(plain, shaped, strict=True) if a.rows[0].advantages != b.rows[0].advantages
    ]
    found = {each.example_id for each in shaped if each.diagnostics["paragraphs_recall"]}
    assert different
    assert set(different) <= found


def test_a_mix_of_a_task_with_tools_and_one_without(run: Run) -> None:
    parts = "{musique: {set: ['task.max_turns=3']}, gsm8k: 1}"
    short = tuple(word for word in SHORT if not word.startswith(("task.", "prompt.")))  # which each part has of its own
    done = run("train", "--config-name", "musique", "task=mix", f"task.parts={parts}", short=short)
    assert done.code == 0, done.err
    last = metrics(Path("run"))[-1]
    assert {"task/musique/reward_mean", "task/gsm8k/reward_mean"} <= set(last)
    assert {"eval/musique/accuracy", "eval/gsm8k/accuracy"} <= set(last)


def test_a_service_that_is_down_ends_the_run_with_one_sentence(run: Run) -> None:
    down = ("task.retriever=rerank", "task.retrieval.rerank_url=http://127.0.0.1:9/rerank")
    done = run("train", "--config-name", "musique", *down, "task.retrieval.max_retries=0")
    assert done.code == 1
    assert "127.0.0.1:9" in done.err
    assert "Traceback" not in done.err
    assert not Path("run/metrics.jsonl").exists()  # it was down at the first evaluation


def test_a_misspelt_retriever_is_refused_before_anything_is_read(run: Run) -> None:
    done = run("train", "--config-name", "musique", "task.retriever=bm52")
    assert done.code == 2
    assert "task.retriever=bm52" in done.err
