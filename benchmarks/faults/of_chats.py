"""Faults of chat templates, for `doctor.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import rewards
from chatml import BOS, CALLS, CHATML, CONTENT, END, HEAD, HEADER, HERMES, PAD, SPECIAL, THINKS
from of_models import special
from patients import PAIRS, Change, asks, both, case_of, merge, question, saves, settled
from tokenizers.processors import TemplateProcessing


def rendered(template: str | None, **more: Any) -> Change:
    return case_of(template=template, **more)


def swapped(old: str, new: str, base: str = CHATML) -> Change:
    """Another text in a template, in a task of several turns."""
    assert old in base, old
    return rendered(base.replace(old, new), with_tools=True)


def shows(content: str) -> Change:
    return swapped(CONTENT, content)


def of_users(content: str) -> Change:
    """Other words of users."""
    return shows(f"{{{{ {content} if m.role == 'user' else m.content }}}}")


def with_bos(template: str) -> Change:
    """A tokenizer that begins texts with a token."""

    def change(tokenizer: Any) -> None:
        tokenizer.bos_token = SPECIAL[BOS]
        begun = TemplateProcessing(single=f"{SPECIAL[BOS]} $A", special_tokens=[(SPECIAL[BOS], BOS)])
        tokenizer.backend_tokenizer.post_processor = begun

    return rendered(template, with_tools=True, tokenizer=change, config={"bos_token_id": BOS})


def end_is(token: int) -> Callable[[Any], None]:
    return lambda tokenizer: setattr(tokenizer, "eos_token", SPECIAL[token])


def two_templates(change: Callable[[str], str]) -> Callable[[Any, Path], None]:
    """The one in tokenizer_config.json is another; the file beside it is what counts."""

    def save(model: Any, folder: Path) -> None:
        merge(folder / "tokenizer_config.json", chat_template=change((folder / "chat_template.jinja").read_text()))

    return save


def named_only(model: Any, folder: Path) -> None:
    """Templates with names, as Command R has them, and none called default."""
    merge(
        folder / "tokenizer_config.json", chat_template=[{"name": n, "template": HERMES} for n in ("tool_use", "rag")]
    )
    (folder / "chat_template.jinja").unlink()


USER_REPLY = "appends_after_user|appends_after_tools"
EARLIER = "m.role == 'assistant' and not loop.last"
SPLIT = (
    "{% if m.role == 'user' and 'Answer:' in m.content %}{{ m.content.split('Answer:')[0] }}<|im_end|>\n"
    "<|im_start|>assistant\n{{ m.content.split('Answer:', 1)[1] }}{% else %}{{ m.content }}{% endif %}"
)
FIRST_LINE = (
    "{% if m.role == 'user' and '\n' in m.content %}{{ m.content.split('\n', 1)[1] }}<|im_end|>\n"
    "<|im_start|>system\n{{ m.content.split('\n', 1)[0] }}{% else %}{{ m.content }}{% endif %}"
)
SYSTEM_LAST = (
    "in (messages | rejectattr('role', 'equalto', 'system') | list)"
    " + (messages | selectattr('role', 'equalto', 'system') | list) %}"
)
LLAMA = (
    "{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LISTED = HERMES[HERMES.index("# Tools") : HERMES.index("<|im_end|>")]
AT_THE_LAST_USER = f"""{{% set found = namespace(last=-1) %}}{{% for m in messages %}}{{% if m.role == 'user' %}}
{{%- set found.last = loop.index0 %}}{{% endif %}}{{% endfor %}}{HEAD}{{% if m.role == 'tool' %}}
{{{{- '<|im_start|>tool' }}}}
{{{{ m.content }}}}<|im_end|>
{{% else %}}<|im_start|>{{{{ m.role }}}}
{{% if tools and loop.index0 == found.last %}}{LISTED}
{{% endif %}}{{{{ m.content }}}}{CALLS}<|im_end|>
{{% endif %}}{{% endfor %}}{HEADER}"""
OWN_SYSTEM = "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% set given"
NO_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}"
LONG = (
    "Mary keeps a shop in a small town by the sea, where she sells fruit and bread to everyone who comes by, in summer "
    "and in winter, on Sundays and on all other days of the week, and where her neighbors like to stand and talk about "
    "the weather. "
)
TALES = [{"question": LONG + question(a, b), "answer": str(a + b)} for a, b in PAIRS]
MARKED: dict[str, Any] = {"prompt": "math_reasoning", "reward": "gsm8k", "prompt__markers": "working_out"}
MARKS = ("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")

TEMPLATES: list[tuple[str, str, Change, int]] = [
    ("strips the spaces of earlier turns", "keeps_spaces", shows("{{ m['content'] | trim }}"), 1),
    ("drops the reasoning of earlier turns", "keeps_reasoning",
        shows(f"{{{{ m['content'].split('</think>')[-1].lstrip('\\n') if {EARLIER} else m['content'] }}}}"), 1),
    ("writes the date", "same_every_day", swapped(HEAD, "Today is {{ strftime_now('%d %b %Y') }}.\n" + HEAD), 1),
    ("adds a system prompt to the first question only", USER_REPLY, swapped(
        HEAD, "{% if messages|length == 1 %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}" + HEAD), 1),
    ("ignores add_generation_prompt", "opens_completion", swapped(HEADER, ""), 1),
    ("opens a user's turn for the completion", "opens_completion",
        swapped(HEADER, HEADER.replace("assistant", "user")), 1),
    ("writes BOS twice", "one_bos", with_bos("<|bos|><|bos|>" + CHATML), 1),
    ("forgets BOS", "one_bos", with_bos(CHATML), 1),
    ("renders tool results as the assistant's words", "tool_results",
        swapped("{{ m['role'] }}", "{{ 'assistant' if m['role'] == 'tool' else m['role'] }}"), 1),
    ("sorts messages by role", "whole_messages",
        swapped("in messages %}", "in messages | sort(attribute='role') %}"), 1),
    ("leaves out the line break after the last turn", USER_REPLY,
        swapped("<|im_end|>\n{% endfor %}", "<|im_end|>{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"), 1),
    ("opens reasoning, and the reward reads the whole completion", "thoughts_are_passed_over",
        rendered(THINKS, reward=rewards.FUNCTIONS["is_the_whole_text"]), 1),
    ("writes a user's later words as the assistant's", "roles_kept|whole_messages", swapped(
        "{{ m['role'] }}", "{{ 'assistant' if m['role'] == 'user' and loop.index0 > 2 else m['role'] }}"), 1),
    ("truncates long messages", "whole_messages", shows("{{ m['content'][:2000] }}"), 1),
    ("truncates arguments of calls", "whole_calls",
        swapped("arguments | tojson", "arguments | tojson | truncate(300)", HERMES), 1),
    ("escapes HTML", "whole_messages", shows("{{ m['content'] | e }}"), 1),
    ("numbers the turns from the end", USER_REPLY,
        swapped("{{ m['role'] }}", "{{ m['role'] }} {{ loop.revindex }}"), 1),
    ("shows the last question only", f"whole_messages|{USER_REPLY}",
        swapped("in messages %}", "in messages[-1:] %}"), 1),
    ("ends turns with a word that is no token", "ends_turns", swapped("<|im_end|>", "<|turn_end|>"), 1),
    ("ends turns with another token than the generation config", "ends_turns",
        case_of(with_tools=True, tokenizer=end_is(PAD), config={"eos_token_id": PAD}), 1),
    ("writes everything in small letters", "whole_messages", shows("{{ m.content | lower }}"), 2),
    ("removes commas", "whole_messages", shows("{{ m.content | replace(',', '') }}"), 2),
    ("removes blank lines", "whole_messages", shows("{{ m.content | replace('\\n\\n', '\\n') }}"), 2),
    ("gives the assistant what follows Answer:", "whole_messages", shows(SPLIT), 2),
    ("leaves out the system message of longer conversations", "whole_messages|roles_kept|appends_after_user",
        swapped("messages %}", "messages if not (m.role == 'system' and messages|length > 2) %}"), 2),
    ("removes backslashes", "whole_messages", shows("{{ m.content | replace('\\\\', '') }}"), 2),
    ("writes users' words as JSON", "whole_messages", of_users("m.content | tojson"), 2),
    ("drops what is not ASCII", "whole_messages",
        shows("{% for c in m.content %}{{ c if c < '\\x7f' else '' }}{% endfor %}"), 2),
    ("begins with a capital", "whole_messages", of_users("m.content | capitalize"), 2),
    ("writes two spaces as one", "whole_messages", shows("{{ m.content | replace('  ', ' ') }}"), 2),
    ("asks every question twice", "whole_messages",
        shows("{{ m.content }}{{ '\n' + m.content if m.role == 'user' else '' }}"), 2),
    ("shows the first paragraph only", "whole_messages", shows("{{ m.content.split('\\n\\n')[0] }}"), 2),
    ("exchanges the roles of later turns", "whole_messages|roles_kept|appends_after_user", swapped("{{ m['role'] }}",
        "{{ {'user': 'assistant', 'assistant': 'user'}.get(m.role, m.role) if loop.index0 > 2 else m.role }}"), 2),
    ("cuts the marks of lists", "whole_messages", shows("{{ m.content.lstrip('- ') }}"), 2),
    ("breaks lines after 80 letters", "whole_messages", shows("{{ m.content | wordwrap(80) }}"), 2),
    ("removes HTML tags", "whole_messages", of_users("m.content | striptags"), 2),
    ("writes the number of messages", USER_REPLY, swapped(HEAD, "{{ messages | length }} messages\n" + HEAD), 3),
    ("puts the system message last", "whole_messages", swapped("in messages %}", SYSTEM_LAST), 3),
    ("straightens quotes", "whole_messages", shows("{{ m.content | replace('“', '\"') }}"), 3),
    ("gives a user's first line to the system", "whole_messages", shows(FIRST_LINE), 3),
    ("writes tool results twice", "tool_results|appends_after_tools",
        shows("{{ m.content }}{{ m.content if m.role == 'tool' else '' }}"), 3),
    ("keeps the first line of a message", "whole_messages", shows("{{ m.content.split('\\n')[0] }}"), 5),
    ("ends the prompt with the stop token", "opens_completion",
        swapped("assistant\n{% endif %}", "assistant\n<|im_end|>{% endif %}"), 5),
    ("wants a system message", "prompt_renders|load|whole_messages|roles_kept", swapped(HEAD, NO_SYSTEM + HEAD), 5),
    ("cuts the mark at the end of a question", "whole_messages", of_users("m.content.rstrip('?.!')"), 5),
    ("shortens earlier answers to their last line", f"whole_messages|keeps_reasoning|{USER_REPLY}",
        shows(f"{{{{ m.content.split('\\n')[-1] if {EARLIER} else m.content }}}}"), 5),
    ("has another model's markers", "ends_turns|ends_are_special", rendered(LLAMA), 6),
    ("opens a completion where none is asked for", "",  # a prompt ends with the header of the completion anyway
        rendered(CHATML.replace(HEADER, "<|im_start|>assistant\n")), 6),
    ("renders the last message alone", "whole_messages|roles_kept|appends_after_user",
        rendered(CHATML.replace(HEAD, "").replace("{% endfor %}", "").replace("m['", "messages[-1]['")), 6),
    ("cuts messages at 255 letters", "whole_messages", both(
        asks(TALES), rendered(CHATML.replace("m['content']", "m['content'] | truncate"))), 6),
    ("opens completions as another role's", "opens_completion|appends_after_user",
        rendered(CHATML.replace(HEADER, HEADER.replace("assistant", "model"))), 6),
    ("writes arguments as Python does", "",  # rlvr gives templates the arguments of calls as JSON
        swapped(CALLS, CALLS.replace(" | tojson", ""), HERMES), 6),
    ("does not end answers", "ends_turns",
        rendered(CHATML.replace("<|im_end|>", "{% if m['role'] != 'assistant' %}<|im_end|>{% endif %}")), 6),
    ("follows a prompt that ends with a space", "prompt_ends_whole", both(
        settled(prompt__user="Question: {question}\nAnswer: "), rendered(None, architecture="gpt_neox")), 7),
    ("has the markers as special tokens", "",  # rlvr decodes completions with their special tokens
        both(settled(**MARKED), case_of(architecture="llama", tokenizer=special(*MARKS))), 7),
    ("is missing", "template_is_there", rendered(None, tokenizer=end_is(END), config={"eos_token_id": END}), 7),
    ("is there twice", "template_is_one", saves(two_templates(lambda _: THINKS)), 7),
    ("begins the answer", "opens_completion",
        rendered(CHATML.replace("assistant\n{% endif", "assistant\nThe final answer is {% endif")), 7),
    ("has a block that is not closed", "prompt_renders", rendered(
        CHATML.partition("{% endfor %}")[0] + "{% if add_generation_prompt %}"), 8),
    ("has names, and none is default", "prompt_renders", saves(named_only), 8),
    ("lists tools at the last question", "", rendered(AT_THE_LAST_USER, with_tools=True), 8),  # no question comes later
    ("shows the first of several calls", "",  # rlvr then writes them itself
        swapped("for c in m.tool_calls", "for c in m.tool_calls[:1]", HERMES), 8),
    ("drops the system message beside tools", "task_is_shown",
        swapped(OWN_SYSTEM, "{% if messages[0].role == 'system' %}{% set given", HERMES), 8),
    ("the same template twice", "", saves(two_templates(lambda template: template + "{# a copy #}")), 9),
]  # fmt: skip
