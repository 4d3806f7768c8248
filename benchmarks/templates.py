"""Is every conversation rendered as its chat template renders the whole?

    python benchmarks/templates.py FOLDER [--examples 20]

FOLDER holds chat templates, `*.jinja` (those of TRL: `trl/chat_templates` in its wheel). Hypothesis writes
conversations; each is built turn by turn (rollout), as a demonstration, as a prompt of data and through `rlvr serve`,
and compared letter by letter with `apply_chat_template`. A cell is the number of conversations with a difference; `-`:
the template itself refuses the conversation or leaves a part of it out, and the chat layer says it in its own way.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlvr.chat.rendering import Chat
from tests.unit.chat.tokenizers import template_tokenizer
from tests.unit.chat.whole import KINDS, KNOWN, conversations, differences, is_shown, reason

LETTERS = {one.why: chr(ord("a") + number) for number, one in enumerate(KNOWN)}


def cell(name: str, chat: Chat, kind: str, num: int) -> str:
    """`0`, `-`, or the number of conversations with a difference and the letters of the reasons."""
    counts, reasons = Counter[str](), set[str]()
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

    @settings(
        max_examples=num, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=quiet,
    )  # fmt: skip
    @given(conversations(kind, chat.marks))
    def measure(case: tuple[list[dict], list[dict]]) -> None:
        messages, tools = case
        if not is_shown(chat, messages, tools):
            return
        counts["shown"] += 1
        doors = [door for door, _, _ in differences(chat, messages, tools, arrow=kind == "arrow")]
        counts["different"] += bool(doors)
        reasons.update(LETTERS.get(reason(name, kind, door) or "", f"?{door}") for door in doors)

    measure()
    if not counts["shown"]:
        return "-"
    return f"{counts['different']} of {counts['shown']} ({', '.join(sorted(reasons))})" if counts["different"] else "0"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=20)
    args = parser.parse_args()
    print(f"| template | {' | '.join(KINDS)} |")
    print(f"|---|{'---|' * len(KINDS)}")
    for file in sorted(args.folder.glob("*.jinja")):
        chat = Chat(template_tokenizer(file.read_text()))
        cells = [cell(file.stem, chat, kind, args.examples) for kind in KINDS]
        print(f"| {file.stem} | {' | '.join(cells)} |", flush=True)
    for why, letter in LETTERS.items():
        print(f"- {letter}: {why}")


if __name__ == "__main__":
    main()
