"""What the generator of capacity and overload offers, to a server of the test."""

import argparse
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.__main__ import main
from loadtests.generator import Generator
from loadtests.target import Target, add_server_flags, open_target
from loadtests.texts import Profile
from loadtests.wire import Method
from loadtests.workload import Mix, Workload
from tests.integration.fake_translator import ANSWER, fake_translator

METHODS = ("Translate", "TranslateDocument", "TranslateStream", "ListModels")


class Counting:
    """Answers every method, and counts calls and those that are cancelled."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.is_stalled = False
        self._lock = threading.Lock()

    def answer(self, method: str) -> Any:
        def once(_: Any, context: grpc.ServicerContext) -> bytes:
            self._note(method, context)
            return ANSWER.SerializeToString()

        def document(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            self._note(method, context)
            yield pb.TranslatedSentence(sentence=pb.Sentence(num_target_tokens=6)).SerializeToString()

        def stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            self._note(method, context)
            for _ in requests:
                yield ANSWER.SerializeToString()

        return {"TranslateDocument": document, "TranslateStream": stream}.get(method, once)

    def _note(self, method: str, context: grpc.ServicerContext) -> None:
        with self._lock:
            self.calls[method] += 1
        if self.is_stalled:
            cancelled = threading.Event()
            context.add_callback(cancelled.set)
            assert cancelled.wait(10.0)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def target(counting: Counting) -> Iterator[Target]:
    with fake_translator({method: counting.answer(method) for method in METHODS}, num_threads=16) as address:
        yield Target(address=address)


def test_documents_are_asked_of_translate_document(counting: Counting, target: Target) -> None:
    generator = Generator(target=target, workload=Workload(profile=Profile.DOCUMENT))

    summary = generator.offer(rate_per_s=40.0, duration_s=0.3, seed=1)
    per_s = generator.throughput_per_s(duration_s=0.5)

    assert set(counting.calls) == {"TranslateDocument"}
    assert summary.answered == summary.offered > 0
    assert summary.target_tokens == 6 * summary.answered
    assert per_s > 0


def test_every_method_of_a_mix_is_called(counting: Counting, target: Target) -> None:
    workload = Workload(methods=Mix(tuple((Method(method), 1.0) for method in METHODS)))

    summary = Generator(target=target, workload=workload).offer(rate_per_s=60.0, duration_s=0.5, seed=1)

    assert set(counting.calls) == set(METHODS)
    assert summary.errors == 0


def test_callers_who_leave_do_so(counting: Counting, target: Target) -> None:
    counting.is_stalled = True
    workload = Workload(
        leaving=1.0, leave_within_s=0.05, methods=Mix(((Method.TRANSLATE, 1.0), (Method.TRANSLATE_DOCUMENT, 1.0)))
    )

    summary = Generator(target=target, workload=workload).offer(rate_per_s=20.0, duration_s=0.5, seed=1)

    assert summary.left == summary.offered > 0


def test_a_server_that_fails_has_no_throughput(target: Target) -> None:
    generator = Generator(target=target, workload=Workload(methods=Mix(((Method.CHECK, 1.0),))))

    with pytest.raises(RuntimeError, match="the first with UNIMPLEMENTED"):
        generator.throughput_per_s(duration_s=0.1)


def test_a_server_that_runs_already_has_an_output_directory(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_server_flags(parser)
    options = parser.parse_args(["--target", "localhost:1"])
    options.output = tmp_path / "new"

    with open_target(options):
        assert options.output.is_dir()


def test_a_server_that_rejects_nothing_is_not_overloaded(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--target", target.address, "--capacity", "5", "--duration", "1", "--output", str(tmp_path / "new")]

    assert main(["overload", *flags]) == 1

    told = capsys.readouterr()
    assert told.out.startswith("overload rejected_p99_ms=none accepted_late=0 errors_other=0 rss_growth_mb=none ")
    assert "nothing was rejected" in told.err
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"overload.json", "overload.png"}
