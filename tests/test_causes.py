"""What a failed command printed, and the one sentence that is told of it. Outputs of Debian 13."""

from __future__ import annotations

import pytest

from operations.causes import sentence

REPOSITORY = "http://mirror.example.org/cuda/repos/debian13/x86_64"
SQV = (
    f"W: OpenPGP signature verification failed: {REPOSITORY} ./ InRelease: Sub-process "
    "/usr/bin/sqv returned an error code (1), error message is: Signing key on 2E502069 is bad:  "
    "          The primary key is not live   because: Expired on 2026-11-30T16:52:39Z"
)
GPGV = (
    f"W: GPG error: {REPOSITORY}  InRelease: The following signatures were invalid: EXPKEYSIG "
    "F03E0244DABCEF26 A vendor <a@vendor.invalid>"
)
UNSIGNED = f"E: The repository '{REPOSITORY} ./ InRelease' is not signed."
UNKNOWN = "E: Unable to locate package infiniband-diags"

CASES = {
    "expired key, sqv": (
        [SQV, UNSIGNED],
        f"{REPOSITORY} signed with a key that has expired",
        "its vendor has to renew it: run again then; a keyring that is not ours needs the renewed "
        "key put into it",
    ),
    "expired key, gpgv": (
        [GPGV, UNSIGNED],
        f"{REPOSITORY} signed with a key that has expired",
        "its vendor has to renew it: run again then; a keyring that is not ours needs the renewed "
        "key put into it",
    ),
    "expired keys of two": (
        [SQV, SQV.replace("cuda", "docker"), UNSIGNED, SQV, UNKNOWN],
        f"{REPOSITORY}, {REPOSITORY.replace('cuda', 'docker')} signed with a key that has expired "
        "(Unable to locate package infiniband-diags)",
        "its vendor has to renew it: run again then; a keyring that is not ours needs the renewed "
        "key put into it",
    ),
    "another key": (
        [
            f"W: GPG error: {REPOSITORY}  InRelease: The following signatures couldn't be verified "
            "because the public key is not available: NO_PUBKEY F03E0244DABCEF26",
            UNSIGNED,
        ],
        f"{REPOSITORY} signed with another key, F03E0244DABCEF26",
        "ask its vendor which key is right, then put that into its keyring",
    ),
    "a signature that is bad": (
        [f"W: GPG error: {REPOSITORY}  InRelease: BADSIG F03E0244DABCEF26 A vendor", UNSIGNED],
        f"{REPOSITORY} with a signature that apt rejects",
        "compare its key with the one that the vendor publishes",
    ),
    "no name resolution": (
        [
            "W: Failed to fetch http://mirror.example.org/x/./InRelease  "
            "Temporary failure resolving 'mirror.example.org'",
            "W: Some index files failed to download. They have been ignored, or old ones used.",
            UNKNOWN,
        ],
        "no address for mirror.example.org (Unable to locate package infiniband-diags)",
        "mend the host's name resolution (/etc/resolv.conf, and the servers in it)",
    ),
    "a server that is not there": (
        [
            "  Could not connect to 10.0.0.1:8081 (10.0.0.1). - connect (111: Connection refused)",
            "W: Failed to fetch http://10.0.0.1:8081/x/./InRelease  "
            "Unable to connect to 10.0.0.1:8081:",
            UNKNOWN,
        ],
        "no connection to 10.0.0.1:8081 (Unable to locate package infiniband-diags)",
        "look at the network, the firewall and the proxy between it and the host",
    ),
    "a file that is gone": (
        [
            "E: Failed to fetch http://10.0.0.1/x.deb  404  File not found [IP: 10.0.0.1 80]",
            "E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?",
        ],
        "404  File not found for http://10.0.0.1/x.deb (Unable to fetch some archives, maybe run "
        "apt-get update or try with --fix-missing?)",
        "look at that repository, and at the way to it",
    ),
    "a full disk, whatever else it makes fail": (
        [
            SQV,
            "dpkg: error processing archive /var/cache/apt/archives/x.deb (--unpack):",
            " cannot copy extracted data for './usr/bin/x': failed to write (No space left on "
            "device)",
            "E: Sub-process /usr/bin/dpkg returned an error code (1)",
        ],
        "no space left on a disk",
        "make room (`df -h`, `df -i` on the host), then run again",
    ),
    "no room for what is to come": (
        ["E: You don't have enough free space in /var/cache/apt/archives/."],
        "no space left on a disk",
        "make room (`df -h`, `df -i` on the host), then run again",
    ),
    "a module that does not build, and a repository that is not the reason": (
        [
            "W: Failed to fetch http://other.example/InRelease  Could not resolve 'other.example'",
            "dpkg: error processing package nvidia-kernel-open-dkms (--configure):",
            "E: Sub-process /usr/bin/dpkg returned an error code (1)",
            "nvidia driver: want its modules built, have errors in /var/lib/dkms/make.log:",
            "212:/build/nv.c:12:10: error: implicit declaration of function 'follow_pfn'",
            "kernel built with: Linux version 6.12",
        ],
        "/build/nv.c:12:10: error: implicit declaration of function 'follow_pfn'",
        "read the log",
    ),
    "a module that the kernel refuses": (
        ["modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"],
        "could not insert 'nvidia': Key was rejected by service",
        "read the log",
    ),
    "a version that nobody has": (
        ["Reading package lists...", "E: Version '1.2' for 'kubelet' was not found"],
        "Version '1.2' for 'kubelet' was not found",
        "read the log",
    ),
    "something else": (["", "one", "two", " "], "two", "read the log"),
    "nothing": ([], "a command that failed without a word", "read the log"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_sentence_of_a_failed_command_has_cause_and_remedy(name: str) -> None:
    lines, have, remedy = CASES[name]
    told = sentence("base", "x installed", lines, "read the log")
    assert told == f"base: want x installed, have {have}; {remedy}"


def test_a_command_that_tells_by_itself_is_quoted() -> None:
    own = "packages: want apt's locks free, have pid 7 hold one for 900 s; wait for it"
    assert sentence("base", "x installed", ["E: noise", own, "more"], "read the log") == own
