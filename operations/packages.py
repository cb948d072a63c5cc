"""Packages of exact versions, and what a run that died left of dpkg."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping

from pyinfra.api import StringCommand

from facts.packages import LOCKS, Packages, PackagesState
from operations import lock, repositories
from operations.have import Have
from operations.step import Commands, Step

LOG = "/var/log/rackwright-apt.log"
"""On the host: apt's own words, in a file so that apt survives a connection that does not."""

STAMP = "/var/lib/rackwright/apt-updated"
"""Touched when apt's indexes were last fetched without a word of complaint."""

OPTIONS = (
    "-y -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confold -o Acquire::Retries=3 "
    "--no-install-recommends --allow-downgrades --allow-change-held-packages"
)
KEEPING = "--no-remove"
"""What apt would rather remove than leave as it is belongs to somebody: apt is to refuse."""

DAEMONS = re.compile(r"containerd(\.io)?|runc|kubelet|cri-o|docker-ce|docker\.io|podman")
"""Packages whose configuration restarts what pods, or other containers, run on."""

# apt's messages for a version that its indexes do not know (yet), or whose file the mirror no
# longer has: newer indexes help. Source: apt 2.6 and 3.0, messages of apt-pkg and apt-private.
OUTDATED = (
    "^E: (Version .* was not found|Unable to locate package|Package .* has no installation "
    "candidate|Unable to fetch some archives|Failed to fetch|Unable to correct problems)"
)


def matches(version: str | None, want: str | None) -> bool:
    """
    Whether an installed *version* is the one that is wanted.

    + want: a full Debian version, as in ``1.36.3-1.1``; the upstream part alone, as in ``1.36.3``,
      which takes any revision; ``None``, which takes any version
    """
    if version is None or want is None:
        return version is not None
    upstream = version.rpartition("-")[0] or version
    return want in (version, upstream)


def differences(
    wants: Mapping[str, str | None], packages: PackagesState, *, hold: bool
) -> dict[str, str]:
    """Packages that are not as wanted, and what they are instead."""
    found: dict[str, str] = {}
    for name, want in wants.items():
        package = packages.packages.get(name)
        if package is None:
            found[name] = "not installed"
        elif not package.whole:
            found[name] = f"{package.version} {package.status}"
        elif not matches(package.version, want):
            found[name] = package.version
        elif hold and not package.held:
            found[name] = "not held"
    return found


def installed(
    title: str,
    wants: Mapping[str, str | None],
    have: Have,
    *,
    hold: bool,
    disrupts: bool = False,
    before: str = "",
    explain: str = "",
    replaces: str = "",
) -> Step | None:
    """
    The step that installs packages, all in one call of apt; ``None`` if they are as wanted.

    Indexes are fetched only if they are older than the sources, or do not know a version.

    + wants: version by name, in the forms of ``matches``
    + hold: whether to keep the packages from every upgrade but ours
    + before: shell, run under apt's lock time and log before anything is installed
    + explain: shell that prints to standard output why an installation may have failed
    + replaces: regular expression of the names of packages that may have to go for these
    """
    packages = have[Packages]
    wrong = differences(wants, packages, hold=hold)
    if not wrong:
        return None
    only_holds = set(wrong.values()) == {"not held"}

    def apply() -> Commands:
        if only_holds:
            yield command(f"apt-mark hold {words(wants)}")
            return
        yield from repositories.renewals(have)
        arguments = words(argument(name, want) for name, want in wants.items())
        half = {name for name in wants if name in packages.broken}
        yield command(
            *([before] if before else []),
            # A package that stopped half-way, of these or of others, stands in apt's way.
            *(["dpkg --configure -a || true"] if packages.broken or packages.interrupted else []),
            install(f"{'--reinstall ' if half else ''}install {arguments}", replaces),
            *([f"apt-mark hold {words(wants)}"] if hold else []),
            explain=explain,
        )

    return Step(
        title=title,
        want=", ".join(f"{name} {wants[name] or 'installed'}" for name in wrong),
        have=", ".join(wrong.values() if len(set(wrong.values())) > 1 else [*wrong.values()][:1]),
        apply=apply,
        disrupts=disrupts and not only_holds,
        remedy=f"read {LOG} on the host",
    )  # fmt: skip


def repaired(
    title: str, have: Have, *, leaving: Callable[[str], bool] = lambda name: False
) -> Step | None:
    """
    The step that ends what an interrupted dpkg began; ``None`` if nothing was.

    + leaving: names of packages that another step mends, because they need something first
    """
    packages = have[Packages]
    broken = {
        name: package.status for name, package in packages.broken.items() if not leaving(name)
    }
    if not broken and not packages.interrupted:
        return None

    def apply() -> Commands:
        # `apt-get -f install` alone refuses a package that dpkg wants to have again.
        half = (
            "dpkg-query -W -f '${db:Status-Status} ${db:Status-Eflag} ${Package}\\n' | "
            'awk \'$1 == "half-installed" || $2 == "reinstreq" { print $3 }\''
        )
        yield command(
            "dpkg --configure -a --force-confold || true",
            f'half=$({half}); [ -z "$half" ] || {{ {install("--reinstall install $half")}; }}',
            # What cannot be mended by it is told by the next reading; what was not to be, by apt.
            f"{apt('--fix-broken install')} || ! tail -n +$begun {LOG} | "
            "grep -q 'remove is disabled'",
        )

    return Step(
        title=title,
        want="all packages whole",
        have=", ".join(f"{name} {status}" for name, status in broken.items())
        or "changes in dpkg's journal",
        apply=apply,
        disrupts=any(DAEMONS.fullmatch(name) for name in broken),
        remedy=f"run `dpkg --configure -a` on the host, and read {LOG}",
    )


def argument(name: str, want: str | None) -> str:
    """What apt-get takes for a package in one version."""
    if want is None:
        return name
    return f"{name}={want}" if "-" in want else f"{name}={want}-*"


def words(names: Iterable[str]) -> str:
    return " ".join(shlex.quote(name) for name in names)


def apt(arguments: str) -> str:
    """Shell that runs apt-get and lets it remove nothing, unless *arguments* say what."""
    keeping = "" if arguments.startswith("purge ") else f"{KEEPING} "
    return f"apt-get {OPTIONS} {keeping}{arguments}"


def replacing(arguments: str, names: str) -> str:
    """As ``apt``, which may remove packages of the names that the regular expression matches."""
    return (
        f"others=$(apt-get -s {OPTIONS} {arguments} | "
        f"awk -v may={shlex.quote(names)} '$1 == \"Remv\" && $2 !~ may {{ print $2 }}'); "
        'if [ -n "$others" ]; then echo "packages: want no package of others removed, have apt '
        'remove" $others "for it; remove them yourself if nobody needs them"; (exit 100); else '
        f"apt-get {OPTIONS} {arguments}; fi"
    )


UPDATE = f"apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 update && touch {STAMP}"


def install(arguments: str, replaces: str = "") -> str:
    """
    Shell that runs apt with *arguments*, with indexes that are new enough.

    + replaces: as for ``installed``
    """
    go = f"{{ {replacing(arguments, replaces)}; }}" if replaces else apt(arguments)
    stale = (
        f'[ ! -e {STAMP} ] || [ -n "$(find /etc/apt/sources.list /etc/apt/sources.list.d '
        f'/etc/apt/keyrings /etc/apt/apt.conf.d -newer {STAMP} 2>/dev/null | head -n 1)" ]'
    )
    return (
        f"fresh=; if {stale}; then {UPDATE} && fresh=1 || echo 'apt-get update failed'; fi; "
        f'tried=$(wc -l <{LOG}); {go} || {{ failed=$?; if [ -z "$fresh" ] && '
        f'tail -n +"$tried" {LOG} | grep -qE {shlex.quote(OUTDATED)}; then '
        # A mirror in the middle of being synchronised comes right by itself.
        f"{{ {UPDATE} || {{ sleep 20; {UPDATE}; }} }} && {go}; else (exit $failed); fi; }}"
    )


def turn(component: str) -> str:
    """
    Shell that waits for its turn, and ends with a message of *component*'s if none comes.

    It then holds ours, as file descriptor 8. apt's own locks are only seen to be free. What it
    writes while it waits ends it if its run has died: the node may be another run's by then.
    """
    # One awk over /proc/locks: the locks are fcntl(2)'s, so flock(1) cannot wait for them.
    busy = (
        f"stat -c %i {' '.join(LOCKS)} 2>/dev/null | "
        'awk \'NR == FNR { lock[$1]; next } { split($6, file, ":") } '
        '$2 == "POSIX" && file[3] in lock { found = $5 } '
        "END { if (found) print found; exit !found }' - /proc/locks"
    )
    return (
        f"{lock.packages_free(component)}; told=$waited; waited=0; while pid=$({busy}); do "
        f"[ $waited -lt {lock.PACKAGES_WAIT_S} ] || {{ "
        f"echo \"{component}: want apt's locks free, have pid $pid "
        f'hold one for $waited s; wait for it, or look at it on the host" >&2; exit 75; }}; '
        f"echo {lock.WAITING}; sleep 3; waited=$((waited + 3)); done; "
        f"[ $((told + waited)) = 0 ] || echo {lock.WAITING}"
    )


def command(*script: str, explain: str = "") -> StringCommand:
    """
    One remote command that changes packages: waits for its turn, logs, shows the end on failure.

    + script: pieces of shell, run until one fails
    + explain: shell that prints why, where the end of the log does not
    """
    return StringCommand(
        "export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C "
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; umask 022; "
        f"mkdir -p {STAMP.rpartition('/')[0]}; {turn('packages')}; "
        f'echo "== rackwright $(date -u +%FT%TZ)" >>{LOG}; begun=$(wc -l <{LOG}); '
        f"{{ {' && '.join(f'{{ {piece}; }}' for piece in script)}; }} "
        f">>{LOG} 2>&1 </dev/null 8>&- || "
        # Of this command alone: the words of an earlier one would be taken for the reason.
        f"{{ code=$?; tail -n +$begun {LOG} | tail -n 40 >&2; "
        f"{explain + ' >&2; ' if explain else ''}exit $code; }}"
    )
