"""Rows in the layouts of other libraries, trained on as they are: what a run says of them, and what ends it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.records.rollouts import read_rollouts
from tests.system.harness import ON_DATA, Cli, once
from tests.unit.tasks.data_tasks import write_jsonl

FUNCTIONS = '''
def of_trl(prompts, completions, solution, task, **kwargs):
    """TRL's and ms-swift's users route by a column of theirs."""
    asked = [prompt[-1]["content"] for prompt in prompts]
    return [1.0 if t == "sums" and s in ("3", "4", "5", "6", "7", "8") and "?" in a else None
            for a, s, t in zip(asked, solution, task)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(data_source == "sums" and extra_info["index"] + 3 == int(ground_truth)), "acc": 0.0}
'''
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its "
    'own line after "Answer:".'
)
GSM8K = '{} Let\'s think step by step and output the final answer after "####".'


def of_verl(index: int, asked: str) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": asked.format(f"{index} + 3?")}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(index + 3)},
        "extra_info": {"split": "train", "index": index},
    }


ROWS: dict[str, list[dict[str, Any]]] = {
    "verl": [of_verl(n, GSM8K) for n in range(6)],
    "dapo": [of_verl(n, DAPO) for n in range(6)],
    "trl": [
        {
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{n} + 3?"}],
            "solution": str(n + 3),
            "task": "sums",
        }
        for n in range(6)
    ],
}
PLACES = {
    "verl": "6 of 6 prompts ask for `#### ...`",
    "dapo": "6 of 6 prompts ask for `Answer: ...`",
    "trl": "6 of 6 prompts name no place: the whole completion is the answer",
}


@pytest.fixture
def words(qwen: Path, here: Path) -> Callable[..., list[str]]:
    """A training of one step on x.jsonl, in an empty folder with functions of theirs."""
    Path("theirs_too.py").write_text(FUNCTIONS)

    def words(rows: list[dict[str, Any]], *more: str) -> list[str]:
        write_jsonl(Path("x.jsonl"), rows)
        task = ["task=jsonl", "task.path=x.jsonl", "task.eval_share=0.1"]
        return once("train", "--config-name", "gsm8k", *ON_DATA, *task, f"model.name_or_path={qwen}", *more)

    return words


@pytest.mark.parametrize(
    ("layout", "reward"),
    [*((layout, "") for layout in ROWS), ("trl", "of_trl"), ("verl", "compute_score"), ("dapo", "compute_score")],
)
def test_public_layouts_are_trained_on_as_they_are(
    layout: str, reward: str, words: Callable[..., list[str]], cli: Cli
) -> None:
    custom = ["reward=custom", f"reward.parts.custom.function=theirs_too:{reward}"] if reward else []
    done = cli.ok(*words(ROWS[layout], "run_dir=run", "tracker.console=plain", *custom))
    assert f"answers: {PLACES[layout].replace('6', '5')}" in done.err
    episodes = read_rollouts(Path("run/rollouts/step_000001.jsonl.gz"))
    assert {episode.score_status for episode in episodes} <= {"scored", "invalid"}
    assert {episode.reward for episode in episodes} <= ({1.0} if reward else {0.0, 1.0})


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ([{"question": f"{n}?", "answer": "red"} for n in range(6)], ["task.metric=text"], "reward.parts.correct: "),
        (
            [{"question": f"{n}?", "answer": "5 or 6 or so"} for n in range(6)],
            ["task.metric=exact"],
            "is neither a number",
        ),
    ],
)
def test_a_reward_that_pays_no_row_for_its_own_answer_ends_the_run(
    rows: list[dict[str, Any]], more: list[str], said: str, words: Callable[..., list[str]], cli: Cli
) -> None:
    command = words(rows, "run_dir=run", "reward=numeric", "prompt=boxed", *more)
    cli.refuses(2, command, "the reward pays none of 5 rows of jsonl for its own answer", said)
    assert not Path("run").exists()
    cli.ok(
        *words(
            [*rows, *({"question": f"{n} and 1?", "answer": n} for n in range(3))],
            *command[3:],
            "reward.max_error_share=1",
        )
    )


def test_each_row_that_cannot_be_used_is_named(words: Callable[..., list[str]], cli: Cli) -> None:
    rows = [{"question": f"{n}?", "answer": n if n % 3 else "because"} for n in range(1, 13)]
    places = [
        "x.jsonl, line 3: field 'answer' must be a number",
        "line 6",
        "line 9",
        "line 12",
        "In all 4 rows cannot be used",
    ]
    cli.refuses(1, words(rows), *places)
