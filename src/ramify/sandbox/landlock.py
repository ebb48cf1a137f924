"""Landlock rules: which files a process may still open. Standard library only."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from ramify.sandbox import kernel

_CREATE_RULESET, _ADD_RULE = 444, 445
_RULE_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEVICE, _REFER = 2, 4, 8, 1 << 14, 1 << 15, 1 << 13
_MAKE_AND_REMOVE = 16 | 32 | 128 | 256 | 4096
"""Remove folders and files; make folders, files and symbolic links."""
_ALL_OF_ABI_1 = (1 << 13) - 1


class Landlock:
    """Makes one ruleset for each folder that snippets run in, so that a child only has to apply it."""

    def __init__(self, readable: Sequence[str], hidden: Sequence[str]) -> None:
        """Open the paths that every snippet may read.

        Args:
            readable: Files, and folders with everything below them.
            hidden: Folders below those. They can be listed, but nothing in them can be read.

        Raises:
            kernel.JailError: The kernel has no Landlock.
        """
        try:
            self._abi = kernel.system_call("Landlock", _CREATE_RULESET, None, 0, 1)
        except kernel.JailError:
            raise kernel.JailError("Landlock is not available") from None
        self._rules: list[tuple[int, int]] = []
        for path in readable:
            self._add(path, hidden)

    def _add(self, path: str, hidden: Sequence[str]) -> None:
        """Grant one path. A grant covers everything below a folder, so beside a hidden folder each sibling is granted."""
        rights = _READ_FILE | (_READ_DIR if Path(path).is_dir() else 0)
        if path == "/dev/null":
            rights |= _WRITE_FILE
        if any(one.startswith(f"{path}/") for one in hidden):
            rights = _READ_DIR
            with os.scandir(path) as entries:
                # The target of a link is granted at its own path, or not at all.
                below = [
                    entry.path for entry in entries if not entry.is_symlink() and entry.path not in hidden
                ]
            for one in below:
                self._add(one, hidden)
        self._rules.append((os.open(path, os.O_PATH | os.O_CLOEXEC), rights))

    def rules_for(self, folder: str) -> int:
        """The descriptor of a ruleset: write `folder`, read the readable paths, nothing else.

        Raises:
            kernel.JailError: The kernel refused.
        """
        handled, writable = _ALL_OF_ABI_1, _READ_FILE | _WRITE_FILE | _READ_DIR | _MAKE_AND_REMOVE
        for abi, right in ((2, _REFER), (3, _TRUNCATE)):
            if self._abi >= abi:
                handled, writable = handled | right, writable | right
        if self._abi >= 5:
            handled |= _IOCTL_DEVICE
        network = 3 if self._abi >= 4 else 0
        scopes = 3 if self._abi >= 6 else 0
        attributes = struct.pack("=QQQ", handled, network, scopes)
        size = 24 if self._abi >= 6 else 16 if self._abi >= 4 else 8
        rules = kernel.system_call("Landlock", _CREATE_RULESET, attributes, size, 0)
        own = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        for descriptor, rights in (*self._rules, (own, writable)):
            rule = struct.pack("=Qi", rights, descriptor)
            kernel.system_call("Landlock", _ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
        os.close(own)
        return rules

    def close(self) -> None:
        """Close the readable paths; to be called once every folder has its ruleset."""
        for descriptor, _ in self._rules:
            os.close(descriptor)
        self._rules.clear()
