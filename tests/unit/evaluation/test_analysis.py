import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from rlvr.errors import ConfigError
from rlvr.evaluation.analysis import analyze
from rlvr.evaluation.intervals import wilson
from rlvr.evaluation.summary import summarize
from rlvr.records.graded import GradedTurn
from rlvr.records.rollouts import CallRecord
from rlvr.types import StopReason
from tests.unit.evaluation.records import greedy, record

CALL = CallRecord(name="retrieve", arguments={}, problem=None)


def test_the_numbers_are_those_of_eval() -> None:
    records = [
        record(f"e{n}", (n + s) % 3 == 0, sample=s, tags=(f"{1 + n % 2}_operators",), diagnostics={"valid_steps": 0.5})
        for n in range(20)
        for s in range(3)
    ]
    (cell,) = analyze(records).cells
    metrics = {name.removeprefix("eval/rpn/"): value for name, value in summarize("rpn", records).items()}
    assert (cell.num_examples, cell.samples_per_example) == (20, 2)
    assert {"accuracy", "sampled_accuracy", "pass_at_2", "maj_at_2", "sampled_part_correct"} == set(cell.scores)
    for name, score in cell.scores.items():
        assert (score.value, score.low, score.high) == (metrics[name], metrics[f"{name}_low"], metrics[f"{name}_high"])
    for kind in cell.kinds:
        assert kind.accuracy.value == metrics[f"accuracy_{kind.tag}"]
        assert kind.numbers["valid_steps"] == 0.5
        assert kind.num_examples == 10
    told = {*cell.scores, *cell.numbers, *(f"{n}_{k.tag}" for k in cell.kinds for n in ("accuracy", *k.numbers))}
    bounds = {name for name in metrics if name.endswith(("_low", "_high"))}
    assert set(metrics) - bounds - told == {"num_examples", "samples_per_example"}  # nothing is lost


def test_pitfall_38_tasks_splits_models_and_settings_are_apart() -> None:
    records = [
        *greedy([1, 1, 0]),
        *greedy([1, 0, 0], split="train"),
        *greedy([1, 0, 0], task="two_hop"),
        *greedy([0, 0, 0], retriever="bm25", settings="s1"),
        *greedy([0, 0, 1], model="b"),
        *greedy([1, 1, 1], model="b", settings="s2"),
    ]
    cells = analyze(records).cells
    names = ["a", "a", "a", "a + bm25", "b #b00000", "b #s2"]
    tasks = ["rpn test", "rpn train", "two_hop test", *["rpn test"] * 3]
    assert [(f"{cell.task} {cell.split}", cell.name) for cell in cells] == list(zip(tasks, names, strict=True))
    thirds = [3 * cell.scores["accuracy"].value for cell in cells]
    assert thirds == pytest.approx([2, 1, 1, 0, 1, 3])
    assert analyze(records).tasks == (("rpn", "test"), ("rpn", "train"), ("two_hop", "test"))


def test_pitfall_38_a_record_that_is_there_twice_counts_once() -> None:
    records = greedy([1, 0, 0, 0])
    found = analyze([*records, *records[:2], replace(records[2], correct=True)])
    assert found.cells[0].num_examples == 4
    assert found.cells[0].scores["accuracy"] == wilson(1, 4)
    assert found.notes == ("3 records are there twice (1 with another grade): the first one counts.",)


def test_at_a_tie_more_samples_of_fewer_examples_count() -> None:
    """Two samples of both examples, or four of one: four records either way."""
    counts = {"e0": 4, "e1": 2}
    records = [record(example, True, sample=s) for example, num in counts.items() for s in range(num + 1)]
    (cell,) = analyze(records).cells
    assert (cell.num_examples, cell.samples_per_example) == (2, 4)


def test_a_growing_evaluation_counts_the_usual_samples() -> None:
    few = [record(f"e{n}", n == 0, sample=s) for n in range(10) for s in (1, 2)]
    more = [record("e1", True, sample=s) for s in (4, 3)]  # the first example that has all four
    cell = analyze([*greedy([1] * 10), *more, *few]).cells[0]
    assert cell.samples_per_example == 2
    assert cell.scores["sampled_accuracy"].value == pytest.approx(0.1)


def test_pitfall_38_a_prompt_without_a_known_answer_is_not_wrong() -> None:
    own = greedy([0, 0], split="prompts", expected="")
    found = analyze([*own, record("e2", True, split="prompts")])
    assert [(cell.split, cell.scores["accuracy"].value) for cell in found.cells] == [("prompts", 1.0)]
    assert found.notes == ("2 answers to prompts without a known right answer are not counted.",)
    assert analyze(own).cells == ()


def test_pitfall_38_models_asked_in_other_ways_have_a_warning() -> None:
    records = [*greedy([1, 0], conditions="c1"), *greedy([1, 0], model="b", conditions="c2"), *greedy([1], model="old")]
    assert analyze(records).notes[0].startswith("a and b were not asked rpn in the same way (prompt, settings of the")
    same = [replace(one, conditions="c1") for one in records]
    assert not any("same way" in note for note in [*analyze(same).notes, *analyze(records).notes[1:]])
    variants = [*greedy([1, 0], conditions="c1"), *greedy([1, 0], settings="s2", conditions="c2")]
    assert analyze(variants).notes == ()  # what differs between them is the question


def test_cost_is_counted_over_all_episodes() -> None:
    turns = (GradedTurn(completion="c", calls=(CALL, CALL)), GradedTurn(completion="7"))
    one = record("e0", True, turns=turns, num_prompt_tokens=90, num_completion_tokens=10, time_s=3.0)
    (cell,) = analyze([one, record("e1", False, num_prompt_tokens=40, num_completion_tokens=0, time_s=1.0)]).cells
    cost = cell.cost
    assert (cost.prompt_tokens, cost.completion_tokens, cost.turns, cost.tool_calls) == (65.0, 5.0, 1.5, 1.0)
    assert (cost.seconds, cost.tokens_per_right) == (2.0, 140.0)


def test_calls_of_a_completion_that_was_cut_off_did_not_run() -> None:
    turns = (GradedTurn(completion="c", calls=(CALL,)), GradedTurn(completion="c", calls=(CALL,) * 65))
    cut = record("e0", False, turns=turns, stop_reason=StopReason.LENGTH)
    (cell,) = analyze([cut, replace(cut, example_id="e1", diagnostics={"turns": 2.0, "tool_calls": 1.0})]).cells
    assert cell.cost.tool_calls == 1.0


def test_best_and_worst_are_chosen_by_reward_then_length() -> None:
    values = [(True, 1.0, 9), (True, 1.0, 2), (True, 0.5, 1), (False, 0.0, 3), (False, 0.0, 30), (False, -1.0, 1)]
    values.append((False, math.nan, 99))
    records = [record(f"e{n}", one[0], reward=one[1], num_completion_tokens=one[2]) for n, one in enumerate(values)]
    records[-1] = replace(records[-1], stop_reason=StopReason.LENGTH)
    (cell,) = analyze(records, num_shown=2).cells
    assert [one.example_id for one in cell.best] == ["e1", "e0"]
    assert [one.example_id for one in cell.worst] == ["e5", "e6"]
    (cell,) = analyze(records).cells
    assert [one.example_id for one in cell.best] == ["e1", "e0", "e2"]
    assert [one.example_id for one in cell.worst] == ["e5", "e6", "e4"]


def test_three_examples_of_each_disagreement_are_shown() -> None:
    (found,) = analyze([*greedy([1] * 4 + [0] * 4), *greedy([0] * 4 + [1] * 4, model="b")]).comparisons
    assert [one.example_id for one, _ in found.disagreeing] == ["e0", "e1", "e2", "e4", "e5", "e6"]
    assert (len(found.only_first), len(found.only_second)) == (4, 4)


def test_variants_of_a_model_are_named_by_six_letters_of_their_settings() -> None:
    variants = [greedy([1], settings=f"{letters}0123456789") for letters in ("abcdef", "bcdefa")]
    cells = analyze([*variants[0], *variants[1], *greedy([1], model="b")]).cells
    assert [(cell.name, cell.variant) for cell in cells] == [
        ("a #abcdef", "#abcdef"),
        ("a #bcdefa", "#bcdefa"),
        ("b", ""),
    ]


def test_examples_with_fewer_samples_are_counted_in_a_note() -> None:
    samples = [record(f"e{n}", True, sample=s) for n in range(3) for s in range(1, 4 if n else 2)]
    found = analyze([*greedy([1] * 3), *samples])
    note = "a on rpn: of some examples there are fewer samples than of others; left out: 1."
    assert found.notes == (note,)
    assert found.cells[0].samples_per_example == 3


def test_a_comparison_says_which_examples_only_one_side_has() -> None:
    first, second = greedy([1] * 5), greedy([0] * 3, model="b")
    second[0] = replace(second[0], expected="9")
    tail = "compare their difference, not their accuracies."
    assert analyze([*first, *second]).notes == (
        f"a and b: only 2 examples of rpn are in both (5 and 3, and 1 have other gold answers); {tail}",
    )
    assert analyze([*first, *second[1:]]).notes == (f"a and b: only 2 examples of rpn are in both (5 and 2); {tail}",)
    assert analyze([*first[:3], *greedy([0] * 3, model="b")]).notes == ()
    apart = [replace(one, example_id=f"x{one.example_id}") for one in second]
    told = analyze([*first, *apart])
    assert told.notes == ("a and b have no example of rpn in common that was graded greedily.",)
    assert told.comparisons == ()


def test_pitfall_38_every_two_models_are_compared_and_corrected() -> None:
    rng = np.random.default_rng(0)
    three_models = [one for model in "abc" for one in greedy(list(rng.random(60) < 0.5), model=model)]
    found = analyze(three_models).comparisons
    assert [(one.first, one.second) for one in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(one.num_comparisons == 3 for one in found)
    smallest = min(found, key=lambda one: one.p_value)
    assert smallest.adjusted_p_value == pytest.approx(min(1.0, 3 * smallest.p_value))
    assert all(one.adjusted_p_value >= one.p_value for one in found)
    found = analyze(three_models, baseline="b").comparisons
    assert [(one.first, one.second) for one in found] == [("b", "a"), ("b", "c")]
    assert found[0].num_comparisons == 2


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--baseline bb: no record is of this model; there are b"):
        analyze([*greedy([1], model="b")], baseline="bb")


def test_pitfall_38_one_thing_differs_in_a_comparison() -> None:
    records = [
        one
        for model, retriever in itertools.product("ab", ("bm25", "hybrid"))
        for one in greedy([1, 0], model=model, retriever=retriever, settings=f"{model}{retriever}")
    ]
    with_baseline = [("a + bm25", "b + bm25"), ("a + hybrid", "b + hybrid")]
    assert [(one.first, one.second) for one in analyze(records, baseline="a").comparisons] == with_baseline
    pairs = {(one.first, one.second) for one in analyze(records).comparisons}
    assert pairs == {*with_baseline, ("a + bm25", "a + hybrid"), ("b + bm25", "b + hybrid")}
