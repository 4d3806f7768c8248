"""Bugs of multi-hop questions: answers lost or given away, documents counted wrongly, data that leaks or is skewed."""

from tests.mutants.mutant import Mutant

COMPLETION, REWARDS, EXTRACT = "rewards/completion.py", "rewards/multihop.py", "rewards/extract.py"
TASK, SETS, ROWS = "tasks/multihop.py", "tasks/multihop_sets.py", "tasks/musique_rows.py"
HOTPOTQA, LOAD, SOURCES = "tasks/hotpotqa.py", "tasks/multihop_task.py", "tasks/sources.py"

EPISODES = "tests/unit/tasks/test_multihop.py::"
ANYWHERE = EPISODES + "test_pitfall_28_the_answer_counts_in_whichever_turn_complete_was_called"
TWELVE = EPISODES + "test_pitfall_28_the_id_12_never_means_the_documents_1_and_2"
OWN = EPISODES + "test_pitfall_07_episodes_of_one_example_share_nothing"
DOWN = EPISODES + "test_pitfall_26_a_service_that_stays_down_ends_the_run_and_is_no_reward_of_0"
BOUND = EPISODES + "test_pitfall_28_top_n_is_the_configured_one_unless_asked_and_never_above_the_limit"
TYPES = EPISODES + "test_pitfall_28_arguments_of_another_type_are_read_and_counted_as_a_fault_of_form"
CUT = EPISODES + "test_pitfall_14_a_call_in_a_turn_that_was_cut_off_is_no_answer"
COUNTED = EPISODES + "test_pitfall_28_what_is_found_counts_once_and_in_the_order_of_finding"
ABSENT = EPISODES + "test_pitfall_28_ids_that_do_not_exist_cost_precision"
EMPTY = "tests/unit/rewards/test_multihop.py::" + (
    "test_pitfall_28_an_answer_of_which_nothing_is_left_is_worth_nothing_in_a_reward"
)
OFFICIAL = "tests/unit/rewards/test_multihop.py::test_pitfall_28_the_metric_and_the_parts_agree_with_the_official_rows"
ALL = "tests/unit/rewards/test_multihop.py::test_pitfall_28_finding_or_citing_everything_earns_less_than_being_honest"
NUMBERS = "tests/unit/rewards/test_multihop.py::test_pitfall_28_number_words_are_whole_words"
FORMULAS = "tests/unit/rewards/test_multihop.py::test_pitfall_28_the_formulas_are_those_of_the_projects"
LOADING = "tests/unit/tasks/test_multihop_sets.py::"
GOLDS = LOADING + "test_pitfall_28_a_musique_row_has_its_documents_golds_and_hops"
DRAWN = LOADING + "test_pitfall_37_each_question_draws_noise_of_its_own"
NOISE = LOADING + "test_pitfall_37_noise_is_seeded_for_each_example_and_leaves_evaluation_alone"
ORDER = LOADING + "test_pitfall_38_the_first_held_out_questions_are_no_longer_those_of_few_hops"
CURRICULUM = LOADING + "test_pitfall_37_a_curriculum_is_a_function_of_seed_and_index"
OVERLAP = LOADING + "test_pitfall_38_questions_that_are_also_held_out_are_not_trained_on"
INCOMPLETE = LOADING + "test_pitfall_28_a_context_is_incomplete_where_the_row_says_so_or_a_title_is_missing"
TITLES = LOADING + "test_pitfall_28_in_a_corpus_musique_wants_title_and_text_and_the_others_the_title"

MUTANTS = [
    Mutant(  # only the last call is looked at, and an error is no answer
        pitfall="28", file=COMPLETION, old="for call in calls:", new="for call in calls[:1]:", test=ANYWHERE
    ),
    Mutant(  # a text is a list of its characters
        pitfall="28", file=COMPLETION, old='return stripped.split(",")', new="return list(stripped)", test=TWELVE
    ),
    Mutant(  # a number is no answer, in silence
        pitfall="28",
        file=COMPLETION,
        old="if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):",
        new="if True:",
        test=TYPES,
    ),
    Mutant(  # whatever is given has the right form
        pitfall="28",
        file=COMPLETION,
        old="return isinstance(value, str) and bool(value.strip())",
        new="return value is not None",
        test=TYPES,
    ),
    Mutant(  # half a message is an answer
        pitfall="14",
        file=COMPLETION,
        old="return find_completion(attempt.calls) if attempt.stop_reason is StopReason.STOP else None",
        new="return find_completion(attempt.calls)",
        test=CUT,
    ),
    Mutant(  # `the` is the answer to a question whose gold is `The`
        pitfall="28", file=REWARDS, old="if not normalize_answer(answer):", new="if not answer:", test=EMPTY
    ),
    Mutant(  # yes it is, by MuSiQue's rules
        pitfall="28", file=REWARDS, old='if rules == "musique":', new="if True:", test=OFFICIAL
    ),
    Mutant(  # 30 seconds are 30 2nds
        pitfall="28",
        file=REWARDS,
        old="""rf"\\b(?:{'|'.join(_WORDS)})\\b\"""",
        new="""rf"(?:{'|'.join(_WORDS)})\"""",
        test=NUMBERS,
    ),
    Mutant(  # what supports nothing costs nothing
        pitfall="28", file=REWARDS, old="len(hits) / len(different)", new="1.0", test=ALL
    ),
    Mutant(  # ids that do not exist are left out before they are counted
        pitfall="28",
        file=REWARDS,
        old="different = dict.fromkeys(ids)",
        new="different = [name for name in dict.fromkeys(ids) if name.isdigit() and int(name) < 20]",
        test=ABSENT,
    ),
    Mutant(  # the weight of hops is missing from one of the two scores
        pitfall="28",
        file=REWARDS,
        old="value = (em * weight + f1 * weight) / 2 + 0.5 * found.recall",
        new="value = (em + f1 * weight) / 2 + 0.5 * found.precision",
        test=FORMULAS,
    ),
    Mutant(  # all episodes of an example write into one set of notes
        pitfall="7",
        file=TASK,
        old="notes = self.notes(example)",
        new='notes = self.__dict__.setdefault(f"notes {example.id}", self.notes(example))',
        test=OWN,
    ),
    Mutant(  # a service that is down finds nothing
        pitfall="26",
        file=TASK,
        old="        found = await state.search(query, min(max(top_n, 1), most))",
        new="        try:\n            found = await state.search(query, min(max(top_n, 1), most))\n"
        "        except UserError:\n            found = []",
        test=DOWN,
    ),
    Mutant(  # as many documents as the model likes
        pitfall="28", file=TASK, old="min(max(top_n, 1), most)", new="max(top_n, 1)", test=BOUND
    ),
    Mutant(  # listing is finding
        pitfall="28",
        file=TASK,
        old="    if state.library is None:\n        return listed",
        new="    if state.library is None:\n        state.retrieved.update(dict.fromkeys(state.documents))\n"
        "        return listed",
        test=COUNTED,
    ),
    Mutant(  # noise comes from a generator that nobody seeds
        pitfall="37", file=SETS, old="rng = random.Random(seed)", new="rng = random.Random()", test=NOISE
    ),
    Mutant(  # the noise of training is that of the evaluation, too
        pitfall="37",
        file=LOAD,
        old="_problems(held_out, settings.eval_noise_rate, EVAL_SEED)",
        new="_problems(held_out, settings.noise_rate, EVAL_SEED)",
        test=NOISE,
    ),
    Mutant(  # the first answer is the only one
        pitfall="28", file=TASK, old='"aliases": tuple(others),', new='"aliases": (),', test=GOLDS
    ),
    Mutant(  # all questions lose the paragraphs of the same places
        pitfall="37",
        file=LOAD,
        old='derive_seed(seed, "noise", each.id)',
        new='derive_seed(seed, "noise")',
        test=DRAWN,
    ),
    Mutant(  # the curriculum of training orders the evaluation, too
        pitfall="38",
        file="tasks/splits.py",
        old="stratum=stratum)",
        new="stratum=stratum or difficulty)",
        test=ORDER,
    ),
    Mutant(  # a question under another id is another question
        pitfall="38", file=TASK, old="key=fingerprint(noisy.text),", new="key=fingerprint(noisy.id),", test=OVERLAP
    ),
    Mutant(  # evaluation begins with the questions of few hops
        pitfall="38",
        file=SOURCES,
        old="ranked.append((places[stratum], stratum, problem))",
        new="ranked.append((0, stratum, problem))",
        test=ORDER,
    ),
    Mutant(  # the curriculum shuffles by chance
        pitfall="37",
        file=SOURCES,
        old="order.sort(key=self._rank)",
        new="random.shuffle(order)\n                order.sort(key=self._rank)",
        test=CURRICULUM,
    ),
    Mutant(  # a context that lacks a paragraph is asked about all the same
        pitfall="28",
        file=HOTPOTQA,
        old='if row.fields.get("context_complete") is False or len(set(support.values())) < len(titles):',
        new='if row.fields.get("context_complete") is False:',
        test=INCOMPLETE,
    ),
    Mutant(  # any passage with the title will do for MuSiQue
        pitfall="28",
        file="tasks/multihop_corpus.py",
        old='return clean(title) if match == "title" else (clean(title), clean(text))',
        new="return clean(title)",
        test=TITLES,
    ),
    Mutant(  # the oracle keeps two of four documents to itself
        pitfall="28",
        file="tasks/multihop.py",
        old='settings.max_top_n if settings.retriever == "golden" else settings.top_n',
        new="settings.top_n",
        test="tests/unit/tasks/test_multihop.py::"
        "test_pitfall_28_the_oracle_gives_all_that_supports_unless_fewer_are_asked_for",
    ),
]
