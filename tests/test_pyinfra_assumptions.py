"""The behaviour of pyinfra 3.10 that this code answers to. No upgrade changes it unseen."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyinfra import host as current_host
from pyinfra.api import FactBase, FunctionCommand, StringCommand, operation
from pyinfra.api.exceptions import FactProcessError, OperationError, PyinfraError
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.context import ctx_host

from tests.support.simulated_node import SimulatedHost, failed, run


def two_hosts() -> list[SimulatedHost]:
    hosts = [SimulatedHost("a"), SimulatedHost("b")]
    for simulated in hosts:
        simulated.on(r"^(probe|step-\w+)$", lambda h, m, s: "seen")
        simulated.on(r"^broken$", lambda h, m, s: (False, ""))
    return hosts


class Probe(FactBase[str]):
    def command(self) -> str:
        return "probe"


class BrokenAsList(FactBase[list[str]]):
    default = list  # type: ignore[assignment]

    def command(self) -> str:
        return "broken"


class Surprised(FactBase[str]):
    def command(self) -> str:
        return "probe"

    def process(self, output: list[str]) -> str:
        raise ValueError("surprise")


class Rejected(FactBase[str]):
    def command(self) -> str:
        return "probe"

    def process(self, output: list[str]) -> str:
        raise FactProcessError("no")


def op(body: Callable[[], Iterator[Any]]) -> Callable[[], Any]:
    wrapped = operation()(body)
    return lambda: wrapped(name="An operation")


def test_version_is_the_one_that_was_measured() -> None:
    assert importlib.metadata.version("pyinfra").startswith("3.10.")


def test_an_operation_runs_up_to_its_first_yield_at_prepare_and_from_the_top_at_execute() -> None:
    def body():
        current_host.get_fact(Probe)
        yield StringCommand("step-one")
        current_host.get_fact(Probe)
        current_host.get_fact(Probe)
        yield StringCommand("step-two")

    (a, _) = hosts = two_hosts()
    run(hosts[:1], {}, op(body), yes=False)
    assert a.log == ["probe", "probe", "step-one", "probe", "probe", "step-two"]


def test_with_yes_nothing_of_a_body_runs_at_prepare() -> None:
    def body():
        current_host.get_fact(Probe)
        yield StringCommand("step-one")

    (a, _) = hosts = two_hosts()
    run(hosts[:1], {}, op(body), yes=True)
    assert a.log == ["probe", "step-one"]


def test_pyi_07_there_is_no_fact_cache() -> None:
    def body():
        current_host.get_fact(Probe)
        current_host.get_fact(Probe)
        yield from ()

    (a, _) = hosts = two_hosts()
    run(hosts[:1], {}, op(body))
    assert a.log == ["probe", "probe"]


def test_a_failed_command_fails_its_host_alone() -> None:
    def body():
        yield StringCommand("broken" if current_host.name == "a" else "step-one")

    hosts = two_hosts()
    assert failed(run(hosts, {}, op(body))) == {"a"}
    assert hosts[1].log == ["step-one"]


def test_a_function_that_returns_false_fails_its_host_alone() -> None:
    def body():
        yield FunctionCommand(lambda state, host: host.name != "a", (), {})

    assert failed(run(two_hosts(), {}, op(body))) == {"a"}


@pytest.mark.parametrize("error", [RuntimeError, OperationError])
def test_an_exception_in_a_body_ends_the_run_for_every_host(error) -> None:
    def body():
        yield StringCommand("step-one")
        raise error("boom")

    with pytest.raises(error):
        run(two_hosts(), {}, op(body))


def test_a_parser_that_raises_ends_the_run_for_every_host() -> None:
    def body():
        current_host.get_fact(Surprised)
        yield from ()

    with pytest.raises(ValueError, match="surprise"):
        run(two_hosts(), {}, op(body))


@pytest.mark.parametrize("fact", [BrokenAsList, Rejected])
def test_a_fact_that_cannot_be_read_lets_the_operation_go_on_with_its_default(fact) -> None:
    seen = []

    def body():
        if current_host.name == "a":
            seen.append(current_host.get_fact(fact))
        yield StringCommand("step-one")

    hosts = two_hosts()
    assert failed(run(hosts, {}, op(body))) == {"a"}
    assert seen == [fact.default()]
    assert hosts[0].log[-1] == "step-one"


def test_process_is_not_called_on_empty_output() -> None:
    class Empty(FactBase[str]):
        def command(self) -> str:
            return "nothing"

        def process(self, output: list[str]) -> str:
            raise AssertionError("called")

    seen = []

    def body():
        seen.append(current_host.get_fact(Empty))
        yield from ()

    hosts = two_hosts()[:1]
    hosts[0].on("^nothing$", lambda h, m, s: "")
    assert not failed(run(hosts, {}, op(body)))
    assert seen == [None]


def test_the_host_of_modules_is_one_proxy_for_all_hosts() -> None:
    seen = set()

    def body():
        seen.add((id(current_host), id(ctx_host.get())))
        yield from ()

    run(two_hosts(), {}, op(body))
    assert len({proxy for proxy, _ in seen}) == 1
    assert len({real for _, real in seen}) == 2


def test_all_hosts_failed_is_an_exception_and_not_a_result() -> None:
    from pyinfra.api.operations import run_ops
    from pyinfra.api.state import StateStage

    from tests.support.simulated_node import pyinfra_state

    def body():
        yield StringCommand("broken")

    with pyinfra_state(two_hosts()[:1], {}) as state:
        state.set_stage(StateStage.Prepare)
        for each in state.inventory.get_active_hosts():
            with ctx_host.use(each):
                op(body)()
        state.is_executing = True
        state.set_stage(StateStage.Execute)
        with pytest.raises(PyinfraError, match="No hosts remaining"):
            run_ops(state)


def test_standard_input_of_a_command_is_written_and_closed_and_not_logged() -> None:
    source = inspect.getsource(SSHConnector.run_shell_command)
    assert "write_stdin(_stdin, stdin_buffer)" in source
    assert "stdin_buffer.close()" in source
    assert "_stdin" not in source[source.index("logger.debug") : source.index("Run it!")]
