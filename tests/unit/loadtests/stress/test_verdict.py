from loadtests.stress.verdict import Promise, Summary, at_most, require


def summary(*promises: Promise) -> Summary:
    return Summary(scenario="soak", figures={"calls": 5, "rss_slope_mb_per_h": "0.0"}, promises=promises)


def test_the_line_has_the_figures_and_ends_with_the_verdict() -> None:
    assert summary(Promise(name="answers")).line == "soak calls=5 rss_slope_mb_per_h=0.0 verdict=held"
    assert summary(Promise(name="answers", broken=["a"])).line.endswith("verdict=broken")


def test_one_broken_promise_is_enough_to_fail() -> None:
    found = summary(Promise(name="answers"), Promise(name="memory", broken=["grew"]))

    assert (found.exit_status, [promise.name for promise in found.broken]) == (1, ["memory"])
    assert summary(Promise(name="answers")).exit_status == 0


def test_the_first_sentences_are_told_and_all_are_in_the_json() -> None:
    found = summary(Promise(name="answers", broken=list("abcdefg")))

    assert found.broken[0].sentence == "answers: a; b; c; d; e; and 2 more"
    assert found.as_json()["promises"] == [{"name": "answers", "held": False, "broken": list("abcdefg"), "figures": {}}]


def test_a_figure_is_held_to_its_limit() -> None:
    assert at_most("memory", 32.0, 32.0).held
    assert at_most("memory", 90.0, 32.0, unit="MB").sentence == "memory: 90 MB, more than 32"


def test_what_is_required_must_hold() -> None:
    assert require("at rest", True, "work is left").held
    assert require("at rest", False, "work is left").sentence == "at rest: work is left"
