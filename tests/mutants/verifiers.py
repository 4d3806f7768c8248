"""Bugs planted in the bridge to the verifiers library; not tried, and said so, where the library is not installed."""

from tests.mutants.mutant import Mutant

PLAY = "tests/unit/tasks/test_verifiers.py::"
LIBRARY = "verifiers"

MUTANTS = [
    Mutant(
        pitfall="26",
        file="tasks/verifiers_library.py",
        old="    rubric._call_individual_reward_func, rubric._call_group_reward_func = watched_one, watched_all",
        new="    del watched_one, watched_all",
        test=PLAY + "test_pitfall_26_a_reward_function_that_raises_is_counted_and_not_scored_zero",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="26",
        file="tasks/verifiers_env.py",
        old='        if state.get("error") is not None:',
        new="        if False:",
        test=PLAY + "test_pitfall_26_a_failing_environment_is_an_error_and_no_wrong_answer",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="26",
        file="tasks/verifiers_env.py",
        old='        if state.get("timed_out"):',
        new="        if False:",
        test=PLAY + "test_pitfall_26_a_failing_environment_is_an_error_and_no_wrong_answer",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="7",
        file="tasks/verifiers_env.py",
        old="        return Reply(messages=messages, done=False, restarts=True)",
        new="        return Reply(messages=messages[len(expected) :], done=False)",
        test=PLAY + "test_pitfall_07_a_conversation_that_is_rewritten_starts_a_new_prompt",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="14",
        file="tasks/verifiers_env.py",
        old="content=last.text), truncated=True)",
        new="content=last.text))",
        test=PLAY + "test_pitfall_14_a_completion_that_was_cut_off_is_scored_as_truncated",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="14",
        file="tasks/verifiers_env.py",
        old="        if self._pending is not None and len(turns) > self._num_said:",
        new="        if False:",
        test=PLAY + "test_pitfall_14_a_completion_that_was_cut_off_is_scored_as_truncated",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="27",
        file="tasks/verifiers_env.py",
        old="        weakref.finalize(self, self._rollout.cancel).atexit = False",
        new="        weakref.finalize(self, id, self._rollout).atexit = False",
        test=PLAY + "test_pitfall_27_an_episode_that_is_cancelled_leaves_no_task_behind",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="28",
        file="tasks/verifiers_client.py",
        old='if call.problem is None else ""',
        new='if True else ""',
        test=PLAY + "test_pitfall_28_a_malformed_call_is_answered_and_the_episode_goes_on",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="29",
        file="tasks/verifiers_library.py",
        old="    if len(numbers) != num:",
        new="    if False:",
        test=PLAY + "test_pitfall_29_a_reward_of_a_group_with_too_few_numbers_is_an_error_of_all",
        needs=LIBRARY,
    ),
    Mutant(
        pitfall="38",
        file="tasks/verifiers.py",
        old="            found = numbers[self._settings.metric]",
        new="            found = score.value",
        test=PLAY + "test_pitfall_38_the_metric_is_the_number_that_the_settings_name",
        needs=LIBRARY,
    ),
]
