"""Checks of the chat template, and of the tokens that are trained on."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

from rlvr.chat.rendering import end_ids
from rlvr.chat.template import PLACE
from rlvr.checks.messages import CHECKS as OF_MESSAGES
from rlvr.checks.messages import of_patient
from rlvr.checks.patient import Interview, Patient, Scripted, around, skip, verdict
from rlvr.checks.speech import end_of_turn, lead_of, reply_to
from rlvr.checks.texts import LONG
from rlvr.core.batch import to_batch
from rlvr.core.env import Env
from rlvr.core.episode import ChatModel, run_episode
from rlvr.envs.tool_env import ToolEnv
from rlvr.envs.tools import make_tool
from rlvr.records.checks import Check
from rlvr.types import Attempt, Example, Group, Message, SamplingParams, Score, StopReason, ToolCall


def look_up(text: str) -> str:
    """Find what is known about a text.

    Args:
        text: Words to look for.
    """
    return f"Nothing is known about {len(text)} letters."


TOOL = make_tool(look_up, timeout_s=10.0, inline=True)


def user(content: str) -> Message:
    return Message(role="user", content=content)


def call_of(text: str) -> Message:
    call = ToolCall(id="call_0", name="look_up", arguments={"text": text})
    return Message(role="assistant", content="", tool_calls=(call,))


def _followed(patient: Patient, texts: Sequence[str], *, calls: bool = False) -> dict[str, Any] | None:
    """Converse over these completions: None if each prompt extends the last one and is what the template renders."""
    chat, tools = patient.chat, [TOOL.schema] if calls else []
    messages = [user("What is known?")]
    ids = chat.encode_prompt(messages, tools)
    for turn, text in enumerate(texts):
        sampled = call_of(text) if calls else Message(role="assistant", content=text)
        written = chat.tool_format.write(sampled.tool_calls, tools) if calls else text
        lead = lead_of(of_patient(patient), sampled, written)
        completion = (*patient.coder.encode(lead + written), *end_of_turn(chat, sampled, written))
        parsed = chat.parse(completion, StopReason.STOP, tools)
        # a space that the template writes before every answer would be rendered twice
        messages.append(replace(parsed, content=parsed.content.removeprefix(lead)) if lead.isspace() else parsed)
        reply = reply_to(messages[-1] if calls else sampled)
        following = chat.next_prompt(ids, completion, messages, [reply], tools)
        whole = (*ids, *completion)
        messages.append(reply)
        appended, rendered = chat.decode(following), chat.decode(chat.encode_prompt(messages, tools))
        if following[: len(whole)] != whole:
            return {"turn": turn + 1, **around(chat.decode(whole), rendered), "begins": "a new row"}
        if appended != rendered:
            return {"turn": turn + 1, **around(appended, rendered), "begins": "no new row"}
        ids = following
    return None


def _follows(patient: Patient, texts: Sequence[str], what: str, *, calls: bool = False) -> Check:
    change = _followed(patient, texts, calls=calls)
    bad = f"the template changes what was said before: {what}, turn {change and change['turn']}"
    if change and not patient.several_turns:
        return skip(f"{bad}; episodes of this task have one turn", **change)
    return verdict(
        bool(change),
        bad,
        f"each prompt extends the last one and is what the template renders: {what}",
        "edit chat_template.jinja so that earlier messages are rendered as they were; until then rlvr trains on what "
        "was sampled, but a server that renders the conversation shows the model another text",
        **(change or {}),
    )


def appends_after_user(patient: Patient) -> Check:
    return _follows(patient, ["It is blue.", "Then it rains.", "The end."], "answers and questions in turn")


def appends_after_tools(patient: Patient) -> Check:
    return _follows(patient, ["the sky", "the rain"], "calls and results in turn", calls=True)


def keeps_reasoning(patient: Patient) -> Check:
    template = of_patient(patient)
    if template.can.opened or lead_of(template, Message(role="assistant", content=PLACE), PLACE).strip():
        return skip("the header of a completion begins its reasoning: appends_after_user follows it")
    text = f"{template.marks.open.strip()}\nLet me see.\n{template.marks.close.strip()}\n\nIt is"
    return _follows(patient, [f"{text} blue.", f"{text} wet."], "reasoning before answers")


def keeps_spaces(patient: Patient) -> Check:
    return _follows(patient, ["\n  It is blue. \n", "   Yes.\n\n"], "answers that begin and end with spaces")


def same_every_day(patient: Patient) -> Check:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(days=400, hours=7, minutes=3)

    template = of_patient(patient)
    messages = [Message(role="system", content="Be brief."), user("x")]
    today = template.render(messages)
    with patch("transformers.utils.chat_template_utils.datetime", Later):
        later = template.render(messages)
    return verdict(
        today != later,
        "the template writes the date into every prompt: runs cannot be repeated, and a resumed one sees other prompts",
        "the same messages give the same prompt on another day",
        "replace strftime_now(...) in chat_template.jinja by a fixed date",
        **(around(today, later) if today != later else {}),
    )


def prompt_renders(patient: Patient) -> Check:
    """The template takes the task's own messages, and conversations without a system message."""
    example, _ = patient.prompt(0)
    roles = ", ".join(message.role for message in example.messages)
    if patient.policy.tokenizer.chat_template:
        patient.chat.encode_reply([user("x")])
    return Check(status="ok", says=f"the task's messages ({roles}) and later ones are rendered")


def task_is_shown(patient: Patient) -> Check:
    """Each word of the task's messages is in the prompt, which the run renders with the task's tools."""
    example, ids = patient.prompt(0)
    prompt = _dense(patient.chat.decode(ids))
    lost = [message for message in example.messages if _dense(message.content) not in prompt]
    tools = bool(patient.task.env(example).tools)
    return verdict(
        bool(lost),
        f"the {lost[0].role if lost else ''} message is not in the prompt"
        + (", which the template renders with tools" if tools else ""),
        f"{len(example.messages)} messages of the task are in its prompt",
        "render each message in chat_template.jinja, also where tools are given",
        lost=[message.content[:200] for message in lost[:2]],
        prompt=patient.chat.decode(ids)[:300],
    )


def opens_completion(patient: Patient) -> Check:
    """The prompt ends with the header that conversations have before the assistant's words."""
    template, asked = of_patient(patient), user("rlvr-question")
    bare, prompt = template.render([asked], header=False), template.render([asked])
    whole = template.tried([asked, Message(role="assistant", content=PLACE)], header=False) or ""
    shown, wanted = (_dense(text.partition(asked.content)[2]) for text in (prompt, whole.partition(PLACE)[0]))
    for mark in (template.marks.open, template.marks.close):  # reasoning may be open in one of them
        shown, wanted = shown.replace(_dense(mark), ""), wanted.replace(_dense(mark), "")
    header = shown.removeprefix(_dense(bare.partition(asked.content)[2]))
    missing = not header and shown != wanted
    return verdict(
        bool(wanted) and (missing or header not in wanted),
        "the prompt does not end with the header of the assistant"
        + (": add_generation_prompt has no effect" if missing else " that conversations have"),
        "the prompt ends with the header of the assistant",
        "render the header at the end of chat_template.jinja where add_generation_prompt is true",
        prompt=prompt[-80:],
        conversation=whole[-120:],
    )


def _dense(text: str) -> str:
    return "".join(text.split())


def tool_results(patient: Patient) -> Check:
    """A tool's words must not stand where the assistant's do."""
    template = of_patient(patient)
    result = Message(role="tool", content=PLACE, name="look_up", call_id="call_0")
    text = template.tried([user("x"), call_of("y"), result], tools=[TOOL.schema]) or ""
    before, shown, _ = text.partition(PLACE)
    asked = template.render([user("x")], tools=[TOOL.schema])
    header = asked.removeprefix(template.render([user("x")], header=False, tools=[TOOL.schema])).strip()
    twice = text.count(PLACE) > 1
    wrong = not shown or twice or (bool(header) and before.rstrip().endswith(header))
    as_user = "the template has no role for tools: a result is said by the user"
    if template.format.name != "words":
        as_user += ", in <tool_response>"
    return verdict(
        wrong,
        "a tool's result is rendered twice"
        if twice
        else "a tool's result is rendered as the assistant's own words"
        if shown
        else "a tool's result is not rendered",
        "a tool's result has a header of its own" if template.can.tool_role else as_user,
        "give messages of the role `tool` a header that is not the assistant's in chat_template.jinja",
        before_the_result=before[-80:],
    )


def whole_calls(patient: Patient) -> Check:
    """A long call comes back as it was rendered."""
    template = of_patient(patient)
    said, format_ = call_of(LONG), f"format {template.format.name}"
    if not template.native:
        format_ += ", written as text: the template shows no calls of this form"
    text = template.render([user("x"), said, reply_to(said)], tools=[TOOL.schema])
    return verdict(
        LONG not in text,
        f"the arguments of a long call are cut or changed in the prompt ({format_})",
        f"a call with {len(LONG):,} letters of arguments is rendered whole ({format_})",
        "render tool_call.function.arguments whole in chat_template.jinja",
        rendered=text[-200:],
    )


def ends_turns(patient: Patient) -> Check:
    """The template's end of a turn is one token, and other samplers stop on it, too."""
    template = of_patient(patient)
    said = Message(role="assistant", content="Blue.")
    text = template.render([user("x"), said, user("y")])
    behind = patient.coder.encode(text.rpartition("Blue.")[2])[:1]
    ends = end_ids(patient.policy.tokenizer, patient.model)
    stops = bool(set(behind) & patient.chat.stop_ids)
    names = {token: patient.chat.decode([token]) for token in sorted({*behind, *ends})}
    return verdict(
        not stops or not set(behind) & ends,
        f"the template ends an answer with {names.get(behind[0] if behind else -1)!r}, "
        + ("and neither tokenizer nor generation config name it as an end" if stops else "which is no end token"),
        f"the template ends an answer with {names.get(behind[0] if behind else -1)!r}, an end token of the model",
        "set eos_token_id in generation_config.json (a list may hold several) and eos_token of the tokenizer to the "
        "end of a turn; rlvr stops on every end token it finds, other samplers run on",
        template_end=list(behind),
        model_ends=sorted(ends),
        tokens=names,
    )


class _Paid:
    name = "reward"

    async def verify(self, attempt: Attempt) -> Score:
        return Score(value=1.0)


def ids_are_kept(patient: Patient) -> Check:
    """Three turns with tools: the trained row has the sampled ids, and its mask is 1 on them alone."""
    chat, tools = patient.chat, [TOOL.schema]
    messages = [call_of("the sky"), call_of("the rain"), Message(role="assistant", content="Blue  and wet.")]
    written = [chat.tool_format.write(m.tool_calls, tools) if m.tool_calls else m.content for m in messages]
    completions = [
        (*patient.coder.encode(lead_of(chat.template, m, text) + text), *end_of_turn(chat, m, text))
        for m, text in zip(messages, written, strict=True)
        if patient.reads(text)
    ]
    example = Example(id="doctor", messages=(user("What is known?"),), answer="")
    env: Env = ToolEnv(example, tools=[TOOL], state=None, verifier=_Paid(), max_turns=3)
    if patient.task.vocabulary is not None:  # words alone: no question of ours, and no tool
        example = patient.task.train_example(0)
        completions = [patient.coder.encode(patient.task.demonstration(0, 1.0)[1])] * 3
        env = Interview(example.messages)
    model = ChatModel(engine=Scripted(completions), chat=chat, max_context_tokens=10**9)
    params = SamplingParams(max_tokens=10**6, stop_ids=chat.stop_ids, seed=0)
    episode = asyncio.run(run_episode(example, env, model, lambda turn: params, sample_index=0, seed=0))
    batch = to_batch([Group(example=example, episodes=(episode,))])
    sampled = [token for ids in completions for token in ids]
    trained = batch.ids[batch.loss_mask].tolist()
    row = [
        (chat.decode([token]), bool(mask))
        for ids, masks, length in zip(batch.ids, batch.loss_mask, batch.lengths.tolist(), strict=True)
        for token, mask in zip(ids[:length].tolist(), masks[:length].tolist(), strict=True)
    ]
    return verdict(
        sampled != trained or len(episode.turns) != 3,
        f"{len(episode.turns)} turns sampled {len(sampled)} tokens, and {len(trained)} are trained on",
        f"over 3 turns with tools exactly the {len(sampled)} sampled ids are trained on, in {len(batch.ids)} row(s)",
        "name the tool format that the model writes (prompt.tool_format): a call that is not read ends the episode",
        row=row,
        sampled_ids=sampled[:40],
        trained_ids=trained[:40],
    )


CHECKS = (
    same_every_day,
    opens_completion,
    *OF_MESSAGES,
    task_is_shown,
    ends_turns,
    whole_calls,
    tool_results,
    appends_after_user,
    appends_after_tools,
    keeps_reasoning,
    keeps_spaces,
)
