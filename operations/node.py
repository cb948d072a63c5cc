"""The one operation of a run: a node is read, planned, and brought to what its spec asks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import ModuleType
from typing import Any

from pyinfra import host, logger, state
from pyinfra.api import operation
from pyinfra.api.command import PyinfraCommand
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_inventory

from cluster import (
    CLOSED_TAINT,
    PASSED,
    VALIDATED_CONDITION,
    Cluster,
    ClusterError,
    NodeState,
    PodState,
    in_service,
)
from facts.kubernetes import Kubelet
from facts.os import Machine
from facts.snapshot import UnknownReading
from nodespec import NodeSpec, of_all
from operations import lock
from operations.explaining import explained
from operations.failure import calling, fail_host
from operations.have import Have, look
from operations.reading import forget
from operations.redaction import hide, redact, secrets_of
from operations.report import RUN, Row
from operations.step import Refusal, Step, phase_name

MAX_STEPS = 200
"""A plan that is longer than this is going round in circles."""


class Refused(Exception):
    """The node must not, or cannot, be brought to its spec; the message says why."""

    def __init__(self, message: str, *, unfit: str | None = None) -> None:
        super().__init__(message)
        self.unfit = unfit
        """Why users must not be on it, if so."""


def specs() -> dict[str, NodeSpec]:
    """
    The specs of all hosts, by name. Called from a deploy's body: before any host is changed.

    Raises ``nodespec.InventoryProblems`` with every problem of every host.
    """
    inventory: Inventory = ctx_inventory.get()
    return of_all(inventory)


def contained(body: Callable[..., Iterator[PyinfraCommand]]) -> Any:
    """Make *body* a pyinfra operation that fails its own host, and no other, whatever happens."""

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Generator[PyinfraCommand, None, None]:
        this = ctx_host.get()
        try:
            for command in body(*args, **kwargs):
                yield command
                forget(this)  # a command has finished: what was read is old
        except Exception as error:
            logger.debug("%s", error, exc_info=True)
            yield fail_host(f"{type(error).__name__}: {error}")

    return operation()(run)


def managed_files(phases: Sequence[ModuleType], spec: NodeSpec) -> tuple[str, ...]:
    """Paths that the phases' plans look at: each phase says which, by ``files(spec)``."""
    return tuple(
        sorted({path for phase in phases if hasattr(phase, "files") for path in phase.files(spec)})
    )


def planned(
    phases: Sequence[ModuleType], spec: NodeSpec, have: Have
) -> list[tuple[str, Step | Refusal]]:
    """Every step and refusal, in the order of the phases."""
    plan: list[tuple[str, Step | Refusal]] = []
    for phase in phases:
        have.pending = any(isinstance(item, Step) for _, item in plan)
        try:
            plan += [(phase_name(phase), item) for item in phase.plan(spec, have)]
        except Exception as error:
            # What a phase takes for granted has been refused already, and that is the word to
            # pass on: another system, an API that does not answer, a reading that is missing.
            if not any(isinstance(item, Refusal) for _, item in plan):
                raise
            logger.debug("%s is not planned: %s", phase_name(phase), error, exc_info=True)
    return plan


def serving(have: Have) -> list[PodState] | None:
    """
    Users' pods on a node that serves them, whom a disruptive step would hit; ``None``: it does not.

    One that is closed or cordoned gets no new pods, and keeps those that it has. One that did not
    pass is nobody's, though somebody has taken its taint.
    """
    node, kubelet = have.node, have.known(Kubelet)
    if node is None:
        # Whoever has deleted it has ended no pod yet.
        return in_service(have.pods) or None if kubelet is not None and kubelet.joined else None
    if kubelet is not None and not kubelet.joined and not spoken_for(node, have):
        return None  # the Node object is of an earlier life: no pod of it runs here
    validated = node.conditions.get(VALIDATED_CONDITION)
    failed = validated is not None and validated.status == "False"
    pods = in_service(have.pods)
    return None if not pods and (node.closed or node.unschedulable or failed) else pods


def spoken_for(node: NodeState, have: Have) -> bool:
    """
    Whether a kubelet of this boot has spoken for the Node object, whatever its files say now.

    One that has lost its credentials is soon not Ready, and its pods run on.
    """
    machine = have.known(Machine)
    return machine is not None and (
        (node.machine_id, node.boot_id) == (machine.machine_id, machine.boot_id)
    )


def converge(*, name: str, phases: Sequence[ModuleType]) -> None:
    """
    Bring the nodes to what their specs ask. Called from a deploy: the one operation of a run.

    Every problem of every host's inventory data is raised here, in the deploy's body, which
    runs before anything is read from or changed on any host.

    **Example:**

    .. code:: python

        node.converge(name="Converge the node", phases=[preflight, base])
    """
    specs()
    _converge(name=name, phases=phases)


@contained
def _converge(phases: Sequence[ModuleType]) -> Iterator[PyinfraCommand]:
    """
    Bring one node to what its spec asks: plan, show the plan, then step by step, planning again.

    Nothing is changed if the plan contains a refusal, or if the node is in service and a
    step would disturb it. Fails the host with the reason in one sentence.

    + phases: modules of ``deploys.phases``, in order
    """
    spec = specs()[host.name]
    hide(*secrets_of(host.data.dict(), spec.kube_kubeconfig))
    row = RUN.row(host.name, [phase_name(phase) for phase in phases])
    admits = "admission" in row.phases and not spec.audit
    locked = False
    at = ""

    def problem(message: str) -> PyinfraCommand:
        row.problems.append(message)
        if at:
            row.phases[at] = "failed"
        row.finish("failed")
        return fail_host(message)

    try:
        files = managed_files(phases, spec)
        cluster = Cluster.connect(spec.kube_kubeconfig)
        api_server = (spec.kube_api_server, cluster.ca_pem.decode())

        def now(changed: bool) -> Have:
            # Whether the host reaches the API server is asked once, before the first change.
            return look(spec, cluster, files, () if changed else api_server, asks=not changed)

        have = now(False)
        plan = planned(phases, spec, have)
        show(row, plan)
        refuse(row, plan, have)
        steps = [(name, item) for name, item in plan if isinstance(item, Step)]
        if steps and not state.is_executing:
            settle(row, plan, have)
            row.finish("planned")
        if spec.audit or not steps:
            settle(row, plan, have)
            host.noop("audit: nothing is changed" if spec.audit else "nothing to change")
            if spec.audit:
                row.finish("audited")
            return

        # ---- the first yield comes after this line: --dry has shown everything
        yield lock.take()
        locked = True
        applied: set[tuple[str, str]] = set()
        changed = False
        for _ in range(MAX_STEPS):
            forget(ctx_host.get())
            have = now(changed)
            plan = planned(phases, spec, have)
            refuse(row, plan, have)
            steps = [(name, item) for name, item in plan if isinstance(item, Step)]
            due = due_together(steps)
            if not due and steps:
                at, step = steps[0]
                raise Refused(
                    f"{at}: want {step.want}, have {step.have}; "
                    f"waiting for {step.waits_for}, which no step brings"
                )
            if not due:
                at = ""
                settle(row, plan, have)
                return
            for at, step in due:
                if (at, step.title) in applied:
                    raise Refused(
                        f"{at}: want {step.want}, have {step.have} after: {step.title}; "
                        f"{step.remedy}"
                    )
            if disruptive := [f"{at} | {step.title}" for at, step in due if step.disrupts]:
                close_before(have, disruptive)
            elif not changed:
                mark_changing(have)
            for at, step in due:
                started = time.monotonic()
                host.log(f"{at} | {step.title}: want {step.want}, have {step.have}")
                locked = False
                yield lock.take()  # a reboot has dropped it
                locked = True
                for command in step.apply():
                    yield explained(command, at, step)
                host.log(f"{at} | {step.title}: done in {time.monotonic() - started:.0f} s")
                applied.add((at, step.title))
                changed = True
                row.changes.append(f"{at} | {step.title}")
                row.phases[at] = "changed"
        raise Refused(f"node: want a plan that ends, have {MAX_STEPS} steps; report this as a bug")
    except Refused as error:
        failing = problem(str(error))  # closing may fail too: the result says this first
        if admits:
            yield (
                calling(close, have, error.unfit)
                if error.unfit
                else calling(write_reason, have, row)
            )
        yield failing
    except (UnknownReading, ClusterError) as error:
        failing = problem(str(error))
        if admits and locked:
            yield calling(write_reason, have, row)
        yield failing
    except Exception as error:
        logger.debug("%s", error, exc_info=True)
        failing = problem(
            f"{at or 'node'}: want a run without surprises, have {type(error).__name__}: {error}; "
            "report this as a bug, with a support bundle"
        )
        if admits and locked:
            yield calling(write_reason, have, row)
        yield failing
    except GeneratorExit:
        # A command failed (pyinfra has shown its output), or this was only planning.
        if state.is_executing and row.state == "running":
            if not row.problems:
                row.problems.append(
                    f"{at or 'node'}: want every command to succeed, have one that failed; "
                    "read run.log"
                )
            if at:
                row.phases[at] = "failed"
            row.finish("failed")
            if admits and locked:  # else another run has the node, and the last word on it
                write_reason(state, ctx_host.get(), have, row)
        raise
    finally:
        if state.is_executing:
            lock.drop(ctx_host.get())


def due_together(steps: list[tuple[str, Step]]) -> list[tuple[str, Step]]:
    """
    The steps to apply before the host is read again: those of one phase that one plan finds due.

    Reading a host costs more than most steps. What depends on a step before it waits for it,
    and is planned again; nothing follows a reboot.
    """
    start = next((i for i, (_, step) in enumerate(steps) if not step.waits_for), None)
    if start is None:
        return []
    together: list[tuple[str, Step]] = []
    for name, step in steps[start:]:
        if name != steps[start][0] or step.waits_for:
            break
        together.append((name, step))
        if step.reboots:
            break
    return together


def show(row: Row, plan: list[tuple[str, Step | Refusal]]) -> None:
    """Tell the person at the terminal what is going to happen, before it does."""
    for name, item in plan:
        if isinstance(item, Refusal):
            continue
        row.planned.append(f"{name} | {item.title}")
        notes = [
            *(["disturbs workloads"] if item.disrupts else []),
            *(["reboots"] if item.reboots else []),
            *([f"after: {item.waits_for}"] if item.waits_for else []),
        ]
        suffix = f" ({', '.join(notes)})" if notes else ""
        host.log(f"plan: {name} | {item.title}: want {item.want}, have {item.have}{suffix}")
        if item.diff:
            for line in item.diff.splitlines():
                host.log(f"      {line}")


def refuse(row: Row, plan: list[tuple[str, Step | Refusal]], have: Have) -> None:
    """Raise ``Refused`` with every reason not to go on."""
    reasons = [str(item) for _, item in plan if isinstance(item, Refusal)]
    row.phases.update({name: "refused" for name, item in plan if isinstance(item, Refusal)})
    disruptive = [
        f"{name} | {item.title}" for name, item in plan if isinstance(item, Step) and item.disrupts
    ]
    try:
        users = serving(have) if disruptive and not have.spec.audit else None
    except ClusterError:
        if not reasons:
            raise
        users = None  # the API does not answer: that is among the reasons
    if users is not None:
        reasons.append(disturbed(disruptive, users))
    if reasons:
        unfit = [str(item) for _, item in plan if isinstance(item, Refusal) and item.unfit]
        raise Refused("\n".join(reasons), unfit="; ".join(unfit) or None)


def disturbed(steps: Sequence[str], users: Sequence[PodState]) -> str:
    names = ", ".join([*map(str, users[:5]), *(["..."] if users[5:] else [])])
    under = f" under {names}" if names else ""
    return (
        f"node: want no disruptive step on a node in service, have {', '.join(steps)}{under}; "
        "drain it and add the taint that closes it, or leave it as it is"
    )


def mark_changing(have: Have) -> None:
    """
    Say on the node that it is no longer what was validated: a run that dies leaves that word.

    What did not pass keeps its reason: ``Unknown`` means that it passed, and was changed since.
    """
    node = have.own
    if node is None:
        return
    validated = node.conditions.get(VALIDATED_CONDITION)
    if validated is None or validated.status != "True":
        return
    have.cluster.set_condition(
        node.name, VALIDATED_CONDITION, "Unknown", "Changing", "a run is changing this node"
    )


def close_before(have: Have, steps: Sequence[str]) -> None:
    """
    Close the node before it is disturbed: nothing that it has passed counts any more.

    Whatever phases the run has, and also if the node is cordoned: who takes that back does not know
    what was done.
    """
    node = have.own
    if node is None:
        return
    validated = node.conditions.get(VALIDATED_CONDITION)
    have.cluster.taint(node.name, CLOSED_TAINT)
    if validated is None or validated.status != "False":
        have.cluster.set_condition(
            node.name, VALIDATED_CONDITION, "False", "Changing", "a run is changing this node"
        )
    if PASSED in node.annotations:
        have.cluster.annotate(node.name, {PASSED: None})
    if node.closed:
        return
    # Between the question and the taint somebody may have come.
    users = serving(Have(have.readings, have.spec, have.cluster))
    if users is not None:
        raise Refused(disturbed(steps, users))


def close(state: State, host: Host, have: Have, reason: str) -> bool:
    """Keep users off a node that is not fit for them. Nothing is done on the host."""
    node = have.own
    if node is None:
        return True
    have.cluster.taint(node.name, CLOSED_TAINT)
    have.cluster.set_condition(node.name, VALIDATED_CONDITION, "False", "NotFit", redact(reason))
    if not node.closed:
        host.log(f"closed the node: {reason}")
    return True


def write_reason(state: State, host: Host, have: Have, row: Row) -> bool:
    """
    Say on the node why the run has failed, if it is closed, or was changed by this run.

    A node in service that nothing was done to is as validated as before, and keeps that word. One
    that is open and has not passed is closed.
    """
    try:
        node = have.cluster.node(have.spec.kube_node_name)  # the step may have made it
        validated = node.conditions.get(VALIDATED_CONDITION) if node else None
        if node is None or have.of_another(node):
            return True
        if not node.closed and validated and validated.status == "True":
            return True
        touched = row.changes or "failed" in row.phases.values()
        if not node.closed and validated is None and not touched:
            return True  # never ours, and nothing was done to it: whoever runs it goes on
        # Unknown means that it passed, and was changed in what disturbs nobody: it stays open.
        passed = validated is not None and validated.status == "Unknown" and not node.closed
        if not passed:  # nor has it ever: somebody may have taken its taint
            have.cluster.taint(node.name, CLOSED_TAINT)
        have.cluster.set_condition(
            node.name, VALIDATED_CONDITION, "Unknown" if passed else "False", "RunFailed",
            redact("; ".join(row.problems))[:1024],
        )  # fmt: skip
    except ClusterError as error:
        logger.debug("the reason is not written on the node: %s", error)  # the result has it
    return True


def settle(row: Row, plan: list[tuple[str, Step | Refusal]], have: Have) -> None:
    """The row of a node that is as asked."""
    pending = {name for name, _ in plan}
    for name, result in row.phases.items():
        if result == "not reached":
            row.phases[name] = "differs" if name in pending else "ok"
    state_now = "done"
    if "admission" in row.phases and not have.spec.audit:
        node = have.node
        state_now = "closed" if node is None or node.closed else "open"
        row.offers = offers(have)
    row.finish(state_now)


def offers(have: Have) -> dict[str, str]:
    """GPU and RDMA resources that the node offers."""
    node = have.node
    if node is None:
        return {}
    prefixes = ("nvidia.com/", f"{have.spec.rdma_resource_prefix}/")
    return {name: count for name, count in node.allocatable.items() if name.startswith(prefixes)}
