"""Checks of the words of the data: texts that were damaged on their way, and golds that no completion would say."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence

from rlvr.checks.patient import Patient, first_fault, skip, verdict
from rlvr.records.checks import Check
from rlvr.tasks.base import text_of
from rlvr.trust.damage import damaged
from rlvr.types import Example, StopReason, TurnText

NUM_EXAMPLES, NUM_GRADED, FEWEST = 200, 8, 20
MOST_READ = 5_000  # training questions that are compared with held-out ones
MOST_DAMAGED, MOST_CUT = 0.1, 0.2  # of the texts
LEAST_CUT = 80  # letters of a text that may have been cut
FEW_HELD_OUT, FEWEST_HELD_OUT = 10, 4
MOST_ALIKE = 0.9  # of the held-out answers

MARKS = re.compile(r"<\|\w+\|>|</?s>|<eos>|<bos>|<pad>|<end_of_turn>|\[/?INST\]")
HIGH = re.compile(r"[^\x00-\x7f]{2,}")
MISSING = re.compile(
    r"nan|<NA>|NaT|undefined|#N/A|#(?:REF|VALUE|NAME\?|DIV/0|NUM|NULL)!?|\[object Object\]|\\N", re.IGNORECASE
)
LISTED = re.compile(r"[\[({]\s*(?:'[^']*'|\"[^\"]*\")\s*[,:\])}].*", re.DOTALL)
OPTION = re.compile(r"(?:^|\n|\s)\(?([A-Ha-h]|[1-9])[).:]\s*(?=\S)")
CHOOSE = re.compile(r"\b(?:options?|choices?|choose|select|letter|alternatives?)\b", re.IGNORECASE)
COUNTS = re.compile(r"\b(?:how many|count) ", re.IGNORECASE)
LETTER = re.compile(r"\bletter of\b|\b(?:right|correct) (?:option|choice|letter)\b", re.IGNORECASE)
NAMED = "ABCDEFGH"
SHOWN = re.compile(r"(?<![A-Za-z])[B-D](?![A-Za-z])|[\"'(\[]A[\"')\]]|\bA[.):,]")  # a letter by itself
WORDS = re.compile(r"\s*[A-Za-z]{2}[^\d\\{}()\[\]=<>*;]*")
ROUND_LENGTHS = frozenset(
    n + more for n in [*range(100, 10_001, 50), 128, 256, 512, 1024, 2048, 4096, 8192, 32_768] for more in (-1, 0)
)


def examples_of(patient: Patient) -> list[Example]:
    """Different training examples."""
    sizes = patient.task.sizes
    indices = range(min(NUM_EXAMPLES, sizes[0] if sizes else NUM_EXAMPLES))
    return list({example.id: example for example in map(patient.task.train_example, indices)}.values())


def texts_are_whole(patient: Patient) -> Check:
    """Questions as their authors wrote them."""
    if patient.task.vocabulary is not None or patient.task.sizes is None:
        return skip("the task makes its own texts")
    texts = list(dict.fromkeys(example.messages[-1].content for example in examples_of(patient)))
    broken = [text for text in texts if mangled(text)]
    faults = [
        ("are in a broken encoding", broken, "read the file in the encoding that it was written in (UTF-8)"),
        *damaged(texts, templated=bool(patient.chat.template)),
    ]
    bad = next((one for one in faults if len(one[1]) > MOST_DAMAGED * len(texts)), None)
    if bad is None and (cut := cut_off(texts)):
        bad = (f"end after {len(cut[0])} letters, within a sentence", cut, "take the whole texts: an export cut them")
    return verdict(
        bad is not None,
        f"{len(bad[1])} of {len(texts)} questions {bad[0]}" if bad else "",
        f"{len(texts)} questions are whole texts",
        bad[2] if bad else "",
        questions=[text[-200:] for text in (bad[1] if bad else ())][:3],
    )


def mangled(text: str) -> bool:
    """UTF-8 that was read as another encoding, or with letters lost."""
    if "\ufffd" in text:
        return True
    for run in HIGH.findall(text):
        for encoding in ("cp1252", "latin-1"):
            try:
                if run.encode(encoding).decode("utf-8") != run:
                    return True
            except UnicodeError:
                continue
    return "â€" in text


def common(texts: Sequence[str]) -> str:
    """What all of them begin with."""
    first, last = min(texts, default=""), max(texts, default="")
    return first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def cut_off(texts: Sequence[str]) -> list[str]:
    """Those of the greatest length, if it is a round one, many have it, and they end without an end.

    What all texts begin and end with (a prompt's own words) is not counted.
    """
    shared = common([text[::-1] for text in texts])[::-1]
    for ends in dict.fromkeys(("", shared[shared.find("\n") :] if "\n" in shared else "")):
        bare = [text.removesuffix(ends) for text in texts]
        for begins in ("", common(bare)):
            sizes = Counter(len(text) - len(begins) for text in bare)
            longest = max(sizes, default=0)
            long = [text for text in bare if len(text) - len(begins) == longest]
            ended = [text for text in long if not text[-1:].isalnum()]
            if longest not in ROUND_LENGTHS or longest < LEAST_CUT or len(texts) < FEWEST:
                continue
            if len(long) > MOST_CUT * len(texts) and 2 * len(ended) < len(long):
                return long
    return []


def golds_are_answers(patient: Patient) -> Check:
    """Golds as a completion would say them."""
    if patient.task.vocabulary is not None or patient.task.sizes is None:
        return skip("the task makes its own answers")
    known = [(example.messages[-1].content, str(example.answer)) for example in examples_of(patient) if example.answer]
    if len(known) < FEWEST:
        return skip(f"fewer than {FEWEST} examples have an answer")
    missing = [gold for asked, gold in known if MISSING.fullmatch(gold.strip()) and gold.strip() not in asked]
    listed = [gold for asked, gold in known if LISTED.fullmatch(gold.strip()) and "[" not in asked]
    astray = golds_beside_options(known)
    wrapped = _wrapped(patient)
    marked = [gold for asked, gold in known if MARKS.search(gold) and not MARKS.search(asked)]
    faults = (
        (
            len(missing) > 1,
            f"{len(missing)} of {len(known)} golds are {next(iter(missing), '')!r}: they were missing where the file "
            "was made",
            missing,
            "leave these rows out: every answer to them would be wrong",
        ),
        (
            2 * len(listed) > len(known),
            f"{len(listed)} of {len(known)} golds are lists or records written as texts",
            listed,
            "write a list of accepted answers as a list (JSON), or the answer alone",
        ),
        (
            len(marked) > MOST_DAMAGED * len(known),
            f"{len(marked)} of {len(known)} golds hold tokens of a template",
            marked,
            "write the answer alone as the gold: completions are read without their end",
        ),
        (
            len(astray) > MOST_DAMAGED * len(known),
            f"{len(astray)} of {len(known)} golds name none of the options that their questions list",
            astray,
            "write the gold as the question names it: its letter or number, counted from where the list begins",
        ),
        (
            letters_without_options(known),
            "golds are letters of options, which the questions do not show",
            [gold for _, gold in known[:5]],
            "write the options below the question: they are in a column of their own",
        ),
        (
            bool(wrapped),
            f"golds have words around the answer, {wrapped!r}, and without them it is wrong",
            [gold for _, gold in known[:3]],
            "write the answer alone as the gold, or let the prompt ask for these words",
        ),
    )
    says, golds, remedy = next(((says, golds, remedy) for wrong, says, golds, remedy in faults if wrong), ("", [], ""))
    return verdict(
        bool(says), says, f"{len(known)} golds are answers", remedy, golds=[gold[:100] for gold in golds[:5]]
    )


def golds_beside_options(known: Sequence[tuple[str, str]]) -> list[str]:
    """Golds that are labels by their form, where questions list options: those that are none of the labels.

    Golds may be the options' texts instead. A list of which something is counted is no list of options.
    """
    listing = [(asked, options_of(asked), gold.strip(" ().")) for asked, gold in known]
    short = [
        (options, gold)
        for asked, options, gold in listing
        if len(options) > 2 and re.fullmatch(r"[A-Za-z]|\d", gold) and ("A" in options or CHOOSE.search(asked))
        if LETTER.search(asked) or not COUNTS.search(asked)
    ]
    if len(short) < MOST_ALIKE * len(known):
        return []
    beside = [gold for options, gold in short if gold.upper() not in options]
    strange = [gold for options, gold in short if gold not in options.values()]
    return min(beside, strange, key=len)


def letters_without_options(known: Sequence[tuple[str, str]]) -> bool:
    """Golds A to D, or a few more, at questions that name no such letter and list nothing."""
    letters = Counter(gold.strip(" ().") for _, gold in known)
    few = sorted(letters)
    if len(few) < 3 or few != list(NAMED[: len(few)]):  # in a row from A: not the letters of words
        return False
    shown = sum(bool(options_of(asked) or SHOWN.search(asked)) for asked, _ in known)
    return shown < MOST_DAMAGED * len(known)


def options_of(asked: str) -> dict[str, str]:
    """`{"A": "Paris", "B": "Rome", "C": "Oslo"}`: labels in order from A or 1, and their texts."""
    options, texts = list(OPTION.finditer(asked)), dict[str, str]()
    for first in ("A", "1"):
        texts, wanted = {}, first
        for number, match in enumerate(options):
            if match[1].upper() == wanted:
                end = options[number + 1].start() if number + 1 < len(options) else len(asked)
                texts[wanted] = asked[match.end() : end].split("\n")[0].strip(" .,;")
                wanted = chr(ord(wanted) + 1)
        if len(texts) > 2:
            return texts
    return {}


def _wrapped(patient: Patient) -> str:
    """Words that all golds begin or end with, without which the metric calls an answer wrong."""
    golds = [example for example in examples_of(patient) if example.answer]
    answers = [str(example.answer) for example in golds]
    begins, ends = common(answers), common([answer[::-1] for answer in answers])[::-1]
    begins, ends = begins[: begins.rfind(" ") + 1], ends[ends.find(" ") :] if " " in ends else ""
    for before, after in ((begins, ""), ("", ends)):
        if not WORDS.fullmatch(words := before or after):
            continue
        refused = list[bool]()
        for example in golds[:NUM_GRADED]:
            bare = str(example.answer).removeprefix(before).removesuffix(after).strip(" .")
            said = patient.task.answered(bare) if bare else None
            if isinstance(said, str) and not _asked_for(words.strip(" ."), text_of(example.messages)):
                refused.append(_is_refused(patient, example, said))
        if 2 * sum(refused) > len(refused):
            return words.strip()
    return ""


def _asked_for(words: str, prompt: str) -> bool:
    """Whether a prompt shows these words as a form, or asks for units."""
    shown = (" " in words and words in prompt) or f"'{words}'" in prompt or f'"{words}"' in prompt
    return shown or bool(re.search(r"\bunits?\b", prompt))


def _is_refused(patient: Patient, example: Example, said: str) -> bool:
    """Whether the metric calls it wrong; the reward is not asked."""
    whole = TurnText(
        prompt=text_of(example.messages), completion=said, text=said, stop_reason=StopReason.STOP, num_tokens=1
    )
    return not asyncio.run(patient.task.grade(example, [whole])).correct


def held_out_informs(patient: Patient) -> Check:
    """Held-out answers that differ, can be read, and are enough to count."""
    config, task = patient.config, patient.task
    if config.evaluation.every is None or task.sizes is None:
        return skip("nothing is held out, or the task makes its examples")
    wanted = config.evaluation.num_examples
    held = task.eval_examples(NUM_EXAMPLES)
    golds = [str(example.answer) for example in held if example.answer]
    trained = {str(example.answer) for example in examples_of(patient) if example.answer}
    alike, count = Counter(golds).most_common(1)[0] if golds else ("", 0)
    answered = [(e, text) for e in held[:NUM_GRADED] if e.answer and isinstance(text := task.answered(e.answer), str)]
    unread = [example.answer for example, text in answered if _is_refused(patient, example, text)]
    asked = set(map(_bare, (task.train_example(index) for index in range(min(MOST_READ, task.sizes[0])))))
    known = [example for example in held if _bare(example) in asked]
    few = task.sizes[1] < FEWEST_HELD_OUT and (wanted == "all" or wanted > task.sizes[1])
    fault = (
        (
            len(golds) >= FEW_HELD_OUT and count > MOST_ALIKE * len(golds) and len(trained) > 1,
            f"{count} of {len(golds)} held-out answers are {alike[:40]!r}: accuracy measures nothing",
            "take a split with answers: those of public test sets are often hidden",
        ),
        (
            2 * len(unread) > len(answered),
            f"the metric calls {len(unread)} of {len(answered)} right answers to held-out questions wrong",
            "give held-out rows answers of the same form as those that are trained on, or choose another task.metric",
        ),
        (
            len(known) > MOST_DAMAGED * len(held),
            f"{len(known)} of {len(held)} held-out questions are trained on, but for their punctuation",
            "take them out of one of the files: accuracy would measure what was learnt by heart",
        ),
        (
            few,
            f"{task.sizes[1]} examples are held out: one more right answer is {100 / max(1, task.sizes[1]):.0f} points "
            "of accuracy",
            "hold out more (task.eval_share, or a file of their own): below some hundreds intervals are wide",
        ),
    )
    return first_fault(
        fault,
        f"{task.sizes[1]:,} examples are held out, whose answers differ",
        answers=golds[:5],
        unread=unread[:3],
    )


def _bare(example: Example) -> str:
    """The question without case, spaces and marks that change no sense."""
    return re.sub(r"[\s.,;:!?'\"’“”]+", "", example.messages[-1].content).lower()


CHECKS = (texts_are_whole, golds_are_answers, held_out_informs)
