"""Bugs of what is drawn: how an answer was reached, and the pages about evaluations."""

from tests.mutants.mutant import Mutant

REWARDS = "tests/unit/rewards/test_trace.py::"
PAGES = "tests/unit/report/test_evaluations.py::"
BROWSER = "tests/system/test_report_evaluations.py::"
LINES = REWARDS + "test_pitfall_28_a_derivation_is_its_lines_each_judged_by_the_line_before"
CHAIN = "tests/unit/tasks/test_multihop.py::test_pitfall_28_an_episode_is_traced_in_the_order_in_which_it_happened"
WALK = "tests/unit/tasks/test_two_hop.py::test_pitfall_07_an_episode_is_traced_from_its_searches_to_its_answer"

MUTANTS = [
    Mutant(  # the expression gets the verdict on the first line, and so on
        pitfall="28",
        file="rewards/rpn.py",
        old="judged = (None, *right) if ended",
        new="judged = (*right, None) if ended",
        test=LINES,
    ),
    Mutant(  # half a line is called wrong
        pitfall="28",
        file="rewards/rpn.py",
        old="else (None, *right[:-1], None)",
        new="else (None, *right)",
        test=LINES,
    ),
    Mutant(  # turns are counted from the turn after
        pitfall="28",
        file="envs/tool_env.py",
        old="self._trace.turn = self._num_turns",
        new="self._trace.turn = self._num_turns + 1",
        test=CHAIN,
    ),
    Mutant(  # every document that was found is drawn as a supporting one
        pitfall="28",
        file="tasks/multihop.py",
        old="document.title, document.id in self.support, document.id)",
        new="document.title, True, document.id)",
        test=CHAIN,
    ),
    Mutant(  # every citation of a document that exists is drawn as a right one
        pitfall="28",
        file="rewards/multihop.py",
        old="state.title(name), name in state.support)",
        new="state.title(name), bool(state.title(name)))",
        test=CHAIN,
    ),
    Mutant(  # episodes of a group note into one trace
        pitfall="7",
        file="tasks/two_hop.py",
        old="trace: Trace = field(default_factory=Trace)",
        new="trace: Trace = field(default_factory=lambda shared=Trace(): shared)",
        test=WALK,
    ),
    Mutant(  # an answer that the metric does not take is drawn as given
        pitfall="38",
        file="rewards/trace.py",
        old="answer = answer_of(attempt, self._format)",
        new="answer = self._format.extract(attempt.text)",
        test=REWARDS + "test_pitfall_38_of_a_text_the_answer_is_noted_where_the_reward_reads_it_and_the_score_stays",
    ),
    Mutant(  # an episode that searches without end has a trace without end
        pitfall="27",
        file="rewards/trace.py",
        old="if len(self.steps) < MAX_STEPS:",
        new="if True:",
        test=REWARDS + "test_pitfall_27_a_trace_tells_the_turn_and_is_bounded",
    ),
    Mutant(  # of a large evaluation the page keeps what nobody looks for
        pitfall="38",
        file="report/evaluations.py",
        old="(not rows[number].disagrees,",
        new="(rows[number].disagrees,",
        test=PAGES + "test_pitfall_38_above_the_limit_disagreeing_examples_stay_and_the_rest_is_counted",
    ),
    Mutant(  # what could not be judged is counted as wrong
        pitfall="27",
        file="report/evaluations.py",
        old="None if one.failure is not None else int(one.correct)",
        new="int(one.correct)",
        test=PAGES + "test_pitfall_27_what_could_not_be_judged_is_neither_right_nor_wrong",
    ),
    Mutant(  # evaluations with different settings are mixed
        pitfall="38",
        file="report/evaluations.py",
        old='record.model, record.retriever or "", record.settings',
        new='record.model, record.retriever or "", ""',
        test=PAGES + "test_pitfall_38_tasks_splits_retrievers_and_settings_are_kept_apart",
    ),
    Mutant(  # the expression itself is marked as the first wrong line
        pitfall="28",
        file="report/assets/trace.js",
        old="lines.findIndex((step) => step.ok === false)",
        new="lines.findIndex((step) => step.ok !== true)",
        test=BROWSER + "test_pitfall_28_an_example_opens_side_by_side_with_the_first_wrong_step_marked",
        needs="playwright",
    ),
    Mutant(  # two wrong answers count as a disagreement
        pitfall="38",
        file="report/assets/examples.js",
        old="both(a, b) && a[RIGHT] !== b[RIGHT]]",
        new="both(a, b) && a[ANSWER] !== b[ANSWER]]",
        test=BROWSER + "test_pitfall_38_the_filter_for_disagreement_leaves_what_one_alone_gets_right",
        needs="playwright",
    ),
]
