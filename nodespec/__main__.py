"""Look at an inventory without connecting: ``python -m nodespec check INVENTORY``."""

from __future__ import annotations

import argparse
import sys

from nodespec import docs
from nodespec.fleet import data_of, read_all
from nodespec.loading import look
from nodespec.model import NodeSpec
from nodespec.problems import report


def main(arguments: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character of an inventory's value is no reason to fail.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(prog="python -m nodespec", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="print all problems of all hosts; exit 1 if any")
    check.add_argument("inventory", help="as pyinfra takes it: a file, usually inventories/NAME.py")
    check.add_argument(
        "--no-files",
        action="store_true",
        help="do not look for the kubeconfig, keys and certificates that it names on this machine",
    )
    commands.add_parser("docs", help="print docs/inventory.md")
    chosen = parser.parse_args(arguments)
    if chosen.command == "docs":
        print(docs.render(), end="")
        return 0
    return _check(chosen.inventory, local_files=not chosen.no_files)


def _check(path: str, *, local_files: bool) -> int:
    inventory, problems = look(path)
    specs: dict[str, NodeSpec] = {}
    if inventory is not None:
        specs, found = read_all(data_of(inventory), local_files=local_files)
        problems += found
    lines = report(problems)
    if lines:
        print("\n".join(lines))
        count = f"{len(lines)} {'problem' if len(lines) == 1 else 'problems'}"
        print(f"{path}: {count}", file=sys.stderr)
        return 1
    for host, spec in specs.items():
        print(f"{host}: {_summary(spec)}")
    print(f"{path}: {len(specs)} {'host' if len(specs) == 1 else 'hosts'}, no problems")
    return 0


def _summary(spec: NodeSpec) -> str:
    gpus = f"{spec.gpu_count}x {spec.gpu_model}" if spec.gpu_count else "no GPUs"
    hcas = f"{spec.hca_count}x {spec.hca_model}" if spec.hca_count else "no HCAs"
    return (
        f"{gpus}, MIG {spec.mig_config} ({spec.mig_strategy}), {hcas}, "
        f"driver {spec.nvidia_driver_version}, Kubernetes {spec.kube_version} as "
        f"{spec.kube_node_name} of {spec.kube_api_server}"
    )


if __name__ == "__main__":
    sys.exit(main())
