"""README and guides run as written: the blocks of a page in order, compared with the output shown after them.

A block that no test can run has a line such as `*Needs Docker.*` above it.
"""

import dataclasses
import gzip
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import docx
import pytest

from dragoman import DecodingOptions, TranslationClient
from dragoman_service.datatypes import Ports
from tests.integration.real_process import CHECKOUT, START_S, free_ports, process
from tests.waiting import wait_until

OPERATIONS = [CHECKOUT / "docs" / "operations" / f"{name}.md" for name in ("compose", "container", "gpu", "kubernetes")]
GUIDES = sorted({*(CHECKOUT / "docs" / "guides").glob("*.md")} - {CHECKOUT / "docs" / "guides" / "faq.md"})
PAGES = [CHECKOUT / "README.md", *GUIDES, *OPERATIONS]  # the FAQ shows what to do after failures
NEEDS = {
    *("Docker", "a cluster", "a GPU", "a registry", "several machines", "npm", "grpcurl"),
    *("an account", "your model", "your texts"),
}
BLOCK = re.compile(
    r"(?:^ *\*Needs (?P<needs>[^\n]*)\.\*\n\n)?"
    r"^ *```(?P<language>sh|bash|python)\n(?P<code>.*?)^ *```\n"
    r"(?:\n *```(?:text|json)\n(?P<output>.*?)^ *```\n)?",
    re.DOTALL | re.MULTILINE,
)
CI_TARGETS = set(re.findall(r"make ([a-z-]+)", (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8")))
BLOCK_S = 300.0
# A virtual environment as `make` creates it, but `pip` does nothing, and calls are sent to the server of the test.
PROGRAMS = {
    "activate": "",
    "pip": "#!/bin/sh\n",
    "python": f'#!/bin/sh\n[ "$1 $2" = "-m pip" ] || exec {sys.executable} "$@"\n',
    "dragoman": f"""#!/bin/sh
case $1 in translate | models) command=$1; shift; set -- "$command" --target "$TARGET" "$@" ;; esac
exec {sys.executable} -m dragoman "$@"
""",
    **dict.fromkeys(("docker", "helm", "kubectl", "npx", "podman", "sudo"), "#!/bin/sh\necho not in tests; exit 1\n"),
}
FILES = {  # of the reader
    "admin.key": "key\n",
    "film.srt": "1\n00:00:01,000 --> 00:00:02,000\nWhere is the station?\n",
    "glossaries/product.tsv": "en\tde\nSettings\tEinstellungen\n",
    "shop.key": "key\n",
    "strings.json": '{"question": "Where is the station?"}',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Commands or a program on a page.

    Attributes:
        place: page and line.
        needs: what a test lacks to run it; None: it runs.
        output: the output that the page shows; None: it shows none.
    """

    place: str
    language: str
    code: str
    needs: str | None
    output: str | None

    @property
    def commands(self) -> list[str]:
        """The lines without comments; empty for Python."""
        code = "" if self.language == "python" else self.code.replace("\\\n", "")
        return [line for line in re.sub(r"(^| +)#.*", "", code, flags=re.MULTILINE).splitlines() if line]

    @property
    def is_in_ci(self) -> bool:
        """Return whether all commands are targets of make in `.ci/run`, perhaps with other variables."""
        targets = [re.match(r"make ([a-z-]+)", command) for command in self.commands]
        return bool(targets) and all(target and target[1] in CI_TARGETS for target in targets)

    @property
    def is_server(self) -> bool:
        """Return whether the last command runs until it is stopped."""
        return bool(self.commands) and re.search(r"(dragoman|make) serve\b[^&|]*$", self.commands[-1]) is not None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            place=f"{page.name}:{1 + text.count(chr(10), 0, match.start('code'))}",
            **{name: value and textwrap.dedent(value) for name, value in match.groupdict().items()},
        )
        for match in BLOCK.finditer(text)
    ]


@dataclass(slots=True, kw_only=True)
class Reader:
    """Runs blocks in a checkout, where a server runs.

    Attributes:
        directory: links to all files of the repository, and `.venv/`.
        ports: those of the server that was started last.
        programs: started, each in a process group.
    """

    directory: Path
    ports: Ports
    programs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, block: Block) -> str:
        """Run the block; return its output, for a server that until it is ready."""
        if re.search(r"(dragoman|make) serve\b", block.code):
            self.stop()
            grpc_port, http_port = free_ports(2)
            self.ports = Ports(grpc_port=grpc_port, http_port=http_port, metrics_port=http_port)
        code, ports = block.code, self.ports
        code = re.sub(r"\b(localhost|127\.0\.0\.1):50051", rf"\1:{ports.grpc_port}", code)
        code = re.sub(r"\b(localhost|127\.0\.0\.1):(9464|8080)", rf"\1:{ports.http_port}", code)
        code = re.sub(  # a server elsewhere, with TLS
            r'"(dns:///)?dragoman[\w.-]*:50051"(.*), tls=TlsOptions\(.*?\)', rf'"localhost:{ports.grpc_port}"\2', code
        )
        code = code.replace("--host 0.0.0.0", "--host 127.0.0.1")
        curl = "silent\nshow-error\n" + ("fail-with-body\n" if block.output is None else "")
        (self.directory / ".curlrc").write_text(curl, encoding="utf-8")
        environment = {
            **os.environ,
            "PATH": f"{self.directory / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": str(self.directory),
            "TARGET": f"localhost:{ports.grpc_port}",
            "DRAGOMAN_GRPC__PORT": str(ports.grpc_port),
            "DRAGOMAN_HTTP__PORT": str(ports.http_port),
            "DRAGOMAN_LOGS__FORMAT": "console",
        }
        command = ["python", "-c", f"KEY = 'key'\n{code}"] if block.language == "python" else ["bash", "-ec", code]
        if "def test_" in code:
            (self.directory / "test_example.py").write_text(code, encoding="utf-8")
            command = ["python", "-m", "pytest", "-n", "0", "test_example.py"]
        log = self.directory / f"log-{len(self.programs)}"  # a server of an earlier block still writes to its own
        with log.open("wb") as stream:
            program = subprocess.Popen(
                command,
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.programs.append(program)
        wait_until(
            lambda: program.poll() is not None or (block.is_server and "] ready " in log.read_text(encoding="utf-8")),
            timeout_s=BLOCK_S,
            state=lambda: f"{block.place} still runs: {log.read_text(encoding='utf-8')}",
        )
        output = log.read_text(encoding="utf-8")
        assert program.returncode == (None if block.is_server else 0), f"{block.place}: {output}"
        return output.replace(str(ports.grpc_port), "50051").replace(str(ports.http_port), "9464")

    def stop(self) -> None:
        """Stop all processes that blocks have started."""
        for program in self.programs:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        self.programs.clear()


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    with process(DRAGOMAN_GRPC__GOOGLE_TRANSLATION="true") as server:
        yield server.wait_until_ready(timeout_s=START_S)


@pytest.fixture
def reader(tmp_path: Path, ports: Ports) -> Iterator[Reader]:
    for path in CHECKOUT.iterdir():
        if not path.name.startswith(".") and path.name not in {"build", "dist", "runs"}:
            (tmp_path / path.name).symlink_to(path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    for name in (".native", ".serve", ".load", ".bench", ".dev"):
        (programs.parent / name).touch()  # `make` has installed everything
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    docx.Document().save(str(tmp_path / "letter.docx"))
    reader = Reader(directory=tmp_path, ports=ports)
    yield reader
    reader.stop()


def is_shown(output: str, shown: str) -> bool:
    """Return whether the output has the shown text, where `...` is any text, numbers are rounded, lines permuted."""
    pattern, numbers = "", []
    for part in re.findall(r"\.\.\.|\s+|(?<![\w.])-?\d+\.\d+(?![\w.])|.", shown.strip()):
        if part == "...":
            pattern += ".*?"
        elif part.isspace():
            pattern += r"\s*"
        elif len(part) > 1:
            pattern += r"(-?[\d.e-]+)"
            numbers.append(part)
        else:
            pattern += re.escape(part)
    match = re.search(rf"^\s*{pattern}$", output, re.DOTALL | re.MULTILINE)
    if match is None:
        return sorted(output.split("\n")) == sorted(shown.split("\n"))  # of concurrent calls
    return all(
        float(number) == pytest.approx(float(rounded), rel=0, abs=10.0 ** -len(rounded.partition(".")[2]))
        for number, rounded in zip(match.groups(), numbers, strict=True)
    )


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="needs curl and openssl")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs_as_written(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        if block.needs is None and not block.is_in_ci:
            output = reader.run(block)
            shown = block.output or "..."
            if block.is_server:  # parts of the log
                shown = f"...{shown}".replace("\n", "\n...")
            assert is_shown(output, shown), f"{block.place}: {output}"


OWN_TESTS = ("runs/large", "runs/mixed", "runs/many", "runs/ablation", "synthetic.tsv")
"""Files of commands that test_distill, test_train, test_multilingual and test_backtranslate run."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_own_model_is_trained_evaluated_and_served_as_written_but_for_less_time(reader: Reader) -> None:
    nouns = {
        "man": "Mann",
        "dog": "Hund",
        "boy": "Junge",
        "friend": "Freund",
        "train": "Zug",
        "forest": "Wald",
        "park": "Park",
    }
    pairs = [
        f"The {a} and the {b} are in the {c} today.\tDer {nouns[a]} und der {nouns[b]} sind heute im {nouns[c]}.\n"
        for a, b, c in itertools.product(nouns, repeat=3)
    ]
    for name, step in (("corpus", 1), ("dev", 29), ("test", 31)):
        with gzip.open(reader.directory / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.writelines(pairs[::step])
    less = {
        r"--max-minutes \d+ --cooldown-minutes \d+": "--max-steps 150 --checkpoint-interval 30 --batch-tokens 512",
        "--preset small --train": "--preset tiny --vocabulary-size 300 --train",
        r"--max-steps \d+ --warmup-steps \d+": "--max-steps 4 --warmup-steps 2",
    }
    outputs = dict[str, str]()
    for block in blocks(CHECKOUT / "docs" / "guides" / "own-model.md"):
        code = block.code
        for pattern, flags in less.items():
            code = re.sub(pattern, flags, code)
        if not any(name in code for name in OWN_TESTS):
            outputs[code] = reader.run(dataclasses.replace(block, code=code))

    assert "stopped at step 150" in "".join(outputs.values())
    (evaluation,) = [output for code, output in outputs.items() if code.startswith("dragoman export evaluate")]
    assert float(re.findall(r"BLEU ([\d.]+)", evaluation)[0]) > 20


def test_pages_show_each_client_method() -> None:
    shown = "".join(block.code for page in PAGES for block in blocks(page))

    assert all(name in shown for name in ("AsyncTranslationClient", "translate_document", "translate_stream"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_block_that_is_not_run_states_what_it_needs(page: Path) -> None:
    assert {block.needs for block in blocks(page)} <= {None, *NEEDS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["The old man has lost his keys in the garden.", "Where is the station?", "Hello, world!"]
)
def test_graphs_example_prints_the_greedy_translation_of_the_server(
    ports: Ports, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = blocks(CHECKOUT / "docs" / "guides" / "onnx-graphs.md")
    monkeypatch.chdir(CHECKOUT)

    exec(re.sub("^TEXT = .*", f"TEXT = {text!r}", program.code, flags=re.MULTILINE), {})  # noqa: S102

    with TranslationClient(f"localhost:{ports.grpc_port}") as client:
        options = DecodingOptions(beam_size=1)
        result = client.translate([text], source_language="en", target_language="de", options=options)
    assert capsys.readouterr().out == f"{result[0].text}\n"
