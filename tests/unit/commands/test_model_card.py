"""The card of an exported model: numbers of the exported step, and escaped text of the model."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlvr.commands.export.body import ExportedRun, _samples
from rlvr.commands.export.model_card import Card, Sample, scores, write_card
from rlvr.config.compose import load_config
from rlvr.records.rollouts import rollouts_path, write_rollouts
from tests.unit.report.runs import episode

METRICS = {
    "eval/rpn/accuracy": 0.5,
    "eval/rpn/accuracy_low": 0.4,
    "eval/rpn/accuracy_high": 0.6,
    "eval/rpn/accuracy_1_operators": 0.25,
    "eval/rpn/accuracy_1_operators_low": 0.2,
    "eval/rpn/accuracy_1_operators_high": 0.3,
    "eval/rpn/num_examples": 100.0,
    "eval/rpn/completion_tokens_mean": 8.1,
    "reward/mean": 0.9,
}
BEFORE = METRICS | {"eval/rpn/accuracy": 0.125}


def card(**changes: Any) -> Card:
    values: dict[str, Any] = {
        "name": "ann/sums",
        "title": "sums",
        "config": load_config([]),
        "kind": "whole",
        "step": 60,
        "is_final": True,
        "base_model": None,
        "license": None,
        "num_parameters": 1234,
        "before": BEFORE,
        "after": METRICS,
        "samples": (),
        "prompt": "<boe> 3 4 + =",
        "messages": (),
        "missing": (),
    }
    return Card(**(values | changes))


def metadata(text: str) -> dict[str, Any]:
    return yaml.safe_load(text.split("---\n")[1])


def test_pitfall_38_scores_have_interval_and_number_of_examples() -> None:
    text = write_card(card())
    assert "| rpn | accuracy | 12.5% | 50.0% | 40.0% to 60.0% | 100 |" in text
    assert "| rpn | accuracy, 1 operator | 25.0% | 25.0% | 20.0% to 30.0% |  |" in text  # of fewer than the 100
    assert "8.1" not in text  # a number without an interval is no score
    (result,) = metadata(text)["model-index"][0]["results"]
    assert result["dataset"]["args"] == {"num_examples": 100}
    assert result["metrics"] == [
        {"type": "accuracy", "value": 0.5, "name": "accuracy", "args": {"low_95": 0.4, "high_95": 0.6}}
    ]


def test_a_card_claims_only_measured_numbers() -> None:
    text = write_card(card(after={"reward/mean": 0.9}))
    assert "did not evaluate at step 60" in text
    assert "%" not in text.partition("## Use")[0]
    assert "model-index" not in metadata(text)
    assert scores(METRICS | {"eval/rpn/accuracy": float("nan")})[0].metric_name == "accuracy_1_operators"


@pytest.mark.slow
def test_the_metadata_is_what_the_hub_reads() -> None:
    config = load_config(["task=gsm8k", "model=hf", "model.name_or_path=owner/base"])
    known = {"license": "apache-2.0", "base_model": "owner/base"}
    found = metadata(write_card(card(**known, config=config)))
    known |= {"datasets": ["openai/gsm8k"], "library_name": "transformers"}
    assert {key: found[key] for key in known} == known
    assert {"rlvr", "grpo", "gsm8k"} <= set(found["tags"])
    assert "license" not in metadata(write_card(card()))
    assert "No license was chosen" in write_card(card())


def test_the_settings_that_matter_are_in_the_table() -> None:
    text = write_card(card(config=load_config(["seed=0", "task.modulus=5", "task.operand_range=[0,4]"])))
    rows = "| seed | 0 |", "| task.modulus | 5 |", r"| task.operand\_range | 0, 4 |", "| algorithm.name | grpo |"
    assert [row for row in rows if row not in text] == []


def test_model_output_cannot_leave_its_code_block() -> None:
    nasty = "x\n```\n# A heading <script>alert(1)</script>\n````\n\x1b[31mred\x00"
    sample = Sample(step=7, texts=(("prompt", "1 +"), ("completion", nasty)), reward=None)
    text = write_card(card(samples=[sample]))
    opening = re.search(r"(?m)^(`+)text$", text)
    assert opening is not None
    inside, _, after = text[opening.end() :].partition(f"\n{opening[1]}\n")
    assert "<script>" in inside
    assert all(run < opening[1] for run in re.findall(r"(?m)^\s*(`{3,})", inside))
    assert "script" not in after
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "Sampled at step 7, no reward" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ['a"b', "a\\b", "ann/sums"])
def test_the_snippet_is_python_whatever_the_names(name: str) -> None:
    messages = [{"role": "user", "content": 'Say "hi"\nand \\ <b>'}]
    for kind, asked in product(("whole", "adapter", "merged"), ((), messages)):
        text = write_card(card(name=name, kind=kind, messages=asked))
        compile(text.partition("```python\n")[2].partition("\n```")[0], "card", "exec")


def test_the_start_of_rl_is_not_called_trained() -> None:
    text = write_card(card(step=0, after=BEFORE, is_final=False))
    assert "as reinforcement learning on `rpn` started from it" in text
    assert "| rpn | accuracy |  | 12.5% |" in text


def plain_card(one: Card) -> str:
    """Its card on one line, without the escapes of Markdown."""
    return " ".join(write_card(one).replace("\\", "").split())


def test_supervised_training_is_told() -> None:
    """A pretrained model's warm start, alone or before RL."""
    words = ["model=hf", "model.name_or_path=some/base", "warm_start.enabled=true"]
    tuned = card(config=load_config(words), step=0, base_model="some/base")
    text = plain_card(tuned)
    assert "trained on `rpn` on demonstrations, starting from some/base," in text
    assert ("warm_start.num_epochs" in text, "warm_start.num_steps" in text) == (True, False)
    own = plain_card(card(config=load_config([*words, "warm_start.source=own"]), step=0))
    assert "trained on `rpn` on its own right samples," in own
    assert "warm_start.num_steps" in plain_card(card())
    assert "warm_start" not in plain_card(card(config=load_config(words[:2])))
    after = plain_card(card(config=load_config(words), step=60, base_model="some/base"))
    assert "trained on `rpn` on demonstrations and then by reinforcement learning" in after


def test_samples_are_of_the_newest_step_up_to_the_exported_one(tmp_path: Path) -> None:
    for step in (1, 2, 4):
        write_rollouts(rollouts_path(tmp_path / "rollouts", step), [episode(reward=step / 10), episode(sample=1)])

    def of(step: int) -> list[tuple[int, float | None]]:
        source = ExportedRun(
            root=tmp_path, config=load_config([], config_name="rpn"), weights=tmp_path, step=step, is_final=False
        )
        return [(sample.step, sample.reward) for sample in _samples(source)]

    assert (of(0), of(1), of(2), of(3)) == ([], [(1, 0.1)], [(2, 0.2)], [(2, 0.2)])
