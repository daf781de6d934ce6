"""`dragoman export evaluate` on a server, on its bundle, and on a file."""

import asyncio
import sys
from pathlib import Path

import lxml.html
import pytest

from dragoman_export.__main__ import main
from tests.integration.running_server import RunningServer

SOURCES = ("A man sleeps.", "Two dogs are playing. It rains.", "Nobody knew why.")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Pairs with invented references."""
    path = tmp_path / "test.tsv"
    path.write_text("".join(f"{source}\tein Mann schläft .\n" for source in SOURCES), encoding="utf-8")
    return path


@pytest.mark.parametrize("length_penalty", ["0.6", "2"])
async def test_server_has_the_scores_of_its_bundle(
    length_penalty: str,
    server: RunningServer,
    tiny_model: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = f"127.0.0.1:{server.port}"
    texts = [tmp_path / "bundle.txt", tmp_path / "server.txt"]
    bundle = ["--bundle", str(tiny_model / "tiny" / "1"), "--output", str(texts[0])]
    service = ["--target", target, "--batch-size", "2", "--callers", "2", "--output", str(texts[1])]

    command = ["evaluate", "--data", str(data), "--beam", "2", "--length-penalty", length_penalty]

    assert main([*command, *bundle]) == 0
    from_bundle = capsys.readouterr().out.splitlines()
    assert await asyncio.to_thread(main, [*command, *service]) == 0
    from_server = capsys.readouterr().out.splitlines()

    assert texts[0].read_bytes() == texts[1].read_bytes()
    assert [line.split()[0] for line in from_bundle[:4]] == ["BLEU", "chrF", "TER", "length"]
    assert from_server[:7] == from_bundle[:7]
    assert "2 concurrent calls of 2 texts, tiny/1, beam 2" in from_server[7]
    assert from_server[7].endswith("beam 2, length penalty 2") == (length_penalty == "2")


async def test_server_warnings_are_counted(
    server: RunningServer, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = data.parent / "long.tsv"
    long.write_text("A man sleeps on and on, and sleeps. " * 40 + "\tein Mann .\n", encoding="utf-8")
    target = f"127.0.0.1:{server.port}"

    assert await asyncio.to_thread(main, ["evaluate", "--data", str(long), "--target", target, "--callers", "1"]) == 0

    assert "warnings " in capsys.readouterr().out


def test_length_penalty_out_of_range_is_rejected(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--data", str(data), "--bundle", "missing", "--length-penalty", "5.5"]) != 0

    assert "expected from 0 to 5" in capsys.readouterr().err


def test_languages_of_a_bundle_are_rejected(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "--data", str(data), "--bundle", "missing", "--source-language", "fr"]

    assert main(command) == 1

    assert "--source-language is 'fr': expected no value without --target" in capsys.readouterr().err


async def test_rejected_call_is_an_error(server: RunningServer, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    languages = ["--source-language", "fr", "--target-language", "de"]
    command = ["evaluate", "--data", str(data), "--target", f"127.0.0.1:{server.port}", *languages]

    assert await asyncio.to_thread(main, command) == 1

    assert "fr to de " in capsys.readouterr().err


def test_two_systems_are_compared_by_paired_bootstrap(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    better, worse = tmp_path / "better.txt", tmp_path / "worse.txt"
    better.write_text("ein Mann schläft .\n" * 3, encoding="utf-8")
    worse.write_text("ein Mann sang .\n" * 3, encoding="utf-8")

    assert main(["evaluate", "--data", str(data), "--translations", str(better), "--against", str(worse)]) == 0

    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("BLEU 100.00 ")
    assert out[3] == "length ratio 1.000: 12 words, 12 in the references"
    assert out[7].startswith("BLEU 100.00 ± 0.00 against ")
    assert out[-1].startswith("TER 0.00 ± 0.00 against 25.00 ± 0.00: -25.00, p = 0.0")


def test_translations_of_another_length_are_rejected(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("ein Mann\n", encoding="utf-8")

    assert main(["evaluate", "--data", str(data), "--translations", str(short)]) == 1

    assert "has 1 lines: expected 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sources", "kind", "first_line"),
    [
        (["A man rides a bicycle to the garden.", "The train is here.", "No."], "inserted", "2 sentences, "),
        (
            ["A `man` rides {0} to `a`.", "The <b>train</b> is here.", "See www.example.org!"],
            "own",
            "2 sentences, 4 protected spans",
        ),
    ],
    ids=["inserted", "of the sentences"],
)
def test_protected_spans_are_counted(
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sources: list[str],
    kind: str,
    first_line: str,
) -> None:
    data = tmp_path / "test.tsv"
    data.write_text("".join(f"{source}\tx\n" for source in sources), encoding="utf-8")

    flags = ["--bundle", str(tiny_model / "tiny" / "1"), "--data", str(data), "--spans", kind]
    assert main(["evaluate", *flags]) == 0

    lines = capsys.readouterr().out.splitlines()[-6:]
    assert lines[0].startswith(first_line)
    counts = [int(line.split()[-3]) for line in lines[1:5]]
    assert sum(counts) == int(lines[0].split()[2])
    assert kind == "own" or counts[-1] == 0  # lost


FAKE_COMET = """
import sys
flags = dict(zip(sys.argv[1:7:2], sys.argv[2:8:2]))
lines = [open(flags[flag], encoding="utf-8").read().splitlines() for flag in ("-s", "-t", "-r")]
assert sys.argv[7:] == ["--quiet", "--only_system"] and len(set(map(len, lines))) == 1
print(f"{flags['-t']}\\tscore: {sum(a == b for a, b in zip(*lines[1:])) / len(lines[0]):.4f}")
"""


def test_odd_translations_comet_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    references = ["Ein Mann schläft.", "Berlin", "Es regnet.", "Nein, nein, nein!"]
    texts = ["A man sleeps.", "Berlin", "Es regnet, regnet, regnet <b>.", "Nein, nein, nein!"]
    sources = ["A man sleeps.", "Berlin", "It rains.", "No, no, no!"]
    rows = zip(sources, references, strict=True)
    (tmp_path / "test.tsv").write_text("".join(f"{source}\t{reference}\n" for source, reference in rows))
    for name, lines in (("own", texts), ("other", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "comet.py").write_text(FAKE_COMET)
    files = [
        "--translations",
        str(tmp_path / "own"),
        "--against",
        str(tmp_path / "other"),
        "--html",
        str(tmp_path / "h"),
    ]

    comet = f"{sys.executable} {tmp_path / 'comet.py'}"
    assert main(["evaluate", "--data", str(tmp_path / "test.tsv"), *files, "--comet", comet]) == 0

    output = capsys.readouterr().out
    assert "1 copies of the source (25.00%), first: line 1: 'A man sleeps.'" in output
    assert "1 repetitions (25.00%), first: line 3" in output
    assert "0 empty (0.00%)\n" in output
    assert "COMET 0.5000" in output
    page = lxml.html.fromstring((tmp_path / "h").read_text(encoding="utf-8"))
    shown = [["".join(map(str, cell.itertext())) for cell in row] for row in page.iter("tr")]
    assert shown[0] == ["line", "source", "reference", "own", "chrF", "other", "chrF", "difference"]
    assert [row[0] for row in shown[1:]][:2] == ["1", "3"]  # the largest differences first
    assert ["3", "It rains.", "Es regnet.", texts[2]] in [row[:4] for row in shown]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-command", "cannot run 'no-such-command': No such file"),
        ("false", "'false' exited with 1"),
        ("echo none", "'echo none' printed no score"),
    ],
)
def test_failing_comet_command_is_an_error(
    data: Path, tmp_path: Path, command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").write_text("a\nb\nc\n")

    assert main(["evaluate", "--data", str(data), "--translations", str(tmp_path / "own"), "--comet", command]) == 1

    assert message in capsys.readouterr().err
