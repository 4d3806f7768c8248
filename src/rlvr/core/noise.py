"""A model's own rounding noise: the yardstick by which two computations of the same logprobs are equal or not.

Two right ways through a model (with a cache or without, packed or alone, one kernel or another) differ by rounding, and
by how much is the model's: a Llama with random weights moves by 1e-7, SmolLM2 in bfloat16 by 0.05 on text and by 0.9 on
rare tokens. So nothing is compared with an absolute number. The plain forward pass is compared with itself after each
number of its embeddings has moved by one unit in the last place, and another computation may differ by some times that.
Measured on pretrained models (benchmarks/results/noise.md), in the row where it is most: right ways 0.7 to 1.5 times;
wrong contexts 2.3 to 50 times in bfloat16, ten thousands of times in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle, islice
from math import inf

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

ALLOWED_16_BIT, ALLOWED_32_BIT = 3.0, 10.0
"""Differences beyond this many times the noise are no rounding, where the largest of many tokens is looked at. In
float32 the two kinds are so far apart that kernels may be clumsier than any that was measured."""

ALLOWED_MEAN_16_BIT = 2.0
"""The same of the mean over a row of `NUM_COMPARED` tokens or more. Right ways were 0.7 to 1.5 times, wrong ones 2.3
and more; at a single token chance makes it 3.6 and 2."""

NUM_COMPARED = 6

SEEDS = 4
"""Passes with moved embeddings; their mean varies by a third between pairs of seeds."""

LOOKS = 3
"""Texts that a difference is looked for on: it has to be seen on the first and on another one. By chance a right way of
a small model in bfloat16 was 2.4 times off on one (a row with a third of the others' noise, on a processor with AMX),
and Gemma's tokens one position late 1.7 times, 7.0 on the text before."""

Prompts = Sequence[Sequence[int]]
"""Token ids of prompts as the model is asked them."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The plain pass, a tensor for each row, and how far it moves by rounding alone: the mean over each row."""

    plain: tuple[Tensor, ...]
    rows: tuple[float, ...]
    allowed: float  # times

    def excess(self, others: Sequence[Tensor]) -> str | None:
        """What makes `others` another computation than the plain pass; None if rounding explains the difference."""
        times = self.times(others)
        return None if times <= self.allowed else f"{times:.3g} times its rounding noise"

    def times(self, others: Sequence[Tensor]) -> float:
        """How many times the noise `others` differ from the plain pass, in the row where that is most; infinite where
        they hold no numbers."""
        gaps = [float((b - a).abs().mean().nan_to_num(inf)) for a, b in zip(self.plain, others, strict=True)]
        return max(gap / noise for gap, noise in zip(gaps, self.rows, strict=True))


@torch.no_grad()
def measure(model: PreTrainedModel, dtype: torch.dtype, compute: Callable[[], Sequence[Tensor]]) -> Noise:
    """The noise of `compute`, which runs the plain pass of `model` in `dtype` and gives logprobs for each row.

    At least half a unit in the last place of the logprobs themselves, which are float32 numbers in any case.
    """
    plain = tuple(compute())
    least = [float(row.abs().mean()) * torch.finfo(torch.float32).eps / 2 for row in plain]
    gaps = []
    for seed in range(SEEDS):
        with embeddings_moved(model, dtype, seed):
            gaps.append([float((a - b).abs().mean()) for a, b in zip(compute(), plain, strict=True)])
    rows = tuple(max(sum(of_row) / SEEDS, floor) for *of_row, floor in zip(*gaps, least, strict=True))
    allowed = ALLOWED_32_BIT if dtype == torch.float32 else ALLOWED_MEAN_16_BIT
    return Noise(plain=plain, rows=rows, allowed=allowed)


@contextmanager
def embeddings_moved(model: PreTrainedModel, dtype: torch.dtype, seed: int) -> Iterator[None]:
    """Within the block each number that the input embeddings give is one unit in the last place of `dtype` off; in a
    model of 8 bits, whose layers round each token's numbers to 127 steps of the largest, one such step if that is more.
    """
    int8 = bool(getattr(model, "is_loaded_in_8bit", False))
    draw = torch.Generator().manual_seed(seed)

    def move(module: nn.Module, arguments: tuple[object, ...], output: Tensor) -> Tensor:
        numbers = output.float()
        exponents = torch.frexp(numbers).exponent  # of x = m * 2^e with 0.5 <= m < 1
        units = torch.ldexp(torch.full_like(numbers, torch.finfo(dtype).eps), exponents - 1)
        units = torch.maximum(units, numbers.abs().amax(-1, keepdim=True) / 127) if int8 else units
        signs = torch.randint(0, 2, output.shape, generator=draw).to(output.device) * 2 - 1
        # a padding token's zeros have no last place, and a norm would blow up what is added to them
        return torch.where(numbers == 0, numbers, numbers + signs * units).to(output.dtype)

    handle = model.get_input_embeddings().register_forward_hook(move)
    try:
        yield
    finally:
        handle.remove()


def confirmed(compare: Callable[[int], str | None]) -> str | None:
    """The difference that `compare` names on the first text and on one of the others, which `probe_rows` gives for the
    numbers that it gets: 0 first."""
    if compare(0) is None:
        return None
    return next(filter(None, map(compare, range(1, LOOKS))), None)


def probe_rows(prompts: Prompts, vocab_size: int, lengths: Sequence[int], look: int = 0) -> list[list[int]]:
    """Rows of those lengths from the prompts' own text, each behind the first prompt's first token; other text for each
    `look`, if there is as much.

    Text, for a model's noise on tokens at random is ten times as large, and the first token, because pretrained models
    rest their attention on it. Rows of `lengths=(3, 4)` from `[[1, 5, 6], [1, 7]]` are `[1, 5, 6]` and `[1, 7, 5, 6]`.
    Without prompts they are fixed ids of the vocabulary.
    """
    texts = [list(prompt) for prompt in prompts if len(prompt) > 1]
    first, text = (texts[0][:1], [row[1:] for row in texts]) if texts else ([1 % vocab_size], [_fixed(vocab_size)])
    tokens = islice(cycle(chain.from_iterable(text)), look * (sum(lengths) + 1), None)
    return [[*first, *islice(tokens, length - 1)] for length in lengths]


def _fixed(vocab_size: int) -> list[int]:
    """A walk through the whole vocabulary that rarely repeats a token."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (256,), generator=draw).tolist()
