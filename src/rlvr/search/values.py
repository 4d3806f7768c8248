"""The values of a sweep that can be listed."""

from hydra.core.override_parser.types import Override


def swept_values(override: Override) -> list[str]:
    """The values as they are written in an override. HydraException: they cannot be listed."""
    given = list(override.sweep_string_iterator())
    return [one if one[:1] in ("'", '"') else one.replace("\\:", ":") for one in given]  # my_algo:Reinforce
