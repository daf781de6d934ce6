"""Writes components/monitoring/prometheus-rule.yaml: the groups of deploy/prometheus/rules/*.yaml as a PrometheusRule.

The rules are kept once, in Prometheus' own format; the operator wants them inside an object. `--check` writes nothing
and fails if the object does not hold exactly those groups.

exit codes: 0 written or equal, 1 not equal, 2 called wrongly or no rules
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

_HERE = Path(__file__).resolve().parent
RULES = _HERE.parent / "prometheus" / "rules"
TARGET = _HERE / "components" / "monitoring" / "prometheus-rule.yaml"

_HEADER = "# Made of deploy/prometheus/rules by deploy/kubernetes/render_rules.py; change the rules there.\n"
_WIDTH = 140


def groups(directory: Path) -> list[dict[str, Any]]:
    """Return the groups of all rule files of a directory, in the order of the file names.

    Raises:
        ValueError: if there are none, or a name occurs twice, which the operator would refuse.
    """
    found = [group for path in sorted(directory.glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]]
    if not found:
        raise ValueError(f"{directory}: no rules; expected files with `groups:`")
    names = [group["name"] for group in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{directory}: groups {twice} occur twice; give each a name of its own")
    return found


def prometheus_rule(rule_groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the object that holds the groups."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "dragoman", "labels": {"app.kubernetes.io/name": "dragoman"}},
        "spec": {"groups": list(rule_groups)},
    }


def is_current(directory: Path, target: Path) -> bool:
    """Return whether a file holds exactly what `main` would write into it."""
    return target.is_file() and yaml.safe_load(target.read_text()) == prometheus_rule(groups(directory))


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, as the other manifests do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _plain_or_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _plain_or_block)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if there were something to write")
    options = parser.parse_args(arguments)
    try:
        wanted = prometheus_rule(groups(RULES))
    except (OSError, ValueError) as error:
        print(f"render_rules: {error}", file=sys.stderr)
        return 2
    if not options.check:
        text = yaml.dump(wanted, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
        TARGET.write_text(_HEADER + text)
    elif not is_current(RULES, TARGET):
        print(
            f"render_rules: {TARGET} differs from {RULES}; run python deploy/kubernetes/render_rules.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
