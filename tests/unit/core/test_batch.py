import pytest
import torch

from rlvr.core.batch import episode_rows, to_batch
from rlvr.types import Completion, Episode, Example, Group, Score, StopReason, Turn

EOS = 2


def completion(*ids: int, stop: StopReason = StopReason.STOP) -> Completion:
    logprobs = tuple(-0.1 * (i + 1) for i in range(len(ids)))
    return Completion(
        token_ids=ids, behavior_logprobs=logprobs, sampling_logprobs=logprobs, stop_reason=stop, policy_version=0
    )


def episode(*turns: tuple[tuple[int, ...], Completion], score: Score | None = None) -> Episode:
    return Episode(
        example_id="x",
        sample_index=0,
        seed=0,
        turns=tuple(Turn(prompt_ids=prompt, completion=done) for prompt, done in turns),
        score=score or Score(value=1.0),
        stop_reason=turns[-1][1].stop_reason,
    )


def group(*episodes: Episode) -> Group:
    return Group(example=Example(id="x", messages=(), answer="1"), episodes=episodes)


def test_pitfall_03_the_sampled_end_token_is_trained_on() -> None:
    batch = to_batch([group(episode(((1, 7), completion(5, EOS))), episode(((1, 7), completion(5, 6, 6, EOS))))])
    assert batch.ids.tolist() == [[1, 7, 5, EOS, 0, 0], [1, 7, 5, 6, 6, EOS]]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]]
    assert batch.lengths.tolist() == [4, 6]
    assert batch.prompt_lengths.tolist() == [2, 2]
    assert batch.policy_versions is not None
    assert batch.policy_versions.tolist() == [[-1, -1, 0, 0, -1, -1], [-1, -1, 0, 0, 0, 0]]


def test_pitfall_04_only_sampled_ids_are_trained_on() -> None:
    first = (1, 7)
    second = (*first, 5, EOS, 30, 31)  # the environment's reply and the next header
    third = (*second, 6, EOS, 32)
    turns = [(first, completion(5, EOS)), (second, completion(6, EOS)), (third, completion(9, EOS))]
    batch = to_batch([group(episode(*turns))])
    assert batch.ids.tolist() == [[1, 7, 5, EOS, 30, 31, 6, EOS, 32, 9, EOS]]
    assert batch.ids[batch.loss_mask].tolist() == [5, EOS, 6, EOS, 9, EOS]
    assert batch.behavior_logprobs[batch.loss_mask].tolist() == torch.tensor([-0.1, -0.2] * 3).tolist()
    assert not batch.behavior_logprobs[~batch.loss_mask].any()


def test_pitfall_07_a_prompt_that_does_not_extend_is_a_new_row() -> None:
    turns = [((1, 7), completion(5, EOS)), ((1, 8), completion(6, EOS))]
    rows = list(episode_rows(episode(*turns)))
    assert [row.ids for row in rows] == [(1, 7, 5, EOS), (1, 8, 6, EOS)]
    other = episode(((1, 7), completion(5, EOS)))
    batch = to_batch([group(episode(*turns, score=Score(value=0.5)), other), group(other)])
    assert batch.rewards.tolist() == [0.5, 0.5, 1.0, 1.0]
    assert batch.episodes.tolist() == [0, 0, 1, 2]
    assert batch.groups.tolist() == [0, 0, 0, 1]


def two_turns(**score: tuple[float, ...]) -> Episode:
    first = ((1, 7), completion(5, EOS))
    return episode(first, ((1, 7, 5, EOS, 30), completion(6, EOS)), score=Score(value=1.0, **score))


def test_pitfall_08_potentials_are_at_the_sampled_tokens() -> None:
    batch = to_batch([group(two_turns(potentials=(0.0, 0.5)), episode(((1, 7), completion(5, EOS))))])
    assert batch.potentials is not None
    assert batch.potentials.tolist() == [[0, 0, 0, 0, 0, 0.5, 0.5], [0] * 7]
    assert to_batch([group(two_turns())]).potentials is None


def test_pitfall_08_too_few_potentials_are_refused() -> None:
    turns = [((1, 7), completion(5, EOS)), ((1, 7, 5, EOS, 30), completion(6, EOS))]
    shaped = episode(*turns, score=Score(value=1.0, potentials=(0.5, 1.0)))
    failed = episode(*turns, score=Score(value=float("nan"), status="error"))
    potentials = to_batch([group(shaped, failed)]).potentials
    assert potentials is not None
    assert potentials.tolist() == [[0, 0, 0.5, 0.5, 0, 1, 1], [0] * 7]
    with pytest.raises(ValueError, match="shorter"):
        to_batch([group(episode(*turns, score=Score(value=1.0, potentials=(0.5,))))])


def test_verifier_errors_and_truncation_are_marked() -> None:
    failed = episode(((1,), completion(5)), score=Score(value=float("nan"), status="error"))
    cut = episode(((1,), completion(5, stop=StopReason.LENGTH)), score=Score(value=0.0, status="invalid"))
    batch = to_batch([group(failed, cut)])
    assert batch.valid.tolist() == [False, True]
    assert batch.rewards.tolist() == [0.0, 0.0]
    assert batch.truncated.tolist() == [False, True]


def test_pitfall_14_an_end_on_the_last_token_is_no_truncation() -> None:
    batch = to_batch(
        [group(episode(((1,), completion(5, 6, EOS))), episode(((1,), completion(5, 6, 6, stop=StopReason.LENGTH))))]
    )
    assert batch.lengths[0] == batch.lengths[1]
    assert batch.truncated.tolist() == [False, True]
