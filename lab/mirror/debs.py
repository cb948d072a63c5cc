"""
The real components as packages with the vendors' names, files and maintainer scripts.

What a vendor publishes with its module (units, licences, scripts) is taken from the module when the
package is made. What is not published there is written here, with the same settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lab.errors import LabError
from lab.mirror import go
from lab.mirror.deb import Deb, File

UNITS = "/usr/lib/systemd/system"

TOOLKIT_VERSION = f"{go.SETS['toolkit'].version}-1"
CONTAINERD_VERSION = f"{go.SETS['containerd'].version}-1~debian.13~trixie"
KUBERNETES_VERSION = f"{go.SETS['kubernetes'].version}-1.1"
CRI_TOOLS_VERSION = f"{go.SETS['cri-tools'].version}-1.1"
CNI_VERSION = f"{go.SETS['cni-plugins'].version}-1.1"

# Of the binaries linked by cgo; Debian 12's and 13's C library both do.
LIBC = "libc6 (>= 2.34)"


def containerd(report: go.Report) -> list[Deb]:
    """Docker's package, which brings its own runc and leaves the CRI plugin off."""
    programs = go.build("containerd", report) | go.build("runc", report)
    unit = go.module_file("containerd", "containerd.service").read_text()
    files = {
        **_programs("/usr/bin", programs),
        # Upstream's unit is for /usr/local; packages move it.
        f"{UNITS}/containerd.service": _text(unit.replace("/usr/local/bin/", "/usr/bin/")),
        "/etc/containerd/config.toml": _text(CONTAINERD_CONFIG),
        **_licence("containerd.io", "containerd"),
    }
    others = "containerd, runc"
    return [
        Deb(
            name="containerd.io",
            version=CONTAINERD_VERSION,
            description=_description(
                "An open and reliable container runtime", "containerd", "runc"
            ),
            files=files,
            # Source: docker/containerd-packaging, debian/control (read 2026-11-30).
            relations={
                "Depends": f"{LIBC}, libseccomp2 (>= 2.5.0)",
                "Provides": others,
                "Conflicts": others,
                "Replaces": others,
            },
            scripts=unit_scripts("containerd.service", start=True),
            section="devel",
        )
    ]


# Source: Docker's containerd.io packages ship a commented file in which this is the only setting
# in force; it has no `version` key (observed, containerd.io 2.x for Debian).
CONTAINERD_CONFIG = """\
# As Docker ships it: the CRI plugin is off, and no version is named.
disabled_plugins = ["cri"]
"""


def toolkit(report: go.Report) -> list[Deb]:
    """NVIDIA's container toolkit. Without libnvidia-container, which is no Go module."""
    programs = go.build("toolkit", report)
    packaging = "packaging/debian/{}.{}".format
    units = ["nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service"]
    hook = "nvidia-container-runtime-hook"
    note = (
        "Does not depend on libnvidia-container-tools as the vendor's does: that library is not a\n"
        "Go module. The CDI modes of the runtime work without it; the legacy mode does not."
    )
    # Source: NVIDIA/nvidia-container-toolkit v1.20.2, packaging/debian/*.install.
    base_files = {
        **_programs("/usr/bin", {k: v for k, v in programs.items() if k != hook}),
        **{f"{UNITS}/{unit}": _vendors("toolkit", f"deployments/systemd/{unit}") for unit in units},
        f"{UNITS}/nvidia-cdi-refresh.service.d/10-container-engines.conf": _vendors(
            "toolkit", "deployments/systemd/10-container-engines.conf"
        ),
        "/usr/lib/udev/rules.d/99-nvidia-cdi-refresh.rules": _vendors(
            "toolkit", "deployments/udev/99-nvidia-cdi-refresh.rules"
        ),
        "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": _vendors(
            "toolkit", "deployments/systemd/nvidia-cdi-refresh.env"
        ),
        **_licence("nvidia-container-toolkit-base", "toolkit"),
    }
    base = "nvidia-container-toolkit-base"
    scripts = unit_scripts(*units, start=True)
    return [
        Deb(
            name=base,
            version=TOOLKIT_VERSION,
            description=_description("NVIDIA Container Toolkit Base", "toolkit"),
            files=base_files,
            relations={"Depends": LIBC},
            scripts=scripts
            | {"postinst": _debhelper("toolkit", packaging(base, "postinst"), scripts["postinst"])},
            section="utils",
        ),
        Deb(
            name="nvidia-container-toolkit",
            version=TOOLKIT_VERSION,
            description=_description("NVIDIA Container toolkit", "toolkit") + "\n\n" + note,
            files={
                **_programs("/usr/bin", {hook: programs[hook]}),
                **_licence("nvidia-container-toolkit", "toolkit"),
            },
            relations={"Depends": f"{LIBC}, {base} (= {TOOLKIT_VERSION})"},
            scripts={
                name: _debhelper("toolkit", packaging("nvidia-container-toolkit", name), "")
                for name in ("postinst", "postrm")
            },
            section="utils",
        ),
    ]


def kubernetes(report: go.Report) -> list[Deb]:
    """Kubernetes' packages. Of what they depend on, only what they say they depend on."""
    programs = go.build("kubernetes", report)
    # Source: kubernetes/release, cmd/krel/templates/latest/{kubelet,kubeadm}/*.spec and
    # metadata.yaml (read 2026-11-30): conntrack, socat, ethtool and, since 1.32, cri-tools are the
    # administrator's to install.
    return [
        Deb(
            name="kubelet",
            version=KUBERNETES_VERSION,
            description=_description("Node agent for Kubernetes clusters", "kubernetes"),
            files={
                **_programs("/usr/bin", {"kubelet": programs["kubelet"]}),
                f"{UNITS}/kubelet.service": File(KUBELET_UNIT.encode(), 0o600),
                "/etc/default/kubelet": _text("KUBELET_EXTRA_ARGS=\n"),
                # A package cannot hold an empty directory of its own.
                "/var/lib/kubelet/.kubelet-keep": _text(""),
                "/etc/kubernetes/manifests/.kubelet-keep": _text(""),
                **_licence("kubelet", "kubernetes"),
            },
            relations={
                "Depends": "kubernetes-cni (>= 1.2.0), mount, util-linux",
                "Recommends": "iptables (>= 1.8.4)",
            },
            # Enabled, not started: without kubeadm's configuration it can only fail.
            scripts=unit_scripts("kubelet.service", start=False),
            section="net",
        ),
        Deb(
            name="kubeadm",
            version=KUBERNETES_VERSION,
            description=_description(
                "Command-line utility for administering a Kubernetes cluster", "kubernetes"
            ),
            files={
                **_programs("/usr/bin", {"kubeadm": programs["kubeadm"]}),
                f"{UNITS}/kubelet.service.d/10-kubeadm.conf": _text(KUBEADM_DROP_IN),
                **_licence("kubeadm", "kubernetes"),
            },
        ),
        Deb(
            name="kubectl",
            version=KUBERNETES_VERSION,
            description=_description(
                "Command-line utility for interacting with a Kubernetes cluster", "kubernetes"
            ),
            files={
                **_programs("/usr/bin", {"kubectl": programs["kubectl"]}),
                **_licence("kubectl", "kubernetes"),
            },
        ),
        Deb(
            name="cri-tools",
            version=CRI_TOOLS_VERSION,
            description=_description(
                "Command-line utility for interacting with a container runtime", "cri-tools"
            ),
            files={
                **_programs("/usr/bin", go.build("cri-tools", report)),
                **_licence("cri-tools", "cri-tools"),
            },
        ),
        Deb(
            name="kubernetes-cni",
            version=CNI_VERSION,
            description=_description(
                "Binaries required to provision kubernetes container networking", "cni-plugins"
            ),
            files={
                **_programs("/opt/cni/bin", go.build("cni-plugins", report)),
                "/etc/cni/net.d/.kubernetes-cni-keep": _text(""),
                **_licence("kubernetes-cni", "cni-plugins"),
            },
            section="net",
        ),
    ]


# Source: Kubernetes documentation, "Configuring each kubelet in your cluster using kubeadm", "The
# kubelet drop-in file for systemd" (read 2026-11-30); the unit is that of the vendor's packages.
KUBELET_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
"""

KUBEADM_DROP_IN = """\
# Where kubeadm leaves what the kubelet needs; the last two files may be missing.
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""  # noqa: E501 - systemd has no shorter form


VENDORS: dict[str, Callable[[go.Report], list[Deb]]] = {
    "docker": containerd,
    "libnvidia-container": toolkit,
    "kubernetes": kubernetes,
}
"""Packages by the repository (see ``repositories``) that they go to."""


def unit_scripts(*units: str, start: bool) -> dict[str, str]:
    """
    Maintainer scripts that treat units as Debian's packaging tools do.

    Enabled on first installation unless a preset or the administrator said otherwise, restarted on
    upgrade, stopped on removal, forgotten on purge.
    """
    # Source: deb-systemd-helper(1p), deb-systemd-invoke(1p) of Debian 13.
    names = " ".join(units)
    run = "if [ -d /run/systemd/system ]; then"
    reload = f"{run} systemctl --system daemon-reload >/dev/null || true; fi"
    postinst = [
        "#!/bin/sh",
        "set -e",
        'if [ "$1" = configure ]; then',
        f"  for unit in {names}; do",
        '    deb-systemd-helper unmask "$unit" >/dev/null || true',
        '    if deb-systemd-helper --quiet was-enabled "$unit"; then',
        '      deb-systemd-helper enable "$unit" >/dev/null || true',
        "    else",
        '      deb-systemd-helper update-state "$unit" >/dev/null || true',
        "    fi",
        "  done",
        f"  {reload}",
    ]
    if start:
        postinst += [
            f"  {run}",
            '    if [ -n "$2" ]; then action=restart; else action=start; fi',
            f"    deb-systemd-invoke $action {names} >/dev/null || true",
            "  fi",
        ]
    postinst += ["fi"]
    prerm = [
        "#!/bin/sh",
        "set -e",
        'if [ "$1" = remove ] && [ -d /run/systemd/system ]; then',
        f"  deb-systemd-invoke stop {names} >/dev/null || true",
        "fi",
    ]
    postrm = [
        "#!/bin/sh",
        "set -e",
        'if [ "$1" = purge ] && [ -x /usr/bin/deb-systemd-helper ]; then',
        f"  deb-systemd-helper purge {names} >/dev/null || true",
        "fi",
        reload,
    ]
    scripts = {"postinst": postinst, "prerm": prerm, "postrm": postrm}
    return {name: "\n".join(lines) + "\n" for name, lines in scripts.items()}


def _debhelper(set_name: str, path: str, generated: str) -> str:
    """A vendor's maintainer script with what debhelper would put in the place marked for it."""
    script = go.module_file(set_name, path).read_text()
    commands = [line for line in generated.splitlines() if line not in ("#!/bin/sh", "set -e")]
    if "#DEBHELPER#" not in script:
        raise LabError(f"{path}: want the mark #DEBHELPER# in it, have none; read it again")
    return script.replace("#DEBHELPER#", "\n".join(commands))


def _description(synopsis: str, *sets: str) -> str:
    sources = ", ".join(f"{go.SETS[name].module} v{go.SETS[name].version}" for name in sets)
    return f"{synopsis}\nBuilt from Go module {sources} for the Rackwright lab; not the vendor's."


def _programs(directory: str, programs: Mapping[str, Path]) -> dict[str, File]:
    return {f"{directory}/{name}": File(path, 0o755) for name, path in programs.items()}


def _vendors(set_name: str, path: str) -> File:
    return File(go.module_file(set_name, path))


def _licence(package: str, set_name: str) -> dict[str, File]:
    return {f"/usr/share/doc/{package}/copyright": _vendors(set_name, "LICENSE")}


def _text(text: str) -> File:
    return File(text.encode())
