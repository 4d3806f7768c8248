from dataclasses import replace

import pytest
import torch

from rlvr.core.batch import episode_rows, to_batch
from rlvr.types import Score, StopReason
from tests.unit.core.fakes import completion, episode, group

EOS = 2
FIRST = ((1, 7), completion(5, EOS))


def test_pitfall_03_the_sampled_end_token_is_trained_on() -> None:
    batch = to_batch([group(episode(FIRST), episode(((1, 7), completion(5, 6, 6, EOS))))])
    assert batch.ids.tolist() == [[1, 7, 5, EOS, 0, 0], [1, 7, 5, 6, 6, EOS]]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]]
    assert batch.lengths.tolist() == [4, 6]
    assert batch.prompt_lengths.tolist() == [2, 2]
    assert batch.policy_versions is not None
    assert batch.policy_versions.tolist() == [[-1, -1, 0, 0, -1, -1], [-1, -1, 0, 0, 0, 0]]


def test_pitfall_04_only_sampled_ids_are_trained_on() -> None:
    second = (1, 7, 5, EOS, 30, 31)  # the environment's reply and the next header
    turns = [FIRST, (second, completion(6, EOS)), ((*second, 6, EOS, 32), completion(9, EOS))]
    batch = to_batch([group(episode(*turns))])
    assert batch.ids.tolist() == [[1, 7, 5, EOS, 30, 31, 6, EOS, 32, 9, EOS]]
    assert batch.ids[batch.loss_mask].tolist() == [5, EOS, 6, EOS, 9, EOS]
    assert batch.behavior_logprobs[batch.loss_mask].tolist() == torch.tensor([-0.1, -0.2] * 3).tolist()
    assert not batch.behavior_logprobs[~batch.loss_mask].any()


def test_pitfall_07_a_prompt_that_does_not_extend_is_a_new_row() -> None:
    turns = [FIRST, ((1, 8), completion(6, EOS))]
    rows = list(episode_rows(episode(*turns)))
    assert [row.ids for row in rows] == [(1, 7, 5, EOS), (1, 8, 6, EOS)]
    other = episode(FIRST)
    batch = to_batch([group(episode(*turns, score=Score(value=0.5)), other), group(other)])
    assert batch.rewards.tolist() == [0.5, 0.5, 1.0, 1.0]
    assert batch.episodes.tolist() == [0, 0, 1, 2]
    assert batch.groups.tolist() == [0, 0, 0, 1]


def test_pitfall_08_potentials_are_at_the_sampled_tokens() -> None:
    turns = (FIRST, ((1, 7, 5, EOS, 30), completion(6, EOS)))

    def potentials(score: Score) -> list[list[float]] | None:
        found = to_batch([group(episode(*turns, score=score), episode(FIRST))]).potentials
        return None if found is None else found.tolist()

    assert potentials(Score(value=1.0, potentials=(0.5, 1.0))) == [[0, 0, 0.5, 0.5, 0, 1, 1], [0] * 7]
    assert potentials(Score(value=1.0)) is None
    with pytest.raises(ValueError, match="shorter"):
        potentials(Score(value=1.0, potentials=(0.5,)))


def test_verifier_errors_and_truncation_are_marked() -> None:
    failed = episode(((1,), completion(5)), score=Score(value=float("nan"), status="error"))
    cut = episode(((1,), completion(5, stop=StopReason.LENGTH)), score=Score(value=0.0, status="invalid"))
    batch = to_batch([group(failed, cut)])
    assert batch.valid.tolist() == [False, True]
    assert batch.rewards.tolist() == [0.0, 0.0]
    assert batch.truncated.tolist() == [False, True]


def test_pitfall_14_an_end_on_the_last_token_is_no_truncation() -> None:
    ended, cut = completion(5, 6, EOS), completion(5, 6, 6, stop=StopReason.LENGTH)
    batch = to_batch([group(episode(((1,), ended)), episode(((1,), cut)))])
    assert batch.lengths[0] == batch.lengths[1]
    assert batch.truncated.tolist() == [False, True]


@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason is not StopReason.LENGTH])
def test_only_an_end_for_length_is_a_truncation(reason: StopReason) -> None:
    """Not that of an episode that used up its turns, each of which is whole."""
    ended = replace(episode(FIRST), stop_reason=reason)
    assert to_batch([group(ended)]).truncated.tolist() == [False]


def test_an_episode_whose_next_prompt_does_not_fit_is_truncated() -> None:
    """Its last completion ended by itself."""
    cut = replace(episode(FIRST), stop_reason=StopReason.LENGTH)
    assert cut.turns[-1].completion.stop_reason is StopReason.STOP
    assert to_batch([group(cut)]).truncated.tolist() == [True]
