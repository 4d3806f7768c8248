"""Bugs of metrics files, rollout files and checkpoints."""

from tests.mutants.mutant import Mutant

_JSONL = "tests/unit/tracking/test_jsonl.py::"
_ROLLOUTS = "tests/unit/tracking/test_rollouts.py::"
_CHECKPOINT = "tests/unit/training/test_checkpoint.py::"
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
]
