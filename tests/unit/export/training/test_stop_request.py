import os
import signal

import pytest

from export.training.stop_request import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request(number: signal.Signals) -> None:
    with StopRequest() as request:
        os.kill(os.getpid(), number)

    assert request.signal_name == number.name


def test_a_second_signal_interrupts() -> None:
    with StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_the_earlier_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    with StopRequest():
        pass

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
