"""Bugs of evaluations that go on, and of models behind an endpoint."""

from tests.mutants.mutant import Mutant

RECORDS = "tests/unit/evaluation/test_records.py"
RESUME = "tests/system/test_eval_resume.py"
ENDPOINT = "tests/unit/evaluation/test_endpoint.py"
OPENAI = "tests/unit/engines/test_openai.py"
FINGERPRINT = "tests/unit/models/test_fingerprint.py"

MUTANTS = [
    Mutant(  # another temperature goes on from the records of the first one
        pitfall="38",
        file="build/evaluation.py",
        old='"sampling": config.rollout.model_dump(mode="json", exclude={"prompts_per_step", "group_size"}),',
        new='"sampling": config.rollout.max_completion_tokens,',
        test=f"{RESUME}::test_pitfall_38_records_of_other_settings_are_refused_in_a_sentence",
    ),
    Mutant(  # the records of one checkpoint are taken for those of the next
        pitfall="38",
        file="build/evaluation.py",
        old='"model": inference.loaded.fingerprint,',
        new='"model": inference.config.model.name,',
        test=f"{RESUME}::test_pitfall_38_other_weights_are_other_settings",
    ),
    Mutant(
        pitfall="38",
        file="evaluation/records.py",
        old="(record for record in [*whole, *started] if record.settings not in settings)",
        new="(record for record in whole if record.settings not in settings)",
        test=f"{RECORDS}::test_pitfall_38_records_of_other_settings_are_refused_and_stay",
    ),
    Mutant(  # the next line is written behind the torn one, and both are lost
        pitfall="37",
        file="evaluation/records.py",
        old="        if more:  # the last line",
        new="        if False:  # the last line",
        test=f"{RECORDS}::test_pitfall_37_damaged_lines_are_named_left_out_and_not_written_into",
    ),
    Mutant(  # what a server that was down for a minute could not answer stays unanswered
        pitfall="26",
        file="evaluation/records.py",
        old="(self._known if record.failure is None else self._failed)[record.key] = record",
        new="self._known[record.key] = record",
        test=f"{RECORDS}::test_pitfall_26_what_failed_is_measured_again",
    ),
    Mutant(  # what is not asked again is forgotten, and the error share looks better
        pitfall="26",
        file="evaluation/records.py",
        old="{**self._failed, **self._known}.items()",
        new="self._known.items()",
        test=f"{RECORDS}::test_pitfall_26_what_failed_and_is_not_asked_for_again_stays_a_failure",
    ),
    Mutant(
        pitfall="37",
        file="evaluation/records.py",
        old="fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        new="file.flush()",
        test=f"{RECORDS}::test_pitfall_37_two_processes_do_not_write_the_same_file",
    ),
    Mutant(  # other data under the same ids
        pitfall="38",
        file="build/evaluation.py",
        old='        "first": [[e.id, e.answer, [m.content for m in e.messages]] for e in task.eval_examples(1)],\n',
        new="",
        test="tests/unit/app/test_evaluation.py::test_pitfall_38_whatever_decides_an_answer_makes_other_settings",
    ),
    Mutant(  # everything is sampled again, and the records are those of the second run
        pitfall="37",
        file="evaluation/evaluate.py",
        old="if record is None or record.expected != example.answer:",
        new="if True:",
        test=f"{RESUME}::test_pitfall_37_a_killed_evaluation_goes_on_and_its_records_equal_those_of_one_that_was_not",
    ),
    Mutant(  # records are kept when all is done: a kill loses them
        pitfall="37",
        file="build/evaluation.py",
        old="on_record=None if file is None else file.add,",
        new="on_record=None,",
        test=f"{RESUME}::test_pitfall_37_a_killed_evaluation_goes_on_and_its_records_equal_those_of_one_that_was_not",
    ),
    Mutant(  # only numbers that are looked at one by one count
        pitfall="38",
        file="models/fingerprint.py",
        old='f"{int(bits.sum(dtype=torch.int64))}".encode() + ',
        new="",
        test=f"{FINGERPRINT}::test_pitfall_38_a_change_of_any_one_weight_is_another_model",
    ),
    Mutant(
        pitfall="38",
        file="models/fingerprint.py",
        old="{words} {tokenizer.chat_template!r}",
        new="{words}",
        test=f"{FINGERPRINT}::test_pitfall_38_another_tokenizer_template_or_end_is_another_model",
    ),
    Mutant(  # an endpoint that failed counts as a wrong answer
        pitfall="26",
        file="evaluation/endpoint.py",
        old="        failure=failure,\n",
        new="",
        test=f"{ENDPOINT}::test_pitfall_26_an_episode_whose_request_failed_is_neither_right_nor_wrong",
        needs="openai",
    ),
    Mutant(
        pitfall="26",
        file="evaluation/evaluate.py",
        old="    check_answered(records)\n",
        new="",
        test=f"{ENDPOINT}::test_pitfall_26_an_endpoint_that_fails_too_often_ends_the_evaluation",
        needs="openai",
    ),
    Mutant(  # a model that was cut off is taken to have ended
        pitfall="14",
        file="engines/chat_completions.py",
        old='"length": StopReason.LENGTH,',
        new='"length": StopReason.STOP,',
        test=f"{OPENAI}::test_pitfall_14_finish_reasons_say_why_a_completion_ended",
        needs="openai",
    ),
    Mutant(  # logprobs of other tokens beside the ids
        pitfall="6",
        file="engines/chat_completions.py",
        old="(token_ids and len(logprobs) != len(token_ids))",
        new="(False)",
        test=f"{OPENAI}::test_pitfall_06_token_ids_and_logprobs_are_taken_where_they_are_told",
        needs="openai",
    ),
    Mutant(  # the metric looks for the word that endpoints leave out
        pitfall="3",
        file="evaluation/endpoint.py",
        old='completion=f"{text} {self.stop_words[-1]}" if ended else text,',
        new="completion=text,",
        test=f"{ENDPOINT}::test_pitfall_03_one_turn_ends_with_the_task_s_own_word_which_endpoints_leave_out",
        needs="openai",
    ),
    Mutant(  # the second turn does not know what was said in the first
        pitfall="7",
        file="evaluation/endpoint.py",
        old="[*told.wire, said.wire]",
        new="[*told.wire]",
        test=f"{ENDPOINT}::test_pitfall_07_tools_are_called_and_their_replies_sent_back",
        needs="openai",
    ),
    Mutant(
        pitfall="36",
        file="engines/openai.py",
        old='            "seed": sampling.seed,\n',
        new='            "seed": 0,\n',
        test=f"{ENDPOINT}::test_pitfall_36_samples_are_drawn_with_seeds_of_their_own",
        needs="openai",
    ),
]
