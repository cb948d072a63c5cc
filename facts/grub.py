"""Which kernel GRUB would start: a reader of the menu that grub-mkconfig writes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# menuentry Debian {
# menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-2f6c' {
# submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-2f6c' {
ENTRY = re.compile(
    r"""^(menuentry|submenu)\s+(?:(['"])(?P<title>.*?)\2|(?P<word>[^\s{]+))"""
    r"""(?:.*?(?:\$menuentry_id_option|--id)\s+(['"])(?P<id>.*?)\5)?"""
)
# linux /boot/vmlinuz-6.12.57+deb13-amd64 root=UUID=2f6c ro  |  linux /vmlinuz root=LABEL=root ro
KERNEL = re.compile(r"^linux(?:16|efi)?\s+\S*/vmlinuz(?:-(\S+)|\s)")
# set default="0"  |  set default="${saved_entry}"  |  set default="${next_entry}"
DEFAULT = re.compile(r"""^set default=["']?([^"']*)["']?""")

LINK = "vmlinuz"


@dataclass(slots=True)
class Entry:
    title: str
    id: str | None
    kernel: str | None = None
    entries: list[Entry] = field(default_factory=list)


def default_kernel(lines: list[str], environment: list[str]) -> str | None:
    """
    Return the version of the kernel that would be started next, ``None`` if that cannot be told.

    It is ``LINK`` where the menu starts whatever Debian's link ``/vmlinuz`` points to.

    Source: GNU GRUB manual 2.12, "default" and "Environment block".

    + lines: of grub.cfg, those that begin with ``set default=``, ``menuentry``, ``submenu``,
      ``linux``, ``function`` or ``}``
    + environment: ``name=value`` lines of grubenv
    """
    values = dict(line.split("=", 1) for line in environment if "=" in line)
    top = Entry("", None)
    stack = [top]
    defaults = list[str]()
    for line in (line.strip() for line in lines):
        if match := ENTRY.match(line):
            entry = Entry(match["title"] or match["word"] or "", match["id"])
            stack[-1].entries.append(entry)
            stack.append(entry)
        elif line.startswith("function "):
            stack.append(Entry("", None))
        elif line == "}":
            if len(stack) > 1:
                stack.pop()
        elif match := DEFAULT.match(line):
            defaults.append(match[1])
        elif (match := KERNEL.match(line)) and stack[-1].kernel is None:
            stack[-1].kernel = match[1] or LINK
    chosen = values.get("next_entry") or _resolved(defaults, values)
    found = _entry(top, chosen)
    return found.kernel if found else None


def _resolved(defaults: list[str], values: dict[str, str]) -> str:
    """The default entry. grub-mkconfig writes two: one for ``next_entry``, one without it."""
    for default in defaults:
        if default == "${next_entry}":
            continue
        if default == "${saved_entry}":
            return values.get("saved_entry") or "0"
        return default or "0"
    return "0"


def _entry(top: Entry, path: str) -> Entry | None:
    """The entry at *path*: numbers, titles or ids, with ``>`` between submenu and entry."""
    at = top
    for name in path.split(">"):
        found = next((entry for entry in at.entries if name in (entry.id, entry.title)), None)
        if found is None and name.isdecimal() and int(name) < len(at.entries):
            found = at.entries[int(name)]
        if found is None:
            return None
        at = found
    # A submenu that is chosen as a whole starts its first entry.
    while at.entries:
        at = at.entries[0]
    return at
