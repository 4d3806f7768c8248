"""How many tokens go through the model at once, and what is done when memory runs out: half as many.

The gradient of a minibatch does not depend on how it is cut, so cutting it finer is all that there is to do. What a
failed pass has added to the gradient is thrown away: an attempt begins at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from rlvr.core.devices import first_line, free, is_out_of_memory
from rlvr.core.packing import MIN_LINE_TOKENS
from rlvr.errors import UserError

Result = TypeVar("Result")


def cpu_tokens(setting: int | Literal["auto"]) -> int:
    """`trainer.microbatch_tokens` on a CPU: there more than 2048 is not faster, and takes more memory."""
    return 2048 if setting == "auto" else setting


class Budget:
    """Tokens per forward and backward pass; fewer from the moment when they did not fit.

    With `alone=False` other ranks wait for this one inside a pass, so that it cannot be repeated.
    """

    def __init__(self, tokens: int, *, note: Callable[[str], None], alone: bool = True) -> None:
        self.tokens = tokens
        self._note, self._alone = note, alone

    def run(self, attempt: Callable[[int], Result], *, longest: int) -> Result:
        """`attempt(tokens)`, repeated from its beginning with half the tokens each time that memory runs out.

        `longest` is the longest row in tokens: a single line that does not fit cannot be cut. UserError then.
        """
        while True:
            try:
                return attempt(self.tokens)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
            # out here the error is gone, and with it the frames that held the tensors of the failed pass
            free()
            self._halve(longest, reason)

    def _halve(self, longest: int, reason: str) -> None:
        tokens = self.tokens
        if not self._alone:
            raise UserError(
                f"out of memory at {tokens:,} tokens per microbatch ({reason}), where other processes wait in the same "
                f"pass: go on with resume=true trainer.microbatch_tokens={max(MIN_LINE_TOKENS, tokens // 2)}"
            )
        # finer than a line, or than what all ranks agree to cut lines to, is no cut
        if tokens <= max(longest, MIN_LINE_TOKENS):
            raise UserError(
                f"a line of {longest:,} tokens does not fit into memory, even alone ({reason}): lower "
                "rollout.max_completion_tokens, set model.gradient_checkpointing=true, or train adapters with "
                "model.lora.enabled=true"
            )
        self.tokens = max(MIN_LINE_TOKENS, tokens // 2)
        self._note(
            f"out of memory at {tokens:,} tokens per microbatch: going on with {self.tokens:,}, which changes no result"
        )
