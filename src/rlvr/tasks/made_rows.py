"""Made questions of two hops, in MuSiQue's form: what a multi-hop run needs where there is no data.

question    Where was the builder of tower 17 born?                       answer   town 4
paragraphs  # tower 17: tower 17 was built by person 40.    # person 40: person 40 was born in town 4.
            and another tower and another person, who support nothing
"""

from __future__ import annotations

import random

from rlvr.rows import Row

NAME = "made"
"""What `task.train_sets` calls them: `made[:700]`."""

BUILDINGS = ("bridge", "castle", "harbor", "library", "mill", "school", "theater", "tower")
NUM_NUMBERS = 100


def made_rows() -> list[Row]:
    """800 different questions, the same ones always."""
    rng = random.Random(NAME)
    asked = [(building, number) for building in BUILDINGS for number in range(NUM_NUMBERS)]
    return [_row(place, *asked[place], rng) for place in rng.sample(range(len(asked)), len(asked))]


def _row(place: int, building: str, number: int, rng: random.Random) -> Row:
    (builder, other_builder), (town, other_town) = (rng.sample(range(NUM_NUMBERS), 2) for _ in range(2))
    other = (number + rng.randrange(1, NUM_NUMBERS)) % NUM_NUMBERS
    paragraphs = [  # those that support, in the order in which they are found
        (f"{building} {number}", f"was built by person {builder}.", True),
        (f"person {builder}", f"was born in town {town}.", True),
    ]
    for noise in (
        (f"{building} {other}", f"was built by person {other_builder}.", False),
        (f"person {other_builder}", f"was born in town {other_town}.", False),
    ):
        paragraphs.insert(rng.randint(0, len(paragraphs)), noise)
    fields = {
        "id": f"{NAME}_{place}",
        "question": f"Where was the builder of {building} {number} born?",
        "answer": f"town {town}",
        "paragraphs": [
            {"idx": idx, "title": title, "paragraph_text": f"{title} {text}", "is_supporting": is_supporting}
            for idx, (title, text, is_supporting) in enumerate(paragraphs)
        ],
    }
    return Row(f"{NAME}, question {place}", fields)
