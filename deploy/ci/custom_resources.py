"""Strict checks of objects that belong to operators: KEDA, the Prometheus operator, the Gateway API.

Two ways to the same answer. A directory of JSON schemas made of the operators' definitions; or npm's
`@kubernetes-models`, whose validators know types, ranges and required fields, and whose TypeScript types refuse fields
that are unknown, which the validators let pass.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Object = Mapping[str, Any]

_NPM_PACKAGES: Final = (
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "typescript@5.9",
)
_PACKAGE_OF_GROUP: Final = {
    "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
    "keda.sh": "@kubernetes-models/keda",
    "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
}
_TSC_FLAGS: Final = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")


class SchemaDirectory:
    """Files `kind_version.json`, in lower case, for `check-jsonschema`."""

    def __init__(self, directory: Path, program: Path) -> None:
        """Take the directory, and the program `check-jsonschema`."""
        self.name = "schemas of a directory"
        self._directory = directory
        self._program = program

    def faults(self, objects: Sequence[Object]) -> list[str]:
        """Return what is wrong with objects.

        Raises:
            OSError: if a schema is not there.
        """
        with tempfile.TemporaryDirectory() as place:
            return [fault for thing in objects for fault in self._faults(thing, Path(place))]

    def _faults(self, thing: Object, place: Path) -> list[str]:
        text = (self._directory / f"{thing['kind']}_{thing['apiVersion'].rpartition('/')[2]}.json".lower()).read_text()
        unknown = sorted(thing.keys() - json.loads(text)["properties"].keys())
        found = [f"{thing['kind']}: unknown {unknown}"] if unknown else []
        schema, file = place / "schema.json", place / "object.json"
        schema.write_text(text.replace('"^(?i)', '"(?i)^'))  # Go takes a flag there, Python does not
        file.write_text(json.dumps(thing))
        command: list[str | Path] = [self._program, "--regex-variant", "python", "--schemafile", schema, file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        return [*found, f"{thing['kind']}: {done.stdout}{done.stderr}"] if done.returncode else found


class TypedPackages:
    """npm's `@kubernetes-models`, installed into a directory."""

    def __init__(self, directory: Path) -> None:
        """Install the packages unless they are there.

        Raises:
            OSError: if they cannot be installed.
        """
        self.name = "@kubernetes-models"
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "package.json").write_text('{"private": true, "type": "module"}')
        if not (directory / "node_modules" / "typescript").is_dir():
            done = self._run("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", *_NPM_PACKAGES)
            if done.returncode:
                raise OSError(f"npm cannot install @kubernetes-models: {done.stderr.strip()}")

    def faults(self, objects: Sequence[Object]) -> list[str]:
        """Return what is wrong with objects."""
        (self._directory / "types.ts").write_text(
            "\n".join(_typed(number, thing) for number, thing in _numbered(objects))
        )
        (self._directory / "values.mjs").write_text("\n".join(_validated(thing) for thing in objects))
        checks = (
            self._run("node_modules/.bin/tsc", *_TSC_FLAGS, "types.ts"),
            self._run("node", "values.mjs"),
        )
        return [f"{done.stdout}{done.stderr}".strip() for done in checks if done.returncode]

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603
            command, cwd=self._directory, capture_output=True, text=True, check=False
        )


def _numbered(objects: Sequence[Object]) -> list[tuple[int, Object]]:
    return list(enumerate(objects))


def _module(thing: Object) -> str:
    group, _, version = thing["apiVersion"].partition("/")
    return f"{_PACKAGE_OF_GROUP[group]}/{group}/{version}/{thing['kind']}"


def _typed(number: int, thing: Object) -> str:
    """Return TypeScript that compiles if the object has no unknown field."""
    alias = f"Kind{number}"
    imported = f'import type {{ I{thing["kind"]} as {alias} }} from "{_module(thing)}";'
    return f"{imported}\nexport const object{number}: {alias} = {json.dumps(thing)};"


def _validated(thing: Object) -> str:
    """Return JavaScript that throws if the object breaks a rule of its definition."""
    name = thing["kind"]
    content = {key: value for key, value in thing.items() if key not in {"apiVersion", "kind"}}
    return f'{{ const {{ {name} }} = await import("{_module(thing)}"); new {name}({json.dumps(content)}).validate(); }}'
