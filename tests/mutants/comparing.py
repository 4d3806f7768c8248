"""Bugs of statistics, of what is compared with what, and of benchmarks that are interrupted."""

from tests.mutants.mutant import Mutant

INTERVALS = "tests/unit/evaluation/test_intervals.py"
PAIRED = "tests/unit/evaluation/test_paired.py"
COMPARE = "tests/unit/evaluation/test_compare.py"
ANALYSIS = "tests/unit/evaluation/test_analysis.py"
COLLECT = "tests/unit/evaluation/test_collect.py"
BENCHMARK = "tests/system/test_benchmark.py"

MUTANTS = [
    Mutant(  # the normal interval, too narrow
        pitfall="38",
        file="evaluation/intervals.py",
        old="proportion_ci(confidence, ",
        new="proportion_ci(confidence - 0.03, ",
        test=f"{INTERVALS}::test_pitfall_38_from_200_examples_on_wilson_covers_the_truth_95_times_in_100_to_within_1",
    ),
    Mutant(  # a bootstrap of more examples than there are
        pitfall="38",
        file="evaluation/intervals.py",
        old="rng.multinomial(len(values), counts / len(values), num_resamples) @ different / len(values)",
        new="rng.multinomial(2 * len(values), counts / len(values), num_resamples) @ different / len(values) / 2",
        test=f"{INTERVALS}::test_pitfall_38_the_bootstrap_over_examples_covers_the_truth_95_times_in_100_to_within_2",
    ),
    Mutant(  # a one-sided interval sold as a two-sided one
        pitfall="38",
        file="evaluation/intervals.py",
        old="np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])",
        new="np.quantile(means, [1 - confidence, confidence])",
        test=f"{PAIRED}::test_pitfall_38_the_paired_bootstrap_covers_the_true_difference_about_95_times_in_100",
    ),
    Mutant(  # the two models are drawn apart
        pitfall="38",
        file="evaluation/paired.py",
        old="resampled_means(difference, num_resamples, seed)",
        new="resampled_means(two, num_resamples, seed) - resampled_means(one, num_resamples, seed + 1)",
        test=f"{PAIRED}::test_pitfall_38_what_is_hard_for_both_models_makes_their_difference_no_less_certain",
    ),
    Mutant(  # no difference seen is no difference at all
        pitfall="38",
        file="evaluation/paired.py",
        old="unseen = wilson(0, len(difference), confidence).high",
        new="unseen = 0.0",
        test=f"{PAIRED}::test_pitfall_38_models_that_never_differ_may_still_differ_elsewhere",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/paired.py",
        old="binomtest(only_first, only_first + only_second, 0.5).pvalue",
        new='binomtest(only_first, only_first + only_second, 0.5, alternative="less").pvalue',
        test=f"{PAIRED}::test_pitfall_38_mcnemar_is_the_share_of_coin_throws_as_uneven_as_these",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/paired.py",
        old="largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))",
        new="largest = p_values[index]",
        test=f"{PAIRED}::test_pitfall_38_many_comparisons_need_smaller_p_values",
    ),
    Mutant(  # what could not be judged counts as wrong
        pitfall="38",
        file="evaluation/compare.py",
        old="one for one in records if one.sample_index == 0 and one.failure is None}",
        new="one for one in records if one.sample_index == 0}",
        test=f"{COMPARE}::test_pitfall_38_models_are_compared_on_the_examples_that_both_were_judged_on",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/compare.py",
        old="common = [example for example in shared if one[example].expected == two[example].expected]",
        new="common = list(shared)",
        test=f"{COMPARE}::test_pitfall_38_an_example_whose_gold_has_changed_is_another_example",
    ),
    Mutant(  # an unknown answer is a wrong one
        pitfall="38",
        file="evaluation/analysis.py",
        old='if record.split == "prompts" and not record.expected:',
        new="if False:",
        test=f"{ANALYSIS}::test_pitfall_38_a_prompt_without_a_known_answer_is_not_wrong",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/analysis.py",
        old="if one.model != two.model and _asked_otherwise(first[0], second[0]):",
        new="if False:",
        test=f"{ANALYSIS}::test_pitfall_38_models_that_were_asked_in_other_ways_are_compared_with_a_warning",
    ),
    Mutant(  # another retriever is taken for another model
        pitfall="38",
        file="evaluation/analysis.py",
        old="return one.model == baseline and two.model != baseline and one.retriever == two.retriever",
        new="return one.model == baseline and two.model != baseline",
        test=f"{ANALYSIS}::test_pitfall_38_a_baseline_is_compared_with_models_that_search_as_it_does",
    ),
    Mutant(  # the uncorrected value decides
        pitfall="38",
        file="evaluation/compare.py",
        old="return self.adjusted_p_value < ALPHA",
        new="return self.p_value < ALPHA",
        test=f"{COMPARE}::test_pitfall_38_no_winner_is_named_where_chance_would_explain_the_difference",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/analysis.py",
        old='where = (record.task, record.split, record.model, record.retriever or "", record.settings)',
        new='where = (record.task, record.model, record.retriever or "", record.settings)',
        test=f"{ANALYSIS}::test_pitfall_38_tasks_splits_retrievers_models_and_settings_are_kept_apart",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/analysis.py",
        old="known, key = groups.setdefault(where, {}), (record.example_id, record.sample_index)",
        new="known, key = groups.setdefault(where, {}), (record.example_id, len(groups[where]))",
        test=f"{ANALYSIS}::test_pitfall_38_a_measurement_that_is_there_twice_counts_once",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/analysis.py",
        old="adjusted = holm([one.p_value for one in comparisons])",
        new="adjusted = [one.p_value for one in comparisons]",
        test=f"{ANALYSIS}::test_pitfall_38_every_two_models_are_compared_and_their_p_values_corrected",
    ),
    Mutant(  # damage is passed over in silence
        pitfall="38",
        file="evaluation/collect.py",
        old="        notes += _told(file, found, problems)\n",
        new="",
        test=f"{COLLECT}::test_pitfall_38_damaged_lines_and_files_are_named_and_the_rest_is_used",
    ),
    Mutant(  # the clock is in the summary
        pitfall="37",
        file="build/benchmark.py",
        old='        "summary.json": json.dumps(found.lines(), indent=1) + "\\n",\n',
        new='        "summary.json": json.dumps(plain(analysis) if analysis else [], indent=1) + "\\n",\n',
        test=f"{BENCHMARK}::test_pitfall_37_killed_half_way_and_started_again_it_ends_with_the_same_table",
    ),
    Mutant(  # a damaged file ends its cell for good
        pitfall="38",
        file="build/benchmark.py",
        old="        path.replace(aside)\n",
        new="",
        test=f"{BENCHMARK}::test_pitfall_38_a_corrupt_record_file_is_named_and_only_it_is_measured_again",
    ),
    Mutant(
        pitfall="38",
        file="build/benchmark.py",
        old="    for model in plan.models:\n        check_model(model)\n",
        new="",
        test=f"{BENCHMARK}::test_pitfall_38_bad_names_are_refused_before_anything_is_loaded",
    ),
]
