"""The metric of RPN arithmetic: exact answer. Shares no code with the rewards, so their settings cannot affect it."""

import re

from rlvr.types import GradedAnswer

_INTEGER = re.compile(r"-?[0-9]{1,18}")


def grade(prompt: str, completion: str, expected: str) -> GradedAnswer:
    """Whether the completion ends, before its first `<eoe>`, with `= expected`.

    The `=` may be the prompt's last word, so a direct answer counts:

        prompt `<boe> 3 4 + =`, completion `7 <eoe>`          answer 7
        prompt `<boe> 3 4 + =`, completion `3 4 + = 7 <eoe>`  answer 7
        prompt `<boe> 3 4 + =`, completion `7 7 <eoe>`        no answer: not an operand after `=`
        prompt `<boe> 3 4 + =`, completion `7`                no answer: not finished
    """
    said, ended, _ = completion.partition("<eoe>")
    words = prompt.split() + said.split()
    if not ended or len(words) < 2 or words[-2] != "=" or not _INTEGER.fullmatch(words[-1]):
        return GradedAnswer(answer=None, correct=False)
    answer = str(int(words[-1]))
    return GradedAnswer(answer=answer, correct=int(answer) == int(expected))
