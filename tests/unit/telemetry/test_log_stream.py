import fcntl
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict

from service.telemetry.logs import LogStream

PIPE_BYTES = 4096  # the smallest there is
LINE = "x" * 99 + "\n"


@dataclass
class Pipe:
    reader: int
    writer: int

    def read(self) -> str:
        """All that is in it; somebody must have written."""
        return os.read(self.reader, 1 << 20).decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe that nobody reads, as small as can be."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield Pipe(reader, writer)
    for descriptor in (reader, writer):
        os.close(descriptor)


@pytest.fixture
def messages() -> Iterator[list[EventDict]]:
    """What the stream itself logs."""
    with structlog.testing.capture_logs() as records:
        yield records


def lost(messages: list[EventDict]) -> list[int]:
    """How many lines the log says are missing, each time it says so."""
    return [record["lines"] for record in messages if record["event"] == "log lines were lost"]


def test_lines_go_out_as_they_are(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        stream = LogStream(file.fileno())

        assert stream.write("eine Zeile\n") == len("eine Zeile\n")
        stream.write("zwei \udc80\n" + "x" * 10_000 + "\n")

    text = (tmp_path / "log").read_text(encoding="utf-8")
    assert text == "eine Zeile\nzwei \\udc80\n" + "x" * 10_000 + "\n"


def test_a_full_disk_loses_lines_and_counts_them() -> None:
    counted: list[int] = []
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        stream = LogStream(descriptor)
        stream.write(LINE)
        stream.count_lost(counted.append)
        stream.write(LINE * 2)
    finally:
        os.close(descriptor)

    assert counted == [1, 2]


def test_a_pipe_that_nobody_reads_loses_lines_and_says_so_once_it_is_read(
    pipe: Pipe, messages: list[EventDict]
) -> None:
    counted: list[int] = []
    stream = LogStream(pipe.writer, patience_s=0)
    stream.count_lost(counted.append)
    for _ in range(100):
        stream.write(LINE)
    written = pipe.read()

    stream.write("after\n")

    assert len(written) + sum(counted) * len(LINE) == 100 * len(LINE)
    assert sum(counted) > 0
    assert pipe.read() == "after\n"
    assert lost(messages) == [sum(counted)]


def test_a_reader_who_comes_in_time_loses_nothing(pipe: Pipe, messages: list[EventDict]) -> None:
    stream = LogStream(pipe.writer, patience_s=60)
    lines = [f"{number:04}" + LINE for number in range(200)]
    read: list[str] = []

    def drain() -> None:
        while sum(map(len, read)) < sum(map(len, lines)):
            read.append(pipe.read())

    reader = threading.Thread(target=drain)
    reader.start()
    for line in lines:
        stream.write(line)
    reader.join(timeout=60)

    assert "".join(read) == "".join(lines)
    assert lost(messages) == []


def test_after_a_line_that_was_cut_off_the_next_begins_anew(pipe: Pipe, messages: list[EventDict]) -> None:
    stream = LogStream(pipe.writer, patience_s=0)
    stream.write("y" * 3 * PIPE_BYTES + "\n")
    torn = pipe.read()

    stream.write("whole\n")

    assert set(torn) == {"y"}
    assert pipe.read() == "\nwhole\n"
    assert lost(messages) == [1]


def test_a_reader_who_has_gone_stops_nobody(pipe: Pipe) -> None:
    counted: list[int] = []
    stream = LogStream(pipe.writer)
    stream.count_lost(counted.append)
    os.close(pipe.reader)

    stream.write(LINE)

    assert counted == [0, 1]
    pipe.reader = os.open("/dev/null", os.O_RDONLY)  # for the fixture


def test_every_thread_writes_whole_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        stream = LogStream(file.fileno())

        def talk(name: str) -> None:
            for _ in range(200):
                stream.write(name * 50 + "\n")

        threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == sorted(name * 50 for name in "abcd" for _ in range(200))
