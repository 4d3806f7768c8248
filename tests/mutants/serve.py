"""Bugs of the endpoint."""

from tests.mutants.mutant import Mutant

TRANSCRIPT = "tests/unit/serve/test_transcript.py"
ANSWERS = "tests/unit/serve/test_answers.py"
LIMITS = "tests/unit/serve/test_limits.py"
ENGINE = "tests/unit/engines/local/test_tokens_as_they_come.py"
STOPS = f"{TRANSCRIPT}::test_pitfall_14_a_stop_text_over_several_tokens_ends_the_text_and_no_part_of_it_is_shown"
IDS = f"{ANSWERS}::test_pitfall_06_ids_and_logprobs_are_the_engines"
STREAM = f"{ANSWERS}::test_pitfall_06_a_stream_gives_the_ids_logprobs_and_text_of_the_whole_answer"
SEEDS = f"{ANSWERS}::test_pitfall_36_seeds_repeat_and_the_choices_of_a_request_differ"
CUT = f"{ANSWERS}::test_pitfall_14_a_stop_text_ends_the_text_before_it_wherever_its_tokens_are_cut"
LEAVE = f"{LIMITS}::test_pitfall_37_a_client_that_goes_away_frees_its_places"

MUTANTS = [
    Mutant(  # half a character is shown
        pitfall="6",
        file="serve/transcript.py",
        old="if more and (not more.endswith(UNFINISHED) or len(self._ids) - self._shown >= MAX_WAITING):",
        new="if more:",
        test=f"{TRANSCRIPT}::test_pitfall_06_no_character_is_split_and_none_is_lost",
    ),
    Mutant(  # a stop text is only found within one token
        pitfall="14",
        file="serve/transcript.py",
        old="begin = max(0, len(self.text) - self._longest_stop + 1)",
        new="begin = len(self.text)",
        test=STOPS,
    ),
    Mutant(  # the beginning of a stop text is shown
        pitfall="14",
        file="serve/transcript.py",
        old="end = max(self._taken, len(self.text) - held)",
        new="end = len(self.text)",
        test=STOPS,
    ),
    Mutant(  # tokens sampled behind a stop text are handed out
        pitfall="14",
        file="serve/sampling.py",
        old="        if choice.at_text:  # the step in which a request begins samples two tokens\n            return\n",
        new="",
        test=CUT,
    ),
    Mutant(  # a stop text does not end the sampling
        pitfall="14",
        file="serve/sampling.py",
        old="                self.generation.cancel()\n",
        new="",
        test=CUT,
    ),
    Mutant(  # the settings of a request do not reach the engine
        pitfall="6",
        file="serve/requests.py",
        old="top_p=1.0 if request.top_p is None else request.top_p,",
        new="",
        test=IDS,
    ),
    Mutant(
        pitfall="3",
        file="serve/requests.py",
        old="own_stops = frozenset() if request.ignore_eos else served.chat.stop_ids",
        new="own_stops = served.chat.stop_ids",
        test=f"{ANSWERS}::test_pitfall_03_the_end_ends_a_completion_unless_it_is_to_be_ignored",
    ),
    Mutant(  # temperature 0 is taken for none given
        pitfall="6",
        file="serve/requests.py",
        old="temperature=1.0 if request.temperature is None else request.temperature,",
        new="temperature=request.temperature or 1.0,",
        test=IDS,
    ),
    Mutant(  # all choices are drawn alike
        pitfall="36",
        file="serve/requests.py",
        old='seed=derive_seed(seed, "choice", index) if index else seed,',
        new="seed=seed,",
        test=SEEDS,
    ),
    Mutant(  # a seed of the client's is ignored
        pitfall="36",
        file="serve/requests.py",
        old="seed = secrets.randbits(63) if request.seed is None else request.seed",
        new="seed = secrets.randbits(63)",
        test=SEEDS,
    ),
    Mutant(  # a stream repeats what it has said
        pitfall="6",
        file="serve/answers.py",
        old="        choice.told = len(choice.token_ids)\n        return self._entry(choice, text, begin)\n",
        new="        return self._entry(choice, text, begin)\n",
        test=STREAM,
    ),
    Mutant(  # the last tokens of a stream are lost if its client is slow
        pitfall="37",
        file="serve/sampling.py",
        old="            yield  # what came while the last item was dealt with\n",
        new="",
        test=f"{LIMITS}::test_pitfall_37_a_slow_reader_gets_every_token",
    ),
    Mutant(  # nobody notices that a client has gone
        pitfall="37",
        file="serve/endpoint.py",
        old='    while (await receive())["type"] != "http.disconnect":\n        pass\n',
        new="    await asyncio.Event().wait()\n",
        test=LEAVE,
    ),
    Mutant(  # an aborted request goes on to be heard of
        pitfall="37",
        file="engines/local/scheduler.py",
        old="if request.on_token is not None and not request.aborted:",
        new="if request.on_token is not None:",
        test=f"{ENGINE}::test_pitfall_37_nobody_hears_of_tokens_of_a_request_that_was_given_up",
    ),
    Mutant(  # rows that begin in the middle of a step hear their neighbors' tokens
        pitfall="6",
        file="engines/local/scheduler.py",
        old="        _tell(rows.requests[first:], draw)\n",
        new="        _tell(rows.requests[: rows.count - first], draw)\n",
        test=f"{ENGINE}::test_pitfall_06_each_token_is_heard_once_in_order",
    ),
    Mutant(
        pitfall="19",
        file="engines/local/sampler.py",
        old="logprobs, ids = _logprobs(logits, sampling).topk(",
        new="logprobs, ids = torch.log_softmax(logits.float(), -1).topk(",
        test=f"{ENGINE}::test_pitfall_19_likely_tokens_are_those_at_the_temperature",
    ),
]
