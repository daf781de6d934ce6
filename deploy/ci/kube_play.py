"""Makes of a rendered overlay what `podman kube play` takes: its kinds alone, and the Secrets that an operator makes.

    kubectl kustomize OVERLAY | python deploy/ci/kube_play.py --secret dragoman-callers callers.toml=FILE > play.yaml

Podman before 4.4 puts the base64 text of a Secret into the pod; for it, `--secrets-as-config-maps` has the same files
in ConfigMaps, mounted at the same places. Standard error says which kinds are left out.

exit codes: 0 done, 2 called wrongly or there is no Deployment
"""

import argparse
import base64
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

KNOWN_KINDS: Final = ("ConfigMap", "PersistentVolumeClaim", "Deployment")
"""What podman plays, in the order in which it wants them; Secrets come before."""


def playable(objects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the objects that podman knows, what is referred to before what refers to it."""
    return [thing for kind in KNOWN_KINDS for thing in objects if thing["kind"] == kind]


def secret(name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a Secret that pods mount, as an operator would make it."""
    data = {key: base64.b64encode(content).decode() for key, content in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def config_map(name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what takes the place of a Secret."""
    data = {key: content.decode() for key, content in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def mount_config_maps(pod: Mapping[str, Any]) -> None:
    """Change the volumes of a pod that are Secrets into ConfigMaps of the same names."""
    for volume in pod["volumes"]:
        if "secret" in volume:
            volume["configMap"] = {"name": volume.pop("secret")["secretName"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read standard input, write standard output; return the exit code."""
    options = _parser().parse_args(arguments)
    objects = [thing for thing in yaml.safe_load_all(sys.stdin) if thing]
    played = playable(objects)
    deployments = [thing for thing in played if thing["kind"] == "Deployment"]
    if not deployments:
        print("kube_play: nothing to run: no Deployment on standard input", file=sys.stderr)
        return 2
    left_out = sorted({thing["kind"] for thing in objects} - set(KNOWN_KINDS))
    print(f"podman does not know {', '.join(left_out) or 'nothing'}", file=sys.stderr)
    make = config_map if options.secrets_as_config_maps else secret
    secrets = [make(name, dict(map(_file, files))) for name, *files in options.secret]
    if options.secrets_as_config_maps:
        for deployment in deployments:
            mount_config_maps(deployment["spec"]["template"]["spec"])
    yaml.safe_dump_all([*secrets, *played], sys.stdout)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--secret", nargs="+", action="append", default=[], metavar="NAME KEY=FILE", help="name and files of a Secret"
    )
    parser.add_argument("--secrets-as-config-maps", action="store_true", help="for podman before 4.4")
    return parser


def _file(given: str) -> tuple[str, bytes]:
    key, _, path = given.partition("=")
    return key, Path(path).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
