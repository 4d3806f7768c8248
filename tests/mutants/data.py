"""Bugs of the tasks that are made of rows: what is held out, in which order, and where a resumed run goes on."""

from tests.mutants.mutant import Mutant

SOURCES, PROBLEMS, SPLITS, DATASET = "tasks/sources.py", "tasks/problems.py", "tasks/splits.py", "tasks/dataset.py"
FINQA, MIX, GYM = "tasks/finqa.py", "tasks/mix.py", "tasks/reasoning_gym.py"
TESTS = "tests/unit/tasks/"

ANY_ORDER = TESTS + "test_sources.py::test_pitfall_37_example_i_does_not_depend_on_what_was_asked_before"
GENERATOR = TESTS + "test_generator.py::test_pitfall_37_an_endless_generator_is_replayed_to_where_it_was"
CURSORS = TESTS + "test_mix.py::test_pitfall_37_every_cursor_of_a_mix_resumes_exactly"
PLACES = TESTS + "test_mix.py::test_pitfall_37_no_example_of_a_part_is_skipped_or_repeated_within_its_epoch"
GYM_INDEX = TESTS + "test_reasoning_gym.py::test_pitfall_37_a_problem_is_a_function_of_seed_and_index"
OVERLAP = TESTS + "test_gsm8k.py::test_pitfall_38_training_examples_that_are_also_held_out_are_left_out_and_counted"
PAGES = TESTS + "test_finqa.py::test_pitfall_38_the_same_question_on_the_same_table_is_overlap_and_on_another_is_not"
SAMPLE = TESTS + "test_sources.py::test_pitfall_38_held_out_order_is_no_file_order_and_depends_on_no_seed_or_neighbor"
BY_HASH = TESTS + "test_sources.py::test_pitfall_38_what_is_held_out_by_hash_is_never_trained_on"
PINNED = TESTS + "test_sources.py::test_pitfall_38_the_same_questions_are_held_out_in_every_process"
SHARE = TESTS + "test_columns.py::test_pitfall_38_the_share_that_is_held_out_is_chosen_by_hash_and_not_by_seed_or_order"
SHOTS = TESTS + "test_dataset.py::test_pitfall_38_examples_shown_before_held_out_questions_do_not_depend_on_the_seed"
SHOWN = TESTS + "test_dataset.py::test_pitfall_38_what_another_task_holds_out_is_not_shown_either"
DEMONSTRATIONS = TESTS + "test_dataset.py::test_pitfall_36_demonstrations_come_in_an_order_of_their_own"
ORDERS = TESTS + "test_mix.py::test_pitfall_36_two_parts_with_the_same_data_see_it_in_different_orders"
PARTS = TESTS + "test_mix.py::test_pitfall_38_what_one_part_holds_out_no_other_is_trained_on"
GYM_SPLIT = TESTS + (
    "test_reasoning_gym.py::test_pitfall_38_held_out_problems_are_never_drawn_in_training_even_where_there_are_few"
)

MUTANTS = [
    Mutant(  # the order of an epoch comes from a generator that a resumed run does not have
        pitfall="37",
        file=SOURCES,
        old='random.Random(derive_seed(self._seed, "data", stream, epoch)).shuffle(order)',
        new="random.Random().shuffle(order)",
        test=ANY_ORDER,
    ),
    Mutant(  # the order of another epoch is still remembered
        pitfall="37",
        file=SOURCES,
        old="if self._last[0] != which:",
        new="if self._last[0][0] != stream:",
        test=ANY_ORDER,
    ),
    Mutant(  # an earlier example is looked for where the iterator stands
        pitfall="37", file=SOURCES, old="if place < self._first:", new="if place < 0:", test=ANY_ORDER
    ),
    Mutant(  # draws are numbered by how often was drawn
        pitfall="37",
        file=SOURCES,
        old="problem = self._draw(derive_seed(self._seed, self._name, stream, attempt), index)",
        new="self._num_draws += 1\n            "
        "problem = self._draw(derive_seed(self._seed, self._name, stream, attempt), self._num_draws)",
        test=GYM_INDEX,
    ),
    Mutant(  # a resumed run begins where the iterator begins
        pitfall="37",
        file=SOURCES,
        old="return self._recent[place - self._first]",
        new="return self._recent[min(place - self._first, len(self._recent) - 1) % 30]",
        test=GENERATOR,
    ),
    Mutant(  # the turn of each part is drawn from a generator that a resumed run does not have
        pitfall="37",
        file=MIX,
        old='random.Random(derive_seed(self._seed, "mix", block)).shuffle(order)',
        new="random.Random().shuffle(order)",
        test=CURSORS,
    ),
    Mutant(  # each part is asked for the mix's own index
        pitfall="37",
        file=MIX,
        old="block * self._counts[order[step]] + order[:step].count(order[step])",
        new="index",
        test=PLACES,
    ),
    Mutant(  # blocks are counted in the mix's length
        pitfall="37",
        file=MIX,
        old="block * self._counts[order[step]] + ",
        new="block * size + ",
        test=PLACES,
    ),
    Mutant(  # nobody looks for overlap
        pitfall="38",
        file=SPLITS,
        old="kept = [problem for problem in train.problems if problem.key not in keys]",
        new="kept = list(train.problems)",
        test=OVERLAP,
    ),
    Mutant(  # overlap is compared letter by letter
        pitfall="38", file=PROBLEMS, old='" ".join(text.casefold().split())', new="text", test=OVERLAP
    ),
    Mutant(  # of a page only the question is compared
        pitfall="38",
        file=FINQA,
        old="key=fingerprint(question, *(cell for cells in table for cell in cells)),",
        new="key=fingerprint(question),",
        test=PAGES,
    ),
    Mutant(  # a shorter page of the same question passes as another
        pitfall="38",
        file=FINQA,
        old="key=fingerprint(question, *(cell for cells in table for cell in cells)),",
        new='key=fingerprint(question, str(row.fields["pre_text"])),',
        test=PAGES,
    ),
    Mutant(  # the first held-out examples are the first of the file
        pitfall="38",
        file=SOURCES,
        old='sorted(held_out, key=lambda problem: hash_rank(problem.id.encode("utf-8", "replace")))',
        new="list(held_out)",
        test=SAMPLE,
    ),
    Mutant(  # the split is that of Python's salted hash: another one in every process
        pitfall="38",
        file=PROBLEMS,
        old="return hash_rank(key) < share * 2**64",
        new="return hash(key) % 2**32 < share * 2**32",
        test=PINNED,
    ),
    Mutant(  # the split follows the order of the rows
        pitfall="38",
        file=SPLITS,
        old="held_out_keys = {key for key in keys if is_held_out(key, share)}",
        new="held_out_keys = {problem.key for problem in part.problems[: int(share * len(keys))]}",
        test=SHARE,
    ),
    Mutant(  # a generator's held-out examples are trained on
        pitfall="38",
        file=SOURCES,
        old="lambda p: not is_held_out(p.key, self._share) and self._keep(p)",
        new="lambda p: self._keep(p)",
        test=BY_HASH,
    ),
    Mutant(  # another seed is held to be another problem
        pitfall="38",
        file=SOURCES,
        old="if not is_held_out(problem.key, self._share) and self._keep(problem):",
        new="if self._keep(problem):",
        test=GYM_SPLIT,
    ),
    Mutant(  # held-out problems differ between runs
        pitfall="38",
        file=SOURCES,
        old='derive_seed(EVAL_SEED, self._name, "held out")',
        new='derive_seed(self._seed, self._name, "held out")',
        test=GYM_SPLIT,
    ),
    Mutant(  # prompts of the evaluation change with the run's seed
        pitfall="38",
        file=DATASET,
        old='derive_seed(EVAL_SEED, self.name, "shots")',
        new='derive_seed(self._seed, self.name, "shots")',
        test=SHOTS,
    ),
    Mutant(  # what another task holds out is not trained on, but shown
        pitfall="38",
        file=DATASET,
        old="        self._fill_shot_pool()\n\n    def _train_example",
        new="\n    def _train_example",
        test=SHOWN,
    ),
    Mutant(  # RL begins with the questions of the warm start, in its order
        pitfall="36",
        file=DATASET,
        old='self.source.train(index, "demonstration")',
        new="self.source.train(index)",
        test=DEMONSTRATIONS,
    ),
    Mutant(  # the parts of a mix share a stream
        pitfall="36", file="tasks/catalog.py", old='derive_seed(seed, "mix", key)', new="seed", test=ORDERS
    ),
    Mutant(  # a copy of one task's test set is another task's training set
        pitfall="38",
        file=MIX,
        old="            if other is not part:\n",
        new="            if other is part:\n",
        test=PARTS,
    ),
]
