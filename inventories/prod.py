"""
An example to copy: two racks, one for training and one shared with notebook users.

    python -m nodespec check inventories/prod.py          looks at it without connecting
    pyinfra -y inventories/prod.py deploys/gpu_node.py    brings the hosts to it

Later groups override earlier ones; docs/inventory.md has every key.
"""

# Where a host stands.
rack1 = ["gpu01.example.com", "gpu02.example.com", "gpu03.example.com", "gpu04.example.com"]
rack2 = ["gpu05.example.com", "gpu06.example.com", "gpu07.example.com", "gpu08.example.com"]

# What it is for.
training = [
    "gpu01.example.com",
    "gpu02.example.com",
    "gpu03.example.com",
    # Waits for a replacement of one adapter: it is to be validated with the seven that it has.
    ("gpu04.example.com", {"hca_count": 7}),
]
notebooks = [
    "gpu05.example.com",
    "gpu06.example.com",
    "gpu07.example.com",
    # Kept whole for those who need more than a slice.
    ("gpu08.example.com", {"mig_config": "all-disabled", "mig_strategy": "none"}),
]
