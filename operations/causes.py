"""Why a command failed, out of what it printed: the reason in a clause, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# packages: want apt's locks free, have pid 412 hold one for 900 s; wait for it, or look at it
SENTENCE = re.compile(r"^[a-z][\w .-]*: want .+, have .+; .+")


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason in a tool's own words, and the remedy that the tool does not tell."""

    words: re.Pattern[str]
    have: str
    """The clause; what ``words`` has caught is filled in."""
    remedy: str | None
    """``None``: the step's own."""


# Source of the words: apt 2.6 and 3.0 (apt-pkg, methods), with gpgv and with sqv 1.3; dpkg 1.21;
# kmod 30; strerror(3); GCC's and make's diagnostics (all observed on Debian 12 and 13).
# The first that is found counts: a full disk makes everything else fail too.
ON_THE_HOST = tuple(
    Cause(re.compile(words, re.MULTILINE), have, remedy)
    for words, have, remedy in (
        (
            r"No space left on device|You don't have enough free space in",
            "no space left on a disk",
            "make room (`df -h`, `df -i` on the host), then run again",
        ),
        (
            r"Read-only file system",
            "a file system that is read-only",
            "read `dmesg` on the host: a disk with errors is mounted so",
        ),
        (
            r"^\d+:(?P<error>.*(?:unrecognized command-line option|ompiler version check failed|"
            r"ompiler differs).*)\n(?s:.*?)^kernel built with: .*?\((?P<theirs>[^ ()]*gcc[^,]*),"
            r"(?s:.*?)^compiler here: (?P<ours>.*)$",
            "{error} (the kernel was built with {theirs}, here is {ours})",
            "install the compiler that the kernel was built with, then run again",
        ),
        (r"^\d+:(?P<error>.*(?:error:|No rule|unrecognized).*)$", "{error}", None),
        (
            r"could not insert '(?P<module>[^']+)': "
            r"(?:Key was rejected|Required key not available)",
            "{module} with a signature that the kernel does not take",
            "look at `mokutil --sb-state` and for module.sig_enforce in /proc/cmdline: turn that "
            "off, or enrol the key of DKMS with `mokutil --import` and confirm it on the console",
        ),
        (
            r"NVRM: (?:installed in this system is not supported|Open nvidia\.ko is only ready)",
            "a GPU that this driver does not drive",
            "read `dmesg` for its address; correct gpu_model, or choose an nvidia_driver_version "
            "that knows it",
        ),
        (r"^modprobe: (?:ERROR|FATAL): (?P<error>.*)$", "{error}", None),
        (
            r"^(?:The following packages will be REMOVED|REMOVING):\n(?P<names>(?s:.*?))\n"
            r"(?:The following|Installing|Upgrading|Summary|\d+ upgraded)"
            r"(?s:.*)Packages need to be removed but remove is disabled",
            "packages of others that would have to go: {names}",
            "remove them yourself if nobody needs them, or mend them, then run again",
        ),
        (r"^dpkg: error:? *(?P<error>.*)$", "{error}", None),
    )
)
FETCHING = tuple(
    Cause(re.compile(words, re.MULTILINE), have, remedy)
    for words, have, remedy in (
        (
            r"(?:verification failed|GPG error): (?P<url>\S+).*?(?:EXPKEYSIG|Expired on)",
            "{url} signed with a key that has expired",
            "its vendor has to renew it: run again then; a keyring that is not ours needs the "
            "renewed key put into it",
        ),
        (
            r"(?:verification failed|GPG error): (?P<url>\S+).*?(?:NO_PUBKEY|Missing key) "
            r"(?P<key>\w+)",
            "{url} signed with another key, {key}",
            "ask its vendor which key is right, then put that into its keyring",
        ),
        (
            r"(?:verification failed|GPG error): (?P<url>\S+).*?"
            r"(?:Policy rejected|is not considered secure)",
            "{url} signed in a way that this system's policy no longer takes",
            "take the vendor's repository for this very release, whose key is newer; the policy is "
            "in /usr/share/apt/default-sequoia.config",
        ),
        (
            r"(?:verification failed|GPG error): (?P<url>\S+)",
            "{url} with a signature that apt rejects",
            "compare its key with the one that the vendor publishes",
        ),
        (
            r"(?:Could not resolve|Temporary failure resolving|Something wicked happened resolving)"
            r" '(?P<name>[^']+)'",
            "no address for {name}",
            "mend the host's name resolution (/etc/resolv.conf, and the servers in it)",
        ),
        (
            r"(?:Unable to connect to|Could not connect to|Cannot initiate the connection to) "
            r"(?P<where>[\w.:\[\]-]*[\w\]])",
            "no connection to {where}",
            "look at the network, the firewall and the proxy between it and the host",
        ),
        (
            r"^[EW]: Failed to fetch (?P<url>\S+)\s+(?:File has unexpected size|Hash Sum mismatch)",
            "{url} in the middle of a change on its server",
            "run again later; if it stays so, that mirror is broken, or a proxy alters what it has",
        ),
        (
            r"^E: The repository '(?P<url>\S+) .*Release' does not have a Release file",
            "{url} without a Release file",
            "take it out of /etc/apt/sources.list and sources.list.d if it is gone for good, as "
            "apt.kubernetes.io; else look at that repository, and at the way to it",
        ),
        (
            r"^[EW]: Failed to fetch (?P<url>\S+)\s+(?P<why>.*?)(?: \[IP: .*)?$",
            "{why} for {url}",
            "look at that repository, and at the way to it",
        ),
    )
)
APT = re.compile(
    r"^E: (?!Sub-process|Download Failed|The repository|Failed to fetch)(?P<error>.*)$",
    re.MULTILINE,
)
"""apt's own conclusion: often what follows from the reason, not the reason."""


def cause(lines: Sequence[str], remedy: str) -> tuple[str, str]:
    """
    Reason and remedy for a command that printed *lines* and failed.

    + remedy: for a reason that is not among those known
    """
    said = [line.strip() for line in lines if line.strip()]
    text = "\n".join(said)
    if found := _first(ON_THE_HOST, text):
        return found[0], found[1] or remedy
    concluded = APT.search(text)
    if found := _first(FETCHING, text):
        # A repository that cannot be had need not be the one that matters: both are told.
        after = f" ({concluded['error']})" if concluded else ""
        return found[0] + after, found[1] or remedy
    if concluded:
        return concluded["error"], remedy
    return (said[-1] if said else "a command that failed without a word"), remedy


def _first(causes: Sequence[Cause], text: str) -> tuple[str, str | None] | None:
    for known in causes:
        if found := list(known.words.finditer(text)):
            caught = {
                # One cause for several repositories is told once, with all of them.
                name: ", ".join(dict.fromkeys(match[name].replace("\n", " ") for match in found))
                for name in known.words.groupindex
            }
            return known.have.format(**caught).strip(), known.remedy
    return None


def sentence(component: str, want: str, lines: Sequence[str], remedy: str) -> str:
    """The one sentence for a command that printed *lines* and failed: its own, if it has one."""
    for line in lines:
        if SENTENCE.match(line.strip()):
            return line.strip()
    have, what_to_do = cause(lines, remedy)
    return f"{component}: want {want}, have {have}; {what_to_do}"
