"""Bugs of what trackers are told."""

from tests.mutants.mutant import Mutant

_REMOTE = "tests/unit/tracking/trackers/test_remote.py::"
_FANOUT = "tests/unit/tracking/trackers/test_fanout.py::"
_TENSORBOARD = "tests/unit/tracking/trackers/test_tensorboard.py::"
_SYSTEM = "tests/system/test_trackers.py::"

MUTANTS = [
    Mutant(  # steps that a resumed run makes again are sent again
        pitfall="37",
        file="tracking/trackers/remote.py",
        old="new = [row for row in rows if row[0] > self._last_step]",
        new="new = rows",
        test=_REMOTE + "test_pitfall_37_a_resumed_run_sends_what_is_missing_and_nothing_twice",
    ),
    Mutant(  # what a dead tracker missed stays missing
        pitfall="37",
        file="tracking/trackers/remote.py",
        old='if line["step"] < first_step]',
        new="if False]",
        test=_REMOTE + "test_pitfall_37_a_resumed_run_sends_what_is_missing_and_nothing_twice",
    ),
    Mutant(  # a slow tracker is waited for at the end
        pitfall="37",
        file="tracking/trackers/remote.py",
        old="max(since, self._loaded_at) + limit - time.monotonic()",
        new="max(since, self._loaded_at) + 60 - time.monotonic()",
        test=_REMOTE + "test_pitfall_37_what_a_slow_tracker_has_not_taken_at_the_end_is_not_waited_for",
    ),
    Mutant(  # a failed tracker is warned of again and again
        pitfall="37",
        file="tracking/trackers/remote.py",
        old="            self._dead = True\n            self._waiting.clear()\n",
        new="            self._waiting.clear()\n",
        test=_REMOTE + "test_pitfall_37_a_tracker_that_fails_is_given_up_with_one_note_and_never_waited_for",
    ),
    Mutant(  # numbers for a tracker that hangs pile up in memory
        pitfall="37",
        file="tracking/trackers/remote.py",
        old="        if too_much:\n",
        new="        if False:\n",
        test=_REMOTE + "test_pitfall_37_a_tracker_that_is_too_slow_does_not_fill_the_memory",
    ),
    Mutant(  # Ctrl-C in a terminal kills the tracker's process before the run can tell it anything
        pitfall="37",
        file="tracking/trackers/pipe.py",
        old="                start_new_session=True,\n",
        new="",
        test=_REMOTE + "test_pitfall_37_the_death_of_the_run_marks_it_as_failed",
    ),
    Mutant(  # a tracker that was busy when the run died leaves its run as if it went on
        pitfall="37",
        file="tracking/trackers/worker.py",
        old="    with suppress(OSError):  # the run has died",
        new="    with suppress(KeyError):  # the run has died",
        test=_REMOTE + "test_pitfall_37_the_death_of_the_run_marks_it_as_failed",
    ),
    Mutant(  # a process that hangs outlives the run for ever
        pitfall="37",
        file="tracking/trackers/worker.py",
        old="    os.killpg(os.getpid(), signal.SIGKILL)",
        new="    os.getpid()",
        test=_REMOTE + "test_pitfall_37_a_tracker_that_hangs_does_not_outlive_a_run_that_died",
    ),
    Mutant(  # killed runs look like failed ones, if the thread is quick
        pitfall="37",
        file="tracking/trackers/remote.py",
        old="            self._process.terminate()  # first",
        new="            threading.Timer(0.5, self._process.terminate).start()  # first",
        test=_REMOTE + "test_pitfall_37_a_run_that_is_being_killed_is_not_marked_before_it_is_said",
    ),
    Mutant(  # killed runs look like failed ones
        pitfall="37",
        file="tracking/trackers/worker.py",
        old='        ending.status = "killed"\n',
        new="        pass\n",
        test=_REMOTE + "test_pitfall_37_a_run_that_is_being_killed_does_not_wait_and_is_marked",
    ),
    Mutant(  # a run that ended by an error looks finished
        pitfall="37",
        file="tracking/trackers/fanout.py",
        old='self.end("killed" if error is None else "failed")',
        new='self.end("finished")',
        test=_FANOUT + "test_pitfall_37_how_a_run_ended_is_told",
    ),
    Mutant(  # trackers get other numbers than the file
        pitfall="38",
        file="tracking/trackers/fanout.py",
        old="values = finite(json.loads(metrics_line(step, metrics)))",
        new="values = {name: round(value, 6) for name, value in metrics.items() if value == value}",
        test=_FANOUT + "test_pitfall_38_trackers_get_the_numbers_of_the_file",
    ),
    Mutant(  # event files of both parts of a resumed run are shown on top of each other
        pitfall="37",
        file="tracking/trackers/tensorboard.py",
        old="        if known:\n",
        new="        if False:\n",
        test=_TENSORBOARD + "test_pitfall_37_steps_that_are_made_again_replace_those_of_the_first_time",
        needs="tensorboard",
    ),
    Mutant(  # every resume begins a run of its own
        pitfall="37",
        file="tracking/trackers/remote.py",
        old="known=self._known())",
        new="known=None)",
        test=_REMOTE + "test_pitfall_37_a_resumed_run_sends_what_is_missing_and_nothing_twice",
    ),
    Mutant(  # W&B counts from one
        pitfall="38",
        file="tracking/trackers/wandb.py",
        old="self._run.log(values, step=step)",
        new="self._run.log(values, step=step + 1)",
        test=_SYSTEM + "test_pitfall_38_every_number_of_the_file_is_in_every_tracker",
        needs="wandb",
    ),
]
