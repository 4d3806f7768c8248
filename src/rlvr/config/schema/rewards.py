"""Rewards: named, weighted parts, or the rules of RPN arithmetic."""

from typing import Annotated, Literal

from pydantic import Field

from rlvr.config.schema.base import NonNegativeFloat, PositiveFloat, PositiveInt, Section, Share

ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]

AtMostRight = Annotated[float, Field(le=1)]
"""A value that is no more than that of a right answer."""


class Reward(Section):
    """What every reward has."""

    max_error_share: Share = Field(
        description="more failures of the verifier itself than this share of a step's episodes stop the run"
    )


class RpnReward(Reward):
    """Rewards of the RPN task, on the words of prompt + completion."""

    name: Literal["rpn"]
    type: Literal["boxed", "correct", "combined"] = Field(
        description="boxed: ends in `= operand <eoe>`; correct: boxed and the right operand; combined: weighted sum"
    )
    boxed_weight: NonNegativeFloat = Field(description="combined only: weight of boxed")
    correct_weight: NonNegativeFloat = Field(description="combined only: weight of correct")


class Part(Section):
    """What every part has."""

    weight: float = Field(description="the reward is the sum of weight x value over the parts")


class AnswerPart(Part):
    """A part that needs an answer."""

    wrong_value: AtMostRight = Field(description="value of a wrong answer; a right one has 1")
    invalid_value: AtMostRight = Field(description="value where no answer can be read, which is counted as invalid")


class NumericPart(AnswerPart):
    """1 for an equal number (or the same yes/no)."""

    type: Literal["numeric"]
    close_credit: Share = Field(description="shaping: value of a wrong number within 10 % of the right one")
    near_credit: Share = Field(description="shaping: value of a wrong number within 20 %")


class NumberCheckPart(Part):
    """1 if the first number where the answer belongs is the right one."""

    type: Literal["number_check"]


class FinqaNumericPart(AnswerPart):
    """1 for an equal number or the same yes/no, a share of it within a relative tolerance; 12% and 0.12 are equal."""

    type: Literal["finqa_numeric"]
    relative_tolerance: NonNegativeFloat = Field(description="how far off an approximate answer may be")
    approximate_credit: Share = Field(description="value within the tolerance")


class FinqaProgramPart(AnswerPart):
    """1 for a right program of FinQA's language."""

    type: Literal["finqa_program"]
    mode: Literal["execution", "program"] = Field(
        description="execution: its result is right; program: it is equivalent to the gold program"
    )


class FormatExactPart(Part):
    """1 if the completion is one reasoning block, one solution block and nothing else."""

    type: Literal["format_exact"]


class FormatApproximatePart(Part):
    """A quarter for each of the four markers that occurs exactly once."""

    type: Literal["format_approximate"]
    penalty: NonNegativeFloat = Field(description="a quarter of it is subtracted for each marker that does not")


class MathPart(AnswerPart):
    """1 for an equivalent expression, by math-verify, in a killable process."""

    type: Literal["math"]


class TextPart(Part):
    """Exact match or F1 of the normalized words, as SQuAD, HotpotQA and MuSiQue do."""

    type: Literal["text"]
    metric: Literal["em", "f1"] = Field(description="em: all words equal; f1: harmonic mean of precision and recall")


class LengthPart(Part):
    """0 up to free_tokens, then linearly down to -1 at max_tokens."""

    type: Literal["length"]
    free_tokens: PositiveInt = Field(description="tokens that cost nothing")
    max_tokens: PositiveInt = Field(description="tokens that cost 1")


class RepetitionPart(Part):
    """Minus the share of word n-grams that repeat an earlier one."""

    type: Literal["repetition"]
    ngram_size: PositiveInt = Field(description="words of an n-gram")


class CustomPart(Part):
    """Your own function, in a killable process."""

    type: Literal["custom"]
    function: ImportPath = Field(description="module:function, called with prompt, completion, answer, metadata")
    settings: dict[str, bool | int | float | str | None] = Field(description="more keyword arguments of the function")


class ReasoningGymPart(Part):
    """The value of reasoning_gym's own verifier, in a killable process."""

    type: Literal["reasoning_gym"]


HopWeight = Literal["none", "capped", "linear"]


class MultiHopAnswerPart(Part):
    """The exact match or F1 of the final answer by the data set's rules, an empty answer being worth nothing."""

    type: Literal["answer"]
    metric: Literal["em", "f1"] = Field(description="em: exact match; f1: of the words; the best over the golds")
    hop_weight: HopWeight = Field(
        description="multiply by: none: 1; capped: min(hops / 2, 1); linear: hops / 2. Advantages that are divided by "
        "a group's standard deviation cancel it"
    )
    number_words: bool = Field(description="true: two and 2, second and 2nd are equal, in answer and golds alike")


class RetrievalPart(Part):
    """How many of the supporting documents were found, and how much of what was found supports."""

    type: Literal["retrieval"]
    metric: Literal["recall", "precision", "f1"] = Field(
        description="recall: share of the supporting documents that was found; precision: share of what was found that "
        "supports; f1: their harmonic mean"
    )


class CitationPart(Part):
    """The same of the documents cited with the answer."""

    type: Literal["citation"]
    metric: Literal["recall", "precision", "f1"] = Field(description="as for retrieval, of the cited documents")


class CompletionPart(Part):
    """The share of reasoning, final_answer and cited_doc_ids that are given, and of the right type, in `complete`."""

    type: Literal["completion"]


class HopsPart(Part):
    """The number of hops of the question: a measure of the data, to be given the weight 0."""

    type: Literal["hops"]


class CombinedPart(Part):
    """Several of these in one formula of the projects that this task comes from."""

    type: Literal["combined"]
    formula: Literal["spec", "later"] = Field(
        description="spec: (EM + F1) min(hops / 2, 1) / 2 + recall / 2; later: (hops / 2) (0.9 EM + F1 + recall + 0.4 "
        "precision + 0.6 citation recall + 0.1 format) / 4"
    )
    number_words: bool = Field(description="true: two and 2, second and 2nd are equal, in answer and golds alike")


RewardPart = Annotated[
    NumericPart
    | NumberCheckPart
    | FinqaNumericPart
    | FinqaProgramPart
    | FormatExactPart
    | FormatApproximatePart
    | MathPart
    | TextPart
    | LengthPart
    | RepetitionPart
    | CustomPart
    | ReasoningGymPart
    | MultiHopAnswerPart
    | RetrievalPart
    | CitationPart
    | CompletionPart
    | HopsPart
    | CombinedPart,
    Field(discriminator="type"),
]


class PartsReward(Reward):
    """The weighted sum of named parts."""

    name: Literal["parts"]
    parts: Annotated[dict[str, RewardPart], Field(min_length=1)] = Field(description="parts by name")
    timeout_s: PositiveFloat = Field(description="a verifier in a process of its own is killed after so many seconds")
    num_workers: PositiveInt = Field(description="processes for verifiers that can hang")
    max_memory_mb: PositiveInt = Field(description="address space of such a process, in MB")


class MixReward(Reward):
    """Each task of a mix is scored by its own reward."""

    name: Literal["mix"]


class EnvReward(Reward):
    """The rubric of the environment itself, with task=verifiers."""

    name: Literal["env"]


RewardConfig = Annotated[RpnReward | PartsReward | EnvReward, Field(discriminator="name")]
