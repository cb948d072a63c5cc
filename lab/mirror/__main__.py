"""``python -m lab.mirror build [--refresh] | up | down | status``."""

from __future__ import annotations

import argparse

from rich.console import Console

from lab import mirror


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.mirror", description=mirror.__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="make all packages and repositories")
    build.add_argument("--refresh", action="store_true", help="ask Debian for newer packages")
    verbs.add_parser("up", help="serve them to the guests")
    verbs.add_parser("down", help="stop serving them")
    verbs.add_parser("status", help="what runs and what it offers")
    arguments = parser.parse_args()

    console = Console()
    match arguments.verb:
        case "build":
            mirror.build(console, refresh=arguments.refresh)
        case "up":
            mirror.up(console)
        case "down":
            mirror.down()
        case "status":
            console.print_json(data=mirror.status())


if __name__ == "__main__":
    main()
