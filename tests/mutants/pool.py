"""Bugs of the killable processes and of the verifiers that run in them."""

from tests.mutants.mutant import Mutant

MANAGER, WORKER = "rewards/pool_manager.py", "rewards/pool_worker.py"
MATH, MATH_WORKER, CUSTOM, GYM = (
    "rewards/math.py",
    "rewards/math_worker.py",
    "rewards/custom.py",
    "rewards/reasoning_gym.py",
)
POOL_TEST = "tests/unit/rewards/test_pool.py::"
MATH_TEST = "tests/unit/rewards/test_math.py::"
JUDGES = "tests/unit/tasks/test_judges.py::"
CUSTOM_TEST = "tests/unit/rewards/test_custom.py::"

KILLED = POOL_TEST + "test_pitfall_27_what_hangs_is_killed_at_its_deadline_and_the_rest_of_the_batch_finishes"
TOGETHER = POOL_TEST + "test_pitfall_27_hanging_calls_wait_for_their_deadlines_at_the_same_time"
STUBBORN = POOL_TEST + "test_pitfall_27_a_worker_that_ignores_sigterm_makes_room_for_the_next_one"
DAEMON = POOL_TEST + "test_pitfall_27_a_daemon_that_left_its_group_dies_too"
ENDLESS = MATH_TEST + "test_pitfall_27_an_expression_that_never_ends_is_an_error_and_spares_the_others"
STATUS = POOL_TEST + "test_pitfall_26_a_failure_has_its_own_status_and_costs_only_itself"
MEMORY = POOL_TEST + "test_pitfall_26_a_call_does_not_pay_for_the_memory_of_calls_before_it"
FAILS = CUSTOM_TEST + "test_pitfall_26_a_function_that_fails_is_an_error_and_no_wrong_answer"
BAD_GOLD = "tests/unit/rewards/test_reasoning_gym.py::test_pitfall_26_a_verifier_that_fails_on_its_own_gold_is_an_error"
FINITE = CUSTOM_TEST + "test_pitfall_29_a_value_that_is_not_one_finite_number_ends_the_run_naming_the_reward"
ORDER = CUSTOM_TEST + "test_pitfall_29_every_completion_gets_its_own_value_in_order"
EQUAL = MATH_TEST + "test_pitfall_28_equivalent_expressions_are_equal_and_others_are_not"
UNREADABLE = MATH_TEST + "test_pitfall_28_what_cannot_be_read_is_invalid_and_matches_nothing"
QUICK = MATH_TEST + "test_pitfall_28_the_quick_look_at_values_never_contradicts_math_verify"
GOLD = (
    MATH_TEST
    + "test_pitfall_28_a_gold_that_cannot_be_read_is_an_error_naming_the_example_even_if_the_answer_is_the_same"
)

MUTANTS = [
    Mutant(  # a comparison that hangs is a wrong answer for the metric
        pitfall="26",
        file="tasks/judges.py",
        old=', failure=grade.message or "no message")',
        new=")",
        test=JUDGES + "test_pitfall_26_a_comparison_that_does_not_end_is_a_failure_and_no_wrong_answer",
    ),
    Mutant(  # a gold that cannot be read is a wrong answer for the metric
        pitfall="26",
        file="tasks/judges.py",
        old="if grade.bad_data:",
        new="if False:",
        test=JUDGES + "test_pitfall_26_a_gold_that_cannot_be_read_ends_the_evaluation",
    ),
    Mutant(  # what the metric failed on counts as wrong
        pitfall="26",
        file="evaluation/summary.py",
        old="judged = [record for record in greedy if record.failure is None]",
        new="judged = greedy",
        test="tests/unit/evaluation/test_summary.py::"
        "test_pitfall_26_what_the_metric_failed_on_is_neither_right_nor_wrong",
    ),
    Mutant(  # an accuracy is told however few were judged
        pitfall="26",
        file="evaluation/evaluate.py",
        old="    check_failures(task_name, records)\n",
        new="",
        test="tests/unit/evaluation/test_evaluate.py::test_pitfall_26_a_metric_that_fails_too_often_ends_the_evaluation",
    ),
    Mutant(  # what hangs is left alone
        pitfall="27", file=MANAGER, old="                self._enforce_deadlines()\n", new="", test=KILLED
    ),
    Mutant(  # the worker is asked, not killed: a handler may refuse, C code does not hear it
        pitfall="27",
        file=WORKER,
        old="""            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)""",
        new="""            os.killpg(pid, signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)""",
        test=STUBBORN,
    ),
    Mutant(  # calls that waited behind a hanging one are lost with it
        pitfall="27",
        file=MANAGER,
        old="        self._pending.extendleft(reversed(worker.calls))\n",
        new="",
        test=KILLED,
    ),
    Mutant(  # one hanging call stalls everything
        pitfall="27",
        file=MANAGER,
        old="len(self._workers) < self._num_workers",
        new="len(self._workers) < 1",
        test=TOGETHER,
    ),
    Mutant(  # only the worker itself is killed
        pitfall="27",
        file=WORKER,
        old="            orphans = self._orphans()\n",
        new="            orphans = set[int]()\n",
        test=DAEMON,
    ),
    Mutant(  # a failure is a wrong answer
        pitfall="26",
        file=CUSTOM,
        old='Grade(value=math.nan, status="error", message=result.message)',
        new="Grade(value=0.0)",
        test=FAILS,
    ),
    Mutant(  # a hanging comparison is a wrong answer
        pitfall="27",
        file=MATH,
        old='Grade(value=math.nan, status="error", message=result.message)',
        new="Grade(value=self.wrong_value)",
        test=ENDLESS,
    ),
    Mutant(  # out of memory is an answer
        pitfall="26",
        file=WORKER,
        old='reply = {"status": "memory"}',
        new='reply = {"status": "ok", "value": 0.0}',
        test=STATUS,
    ),
    Mutant(  # what earlier calls did to the process is held against this one
        pitfall="26",
        file=MANAGER,
        old="again = call is not None and worker.num_answered > 0 and not call.retried",
        new="again = False",
        test=MEMORY,
    ),
    Mutant(  # a broken verifier is taken for an unreadable answer
        pitfall="26", file=GYM, old='        score_answer(entry["answer"], entry)\n', new="", test=BAD_GOLD
    ),
    Mutant(  # NaN passes
        pitfall="29", file=CUSTOM, old="if math.isfinite(number):", new="if number is not None:", test=FINITE
    ),
    Mutant(  # what is not a number is counted as unreadable
        pitfall="29",
        file=CUSTOM,
        old='return {"refused": f"{type(value).__name__} {value!r:.80}"}',
        new='return {"value": None}',
        test=FINITE,
    ),
    Mutant(  # answers are given to the wrong questions
        pitfall="29",
        file=MANAGER,
        old="            call = worker.calls.popleft()\n            worker.num_answered += 1",
        new="            call = worker.calls.pop()\n            worker.num_answered += 1",
        test=ORDER,
    ),
    Mutant(  # a gold that nobody can read gives full marks
        pitfall="28", file=MATH_WORKER, old='        return "no gold"\n', new='        return "equal"\n', test=GOLD
    ),
    Mutant(  # a gold without a value matches an answer without one
        pitfall="28",
        file=MATH_WORKER,
        old=" if not expression.has(sympy.zoo, sympy.nan)]",
        new="]",
        test=UNREADABLE,
    ),
    Mutant(  # the quick look takes any difference for one
        pitfall="28", file=MATH_WORKER, old="> 1e-4 * (1 +", new="> -1 * (1 +", test=QUICK
    ),
    Mutant(  # `sye` is `yes`
        pitfall="28", file=MATH_WORKER, old="if _WORDS.fullmatch(body):", new="if body == r'\\text':", test=EQUAL
    ),
    Mutant(  # of two claims the right one counts
        pitfall="28",
        file=MATH_WORKER,
        old="    if _is_read_in_part(body):\n        return None\n",
        new="",
        test=UNREADABLE,
    ),
    Mutant(
        pitfall="28",
        file=MATH_WORKER,
        old='rights and left.strip() and not re.search("',
        new='False and re.search("',
        test=UNREADABLE,
    ),
    Mutant(  # one of two boxes may be right
        pitfall="28",
        file=MATH_WORKER,
        old=' or "\\\\boxed" in body or not _is_balanced(plain)',
        new="",
        test=UNREADABLE,
    ),
]
