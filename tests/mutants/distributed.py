"""Bugs of training that is spread over processes."""

from tests.mutants.mutant import Mutant

PARALLEL = "tests/system/test_parallel.py::"
LOSSES = PARALLEL + "test_pitfall_09_any_number_of_ranks_gives_the_losses_of_one_process"
ADAPTERS = PARALLEL + "test_pitfall_09_adapters_on_two_ranks_learn_what_they_learn_on_one"
GRADIENTS = PARALLEL + "test_pitfall_09_the_gradient_of_every_aggregation_has_the_denominator_of_all_ranks"
SAVED = PARALLEL + "test_pitfall_37_what_two_ranks_hold_is_saved_whole_and_loaded_in_parts"

MUTANTS = [
    Mutant(  # gradients of cut weights are averaged
        pitfall="9",
        file="training/parallel.py",
        old="module.set_gradient_divide_factor(1.0)",
        new="module.set_gradient_divide_factor(float(self._world.size))",
        test=LOSSES + "[grpo-fsdp2-2]",
    ),
    Mutant(  # gradients of whole weights are averaged
        pitfall="9",
        file="training/parallel.py",
        old="flat = self._world.add(torch.cat([gradient.flatten() for gradient in bucket]))",
        new="flat = self._world.add(torch.cat([gradient.flatten() for gradient in bucket])) / self._world.size",
        test=LOSSES + "[grpo-ddp-2]",
    ),
    Mutant(  # every microbatch of every rank has a denominator of its own
        pitfall="9",
        file="training/trainer.py",
        old="part, token_weights = _take(batch, present), weights[present]",
        new="part = _take(batch, present)\n        token_weights = self.algorithm.weights(part)",
        test=GRADIENTS + "[2-ddp]",
    ),
    Mutant(  # the critic learns from this rank's rows only
        pitfall="9",
        file="training/parallel.py",
        old="if self._world.size == 1:",
        new="if self._world.size == 1 or self.in_lockstep:",
        test=LOSSES + "[ppo-fsdp2-2]",
    ),
    Mutant(  # and so do adapters
        pitfall="9",
        file="training/parallel.py",
        old="if self._world.size == 1:",
        new="if self._world.size == 1 or policy.adapters:",
        test=ADAPTERS + "[ddp]",
    ),
    Mutant(  # weights that a pass without gradients gathered are not given back: the optimizer's are others
        pitfall="9",
        file="training/parallel.py",
        old="    if not torch.is_grad_enabled():\n",
        new="    if False:\n",
        test=LOSSES + "[ppo-fsdp2-2]",
    ),
    Mutant(  # each rank clips to the norm of its own rows
        pitfall="9",
        file="training/parallel.py",
        old="math.sqrt(self._world.add(cut).item() + same.item())",
        new="math.sqrt(cut.item() + same.item())",
        test=LOSSES + "[grpo-fsdp2-2]",
    ),
    Mutant(  # what all ranks hold counts once for each of them
        pitfall="9",
        file="training/parallel.py",
        old="math.sqrt(self._world.add(cut).item() + same.item())",
        new="math.sqrt(self._world.add(cut + same).item())",
        test=LOSSES + "[ppo-fsdp2-4]",
    ),
    Mutant(  # a rank does not hear of the scores that the others computed
        pitfall="9",
        file="training/trainer.py",
        old="return self._world.add(logprobs), None if",
        new="return logprobs, None if",
        test=LOSSES + "[ppo-ddp-2]",
    ),
    Mutant(  # or of their values
        pitfall="9",
        file="training/trainer.py",
        old="None if values is None else self._world.add(values)",
        new="values",
        test=LOSSES + "[ppo-ddp-2]",
    ),
    Mutant(  # or of their losses
        pitfall="9",
        file="training/trainer.py",
        old="parts = self._world.gather(own)",
        new="parts = [own]",
        test=LOSSES + "[grpo-ddp-2]",
    ),
    Mutant(  # of a gradient that takes several messages only the last one is sent
        pitfall="9",
        file="training/parallel.py",
        old="            yield bucket\n            bucket, size = [], 0",
        new="            bucket, size = [], 0",
        test=GRADIENTS + "[2-ddp]",
    ),
    Mutant(  # each rank ends the updates of a batch when its own rows have moved too far
        pitfall="22",
        file="training/trainer.py",
        old='return part.mean("approx_kl")',
        new='return own[0].mean("approx_kl")',
        test=PARALLEL + "test_pitfall_22_all_ranks_end_the_updates_of_a_batch_at_the_same_one[ddp]",
    ),
    Mutant(  # gradients are added up in the bf16 that they are computed in
        pitfall="33",
        file="training/parallel.py",
        old="reduce_dtype=torch.float32",
        new="reduce_dtype=torch.bfloat16",
        test=PARALLEL + "test_pitfall_33_gradients_that_are_computed_in_bf16_are_added_up_in_float32",
    ),
    Mutant(  # every rank works on all rows
        pitfall="9",
        file="training/packing.py",
        old="shares = share_out([unit.num_tokens for unit in units], world.size)",
        new="shares = [list(range(len(units)))] * world.size",
        test=GRADIENTS + "[2-ddp]",
    ),
    Mutant(  # a warm start that ended differently stays different
        pitfall="30",
        file="training/parallel.py",
        old="        world.copy_first(parameter.detach())",
        new="        parameter.detach()",
        test=PARALLEL + "test_pitfall_30_all_ranks_start_from_the_weights_of_the_first[ddp]",
    ),
    Mutant(  # the sampler gets the rows of one rank
        pitfall="30",
        file="models/policy.py",
        old="yield from ((name, whole(p)) for name, p in self.model.named_parameters() if p.requires_grad)",
        new="yield from ((name, p.detach()) for name, p in self.model.named_parameters() if p.requires_grad)",
        test=PARALLEL + "test_pitfall_30_a_sampler_gets_whole_weights_from_ranks_that_hold_parts[fsdp2]",
    ),
    Mutant(  # weights that compute in bf16 are kept in it, too
        pitfall="33",
        file="training/parallel.py",
        old="            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)\n",
        new="            model.to(torch.bfloat16)\n",
        test=PARALLEL + "test_pitfall_33_weights_stay_float32_where_cut_ones_compute_in_bf16",
    ),
    Mutant(  # every rank loads the first rows
        pitfall="37",
        file="models/sharding.py",
        old="own_rows(tensor).copy_(value[first:end] if is_sharded(tensor) else value)",
        new="own_rows(tensor).copy_(value[: end - first] if is_sharded(tensor) else value)",
        test=SAVED,
    ),
    Mutant(  # what is saved of a cut model is what the first rank holds
        pitfall="37",
        file="models/policy.py",
        old="yield from ((name, whole(weight)) for name, weight in self._tensors() if name in kept)",
        new="yield from ((name, own_rows(weight)) for name, weight in self._tensors() if name in kept)",
        test=SAVED,
    ),
]
