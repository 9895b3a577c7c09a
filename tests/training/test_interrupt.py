import os
import signal
import threading
import time

import pytest

from headloom.training.interrupt import SIGNALS, noting_interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_acts_at_once(number):
    def take_the_second(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(number, take_the_second)
    try:
        with noting_interrupts() as interrupt:
            assert interrupt.signal is None
            os.kill(os.getpid(), number)
            assert interrupt.signal is number
            with pytest.raises(TimeoutError):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is take_the_second
    finally:
        signal.signal(number, before)


def test_a_warning_may_come_twice_and_before_the_signal_that_ends():
    """Slurm's: SIGUSR1 ahead of a preemption, SIGTERM at it; the run is saving meanwhile."""
    with noting_interrupts() as interrupt:
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
            assert interrupt.signal is signal.SIGUSR1


def test_the_echo_of_a_launcher_is_no_second_signal():
    """torchrun sends its ranks the Ctrl-C that the terminal has sent them."""
    with noting_interrupts(echo_seconds=0.2) as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.signal is signal.SIGINT
        time.sleep(0.25)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back_whatever_happened():
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), noting_interrupts():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_outside_the_main_thread_nothing_is_noted_and_nothing_fails():
    noted = []

    def work() -> None:
        with noting_interrupts() as interrupt:
            noted.append(interrupt.signal)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [None]
