"""Bugs of the RPN task, its rewards, the chat layer."""

from tests.mutants.mutant import Mutant

TASK, REWARD, BASE, CHAT = "tasks/rpn.py", "rewards/rpn.py", "rewards/base.py", "chat/rendering.py"
TASK_TEST = "tests/unit/tasks/test_rpn.py::"
REWARD_TEST = "tests/unit/rewards/test_rpn.py::"
CHAT_TEST = "tests/unit/chat/test_rendering.py::"

STOPS = CHAT_TEST + "test_pitfall_03_every_end_token_stops_also_where_config_and_tokenizer_disagree"
FIRST_END = REWARD_TEST + "test_pitfall_03_words_after_the_first_end_are_not_scored"
TURNS = CHAT_TEST + "test_pitfall_04_turns_put_together_are_the_template_and_only_sampled_ids_are_completions"
EXPLOITS = REWARD_TEST + "test_pitfall_28_exploits_score_nothing"
SIGNS = REWARD_TEST + "test_pitfall_28_signs_count"
GOLD = TASK_TEST + "test_pitfall_28_every_gold_scores_full_marks_and_a_perturbed_one_none"
ONE_SCORE = (
    "tests/unit/rewards/test_base.py::test_pitfall_29_anything_but_one_finite_score_is_an_error_naming_the_reward"
)
OWN_SCORE = "tests/unit/envs/test_single_turn.py::test_pitfall_29_every_completion_gets_its_own_finite_score_in_order"
DISJOINT = TASK_TEST + "test_pitfall_38_no_held_out_expression_is_ever_trained_on"
FIXED = TASK_TEST + "test_pitfall_38_held_out_examples_are_the_same_for_every_run"

MUTANTS = [
    Mutant(  # the model's config is not asked
        pitfall="3",
        file=CHAT,
        old="        named.append(model.config.get_text_config().eos_token_id)\n",
        new="",
        test=STOPS,
    ),
    Mutant(  # nor its generation config
        pitfall="3",
        file=CHAT,
        old='        named.append(getattr(model.generation_config, "eos_token_id", None))\n',
        new="",
        test=STOPS,
    ),
    Mutant(  # only the first of several end tokens
        pitfall="3",
        file=CHAT,
        old="([value] if isinstance(value, int) else value)",
        new="([value] if isinstance(value, int) else value[:1])",
        test=STOPS,
    ),
    Mutant(  # stop words replace the end tokens
        pitfall="3", file=CHAT, old="words | end_ids(tokenizer, model)", new="words", test=STOPS
    ),
    Mutant(  # the last end decides
        pitfall="3",
        file=REWARD,
        old="words[: words.index(END)] if END in words else None",
        new="words[: len(words) - 1 - words[::-1].index(END)] if END in words else None",
        test=FIRST_END,
    ),
    Mutant(  # the sampled end of turn is put in a second time
        pitfall="4", file=CHAT, old="return ids[1:] if ended else ids", new="return ids", test=TURNS
    ),
    Mutant(  # the template's newline after the end of turn is lost
        pitfall="4",
        file=CHAT,
        old="return ids[1:] if ended else ids",
        new="return ids[2:] if ended else ids",
        test=TURNS,
    ),
    Mutant(  # what a document spells as a special token is one
        pitfall="4",
        file="chat/template.py",
        old='message.role != "tool" or self._spelled is None',
        new="True",
        test=CHAT_TEST + "test_pitfall_04_a_document_cannot_end_its_turn_and_speak_for_the_model",
    ),
    Mutant(  # the reply is rendered as a conversation of its own, without what closes the turn before
        pitfall="4",
        file="chat/history.py",
        old="template.render([QUESTION, answer, *reply], header=header).rpartition(place)[2]",
        new="template.render(reply, header=header)",
        test=TURNS,
    ),
    Mutant(  # the header of the answer is left to the model
        pitfall="4",
        file="chat/template.py",
        old="add_generation_prompt=header",
        new="add_generation_prompt=False",
        test=TURNS,
    ),
    Mutant(  # an exception is a wrong answer
        pitfall="26",
        file=BASE,
        old='Score(value=math.nan, status="error", diagnostics=',
        new='Score(value=0.0, status="invalid", diagnostics=',
        test="tests/unit/rewards/test_base.py::test_pitfall_26_an_exception_is_an_error_and_not_a_wrong_answer",
    ),
    Mutant(  # an end in the prompt counts
        pitfall="28",
        file=REWARD,
        old="    words = prompt.split() + written\n    if len(words)",
        new="    words = _before_end(prompt + ' ' + completion) or []\n    if len(words)",
        test=EXPLOITS,
    ),
    Mutant(  # the gold anywhere will do
        pitfall="28",
        file=REWARD,
        old="correct = float(found == answer)",
        new="correct = float(answer in completion.split())",
        test=EXPLOITS,
    ),
    Mutant(  # every boxed number is right
        pitfall="28", file=REWARD, old="correct = float(found == answer)", new="correct = 1.0", test=EXPLOITS
    ),
    Mutant(  # signs are dropped
        pitfall="28",
        file=REWARD,
        old="correct = float(found == answer)",
        new='correct = float(found.lstrip("-") == answer.lstrip("-"))',
        test=SIGNS,
    ),
    Mutant(  # golds without the modulus
        pitfall="28",
        file="rewards/expressions.py",
        old="return value if self.modulus is None else value % self.modulus",
        new="return value",
        test=GOLD,
    ),
    Mutant(  # left and right operand change places
        pitfall="28",
        file="rewards/expressions.py",
        old="right, left = stack.pop(), stack.pop()",
        new="left, right = stack.pop(), stack.pop()",
        test=GOLD,
    ),
    Mutant(  # scores are passed on unchecked
        pitfall="29", file=BASE, old="return checked(verifier.name, score)", new="return score", test=ONE_SCORE
    ),
    Mutant(  # NaN and infinity pass
        pitfall="29", file=BASE, old=" or not math.isfinite(number)", new="", test=OWN_SCORE
    ),
    Mutant(  # the parts are not looked at
        pitfall="29",
        file=BASE,
        old='{"value": score.value, **score.parts} if',
        new='{"value": score.value} if',
        test=ONE_SCORE,
    ),
    Mutant(  # training draws from everything
        pitfall="38", file=TASK, old="return not self.is_held_out(text)", new="return True", test=DISJOINT
    ),
    Mutant(  # evaluation draws from everything
        pitfall="38",
        file=TASK,
        old="lambda text: self.is_held_out(text) and text not in examples",
        new="lambda text: text not in examples",
        test=DISJOINT,
    ),
    Mutant(  # other prompts in every run
        pitfall="38", file=TASK, old="derive_seed(EVAL_SEED,", new="derive_seed(self.seed,", test=FIXED
    ),
    Mutant(  # the split is that of Python's salted hash: another one in every process
        pitfall="38",
        file=TASK,
        old='int.from_bytes(digest, "big") < share * 2**64',
        new='int.from_bytes(digest[:0] + hash(expression).to_bytes(9, "big", signed=True)[1:], "big") < share * 2**64',
        test=FIXED,
    ),
]
