from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr.data.problems import fingerprint
from rlvr.errors import UserError
from rlvr.rewards.rpn import END
from rlvr.rewards.settings import RewardSettings
from rlvr.tasks.mix import Mix, MixTask, block_counts
from rlvr.tasks.prompts import Prompt
from rlvr.tasks.settings import MixPart, TaskBundle
from tests.unit.tasks.data_tasks import FIXTURES, bundle, graded, make, scored, solved, sums, write_jsonl

GSM8K = {"name": "gsm8k", "path": str(FIXTURES / "gsm8k")}
FINQA = {"name": "finqa", "path": str(FIXTURES / "finqa")}
RPN = {"name": "rpn"}


def mix(parts: dict[str, tuple[dict[str, Any], float]], seed: int = 0) -> MixTask:
    bundles = {name: MixPart(**dict(bundle(task)), weight=weight) for name, (task, weight) in parts.items()}
    made = make(TaskBundle(task=Mix(parts=bundles), reward=RewardSettings(), prompt=Prompt()), seed=seed)
    assert isinstance(made, MixTask)
    return made


def both(seed: int = 0) -> MixTask:
    return mix({"gsm8k": (GSM8K, 2), "finqa": (FINQA, 1)}, seed)


def owners(task: MixTask, num: int) -> list[str]:
    return [task.train_example(index).metadata["task"] for index in range(num)]


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ({"a": 2.0, "b": 1.0}, {"a": 2, "b": 1}),
        ({"a": 0.7, "b": 0.3}, {"a": 7, "b": 3}),
        ({"a": 0.5, "b": 0.25, "c": 0.25}, {"a": 2, "b": 1, "c": 1}),
        ({"a": 1.0}, {"a": 1}),
        ({"a": 1e6, "b": 1.0}, {"a": 1000, "b": 1}),
    ],
)
def test_a_block_has_each_task_in_proportion(weights: dict[str, float], counts: dict[str, int]) -> None:
    assert block_counts(weights) == counts


def test_examples_come_in_proportion_and_not_in_a_fixed_order() -> None:
    made = both()
    found = owners(made, 300)
    assert Counter(found) == {"gsm8k": 200, "finqa": 100}
    blocks = {tuple(found[start : start + 3]) for start in range(0, 300, 3)}
    assert len(blocks) == 3
    assert owners(both(seed=1), 300) != found


def test_pitfall_37_every_cursor_of_a_mix_resumes_exactly() -> None:
    straight = [both().train_example(index) for index in range(60)]
    for cursor in (1, 2, 17, 31):
        resumed = both()
        assert [resumed.train_example(index) for index in range(cursor, 60)] == straight[cursor:]


def test_pitfall_37_an_epoch_of_a_part_has_each_example_once() -> None:
    made = both()
    places: dict[str, list[int]] = {"gsm8k": [], "finqa": []}
    for index in range(90):
        key, place = made.place(index)
        places[key].append(place)
    assert places == {"gsm8k": list(range(60)), "finqa": list(range(30))}
    epoch = [e.id for e in map(made.train_example, range(18)) if e.metadata["task"] == "gsm8k"]
    assert len(set(epoch)) == 12


def test_each_part_has_its_own_prompt_reward_and_metric() -> None:
    made = mix({"sums": (GSM8K, 1), "rpn": (RPN, 1)})
    examples = [made.train_example(index) for index in range(20)]
    word = next(e for e in examples if e.metadata["task"] == "sums")
    polish = next(e for e in examples if e.metadata["task"] == "rpn")
    assert word.messages[0].role == "system"
    assert polish.messages[0].content.startswith("<boe>")
    assert scored(made, word, solved(word.answer)).value == 4.5
    assert scored(made, polish, f"{polish.answer} <eoe>").value == 1.0
    assert graded(made, polish, f"{polish.answer} <eoe>").correct
    assert not graded(made, polish, solved(polish.answer)).correct
    assert made.tags(polish)[0] == "rpn"
    assert made.stop_words == (END,)


def test_pitfall_36_two_parts_order_the_same_data_differently(tmp_path: Path) -> None:
    data = {"name": "jsonl", "path": str(write_jsonl(tmp_path / "a.jsonl", sums(40)))}
    made = mix({"a": (data, 1.0), "b": (data, 1.0)})
    found = [made.train_example(index) for index in range(40)]
    orders = {key: [e.answer for e in found if e.metadata["task"] == key] for key in ("a", "b")}
    assert len(orders["a"]) == len(orders["b"]) == 20
    assert orders["a"] != orders["b"]


def test_pitfall_38_no_part_trains_on_what_another_holds_out(tmp_path: Path) -> None:
    held_out = make(GSM8K).eval_examples(6)
    rows = [{"question": e.messages[-1].content.upper(), "answer": e.answer} for e in held_out[:2]]
    path = write_jsonl(tmp_path / "copy.jsonl", [*sums(20), *rows])
    made = mix({"gsm8k": (GSM8K, 1), "mine": ({"name": "jsonl", "path": str(path), "eval_share": 0.01}, 1)})
    asked = {fingerprint(made.train_example(index).messages[-1].content) for index in range(200)}
    assert not asked & {fingerprint(e.messages[-1].content) for e in held_out}
    assert any("training examples are also held out by gsm8k: left out" in note for note in made.notes)


def test_a_users_prompt_is_the_only_parts() -> None:
    assert mix({"gsm8k": (GSM8K, 1)}).example("2 + 2?").metadata["task"] == "gsm8k"
    with pytest.raises(UserError, match="whose prompt this is: add --task gsm8k or --task finqa"):
        both().example("2 + 2?")
