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

ENROL = (
    "look at `mokutil --sb-state` and for module.sig_enforce in /proc/cmdline: turn that off, or "
    "enrol the key of DKMS with `mokutil --import` and confirm it on the console"
)
COMPILERS = (
    "kernel built with: Linux version 6.12.57+deb13-amd64 (debian-kernel@lists.debian.org) "
    "(x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0, GNU ld (GNU Binutils for Debian) 2.44) #1",
    "compiler here: cc 11.4.0",
)

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
    "REP-01 another key": (
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
    "DRV-04 a module that does not build, and a repository that is not the reason": (
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
    "DRV-02 a module that the kernel refuses": (
        ["modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"],
        "nvidia with a signature that the kernel does not take",
        ENROL,
    ),
    "DRV-02 a module that an older kernel refuses": (
        ["modprobe: ERROR: could not insert 'mlx5_ib': Required key not available"],
        "mlx5_ib with a signature that the kernel does not take",
        ENROL,
    ),
    "DRV-01 a module that is not there": (
        ["modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.12.57+deb13-amd64"],
        "Module nvidia not found in directory /lib/modules/6.12.57+deb13-amd64",
        "read the log",
    ),
    "DRV-03 another compiler than the kernel's": (
        [
            "dpkg: error processing package nvidia-kernel-open-dkms (--configure):",
            "nvidia driver: want its modules built, have errors in /var/lib/dkms/make.log:",
            "2:cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
            "3:make[2]: *** [scripts/Makefile.build:229: nvidia/nv.o] Error 1",
            *COMPILERS,
        ],
        "cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero' (the kernel "
        "was built with x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0, here is cc 11.4.0)",
        "install the compiler that the kernel was built with, then run again",
    ),
    "DRV-03 the driver's own check of the compiler": (
        ["7:Compiler version check failed:", *COMPILERS],
        "Compiler version check failed: (the kernel was built with "
        "x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0, here is cc 11.4.0)",
        "install the compiler that the kernel was built with, then run again",
    ),
    "DRV-13 a GPU that the driver does not know": (
        [
            "modprobe: ERROR: could not insert 'nvidia': No such device",
            "NVRM: The NVIDIA GPU 0000:41:00.0 (PCI ID: 10de:1db1)",
            "NVRM: installed in this system is not supported by the",
            "NVRM: NVIDIA 580.178.04 driver release.",
        ],
        "a GPU that this driver does not drive",
        "read `dmesg` for its address; correct gpu_model, or choose an nvidia_driver_version that "
        "knows it",
    ),
    "REP-03 a key that a new policy rejects": (
        [
            SQV.partition(" is bad:")[0] + " is not bound:            No binding signature at time "
            "2026-11-30T16:52:39Z   because: Policy rejected non-revocation signature "
            "(PositiveCertification) requiring second pre-image resistance   because: SHA1 is not "
            "considered secure since 2026-02-01T00:00:00Z",
            UNSIGNED,
        ],
        f"{REPOSITORY} signed in a way that this system's policy no longer takes",
        "take the vendor's repository for this very release, whose key is newer; the policy is in "
        "/usr/share/apt/default-sequoia.config",
    ),
    "REP-04 a repository that is gone for good": (
        [
            "E: The repository 'https://apt.kubernetes.io kubernetes-xenial Release' does not have "
            "a Release file.",
            UNKNOWN,
        ],
        "https://apt.kubernetes.io without a Release file "
        "(Unable to locate package infiniband-diags)",
        "take it out of /etc/apt/sources.list and sources.list.d if it is gone for good, as "
        "apt.kubernetes.io; else look at that repository, and at the way to it",
    ),
    "REP-05 a mirror that is being changed": (
        [
            f"E: Failed to fetch {REPOSITORY}/Packages.gz  File has unexpected size (1503986 != "
            "1514203). Mirror sync in progress? [IP: 10.0.0.1 443]",
            "E: Some index files failed to download. They have been ignored, or old ones used.",
        ],
        f"{REPOSITORY}/Packages.gz in the middle of a change on its server (Some index files "
        "failed to download. They have been ignored, or old ones used.)",
        "run again later; if it stays so, that mirror is broken, or a proxy alters what it has",
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
