"""Bugs planted in the official scorers: kindnesses that official evaluators do not show."""

from tests.mutants.mutant import Mutant

ODDITIES = "tests/unit/rewards/official/test_rows.py::test_pitfall_28_every_oddity_of_the_official_scorers_is_kept"

MUTANTS = [
    Mutant(
        pitfall="28",
        file="rewards/official/gsm8k.py",
        old='re.compile(r"#### (-?[0-9.,]+)")',
        new='re.compile(r"####\\s*\\$?(-?[0-9.,]+)")',
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/gsm8k.py",
        old="return extract(prediction) == wanted",
        new="return extract(prediction).rstrip('.') == wanted",
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/text.py",
        old='str.maketrans("", "", string.punctuation)',
        new='str.maketrans(string.punctuation, " " * len(string.punctuation))',
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/text.py",
        old="return float(not prediction and not gold)",
        new="return 0.0",
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/hotpotqa.py",
        old="ZERO if is_closed and predicted != wanted else",
        new="ZERO if predicted == '' else",
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/musique.py",
        old="right = all(prediction.is_answerable == gold.is_answerable for prediction, gold in pairs)",
        new="right = any(prediction.is_answerable == gold.is_answerable for prediction, gold in pairs)",
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/finqa_execute.py",
        old="    body = tokens[:-1]\n",
        new='    body = [token for token in tokens if token != "EOF"]\n',
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/finqa_execute.py",
        old='return number(text.replace("$", "").strip().split("(")[0].strip())',
        new='return number(text.replace("$", "").strip(" ()"))',
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/finqa_execute.py",
        old="return None if percent is None else percent / 100.0",
        new="return percent",
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/finqa_equal.py",
        old="return [step] if",
        new='return [step.strip("|")] if',
        test=ODDITIES,
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/finqa.py",
        old="return not invalid and result == gold",
        new="return not invalid and (result == gold or result == gold * 100)",
        test="tests/unit/rewards/official/test_finqa.py::test_pitfall_28_execution_knows_no_tolerance",
    ),
    Mutant(
        pitfall="28",
        file="rewards/official/formulas.py",
        old="return sizes[one].is_small and sizes[other].is_small and self._simplify_alike(one, other)",
        new="return values[one] is not None or self._simplify_alike(one, other)",
        test="tests/unit/rewards/official/test_finqa.py::"
        "test_pitfall_28_a_program_that_works_on_the_same_value_for_hours_is_not_the_same",
    ),
]
