"""Bugs of evaluation and episodes."""

from tests.mutants.mutant import Mutant

EVALUATE = "tests/unit/evaluation/test_evaluate.py"
ORACLE = "tests/system/test_oracle.py"
SOURCE = "tests/unit/rollout/test_schedule.py"
EPISODE = "tests/unit/rollout/test_episode.py"

MUTANTS = [
    Mutant(
        pitfall="38",
        file="evaluation/evaluate.py",
        old="correct=verdict.correct,",
        new="correct=episode.score.value > 0,",
        test=f"{EVALUATE}::test_pitfall_38_the_reward_is_not_the_metric",
    ),
    Mutant(
        pitfall="38",
        file="tasks/rpn_metric.py",
        old="from rlvr.types import Verdict",
        new="from rlvr.rewards.rpn import boxed_answer as boxed_answer\nfrom rlvr.types import Verdict",
        test=f"{EVALUATE}::test_pitfall_38_the_metric_shares_no_code_with_the_rewards",
    ),
    Mutant(
        pitfall="38",
        file="tasks/rpn.py",
        old='derive_seed(EVAL_SEED, "rpn", "eval")',
        new='derive_seed(self.seed, "rpn", "eval")',
        test=f"{EVALUATE}::test_pitfall_38_prompts_and_draws_do_not_depend_on_the_run_seed",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/evaluate.py",
        old='drawn = replace(sampling, seed=derive_seed(sampling.seed, "eval", example.id, sample, turn))',
        new="drawn = replace(sampling, seed=id(object()) + sample)",
        test=f"{EVALUATE}::test_pitfall_38_prompts_and_draws_do_not_depend_on_the_run_seed",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/evaluate.py",
        old="return drawn if sample > 0 else greedy(drawn)",
        new="return drawn",
        test=f"{EVALUATE}::test_pitfall_38_greedy_and_sampled_are_told_apart",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/intervals.py",
        old="if values.min() == values.max() and values[0] in (0.0, 1.0):",
        new="if False:",
        test="tests/unit/evaluation/test_intervals.py::test_pitfall_38_bootstrap_of_a_perfect_score_still_has_a_width",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/summary.py",
        old='metrics = {"num_examples": float(len(judged))}',
        new="metrics: dict[str, float] = {}",
        test=f"{EVALUATE}::test_pitfall_38_every_accuracy_has_its_interval_and_n",
    ),
    Mutant(
        pitfall="38",
        file="tasks/rpn.py",
        old="return not self.is_held_out(text)",
        new="return True",
        test=f"{EVALUATE}::test_pitfall_38_no_evaluation_prompt_is_a_training_prompt_or_demonstration",
    ),
    Mutant(
        pitfall="6",
        file="rollout/episode.py",
        old="chat.next_prompt(prompt_ids, completion.token_ids, conversation, reply.messages, env.tools)",
        new=(
            "chat.next_prompt(prompt_ids, chat.encode_prompt(conversation[-1:])[:-1] + completion.token_ids[-1:], "
            "conversation, reply.messages, env.tools)"
        ),
        test=f"{EPISODE}::test_pitfall_06_ids_trained_on_are_the_ids_sampled_although_their_text_encodes_differently",
    ),
    Mutant(
        pitfall="4",
        file="rollout/batch.py",
        old="+ (False,) * len(fresh) + (True,) * len(sampled)",
        new="+ (bool(row.ids),) * len(fresh) + (True,) * len(sampled)",
        test=f"{EPISODE}::test_pitfall_04_reply_and_header_tokens_are_in_the_row_but_not_trained_on",
    ),
    Mutant(
        pitfall="7",
        file="rollout/episode.py",
        old="chat.next_prompt(prompt_ids, completion.token_ids, conversation, reply.messages, env.tools)",
        new="chat.next_prompt(turns[0].prompt_ids, completion.token_ids, conversation, reply.messages, env.tools)",
        test=f"{EPISODE}::test_pitfall_07_each_prompt_starts_with_the_previous_prompt_and_completion",
    ),
    Mutant(
        pitfall="17",
        file="training/trainer.py",
        old="part, token_weights = _take(batch, present), weights[present]",
        new="part, token_weights = _take(batch, present), self.algorithm.weights(_take(batch, present))",
        test=f"{ORACLE}::test_pitfall_17_loss_gradient_norm_and_weights_agree_after_each_of_5_updates",
    ),
    Mutant(
        pitfall="17",
        file="algorithms/gae.py",
        old="advantage = discounted_suffix_sums(delta, gamma * gae_lambda)",
        new="advantage = discounted_suffix_sums(delta, gae_lambda)",
        test=f"{ORACLE}::test_pitfall_17_loss_gradient_norm_and_weights_agree_after_each_of_5_updates",
    ),
    Mutant(  # a verifier that breaks its contract is counted like one that crashed
        pitfall="29",
        file="rollout/episode.py",
        old="    except UserError:\n        raise  # a verifier that breaks its contract would poison every group\n",
        new="",
        test=f"{EPISODE}::test_pitfall_29_a_verifier_that_breaks_its_contract_ends_the_run",
    ),
    Mutant(  # errors of the groups that replace dead ones escape the limit
        pitfall="26",
        file="rollout/schedule.py",
        old="            sampled += fresh\n",
        new="",
        test=f"{SOURCE}::test_pitfall_26_verifier_errors_of_replacements_count_too",
    ),
    Mutant(
        pitfall="26",
        file="rollout/schedule.py",
        old="if len(errors) > max_share * len(episodes):",
        new="if len(errors) >= max_share * len(episodes):",
        test=f"{SOURCE}::test_pitfall_26_just_as_many_verifier_errors_as_the_limit_allows_do_not_stop_the_run",
    ),
    Mutant(  # where the reward failed the metric does not count
        pitfall="38",
        file="evaluation/summary.py",
        old="greedy = [record for record in records if record.sample_index == 0]",
        new="greedy = [r for r in records if r.sample_index == 0 and not math.isnan(r.reward)]",
        test="tests/unit/evaluation/test_summary.py::test_pitfall_38_an_answer_whose_reward_failed_still_counts",
    ),
    Mutant(  # of several turns the metric sees the first one
        pitfall="38",
        file="evaluation/evaluate.py",
        old="verdict = await task.judge(example, turns)",
        new="verdict = await task.judge(example, turns[:1])",
        test=f"{EVALUATE}::test_pitfall_38_the_metric_sees_all_turns_with_their_calls_and_all_their_tokens_are_counted",
    ),
    Mutant(  # and the last one's tokens are counted
        pitfall="38",
        file="evaluation/players.py",
        old="num_completion_tokens=sum(len(turn.completion.token_ids) for turn in episode.turns)",
        new="num_completion_tokens=len(episode.turns[-1].completion.token_ids)",
        test=f"{EVALUATE}::test_pitfall_38_the_metric_sees_all_turns_with_their_calls_and_all_their_tokens_are_counted",
    ),
    Mutant(  # the metric is not told of calls
        pitfall="38",
        file="evaluation/players.py",
        old="turns = turn_texts(chat, episode.turns, tools)",
        new="turns = turn_texts(chat, episode.turns)",
        test=f"{EVALUATE}::test_pitfall_38_the_metric_sees_all_turns_with_their_calls_and_all_their_tokens_are_counted",
    ),
    Mutant(  # where all greedy answers failed the samples hide it
        pitfall="26",
        file="evaluation/evaluate.py",
        old="len(failures) > MAX_FAILURE_SHARE * len(records) or all_greedy_failed",
        new="len(failures) > MAX_FAILURE_SHARE * len(records)",
        test="tests/unit/evaluation/test_attempt.py::test_pitfall_26_an_accuracy_needs_a_greedy_answer",
    ),
    Mutant(  # an episode that ran out of turns looks like a truncated one
        pitfall="14",
        file="evaluation/summary.py",
        old="record.stop_reason == StopReason.LENGTH",
        new="record.stop_reason != StopReason.STOP",
        test="tests/unit/evaluation/test_summary.py::test_pitfall_14_only_the_token_limit_truncates",
    ),
    Mutant(  # every turn of an evaluation draws the same numbers
        pitfall="38",
        file="evaluation/evaluate.py",
        old='derive_seed(sampling.seed, "eval", example.id, sample, turn)',
        new='derive_seed(sampling.seed, "eval", example.id, sample)',
        test=f"{EVALUATE}::test_pitfall_38_every_turn_of_every_sample_is_drawn_by_itself",
    ),
]
