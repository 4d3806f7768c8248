"""A task of your own, with a tool: what does something cost, where only the tool knows the prices?

In the folder of this file:

    rlvr train task=my_shop:Shop model=scratch_bpe prompt.tool_format=words warm_start.num_steps=150 \
        warm_start.learning_rate=0.01 warm_start.worked_share=0.3 warm_start.final_phase_steps=0 \
        trainer.max_steps=25 evaluation.every=5

A model made on the spot learns in a minute to call the tool, where it has guessed before. For a pretrained model:
`rlvr train --config-name gsm8k task=my_shop:Shop model.name_or_path=...`. The fields of the class are its settings,
`task.num_questions` and `task.max_price`.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from rlvr.envs.tools import ToolError
from rlvr.settings import PositiveInt, setting
from rlvr.tasks.generator import ExamplesTask

GOODS = ("pear", "fig", "apple", "plum", "lemon")


def price(item: str, state: dict[str, Any]) -> int:
    """Look up what one piece of something costs.

    Args:
        item: Its name, such as pear.
    """
    if item not in state["prices"]:
        raise ToolError(f"there is no {item!r}; there are: {', '.join(state['prices'])}")
    return state["prices"][item]


class Shop(ExamplesTask):
    """New prices for each question."""

    prompt = "boxed"  # what goes with the task, unless prompt=... and reward=... are said
    reward = "numeric"
    metric: str = "numeric"
    num_questions: PositiveInt = setting(2000, "questions in all; a tenth is held out (task.eval_share)")
    max_price: PositiveInt = setting(9, "the highest price")

    # for other held-out examples, e.g. higher prices, write a method eval_examples(self) as this one: nothing of it is
    # trained on
    def examples(self) -> Iterator[dict[str, Any]]:
        draw = random.Random(0)  # each call must yield the same
        for customer in range(self.num_questions):
            prices = {item: draw.randint(1, self.max_price) for item in GOODS}
            item = draw.choice(GOODS)
            yield {
                "question": f"Customer {customer} buys one {item}. What is the price?",
                "answer": prices[item],
                "demonstration": [{"name": "price", "arguments": {"item": item}}, rf"\boxed{{{prices[item]}}}"],
                "metadata": {"prices": prices},  # also the state of the episode, which tools and rewards get
            }

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (price,)
