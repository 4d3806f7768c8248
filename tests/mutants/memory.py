"""Bugs of the memory plan, of halving microbatches, of models on another device and of recorded decode steps."""

from tests.mutants.mutant import Mutant

BUDGET = "tests/unit/training/test_budget.py::"
PLAN = "tests/unit/training/test_memory.py::"
GRAPHS = "tests/unit/engines/local/test_graphs.py::"
CUT = BUDGET + "test_pitfall_09_a_pass_that_did_not_fit_leaves_nothing_in_the_gradient"
EXACT = PLAN + "test_pitfall_33_weights_gradients_and_both_moments_are_planned_to_the_byte"
HALVED = "tests/unit/engines/local/test_out_of_memory.py::"
REPLAYED = GRAPHS + "test_pitfall_31_replayed_steps_give_the_logprobs_of_a_plain_forward"

MUTANTS = [
    Mutant(  # memory runs out in sampling again and again
        pitfall="36",
        file="engines/local/engine.py",
        old="        self._max_batch_size = together // 2\n",
        new="        self._max_batch_size = together - 1\n",
        test=HALVED + "test_pitfall_36_half_as_many_at_a_time_give_the_same_tokens",
    ),
    Mutant(  # what was begun anew passes for sampled with older weights
        pitfall="24",
        file="engines/local/engine.py",
        old="                request.restart()\n",
        new="",
        test=HALVED + "test_pitfall_24_what_is_begun_anew_is_of_the_newest_weights_only",
    ),
    Mutant(  # the weights that are there pass for the first ones
        pitfall="24",
        file="engines/local/engine.py",
        old="        scheduler.new_weights(self._scheduler.policy_version)\n",
        new="",
        test=HALVED + "test_pitfall_24_what_is_begun_anew_is_of_the_newest_weights_only",
    ),
    Mutant(  # what a failed pass has added stays in the gradient
        pitfall="9",
        file="training/trainer.py",
        old="parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()",
        new="parameter.grad = torch.zeros_like(parameter) if tokens >= 256 else parameter.grad",
        test=CUT,
    ),
    Mutant(  # what the failed attempt reported is counted once more
        pitfall="9",
        file="training/trainer.py",
        old="part, bad = Sums(), list[int]()",
        new='part, bad = self.__dict__.setdefault("_part", Sums()), list[int]()',
        test=CUT,
    ),
    Mutant(  # the plan forgets the optimizer
        pitfall="33",
        file="training/memory.py",
        old="optimizer=-(-2 * trained // replicated) + 4 * sum(1 for _ in policy.parameters()),",
        new="optimizer=0,",
        test=EXACT,
    ),
    Mutant(  # one moment for two
        pitfall="33",
        file="training/memory.py",
        old="optimizer=-(-2 * trained // replicated)",
        new="optimizer=-(-trained // replicated)",
        test=EXACT,
    ),
    Mutant(  # a frozen copy of the weights is not planned for
        pitfall="33",
        file="build/memory.py",
        old='has_reference="reference_logprobs" in needs',
        new="has_reference=False",
        test="tests/unit/app/test_memory.py::test_pitfall_33_each_copy_of_the_weights_is_planned_for",
    ),
    Mutant(  # one bfloat16 copy of the head for all chunks of a pass, whose gradients add up in bfloat16
        pitfall="33",
        file="models/policy.py",
        old="    torch.set_autocast_cache_enabled(False)\n",
        new="",
        test="tests/unit/models/test_policy.py::"
        "test_pitfall_33_in_bfloat16_the_gradients_of_chunks_are_added_up_in_float32",
    ),
    Mutant(  # recorded steps go on reading buffers that have grown and lie elsewhere
        pitfall="31",
        file="engines/local/graphed.py",
        old="if self._recorded_for != self._buffers():",
        new="if False:",
        test=REPLAYED,
    ),
    Mutant(  # a recorded step replays the tokens that it was recorded with
        pitfall="31",
        file="engines/local/graphs.py",
        old="            own.copy_(value)\n",
        new="            pass\n",
        test=REPLAYED,
    ),
    Mutant(  # steps of one number of columns serve another
        pitfall="31",
        file="engines/local/graphed.py",
        old="self.graphs.run((num_rows, num_columns, *shape), compute",
        new="self.graphs.run((num_rows, *shape), compute",
        test=REPLAYED,
    ),
    Mutant(  # a prefix beside the padded ones gets their rows
        pitfall="31",
        file="engines/local/graphed.py",
        old="moved = [place // size * each + place % size for place in places]",
        new="moved = places",
        test=REPLAYED,
    ),
]
