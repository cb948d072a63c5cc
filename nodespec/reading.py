"""From the data of one host to its spec, or to everything that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pyinfra.api.host import Host

from nodespec.checks import DEFAULT_MISSING, problems_of
from nodespec.foreign import bare_name, foreign, foreign_keys, over_ssh, wrong_types
from nodespec.problems import LOOKED_AT, Problem, masked, short, show
from nodespec.values import suggestion

if TYPE_CHECKING:
    from nodespec.model import NodeSpec

Spec = TypeVar("Spec", bound="NodeSpec")

REMOVED: dict[str, str] = {}
"""Keys of earlier releases, each with what to write now; refused by name, never ignored."""


def merged(host: Host) -> dict[str, Any]:
    """Return the data of *host*: its own over its groups' over everybody's."""
    data: dict[str, Any] = host.data.dict()
    return data


TODO_WIDTH = 200

STRICT = "ssh_strict_host_key_checking"


def read(
    model: type[Spec], host: str, data: Mapping[str, Any]
) -> tuple[Spec | None, list[Problem]]:
    """
    Read the spec of *host* from its merged data.

    Returns every problem found; the spec is None where it could not be made at all.
    """
    ours = {key: value for key, value in data.items() if not foreign(str(key))}
    unknown = {str(key): _nearest(str(key), model) for key in ours if key not in model.model_fields}
    misspelt = set(unknown.values())
    problems = [_unknown(key, near) for key, near in sorted(unknown.items())]
    values = {key: value for key, value in ours.items() if key in model.model_fields}
    values.setdefault("kube_node_name", bare_name(host))

    spec: Spec | None = None
    wrong: frozenset[str] = frozenset()
    try:
        spec = model.model_validate(values)
    except ValidationError as error:
        # Defaults that depend on other keys are no problem of their own.
        details = [
            detail
            for detail in error.errors(include_url=False)
            if detail["type"] != "default_factory_not_called"
        ]
        wrong = frozenset(str(detail["loc"][0]) for detail in details)
        problems += [
            _problem(detail, model)
            for detail in details
            # A misspelt key is missing too; one line says it.
            if not (detail["type"] == "missing" and detail["loc"][0] in misspelt)
        ]
    checked = spec or _with_examples(model, values, wrong)
    if checked is not None:
        problems += problems_of(checked, wrong)
    if over_ssh(host):
        problems += transport(data)
    problems += foreign_values(host, data)
    return spec, problems


def _with_examples(
    model: type[Spec], values: Mapping[str, Any], wrong: frozenset[str]
) -> Spec | None:
    """
    Make a spec in which examples stand for the wrong values.

    Checks that read none of those keys then still find what is wrong with the rest.
    """
    right = {key: value for key, value in values.items() if key not in wrong}
    examples = {
        key: (model.model_fields[key].examples or [None])[0]
        for key in wrong
        if model.model_fields[key].is_required()
    }
    try:
        return model.model_validate(right | examples)
    except ValidationError:
        return None


def transport(data: Mapping[str, Any]) -> list[Problem]:
    """Return what would let a stranger answer in place of the host."""
    strict = data.get(STRICT)
    if strict == "yes":
        return []
    have = show(strict) if strict is not None else "'accept-new', pyinfra's default"
    todo = (
        "set it in group_data/all.py and list the host's key in ssh_known_hosts_file: "
        "anything else sends commands and secrets to whoever answers first"
    )
    return [Problem(STRICT, "'yes'", have, todo)]


def foreign_values(host: str, data: Mapping[str, Any]) -> Iterator[Problem]:
    """
    Problems of what pyinfra and its connectors are given.

    pyinfra checks it too, but stops at the first and shows it, passwords too.
    """
    if over_ssh(host) and not SSH_NAME.fullmatch(bare_name(host)):
        todo = "rename the host; ssh_hostname is its address"
        yield Problem("name", "letters, digits and . _ - : in a host's name", show(host), todo)
    for key, form in wrong_types(data):
        value = data[key]
        have = show(value) if SHOWABLE.match(key) else f"a value of type {type(value).__name__}"
        todo = "leave it out" if value is None else "correct it"
        yield Problem(key, form, have, todo)
    address = data.get("ssh_hostname")
    if isinstance(address, str) and not SSH_NAME.fullmatch(address):
        form = "a host's name or address, one of IPv6 without brackets"
        yield Problem("ssh_hostname", form, show(address), "correct it; a port goes into ssh_port")
    port = data.get("ssh_port", 22)
    if isinstance(port, int) and not 0 < port < 65536:
        yield Problem("ssh_port", "a port from 1 to 65535", show(port), "correct it")


# A name, an IPv4 or an IPv6 address: what ssh can be given without being taken for an option.
SSH_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]*(%[A-Za-z0-9._-]+)?")

SHOWABLE = re.compile(r"(?!.*(password|secret|token|env))", re.IGNORECASE)
"""Names of keys whose value is no secret."""


def _nearest(key: str, model: type[Spec]) -> str:
    known = (*model.model_fields, *foreign_keys())
    return suggestion(key, known).removeprefix("did you mean ")


def _unknown(key: str, near: str) -> Problem:
    shown = short(key)
    if key in REMOVED:
        return Problem(shown, "a key of this release", "a removed one", REMOVED[key])
    todo = f"did you mean {near}" if near else "remove it, or name it x_... if it is your own"
    # Not its value: who misspells a key may have misspelt a password's.
    return Problem(shown, "a known key", "an unknown one", todo)


def _problem(detail: ErrorDetails, model: type[Spec]) -> Problem:
    name = str(detail["loc"][0])
    field = model.model_fields[name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    form = str(extra["form"])
    if detail["type"] == "missing" and len(detail["loc"]) == 1:
        return Problem(name, form, "nothing", DEFAULT_MISSING)
    # Of a union's members pydantic names the one it tried; that is no part of the inventory.
    inner = [part for part in detail["loc"][1:] if isinstance(part, int) or "[" not in part]
    key = name + "".join(f"[{short(repr(part))}]" for part in inner)
    return Problem(key, form, show(detail["input"]), _todo(detail, field.examples))


def _todo(detail: ErrorDetails, examples: list[Any] | None) -> str:
    if detail["type"] == "value_error":
        said = str(detail["ctx"]["error"])
        if said:
            return short(masked(said[:LOOKED_AT]), TODO_WIDTH)
    if detail["type"] in ("missing", "extra_forbidden"):
        return "leave it out" if detail["type"] == "extra_forbidden" else "add it"
    if detail["type"].startswith(("greater_than", "less_than")):
        message = detail["msg"]
        return message.replace("Input should be", "it has to be")
    if len(detail["loc"]) > 1 and detail["msg"].startswith("Input should be"):
        return detail["msg"].replace("Input should be", "it has to be")
    return f"write it as in {detail['loc'][0]} = {examples[0]!r}" if examples else "correct it"
