"""Ctrl-C and SIGTERM while a training runs."""

import os
import signal

import pytest

from orbitset.training.interruption import Interruption


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_remembered_and_the_second_interrupts(capfd, number, exit_code):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    interruption = Interruption()
    with pytest.raises(KeyboardInterrupt), interruption.heeded():
        os.kill(os.getpid(), number)
        assert interruption.is_requested and interruption.exit_code == exit_code
        assert "Ctrl-C again stops at once" in capfd.readouterr().err
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where tests run detached
        os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before[0])
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_a_training_signals_do_what_they_did():
    before = signal.getsignal(signal.SIGINT)
    interruption = Interruption()
    with interruption.heeded():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before and not interruption.is_requested
