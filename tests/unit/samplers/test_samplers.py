"""Which prompts each sampler draws, and that its state continues exactly."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rlvr.errors import ConfigError, UserError
from rlvr.samplers import thinned
from rlvr.samplers.base import Checked, PromptSampler
from rlvr.samplers.thinned import ByTag, PassRate, Unsolved
from rlvr.samplers.uniform import Uniform
from rlvr.types import Episode, Example, Group, Score, StopReason


class Levels:
    """Example i is of level i % 3 and, without `tags`, one of 7 problems."""

    def __init__(self, has_tags: bool = True) -> None:
        self.has_tags = has_tags

    def train_example(self, index: int) -> Example:
        return Example(id=f"e{index % 7}", messages=(), answer="", metadata={"level": index % 3})

    def tags(self, example: Example) -> tuple[str, ...]:
        return (f"level_{example.metadata['level']}",) if self.has_tags else ()


def group(example: Example, *rewards: float) -> Group:
    scores = [Score(value=r, status="error" if r != r else "scored", parts={"right": 1 - r}) for r in rewards]
    return Group(
        example=example,
        episodes=tuple(
            Episode(example_id="", sample_index=i, seed=0, turns=(), score=score, stop_reason=StopReason.STOP)
            for i, score in enumerate(scores)
        ),
    )


def drawn(sampler: PromptSampler, count: int = 600) -> Counter[int]:
    return Counter(sampler.stream.train_example(index).metadata["level"] for index in sampler.take(count))


def continued(sampler: Any) -> PromptSampler:
    """The sampler again from its state, as a checkpoint holds it."""
    fresh = sampler.started(sampler.stream, sampler.seed)
    fresh.restore(json.loads(json.dumps(sampler.state())))
    return fresh


def test_uniform_is_the_stream_in_order() -> None:
    sampler = Uniform().started(Levels(), 0)
    assert [*sampler.take(3), *sampler.take(2)] == [0, 1, 2, 3, 4]
    assert [*continued(sampler).take(2)] == [*sampler.take(2)] == [5, 6]


def test_pass_rate_prefers_kinds_that_are_right_half_of_the_time() -> None:
    sampler = PassRate(floor=0.2).started(Levels(), 0)
    assert sampler.take(6) == [0, 1, 2, 3, 4, 5]  # nothing is known, so all are kept
    for _ in range(60):
        sampler.observe([group(sampler.stream.train_example(i), *[1.0] * i, *[0.0] * (2 - i)) for i in range(3)])
    found = drawn(sampler)
    assert found[1] / found.total() == pytest.approx(1 / 1.4, abs=0.05)  # chances .2 1 .2
    assert continued(sampler).take(50) == sampler.take(50)
    assert PassRate(floor=0.2).started(Levels(), 1).take(50) == list(range(50))  # a copy remembers nothing


def test_a_pass_rate_is_a_moving_average_over_groups_with_a_score() -> None:
    sampler = PassRate().started(Levels(), 0)
    example = sampler.stream.train_example(0)
    sampler.observe([group(example, 1.0, 5.0, float("nan")), group(example, float("nan"))])
    assert sampler.state()["rates"] == {"level_0": pytest.approx(0.9 * 0.5 + 0.1 * 1.0)}
    part = PassRate(part="right").started(Levels(), 0)
    part.observe([group(example, 1.0, 1.0)])
    assert part.state()["rates"] == {"level_0": pytest.approx(0.45)}


def test_without_tags_each_prompt_is_a_kind() -> None:
    sampler = PassRate(floor=0.01).started(Levels(has_tags=False), 0)
    for _ in range(80):
        sampler.observe([group(sampler.stream.train_example(3), 1.0, 1.0)])
    assert sum(index % 7 == 3 for index in sampler.take(600)) < 10


def test_by_tag_draws_in_proportion_to_the_weights() -> None:
    sampler = ByTag(weights={"level_0": 3.0, "level_1": 0.0}).started(Levels(), 0)
    found = drawn(sampler)
    assert found[1] == 0
    assert found[0] / found[2] == pytest.approx(3.0, rel=0.2)
    assert continued(sampler).take(50) == sampler.take(50)


def test_examples_without_a_tag_may_weigh_most_and_another_seed_draws_others() -> None:
    sampler = ByTag(weights={"level_0": 1.0}, other=4.0).started(Levels(), 0)
    found = drawn(sampler)
    assert found[0] / found[1] == pytest.approx(1 / 4, rel=0.3)
    again, other = (sampler.started(Levels(), seed) for seed in (0, 1))
    assert again.take(50) == sampler.started(Levels(), 0).take(50) != other.take(50)


def test_unsolved_leaves_out_what_is_solved_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinned, "MOST_SKIPPED", 20)
    sampler = Unsolved(solved_at=0.75).started(Levels(), 0)
    example = sampler.stream.train_example
    sampler.observe([group(example(0), 1.0, 1.0, 1.0, 0.0), group(example(1), 1.0, 0.0)])
    assert sampler.take(6) == [1, 2, 3, 4, 5, 6]
    assert continued(sampler).take(6) == sampler.take(6) == [8, 9, 10, 11, 12, 13]
    sampler.observe([group(example(index), 1.0) for index in range(7)])
    with pytest.raises(UserError, match="sampler=unsolved: leaves out the next 20 examples"):
        sampler.take(1)


def test_what_a_sampler_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"no example has the tag level_3; there are level_0, level_1, level_2\."):
        ByTag(weights={"level_3": 1.0}).started(Levels(), 0)
    with pytest.raises(ConfigError, match="the task has no tags"):
        ByTag(weights={"level_0": 1.0}).started(Levels(has_tags=False), 0)
    with pytest.raises(ValueError, match="leaves nothing to draw"):
        ByTag(weights={"level_0": 0.0}, other=0.0)


class Fixed(PromptSampler):
    """Of the user: its answers are given."""

    answer: Any
    remembered: Any = 0

    def take(self, count: int) -> Sequence[int]:
        return self.answer

    def observe(self, groups: Sequence[Group]) -> None:
        raise KeyError("level")

    def state(self) -> Any:
        return self.remembered


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([1], "take must return 2 different indices of the training stream, not 1"),
        (None, "not a NoneType"),
        ([1, 1.0], "not 1.0, which is no whole number from 0"),
        ([-1, 1], "not -1, which is no whole number"),
        ([4, 4], "not 4 twice"),
    ],
)
def test_bad_indices_are_one_sentence(answer: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=r"^sampler=.*:Fixed: its method .*resume=true\.$") as error:
        Checked(Fixed(answer=answer)).take(2)
    assert sentence in str(error.value)


def test_failures_of_a_users_sampler_name_method_and_line() -> None:
    with pytest.raises(UserError, match=r"observe raised KeyError: 'level' \(.*test_samplers.py, line \d+\)"):
        Checked(Fixed(answer=0)).observe([])
    with pytest.raises(UserError, match="its method state must return what JSON can hold"):
        Checked.started(Fixed(answer=0, remembered={1, 2}), Levels(), 0)
