"""The facts of core, and the sentences that users get."""

import pickle

import pytest

from rlvr.algorithms.objective import AlgorithmError
from rlvr.core.errors import (
    LargeRewardError,
    LineMemoryError,
    LockstepMemoryError,
    NonFiniteError,
    NonFiniteLogitsError,
    SamplingMemoryError,
    VerifierError,
)
from rlvr.errors import StepError, UserError
from rlvr.run.errors import in_the_users_words

SENTENCES = {
    NonFiniteError("the loss", [1, 2]): "the loss is not finite",
    LockstepMemoryError(4096, 2048, "CUDA out of memory"): "out of memory at 4,096 tokens per microbatch (CUDA out of "
    "memory), where other processes wait in the same pass: go on with resume=true trainer.microbatch_tokens=2048",
    LineMemoryError(1600, "std::bad_alloc"): "a line of 1,600 tokens does not fit into memory, even alone "
    "(std::bad_alloc): lower rollout.max_completion_tokens, set model.gradient_checkpointing=true, or train adapters "
    "with model.lora.enabled=true",
    SamplingMemoryError(1, "std::bad_alloc"): "out of memory with up to 1 completions sampled together "
    "(std::bad_alloc): lower rollout.max_completion_tokens, or train a smaller model",
    NonFiniteLogitsError(): "the model's logits are not finite: its weights hold NaN or have grown too large; use "
    "another model, or train again with a lower trainer.learning_rate.",
    VerifierError(3, 8, 0.2, "mine: KeyError"): "the verifier failed on 3 of 8 episodes of this step, more than "
    "reward.max_error_share=0.2 (first: mine: KeyError); correct it and go on with resume=true",
    VerifierError(3, 8, 0.2, "timed out"): "the verifier failed on 3 of 8 episodes of this step, more than "
    "reward.max_error_share=0.2 (first: timed out); correct it, or give it more reward.timeout_s, and go on with "
    "resume=true",
    LargeRewardError("q7", 1e30, 1e12): "the reward of example 'q7' is 1e+30, and an update squares it in float32; "
    "keep rewards within +-1e+12 and go on with resume=true",
    AlgorithmError("mine:Mine", "advantages", "raised KeyError: 'x'"): "algorithm=mine:Mine: its method advantages "
    "raised KeyError: 'x'; correct it, then go on with resume=true.",
}


@pytest.mark.parametrize("error", SENTENCES, ids=lambda error: type(error).__name__)
def test_a_fact_becomes_a_sentence_with_keys(error: StepError) -> None:
    with pytest.raises(UserError) as raised, in_the_users_words():
        raise error
    assert str(raised.value) == SENTENCES[error]
    assert not isinstance(raised.value, StepError)
    assert raised.value.__cause__ is error


def raising(method: str) -> None:
    """As core does for the method of an algorithm."""
    try:
        {}["x"]
    except KeyError as error:
        raise AlgorithmError("mine:Mine", method, "raised KeyError") from error


def test_what_a_users_algorithm_raised_comes_with_file_and_line() -> None:
    wanted = r"^algorithm=mine:Mine: its method surrogate raised KeyError: 'x' \(.*test_errors\.py, line \d+\); correct"
    with pytest.raises(UserError, match=wanted), in_the_users_words():
        raising("surrogate")


@pytest.mark.parametrize("error", SENTENCES, ids=lambda error: type(error).__name__)
def test_another_rank_can_raise_it_too(error: StepError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_every_fact_has_words() -> None:
    assert set(StepError.__subclasses__()) == {type(error) for error in SENTENCES}


def test_other_errors_stay_as_they_are() -> None:
    error = UserError("no space left")
    with pytest.raises(UserError) as raised, in_the_users_words():
        raise error
    assert raised.value is error
