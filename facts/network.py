"""What the host reaches over the network."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue

TIMEOUT_S = 8

# E: Failed to fetch https://10.0.0.1:6443/version  401  Unauthorized [IP: 10.0.0.1 6443]
REFUSED_BY_SERVER = re.compile(r"\s40[13]\s+(Unauthorized|Forbidden)\b")


@dataclass(frozen=True, slots=True)
class ApiServerState(FactValue):
    asked: bool
    connects: bool
    """Whether a TCP connection is accepted."""
    trusted: bool | None
    """Whether TLS succeeds with the pinned CA; ``None``: the host has no tool that could tell."""
    problem: str
    """In the tool's own words, empty if there is none."""


class ApiServer(FactBase[ApiServerState]):
    """
    Whether *this host* reaches the API server, and whether it is the one that the CA vouches for.

    + api_server: ``host:port``, and the CA in PEM; nothing is asked without them
    """

    def command(self, api_server: Sequence[str] = ()) -> str:
        if not api_server:
            return "echo unasked"
        endpoint, ca = api_server
        host, _, port = endpoint.rpartition(":")
        encoded = base64.b64encode(ca.encode()).decode()
        url = shlex.quote(f"https://{endpoint}/version")
        bare = host.strip("[]")
        https = "-o Acquire::https::"
        # curl if it is there, else apt's own downloader, which every host here has.
        return (
            f"timeout {TIMEOUT_S} bash -c {shlex.quote(f'exec 3<>/dev/tcp/{bare}/{port}')} "
            "&& echo connects || { echo refused; exit 0; }; "
            f'd=$(mktemp -d) || exit; echo {encoded} | base64 -d > "$d/ca"; '
            "if command -v curl >/dev/null; then "
            f'out=$(curl -sS --noproxy "*" -m {TIMEOUT_S} --cacert "$d/ca" -o /dev/null '
            f"{url} 2>&1); "
            # Not to /dev/null: apt would put a link in its place.
            f'else out=$(/usr/lib/apt/apt-helper {https}CAInfo="$d/ca" {https}Proxy=DIRECT '
            f"{https}Timeout={TIMEOUT_S} "
            f'download-file {url} "$d/out" 2>&1); fi; rc=$?; '
            # The reason stands there; curl goes on with where to read more.
            'rm -rf "$d"; echo "rc $rc"; echo "$out" | grep -E "^(curl|E): " | tail -n 2'
        )

    def process(self, output: list[str]) -> ApiServerState:
        return parse_api_server(output)


def parse_api_server(output: list[str]) -> ApiServerState:
    """Read what ``ApiServer.command`` printed."""
    if output[0] == "unasked":
        return ApiServerState(False, False, None, "")
    if output[0] == "refused":
        return ApiServerState(True, False, None, "no connection")
    if output[0] != "connects" or len(output) < 2 or not output[1].startswith("rc "):
        raise FactProcessError(f"no result in {output[:3]!r}")
    code = int(output[1].removeprefix("rc "))
    said = " ".join(line.strip() for line in output[2:] if line.strip())
    # A 401 or 403 is an answer over a connection that the CA vouches for; curl ends with 0 then,
    # apt-helper does not.
    trusted = code == 0 or REFUSED_BY_SERVER.search(said) is not None
    return ApiServerState(True, True, trusted, "" if trusted else said or f"exit code {code}")
