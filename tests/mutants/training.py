"""Bugs of packing, trainer, rollouts, loop, resume and warm start."""

from tests.mutants.mutant import Mutant

PACKING = "tests/unit/training/test_packing.py::"
TRAINER = "tests/unit/training/test_trainer.py::"
BATCH = "tests/unit/rollout/test_batch.py::"
SOURCE = "tests/unit/rollout/test_schedule.py::"
WARM = "tests/unit/training/test_warm_start.py::"
STATE = "tests/unit/training/test_state.py::"
LOOP = "tests/unit/training/test_loop.py::"
TRAIN = "tests/system/test_train.py::"
RESUME = "tests/system/test_resume.py::test_pitfall_37_"
STOP = RESUME + "stop_and_resume_equals_the_uninterrupted_run"
CUT = TRAINER + "test_pitfall_09_the_gradient_does_not_depend_on_how_the_batch_is_cut"
STEP_0 = TRAIN + "test_pitfall_21_before_the_first_update_everything_cancels_in_a_real_run"

MUTANTS = [
    Mutant(  # attention leaks from one packed row into the next
        pitfall="2",
        file="training/packing.py",
        old="same = (key == query) | (key == self.parents[:, :, None])",
        new="same = key >= 0",
        test=PACKING + "test_pitfall_02_packed_logprobs_equal_those_of_the_rows_alone",
    ),
    Mutant(  # positions run on
        pitfall="2",
        file="training/packing.py",
        old="self.positions += range(first_position, first_position + len(ids))",
        new="self.positions += range(len(self.positions), len(self.positions) + len(ids))",
        test=PACKING + "test_pitfall_02_packed_logprobs_equal_those_of_the_rows_alone",
    ),
    Mutant(  # the sampled end of sequence falls out of the mask
        pitfall="3",
        file="rollout/batch.py",
        old="(False,) * len(fresh) + (True,) * len(sampled)",
        new="(False,) * len(fresh) + (True,) * (len(sampled) - 1) + (False,)",
        test=BATCH + "test_pitfall_03_the_sampled_end_token_is_trained_on_and_nothing_after_it",
    ),
    Mutant(  # replies and headers are trained on
        pitfall="4",
        file="rollout/batch.py",
        old="(False,) * len(fresh) + (True,) * len(sampled)",
        new="(bool(row.ids),) * len(fresh) + (True,) * len(sampled)",
        test=BATCH + "test_pitfall_04_only_sampled_ids_are_trained_on_over_three_turns",
    ),
    Mutant(  # each microbatch has a denominator of its own
        pitfall="9",
        file="training/trainer.py",
        old="part, token_weights = _take(batch, present), weights[present]",
        new="part = _take(batch, present)\n        token_weights = self.algorithm.weights(part)",
        test=CUT,
    ),
    Mutant(  # the denominator counts verifier errors
        pitfall="10",
        file="training/trainer.py",
        old="weights = self.algorithm.weights(batch)\n",
        new="weights = self.algorithm.weights(replace(batch, valid=batch.valid | True)) * batch.valid[:, None]\n",
        test=TRAINER + "test_pitfall_10_rows_outside_the_loss_change_nothing",
    ),
    Mutant(  # truncation inferred from the length
        pitfall="14",
        file="rollout/batch.py",
        old="[episode.stop_reason is StopReason.LENGTH for episode in episodes]",
        new="[len(row.ids) == width for row in rows]",
        test=BATCH + "test_pitfall_14_a_completion_that_ends_on_the_last_allowed_token_is_not_truncated",
    ),
    Mutant(  # the sign of the advantage
        pitfall="18",
        file="algorithms/objective.py",
        old="keep(required(rows.advantages), mask)",
        new="-keep(required(rows.advantages), mask)",
        test=TRAIN + "test_pitfall_18_a_short_run_learns_to_write_the_steps",
    ),
    Mutant(  # the trainer scores at temperature 1
        pitfall="19",
        file="models/policy.py",
        old="torch.log_softmax(self.logits(hidden) / temperature, dim=-1)",
        new="torch.log_softmax(self.logits(hidden), dim=-1)",
        test=TRAINER + "test_pitfall_19_the_trainer_scores_at_the_sampling_temperature",
    ),
    Mutant(  # only the update does
        pitfall="19",
        file="training/trainer.py",
        old="scores = self._spread.scores(self.policy, microbatch, self._temperature,",
        new="scores = self._spread.scores(self.policy, microbatch, 1.0,",
        test=TRAINER + "test_pitfall_19_the_trainer_scores_at_the_sampling_temperature",
    ),
    Mutant(  # behavior logprobs of the truncated distribution
        pitfall="20",
        file="rollout/batch.py",
        old="(0.0,) * len(fresh) + turn.completion.behavior_logprobs,\n",
        new="(0.0,) * len(fresh) + turn.completion.sampling_logprobs,\n",
        test=TRAIN + "test_pitfall_20_truncated_sampling_leaves_the_ratio_at_one",
    ),
    Mutant(  # the reference is scored at another temperature
        pitfall="21",
        file="training/trainer.py",
        old="scores = self._spread.scores(policy, microbatch, self._temperature)",
        new="scores = self._spread.scores(policy, microbatch, 1.0)",
        test=STEP_0,
    ),
    Mutant(  # old is always the current policy
        pitfall="22",
        file="algorithms/table.py",
        old="several_updates = settings.num_epochs * settings.num_minibatches > 1",
        new="several_updates = False",
        test=TRAINER + "test_pitfall_22_old_logprobs_stay_those_before_the_first_of_several_updates",
    ),
    Mutant(  # old is what the engine said
        pitfall="22",
        file="training/trainer.py",
        old="batch = replace(batch, old_logprobs=old_logprobs, values=values)",
        new="batch = replace(batch, old_logprobs=batch.behavior_logprobs - 0.1, values=values)",
        test=TRAINER + "test_pitfall_22_old_logprobs_stay_those_before_the_first_of_several_updates",
    ),
    Mutant(  # bf16 master weights
        pitfall="33",
        file="training/trainer.py",
        old="        self.policy, self.algorithm = policy, algorithm\n",
        new="        self.policy, self.algorithm = policy, algorithm\n        policy.model.bfloat16()\n",
        test=TRAINER + "test_pitfall_33_an_update_at_a_tiny_learning_rate_is_not_rounded_away",
    ),
    Mutant(  # dropout is on while training
        pitfall="34",
        file="training/trainer.py",
        old="        weights = self.algorithm.weights(batch)\n",
        new="        weights = self.algorithm.weights(batch)\n        self.policy.model.train()\n",
        test=TRAINER + "test_pitfall_34_dropout_in_the_model_config_stays_off",
    ),
    Mutant(  # the run seed never reaches the engine
        pitfall="36",
        file="rollout/source.py",
        old='seed=derive_seed(self._seed, "train", index, sample, turn)',
        new='seed=derive_seed(0, "train", index, sample, turn)',
        test=SOURCE + "test_pitfall_36_every_completion_has_a_seed_of_its_own_and_the_run_seed_reaches_it",
    ),
    Mutant(  # members of a group collide
        pitfall="36",
        file="rollout/source.py",
        old='seed=derive_seed(self._seed, "train", index, sample, turn)',
        new='seed=derive_seed(self._seed, "train", index, turn)',
        test=SOURCE + "test_pitfall_36_every_completion_has_a_seed_of_its_own_and_the_run_seed_reaches_it",
    ),
    Mutant(  # the run seed does not reach the prompts
        pitfall="36",
        file="build/tasks.py",
        old="                seed=config.seed,",
        new="                seed=0,",
        test=TRAIN + "test_pitfall_36_the_run_seed_reaches_the_rollouts_of_a_given_model",
    ),
    Mutant(  # the optimizer starts anew
        pitfall="37",
        file="training/state.py",
        old='        self._load_optimizer(tree["optimizer"]["state"], order)\n',
        new="",
        test=STOP + "[3-grpo]",
    ),
    Mutant(  # so do the prompts
        pitfall="37",
        file="training/state.py",
        old='        self._rollouts.restore(checkpoint.state["rollouts"])\n',
        new="",
        test=STOP + "[3-grpo]",
    ),
    Mutant(  # the cursor forgets the refills
        pitfall="37",
        file="training/state.py",
        old='restore(checkpoint.state["rollouts"])',
        new='restore({"cursor": checkpoint.step * self._rollouts._source.prompts_per_step, "under_way": []})',
        test=STOP + "[3-dapo]",
    ),
    Mutant(  # the critic starts anew
        pitfall="37",
        file="training/state.py",
        old="        policy.value_head.load_state_dict(head)\n",
        new="        del head\n",
        test=STOP + "[3-ppo]",
    ),
    Mutant(  # the reference is the policy of the checkpoint
        pitfall="37",
        file="training/state.py",
        old="        load_weights(self._policy, checkpoint)\n",
        new="        load_weights(self._policy, checkpoint)\n        if self._trainer.reference is not None:\n"
        "            self._trainer.reference = self._policy.freeze()\n",
        test=STOP + "[3-grpo_kl]",
    ),
    Mutant(  # the best checkpoint is forgotten
        pitfall="37",
        file="training/state.py",
        old="        self._best = None if best is None else (best[0], best[1])\n",
        new="        del best\n",
        test=STATE + "test_pitfall_37_the_best_checkpoint_is_remembered_over_a_resume",
    ),
    Mutant(  # line 0 is written twice
        pitfall="37",
        file="build/train.py",
        old="metrics_file.cut_back(step if step > 0 else -1)",
        new="metrics_file.cut_back(step if latest is not None else -1)",
        test=RESUME + "what_was_written_after_the_checkpoint_is_cut_off",
    ),
    Mutant(  # rollouts of steps that are repeated stay
        pitfall="37",
        file="build/train.py",
        old="    cut_back(folder.rollouts, step)\n",
        new="",
        test=RESUME + "rollouts_after_the_checkpoint_are_removed",
    ),
    Mutant(  # a stop is not saved
        pitfall="37",
        file="training/loop.py",
        old="now=stopping or step + 1 == run.max_steps",
        new="now=step + 1 == run.max_steps",
        test=STOP + "[1-grpo]",
    ),
    Mutant(  # a signal in the middle of a save loses a step
        pitfall="37",
        file="training/loop.py",
        old="            if stopping:\n",
        new="            if stopped():\n",
        test=LOOP + "test_pitfall_37_a_stop_during_a_save_loses_no_step",
    ),
    Mutant(  # the warm start trains on the prompts
        pitfall="4",
        file="training/warm_start.py",
        old='if loss_on == "all":',
        new="if True:",
        test=WARM + "test_pitfall_04_only_the_completions_are_trained_on",
    ),
    Mutant(  # each microbatch of the warm start has its own mean
        pitfall="9",
        file="training/warm_start.py",
        old="loss = _loss_sum(policy, part, loss_on) / num_tokens",
        new="loss = _loss_sum(policy, part, loss_on) / sum(len(_trained(row, loss_on)) for row in part)",
        test=WARM + "test_pitfall_09_the_gradient_does_not_depend_on_microbatches_padding_and_company[all]",
    ),
    Mutant(  # nothing teaches the model to stop
        pitfall="3",
        file="training/warm_start.py",
        old="end = [] if task.stop_words else [_end_id(policy)]",
        new="end: list[int] = []",
        test=WARM + "test_pitfall_03_a_completion_ends_with_the_end_token_unless_its_text_has_the_end",
    ),
]
