"""Bugs that once passed every unit test."""

from tests.mutants.mutant import Mutant

CHATS = "tests/unit/app/test_chats.py::"
METRIC = "tests/unit/tasks/test_rpn_metric.py::"
RPN = "tests/unit/tasks/test_rpn.py::"
METRICS = "tests/unit/rollout/test_metrics.py::"
BATCH = "tests/unit/rollout/test_batch.py::"
SOURCE = "tests/unit/rollout/test_schedule.py::"
OBJECTIVE = "tests/unit/algorithms/test_objective.py::"
STATE = "tests/unit/training/test_state.py::"
CHECKPOINT = "tests/unit/training/test_checkpoint.py::"
TRAINER = "tests/unit/training/test_trainer.py::"
TRAIN = "tests/system/test_train.py::"
PACKING = "tests/unit/training/test_packing.py::"

MUTANTS = [
    Mutant(  # a truncated completion counts as answered
        pitfall="38",
        file="tasks/rpn_metric.py",
        old='said, ended, _ = completion.partition("<eoe>")',
        new='said, ended = completion.partition("<eoe>")[0], True',
        test=METRIC + "test_pitfall_38_a_completion_that_never_ended_has_no_answer",
    ),
    Mutant(  # any last number is an answer
        pitfall="38",
        file="tasks/rpn_metric.py",
        old=' or words[-2] != "="',
        new="",
        test=METRIC + "test_pitfall_38_a_number_that_does_not_follow_an_equals_is_no_answer",
    ),
    Mutant(  # the sign is ignored
        pitfall="28",
        file="tasks/rpn_metric.py",
        old="int(answer) == int(expected)",
        new="abs(int(answer)) == abs(int(expected))",
        test=METRIC + "test_pitfall_28_the_sign_and_every_digit_count",
    ),
    Mutant(  # the last `<eoe>` ends the answer
        pitfall="28",
        file="tasks/rpn_metric.py",
        old='said, ended, _ = completion.partition("<eoe>")',
        new='said, ended, _ = completion.rpartition("<eoe>")',
        test=METRIC + "test_pitfall_28_nothing_after_the_first_end_is_read",
    ),
    Mutant(  # whatever `int` takes is an answer
        pitfall="28",
        file="tasks/rpn_metric.py",
        old='r"-?[0-9]{1,18}"',
        new='r"[-+]?[\\d_]+"',
        test=METRIC + "test_pitfall_28_only_plain_integers_are_answers",
    ),
    Mutant(  # unparsable counts as truncated
        pitfall="14",
        file="rollout/metrics.py",
        old='"rollout/truncated_share": _mean(e.stop_reason is StopReason.LENGTH',
        new='"rollout/truncated_share": _mean(e.score.status == "invalid"',
        test=METRICS + "test_pitfall_14_truncated_invalid_and_failed_are_counted_apart",
    ),
    Mutant(  # every other end is a truncation
        pitfall="14",
        file="rollout/batch.py",
        old="episode.stop_reason is StopReason.LENGTH",
        new="episode.stop_reason is not StopReason.STOP",
        test=BATCH + "test_pitfall_14_only_the_stop_reason_length_is_truncation",
    ),
    Mutant(  # a verifier error is a reward of 0
        pitfall="13",
        file="rollout/schedule.py",
        old="rewards = [e.score.value for e in group.episodes if not math.isnan(e.score.value)]",
        new="rewards = [0.0 if math.isnan(e.score.value) else e.score.value for e in group.episodes]",
        test=SOURCE + "test_pitfall_13_a_verifier_error_does_not_bring_a_dead_group_to_life",
    ),
    Mutant(  # extreme ratios are not counted
        pitfall="16",
        file="algorithms/objective.py",
        old="policy_loss, extreme | odd",
        new="policy_loss, odd",
        test=OBJECTIVE + "test_pitfall_16_clamped_tokens_are_those_of_every_ratio_each_once",
    ),
    Mutant(  # nor extreme mismatch
        pitfall="16",
        file="algorithms/objective.py",
        old="policy_loss, extreme | odd",
        new="policy_loss, extreme",
        test=OBJECTIVE + "test_pitfall_16_clamped_tokens_are_those_of_every_ratio_each_once",
    ),
    Mutant(  # the other sign
        pitfall="15",
        file="algorithms/objective.py",
        old='logged["reference_kl"] = k3(reference_log_ratio)',
        new='logged["reference_kl"] = k3(-reference_log_ratio)',
        test=OBJECTIVE + "test_pitfall_15_the_logged_reference_kl_has_the_policy_in_the_numerator",
    ),
    Mutant(  # the generators start anew
        pitfall="37",
        file="training/state.py",
        old='        set_random_state(tree["random"])\n',
        new="",
        test=STATE + "test_pitfall_37_the_global_random_generators_go_on_where_they_were",
    ),
    Mutant(  # a checkpoint outlives the lines before it
        pitfall="37",
        file="training/state.py",
        old="self._before_save()",
        new="pass",
        test=STATE + "test_pitfall_37_the_lines_before_a_checkpoint_reach_the_disk_before_it",
    ),
    Mutant(  # a power cut leaves empty files under the checkpoint's name
        pitfall="37",
        file="training/checkpoint.py",
        old="        (sync_folder if path.is_dir() else sync_file)(path)\n",
        new="",
        test=CHECKPOINT + "test_pitfall_37_everything_is_on_the_disk_before_the_checkpoint_gets_its_name",
    ),
    Mutant(  # written in place
        pitfall="37",
        file="training/checkpoint.py",
        old='return final.with_name(f".{final.name}.tmp-{os.getpid()}")',
        new="return final",
        test=CHECKPOINT + "test_pitfall_37_a_kill_in_the_middle_of_a_write_leaves_a_complete_checkpoint",
    ),
    Mutant(  # every epoch has the same minibatches
        pitfall="36",
        file="training/trainer.py",
        old='derive_seed(self._seed, "minibatches", step, epoch)',
        new='derive_seed(self._seed, "minibatches", step)',
        test=TRAINER + "test_pitfall_36_minibatches_visit_every_row_once_an_epoch_in_an_order_of_the_seed",
    ),
    Mutant(  # every turn draws the same numbers
        pitfall="36",
        file="rollout/source.py",
        old='derive_seed(self._seed, "train", index, sample, turn)',
        new='derive_seed(self._seed, "train", index, sample)',
        test=SOURCE + "test_pitfall_36_every_turn_of_an_episode_has_a_seed_of_its_own",
    ),
    Mutant(  # demonstrations are drawn from the training stream
        pitfall="36",
        file="tasks/rpn.py",
        old='derive_seed(self.seed, "rpn", stream, index)',
        new='derive_seed(self.seed, "rpn", "train", index)',
        test=RPN + "test_pitfall_36_training_examples_and_demonstrations_are_different_streams",
    ),
    Mutant(  # the same in another place
        pitfall="36",
        file="tasks/rpn.py",
        old='rng = self._rng("demonstration", index)',
        new='rng = self._rng("train", index)',
        test=RPN + "test_pitfall_36_training_examples_and_demonstrations_are_different_streams",
    ),
    Mutant(  # the reference learns too
        pitfall="21",
        file="models/policy.py",
        old="copy.deepcopy(self.model).requires_grad_(False)",
        new="self.model",
        test=TRAINER + "test_pitfall_21_the_reference_is_the_policy_of_the_start_after_an_update",
    ),
    Mutant(  # the updates end unless the policy runs away
        pitfall="22",
        file="training/trainer.py",
        old="approx_kl > 1.5 * target",
        new="approx_kl < 1.5 * target",
        test=TRAINER + "test_pitfall_22_target_kl_ends_the_updates_of_a_batch_once_it_is_passed",
    ),
    Mutant(  # top_p does not reach the engine
        pitfall="20",
        file="rollout/source.py",
        old="            top_p=settings.top_p,\n",
        new="",
        test=SOURCE + "test_pitfall_20_the_engine_samples_with_the_settings",
    ),
    Mutant(  # nor does the run notice
        pitfall="20",
        file="rollout/source.py",
        old="            top_p=settings.top_p,\n",
        new="",
        test=TRAIN + "test_pitfall_20_truncated_sampling_leaves_the_ratio_at_one",
    ),
    Mutant(  # the gradient is half of it
        pitfall="17",
        file="training/trainer.py",
        old="terms.loss.backward()",
        new="(terms.loss * 0.5).backward()",
        test=TRAINER + "test_pitfall_17_the_gradient_is_that_of_the_formula_on_a_padded_batch",
    ),
    Mutant(  # a mixture of experts sees the neighboring segments
        pitfall="2",
        file="training/packing.py",
        old="same = (key == query) | (key == self.parents[:, :, None])",
        new="same = key >= 0",
        test=PACKING + "test_pitfall_02_packed_logprobs_equal_those_of_the_rows_alone[mixtral-shared]",
    ),
    Mutant(  # how tools are called is a setting without effect
        pitfall="28",
        file="build/chats.py",
        old=", tool_format=_tool_format(config, task.name)",
        new="",
        test=CHATS + "test_pitfall_28_the_format_of_tool_calls_is_the_one_that_was_chosen",
    ),
    Mutant(  # every task has the format of the run's own
        pitfall="28",
        file="build/chats.py",
        old="if name in bundles:",
        new="if False:",
        test=CHATS + "test_pitfall_28_each_task_of_a_configuration_has_the_format_of_its_own_prompt",
    ),
]
