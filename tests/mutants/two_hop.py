"""Bugs of the two-hop task, and of training on several turns."""

from tests.mutants.mutant import Mutant

TASK = "tests/unit/tasks/test_two_hop.py::"
WARM = "tests/unit/training/test_warm_start.py::"
SYSTEM = "tests/system/test_two_hop.py::"
PARKED = (
    "tests/unit/engines/local/test_engine.py::test_pitfall_01_sessions_that_end_a_turn_together_keep_what_is_their_own"
)

MUTANTS = [
    Mutant(  # a parked session gets the prompt of another one
        pitfall="1",
        file="engines/local/shared_prefix.py",
        old="torch.cat([prefix[i, :start], suffix[i, :count]])",
        new="torch.cat([prefix[0, :start], suffix[i, :count]])",
        test=PARKED,
    ),
    Mutant(  # a parked session gets what another one sampled
        pitfall="1",
        file="engines/local/shared_prefix.py",
        old="torch.cat([prefix[i, :start], suffix[i, :count]])",
        new="torch.cat([prefix[i, :start], suffix[0, :count]])",
        test=PARKED + "[3]",
    ),
    Mutant(  # keys and values change places
        pitfall="1",
        file="engines/local/cache.py",
        old="buffer = self._layer_like(layer, stored[0])[which]",
        new="buffer = self._layer_like(layer, stored[0])[1 - which]",
        test=PARKED,
    ),
    Mutant(  # the warm start learns what tools reply
        pitfall="5",
        file="training/warm_start.py",
        old="for i in range(1, len(row), 2) for place",
        new="for i in range(1, len(row)) for place",
        test=WARM + "test_pitfall_05_what_tools_reply_is_not_learnt_in_the_warm_start",
    ),
    Mutant(  # of several completions only the last one ends
        pitfall="3",
        file="training/warm_start.py",
        old="(end if i % 2 else [])",
        new="(end if i == len(parts) - 1 else [])",
        test=WARM + "test_pitfall_03_every_completion_ends_with_the_end_token_and_no_reply_does",
    ),
    Mutant(  # reinforcement learning trains on what tools reply
        pitfall="5",
        file="training/loop.py",
        old="train_on_tool_tokens=run.train_on_tool_tokens",
        new="train_on_tool_tokens=True",
        test=SYSTEM + "test_pitfall_05_only_sampled_tokens_are_trained_on",
    ),
    Mutant(  # the ablation is a setting without effect
        pitfall="5",
        file="build/train.py",
        old="        train_on_tool_tokens=config.algorithm.train_on_tool_tokens,\n",
        new="",
        test=SYSTEM + "test_pitfall_05_the_ablation_trains_on_what_tools_wrote_and_is_worse_for_it",
    ),
    Mutant(  # demonstrations write a call without its end, which sampling has
        pitfall="6",
        file="tasks/two_hop.py",
        old='f"{CALL} {self._tool.name} {name} {CALL_END}",\n                f"{REPLY}',
        new='f"{CALL} {self._tool.name} {name}",\n                f"{REPLY}',
        test=TASK + "test_pitfall_06_a_demonstration_is_token_for_token_the_episode_of_who_speaks_like_it",
    ),
    Mutant(  # all examples share one world, which can be learnt by heart
        pitfall="36",
        file="tasks/two_hop.py",
        old='derive_seed(example.metadata["world"], "world")',
        new='derive_seed(EVAL_SEED, "world")',
        test=TASK + "test_pitfall_36_every_example_has_a_world_of_its_own",
    ),
    Mutant(  # the run's seed does not reach the examples
        pitfall="36",
        file="tasks/two_hop.py",
        old='derive_seed(self._seed, "two_hop", "train", index)',
        new='derive_seed(0, "two_hop", "train", index)',
        test=TASK + "test_pitfall_36_the_stream_is_a_function_of_seed_and_index_and_no_other_stream",
    ),
    Mutant(  # held-out chains are trained on
        pitfall="38",
        file="tasks/two_hop.py",
        old="if self.is_held_out(chain) is held_out and chain",
        new="if (not held_out or self.is_held_out(chain)) and chain",
        test=TASK + "test_pitfall_38_held_out_chains_are_never_asked_for_in_training",
    ),
]
