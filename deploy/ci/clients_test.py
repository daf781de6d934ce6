"""`python -m deploy.ci.clients_test`: is DeepL's own client for Node.js served as it expects?

Installs `deepl-node` from npm below build/clients and lets it call a server with the model that ships, on a free port
of this machine: texts, options, detection, languages, usage, glossaries and what is refused. Clients for Python are in
the tests.

exit codes: 0 all of it held, or npm or the package cannot be had here (the line begins with SKIPPED), 1 it did not
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from service.cli.demo import ServerProcess

_DIRECTORY: Final = Path(__file__).resolve().parents[2] / "build" / "clients"
_PACKAGE: Final = "deepl-node@1.28.0"
_READY_TIMEOUT_S: Final = 90.0
_CALLS_TIMEOUT_S: Final = 60.0
_INSTALL_TIMEOUT_S: Final = 300.0

_SCRIPT: Final = """
import * as deepl from "deepl-node";

const client = new deepl.DeepLClient("any", { serverUrl: process.argv[2], maxRetries: 0 });
const failure = (call) => call.then(() => "none", (error) => `${error.constructor.name}: ${error.message}`);
const texts = await client.translateText(["Where is the station?", "Thank you."], "en", "de");
const html = { tagHandling: "html", ignoreTags: ["code"], splitSentences: "nonewlines", formality: "prefer_more" };
const usage = await client.getUsage();
console.log(JSON.stringify({
  texts: texts.map((one) => [one.text, one.detectedSourceLang, one.billedCharacters]),
  markup: (await client.translateText("<p>Open the <code>big file</code>.</p>", "en", "de", html)).text,
  detected: (await client.translateText("Where is the station, please?", null, "de")).detectedSourceLang,
  glossary: (await client.translateText("The station is here.", "en", "de", { glossary: "travel" })).text,
  source: (await client.getSourceLanguages()).map((one) => one.code),
  target: (await client.getTargetLanguages()).map((one) => one.code),
  usage: [usage.character.count, usage.anyLimitReached()],
  glossaries: (await client.listGlossaries()).map((one) => [one.glossaryId, one.entryCount]),
  entries: (await client.getGlossaryEntries("travel")).entries(),
  unknown: await failure(client.getGlossary("none")),
  formality: await failure(client.translateText("Hello.", "en", "de", { formality: "more" })),
  pair: await failure(client.translateText("Hello.", "en", "ja")),
  creation: await failure(client.createGlossary("x", "en", "de", new deepl.GlossaryEntries({ entries: { a: "b" } }))),
}));
"""

_EXPECTED: Final[dict[str, Any]] = {
    "detected": "en",
    "source": ["en"],
    "target": ["de"],
    "usage": [31, False],
    "glossaries": [["travel", 1]],
    "entries": {"station": "Haltestelle"},
}
_HELD: Final = {
    "markup": "<code>big file</code>",
    "glossary": "Haltestelle",
    "unknown": "GlossaryNotFoundError",
    "formality": "formality",
    "pair": "target_lang",
    "creation": "files of the server",
}
"""What a part of the answer holds."""


def main() -> int:
    """Run the calls and judge them; return the exit code."""
    if shutil.which("npm") is None or not _is_installed():
        print(f"SKIPPED: npm, or {_PACKAGE} of it, cannot be had")
        return 0
    (_DIRECTORY / "calls.mjs").write_text(_SCRIPT, encoding="utf-8")
    with tempfile.TemporaryDirectory() as glossaries:
        (Path(glossaries) / "travel.tsv").write_text("en\tde\nstation\tHaltestelle\n", encoding="utf-8")
        settings = {"DRAGOMAN_MODELS__GLOSSARIES_DIRECTORY": glossaries}
        with ServerProcess(environment=settings) as server:
            ports = server.wait_until_ready(timeout_s=_READY_TIMEOUT_S)
            answers = json.loads(_output("node", "calls.mjs", f"http://127.0.0.1:{ports.http_port}"))
    faults = broken(answers)
    print("\n".join(faults) or f"{_PACKAGE}: all calls answered as it expects")
    return 1 if faults else 0


def broken(answers: dict[str, Any]) -> list[str]:
    """Return what the answers should have been and are not."""
    faults = [
        f"{name}: {answers.get(name)!r}, not {value!r}"
        for name, value in _EXPECTED.items()
        if answers.get(name) != value
    ]
    faults += [
        f"{name}: {answers.get(name)!r} without {part!r}"
        for name, part in _HELD.items()
        if part not in answers.get(name, "")
    ]
    if [one[1:] for one in answers["texts"]] != [["en", 21], ["en", 10]] or not all(one[0] for one in answers["texts"]):
        faults.append(f"texts: {answers['texts']!r}")
    return faults


def _is_installed() -> bool:
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    (_DIRECTORY / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    flags = ("--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save")
    try:
        _output("npm", "install", *flags, _PACKAGE, timeout_s=_INSTALL_TIMEOUT_S)
    except subprocess.SubprocessError as error:
        print(f"npm: {error}", file=sys.stderr)
        return False
    return True


def _output(*command: str, timeout_s: float = _CALLS_TIMEOUT_S) -> str:
    done = subprocess.run(  # noqa: S603 - ours
        command, cwd=_DIRECTORY, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8", timeout=timeout_s
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
