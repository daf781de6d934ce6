from service.threads import CALM_S, OVERLOADED_S, SwitchInterval


def test_it_is_short_while_everybody_is_admitted() -> None:
    chosen: list[float] = []
    interval = SwitchInterval(chosen.append)

    interval.note_admission(1.0)
    interval.note_admission(2.0)

    assert chosen == [CALM_S]


def test_a_refusal_makes_it_long_until_none_has_come_for_a_while() -> None:
    chosen: list[float] = []
    interval = SwitchInterval(chosen.append)

    interval.note_refusal(10.0)
    interval.note_admission(10.5)
    interval.note_refusal(10.9)
    interval.note_admission(11.5)
    assert chosen == [OVERLOADED_S]

    interval.note_admission(12.0)
    assert chosen == [OVERLOADED_S, CALM_S]


def test_a_refusal_that_is_told_of_late_does_not_shorten_the_wait() -> None:
    chosen: list[float] = []
    interval = SwitchInterval(chosen.append)

    interval.note_refusal(10.0)
    interval.note_refusal(9.0)
    interval.note_admission(10.9)

    assert chosen == [OVERLOADED_S]
