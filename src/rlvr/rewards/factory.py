"""From the settings of a reward to its verifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlvr.config import schema
from rlvr.rewards.custom import CustomPart
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.finqa import FinqaProgramPart
from rlvr.rewards.format import ApproximateFormatPart, ExactFormatPart
from rlvr.rewards.math import MathPart
from rlvr.rewards.multihop import AnswerPart, CitationPart, CombinedPart, CompletionPart, HopsPart, RetrievalPart
from rlvr.rewards.numeric import FinqaNumericPart, NumberCheckPart, NumericPart
from rlvr.rewards.parts import PartsVerifier, WeightedPart
from rlvr.rewards.reasoning_gym import ReasoningGymPart
from rlvr.rewards.shaping import LengthPart, RepetitionPart
from rlvr.rewards.text import TextPart

if TYPE_CHECKING:
    from rlvr.rewards.base import Part
    from rlvr.rewards.pool import VerifierPool

ON_ANSWERS = {  # parts that read the answer from where the prompt asks for it
    schema.NumericPart: NumericPart,
    schema.NumberCheckPart: NumberCheckPart,
    schema.FinqaNumericPart: FinqaNumericPart,
    schema.FinqaProgramPart: FinqaProgramPart,
    schema.FormatExactPart: ExactFormatPart,
    schema.FormatApproximatePart: ApproximateFormatPart,
    schema.TextPart: TextPart,
    schema.MultiHopAnswerPart: AnswerPart,
    schema.CitationPart: CitationPart,
    schema.CompletionPart: CompletionPart,
    schema.CombinedPart: CombinedPart,
}
ON_ATTEMPTS = {
    schema.LengthPart: LengthPart,
    schema.RepetitionPart: RepetitionPart,
    schema.RetrievalPart: RetrievalPart,
    schema.HopsPart: HopsPart,
}


def make_verifier(
    settings: schema.PartsReward,
    answer_format: AnswerFormat,
    pool: VerifierPool,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> PartsVerifier:
    """The weighted sum of the named parts.

    `functions` are those that no import could find, by the import path that the settings give them. ConfigError if a
    part's function is neither there nor can be imported.
    """
    parts = {}
    for name, part in settings.parts.items():
        if isinstance(part, schema.CustomPart):
            made: Part = CustomPart(
                pool=pool,
                function=(functions or {}).get(part.function, part.function),
                settings=part.settings,
                key=f"reward.parts.{name}.function",
            )
        else:
            made = _part(part, answer_format, pool)
        parts[name] = WeightedPart(part=made, weight=part.weight)
    return PartsVerifier(name="reward", parts=parts)


def _part(settings: schema.RewardPart, answer_format: AnswerFormat, pool: VerifierPool) -> Part:
    own: dict[str, Any] = settings.model_dump(exclude={"type", "weight"})
    if type(settings) in ON_ANSWERS:
        return ON_ANSWERS[type(settings)](format=answer_format, **own)
    if type(settings) in ON_ATTEMPTS:
        return ON_ATTEMPTS[type(settings)](**own)
    if isinstance(settings, schema.MathPart):
        return MathPart(pool=pool, format=answer_format, **own)
    assert isinstance(settings, schema.ReasoningGymPart), settings
    return ReasoningGymPart(pool=pool, format=answer_format, **own)
