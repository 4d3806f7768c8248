"""Bugs of sampling on vLLM servers: whose weights, whose seeds, whose logprobs, and what becomes of lost requests."""

from tests.mutants.mutant import Mutant

ENGINE = "tests/unit/engines/vllm/test_engine.py::"
FAULTS = "tests/unit/engines/vllm/test_faults.py::"
WIRE = "tests/unit/engines/vllm/test_wire.py::"
PUSH = "tests/unit/engines/vllm/test_push.py::"
BROADCAST = "tests/unit/engines/vllm/test_broadcast.py::"
PUSH_BROADCAST = "tests/unit/engines/vllm/test_push_broadcast.py::"
REAL = "tests/unit/engines/vllm/test_vllm.py::"
SEEDS = ENGINE + "test_pitfall_36_every_completion_of_a_group_has_its_own_request_and_its_own_seed"
IN_FLIGHT = (
    ENGINE + "test_pitfall_24_pushing_while_64_requests_are_in_flight_loses_none_and_every_token_has_its_version"
)
EXTENSION = "engines/vllm/extension/rlvr_vllm_extension.py"
GROUP = "engines/vllm/extension/rlvr_vllm_group.py"
BROADCASTS = "engines/vllm/broadcast.py"
EVERY_BIT = BROADCAST + "test_pitfall_30_every_worker_gets_every_tensor_bit_by_bit"
CAME_BACK = PUSH_BROADCAST + "test_pitfall_30_a_server_that_died_in_a_broadcast_gets_what_was_pushed_when_it_is_back"

MUTANTS = [
    Mutant(  # the server fills in a temperature from the model's folder, or takes 1
        pitfall="19",
        file="engines/vllm/wire.py",
        old='            "temperature": sampling.temperature,\n',
        new='            "temperature": 1.0 if sampling.temperature else 0.0,\n',
        test=ENGINE + "test_pitfall_19_logprobs_are_at_the_sampling_temperature",
    ),
    Mutant(  # truncated logprobs pass for those over the whole vocabulary
        pitfall="20",
        file="engines/vllm/wire.py",
        old="    full = (math.nan,) * len(sampled.token_ids) if sampling.truncates else sampled.logprobs\n",
        new="    full = sampled.logprobs\n",
        test=ENGINE + "test_pitfall_20_logprobs_over_the_whole_vocabulary_are_missing_where_tokens_are_left_out",
    ),
    Mutant(  # the same on a real server
        pitfall="20",
        file="engines/vllm/wire.py",
        old="    full = (math.nan,) * len(sampled.token_ids) if sampling.truncates else sampled.logprobs\n",
        new="    full = sampled.logprobs\n",
        test=REAL + "test_pitfall_20_and_14_what_truncated_sampling_and_stop_tokens_give",
        needs="vllm",
    ),
    Mutant(  # the run's seed never reaches the server
        pitfall="36",
        file="engines/vllm/wire.py",
        old='            "seed": sampling.seed,\n',
        new="",
        test=REAL + "test_pitfall_36_members_of_a_group_have_streams_of_their_own_that_repeat",
        needs="vllm",
    ),
    Mutant(  # seeds are cut to few bits, and members of groups collide
        pitfall="36",
        file="engines/vllm/wire.py",
        old='"seed": sampling.seed,',
        new='"seed": sampling.seed % 8,',
        test=SEEDS,
    ),
    Mutant(  # the adapter of requests that are under way is forgotten before they are read
        pitfall="30",
        file="engines/vllm/push.py",
        old="        for name in names[:-2]:",
        new="        for name in names[:-1]:",
        test=PUSH + "test_pitfall_30_a_request_that_is_read_after_a_push_still_finds_its_adapter",
    ),
    Mutant(  # the probe is not looked at
        pitfall="30",
        file="engines/vllm/push.py",
        old="    _check_gap(member, push, gap, expected)\n",
        new="",
        test=PUSH + "test_pitfall_30_a_head_that_keeps_its_old_weights_is_found_by_the_probe",
    ),
    Mutant(  # a server that has any weights is left with them
        pitfall="30",
        file="engines/vllm/push.py",
        old="        if member.server.weight_version() == push.name:\n",
        new='        if member.server.weight_version() != "default":\n',
        test=PUSH + "test_pitfall_30_every_tensor_arrives_and_the_next_token_is_of_the_new_weights",
    ),
    Mutant(  # a tied head keeps its packed copy: what vLLM 0.32 does on a CPU by itself
        pitfall="30",
        file=EXTENSION,
        old="                _renew_tied(pieces, tied)\n",
        new="",
        test=REAL + "test_pitfall_30_trainer_and_server_agree_after_each_of_five_pushes",
        needs="vllm",
    ),
    Mutant(  # what is missing in the files keeps its old weights, or none at all
        pitfall="30",
        file=EXTENSION,
        old="    if unknown or missing:\n",
        new="    if unknown:\n",
        test=REAL + "test_pitfall_30_files_that_are_not_the_model_are_refused_and_the_server_goes_on",
        needs="vllm",
    ),
    Mutant(  # keys and values of old weights stay in the cache
        pitfall="31",
        file="engines/vllm/push.py",
        old="        server.forget_prefixes()\n",
        new="",
        test=PUSH + "test_pitfall_31_no_prefix_of_old_weights_is_used_again",
    ),
    Mutant(  # a cache that could not be dropped is none
        pitfall="31",
        file="engines/vllm/server.py",
        old='"/reset_prefix_cache?reset_running_requests=true")).success:\n',
        new='"/reset_prefix_cache?reset_running_requests=true")).success and False:\n',
        test=PUSH + "test_pitfall_31_a_prefix_cache_that_is_not_dropped_is_an_error",
    ),
    Mutant(  # the adapter is added to the policy's own base
        pitfall="32",
        file="engines/vllm/weights.py",
        old="            value = value.float() + merged_part(layers[layer])\n",
        new="            value = value.add_(merged_part(layers[layer]))\n",
        test=PUSH + "test_pitfall_32_what_is_pushed_is_the_merged_model_and_the_base_stays_as_it_is",
    ),
    Mutant(  # what is sampled between two attempts at a push counts as the old weights'
        pitfall="30",
        file="engines/vllm/push.py",
        old="        server.name_version(PARTIAL)  #",
        new="        pass  #",
        test=PUSH + "test_pitfall_30_what_is_sampled_between_two_pushes_of_one_version_is_thrown_away",
    ),
    Mutant(  # tensors that are not laid out row by row arrive in another order
        pitfall="30",
        file=GROUP,
        old="        self._broadcast(tensor.contiguous())\n",
        new="        self._broadcast((tensor.T if tensor.dim() == 2 else tensor).contiguous())\n",
        test=EVERY_BIT,
    ),
    Mutant(  # what a broken group did not bring passes for weights
        pitfall="30",
        file=GROUP,
        old='                    self.problem = f"{name} did not arrive: {error}"\n',
        new="                    pass\n",
        test=BROADCAST + "test_pitfall_30_a_worker_whose_trainer_dies_has_zeros_and_says_which_tensor_did_not_come",
    ),
    Mutant(  # the loader is cut off, and leaves vLLM's model in pieces
        pitfall="30",
        file=GROUP,
        old='                    self.problem = f"{name} did not arrive: {error}"\n',
        new='                    self.problem = f"{name} did not arrive: {error}"\n                    return\n',
        test=BROADCAST + "test_pitfall_30_a_worker_whose_trainer_dies_has_zeros_and_says_which_tensor_did_not_come",
    ),
    Mutant(  # a server that breaks a broadcast takes the others with it
        pitfall="30",
        file=BROADCASTS,
        old="                if len(again) == len(left):  # nobody to leave out\n",
        new="                if again:\n",
        test=BROADCAST + "test_pitfall_30_the_others_get_everything_when_a_worker_dies_in_the_middle",
    ),
    Mutant(  # of data parallel engines only the first one has the weights, and nobody says so
        pitfall="30",
        file=BROADCASTS,
        old="        if error is None and came >= offer.size:",
        new="        if error is None and came > offer.size:",
        test=BROADCAST + "test_pitfall_30_more_workers_than_a_server_tells_of_are_no_success",
    ),
    Mutant(  # one worker of each server has the weights, the other tensor parallel ones have not
        pitfall="30",
        file=BROADCASTS,
        old="        size=1 + sum(servers.values()),\n",
        new="        size=1 + len(servers),\n",
        test=EVERY_BIT,
    ),
    Mutant(  # a server that comes back gets the weights that are being trained just now
        pitfall="30",
        file="engines/vllm/engine.py",
        old="as_served(value, self._dtype, copy=True)",
        new="as_served(value, self._dtype)",
        test=CAME_BACK,
    ),
    Mutant(  # NCCL with two ranks on one GPU
        pitfall="30",
        file=BROADCASTS,
        old="if all(gpus) and len(set(gpus)) == len(gpus) else",
        new="if all(gpus) else",
        test=BROADCAST + "test_pitfall_30_nccl_is_for_ranks_with_a_gpu_each",
    ),
    Mutant(  # another worker's sentence hides the reason
        pitfall="30",
        file="engines/vllm/server.py",
        old="sorted(reports, key=lambda report: report.cut_off)",
        new="sorted(reports, key=lambda report: not report.cut_off)",
        test=PUSH_BROADCAST + "test_pitfall_30_what_cannot_work_ends_the_run_in_a_sentence",
    ),
    Mutant(  # what was broadcast is compared with nothing
        pitfall="30",
        file=EXTENSION,
        old="            kept[name] = pieces[name].local(tensor).clone()\n",
        new="            pass\n",
        test=REAL + "test_pitfall_30_trainer_and_server_agree_after_each_of_five_pushes",
        needs="vllm",
    ),
    Mutant(  # what was broadcast is compared with something else
        pitfall="30",
        file=EXTENSION,
        old="            kept[name] = pieces[name].local(tensor).clone()\n",
        new="            kept[name] = pieces[name].local(torch.zeros_like(tensor))\n",
        test=REAL + "test_pitfall_30_trainer_and_server_agree_after_each_of_five_pushes",
        needs="vllm",
    ),
    Mutant(  # every token is said to be of the weights that came last
        pitfall="24",
        file="engines/vllm/engine.py",
        old="return sampled, [self._number(span.version, push.version) for span in sampled.spans]\n",
        new="return sampled, [self._version for span in sampled.spans]\n",
        test=IN_FLIGHT,
    ),
    Mutant(  # a server that missed a push samples on
        pitfall="24",
        file="engines/vllm/engine.py",
        old="        if not oldest <= int(number) <= self._version:\n",
        new="        if int(number) > self._version:\n",
        test=FAULTS + "test_pitfall_24_weights_of_an_earlier_push_are_not_taken_for_those_of_the_last",
    ),
    Mutant(  # the probe looks at the token that was drawn alone
        pitfall="30",
        file="engines/vllm/probe.py",
        old="(*sampled.top, (sampled.token_ids[0], sampled.logprobs[0]))",
        new="((sampled.token_ids[0], sampled.logprobs[0]),)",
        test=PUSH + "test_pitfall_30_likely_tokens_are_compared_as_well_as_the_one_that_was_drawn",
    ),
    Mutant(  # what vLLM has no logprob of counts as one of -9999
        pitfall="20",
        file="engines/vllm/wire.py",
        old="    return math.nan if value < MISSING else min(value, 0.0)\n",
        new="    return min(value, 0.0)\n",
        test=WIRE + "test_pitfall_20_vllms_word_for_no_logprob_is_not_a_number_and_rounding_makes_none_positive",
    ),
    Mutant(  # the stop token is left out of the completion that it ends
        pitfall="14",
        file="engines/vllm/wire.py",
        old="        token_ids=sampled.token_ids,\n        behavior",
        new="        token_ids=tuple(t for t in sampled.token_ids if t not in sampling.stop_ids),\n        behavior",
        test=WIRE + "test_pitfall_14_a_stop_token_ends_a_completion_and_is_part_of_it",
    ),
    Mutant(  # weights of nobody, or of another run, are taken for ours
        pitfall="30",
        file="engines/vllm/engine.py",
        old="        if run != self._run or not number.isdecimal():\n",
        new='        if not number.isdecimal():\n            number = "0"\n        if number is None:\n',
        test=FAULTS + "test_pitfall_30_a_server_that_was_started_anew_unseen_is_found_out_by_its_first_answer",
    ),
]
