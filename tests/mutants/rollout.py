"""Known bugs of episodes and of the rows that are made of them."""

from tests.mutants.mutant import Mutant

BATCH = "tests/unit/rollout/test_batch.py::"
MINIBATCHES = "tests/unit/training/test_trainer.py::test_pitfall_07_the_rows_of_an_episode_stay_in_one_minibatch"


def bug(pitfall: str, file: str, old: str, new: str, test: str) -> Mutant:
    """A mutant of `file`."""
    return Mutant(pitfall=pitfall, file=file, old=old, new=new, test=test)


MUTANTS = [
    bug(
        "07",
        "rollout/batch.py",
        "turn.prompt_ids[: len(row.ids)] != row.ids",
        "False",
        BATCH + "test_pitfall_07_a_prompt_that_does_not_extend_the_last_turn_starts_a_new_row",
    ),
    bug(
        "07",
        "rollout/batch.py",
        "owners.append((index, number, episode))",
        "owners.append((index, len(rows), episode))",
        BATCH + "test_pitfall_07_a_prompt_that_does_not_extend_the_last_turn_starts_a_new_row",
    ),
    bug(
        "08",
        "rollout/batch.py",
        "potentials=row.potentials + (0.0,) * len(fresh) + (potential,) * len(sampled)",
        "potentials=row.potentials + (potential,) * len(fresh) + (0.0,) * len(sampled)",
        BATCH + "test_pitfall_08_potentials_stand_at_the_sampled_tokens_of_their_turn",
    ),
    bug(
        "05",
        "rollout/batch.py",
        "rows.append(_with_tool_tokens(row) if train_on_tool_tokens else row)",
        "rows.append(_with_tool_tokens(row))",
        BATCH + "test_pitfall_05_tool_tokens_are_trained_on_only_where_that_is_to_be_shown",
    ),
    bug(
        "07",
        "training/trainer.py",
        "order = torch.randperm(len(names), generator=generator)",
        "order, episode_of_row = torch.randperm(len(batch.ids), generator=generator), torch.arange(len(batch.ids))",
        MINIBATCHES,
    ),
]
