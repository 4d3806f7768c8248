"""Bugs planted in the chat layer."""

from tests.mutants.mutant import Mutant

EPISODES = "tests/unit/chat/test_episodes.py::"
TEMPLATES = "tests/unit/chat/test_trl_templates.py::"
FORMATS = "tests/unit/chat/test_tool_formats.py::"
BEHIND = TEMPLATES + "test_pitfall_04_what_comes_behind_a_completion_is_what_the_template_has_there"
TAKEN_BACK = TEMPLATES + "test_pitfall_07_a_prompt_is_extended_unless_the_template_has_taken_back_what_was_said"
NEW_ROW = EPISODES + "test_pitfall_07_where_reasoning_is_taken_back_a_new_row_begins"

MUTANTS = [
    Mutant(  # the end of the turn, which was sampled, stands there twice
        pitfall="4",
        file="chat/rendering.py",
        old="return ids[1:] if ended else ids",
        new="return ids",
        test=EPISODES + "test_pitfall_04_turns_with_a_tool_are_the_template_and_nothing_of_it_is_trained_on",
    ),
    Mutant(  # the header of the next completion stands there twice
        pitfall="4",
        file="chat/rendering.py",
        old="(behind(self._template, said, messages))",
        new="(behind(self._template, said, messages) * 2)",
        test=EPISODES + "test_pitfall_04_turns_with_a_tool_are_the_template_and_nothing_of_it_is_trained_on",
    ),
    Mutant(  # no header at all
        pitfall="4",
        file="chat/rendering.py",
        old="(behind(self._template, said, messages))",
        new="(behind(self._template, said, messages, header=False))",
        test=BEHIND,
    ),
    Mutant(  # what closes the dummy's call is put behind the sampled call
        pitfall="4",
        file="chat/rendering.py",
        old="if self._template.calls_in(said):  # what closes the call was sampled",
        new="if False:",
        test=BEHIND,
    ),
    Mutant(  # tools answer a message that calls none
        pitfall="4",
        file="chat/history.py",
        old="calls = template.calls_in(said)",
        new="calls = ()",
        test=BEHIND,
    ),
    Mutant(  # a tool's text that looks like the dummy is cut
        pitfall="4",
        file="chat/history.py",
        old='        place += "x"',
        new="        break",
        test=EPISODES + "test_pitfall_04_an_answer_with_the_dummy_in_it_is_rendered_whole",
    ),
    Mutant(  # decoded and encoded again
        pitfall="6",
        file="chat/rendering.py",
        old="return prompt_ids + completion_ids + self.encode_reply",
        new="completion_ids = tuple(self._tokenizer.encode(self.decode(completion_ids), add_special_tokens=False))\n"
        "        return prompt_ids + completion_ids + self.encode_reply",
        test=EPISODES + "test_pitfall_06_ids_that_encode_otherwise_stay_as_they_are",
    ),
    Mutant(  # the same, over random ids
        pitfall="6",
        file="chat/rendering.py",
        old="return prompt_ids + completion_ids + self.encode_reply",
        new="text = self.decode(prompt_ids + completion_ids)\n"
        "        return tuple(self._tokenizer.encode(text, add_special_tokens=False)) + self.encode_reply",
        test=EPISODES + "test_pitfall_06_trained_ids_are_sampled_ids_whatever_text_they_make",
    ),
    Mutant(  # rewriting is not recognized: reasoning stays in prompts that no user of the template will see
        pitfall="7",
        file="chat/rendering.py",
        old="if self._history and self._history.rewritten(conversation, reply, tools):",
        new="if False:",
        test=NEW_ROW,
    ),
    Mutant(
        pitfall="7",
        file="chat/history.py",
        old="return lost_empty or not after.startswith(before) or any(word not in after for word in words)",
        new="return lost_empty or not after.startswith(before)",
        test=TAKEN_BACK,
    ),
    Mutant(
        pitfall="7",
        file="chat/history.py",
        old="return lost_empty or not after.startswith(before) or any(word not in after for word in words)",
        new="return any(word not in after for word in words)",
        test=TEMPLATES + "test_pitfall_07_three_turns_are_extended_or_rendered_anew_each",
    ),
    Mutant(  # every reply is a new row: nothing is extended
        pitfall="7",
        file="chat/history.py",
        old="        if before is None or after is None:",
        new="        if True:\n            return True\n        if before is None or after is None:",
        test=TAKEN_BACK,
    ),
    Mutant(  # what is asked for a tool's answer is taken for every reply
        pitfall="7",
        file="chat/history.py",
        old="key = (len(conversation), bool(tools), *shapes)",
        new="key = (len(conversation), bool(tools))",
        test=TAKEN_BACK,
    ),
    Mutant(  # the conversation is rendered anew without what the model has just said
        pitfall="7",
        file="chat/rendering.py",
        old="return self._encode_prompt([*conversation, *reply], tools)",
        new="return self.encode_prompt([*conversation[:-1], *reply], tools)",
        test=NEW_ROW,
    ),
    Mutant(  # a call that the model only thinks of is made
        pitfall="28",
        file="chat/reasoning.py",
        old="            yield text[start:position], True",
        new="            yield text[start:position], False",
        test=FORMATS + "test_pitfall_28_nothing_within_reasoning_is_a_call",
    ),
    Mutant(  # half a call is made
        pitfall="14",
        file="chat/rendering.py",
        old="finished=finished, opened=opened)",
        new="finished=True, opened=opened)",
        test=EPISODES + "test_pitfall_14_a_completion_cut_off_by_a_limit_calls_only_what_is_complete",
    ),
    Mutant(  # NaN gets through to rewards
        pitfall="29",
        file="chat/tool_calls.py",
        old='    raise ValueError(f"{constant} is not JSON")',
        new="    return float(constant)",
        test=FORMATS + "test_pitfall_29_a_malformed_call_says_what_is_wrong_and_stays_in_the_text",
    ),
    Mutant(  # "3" becomes a number although a text is asked for
        pitfall="28",
        file="chat/tool_calls.py",
        old='("string" in kinds and _kind(value) not in kinds)',
        new="False",
        test=FORMATS + "test_pitfall_28_variants_of_families",
    ),
]
