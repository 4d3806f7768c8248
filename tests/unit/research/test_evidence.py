"""Evidence: contributions of documents by hand, and what does not pay."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from rlvr.research.evidence import Contributions, Evidence, late_evidence
from rlvr.rewards.parts import PartsVerifier
from rlvr.rewards.text import TextMatch
from rlvr.types import Attempt, Example, LateGrade, Message, Score, StopReason

EXAMPLE = Example(id="q", messages=(Message(role="user", content="q"),), answer="x")


@dataclass
class Documents:
    """Documents 1 to 9; the prompt with 1 and 2 reads "1 2"."""

    def reading(self, ids: Sequence[str]) -> tuple[Message, ...] | None:
        if any(name not in "123456789" for name in ids):
            return None
        return (Message(role="user", content=" ".join(ids)),)


def attempt(retrieved: Sequence[str] = (), cited: Sequence[str] = (), state: object = None) -> Attempt:
    return Attempt(
        example=EXAMPLE,
        completion="x",
        text="x",
        stop_reason=StopReason.STOP,
        num_tokens=1,
        retrieved=tuple(retrieved),
        cited=tuple(cited),
        state=Documents() if state is None else state,
    )


def scored(late: LateGrade, useful: str = "2", read: int = 3) -> float:
    """The value for a reader that says the gold with .9 if it sees all of the useful documents among at most `read`,
    with .5 among more, else with .1."""

    def probability(prompt: tuple[Message, ...]) -> float:
        shown = prompt[0].content.split()
        return 0.1 if not set(useful) <= set(shown) else 0.9 if len(shown) <= read else 0.5

    return late.value([probability(prompt) for prompt in late.prompts])


def value(ids: Sequence[str], useful: str = "2", context_size: int = 3) -> float:
    late = late_evidence(Documents(), ids, context_size=context_size, num_contexts=2, seed="q")
    return scored(late, useful)


def test_a_contribution_is_what_the_probability_loses_without_the_document() -> None:
    late = late_evidence(Documents(), ["1", "2"], context_size=3, num_contexts=2, seed="q")
    shown = [prompt[0].content for prompt in late.prompts]
    assert sorted(shown) == ["1", "1 2", "2"]  # each is read once
    found = {"1 2": 0.8, "1": 0.05, "2": 0.75}
    assert late.value([found[one] for one in shown]) == pytest.approx((0.05 + 0.75) / 2)


def test_a_document_that_misleads_does_not_take_away_from_others() -> None:
    contributions = Contributions(pairs=(((0, 1),), ((0, 2), (3, 4))), num_documents=2)
    found = [0.4, 0.9, 0.0, 0.6, 0.2]
    assert contributions.each(found) == pytest.approx([0.0, 0.4])
    assert contributions(found) == pytest.approx(0.2)


def test_contexts_that_disagree_are_averaged_before_what_is_negative_is_cut() -> None:
    noise = Contributions(pairs=(((0, 1), (1, 0)), ((0, 1), (2, 1))), num_documents=2)
    assert noise.each([0.6, 0.2, 0.0]) == pytest.approx([0.0, 0.1])  # cut one by one they would pay 0.2 each


def test_nothing_scores_0_and_everything_less_than_the_right_ones() -> None:
    assert value([]) == 0
    assert value(["2"]) == pytest.approx(0.8)
    assert value(["1", "2"]) == pytest.approx(0.4)
    assert value(["1"]) == 0
    assert 0 < value("123456789") < 0.1
    assert value(["1", "2"], useful="12") == pytest.approx(0.8)  # each is needed
    assert value(["1", "2", "3"], useful="12") == pytest.approx(1.6 / 3)


def test_a_document_counts_once_and_one_that_does_not_exist_costs() -> None:
    assert value(["2", "2", "2"]) == value(["2"])
    assert value(["2", "99"]) == pytest.approx(0.4)
    assert value(["99"]) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_contexts_hold_at_most_so_many_documents(size: int) -> None:
    late = late_evidence(Documents(), "123456789", context_size=size, num_contexts=2, seed="q")
    lengths = {len(prompt[0].content.split()) for prompt in late.prompts}
    assert lengths == {min(size, 9), min(size, 9) - 1}
    assert late == late_evidence(Documents(), "123456789", context_size=size, num_contexts=2, seed="q")
    assert value("123456789", context_size=size) == pytest.approx(0.8 / 9 if size <= 3 else 0.4 / 9)


def test_many_documents_are_read_in_several_contexts_of_this_example() -> None:
    def read(num_contexts: int, seed: str) -> LateGrade:
        return late_evidence(Documents(), "123456789", context_size=3, num_contexts=num_contexts, seed=seed)

    for num in (1, 2, 5):
        value = read(num, "q").value
        assert isinstance(value, Contributions)
        assert [len(contexts) for contexts in value.pairs] == [num] * 9
    assert read(2, "q").prompts != read(2, "another").prompts


def test_what_was_cited_does_not_stand_for_what_was_retrieved() -> None:
    for of, retrieved, cited in (("retrieved", "", "3"), ("cited", "3", "")):
        late = Evidence(of=of).grade(attempt(retrieved=retrieved, cited=cited)).late  # type: ignore[arg-type]
        assert late is not None
        assert late.prompts == ()


def test_the_part_reads_what_was_cited_or_retrieved() -> None:
    for of, ids in (("cited", "3"), ("retrieved", "12")):
        late = Evidence(of=of).grade(attempt(retrieved="12", cited="3")).late  # type: ignore[arg-type]
        assert late is not None
        assert {name for prompt in late.prompts for name in prompt[0].content.split()} == set(ids)
    nothing = Evidence().grade(attempt()).late
    assert nothing is not None
    assert (nothing.prompts, nothing.value([])) == ((), 0.0)


def test_a_late_part_is_no_part_of_the_score_yet() -> None:
    parts = {"right": TextMatch(), "evidence": Evidence(weight=0.5)}
    verifier = PartsVerifier(parts)

    def score(*cited: str) -> Score:
        return asyncio.run(verifier.verify(attempt(cited=cited)))

    assert score().parts == {"right": 1.0}
    assert score().late["evidence"].prompts == ()
    found = score("2")
    assert (found.value, found.parts, found.status) == (1.0, {"right": 1.0}, "scored")
    assert found.late["evidence"].weight == 0.5


def test_an_episode_without_documents_is_an_error_and_not_a_wrong_answer() -> None:
    found = asyncio.run(PartsVerifier({"evidence": Evidence()}).verify(attempt(cited="1", state=object())))
    assert found.status == "error"
    assert math.isnan(found.value)
    assert "without the documents" in str(found.diagnostics["error"])
