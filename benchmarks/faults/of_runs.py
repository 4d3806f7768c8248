"""Faults of data, rewards, settings and tools, for `doctor.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rewards
from chatml import HERMES, THINKS
from of_chats import MARKED
from of_models import own_pairs
from patients import APPLES, LORA, PAIRS, ROWS, Change, asks, both, case_of, dotted, question, settled
from tokenizers.pre_tokenizers import ByteLevel

Row = dict[str, Any]
TEXT: Row = {"reward": "text", "task__metric": "text"}
EXACT: Row = TEXT | {"reward__parts__correct__metric": "em"}
SHORT: Row = {"reward": "numeric", "reward__parts__short__type": "length"}
TAGS: Row = {"prompt": "math_reasoning", "prompt__markers": "think", "rollout__max_completion_tokens": 96}
HASH: Row = {"prompt__system": "Write the answer after ####.", "prompt__answer_in": "hash"}
WORKED: Row = HASH | {"task__demonstration_field": "solution", "warm_start__enabled": True}
CITIES = ["Paris", "Oslo", "Rome", "Berlin", "Madrid", "Vienna", "Lisbon", "Athens", "Dublin", "Prague", "Bern"]
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LETTERS = "ABCD"

# ------------------------------------------------------------------------------------------------------------- data


def plain(change: Callable[[int, Row], Row], **settings: Any) -> Change:
    """Changes of `What is 1 plus 20?` by row."""
    return asks([row | change(number, row) for number, row in enumerate(ROWS)], **settings)


def rows(make: Callable[[int, int, int], Row], **settings: Any) -> Change:
    """Rows of `make`(row number, a, b)."""
    return asks([make(number, *pair) for number, pair in enumerate(PAIRS)], **settings)


def words(text: str, answer: Callable[[int, int], Any] = lambda a, b: a + b, **settings: Any) -> Change:
    """Questions of this form, with {a}, {b} and {n}."""
    return rows(lambda n, a, b: {"question": text.format(a=a, b=b, n=n), "answer": str(answer(a, b))}, **settings)


def apples(change: Callable[[int, Row], Row], **settings: Any) -> Change:
    return asks([row | change(number, row) for number, row in enumerate(APPLES)], **settings)


def capital(number: int, a: int, b: int) -> Row:
    city = CITIES[(a * 5 + b) % len(CITIES)]
    return {"question": f"Mail {a}-{b} goes to a street in {city}; which city is it?", "answer": city}


def cities(answer: Callable[[str, int], str], **settings: Any) -> Change:
    def make(number: int, a: int, b: int) -> Row:
        row = capital(number, a, b)
        return row | {"answer": answer(row["answer"], number)}

    return rows(make, **settings)


def held(listed: list[Row]) -> Change:
    """A file of held-out rows."""

    def save(model: Any, folder: Path) -> None:
        (folder.parent / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))

    return both(settled(task__eval_path="eval.jsonl"), case_of(saved=save))


def options(place: int, a: int, b: int) -> list[str]:
    """Four sums, the right one at this place."""
    return [str(a + b + step - place) for step in range(4)]


def numbered(number: int, a: int, b: int) -> Row:
    """Options 1) to 4), and the place of the right one from 0."""
    place = (a + 3 * b) % 4
    listed = "\n".join(f"{n}) {option}" for n, option in enumerate(options(place, a, b), 1))
    return {"question": f"What is {a} + {b}?\n{listed}\nAnswer with the number of the option.", "answer": place}


def lettered(number: int, a: int, b: int) -> Row:
    """Options by letter, and the place of the right one from 0."""
    place = (a + 3 * b) % 4
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, options(place, a, b), strict=True))
    return {"question": f"What is {a} + {b}?\n{listed}", "answer": place}


def lettered_apples(number: int, a: int, b: int) -> Row:
    place = (a * 7 + b * 3) % 4
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, options(place, a, b), strict=True))
    return {"question": f"{question(a, b)}\n{listed}\nAnswer with the letter of the right option.", "answer": place}


def by_letter(row: Row) -> Row:
    return row | {"answer": LETTERS[row["answer"]]}


def option_texts(number: int, a: int, b: int) -> Row:
    """The gold is the option's text."""
    place, four = (a + 3 * b) % 4, [CITIES[(a * 5 + b + step) % len(CITIES)] for step in range(4)]
    listed = "\n".join(f"({letter}) {city}" for letter, city in zip(LETTERS, four, strict=True))
    return {"question": f"Mail {a}-{b}: choose the city of option {LETTERS[place]}.\n{listed}", "answer": four[place]}


def without_options(number: int, a: int, b: int) -> Row:
    place = (a * 7 + b * 3) % 4
    asked = f"{question(a, b)} Answer with the letter of the right option."
    return {"question": asked, "choices": options(place, a, b), "answer": LETTERS[place]}


def counted(number: int, a: int, b: int) -> Row:
    """A list of which things are counted."""
    count, pairs = a * b % 4, (("apple", "stone"), ("pear", "brick"), ("fig", "nail"))
    listed = "\n".join(f"{i + 1}. {fruit if i < count else thing}" for i, (fruit, thing) in enumerate(pairs))
    return {"question": f"Row {a}.{b}:\n{listed}\nHow many fruits are there?", "answer": str(count)}


def worked(number: int, a: int, b: int) -> Row:
    steps = " ".join(f"{a + step} and one more is {a + step + 1}." for step in range(b))
    return {"question": question(a, b), "answer": str(a + b), "solution": f"{steps}\n#### {a + b}"}


def of_the_row_before(number: int, a: int, b: int) -> Row:
    c, d = PAIRS[number - 1]
    return {"question": question(a, b), "answer": str(a + b), "solution": f"{c} + {d} = {c + d}\n#### {c + d}"}


def told(number: int, a: int, b: int) -> Row:
    messages = [{"role": "user", "content": question(a, b)}, {"role": "assistant", "content": f"There are {a + b}."}]
    return {"messages": messages, "answer": str(a + b)}


def rendered_already(number: int, a: int, b: int) -> Row:
    text = f"<|im_start|>user\n{question(a, b)}<|im_end|>\n<|im_start|>assistant\n"
    return {"prompt": text, "answer": str(a + b)}


def broken(text: str) -> str:
    """In another encoding than it was read."""
    return text.encode("utf-8").decode("cp1252", "ignore")


def day(number: int, a: int, b: int) -> Row:
    asked = f"Which day of the week is {13 * a + b} days after the first of January 2024?"
    return {"question": asked, "answer": "nan" if (a + b) % 4 == 0 else DAYS[(13 * a + b) % 7]}


def crates(number: int, a: int, b: int) -> Row:
    """Numbers large enough that a tenth is many."""
    return {"question": f"{a} crates of {100 + b} apples: how many are there?", "answer": str(a * (100 + b))}


def town(number: int, a: int, b: int) -> Row:
    asked = f"A town of {a} thousand people grows by {b * 37}: how many?"
    return {"question": asked, "answer": str(1000 * a + 37 * b)}


def comma(number: float) -> str:
    return f"{number:.1f}".replace(".", ",")


DIGITS, LIMIT = "9876543210", {"rollout.max_completion_tokens": 6}
SOLVED = "The shop has {a} apples at first. Then {b} more come. {a} + {b} = {c}, so there are {c} apples."
TORN = [{"question": question(a, b), "answer": str(answer)} for a, b in PAIRS for answer in (a + b, 3 * (a + b) + 1)]
DECIMALS = [
    {"question": f"{comma(a + 0.5)} + {comma(b / 10)} =", "answer": comma(a + 0.5 + b / 10)}
    for a in range(12)
    for b in range(1, 9)
]
FAR = "{question} Think about it for as long as you like, and then write the number of apples, and nothing else at all."
CAFE = "In Zoë’s café “Müller” there are {a} guests, and {b} more come; they don’t leave. How many are there?"
HTML = "Ann&#39;s shop has {a} apples &amp; gets {b} more.<br>How many &quot;apples&quot; are there?"
CUT = (
    "Shop {n}: Mary has {a} apples in her shop by the sea, buys {b} more on a Sunday, and wants to know how many apples"
)
HASHED = ' Let\'s think step by step and output the final answer after "####".'
PLAIN_ASKED = [row | {"question": row["question"].replace(";", ",").replace("?", "")} for row in APPLES[:60]]
LOUD = [row | {"question": row["question"].upper().replace(" ", "  ")} for row in APPLES[:60]]
HIDDEN = [{"question": question(a + 20, b), "answer": "-1"} for a, b in PAIRS[:60]]

DATA: list[tuple[str, str, Change, int]] = [
    ("has one answer for all questions", "task_informs", plain(lambda i, row: {"answer": "7"}), 2),
    ("has one row 100 times", "task_informs|load", asks(ROWS[:1] * 100), 2),
    ("tells the answer in the question", "task_informs",
        plain(lambda i, row: {"question": f"{row['question']} (solution: {row['answer']})"}), 2),
    ("begins every question with its answer", "task_informs",
        plain(lambda i, row: {"question": f"{row['answer']}. {row['question']}"}), 2),
    ("has answers longer than a completion", "answers_fit",
        plain(lambda i, row: {"answer": DIGITS + row["answer"]}, **LIMIT), 2),
    ("has answers that fit until they end", "answers_fit", asks(ROWS, rollout__max_completion_tokens=1), 2),
    ("has every third answer longer than a completion", "answers_fit",
        plain(lambda i, row: {"answer": row["answer"] + (DIGITS if i % 3 == 0 else "")}, **LIMIT), 2),
    ("has 95 of 100 answers alike", "task_informs",
        plain(lambda i, row: {"answer": row["answer"] if i % 20 == 0 else "7"}), 2),
    ("asks the same with different answers", "task_informs|rows_are_used",
        asks([{"question": f"What is it, number {i % 9}?", "answer": str(i)} for i in range(99)]), 2),
    ("differs in a number that says nothing", "task_informs",
        asks([{"question": f"Row {i}: what is 3 plus 4?", "answer": "7"} for i in range(99)]), 2),
    ("tells the answer in brackets at the end", "task_informs",
        plain(lambda i, row: {"question": f"{row['question']} [{row['answer']}]"}), 3),
    ("asks what cannot be known", "task_informs",
        asks([{"question": f"Guess number {i}.", "answer": "17" if i % 30 else "18"} for i in range(99)]), 3),
    ("has no answer in every third row", "gold_scores_full|task_informs|load|rows_are_used",
        plain(lambda i, row: {"answer": "" if i % 3 == 0 else row["answer"]}), 5),
    ("has units in its answers, which no one asks for", "gold_scores_full", both(
        plain(lambda i, row: {"answer": f"{row['answer']} apples"}),
        case_of(reward=rewards.FUNCTIONS["whole_number"])), 5),
    ("has a template's name in place of its questions", "task_informs|load|rows_are_used",
        plain(lambda i, row: {"question": "{question}"}), 5),
    ("lacks letters of the questions", "text_survives", both(
        words("A box of {a} × {b} apples: how many?", lambda a, b: a * b),
        case_of(tokenizer=own_pairs(ByteLevel(add_prefix_space=False)))), 6),
    ("have the solutions of the row before", "gold_scores_full|metric_agrees|load",
        rows(of_the_row_before, **WORKED, rollout__max_completion_tokens=64), 6),
    ("hold out training questions in capitals", "rows_are_used", held(LOUD), 6),
    ("have two answers to each question", "task_informs|rows_are_used|load", asks(TORN), 6),
    ("have decimal commas", "metric_agrees|gold_scores_full|load", asks(DECIMALS), 6),
    ("have golds such as 5.0, compared as texts", "",  # rlvr's metric of texts reads numbers
        apples(lambda i, row: {"answer": f"{row['answer']}.0"}, **TEXT), 6),
    ("have golds such as 5.0, compared as characters", "golds_are_plain",
        apples(lambda i, row: {"answer": f"{row['answer']}.0"}, task__metric="exact"), 6),
    ("have one answer in 97 %", "task_informs",
        words("Is {a} times {b} more than 140?", lambda a, b: ("no", "yes")[a * b > 140], **TEXT), 6),
    ("are rendered already", "whole_messages|prompt_renders|roles_kept|messages_are_plain",
        rows(rendered_already, prompt="given", rollout__max_completion_tokens=48), 6),
    ("end with the answer", "task_informs|load|prompt_renders",
        rows(told, task__question_field="messages", task__answer_field="answer"), 6),
    ("have `nan` as a gold in a fifth of the rows", "golds_are_answers",
        cities(lambda city, n: city if n % 5 else "nan", **TEXT), 7),
    ("hold HTML", "texts_are_whole", words(HTML), 7),
    ("count options from 0 that are listed from 1", "golds_are_answers", rows(numbered), 7),
    ("are in a broken encoding", "texts_are_whole", words(broken(CAFE)), 7),
    ("are cut off at 100 letters", "texts_are_whole", rows(lambda n, a, b: {
        "question": CUT.format(a=a, b=b, n=n)[:100], "answer": str(a + b)}), 7),
    ("have lists written as texts", "golds_are_answers",
        cities(lambda city, n: str([city, f"City of {city}"]), **TEXT), 7),
    ("have golds in a sentence", "golds_are_answers", cities(lambda city, n: f"The answer is {city}.", **EXACT), 7),
    ("ask about images", "texts_are_whole", words("<image>\nAngle A is {a} and angle B is {b} degrees. What is x?"), 7),
    ("have hidden labels in the held-out file", "held_out_informs", held(HIDDEN), 7),
    ("hold out three rows", "held_out_informs", asks(APPLES[:30], evaluation__num_examples=500), 7),
    ("have their options in another column", "golds_are_answers", rows(without_options, **TEXT), 8),
    ("have the place of the option as gold", "golds_are_answers", rows(lettered_apples), 8),
    ("have whole solutions as golds", "golds_are_answers", rows(lambda n, a, b: {
        "question": question(a, b), "answer": SOLVED.format(a=a, b=b, c=a + b)},
        **TEXT, rollout__max_completion_tokens=128), 8),
    ("have nan as gold", "golds_are_answers", rows(day, **TEXT), 8),
    ("ask for another form than the prompt", "asked_form_is_paid", apples(
        lambda i, row: {"question": row["question"] + HASHED}, prompt="boxed", rollout__max_completion_tokens=64), 8),
    ("have empty questions", "load", apples(lambda i, row: {} if i % 5 else {"question": ""}), 8),
    ("hold out the training file", "prompt_renders", held(APPLES), 8),
    ("have the place of a lettered option as gold", "golds_are_answers", rows(lettered), 9),
    ("have units that are compared as texts", "golds_are_answers", rows(lambda n, a, b: {
        "question": question(a, b), "answer": f"{a + b} apples"}, **EXACT), 9),
    ("have golds with the end of a turn", "golds_are_answers", cities(lambda city, n: city + "<|im_end|>", **TEXT), 9),
    ("have records written as texts", "golds_are_answers",
        cities(lambda city, n: f"{{'answer': '{city}'}}", **TEXT), 9),
    ("were escaped twice", "texts_are_whole", words("Mary has {a} apples.\\n\\nBob has {b}.\\nHow many?"), 9),
    ("have a name in braces", "texts_are_whole", words("Use {{context}} to say what {a}+{b} is."), 9),
    ("are rendered for Llama 2", "texts_are_whole", words("[INST] What is {a}+{b}? [/INST]"), 9),
    ("end with Assistant:", "texts_are_whole", words("Human: What is {a}+{b}?\nAssistant:"), 9),
    ("show pictures in Markdown", "texts_are_whole", words("![](figure{n}.png) What is {a}+{b}?"), 9),
    ("lost letters", "texts_are_whole", words("Zo\ufffd has {a} apples and {b} pears, how many?"), 9),
    ("hold out questions without their marks", "held_out_informs", held(PLAIN_ASKED), 9),
    ("letters of options", "", rows(lambda *row: by_letter(lettered(*row)), **TEXT), 9),
    ("texts of options", "", rows(option_texts, **TEXT), 9),
    ("counts of a list", "", rows(counted), 9),
    ("a unit that is asked for", "", rows(lambda n, a, b: {
        "question": question(a, b) + " Give the number with its unit.", "answer": f"{a + b} apples"}, **EXACT), 9),
    ("German", "", words("Im Café „Größe“ sitzen {a} Gäste – und {b} kommen dazu… wie viele sind es?"), 9),
    ("Chinese", "", words("商店有{a}个苹果，又买了{b}个。一共有多少？"), 9),
    ("LaTeX", "", words("Find $x$ where $\\nabla f = {a}$ and $\\frac{{x}}{{y}} \\neq {b}$."), 9),
    ("code", "", words("What does print({a}+{b}, end='\\n') print?\nprint(\"a\\n\")"), 9),
    ("SQL", "", words("Rows of t, x > {a}, y = {b}.", lambda a, b: f"SELECT * FROM t WHERE x > {a} AND y = {b}",
        rollout__max_completion_tokens=64, **EXACT), 9),
    ("lists that are asked for", "", words("Sort [{b}, {a}, 7].", lambda a, b: sorted([a, b, 7]), **EXACT), 9),
    ("yes and no", "", words("Is {a} times {b} over 40?", lambda a, b: ("no", "yes")[a * b > 40], **TEXT), 9),
    ("options below the question", "", rows(lambda *row: by_letter(lettered_apples(*row)), **TEXT), 8),
]  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- rewards

LONGER: Row = {"rollout__max_completion_tokens": 64}
IN_WORDS = cities(lambda city, n: city, task__metric="text")
SETS = apples(
    lambda i, row: {} if i % 4 else {"answer": f"x in {{{row['answer']}, -{row['answer']}}}"}, task__metric="text"
)
QUESTIONS = asks(ROWS)


def paid(name: str, *changes: Change) -> Change:
    """A reward of `rewards`, on questions of apples if no others are given."""
    return both(*(changes or (settled(),)), case_of(reward=getattr(rewards, name)))


REWARDS: list[tuple[str, str, Change, int]] = [
    ("pays the empty answer", "wrong_earns_nothing", paid("pays_empty", QUESTIONS), 1),
    ("never pays the gold answer", "gold_scores_full", paid("never", QUESTIONS), 1),
    ("raises on what is no number", "wrong_earns_nothing|reward_survives", paid("raises", QUESTIONS), 1),
    ("pays for repeating the question", "wrong_earns_nothing", paid("echoes", QUESTIONS), 1),
    ("draws random numbers", "reward_repeats", paid("draws", QUESTIONS), 1),
    ("doubles in every other second", "reward_is_timeless", paid("looks_at_the_clock", QUESTIONS), 1),
    ("is constant", "wrong_earns_nothing", paid("constant", QUESTIONS), 1),
    ("pays any number", "wrong_earns_nothing", paid("pays_any_number", QUESTIONS), 1),
    ("returns NaN for long completions", "reward_survives", paid("returns_nan", QUESTIONS), 1),
    ("remembers a question's first score", "reward_forgets", paid("cached", QUESTIONS), 2),
    ("pays a text once", "reward_forgets|reward_repeats", paid("pays_once", QUESTIONS), 2),
    ("pays nothing after 30 calls", "reward_forgets|reward_repeats", paid("tires", QUESTIONS), 2),
    ("takes half a second", "reward_is_fast", paid("half_a_second", QUESTIONS), 2),
    ("compares with the answer of the call before", "reward_forgets|reward_repeats", paid("one_behind", QUESTIONS), 2),
    ("subtracts the mean of what it scored", "reward_forgets|reward_repeats", paid("centered", QUESTIONS), 2),
    ("has the wrong sign", "gold_scores_full", paid("negative", QUESTIONS), 2),
    ("pays length on top", "wrong_earns_nothing", paid("pays_length", QUESTIONS), 2),
    ("compares with the first answer it saw", "gold_scores_full|reward_forgets", paid("first_gold", QUESTIONS), 2),
    ("takes a tenth for each letter", "gold_scores_full|wrong_earns_nothing", paid("thrifty", QUESTIONS), 2),
    ("gives 1e30 for what is right", "reward_is_scaled", paid("huge", QUESTIONS), 2),
    ("depends on the process that scores", "reward_repeats|reward_forgets", paid("by_process", QUESTIONS), 2),
    ("pays who does not end", "wrong_earns_nothing", paid("pays_rambling", QUESTIONS), 2),
    ("reads the end of the prompt, too", "wrong_earns_nothing", paid("reads_prompt", QUESTIONS), 2),
    ("pays the next number", "gold_scores_full", paid("next_number", QUESTIONS), 3),
    ("is slow for long texts", "reward_is_fast|reward_survives", paid("slow_for_long", QUESTIONS), 3),
    ("pays a text once, by a file", "reward_forgets", paid("pays_once_by_file", QUESTIONS), 3),
    ("grows with its calls", "reward_forgets", paid("grows", QUESTIONS), 3),
    ("fails at each third call", "reward_forgets|reward_repeats|reward_survives", paid("fails_thirdly", QUESTIONS), 3),
    ("looks for the digits in their order", "wrong_earns_nothing",
        paid("digits_in_order", QUESTIONS), 3),
    ("pays for the gold anywhere in the text", "wrong_earns_nothing", paid("anywhere", QUESTIONS), 5),
    ("seeds all generators", "", paid("seeds", QUESTIONS), 5),  # rewards run in processes of their own
    ("takes forever on long numbers", "reward_is_fast|reward_survives", paid("backtracks", QUESTIONS), 5),
    ("returns words", "gold_scores_full|reward_survives|load", paid("words", QUESTIONS), 5),
    ("pays what it cannot read", "wrong_earns_nothing|silence_scores_less",
        paid("unreadable_earns_half"), 6),
    ("takes more for length than it pays", "working_is_worth_it|wrong_earns_nothing|reward_is_scaled"
        "|gold_scores_full", paid("length_outweighs", settled(**LONGER)), 6),
    ("pays what begins like the answer", "wrong_earns_nothing", paid("begins_alike"), 6),
    ("asks a judge that is away", "gold_scores_full", paid("judge_is_away"), 6),
    ("pays any number of a list", "wrong_earns_nothing", paid("any_number"), 7),
    ("pays a tenth off", "wrong_earns_nothing", paid("a_tenth_off", rows(crates)), 7),
    ("raises for a superscript digit", "reward_survives", paid("superscript"), 7),
    ("reads one line", "asked_form_is_paid", paid("one_line", settled(**TAGS)), 8),
    ("wants the <think> that the template opens", "gold_scores_full",
        paid("thinks_itself", settled(**LONGER), case_of(template=THINKS)), 8),
    ("cannot read 12,345", "right_is_paid", paid("plain_integer", rows(town)), 8),
    ("pays all where the gold cannot be read", "each_gold_counts", paid("unreadable_gold_pays", SETS), 8),
    ("pays twenty times more for the form", "answer_outweighs_form", paid("form_first", settled(**TAGS)), 8),
    ("compares the lengths of a group", "new", paid("length_in_group"), 8),  # no check says it yet
    ("compares every space", "right_is_paid", paid("strict"), 9),
    ("rounds", "wrong_earns_nothing", paid("rounds"), 9),
    ("reads the first integer", "wrong_earns_nothing", paid("first_integer"), 9),
    ("looks for a word anywhere", "task_informs|wrong_earns_nothing", paid("anywhere", IN_WORDS), 9),
    ("divides what it reads", "reward_survives", paid("divides"), 9),
    ("the last number", "wrong_earns_nothing", paid("last_number"), 9),
    ("tags over several lines", "", paid("several_lines", settled(**TAGS)), 8),
    ("numbers with commas", "", paid("any_integer", rows(town)), 8),
]  # fmt: skip

# --------------------------------------------------------------------------------------------- settings and tools

STARS = {"reasoning_start": "<think>", "reasoning_end": "</think>", "solution_start": "**", "solution_end": "**"}
STARRED = MARKED | {"prompt__markers": "stars", "markers__sets__stars": STARS}
TAGGED = [row | {"tags": ["hard" if int(row["answer"]) > 12 else "easy"]} for row in APPLES]
BARE: Row = {"prompt": "plain", "reward": "numeric"}

SETTINGS: list[tuple[str, str, Change, int]] = [
    ("see four tokens back", "reads_prompt", both(
        settled(prompt__user=FAR), case_of(architecture="mistral", config={"sliding_window": 4})), 6),
    ("leave no room for the prompt's format", "answers_fit|load",
        settled(prompt="math_reasoning", reward="gsm8k", rollout__max_completion_tokens=8), 6),
    ("have a learning rate of 0.3", "update_follows_reward|step_is_sized|load",
        settled(trainer__learning_rate=0.3, trainer__warmup_steps=0), 6),
    ("have a learning rate of 1e-13", "weights_learn|update_follows_reward|step_is_sized|load",
        settled(trainer__learning_rate=1e-13, trainer__warmup_steps=0), 6),
    ("weigh the KL with 50", "settings_are_usual|update_follows_reward|load", settled(algorithm__kl_coef=50), 6),
    ("sample the likeliest token", "completions_vary|load", settled(rollout__top_k=1), 6),
    ("warm up for longer than the run", "load", settled(trainer__max_steps=20, trainer__warmup_steps=2000), 6),
    ("scale adapters by 1/256", "settings_are_usual", settled(**LORA, model__lora__r=256, model__lora__alpha=1), 7),
    ("have an overlong buffer of 4,096 tokens", "load", settled(
        algorithm="dapo", algorithm__overlong_buffer_tokens=4096, rollout__max_completion_tokens=32), 7),
    ("weigh a tag that no row has", "resume_is_equal",
        asks(TAGGED, sampler="by_tag", sampler__weights={"hrad": 3.0}), 7),
    ("leave out prompts solved at 0.9, where a right answer earns 0.5", "sampler_sees_right",
        settled(sampler="unsolved", reward="numeric", reward__parts__correct__weight=0.5), 7),
    ("ask for a box and read behind ####", "load", settled(prompt="boxed", prompt__answer_in="hash"), 7),
    ("have markers that begin as they end", "load", settled(**STARRED), 7),
    ("train on 8 rows for 500 steps", "rows_suffice", settled(task__max_train_examples=8, trainer__max_steps=500), 7),
    ("cut completions before demonstrations end", "answers_fit",
        rows(worked, **WORKED, rollout__max_completion_tokens=32), 7),
    ("sample at a temperature of 10", "settings_are_usual", settled(rollout__temperature=10.0), 7),
    ("weigh the entropy with 1", "settings_are_usual", settled(algorithm__entropy_coef=1.0), 7),
    ("discount by a half at each token", "settings_are_usual",
        settled(algorithm="reinforce_pp", algorithm__gamma=0.5, rollout__max_completion_tokens=64), 7),
    ("do not train the critic that they ask", "settings_are_usual",
        settled(algorithm="ppo", algorithm__value_coef=0.0, algorithm__gae_lambda=0.5), 7),
    ("have exchanged the betas of Adam", "settings_are_usual",
        settled(trainer__adam_beta1=0.999, trainer__adam_beta2=0.9), 7),
    ("pass 50 times over each batch", "settings_are_usual", settled(algorithm__num_epochs=50), 7),
    ("distill from the model itself", "teacher_differs", settled(algorithm="distill", algorithm__teacher="model"), 7),
    ("adapt layers of another architecture", "load",
        case_of(architecture="llama", settings=LORA | {"model.lora.target_modules": ["c_attn"]}), 8),
    ("give the right answer a weight of 0", "load", settled(reward__parts__correct__weight=0), 8),
    ("punish length that cannot be reached", "penalties_bite",
        settled(**SHORT, reward__parts__short__free_tokens=400, reward__parts__short__max_tokens=500), 9),
    ("leave out prompts whose form is right", "sampler_sees_right",
        settled(**MARKED, sampler="unsolved", sampler__part="format", rollout__max_completion_tokens=64), 9),
    ("clip gradients to 1e-9", "settings_are_usual", settled(trainer__max_grad_norm=1e-9), 9),
    ("decay weights by half a percent a step", "settings_are_usual",
        settled(trainer__weight_decay=50.0, trainer__learning_rate=1e-4), 9),
    ("keep a tenth of the probability", "settings_are_usual", settled(rollout__top_p=0.1), 9),
    ("sample at a temperature of 0.01", "settings_are_usual", settled(rollout__temperature=0.01), 9),
    ("clip tokens as GSPO does", "settings_are_usual",
        settled(algorithm__clip_high=0.0004, algorithm__clip_low=0.0003, algorithm__num_minibatches=4), 9),
    ("train on what is 300 updates old", "settings_are_usual", settled(rollout__max_staleness=300), 9),
    ("ask for steps and read all of the text", "asked_form_is_paid",
        settled(prompt__system="Think step by step.", **BARE), 9),
    ("ppo", "", settled(algorithm="ppo"), 9),
    ("gspo", "", settled(algorithm="gspo"), 9),
    ("dapo", "", settled(algorithm="dapo", rollout__max_completion_tokens=64), 9),
    ("a discount of 0.999", "", settled(algorithm="reinforce_pp", algorithm__gamma=0.999), 9),
    ("unsolved", "", settled(sampler="unsolved", reward="numeric"), 9),
    ("pass_rate", "", settled(sampler="pass_rate", reward="numeric"), 9),
    ("adapters", "", settled(**LORA), 9),
    ("a little entropy", "", settled(algorithm__entropy_coef=0.01), 9),
    ("min_p", "", settled(rollout__temperature=1.2, rollout__min_p=0.1), 9),
    ("boxed", "", settled(prompt="boxed", reward="numeric"), 9),
    ("hash", "", settled(**BARE, **HASH), 9),
    ("a penalty of length", "", settled(**SHORT, reward__parts__short__free_tokens=8,
        reward__parts__short__max_tokens=20, reward__parts__short__weight=0.2), 9),
]  # fmt: skip


def shop(task: str = "my_shop:Shop", **settings: Any) -> Change:
    return case_of(template=HERMES, with_tools=True, settings=dotted({"task": task, **settings}))


NAMED = "Look prices up with the tool `{}`, then write the answer in \\boxed{{{{}}}}."
TOOLS: list[tuple[str, str, Change, int]] = [
    ("fails at each call", "tools_answer|tool_results|load", shop("rewards:Broken"), 6),
    ("replies with more than the context", "tools_answer|prompts_fit|tool_results|load", shop("rewards:Floods"), 6),
    ("remembers other episodes", "tools_answer|reward_forgets", shop("rewards:Remembers"), 6),
    ("has no turn behind it", "turns_suffice|load|answers_fit", shop(task__max_turns=1), 6),
    ("tells the gold where it finds nothing", "tools_inform", shop("rewards:Tells"), 7),
    ("replies with one error as a text", "tools_inform", shop("rewards:Keyless"), 7),
    ("name a tool that is not there", "named_tools_are_there", shop(prompt__system=NAMED.format("get_price")), 8),
    ("has neither types nor a docstring", "load", shop("rewards:Untyped"), 8),
    ("says nothing", "tools_inform", shop("rewards:Silent"), 9),
    ("finds nothing", "tools_inform", shop("rewards:FindsNothing"), 9),
    ("tells the gold in a sentence", "tools_inform", shop("rewards:TellsAll"), 9),
    ("a tool by its name", "", shop(prompt__system=NAMED.format("price")), 8),
]  # fmt: skip
