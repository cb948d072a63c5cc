"""Every message of ours, found in the source: `docs/troubleshooting.md` has an entry for each.

A message is known by its words up to the remedy, ``<component>: want <x>, have <y>``, with … where
a value stands; a step by ``after: <its title>``, which is how it is told when it does not take.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = ("claims", "cluster", "deploys", "facts", "inventories", "operations", "tests/validation")
"""Of nodespec, which has a message for each key, the kinds are in the document, by module."""
OTHERS = ("templates",)
VALUE = "…"

PARTS = {"Refusal": 3, "Finding": 3, "Problem": 3}
"""Constructors of messages, and how many of their arguments come before the remedy."""
NOT_OURS = ("Problem",)

# kubernetes api: want https://10.0.0.1:6443 to answer, have no route to host; check the network
MESSAGE = re.compile(r"([^\n;:=|{}<>\"'`]+): want (.+?), have (.+?)(?=;|\"|'|`|$)", re.DOTALL)


@dataclass
class Scope:
    """What names stand for, as far as literals go: module, then function."""

    values: dict[str, list[str]] = field(default_factory=dict)

    def text(self, node: ast.expr | None) -> list[str]:
        """Every text that *node* can be, values that depend on the run as …"""
        match node:
            case ast.Constant(value=str() | int() | float() as value):
                return [str(value)]
            case ast.JoinedStr(values=parts):
                texts = [self.text(part) for part in parts]
                return ["".join(words) for words in itertools.product(*texts)]
            case ast.FormattedValue(value=ast.Name(id=name)) if len(self.values.get(name, ())) == 1:
                return self.values[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [a + b for a in self.text(left) for b in self.text(right)]
            case ast.IfExp(body=body, orelse=other):
                return [*self.text(body), *self.text(other)]
            case ast.Name(id=name):
                return self.values.get(name) or [VALUE]
        return [VALUE]

    def learn(self, nodes: Sequence[ast.AST]) -> None:
        """What assignments and loops give to names; one that is given anything else is a value."""
        tables: dict[str, Sequence[ast.expr]] = {}
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=rows)):
                    tables[name] = [*tables.get(name, ()), *rows]
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.give(name, [value])
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    for target, value in zip(targets, values, strict=True):
                        self.give(name_of(target), [value])
        for node in nodes:
            match node:
                case ast.For(target=ast.Tuple(elts=targets), iter=ast.Tuple(elts=rows)):
                    self.columns(targets, rows)
                case ast.For(target=ast.Tuple(elts=targets), iter=ast.Name(id=name)):
                    self.columns(targets, tables.get(name, ()))

    def columns(self, targets: Sequence[ast.expr], rows: Sequence[ast.expr]) -> None:
        tuples = [row.elts for row in rows if isinstance(row, ast.Tuple)]
        for number, target in enumerate(targets):
            self.give(name_of(target), [row[number] for row in tuples])

    def give(self, name: str, values: Sequence[ast.expr]) -> None:
        if not values or not all(literal(value) for value in values):
            self.values[name] = [VALUE]
            return
        for value in values:
            texts = [text for text in self.text(value) if text]
            self.values.setdefault(name, []).extend(texts or [VALUE])


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def literal(node: ast.AST) -> bool:
    return isinstance(node, (ast.Constant, ast.JoinedStr)) and not (
        isinstance(node, ast.Constant) and not isinstance(node.value, (str, int))
    )


def messages(root: Path = ROOT) -> dict[str, str]:
    """Every message, and the first place (``file:line``) that has it."""
    found: dict[str, str] = {}
    files = [path for folder in PYTHON for path in sorted((root / folder).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text()) for path in files}
    titled = {name for tree in trees.values() for name in takers_of_titles(tree)}
    for path, tree in trees.items():
        for line, message in in_module(tree, titled):
            found.setdefault(message, f"{path.relative_to(root)}:{line}")
    for folder in OTHERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file():
                for message in in_text(path.read_text()):
                    found.setdefault(message, str(path.relative_to(root)))
    return found


def takers_of_titles(tree: ast.AST) -> Iterator[str]:
    """Functions that make a step of a title that they are given."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name, args=ast.arguments(args=[ast.arg("title"), *_])):
                yield name


def in_module(tree: ast.Module, titled: set[str]) -> Iterator[tuple[int, str]]:
    module = Scope()
    module.learn(tree.body)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {inner for function in functions for inner in ast.walk(function) if inner != function}
    for scope_node in [tree, *(f for f in functions if f not in inside)]:
        scope = Scope({name: list(values) for name, values in module.values.items()})
        body = [n for n in ast.walk(scope_node) if scope_node is not tree or n not in inside]
        if isinstance(scope_node, ast.FunctionDef):
            for argument in scope_node.args.args:
                scope.values.pop(argument.arg, None)
            scope.learn(body)
        documentation = {
            id(node.value) for node in body
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }  # fmt: skip
        pieces = {
            id(part) for node in body if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in body:
            if isinstance(node, ast.Call):
                yield from ((node.lineno, text) for text in of_call(node, scope, titled))
            elif literal(node) and id(node) not in documentation | pieces:
                for text in scope.text(node):
                    yield from ((node.lineno, message) for message in in_text(text))


def of_call(node: ast.Call, scope: Scope, titled: set[str]) -> Iterator[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    name = node.func.id if isinstance(node.func, ast.Name) else name
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if name in PARTS and name not in NOT_OURS:
        arguments = [
            *node.args,
            *(given[key] for key in ("component", "want", "have") if key in given),
        ]
        parts = [scope.text(argument) for argument in arguments[: PARTS[name]]]
        for component, want, have in itertools.product(*parts):
            yield from known(f"{component}: want {want}, have {have}")
    if name == "NotTested":
        for want, have in itertools.product(*map(scope.text, node.args[:2])):
            yield from known(f"{VALUE}: want {want}, have {have}")
    if name == "Step" or name in titled:
        title = given.get("title") or (node.args[0] if node.args else None)
        yield from (
            f"after: {short(text)}" for text in scope.text(title) if text not in ("", VALUE)
        )


def in_text(text: str) -> Iterator[str]:
    """Messages in a string, a script, a template."""
    text = re.sub(r"\$\{\w+(?::-[^}]*)?\}|\$\w+|\$\([^()]*\)|\{\{.*?\}\}", VALUE, text)
    for component, want, have in MESSAGE.findall(text):
        yield from known(f"{component.strip()}: want {want}, have {have}")


def known(message: str) -> Iterator[str]:
    """The message, if it has words of its own: what passes others on has none."""
    words = short(message)
    if re.search(r"[A-Za-z]{3}", words.replace("want", "").replace("have", "")):
        yield words


def short(text: str) -> str:
    """On one line, one … for values that follow each other."""
    text = " ".join(text.split())
    return re.sub(rf"{VALUE}(?:[ ,:]*{VALUE})+", VALUE, text).strip(" :")


TELLERS = ("tell", "fail_host", "Refused", "ClusterError", "NotFound", "Conflict", "UnknownReading")
"""Calls that say why a host fails, in a sentence that has to be whole."""


def calls(root: Path = ROOT) -> Iterator[tuple[str, ast.Call, str]]:
    """Every call of a function by its name, with its place."""
    for folder in PYTHON:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield node.func.id, node, f"{path.relative_to(root)}:{node.lineno}"


def without_a_remedy(root: Path = ROOT) -> list[str]:
    """Sentences that are not ``<component>: want <x>, have <y>; <what to do>``."""
    scope, wrong = Scope(), list[str]()
    for name, node, place in calls(root):
        told = len(node.args) > 3 or any(keyword.arg == "remedy" for keyword in node.keywords)
        if name in PARTS and name not in NOT_OURS and not told:
            wrong.append(place)
        if name in TELLERS:
            text = scope.text(node.args[-1])[0] if node.args else ""
            # A sentence that is put together elsewhere has no words here.
            words = text.replace(VALUE, "").strip(" ,;:+")
            whole = re.search(r": want .+have.+;|^…(, have.*;|;)", text, re.DOTALL)
            if words and not whole:
                wrong.append(f"{place}: {text}")
    return wrong


def titles_without_a_remedy(root: Path = ROOT) -> list[str]:
    """Steps that do something, and leave whoever they fail for without a word."""
    wrong = []
    for name, node, place in calls(root):
        if name != "Step":
            continue
        empty = any("iter(())" in ast.unparse(argument) for argument in node.args)
        if not empty and not any(keyword.arg == "remedy" for keyword in node.keywords):
            wrong.append(f"{place}: {ast.unparse(node.args[0]) if node.args else 'title'}")
    return wrong
