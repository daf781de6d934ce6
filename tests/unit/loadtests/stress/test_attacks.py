"""Attacks: what they send, how answers are read, and what breaks a promise."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from loadtests.scenarios.bad_inputs.attacks.attack import ANY, TIMEOUT, Attack, Credentials, Payload, Port, Way
from loadtests.scenarios.bad_inputs.attacks.report import conclude_attacks, promises, table
from loadtests.scenarios.bad_inputs.attacks.results import Campaign, Limits, Result, Work, broken, limits_of
from loadtests.scenarios.bad_inputs.attacks.run import cpu_s
from loadtests.scenarios.bad_inputs.attacks.send import Sent, is_complete
from loadtests.scenarios.bad_inputs.attacks.table import ATTACKS
from loadtests.scenarios.bad_inputs.attacks.watch import GRPC, HEALTH, HTTP, Seen, Visit
from loadtests.scenarios.bad_inputs.kinds import KINDS

CREDENTIALS = Credentials(key="dgm_0123456789ab_secret", key_id="stress")
WITH_FILLED_HEADS = {"terms-in-words-text", "terms-long"}
"""Half of what these send does not depend on the size."""


def seen(*latencies_ms: float, lost: str = "") -> Seen:
    """Probes with these latencies, and one translation over gRPC."""
    probes = [Visit(0.0, 0.001, latency_ms / 1000) for latency_ms in latencies_ms]
    return Seen(visits={HEALTH: probes, HTTP: [], GRPC: [Visit(0.0, 0.0, 0.1, lost)]})


ATTACK = Attack(name="a", surface="b", make=lambda _size, _keys: Payload(parts=[]), size=8)
LIMITS = Limits(stall_ms=500.0, p99_ms=250.0)
HELD = {"attack": ATTACK, "seen": seen(2.0, 20.0), "sent": Sent(statuses={"200": 3}, seconds=1.0)}


def result(**changed: Any) -> Result:
    return Result(**{**HELD, **changed})


def campaign(*results: Result, **changed: Any) -> Campaign:
    return Campaign(**{"quiet": seen(1.0), "limits": LIMITS, "results": list(results), **changed})


def test_attacks_have_names_of_their_own_and_cover_every_surface() -> None:
    surfaces = Counter(attack.surface for attack in ATTACKS.values())

    assert len(ATTACKS) == surfaces.total() >= 200
    assert not ATTACKS.keys() & KINDS.keys()
    assert surfaces.keys() >= {
        *("chunks", "heads", "pipelines", "slow clients", "protocols", "cross-site forms", "forms", "multipart"),
        *("keys and tokens", "DeepL", "ids", "patterns", "terms", "glossaries", "detection", "JSON of azure"),
        *(
            "documents, plain",
            "documents, html",
            "documents, xml",
            "documents over HTTP",
            "Google over gRPC",
            "uploaded files",
        ),
    }


def test_silence_is_right_only_for_clients_that_do_not_send_or_read_everything() -> None:
    silent = [attack for attack in ATTACKS.values() if TIMEOUT in attack.expected]

    assert {attack.way for attack in silent} == {Way.DRIP, Way.UNREAD}
    assert all("500" not in attack.expected and "INTERNAL" not in attack.expected for attack in ATTACKS.values())


def test_some_attacks_of_the_short_mode_end_with_sigterm() -> None:
    short = [attack for attack in ATTACKS.values() if attack.is_short]

    assert 30 <= len(short) <= 60
    assert {attack.surface for attack in short if attack.is_stopped} >= {"chunks", "slow clients", "documents, html"}


def test_an_attack_of_twice_the_size_sends_twice_the_bytes() -> None:
    def size_of(attack: Attack, size: int) -> int:
        return sum(map(len, attack.make(size, CREDENTIALS).parts))

    ratios = {}
    for attack in ATTACKS.values():
        if attack.grows and attack.name not in WITH_FILLED_HEADS:
            largest, head = min(attack.grown_size or attack.size, 500_000), size_of(attack, 1)
            ratios[attack.name] = (size_of(attack, largest) - head) / (size_of(attack, largest // 2) - head)

    assert {name: ratio for name, ratio in ratios.items() if not 1.8 < ratio < 2.2} == {}


def test_calls_over_grpc_have_one_message_and_a_method() -> None:
    payloads = {attack: attack.make(max(1, min(attack.size, 1000)), CREDENTIALS) for attack in ATTACKS.values()}

    assert all(bool(payload.method) == (attack.port is Port.GRPC) for attack, payload in payloads.items())
    assert all(len(payload.parts) == 1 for payload in payloads.values() if payload.method)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


@pytest.mark.parametrize(
    ("received", "num_answers", "is_whole"),
    [
        (HEAD + b"ok", 1, True),
        (HEAD + b"o", 1, False),
        (HEAD[:-2], 1, False),
        (b"", 1, False),
        (2 * (HEAD + b"ok"), 2, True),
        (HEAD + b"ok", 2, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"ok", 1, True),
        (b"HTTP/1.1 100 Continue\r\n\r\n", 1, False),
        (HEAD.replace(b"content-length: 2", b"transfer-encoding: chunked") + b"ok", 1, False),
    ],
)
def test_an_answer_is_complete_with_its_length(received: bytes, num_answers: int, is_whole: bool) -> None:
    assert is_complete(received, num_answers) is is_whole


def test_latency_counts_from_when_a_call_was_due() -> None:
    found = Seen(visits={HEALTH: [Visit(1.0, 1.5, 3.0), *[Visit(0.0, 0.0, 0.001)] * 99]})

    assert (found.stall_ms, found.p99_ms, found.lag_p99_ms) == (2000.0, 1.0, 0.0)
    assert Seen(visits={}).stall_ms == 0.0


@pytest.mark.parametrize(
    ("quiet", "is_short", "limits"),
    [
        (seen(2.0), True, Limits(stall_ms=800.0, p99_ms=400.0)),
        (seen(90.0), True, Limits(stall_ms=900.0, p99_ms=450.0)),
        (seen(2.0), False, Limits(stall_ms=52.0, p99_ms=100.0)),
    ],
)
def test_limits_are_absolute_or_those_of_a_quiet_baseline(quiet: Seen, is_short: bool, limits: Limits) -> None:
    assert limits_of(quiet, is_short=is_short) == limits


QUADRATIC = (Work(10, 0.1), Work(20, 0.4))


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, set()),
        ({"seen": seen(*[1.0] * 200, 501.0)}, {"stall"}),
        ({"seen": seen(251.0)}, {"p99"}),
        ({"seen": seen(1.0, lost="UNAVAILABLE")}, {"lost"}),
        ({"works": QUADRATIC}, {"growth"}),
        ({"works": [Work(10, 0.1), Work(20, 0.29)]}, set()),
        ({"works": [Work(10, 0.1), Work(40, 0.8)]}, set()),
        ({"works": [Work(10, 0.01), Work(40, 0.16)]}, {"growth"}),
        (
            {"works": [Work(20, 0.06), Work(40, 0.07), Work(80, 0.25)]},
            set(),
        ),  # the second is too short, or the third long
        ({"works": [Work(20, 0.02), Work(40, 0.07), Work(80, 0.25)]}, {"growth"}),
        ({"works": [Work(10, 0.001), Work(20, 0.02)]}, set()),  # too little to be measured
        ({"works": QUADRATIC[1:]}, set()),
        ({"end_s": 9.9}, set()),
        ({"end_s": 10.1}, {"end"}),
        ({"faults": ["answered 500"]}, {"faults"}),
    ],
)
def test_each_promise_can_be_broken_alone(changed: dict[str, Any], found: set[str]) -> None:
    assert broken(result(**changed), LIMITS).keys() == found
    sentences = [one.sentence for one in promises(campaign(result(**changed))) if one.broken]
    assert len(sentences) == len(found)
    assert all(": a: " in sentence for sentence in sentences)


@pytest.mark.parametrize("changed", [{"server_faults": ["a traceback"]}, {"skipped": ["chunks"]}])
def test_errors_in_the_log_and_attacks_without_time_break_a_promise(changed: dict[str, Sequence[str]]) -> None:
    assert [list(one.broken) for one in promises(campaign(**changed)) if one.broken] == list(changed.values())


def test_the_table_has_a_row_for_the_quiet_server_and_each_attack(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    found = campaign(result(), result(works=QUADRATIC, end_s=1.25, seen=seen(*[3.0] * 200, 600.0)))

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(found).splitlines()[2:]]
    assert [row[2:5] for row in rows] == [["1", "1", "0"], ["20", "20", "0"], ["600", "3", "0"]]
    assert rows[2][5:] == ["3", "400", "4.0", "1.2", "stall, growth"]
    assert conclude_attacks(found, tmp_path) == 1
    assert " attacks=2 attacks_held=1 worst_stall_ms=600 " in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"attacks.json", "attacks.png"}


def test_processor_time_of_a_process_grows() -> None:
    before_s = cpu_s(os.getpid())
    sum(range(100_000))

    assert cpu_s(os.getpid()) > before_s
    with pytest.raises(ProcessLookupError):
        cpu_s(2**22 - 1)


def test_refusals_of_all_kinds_are_no_server_error() -> None:
    assert not any(status.startswith("5") and status not in ("501", "503") for status in ANY)
