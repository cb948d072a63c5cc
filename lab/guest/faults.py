"""What goes wrong with real nodes, made to happen to a guest on purpose.

Each fault is switched on and off; both may be repeated. All are gone after a reset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.description import Description
from lab.errors import LabError
from lab.guest import ssh
from lab.guest.machines import Machine
from lab.host import virsh
from lab.mirror import repositories, signing

API_SERVER_PORT = 6443
FAULTS_FOLDER = "/run/rackwright-lab-faults"


@dataclass(frozen=True, slots=True)
class Target:
    machine: Machine
    description: Description


Switch = Callable[[Target], None]


@dataclass(frozen=True, slots=True)
class Fault:
    what: str
    on: Switch
    off: Switch


def inject(kind: str, machine: Machine, description: Description, *, on: bool) -> None:
    fault = FAULTS.get(kind)
    if fault is None:
        raise LabError(f"fault: want one of {', '.join(sorted(FAULTS))}, have {kind!r}")
    switch = fault.on if on else fault.off
    switch(Target(machine, description))


def in_guest(script: str, *, timeout_s: float = 120.0) -> Switch:
    """A root shell script in the guest; ``{host}`` and the like are filled in."""

    def switch(target: Target) -> None:
        text = script
        for name, value in {
            "{host}": str(target.description.network.host),
            "{nowhere}": str(target.description.network.subnet.broadcast_address - 1),
            "{api_port}": str(API_SERVER_PORT),
            "{folder}": FAULTS_FOLDER,
            "{library}": FIND_LIBRARY,
        }.items():
            text = text.replace(name, value)
        prelude = f"set -eu; mkdir -p {FAULTS_FOLDER}\n"
        ssh.command(target.machine.node, "sudo sh -s", stdin=prelude + text, timeout_s=timeout_s)

    return switch


def simhw(line: str) -> Switch:
    """A command to the simulated hardware; see ``lab/simhw/README.md``."""
    return in_guest(f"echo '{line}' >/proc/simhw\n")


def first_port(state: str | None) -> Switch:
    """The first HCA's port into a state; ``None`` is the described one."""

    def switch(target: Target) -> None:
        hcas = target.machine.node.hcas
        if not hcas:
            raise LabError(f"fault: want an HCA in {target.machine.node.name}, have none")
        simhw(f"port mlx5_0 state {state or hcas[0].state}")(target)

    return switch


def cannot_undo(why: str) -> Switch:
    def switch(target: Target) -> None:
        name = target.machine.node.name
        raise LabError(f"fault: want it undone, have {why}; run: python -m lab reset {name}")

    return switch


def unit(name: str) -> str:
    return f"rackwright-lab-fault-{name}"


def set_clock(target: Target) -> None:
    ssh.set_clock(target.machine.node)


def on_reboot(action: str) -> Switch:
    def switch(target: Target) -> None:
        if action == "restart" and not target.machine.running():
            return  # it has happened; what is started anew restarts as ever
        virsh("set-lifecycle-action", target.machine.name, "reboot", action, "--live")

    return switch


def link(state: str) -> Switch:
    def switch(target: Target) -> None:
        virsh("domif-setlink", target.machine.name, target.machine.node.mac, state)

    return switch


def suspend(target: Target) -> None:
    if target.machine.state() == "running":
        virsh("suspend", target.machine.name)


def resume(target: Target) -> None:
    if target.machine.state() == "paused":
        virsh("resume", target.machine.name)


def power_off(target: Target) -> None:
    target.machine.stop()


def power_on(target: Target) -> None:
    target.machine.boot()


# apt and dpkg use POSIX locks, which `flock` does not take.
HOLD_APT_LOCK = """
systemctl is-active --quiet UNIT && exit 0
cat >{folder}/lock.py <<'END'
import fcntl, signal
files = [open(f"/var/lib/{name}", "w") for name in ("dpkg/lock-frontend", "apt/lists/lock")]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
signal.pause()
END
systemd-run --quiet --collect --unit=UNIT python3 {folder}/lock.py
until journalctl --unit=UNIT --output=cat --since=-60s | grep -qx locked; do
    systemctl is-active --quiet UNIT || { echo "the lock is taken already" >&2; exit 1; }
    sleep 0.2
done
""".replace("UNIT", unit("apt-locked"))

FILL_DISK = """
free_mib=$(($(stat --file-system --format='%f * %S' /var/lib) / 1048576))
[ "$free_mib" -le 16 ] ||
    fallocate --length "$((free_mib - 16))MiB" /var/lib/rackwright-lab-fault-$(date +%s)
dd if=/dev/zero of=/var/lib/rackwright-lab-fault bs=4K oflag=append conv=notrunc 2>/dev/null || true
"""

# Egress filter in the guest: packets vanish without an answer, as behind a real firewall.
DROP_API = """
device=$(ip -o route get {host} | sed 's/.* dev \\([^ ]*\\).*/\\1/')
tc qdisc show dev "$device" | grep -q clsact || tc qdisc add dev "$device" clsact
tc filter replace dev "$device" egress prio 1 handle 1 protocol ip flower \\
    ip_proto tcp dst_ip {host} dst_port {api_port} action drop
"""
PASS_API = """
device=$(ip -o route get {host} | sed 's/.* dev \\([^ ]*\\).*/\\1/')
! tc qdisc show dev "$device" | grep -q clsact || tc qdisc delete dev "$device" clsact
"""

# An address of the lab's own network that nobody has: questions time out. The guest knows the lab
# host without asking, which would hide it.
BREAK_DNS = """
mountpoint --quiet /etc/resolv.conf && exit 0
grep -v ' lab$' /etc/hosts >{folder}/hosts
mount --bind {folder}/hosts /etc/hosts
echo 'nameserver {nowhere}' >{folder}/resolv.conf
mount --bind {folder}/resolv.conf /etc/resolv.conf
"""
MEND_DNS = """
for file in /etc/resolv.conf /etc/hosts; do
    ! mountpoint --quiet $file || umount $file
done
"""

FIND_LIBRARY = """
library=$(ldconfig -p | sed -n 's/.*libnvidia-ml.so.1 .*=> //p' | head -n 1)
[ -n "$library" ] || { echo "no libnvidia-ml.so.1 is installed" >&2; exit 1; }
library=$(readlink --canonicalize "$library")
"""

# The library says another version of the same length than the loaded module has, as after an
# upgrade of the packages without a reboot.
CHANGE_LIBRARY = """
loaded=$(cat /sys/module/nvidia/version) ||
    { echo "no NVIDIA driver is loaded: nothing to differ from" >&2; exit 1; }
{library}
mountpoint --quiet "$library" && exit 0
other=$(echo "$loaded" | tr '[0-8]' '[1-9]')
copy=/var/lib/rackwright-lab-libnvidia-ml.so  # not in /run: no program may be mapped from there
sed "s/$(echo "$loaded" | sed 's/\\./\\\\./g')/$other/g" "$library" >$copy
chmod 755 $copy
mount --bind $copy "$library"
"""
RESTORE_LIBRARY = """
{library}
! mountpoint --quiet "$library" || umount "$library"
"""

# What the product has put there, as it would be had the time come; the guest's own key is left.
EXPIRE_KEYRINGS = """
for keyring in /etc/apt/keyrings/rackwright-*.asc; do
    case $keyring in */rackwright-lab.asc | *'*'*) continue ;; esac
    cat >"$keyring" <<'END'
KEY
END
done
"""


def let_keys_expire(target: Target) -> None:
    repositories.let_keys_expire(str(target.machine.node.address))
    in_guest(EXPIRE_KEYRINGS.replace("KEY\n", signing.expired()))(target)


def renew_keys(target: Target) -> None:
    repositories.same_for_all(str(target.machine.node.address))


FAULTS: dict[str, Fault] = {
    "gpu-missing": Fault(
        "the first GPU is not on the PCI bus", simhw("gpu 0 remove"), simhw("gpu 0 restore")
    ),
    "gpu-lost": Fault(
        "the first GPU answers nothing any more (fallen off the bus)",
        simhw("gpu 0 lost"),
        simhw("gpu 0 restore"),
    ),
    "pcie-width-degraded": Fault(
        "the first GPU has 8 lanes instead of 16", simhw("gpu 0 width 8"), simhw("gpu 0 width 16")
    ),
    "xid": Fault(
        "the kernel log has Xid 79 of the first GPU",
        simhw("xid 0 79"),
        cannot_undo("a line in the kernel log, which stays"),
    ),
    "hca-port-down": Fault("the first HCA's port is down", first_port("down"), first_port(None)),
    "nvml-hangs": Fault(
        "every NVML call waits for ever",
        in_guest("mkdir -p /run/rackwright-sim; touch /run/rackwright-sim/nvml-hangs\n"),
        in_guest("rm -f /run/rackwright-sim/nvml-hangs\n"),
    ),
    "driver-mismatch": Fault(
        "NVML's library has another version than the loaded driver",
        in_guest(CHANGE_LIBRARY),
        in_guest(RESTORE_LIBRARY),
    ),
    "apt-locked": Fault(
        "another process holds apt's and dpkg's locks",
        in_guest(HOLD_APT_LOCK),
        in_guest(
            f"! systemctl is-active --quiet {unit('apt-locked')} || "
            f"systemctl stop {unit('apt-locked')}\n"
        ),
    ),
    "disk-full": Fault(
        "no byte is free in /var/lib",
        in_guest(FILL_DISK, timeout_s=600),
        in_guest("rm -f /var/lib/rackwright-lab-fault*\n"),
    ),
    "api-unreachable": Fault(
        "packets to the API server are dropped", in_guest(DROP_API), in_guest(PASS_API)
    ),
    "dns-broken": Fault("the resolver does not answer", in_guest(BREAK_DNS), in_guest(MEND_DNS)),
    "repository-key-expired": Fault(
        "the vendors' keys have expired, in the node's keyrings and where they are fetched; "
        "off: the vendors have renewed them, the keyrings are still old",
        let_keys_expire,
        renew_keys,
    ),
    "clock-off": Fault(
        "the clock is two hours late",
        in_guest("date --utc --set='2 hours ago' >/dev/null\n"),
        set_clock,
    ),
    "no-return-from-reboot": Fault(
        "a reboot ends with the power off", on_reboot("destroy"), on_reboot("restart")
    ),
    "network-cut": Fault("the network cable is out", link("down"), link("up")),
    "host-hangs": Fault("the whole host stands still", suspend, resume),
    "power-off": Fault("the power fails; off: it is switched on again", power_off, power_on),
}
