"""Known bugs of rollouts that run beside the trainer: bound, order, ages, weights in flight, corrections, resume."""

from tests.mutants.mutant import Mutant

STALENESS = "tests/unit/rollout/test_staleness.py::"
EXECUTOR = "tests/unit/rollout/test_executor.py::"
LOOP = "tests/unit/training/test_loop.py::"
VERSIONS = "tests/unit/engines/local/test_versions.py::"
RATIOS = "tests/unit/algorithms/test_ratios.py::"
OBJECTIVE = "tests/unit/algorithms/test_objective.py::"
RECORDS = "tests/unit/tracking/test_rollouts.py::"
BOUND = STALENESS + "test_pitfall_24_delivery_in_issue_order_keeps_the_bound_for_every_token"
LENGTHS = STALENESS + "test_pitfall_25_episodes_trained_on_are_as_long_as_those_sampled"
TOO_OLD = STALENESS + "test_pitfall_24_a_token_too_old_or_of_no_weights_at_all_is_an_error"
LOST = STALENESS + "test_pitfall_37_no_prompt_is_lost_or_doubled_by_a_resume_at_any_step"
SCHEDULE = "tests/unit/rollout/test_schedule.py::"
ENGINE = "tests/unit/engines/local/test_engine.py::"
ONE_THREAD = SCHEDULE + (
    "test_pitfall_30_the_engine_is_used_in_one_thread_and_closed_at_the_end_which_ends_the_thread_too"
)
AT_ONCE = SCHEDULE + "test_pitfall_26_who_stops_at_once_does_not_wait_for_an_engine_that_waits_for_its_servers"
BY_HAND = RATIOS + "test_pitfall_23_weights_of_tokens_sequences_and_their_mean_by_hand"


def bug(pitfall: str, file: str, old: str, new: str, test: str) -> Mutant:
    """A mutant of `file`."""
    return Mutant(pitfall=pitfall, file=file, old=old, new=new, test=test)


MUTANTS = [
    bug(  # the newest batch is delivered, and the oldest waits
        "24",
        "rollout/schedule.py",
        "self._issued.popleft().groups()",
        "self._issued.pop().groups()",
        BOUND,
    ),
    bug(  # one batch too many is begun
        "24",
        "rollout/schedule.py",
        "while len(self._issued) <= ahead:",
        "while len(self._issued) <= ahead + 1:",
        BOUND,
    ),
    bug(  # the next batch is begun when this one is there: nothing runs beside its last completions
        "24",
        "rollout/schedule.py",
        "        while len(self._issued) <= ahead:\n            self._issue(step + len(self._issued))\n"
        "        groups = self._world.join(self._issued.popleft().groups())\n",
        "        if not self._issued:\n            self._issue(step)\n"
        "        groups = self._world.join(self._issued.popleft().groups())\n"
        "        while len(self._issued) < ahead:\n            self._issue(step + 1 + len(self._issued))\n",
        STALENESS + "test_pitfall_24_the_batches_of_later_steps_have_begun_before_the_trainer_waits_for_its_own",
    ),
    bug(  # what the trainer waits for stands behind the batches of later steps
        "25",
        "engines/local/scheduler.py",
        "insort(self._waiting, request, key=lambda one: one.sampling.priority)",
        "self._waiting.append(request)",
        ENGINE
        + "test_pitfall_25_of_requests_that_wait_those_of_smaller_priority_start_first_and_draw_what_they_always_do",
    ),
    bug(
        "25",
        "rollout/schedule.py",
        "self._issue(step + len(self._issued))",
        "self._issue(step)",
        SCHEDULE + "test_pitfall_25_requests_go_first_for_which_the_trainer_waits_first",
    ),
    bug(  # weights come in the trainer's thread, in the middle of a step of the engine
        "30",
        "rollout/schedule.py",
        "self._executor.call(lambda: self._engine.load_weights(version))",
        "self._engine.load_weights(version)",
        ONE_THREAD,
    ),
    bug(  # an engine that cannot be closed leaves its thread behind
        "30",
        "rollout/schedule.py",
        "        finally:\n            self._executor.__exit__(kind, error, trace)",
        "        except ZeroDivisionError:\n            pass\n        self._executor.__exit__(kind, error, trace)",
        ONE_THREAD,
    ),
    bug(  # a second Ctrl-C waits for a push that waits for a server
        "26",
        "rollout/executor.py",
        "return None if kind is None or issubclass(kind, Exception) else PATIENCE_S",
        "return None",
        AT_ONCE,
    ),
    bug(  # every rank samples all prompts
        "9",
        "rollout/schedule.py",
        "self._source.sample(self._world.share(indices), step=step)",
        "self._source.sample(indices, step=step)",
        SCHEDULE + "test_pitfall_09_each_rank_samples_its_share_of_a_batch_and_of_its_replacements",
    ),
    bug(  # the bound is checked where a batch is issued, at best
        "24",
        "training/loop.py",
        "ages = check_staleness(batch, step, rollouts.max_staleness)",
        "ages: dict[str, float] = {}",
        LOOP + "test_pitfall_24_tokens_that_are_too_old_are_not_trained_on",
    ),
    bug(  # of the mean over tokens
        "24",
        "rollout/staleness.py",
        "int(versions.min()), int(versions.max())",
        "int(versions.double().mean()), int(versions.max())",
        TOO_OLD,
    ),
    bug("24", "rollout/staleness.py", " or newest > step", "", TOO_OLD),
    bug(  # tokens of no known version pass in the first steps
        "24",
        "rollout/staleness.py",
        "if oldest < max(0, step - max_staleness) or",
        "if oldest < step - max_staleness or",
        TOO_OLD,
    ),
    bug(  # a completion has the version that it began with
        "30",
        "engines/local/scheduler.py",
        "        self._rows.note_version(version)\n",
        "",
        VERSIONS + "test_pitfall_30_a_copy_samples_with_the_weights_of_its_last_load_and_says_which_token_has_which",
    ),
    bug(  # all of it has that of its last token
        "24",
        "rollout/batch.py",
        "(-1,) * len(fresh) + turn.completion.policy_versions,",
        "(-1,) * len(fresh) + turn.completion.policy_versions[-1:] * len(sampled),",
        RECORDS + "test_pitfall_24_each_token_of_a_row_has_the_version_that_sampled_it",
    ),
    bug(  # what takes longest is left out
        "25",
        "rollout/source.py",
        "return await asyncio.gather(*(self._sample_group(index, step) for index in indices))",
        "waiting = [self._sample_group(index, step) for index in indices]\n"
        "        return [await done for done in asyncio.as_completed(waiting)][: max(1, len(waiting) - 1)]",
        LENGTHS,
    ),
    bug(  # the shortest of each batch are trained on first
        "25",
        "rollout/source.py",
        "return await asyncio.gather(*(self._sample_group(index, step) for index in indices))",
        "return [await done for done in asyncio.as_completed([self._sample_group(i, step) for i in indices])]",
        LENGTHS,
    ),
    bug(  # the copy keeps the weights that it was made with
        "30",
        "engines/local/engine.py",
        "own[name].copy_(value)",
        "value.detach()",
        VERSIONS + "test_pitfall_30_a_copy_samples_with_the_weights_of_its_last_load_and_says_which_token_has_which",
    ),
    bug(  # rows in flight go on with the keys of the old weights
        "30",
        "engines/local/scheduler.py",
        "self._stale = self._rows.count > 0",
        "self._stale = False",
        VERSIONS + "test_pitfall_30_a_copy_samples_with_the_weights_of_its_last_load_and_says_which_token_has_which",
    ),
    bug(  # of many rows in flight only the first ones are computed anew
        "30",
        "engines/local/scheduler.py",
        "for chunk in _chunks(sequences, lambda item: len(item[1])):",
        "for chunk in _chunks(sequences, lambda item: len(item[1]))[:1]:",
        VERSIONS + "test_pitfall_30_a_copy_samples_with_the_weights_of_its_last_load_and_says_which_token_has_which",
    ),
    bug(  # so do sessions between two turns
        "31",
        "engines/local/scheduler.py",
        '"""Forget every key and value. Rows in flight are computed anew and go on under the new weights."""\n'
        "        self._parked.clear()\n",
        '"""Forget every key and value. Rows in flight are computed anew and go on under the new weights."""\n',
        VERSIONS + "test_pitfall_31_a_session_that_was_parked_with_old_weights_is_computed_anew",
    ),
    bug(  # an episode has the version of its last turn: the report shows it younger than it is
        "24",
        "tracking/rollouts.py",
        "policy_version=min(turn.completion.policy_version for turn in episode.turns)",
        "policy_version=episode.turns[-1].completion.policy_version",
        RECORDS + "test_pitfall_24_each_token_of_a_row_has_the_version_that_sampled_it",
    ),
    bug(  # rows that are shorter than the longest have the versions of their padding
        "24",
        "tracking/rollouts.py",
        "versions[row, :length].tolist()",
        "versions[row, -length:].tolist()",
        RECORDS + "test_pitfall_24_each_token_of_a_row_has_the_version_that_sampled_it",
    ),
    bug(  # the weight of a sequence is exp(mean) where exp(sum) is meant
        "23",
        "algorithms/ratios.py",
        '"sequence_mask": Correction(weight=sequence_weight,',
        '"sequence_mask": Correction(weight=geometric_weight,',
        RATIOS + "test_pitfall_23_each_correction_has_the_weight_and_the_limit_of_its_name",
    ),
    bug(  # and the other way round
        "23",
        "algorithms/ratios.py",
        "return sequence_log_ratio(log_weight, mask).exp()",
        "return sequence_weight(log_weight, mask)",
        BY_HAND,
    ),
    bug(  # what was not sampled counts
        "23",
        "algorithms/ratios.py",
        "total = torch.where(mask, log_weight, 0.0).sum(1, keepdim=True)",
        "total = log_weight.sum(1, keepdim=True)",
        BY_HAND,
    ),
    bug(
        "23",
        "algorithms/ratios.py",
        "return total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()",
        "return total.exp()",
        RATIOS + "test_pitfall_23_a_product_that_overflows_is_bounded",
    ),
    bug(  # metrics show what is left of the weights
        "23",
        "algorithms/objective.py",
        '"mismatch_weight": weight,',
        '"mismatch_weight": factor,',
        OBJECTIVE + "test_pitfall_23_metrics_report_weights_of_sequences_before_the_cap",
    ),
    bug(
        "23",
        "algorithms/table.py",
        "mismatch_cap=settings.mismatch_cap,",
        "mismatch_cap=2.0,",
        OBJECTIVE + "test_pitfall_23_metrics_report_weights_before_the_cap",
    ),
    bug(  # a correction whose old policy is the sampler's does nothing
        "22",
        "algorithms/objective.py",
        "mismatch_log_weight(old.detach(), keep(rows.behavior_logprobs, mask))",
        "mismatch_log_weight(old.detach(), old.detach())",
        OBJECTIVE + "test_pitfall_22_with_one_update_the_correction_acts_alone_and_needs_no_pass_of_its_own",
    ),
    bug(  # batches that were under way are not sampled again
        "37",
        "rollout/schedule.py",
        "under_way = [*(issued.indices for issued in self._issued), *self._again]",
        "under_way = [*self._again]",
        LOST,
    ),
    bug(  # they are, behind the prompts that come after them
        "37",
        "rollout/schedule.py",
        "self._again.popleft() if self._again else self._take(self._source.prompts_per_step)",
        "self._take(self._source.prompts_per_step)",
        LOST,
    ),
    bug(  # a checkpoint before they are begun again forgets them
        "37",
        "rollout/schedule.py",
        "under_way = [*(issued.indices for issued in self._issued), *self._again]",
        "under_way = [*(issued.indices for issued in self._issued)]",
        STALENESS + "test_pitfall_37_a_state_that_was_restored_and_saved_before_the_next_step_is_the_same",
    ),
    bug(  # a task that exits ends the thread, and everybody waits for ever
        "26",
        "rollout/executor.py",
        "with suppress(SystemExit, KeyboardInterrupt):",
        "with suppress(KeyboardInterrupt):",
        EXECUTOR
        + "test_pitfall_26_what_would_stop_the_loop_arrives_where_the_result_is_asked_for_and_the_loop_goes_on",
    ),
]
