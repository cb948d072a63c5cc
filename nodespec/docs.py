"""``docs/inventory.md``: every key, from the models that read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from nodespec.catalogue import GPUS, HCAS
from nodespec.foreign import USER_PREFIX
from nodespec.mig import named
from nodespec.model import CLUSTER_WIDE, NodeSpec
from nodespec.reading import REMOVED

HEAD = f"""\
<!-- Made by `python -m nodespec docs > docs/inventory.md`; a test holds it current. -->

# The inventory

What is asked of each host is data of a [pyinfra inventory](https://docs.pyinfra.com): a Python
file in `inventories/` that lists hosts in groups, and `inventories/group_data/<group>.py` beside
it. Copy `inventories/prod.py` and its groups' data, and look at it without connecting anywhere:

    python -m nodespec check inventories/prod.py

It prints every problem of every host, and exits with 1 if there is one. A run does the same before
it connects to any host. One line stands for all hosts that have the same thing wrong:

    gpu03 to gpu12, gpu16 (11 hosts): mig_config: want ..., have ...; what to do

Of a deploy's command line, a `--limit` or `--exclude` that matches no host is refused too: pyinfra
would do less than was meant, or more. `pyinfra INVENTORY fact ...` and `... exec -- ...` look at
nothing, for whoever looks for what is wrong.

## How it is written

* A group is a list of hosts, or `(list of hosts, {...})` with data for all of them; a host is a
  string, or `(name, {...})`. A list in the file that is no group needs a name that begins with `_`.
* Nothing is converted: a number is no string (`8`, not `"8"`), a truth is `True` or `False`, a list
  is `[...]` and not `{...}`, of which the order changes from run to run.
* An IPv6 address stands in brackets where a port can follow, as in `[fd00::1]:6443`, and by itself
  everywhere else (`ssh_hostname`, `kube_node_ip`, `no_proxy`).
* In the name and password of a proxy's URL any character but letters, digits and `._~-` is written
  as `%XX`. Other URLs have neither: they end in files that all users of a host can read.

## Which value counts

A host's own data wins over its groups' data, later groups in the inventory file win over earlier
ones, the group that is named after the inventory file (`group_data/prod.py` for `prod.py`) comes
last and wins over all other groups, and every group wins over `group_data/all.py`. A value is
replaced whole: a host with `kube_labels` of its own has only those. `--data key=value` on
pyinfra's command line wins over everything.

## Whose keys

A key is ours (below), pyinfra's (`_sudo`, `_env`, ...), one of a connector (`ssh_user`, ...), or
yours if it starts with `{USER_PREFIX}`. Any other is an error, with the nearest known key as a
suggestion.

## Connections

* **Host keys** have to be known before the first contact: `ssh_strict_host_key_checking` must be
  `"yes"` (`group_data/all.py` sets it), and the host's key in `ssh_known_hosts_file` (default
  `~/.ssh/known_hosts`). pyinfra's own default, `accept-new`, would give a run's secrets to whoever
  answers first, so it is refused, as are `no` and `off`. Fill the file from a source you trust
  (the provisioning system, the BMC's console, an SSH CA): `ssh-keyscan` over the network you
  distrust proves nothing. For a port other than 22 the entry is `[host]:port`.
* **A changed key** fails that host before anything is sent: `Host key for gpu01 does not match`.
  If the host was reinstalled, remove the old entry with `ssh-keygen -R gpu01 -f FILE` and add the
  new one; if not, find out who is answering.
* **Jump hosts** go into an OpenSSH configuration file that `ssh_config_file` names (default
  `~/.ssh/config`). Give the jump host strict checking too; without it pyinfra would ask at the
  terminal:

      Host gpu*.example.com
          ProxyJump bastion.example.com
      Host bastion.example.com
          User ops
          StrictHostKeyChecking yes
          UserKnownHostsFile ~/.ssh/known_hosts.prod

* **sudo**: `_sudo = True` in `group_data/all.py`, never in a deploy. With a password, give it at
  run time and not in a file:

      # inventories/group_data/prod.py
      import os
      _sudo_password = os.environ.get("RACKWRIGHT_SUDO_PASSWORD")

  or leave `_sudo_password` out and pyinfra asks at the terminal (not with `-y` in automation).
  It goes to the host through the command's standard input, never in an argument, and is in no log
  (`operations/sudo.py`; so it has to be run from the root of this folder, whose `config.py` sees to
  it). `pyinfra INVENTORY debug-inventory` prints it; `python -m nodespec check` does not.
* **Speed**: `ssh_paramiko_connect_kwargs` in `group_data/all.py` switches Nagle's algorithm off
  (`inventories/transport.py`). It is the one thing that group data imports.

Nothing secret belongs into an inventory: a key names where the secret is found.

## Mirrors, proxies, private CAs

Each repository and each registry has an address of its own, for sites that have a mirror or no way
out. A repository's URL may hold placeholders, which are filled for each host:

| placeholder | is | on Debian 13 | on Ubuntu 24.04 |
| --- | --- | --- | --- |
| `{{id}}` | `ID` of os-release | `debian` | `ubuntu` |
| `{{version}}` | `VERSION_ID` | `13` | `24.04` |
| `{{suite}}` | `VERSION_CODENAME` | `trixie` | `noble` |
| `{{distro}}` | NVIDIA's name for the system | `debian13` | `ubuntu2404` |
| `{{minor}}` | minor of `kube_version` | `1.36` | `1.36` |

A repository is used only if its key has the fingerprint that the inventory gives, wherever the key
was fetched from. The defaults are the vendors' keys. A vendor that changes its key makes the run
stop with the fingerprint it found: compare it with the vendor's announcement before you write it
into the inventory.

`registry_mirrors` sends containerd elsewhere for a registry's images; their names in manifests
stay as they are. A `hosts.toml` that somebody else has written for such a registry is kept beside
ours as `hosts.toml.disabled`, unread and unshown. `http_proxy`, `https_proxy` and `no_proxy` go to
the package manager, containerd and the kubelet alike.
"""

CLUSTERS = f"""\
## Across hosts

Refused are: one address or node name twice, one kubeconfig with two API servers, and hosts of one
cluster that differ in what one object in the cluster carries for all of them:
{", ".join(f"`{key}`" for key in CLUSTER_WIDE)}.
An inventory may hold hosts of several clusters.
"""


def render() -> str:
    """Return the page."""
    return "\n".join([HEAD, *_keys(), CLUSTERS, *_removed(), *_gpus(), *_hcas()])


def _keys() -> Iterator[str]:
    yield "## Keys"
    yield ""
    yield "A key without a default has to be given."
    for name, field in NodeSpec.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        if extra["section"]:
            yield ""
            yield f"### {extra['section']}"
        yield ""
        yield f"**`{name}`**  "
        yield f"{field.description}"
        yield ""
        yield f"* form: {extra['form']}"
        if extra["unit"]:
            yield f"* unit: {extra['unit']}"
        yield f"* default: {_default(field, extra['default_is'])}"
        yield f"* example: `{name} = {_literal((field.examples or [None])[0])}`"
    yield ""


def _literal(value: Any) -> str:
    """Write *value* as people write it in Python, with double quotes."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("true", "True").replace("false", "False").replace("null", "None")


def _default(field: FieldInfo, words: Any) -> str:
    if words:
        return str(words)
    if field.is_required():
        return "none: it has to be given"
    value = field.get_default(call_default_factory=True, validated_data={})
    return "not set" if value is None else f"`{_literal(value)}`"


def _removed() -> Iterator[str]:
    if REMOVED:
        yield "## Removed keys"
        yield ""
        for key, instead in REMOVED.items():
            yield f"* `{key}`: {instead}"
        yield ""


def _gpus() -> Iterator[str]:
    yield "## GPUs"
    yield ""
    yield "Simulated and captured cases aside, nothing here was run on the hardware itself."
    yield ""
    yield "| `gpu_model` | PCI ids | architecture | first driver | MIG layouts |"
    yield "| --- | --- | --- | --- | --- |"
    for model in GPUS:
        layouts = ", ".join(f"`{name}`" for name in named(model)) if model.mig_capable else "no MIG"
        if not model.open_module_supported:
            layouts = "refused: needs the proprietary kernel modules"
        first = model.open_driver_min if model.open_module_supported else "none"
        ids = ", ".join(model.pci_device_ids)
        yield f"| {model.name} | {ids} | {model.architecture} | {first} | {layouts} |"
    yield ""


def _hcas() -> Iterator[str]:
    yield "## HCAs"
    yield ""
    yield "| `hca_model` | PCI ids | port rate at most, Gbit/s |"
    yield "| --- | --- | --- |"
    for model in HCAS:
        yield f"| {model.name} | {', '.join(model.pci_device_ids)} | {model.rate_gbps_max} |"
    yield ""
