import pytest

from export.training.meter import Meter, Window


def test_a_window_averages_over_its_tokens() -> None:
    window = Window(loss=30.0, target_tokens=10, seconds=2.0)

    assert (window.mean_loss, window.tokens_per_s) == (3.0, 5.0)


def test_steps_add_up_until_the_window_is_reset() -> None:
    meter = Meter(is_shown=False, first_step=0)
    for _ in range(3):
        meter.begin()
        meter.end(loss=4.0, target_tokens=2)

    summed = meter.window
    meter.reset()

    assert (summed.loss, summed.target_tokens) == (12.0, 6)
    assert meter.window == Window()


def test_the_bar_shows_speed_and_time_left(capfd: pytest.CaptureFixture[str]) -> None:
    meter = Meter(is_shown=True, first_step=7)
    meter.begin()
    meter.end(loss=4.0, target_tokens=2)

    meter.show(epoch=3, last_step=20)
    meter.close()

    shown = capfd.readouterr().err.splitlines()[-1]
    assert "8/20 [" in shown
    assert "loss=2.000, tokens/s=" in shown
    assert "epoch=3" in shown


def test_a_meter_that_is_not_shown_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    meter = Meter(is_shown=False, first_step=0)

    meter.show(epoch=0, last_step=None)
    meter.say("step 1")
    meter.close()

    assert capfd.readouterr() == ("", "")
