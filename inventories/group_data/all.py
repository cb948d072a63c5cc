"""What every inventory here shares. A group's data and a host's win over it, key by key."""

from inventories.transport import no_delay

_sudo = True  # honoured everywhere, also where an operation's own argument is not

# A host's key has to be known before the first contact; see docs/inventory.md.
ssh_strict_host_key_checking = "yes"
ssh_paramiko_connect_kwargs = {"transport_factory": no_delay}

kube_version = "1.36.3"
