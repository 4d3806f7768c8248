"""Checks of what a chat template does to the words of messages."""

from collections.abc import Sequence
from typing import Literal

from rlvr.chat.template import Template
from rlvr.checks.patient import Patient, around, verdict
from rlvr.checks.texts import answered, asked, awkward
from rlvr.records.checks import Check
from rlvr.types import Message

ROLES: tuple[Literal["system", "user", "assistant"], ...] = ("system", "user", "assistant", "user", "assistant", "user")
PLACES = tuple(f"rlvr-place-{number}" for number in range(len(ROLES)))


def of_patient(patient: Patient) -> Template:
    template = patient.chat.template
    assert template is not None, "checked before"
    return template


def _rendered(template: Template, contents: Sequence[str], *, header: bool = True) -> str:
    """A conversation with these contents."""
    roles = zip(ROLES, contents, strict=True)
    return template.render([Message(role=role, content=text) for role, text in roles], header=header)


def _between(text: str) -> list[str] | None:
    """The template's own words around the places; None if they are not there once and in order."""
    parts = []
    for place in PLACES:
        before, found, text = text.partition(place)
        if not found or place in text:
            return None
        parts.append(before)
    return [*parts, text]


def whole_messages(patient: Patient) -> Check:
    """The template puts contents into a fixed frame: what is said changes nothing else, and is not changed."""
    template = of_patient(patient)
    whole = _rendered(template, PLACES)
    if _between(whole) is None:
        return verdict(True, "a message is not rendered once, or not in its order", "", REMEDY, rendered=whole[-600:])
    own = [*asked(patient), *answered(patient)]
    texts = [text.strip() for text in [*own, *awkward(patient.config.seed)] if text.strip()]
    places = {"system": 0, "user": 1, "assistant": 2, "later user": 5}
    bad = []
    for text in dict.fromkeys(texts):
        for role, place in places.items():
            found = _rendered(template, [*PLACES[:place], text, *PLACES[place + 1 :]])
            if found != whole.replace(PLACES[place], text):
                bad.append({"role": role, **around(whole.replace(PLACES[place], text), found, "said", "rendered")})
    tried = len(places) * len(set(texts))
    return verdict(
        bool(bad),
        f"the template changes {len(bad)} of {tried} messages, or the words around them",
        f"{tried} messages, the task's own and awkward ones, are rendered once, unchanged and in order",
        REMEDY,
        examples=bad[:3],
    )


REMEDY = (
    "render message.content as it is in chat_template.jinja: no slices, escapes or filters, no sorting, and nothing "
    "that depends on the words"
)


def roles_kept(patient: Patient) -> Check:
    """A user's words stand under another header than the assistant's, in each turn."""
    template = of_patient(patient)
    parts = _between(_rendered(template, PLACES, header=False)) or []
    header = template.render([Message(role="user", content="x")]).removeprefix(
        template.render([Message(role="user", content="x")], header=False)
    )
    users, assistants = ({part for part, role in zip(parts, ROLES, strict=False) if role == r} for r in ROLES[1:3])
    under = [part for part in users if header.strip() and part.rstrip().endswith(header.strip())]
    return verdict(
        bool(under) or bool(header.strip() and users & assistants),
        "a user's words are rendered under the assistant's header, or the assistant's under the user's",
        "users' words and the assistant's have headers of their own in each turn",
        "write the header of message.role in chat_template.jinja, whatever the number of the turn",
        users=sorted(users),
        assistants=sorted(assistants),
    )


CHECKS = (whole_messages, roles_kept)
