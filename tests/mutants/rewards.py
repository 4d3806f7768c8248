"""Bugs planted in the readers of answers, in the parts of a reward and in their sum."""

from tests.mutants.mutant import Mutant

NUMBERS = "tests/unit/rewards/test_numbers.py"
EXTRACT = "tests/unit/rewards/test_extract.py"
NUMERIC = "tests/unit/rewards/test_numeric.py"
FORMAT = "tests/unit/rewards/test_format.py"
FINQA = "tests/unit/rewards/test_finqa.py"
TEXT = "tests/unit/rewards/test_text.py"
JUDGING = "tests/unit/rewards/test_judging.py"
MARKS = f"{TEXT}::test_pitfall_28_signs_points_and_sharps_are_part_of_the_answer"
PARTS = "tests/unit/rewards/test_parts.py"
PERTURBED = f"{NUMERIC}::test_pitfall_28_each_perturbation_gets_its_verdict_from_the_reward"
JUDGED = f"{JUDGING}::test_pitfall_28_each_perturbation_gets_its_verdict_from_the_metric"
CHANGED = f"{NUMBERS}::test_pitfall_28_words_that_change_the_number_are_no_unit"
OTHER_VALUE = f"{NUMBERS}::test_pitfall_28_no_unit_stands_for_another_value"
SHOWN = f"{NUMERIC}::test_pitfall_28_finqa_takes_the_gold_rounded_to_the_three_or_more_digits_that_are_shown"
NOT_A_NUMBER = f"{NUMBERS}::test_pitfall_28_what_is_not_one_number_is_invalid_and_never_0"
ONE_BLOCK = f"{EXTRACT}::test_pitfall_28_nothing_but_one_closed_solution_block_at_the_end_holds_an_answer"
BOX = f"{EXTRACT}::test_pitfall_28_the_answer_in_the_box"
HASHES = f"{EXTRACT}::test_pitfall_28_the_answer_after_the_hashes"
BAD_GOLD = f"{NUMERIC}::test_pitfall_28_a_gold_that_cannot_be_read_matches_nothing_and_names_its_example"
FAILED_PART = f"{PARTS}::test_pitfall_26_a_failed_part_is_no_reward_at_all"
ONE_NUMBER = f"{PARTS}::test_pitfall_29_a_part_that_gives_no_finite_number_is_an_error_naming_reward_and_part"

GOLD_FAILURE = 'return Grade(value=math.nan, status="error", message=unreadable_gold(example))'
UNCLOSED = """text.count(markers.solution_end) != 1:
        return None
    head, _, tail = text.partition(markers.solution_start)
    solution, closed, after = tail.partition(markers.solution_end)
    if not closed:"""
END_OF_BOX = "return inside[:position].strip() or None\n    return None"


def _bug(file: str, old: str, new: str, test: str) -> Mutant:
    pitfall = test.partition("test_pitfall_")[2][:2]
    return Mutant(pitfall=pitfall, file=f"rewards/{file}", old=old, new=new, test=test)


MUTANTS = [
    # unparsable text becomes 0
    _bug(
        "numeric.py",
        "return None if text is None else parse_answer(text)",
        "return None if text is None else parse_answer(text) or Number(Fraction(0))",
        f"{NUMERIC}::test_pitfall_26_what_cannot_be_read_is_invalid_and_has_a_value_of_its_own",
    ),
    _bug(
        "numbers.py",
        "if (sign and inner_sign) or not (whole or decimals):\n        return None",
        "if sign and inner_sign:\n        return None\n    whole = whole or '0'",
        NOT_A_NUMBER,
    ),
    # the sign is dropped, in each of its spellings
    _bug("numbers.py", 'if "-" in (sign, inner_sign):', "if False:", PERTURBED),
    _bug("numbers.py", 'if "-" in (sign, inner_sign):', 'if sign == "-":', PERTURBED),
    _bug("numbers.py", "Number(-number.value, number.unit, number.decimals)", "number", PERTURBED),
    _bug(
        "numbers.py",
        "text = text.translate(_MINUS_SIGNS)",
        'text = text.translate(dict.fromkeys(_MINUS_SIGNS, ""))',
        f"{NUMBERS}::test_pitfall_28_every_spelling_of_a_minus_is_a_minus",
    ),
    # commas: numbers with commas are wrong, or commas may stand anywhere
    _bug("numbers.py", "([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?", "([0-9]+)?", PERTURBED),
    _bug("numbers.py", "([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?", "([0-9][0-9,]*)?", NOT_A_NUMBER),
    # percent signs are ignored, or always mean hundredths
    _bug("numbers.py", "return _PERCENT if percent else _ONE", "return _ONE", PERTURBED),
    _bug("numbers.py", "return (values, written) if may_drop else (values,)", "return (values,)", PERTURBED),
    # a unit is worth what suits the gold
    _bug("numbers.py", "    if (a.unit is _ONE) == (b.unit is _ONE):\n", "    if a.unit is b.unit:\n", OTHER_VALUE),
    _bug(
        "numbers.py", "may_drop = abs(bare) >= 1 if other is _PERCENT else stated_scale", "may_drop = True", OTHER_VALUE
    ),
    _bug("numbers.py", "abs(bare) >= 1 if other is _PERCENT else stated_scale", "other is _PERCENT", OTHER_VALUE),
    # whatever follows a number is a unit; a second number, too
    _bug("numbers.py", "    if not _all_units(words):\n        return None\n", "", NOT_A_NUMBER),
    _bug("numbers.py", " and _NOT_UNITS.isdisjoint(_PIECES.split(word.lower()))", "", PERTURBED),
    _bug("numbers.py", "_NOT_UNITS.isdisjoint(_PIECES.split(word.lower()))", "word.lower() not in _NOT_UNITS", CHANGED),
    _bug("numbers.py", '*_SCALES) for plural in ("", "s"))', '*_SCALES) for plural in ("",))', CHANGED),
    # numbers are compared as floats
    _bug(
        "numbers.py",
        "return Fraction(digits * 10**shift) if shift >= 0 else Fraction(digits, 10**-shift)",
        "return Fraction(float(f'{digits}e{shift}'))",
        PERTURBED,
    ),
    # two digits are enough for FinQA, or digits are not looked at
    _bug("numeric.py", "abs(written) < 10 ** (FINQA_DIGITS - 1) * last_digit", "False", SHOWN),
    _bug("numeric.py", "return 2 * difference * abs(written) <=", "return difference * abs(written) <=", SHOWN),
    # yes is no
    _bug("numbers.py", '"no": YesNo(False)', '"no": YesNo(True)', PERTURBED),
    _bug("numbers.py", '"no": YesNo(False)', '"no": Number(Fraction(0))', PERTURBED),
    # a huge exponent is worked out
    _bug(
        "numbers.py", "if len(exponent) > 3 or abs(int(exponent)) > MAX_EXPONENT:", "if len(exponent) > 4:", PERTURBED
    ),
    # an unclosed, an early, a second solution block; a number after it; junk before the reasoning
    _bug("extract.py", UNCLOSED, UNCLOSED.replace("!= 1", "> 1").replace("not closed", "False"), ONE_BLOCK),
    _bug("extract.py", "text.count(markers.solution_start) != 1 or ", "", ONE_BLOCK),
    _bug("extract.py", "if blocks is None or blocks.after.strip():", "if blocks is None:", ONE_BLOCK),
    _bug("extract.py", "blocks.reasoning is not None and blocks.before.strip()", "False", ONE_BLOCK),
    _bug("extract.py", "!= has_reasoning or has_reasoning > 1", "!= has_reasoning", ONE_BLOCK),
    _bug("extract.py", "if not (opened and ended):", "if False:", ONE_BLOCK),
    _bug("extract.py", "return blocks.solution.strip() or None", "return blocks.solution.strip()", ONE_BLOCK),
    # an unclosed box, two boxes, braces cut short, the bare text
    _bug("extract.py", END_OF_BOX, END_OF_BOX.replace("return None", "return inside.strip() or None"), BOX),
    _bug("extract.py", "if len(boxes) != 1 or", "if not boxes or", BOX),
    _bug("extract.py", "(?:boxed|fbox)(?![A-Za-z])", "boxed(?={)", BOX),
    _bug("extract.py", "            depth += 1", "            pass", BOX),
    _bug(
        "extract.py",
        '!= "\\\\boxed":\n        return None',
        '!= "\\\\boxed":\n        return text.strip() or None',
        BOX,
    ),
    # only the end of a long text is read
    _bug(
        "extract.py",
        "    has_reasoning = text.count",
        "    text = text[-300:]\n    has_reasoning = text.count",
        f"{EXTRACT}::test_pitfall_28_a_long_text_hides_no_answer[solution]",
    ),
    _bug(
        "extract.py",
        "    boxes = list(",
        "    text = text[-300:]\n    boxes = list(",
        f"{EXTRACT}::test_pitfall_28_a_long_text_hides_no_answer[boxed]",
    ),
    # an answer that was cut off counts
    _bug(
        "extract.py",
        "if attempt.stop_reason is not StopReason.STOP:",
        "if False:",
        f"{EXTRACT}::test_pitfall_28_a_completion_that_was_cut_off_has_no_answer",
    ),
    # of two #### the first one counts
    _bug("extract.py", "if text.count(HASH) != 1:", "if HASH not in text:", HASHES),
    # the format is found somewhere in the text
    _bug(
        "extract.py",
        "and not outside.strip())",
        ")",
        f"{FORMAT}::test_pitfall_28_the_exact_format_is_the_whole_text",
    ),
    # a gold that cannot be read matches, or is only a wrong answer
    _bug("numeric.py", GOLD_FAILURE, "return RIGHT", BAD_GOLD),
    _bug("numeric.py", GOLD_FAILURE, "return NOT_RIGHT", BAD_GOLD),
    # the bonus for a number is paid for a yes
    _bug(
        "numeric.py",
        "return RIGHT if isinstance(prediction, Number) and",
        "return RIGHT if prediction is not None and",
        f"{NUMERIC}::test_pitfall_28_the_number_check_pays_for_numbers_only",
    ),
    # closeness is paid for unasked
    _bug(
        "numeric.py",
        "close_credit: float = 0.0",
        "close_credit: float = 0.5",
        f"{NUMERIC}::test_pitfall_28_a_wrong_number_earns_nothing_unless_shaping_is_asked_for",
    ),
    # each letter of an alias is right
    _bug(
        "text.py",
        "if not isinstance(aliases, list | tuple) or not all(isinstance(alias, str) for alias in aliases):",
        "if False:",
        f"{TEXT}::test_pitfall_28_aliases_that_are_no_list_of_texts_are_refused",
    ),
    # an empty text is the same as a gold of which nothing is left
    _bug(
        "text.py",
        "return normalize_answer(marked).translate(_SHOWN) or text.strip().lower()",
        "return normalize_answer(marked).translate(_SHOWN)",
        f"{TEXT}::test_pitfall_28_an_empty_answer_matches_nothing_even_if_the_gold_vanishes",
    ),
    # signs and points are deleted, as SQuAD does
    _bug("text.py", "marked = _MARKS.sub(lambda mark: chr(_PRIVATE + ord(mark[0])), text)", "marked = text", MARKS),
    _bug("text.py", "if any(character.isalpha() for character in text):", "if False:", MARKS),
    # a program without a space after its commas is no program
    _bug(
        "finqa.py",
        "dict.fromkeys((program, _mended(program)))",
        "(program,)",
        f"{FINQA}::test_pitfall_28_the_punctuation_of_a_program_is_mended_for_reward_and_metric",
    ),
    # a program that fails gives 0, which could be the gold
    _bug(
        "finqa.py",
        "if invalid or result == NOTHING or",
        "if",
        f"{FINQA}::test_pitfall_28_a_program_that_has_no_result_is_invalid_and_no_crash",
    ),
    # the metric takes what the reward takes for close
    _bug(
        "judging.py",
        "correct=same_answer(prediction, gold)",
        "correct=abs(float(str(prediction)) / float(str(gold)) - 1) < 0.1",
        JUDGED,
    ),
    _bug(
        "judging.py",
        '        raise UserError(f"{unreadable_gold(attempt.example)}',
        '        gold = prediction_of(attempt, AnswerFormat(answer_in="whole")) or parse_answer("0")\n'
        '        _ = UserError(f"{unreadable_gold(attempt.example)}',
        f"{JUDGING}::test_pitfall_28_a_gold_that_cannot_be_read_ends_the_evaluation",
    ),
    # a completion that never ended has the right format
    _bug(
        "format.py",
        "float(ended and self.format.is_exact(attempt.text))",
        "float(self.format.is_exact(attempt.text))",
        "tests/unit/rewards/test_format.py::test_pitfall_28_a_completion_that_was_cut_off_earns_no_format",
    ),
    # markers are paid for in any order, or as often as they come
    _bug(
        "format.py",
        "if start > end and",
        "if start >= 0 and",
        f"{FORMAT}::test_pitfall_28_markers_in_another_order_earn_less",
    ),
    _bug(
        "format.py",
        " and start == text.rfind(marker):",
        ":",
        f"{FORMAT}::test_pitfall_28_a_quarter_for_each_marker_that_occurs_exactly_once",
    ),
    # FinQA is judged as GSM8K is
    Mutant(
        pitfall="28",
        file="tasks/catalog.py",
        old="else FinqaJudge(format=form)",
        new="else NumericJudge(format=form)",
        test="tests/unit/tasks/test_catalog.py::test_pitfall_28_each_task_has_the_metric_of_its_data",
    ),
    # a failed part is a wrong answer
    _bug("parts.py", "        if errors:\n", "        if not values:\n", FAILED_PART),
    _bug(
        "parts.py",
        'return Grade(value=math.nan, status="error", message=f"',
        'return Grade(value=0.0, message=f"',
        f"{PARTS}::test_pitfall_26_a_part_that_raises_has_failed_and_spares_the_others",
    ),
    _bug(
        "parts.py",
        'status="invalid" if invalid else "scored"',
        'status="scored"',
        f"{PARTS}::test_pitfall_26_an_error_is_told_from_an_unreadable_answer",
    ),
    # lists, NaN and other non-numbers pass through
    _bug("parts.py", "if not isinstance(grade, Grade):", "if False:", ONE_NUMBER),
    _bug("parts.py", 'if grade.status != "error" and not _is_finite(grade.value):', "if False:", ONE_NUMBER),
    # grades change places
    _bug(
        "parts.py",
        "zip(self._waiting, found, strict=True)",
        "zip(self._waiting, found[::-1], strict=True)",
        f"{PARTS}::test_pitfall_29_grades_stay_with_their_parts_whoever_is_first",
    ),
]
