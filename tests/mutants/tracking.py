"""Bugs of metrics files, rollout files and checkpoints."""

from tests.mutants.mutant import Mutant

_JSONL = "tests/unit/tracking/test_jsonl.py::"
_ROLLOUTS = "tests/unit/tracking/test_rollouts.py::"
_CHECKPOINT = "tests/unit/training/test_checkpoint.py::"
_METRICS = "tests/unit/rollout/test_metrics.py::"
_SUMMARY = "tests/unit/evaluation/test_summary.py::"
_EVALUATE = "tests/unit/evaluation/test_evaluate.py::"
_HEALTH = "tests/unit/tracking/test_health.py::"
_EPISODES = "tests/unit/tracking/test_episodes.py::"
_DEBUGGING = "tests/unit/config/test_debugging.py::"
_STATE = "tests/unit/training/test_checkpoint_state.py::"

MUTANTS = [
    Mutant(  # the lines of steps that are repeated after a resume stay
        pitfall="37",
        file="tracking/jsonl.py",
        old="if number <= step}",
        new="if number <= step + 1}",
        test=_JSONL + "test_pitfall_37_cut_back_and_go_on_equals_an_uninterrupted_file",
    ),
    Mutant(  # half a line is taken for a line
        pitfall="37",
        file="tracking/jsonl.py",
        old='.split(b"\\n")[:-1]',
        new=".splitlines()",
        test=_JSONL + "test_pitfall_37_a_half_written_last_line_is_dropped",
    ),
    Mutant(  # rollouts of steps that are repeated after a resume stay
        pitfall="37",
        file="tracking/rollouts.py",
        old="int(found[1]) > step)",
        new="int(found[1]) > step + 5)",
        test=_ROLLOUTS + "test_pitfall_37_cut_back_removes_the_files_of_later_steps",
    ),
    Mutant(  # a checkpoint appears file by file
        pitfall="37",
        file="training/checkpoint.py",
        old="    temporary.rename(final)\n",
        new="    shutil.copytree(temporary, final)\n",
        test=_CHECKPOINT + "test_pitfall_37_a_kill_at_any_file_operation_leaves_a_complete_checkpoint",
    ),
    Mutant(  # a checkpoint disappears file by file
        pitfall="37",
        file="training/checkpoint.py",
        old="                checkpoints[step].rename(doomed)\n                shutil.rmtree(doomed)\n",
        new="                shutil.rmtree(checkpoints[step])\n",
        test=_CHECKPOINT + "test_pitfall_37_a_kill_at_any_file_operation_leaves_a_complete_checkpoint",
    ),
    Mutant(  # the replaced checkpoint is gone before the new one is in its place
        pitfall="37",
        file="training/checkpoint.py",
        old='if found and found[2] == "old" and not',
        new='if found and found[2] == "" and not',
        test=_CHECKPOINT + "test_pitfall_37_leftovers_of_a_killed_process_are_cleaned_up",
    ),
    Mutant(  # torch's generator starts again
        pitfall="37",
        file="training/checkpoint_state.py",
        old='    torch.set_rng_state(state["torch"])\n',
        new="",
        test=_STATE + "test_pitfall_37_training_goes_on_bit_for_bit_from_a_checkpoint",
    ),
    Mutant(  # the optimizer's moments are lost
        pitfall="37",
        file="training/checkpoint_state.py",
        old="return tensors[content].clone()",
        new="return tensors[content].clone() * (0 if 'exp_avg' in content else 1)",
        test=_STATE + "test_pitfall_37_training_goes_on_bit_for_bit_from_a_checkpoint",
    ),
    Mutant(  # only the last row of an episode is recorded
        pitfall="7",
        file="tracking/rollouts.py",
        old="            rows[number].append(row)\n",
        new="            rows[number] = [row]\n",
        test=_ROLLOUTS + "test_pitfall_07_every_row_of_an_episode_whose_template_rewrote_history_is_recorded",
    ),
    Mutant(  # a reply is cut off where the whole prompt ends, not where history was rewritten
        pitfall="7",
        file="tracking/rollouts.py",
        old="if old != new), len(prompt)) :]",
        new="if old != new and False), len(prompt)) :]",
        test=_ROLLOUTS + "test_pitfall_07_every_row_of_an_episode_whose_template_rewrote_history_is_recorded",
    ),
    Mutant(  # a NaN that the model wrote ends the run
        pitfall="6",
        file="tracking/rollouts.py",
        old="    if isinstance(value, float):\n        return _finite(value)\n",
        new="    if isinstance(value, float):\n        return value\n",
        test=_ROLLOUTS + "test_pitfall_06_tool_calls_are_recorded_as_plain_json_whatever_their_arguments_are",
    ),
    Mutant(  # failed calls are not counted
        pitfall="5",
        file="rollout/metrics.py",
        old='    "tool_errors": "tool_error_share",\n',
        new="",
        test=_METRICS + "test_pitfall_05_turns_and_tool_calls_are_counted_over_the_episodes_that_have_tools",
    ),
    Mutant(  # shares of calls are taken of episodes
        pitfall="5",
        file="rollout/metrics.py",
        old='sums[name] / sums["tool_calls"] for name',
        new="sums[name] / len(of_tools) for name",
        test=_METRICS + "test_pitfall_05_turns_and_tool_calls_are_counted_over_the_episodes_that_have_tools",
    ),
    Mutant(  # episodes without tools water the numbers down
        pitfall="5",
        file="rollout/metrics.py",
        old='if "tool_calls" in one]\n    if not',
        new="if True]\n    if not",
        test=_METRICS + "test_pitfall_05_turns_and_tool_calls_are_counted_over_the_episodes_that_have_tools",
    ),
    Mutant(  # sampled episodes count as greedy ones
        pitfall="38",
        file="evaluation/summary.py",
        old="judged = [record for record in greedy if record.failure is None]",
        new="judged = list(records)",
        test=_SUMMARY + "test_pitfall_38_tool_calls_are_summed_up_as_in_training",
    ),
    Mutant(  # every kind of example gets the numbers of all
        pitfall="38",
        file="evaluation/summary.py",
        old="        tagged = [record for record in judged if tag in record.tags]",
        new="        tagged = judged",
        test=_SUMMARY + "test_pitfall_38_parts_and_facts_are_told_for_each_kind_of_example",
    ),
    Mutant(  # a reply of any size is kept
        pitfall="38",
        file="evaluation/players.py",
        old="[:MAX_REPLY_CHARS]",
        new="",
        test=_EVALUATE + "test_pitfall_38_episodes_with_tools_are_recorded_turn_by_turn_and_others_once",
    ),
    Mutant(  # a part that is silently 0 is no news
        pitfall="29",
        file="tracking/health.py",
        old="if all(metrics.get(name) == 0 for metrics in recent)]",
        new="if all(metrics.get(name, 0) < 0 for metrics in recent)]",
        test=_HEALTH + "test_pitfall_29_a_part_that_is_silently_zero_while_the_others_move_is_named",
    ),
    Mutant(  # a penalty that nobody has to pay is an alarm
        pitfall="29",
        file="tracking/health.py",
        old='if name.rpartition("/")[2] not in penalties]',
        new="if name not in penalties]",
        test=_HEALTH + "test_pitfall_29_a_part_that_is_silently_zero_while_the_others_move_is_named",
    ),
    Mutant(  # three steps are too few to say anything
        pitfall="13",
        file="tracking/health.py",
        old="updates[-window:] if len(updates) >= window else []",
        new="updates[-WINDOW:] if len(updates) >= WINDOW else []",
        test=_HEALTH + "test_pitfall_13_a_short_run_is_judged_by_all_of_its_steps",
    ),
    Mutant(  # the mask is printed inverted
        pitfall="5",
        file="tracking/episodes.py",
        old="if tokens[start][1] else",
        new="if not tokens[start][1] else",
        test=_EPISODES + "test_pitfall_05_the_brackets_follow_the_mask_that_was_trained_with",
    ),
    Mutant(  # the mask is guessed from the turns
        pitfall="5",
        file="tracking/episodes.py",
        old="yield turn, _cut(row, place, start), _cut(row, start, end)",
        new="yield turn, [(i, 0) for i, _ in _cut(row, place, start)], [(i, 1) for i, _ in _cut(row, start, end)]",
        test=_EPISODES + "test_pitfall_05_the_brackets_follow_the_mask_that_was_trained_with",
    ),
    Mutant(  # turns of a second row are looked for in the first
        pitfall="7",
        file="tracking/episodes.py",
        old="            row, place = next(rows), 0\n",
        new="            place = 0\n",
        test=_EPISODES + "test_pitfall_07_turns_of_a_second_row_are_shown_with_its_mask",
    ),
    Mutant(  # escape sequences of the model steer the terminal
        pitfall="28",
        file="tracking/episodes.py",
        old='char if char.isprintable() or char == "\\n" else ascii(char)[1:-1] for char in text',
        new="char for char in text",
        test=_EPISODES
        + "test_pitfall_28_what_the_model_wrote_neither_steers_the_terminal_nor_looks_like_a_line_of_ours",
    ),
    Mutant(  # a resumed debug run is made smaller again
        pitfall="37",
        file="config/compose.py",
        old='own.get("debug") is not True',
        new='own.get("debug") is not None',
        test=_DEBUGGING + "test_pitfall_37_the_file_of_a_debug_run_composes_to_the_same_run",
    ),
    Mutant(  # what the user said is changed
        pitfall="37",
        file="config/debugging.py",
        old="    if key not in given and isinstance(value, int) and value > limit:",
        new="    if isinstance(value, int) and value > limit:",
        test=_DEBUGGING + "test_pitfall_37_a_value_of_the_users_own_wins",
    ),
]
