from loadtests.bad_inputs.bystanders import Bystanders


def test_a_bystander_who_is_not_answered_tells_why(unused_tcp_port: int) -> None:
    with Bystanders(f"127.0.0.1:{unused_tcp_port}", seed=1, known={}) as bystanders:
        pass

    assert bystanders.translating.failures[0].startswith("UNAVAILABLE: ")
    assert bystanders.looking.failures[0].startswith("UNAVAILABLE: ")
    assert len(bystanders.looking.latencies_s) == len(bystanders.looking.failures)
