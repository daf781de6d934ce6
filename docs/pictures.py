"""Take the pictures of README and guides from running programs: a terminal, the playground, and Locust's page.

    python -m docs.pictures    writes docs/assets/pictures/

Needs curl and Chromium.
"""

import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright
from rich.console import Console
from rich.text import Text

from dragoman_service.cli.server_process import ServerProcess

CHECKOUT = Path(__file__).resolve().parents[1]
PICTURES = CHECKOUT / "docs" / "assets" / "pictures"
_COLUMNS = 110
_PORTS = ("50051", "9464")  # gRPC and HTTP, as in README
_LOAD_TEST_MS = 30_000  # some points on the charts
_CHART_MS = 2000  # the charts are drawn with an animation
_ANSI = re.compile(r"\x1b\[[\d;]*m")
# That of Rich without its fonts, which are on another site.
_SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Write all pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    record_terminal(PICTURES / "terminal.svg")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        show_playground(browser.new_page(viewport={"width": 900, "height": 700}), PICTURES / "playground.png")
        show_locust(browser.new_page(viewport={"width": 1200, "height": 700}), PICTURES / "locust.png")
        browser.close()


def commands() -> list[str]:
    """Return the commands of README that the recording shows: the start of the server, then calls."""
    introduction = (CHECKOUT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", introduction, re.DOTALL | re.MULTILINE)
    first = next(index for index, (_, code) in enumerate(blocks) if code.startswith("make serve"))
    return [
        command
        for language, code in blocks[first:]
        for command in ([f"python <<'END'\n{code}END"] if language == "python" else code.splitlines())
    ]


def record_terminal(path: Path) -> None:
    """Run the commands and write what a terminal shows as SVG."""
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    start, *calls = commands()
    with _server(start) as (log, environment):
        grpc_port, http_port = re.findall(r"(?:grpc|http)_port=(\d+)", _ANSI.sub("", log))
        shown = {grpc_port: _PORTS[0], http_port: _PORTS[1]}
        _print(console, start, log, shown)
        for call in calls:
            command = call.replace(_PORTS[0], grpc_port).replace(_PORTS[1], http_port)
            run = ["bash", "-ec", command]
            done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
            _print(console, call, done.stdout, shown)
    svg = console.export_svg(title="Dragoman", code_format=_SVG, unique_id="terminal")
    path.write_text(svg, encoding="utf-8")


def _print(console: Console, command: str, output: str, ports: dict[str, str]) -> None:
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for port, name in ports.items():
        output = output.replace(port, name)
    console.print(Text.from_ansi(output.rstrip()), "", sep="\n")


@contextmanager
def _server(command: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Run the command in a terminal; yield its log until it is ready, and the environment of other commands."""
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}  # as started from a shell
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    free = {"DRAGOMAN_GRPC__PORT": "0", "DRAGOMAN_HTTP__PORT": "0"}
    terminal, end = pty.openpty()
    run = ["bash", "-ec", f"exec {command}"]
    server = subprocess.Popen(  # noqa: S603
        run, cwd=CHECKOUT, env=environment | free, stdout=end, stderr=end, start_new_session=True
    )
    os.close(end)
    with server, open(terminal, encoding="utf-8", newline="\n") as stream:  # noqa: PTH123
        try:
            log = ""
            while "] ready " not in _ANSI.sub("", log):
                log += stream.readline().replace("\r", "")
            yield log, environment
        finally:
            os.killpg(server.pid, signal.SIGTERM)


def show_playground(page: Page, path: Path) -> None:
    """Translate in the playground and point at a word."""
    with ServerProcess(environment={"DRAGOMAN_HTTP__PLAYGROUND": "true"}) as server:
        page.goto(f"http://127.0.0.1:{server.wait_until_ready().http_port}/playground")
        page.get_by_label("Text", exact=True).fill("The weather is nice today. Open {file} and press Save.")
        for _ in range(2):  # the first call loads the language detection
            page.get_by_role("button", name="Translate").click()
            expect(page.get_by_role("button", name="Stop")).to_be_disabled()
            expect(page.locator("#status")).to_contain_text("sentences in")
        page.locator("#sentences").get_by_role("button", name="weather").hover()
        _save(page, path)


def show_locust(page: Page, path: Path) -> None:
    """Run a load test from Locust's page until its charts have some points."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with tempfile.TemporaryDirectory() as directory:
        flags = [f"--web-port={address[1]}", "--users=5", f"--html={directory}/report.html", f"--csv={directory}/stats"]
        run = [sys.executable, "-m", "loadtests", "load", *flags]
        with subprocess.Popen(run, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as locust:  # noqa: S603
            try:
                while locust.poll() is None and not _accepts(address):
                    time.sleep(0.1)
                page.goto(f"http://127.0.0.1:{address[1]}")
                page.get_by_role("button", name="Start").click()
                page.wait_for_timeout(_LOAD_TEST_MS)
                page.get_by_role("tab", name="Charts").click()
                page.wait_for_timeout(_CHART_MS)
                _save(page, path)
            finally:
                locust.send_signal(signal.SIGTERM)


def _accepts(address: tuple[str, int]) -> bool:
    with socket.socket() as client:
        return client.connect_ex(address) == 0


def _save(page: Page, path: Path) -> None:
    """Save the page with 256 colours."""
    Image.open(BytesIO(page.screenshot())).convert("RGB").quantize().save(path, optimize=True)


if __name__ == "__main__":
    main()
