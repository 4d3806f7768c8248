"""What a rule that spans sections is."""

from collections.abc import Callable
from dataclasses import dataclass

from rlvr.config.schema import Config


@dataclass(frozen=True)
class Rule:
    """`broken` says whether the rule applies to a configuration; `message` is filled with it as `c`.

    With `idle` keys, the rule says that these have no effect when `broken`, and only the changed ones are reported:
    `<key>=<value>: has no effect <message>`. Where they depend on the configuration (the user's own names of parts),
    `idle` is a function of it. `only_changed` rules speak if one of these keys was changed.
    """

    broken: Callable[[Config], bool]
    message: str
    idle: tuple[str, ...] | Callable[[Config], tuple[str, ...]] = ()
    only_changed: tuple[str, ...] = ()

    def idle_keys(self, config: Config) -> tuple[str, ...]:
        """The keys without effect in this configuration."""
        return self.idle(config) if callable(self.idle) else self.idle
