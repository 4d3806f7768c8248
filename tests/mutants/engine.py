"""Bugs of the engine and of the masks."""

from tests.mutants.mutant import Mutant

ENGINE = "tests/unit/engines/local/test_engine.py::"
SAMPLER = "tests/unit/engines/local/test_sampler.py::"
EXACT = ENGINE + "test_pitfall_01_logprobs_equal_a_plain_forward_with_refill_shared_prefixes_and_ragged_rows"

MUTANTS = [
    Mutant(  # positions run over the padding of the longest row
        pitfall="1",
        file="engines/local/shared_prefix.py",
        old="positions = lengths[:, None].clone()",
        new="positions = torch.full_like(lengths[:, None], longest)",
        test=EXACT,
    ),
    Mutant(  # a row that moves is masked as the row it replaces
        pitfall="1",
        file="engines/local/shared_prefix.py",
        old="        self._starts[targets] = self._starts[sources]\n",
        new="",
        test=EXACT,
    ),
    Mutant(  # a row that moves looks at another row's prompt
        pitfall="1",
        file="engines/local/shared_prefix.py",
        old="            self._owners[target] = self._owners[source]\n",
        new="            pass\n",
        test=EXACT,
    ),
    Mutant(  # a row that moves leaves its keys and values behind
        pitfall="1",
        file="engines/local/scheduler.py",
        old="            self._runner.move(sources, targets, rows.longest)\n",
        new="            pass\n",
        test=EXACT,
    ),
    Mutant(  # the hidden state of the padding goes through the head
        pitfall="1",
        file="engines/local/shared_prefix.py",
        old="mask, lengths - 1, past_key_values=prefixes)",
        new="mask, lengths * 0 + ids.shape[1] - 1, past_key_values=prefixes)",
        test=EXACT,
    ),
    Mutant(  # sliding layers see everything
        pitfall="1",
        file="models/attention.py",
        old="_additive(allowed & near, dtype)",
        new="_additive(allowed, dtype)",
        test=EXACT + "[gemma3]",
    ),
    Mutant(  # truncation inferred from the length
        pitfall="14",
        file="engines/local/rows.py",
        old="stop_reason=StopReason.STOP if stopped[i] else StopReason.LENGTH",
        new="stop_reason=StopReason.STOP if count < request.max_tokens else StopReason.LENGTH",
        test=ENGINE + "test_pitfall_14_the_stop_reason_comes_from_the_token_and_not_from_the_length",
    ),
    Mutant(  # scored at temperature 1
        pitfall="19",
        file="engines/local/sampler.py",
        old="    behavior = logprobs.gather(1, ids)[:, 0]\n",
        new="    behavior = torch.log_softmax(logits.float(), dim=-1).gather(1, ids)[:, 0]\n",
        test=ENGINE + "test_pitfall_19_logprobs_are_at_the_sampling_temperature",
    ),
    Mutant(  # the token that crosses top_p is dropped
        pitfall="20",
        file="engines/local/sampler.py",
        old="before = left.cumsum(-1) - left ",
        new="before = left.cumsum(-1) ",
        test=SAMPLER + "test_pitfall_20_the_token_that_crosses_top_p_stays_and_both_logprobs_are_right",
    ),
    Mutant(  # behavior logprobs renormalized over the truncated support
        pitfall="20",
        file="engines/local/sampler.py",
        old="return Draw(ids=ids[:, 0], behavior_logprobs=behavior, sampling_logprobs=sampled, totals=total)",
        new="return Draw(ids=ids[:, 0], behavior_logprobs=sampled, sampling_logprobs=sampled, totals=total)",
        test=ENGINE + "test_pitfall_20_truncated_requests_get_both_logprobs_beside_plain_ones",
    ),
    Mutant(  # sessions survive an update
        pitfall="31",
        file="engines/local/scheduler.py",
        old="        self._parked.clear()\n        self._stale = self._rows.count > 0\n",
        new="        self._stale = self._rows.count > 0\n",
        test=ENGINE + "test_pitfall_31_new_weights_drop_every_cached_key_and_value[False]",
    ),
    Mutant(  # rows in flight go on with old keys and values
        pitfall="31",
        file="engines/local/scheduler.py",
        old="        self._stale = self._rows.count > 0\n",
        new="",
        test=ENGINE + "test_pitfall_31_new_weights_drop_every_cached_key_and_value[True]",
    ),
    Mutant(  # dropout while sampling
        pitfall="34",
        file="engines/local/engine.py",
        old="            module.training = False\n",
        new="            pass\n",
        test=ENGINE + "test_pitfall_34_modules_sample_in_evaluation_mode_and_are_put_back",
    ),
    Mutant(  # the run seed never reaches the draw
        pitfall="36",
        file="engines/local/rows.py",
        old="streams([s.seed for s in settings])",
        new="streams(list(range(len(settings))))",
        test=ENGINE + "test_pitfall_36_members_of_a_group_share_no_stream_and_a_seed_repeats_itself",
    ),
    Mutant(  # members of a group collide
        pitfall="36",
        file="engines/local/rows.py",
        old="streams([s.seed for s in settings])",
        new="streams([settings[0].seed for s in settings])",
        test=ENGINE + "test_pitfall_36_members_of_a_group_share_no_stream_and_a_seed_repeats_itself",
    ),
    Mutant(  # every turn starts its stream again
        pitfall="36",
        file="engines/local/scheduler.py",
        old="rows.lengths[first : rows.count] + 1",
        new="rows.num_sampled[first : rows.count]",
        test=ENGINE + "test_pitfall_36_the_turns_of_an_episode_share_no_stream_even_with_one_seed",
    ),
    Mutant(  # the router's training noise sends a token to other experts
        pitfall="35",
        file="engines/local/engine.py",
        old="            module.training = False\n",
        new="            pass\n",
        test=ENGINE + "test_pitfall_35_a_token_meets_the_same_experts_in_engine_and_trainer",
    ),
    Mutant(  # buffers keep the shape of earlier work
        pitfall="37",
        file="engines/local/scheduler.py",
        old="            self._runner.reset()\n",
        new="            pass\n",
        test=ENGINE + "test_pitfall_37_nothing_depends_on_what_the_engine_did_before",
    ),
    Mutant(  # buffers that held NaN are used again
        pitfall="31",
        file="engines/local/scheduler.py",
        old="self._runner.reset(reuse=False)",
        new="self._runner.reset()",
        test=ENGINE + "test_pitfall_31_nan_of_broken_weights_does_not_outlive_them",
    ),
]
