from tests.unit.cli.conftest import rlvr, training  # noqa: F401
