"""Texts to probe with: the task's own, and awkward ones drawn by seed."""

import random

from rlvr.checks.patient import Patient, solved

LONG = " ".join(f"word{number}" for number in range(600))
NUM_AWKWARD, NUM_OWN = 24, 8
PIECES = (
    *(
        "Ein Größenvergleich: 3 × 4 = 12",
        "naïve",
        "Ångström",
        "<!-- c -->",
        "Ελλάδα",
        "Москва",
        "東京",
        "한국",
        "مرحبا",
        "🙂",
        "—",
    ),
    *("½", "x²", "ﬁne", "①", "ＡＢ", "no\u00a0break", "“so”", "it's", "iPhone", "USA", "McCarthy", "a.b.c", "e-mail"),
    *("1,234.50", "007", "3.0", "-2", "1e9", "12 345", "50%", "$9.99", "0.10", "7/8", "3 < 4 > 2", "a=b", "x != y"),
    *("<b>bold</b>", "&amp;", "{x}", "{{ y }}", "{% z %}", "\\boxed{\\frac{1}{2}}", "\\n", "C:\\dir", "%s"),
    *('{"a": [1, "x"]}', "`code`", "**bold**", "$x_1$", "#tag", "@name", "[1] (2)", "a|b", "~~no~~", '"quoted"'),
    *("Answer: 4", "Question: why?", "User: hi", "Assistant: yes.", "system", "Human: no", "Response: ok", "Final: 5"),
)
BREAKS = (
    " ",
    " , ",
    ", ",
    " ; ",
    " . ",
    " ? ",
    "  ",
    "    ",
    "\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\n- ",
    "\n1. ",
    "\n# ",
    "\n> ",
    " \n",
)


def awkward(seed: int = 0) -> list[str]:
    """Each piece at least once, in texts that begin and end with no space."""
    rng, texts = random.Random(seed), []
    pieces = list(PIECES)
    rng.shuffle(pieces)
    size = -(-len(pieces) // NUM_AWKWARD) + 2
    for number in range(NUM_AWKWARD):
        chosen = [*pieces[number::NUM_AWKWARD], *rng.sample(PIECES, 2)][:size]
        rng.shuffle(chosen)
        texts.append("".join(part for piece in chosen for part in (piece, rng.choice(BREAKS))).strip())
    # every break, too
    texts.append("".join(f"Words{number}.{chars}" for number, chars in enumerate(BREAKS)).strip())
    texts += [f"{texts[0]} {LONG} end", "- a list\n- of two", "lower case. Then upper.", "(a), b", "x"]
    return texts


def asked(patient: Patient) -> list[str]:
    """What the task says to the model."""
    examples = [patient.task.train_example(index) for index in range(NUM_OWN)]
    return list(dict.fromkeys(message.content for example in examples for message in example.messages))


def answered(patient: Patient) -> list[str]:
    """Right completions, where they are known."""
    return [turns[-1] for _, turns in solved(patient, NUM_OWN) if isinstance(turns[-1], str)]
