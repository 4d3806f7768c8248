"""What stops a run, and what does not."""

import signal

from rlvr.cli.signals import stop_on_signals


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.stopped()
    finally:
        signal.signal(signal.SIGHUP, before)
