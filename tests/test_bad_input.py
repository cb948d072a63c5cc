"""
Every field of the inventory with everything that can be wrong with it, made from the models.

A new field needs no line here: its type, range, choices and the strings of its example say what is
wrong for it. One whose declaration lets something through that may not reach a host fails.
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from annotated_types import Ge, Le
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

import nodespec
from nodespec import NodeSpec, Problem, reading
from nodespec.foreign import foreign_keys
from nodespec.model import key
from nodespec.problems import report
from nodespec.values import List, Text
from tests.support import good

GOOD = {**good.GOOD, "kube_kubeconfig": "/nonexistent"}

FIELDS = NodeSpec.model_fields


# --- what is wrong for a field --------------------------------------------------------------------


def form(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    return str(extra["form"])


def example(field: FieldInfo) -> Any:
    assert field.examples
    return field.examples[0]


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("not to be shown")


OTHERS: tuple[Any, ...] = (
    None, True, False, 0, -1, 7, 1.0, 0.5, math.nan, math.inf, "", "8", "yes", "None", b"8",
    [], ["8"], [None], [[]], {}, {"8": "8"}, {1: 2}, {None: None}, set(), {"8"}, frozenset({"8"}),
    ("8",), range(3), object(), Unprintable(), len, int,
)  # fmt: skip


def kind(value: Any) -> type | None:
    """The kinds that people write: a tuple is as good as a list."""
    kinds = {bool: bool, int: int, str: str, list: list, tuple: list, dict: dict}
    return kinds.get(type(value))


def of_other_types(field: FieldInfo) -> Iterator[Any]:
    for value in OTHERS:
        if kind(value) != kind(example(field)) and not (value is None and optional(field)):
            yield value


def optional(field: FieldInfo) -> bool:
    return type(None) in get_args(field.annotation)


def out_of_range(field: FieldInfo) -> Iterator[Any]:
    limits = {type(limit): limit for limit in field.metadata}
    if Ge in limits:
        yield limits[Ge].ge - 1
        yield -(10**20)
    if Le in limits:
        yield limits[Le].le + 1
        yield 10**20
        yield 10**6000  # has more digits than Python prints


def choices(field: FieldInfo) -> tuple[Any, ...]:
    types = get_args(field.annotation) if optional(field) else (field.annotation,)
    plain = [get_args(type_)[0] if get_origin(type_) is Annotated else type_ for type_ in types]
    return tuple(
        choice for type_ in plain if get_origin(type_) is Literal for choice in get_args(type_)
    )


def no_choice(field: FieldInfo) -> Iterator[Any]:
    for choice in choices(field):
        if isinstance(choice, str):
            yield from (choice.upper(), choice.title(), choice[:-1], choice + "s", f" {choice}")
        elif isinstance(choice, bool):
            yield not choice
        else:
            yield from (choice + 1, float(choice), str(choice))


# What an operator pastes by mistake, and what an attacker would.
MARRED: tuple[Callable[[str], str], ...] = (
    lambda text: "",
    lambda text: " ",
    lambda text: f" {text}",
    lambda text: f"{text} ",
    lambda text: f"{text}\u00a0",
    lambda text: f"{text}\n",
    lambda text: f"{text}\nExecStartPre=/bin/false",
    lambda text: f"{text}\r",
    lambda text: f"{text}\t#",
    lambda text: f"{text}\0",
    lambda text: f"{text}\x1b[2J",
    lambda text: f"{text}\u202e",
    lambda text: f"{text}\ud800",
    lambda text: f"{text}\u00e9",
    lambda text: f"{text}\u0663",
    lambda text: f"\u201c{text}\u201d",
    lambda text: f"'{text}'",
    lambda text: f'{text}"',
    *(lambda text, mark=mark: text + mark for mark in "$();&|<>*!^`'\"\\"),
    lambda text: f"{text}; reboot",
    lambda text: f"{text};reboot",
    lambda text: f"{text}|sh",
    lambda text: f"{text}&",
    lambda text: f"{text}>x",
    lambda text: f"$(reboot){text}",
    lambda text: f"{text}`reboot`",
    lambda text: f"{text}${{IFS}}",
    lambda text: f"{text}\\",
    lambda text: f"{text}%n",
    lambda text: f"{text}{{{{ x }}}}",
    lambda text: f"{text}{{",
    lambda text: f"{text},x y",
    lambda text: f"--{text}",
    lambda text: f"../{text}",
    lambda text: f"{text}/..\n",
    lambda text: text * 2000,
    lambda text: text.upper() + "!",
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where strings stand in *value*: the path to each, the last step of a key being ``KEY``."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for name, item in value.items():
            yield (*path, name, KEY)
            yield from places(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


KEY = object()


def with_string(value: Any, path: tuple[Any, ...], change: Callable[[str], str]) -> Any:
    """Return *value* with the string at *path* changed."""
    if not path:
        return change(value)
    changed = copy.copy(value)
    if path[1:] == (KEY,):
        changed[change(path[0])] = changed.pop(path[0])
    else:
        changed[path[0]] = with_string(value[path[0]], path[1:], change)
    return changed


def marred(field: FieldInfo) -> Iterator[Any]:
    for path in places(example(field)):
        for change in MARRED:
            yield with_string(example(field), path, change)


# --- what it may come to --------------------------------------------------------------------------


def read(name: str, value: Any, model: type[NodeSpec] = NodeSpec) -> tuple[Any, list[Problem]]:
    """The value that is read, None if none is, and the problems of this field."""
    spec, problems = reading.read(model, "gpu01", GOOD | {name: value})
    field = model.model_fields[name]
    own = [
        problem
        for problem in problems
        if re.match(rf"{name}(\[|\Z)", problem.key) and problem.want == form(field)
    ]
    return getattr(spec, name, None), own


HARMLESS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@+,=%{}-]{0,2000}")
"""Nothing of it means anything to a shell, systemd, apt, TOML, YAML or a terminal."""


def harmless(value: Any) -> bool:
    if isinstance(value, Path):
        return str(value).isprintable()  # of this machine: no command and no file of a host has it
    if isinstance(value, str):
        return HARMLESS.fullmatch(value) is not None
    if isinstance(value, dict):
        return all(map(harmless, value)) and all(map(harmless, value.values()))
    if isinstance(value, tuple | list):
        return all(map(harmless, value))
    return value is None or isinstance(value, int) or harmless(value.model_dump())


def check(name: str, value: Any) -> bool:
    """Whether *value* was refused; what is accepted must be harmless."""
    have, problems = read(name, value)
    (line,) = report([nodespec.HostProblem(("gpu01",), one) for one in problems[:1]]) or ["-"]
    assert line.isprintable()
    assert len(line) < 900
    if not problems:
        assert harmless(have), f"{name}: {have!r}"
    return bool(problems)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_refuses_every_other_type(name: str) -> None:
    values = list(of_other_types(FIELDS[name]))
    assert len(values) > 20
    assert [value for value in values if not check(name, value)] == []


@pytest.mark.parametrize("name", [name for name in FIELDS if kind(example(FIELDS[name])) is int])
def test_a_number_has_a_range_or_choices(name: str) -> None:
    field = FIELDS[name]
    limits = {type(limit): limit for limit in field.metadata}
    assert choices(field) or {Ge, Le} <= limits.keys()
    assert [value for value in out_of_range(field) if not check(name, value)] == []
    within = choices(field) or (limits[Ge].ge, limits[Le].le)
    assert [value for value in within if check(name, value)] == []


@pytest.mark.parametrize("name", [name for name in FIELDS if choices(FIELDS[name])])
def test_a_choice_is_taken_to_the_letter(name: str) -> None:
    field = FIELDS[name]
    wrong = [value for value in no_choice(field) if value not in choices(field)]
    assert [value for value in wrong if not check(name, value)] == []
    # In Python 1 is True and 200.0 is 200; in an inventory they were meant as something else.
    same = [value for choice in choices(field) if not isinstance(choice, str)
            for value in ([1] if choice is True else [float(choice)])]  # fmt: skip
    assert [value for value in same if not check(name, value)] == []
    assert [value for value in choices(field) if check(name, value)] == []


@pytest.mark.parametrize(
    "name", [name for name in FIELDS if next(places(example(FIELDS[name])), None) is not None]
)
def test_no_string_reaches_a_host_that_could_mean_something_there(name: str) -> None:
    refused = [check(name, value) for value in marred(FIELDS[name])]
    # Some are right in some fields: a fingerprint may have blanks, a label's value may be empty.
    assert refused.count(False) <= len(refused) // 4 or kind_of_path(name)


def kind_of_path(name: str) -> bool:
    return "Path" in str(FIELDS[name].annotation)


def test_every_field_has_bad_cases() -> None:
    assert [name for name in FIELDS if len(list(bad_values(name))) < 20] == []


def bad_values(name: str) -> Iterator[Any]:
    field = FIELDS[name]
    yield from of_other_types(field)
    yield from out_of_range(field)
    yield from no_choice(field)
    yield from marred(field)


class Sloppy(NodeSpec):
    """Fields as a tired developer would declare them: each of them lets something through."""

    a_text: Text = key("a", "Anything.", form="text", example="a")
    a_lax_text: str = key("a", "Anything.", form="text", example="a")
    a_number: int = key(1, "Any number.", form="number", example=1)
    a_truth: bool = key(True, "Any truth.", form="True or False", example=True)
    a_list: tuple[str, ...] = key((), "Any list.", form="list", example=["a"])
    a_list_of_text: List[Text] = key((), "Any list.", form="list", example=["a"])
    a_dict: dict[str, str] = key(dict, "Any dict.", form="dict", example={"a": "a"})


@pytest.mark.parametrize("name", [name for name in Sloppy.model_fields if name.startswith("a_")])
def test_a_sloppy_field_would_be_noticed(name: str) -> None:
    field = Sloppy.model_fields[name]
    accepted = [
        value
        for value in (*of_other_types(field), *marred(field))
        if not (answer := read(name, value, Sloppy))[1]
        and (kind(value) != kind(example(field)) or not harmless(answer[0]))
    ]
    assert accepted


# --- whatever else comes --------------------------------------------------------------------------

PLACES = [
    (name, path)
    for name, field in FIELDS.items()
    if not kind_of_path(name)
    for path in places(example(field))
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None)
@given(place=st.sampled_from(PLACES), text=st.text())
def test_any_string_is_refused_or_harmless(place: tuple[str, tuple[Any, ...]], text: str) -> None:
    name, path = place
    check(name, with_string(example(FIELDS[name]), path, lambda _: text))


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from([*FIELDS, *sorted(foreign_keys())]), value=ANYTHING)
def test_no_value_makes_reading_fail(name: str, value: Any) -> None:
    problems = reading.read(NodeSpec, "gpu01", GOOD | {name: value})[1]
    for line in report([nodespec.HostProblem(("gpu01",), problem) for problem in problems]):
        assert line.isprintable()
        assert len(line) < 1500


@settings(max_examples=30, deadline=None)
@given(data=st.dictionaries(st.text() | st.integers() | st.none(), ANYTHING, max_size=5))
def test_no_key_makes_reading_fail(data: dict[Any, Any]) -> None:
    problems = reading.read(NodeSpec, "gpu01", data)[1]
    assert all(line.isprintable() for line in report(
        [nodespec.HostProblem(("gpu01",), problem) for problem in problems]
    ))  # fmt: skip


# --- addresses ------------------------------------------------------------------------------------


def test_a_site_may_have_ipv6_only() -> None:
    """Every field that may hold an address takes one of IPv6, as it is written there."""
    spec, problems = reading.read(
        NodeSpec,
        "gpu01",
        GOOD
        | {
            "ssh_hostname": "fd00::11",
            "kube_api_server": "[fd00::1]:6443",
            "kube_node_ip": "fd00::11",
            "http_proxy": "http://user:pass%40word@[fd00::2]:3128",
            "https_proxy": "http://[fd00::2]:3128/",
            "no_proxy": ["fd00::/64", "fd00::3", ".example.com"],
            "registry_mirrors": {
                "docker.io": "https://[fd00::4]:5000",
                "[fd00::5]:5000": "http://[fd00::4]:5000/mirror",
            },
            "pause_image": "[fd00::5]:5000/pause:3.10.2",
            "cuda_repository_url": "http://[fd00::6]:8080/cuda/{distro}/",
        },
    )
    assert problems == []
    assert spec is not None
    assert {"fd00::1", "fd00::11"} <= set(spec.no_proxy_all)


# --- a thousand hosts -----------------------------------------------------------------------------


def test_a_thousand_hosts_with_a_different_mistake_each_are_told_in_one_report() -> None:
    cases = [(name, value) for name in FIELDS for value in bad_values(name)]
    step = len(cases) // 1000
    assert step >= 1
    hosts = {
        f"gpu{number:04}": GOOD | {name: value, f"{name}{number}": "unknown"}
        for number, (name, value) in enumerate(cases[::step][:1000])
    }
    began = time.process_time()
    problems = nodespec.read_all(hosts)[1]
    lines = report(problems)
    assert time.process_time() - began < 5
    assert {host for found in problems for host in found.hosts} == set(hosts)
    assert max(map(len, lines)) < 1500
    assert all(line.isprintable() for line in lines)
