"""Container runtime: containerd with systemd cgroups, and nvidia as its default runtime."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator

from pyinfra.api import QuoteString, StringCommand, deploy

from claims import host
from deploys.phases import preflight
from facts.containerd import (
    NVIDIA_RUNTIME,
    CdiSpecification,
    Containerd,
    ContainerdService,
)
from facts.files import Files, FileState
from facts.mig import Gpu, Gpus
from facts.nvidia import NvidiaDriver
from facts.packages import Packages
from nodespec import NodeSpec
from operations import containerd, node, packages, repositories
from operations.files import WRITTEN_BY_OTHERS, put, set_aside, written
from operations.have import Have
from operations.step import Commands, Refusal, Step

PROOF = "/var/lib/rackwright/container-runtime.json"
"""What the last container that ran through the nvidia runtime ran with."""

SECRET = re.compile(r"auth|password|token|secret", re.IGNORECASE)


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (
        containerd.CONFIG,
        containerd.DROP_IN,
        containerd.UNIT_DROP_IN,
        PROOF,
        containerd.HOSTS_PATHS,
        *(containerd.hosts_path(registry) for registry in spec.registry_mirrors),
        *repositories.files("docker", "container_toolkit"),
    )


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    yield from repositories.present("docker", spec, have)
    yield from repositories.present("container_toolkit", spec, have)
    install = packages.installed(
        "install containerd and the NVIDIA container toolkit",
        {
            "containerd.io": spec.containerd_version,
            "nvidia-container-toolkit": spec.container_toolkit_version,
            "nvidia-container-toolkit-base": spec.container_toolkit_version,
        },
        have,
        hold=True,
        disrupts=have[Containerd].installed,
    )
    if install:
        yield install

    to_write = list(configuration(spec, have))
    yield from to_write
    yield from mirrored(spec, have)
    pending = install is not None or any(isinstance(item, Step) for item in to_write)
    yield from running(have, pending=pending)
    if not pending and have[Containerd].installed:
        yield from judged(spec, have)
    if spec.gpu_count:
        specification = list(cdi(have))
        yield from specification
        yield from proven(spec, have, pending=pending or bool(specification))


def configuration(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    """What the daemon reads at its start: our files whole, the main one merged."""
    now = have[Files]
    main = now[containerd.CONFIG]
    try:
        if main is not None and main.text is None:
            raise containerd.Unmergeable("it is no text of a reasonable size")
        text = containerd.root_config(main.text if main else None)
    except containerd.Unmergeable as problem:
        yield Refusal(
            "container runtime", f"{containerd.CONFIG} of version 3 or 4", f"one where {problem}",
            f"run `containerd config migrate` and put the result in {containerd.CONFIG}",
        )  # fmt: skip
        return
    # The file may be somebody else's, with credentials of registries in it: its mode stays, and
    # what looks like a credential is not shown.
    mode = main.mode if main else "0644"
    secret = SECRET.search(text) is not None
    proxy = containerd.proxy_environment(spec.http_proxy, spec.https_proxy, spec.no_proxy_all)
    drop_in = containerd.drop_in(containerd.version_of(text), spec.pause_image)
    for step in (
        written(
            "let the drop-in directory count in containerd's configuration",
            containerd.CONFIG, text, now, mode, secret=secret,
        ),
        written("make nvidia the default runtime", containerd.DROP_IN, drop_in, now),
        written(
            "lift containerd's limits for RDMA", containerd.UNIT_DROP_IN,
            containerd.unit_drop_in(proxy), now, "0600" if proxy else "0644", secret=bool(proxy),
        ),
    ):  # fmt: skip
        if step:
            yield step


def mirrored(spec: NodeSpec, have: Have) -> Iterator[Step]:
    """Where images come from: read anew at each pull, so that nothing has to be restarted."""
    mirrors = {
        containerd.hosts_path(registry): containerd.hosts_toml(registry, mirror)
        for registry, mirror in sorted(spec.registry_mirrors.items())
    }
    now = have[Files]
    title = "point containerd at the registry mirrors"
    steps = []
    for path, text in mirrors.items():
        # What others have written there may hold credentials; ours cannot.
        if step := written(title, path, text, now, secret=not ours(now[path])):
            steps.append((path, step))
    if steps:

        def point() -> Commands:
            for path, step in steps:
                if not ours(now[path]):
                    yield set_aside(path)
                yield from step.apply()

        yield Step(
            title, ", ".join(step.want for _, step in steps),
            ", ".join(
                step.have if ours(now[path]) else f"{path} of somebody else's, which is kept"
                for path, step in steps
            ),
            point, diff="".join(step.diff or "" for _, step in steps) or None,
            remedy=f"{WRITTEN_BY_OTHERS}: `ls -l {containerd.CERTS_D}/*`",
        )  # fmt: skip
    forgotten = [
        path
        for path, file in now.items()
        if path.startswith(f"{containerd.CERTS_D}/") and path not in mirrors
        and file is not None and ours(file)
    ]  # fmt: skip
    if forgotten:

        def remove() -> Commands:
            for path in forgotten:
                yield StringCommand("rm", "-f", QuoteString(path))

        yield Step(
            "take back the registry mirrors that are no longer asked for",
            "no file of ours for another registry", ", ".join(forgotten), remove,
            remedy=f"{WRITTEN_BY_OTHERS}: `ls -l {containerd.CERTS_D}`",
        )  # fmt: skip


def ours(file: FileState | None) -> bool:
    """Whether nobody loses anything by what happens to a file."""
    return file is None or (file.text is not None and file.text.startswith(containerd.MARK))


def running(have: Have, *, pending: bool) -> Iterator[Step]:
    """
    The daemon: it runs, at boot too, and has started since its files were last changed.

    + pending: whether packages or files are still to come, in steps before this one: it is planned
      with them, so that on a node in service none of it is done
    """
    service = have[ContainerdService]
    lacks = [
        *([] if service.active else ["not running"]),
        *([] if service.enabled else ["not at boot"]),
        *(["a unit that systemd has not read"] if service.needs_reload else []),
        *([] if service.memlock_unlimited else ["a limit on locked memory"]),
        *(["older than its files"] if service.active and (service.stale or pending) else []),
    ]
    if not lacks:
        return
    # It can take the GPUs from pods that got them past systemd (toolkit before 1.18); these outlive
    # a containerd that stops. Source: NVIDIA/nvidia-container-toolkit issue 48.
    reads_units = pending or service.needs_reload or not service.memlock_unlimited

    def restart() -> Commands:
        # The candidate is judged before the daemon that works is stopped.
        yield StringCommand(
            "containerd config dump >/dev/null && "
            f"systemctl enable --no-reload containerd.service && "
            f"{'systemctl daemon-reload && ' if reads_units else ''}"
            "systemctl restart containerd.service"
        )

    yield Step(
        "restart containerd" if service.active else "start containerd",
        "running, at boot too, newer than its files, memlock unlimited", ", ".join(lacks), restart,
        disrupts=service.active or reads_units,
        remedy="read `journalctl -u containerd`, `containerd config dump` and "
        "`systemctl cat containerd`",
    )  # fmt: skip


def judged(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """What the claims will ask of the daemon's configuration, before it is started with it."""
    for finding in host.runtime_configuration(have.readings, None, spec):
        yield Refusal(finding.component, finding.want, finding.have, finding.remedy, unfit=True)


def cdi(have: Have) -> Iterator[Step]:
    """The CDI specification: of the driver that is loaded, with the devices that are there."""
    gpus, now, driver = have[Gpus], have[CdiSpecification], have[NvidiaDriver]
    if not gpus.usable or now is None:
        return  # the driver's phase says why
    toolkit = have[Packages].packages.get("nvidia-container-toolkit-base")
    if toolkit is None or not toolkit.whole:
        return  # its package writes it when it is installed; whether it has is looked at then
    wanted = {uuid for gpu in gpus.gpus for uuid in cdi_devices(gpu)}
    others = sorted(set(now.driver_versions) - {driver.library})
    if (wanted and not wanted <= set(now.devices)) or others:

        def refresh() -> Commands:
            yield StringCommand("systemctl restart nvidia-cdi-refresh.service")

        yield Step(
            "write the CDI specification", f"{len(wanted)} devices of driver {driver.library}",
            f"{len(wanted & set(now.devices))} of them"
            + (f", and libraries of {', '.join(others)}" if others else ""),
            refresh, remedy="read `journalctl -u nvidia-cdi-refresh`",
        )  # fmt: skip


def cdi_devices(gpu: Gpu) -> set[str]:
    """Names that a specification has for a GPU: by UUID, its MIG devices if it is divided."""
    return {device.uuid for device in gpu.mig_devices} if gpu.mig_mode else {gpu.uuid}


def proven(spec: NodeSpec, have: Have, *, pending: bool) -> Iterator[Step]:
    """A container that has run through the nvidia runtime, as it is now, and saw a GPU."""
    gpus, effective = have[Gpus], have[Containerd]
    if not gpus.usable or not gpus.gpus or not effective.installed:
        yield Step(
            "run a container through the nvidia runtime", "a container that sees the GPUs",
            "none tried", lambda: iter(()), waits_for="the driver and the packages",
        )  # fmt: skip
        return
    runs_with = fingerprint(spec, have)
    proof = have[Files][PROOF]
    if proof is not None and proof.text is not None and runs_with in proof.text:
        return

    def apply() -> Commands:
        image = shlex.quote(spec.validation_image)
        yield StringCommand(
            f"ctr -n rackwright images pull --hosts-dir {containerd.CERTS_D} {image} >/dev/null && "
            "ctr -n rackwright run --rm --runc-binary "
            f"{NVIDIA_RUNTIME} --env NVIDIA_VISIBLE_DEVICES=all "
            f"--env NVIDIA_DRIVER_CAPABILITIES=utility {image} rackwright-proof-$$ "
            "sh -c 'ls /dev/nvidiactl'"
        )
        yield put(PROOF, json.dumps({"runs_with": runs_with}) + "\n")

    yield Step(
        "run a container through the nvidia runtime", "a container that sees the GPUs",
        "none since the runtime, the driver or the image changed", apply,
        waits_for="the runtime as declared" if pending else None,
        remedy="read `journalctl -u containerd` and /etc/nvidia-container-runtime/config.toml",
    )  # fmt: skip


def fingerprint(spec: NodeSpec, have: Have) -> str:
    """Of all that decides whether a container gets its GPU."""
    parts = [
        spec.containerd_version, spec.container_toolkit_version, spec.nvidia_driver_version,
        spec.validation_image, containerd.drop_in(containerd.OLDEST_VERSION, spec.pause_image),
        *sorted(gpu.uuid for gpu in have[Gpus].gpus),
    ]  # fmt: skip
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@deploy("Container runtime")
def container_runtime() -> None:
    node.converge(name="Converge the container runtime", phases=[preflight, sys.modules[__name__]])
