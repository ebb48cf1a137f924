"""Runs on disks that are too small, and on from there when there is room. To be run in a mount namespace:

unshare --user --map-root-user --mount python small_disk.py FOLDER KILOBYTES,... COMMAND RECIPE ...

For each size: mounts a file system in memory, runs `ramify COMMAND RECIPE ...` in it, makes it larger, runs the same again
(with --resume if it asks for that), and copies the run to FOLDER/KILOBYTES. Prints what the first and the last run said, as JSON.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from forked_runs import ForkedRuns


def main(folder: Path, sizes: str, *arguments: str) -> None:
    forked, disk, outputs = ForkedRuns(folder), folder / "disk", []
    disk.mkdir()
    for size in sizes.split(","):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", disk], check=True)
        words = (*arguments, "-s", f"run.dir={disk / 'run'}")
        full = forked(*words)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        again = forked(*words)
        if "go on with --resume" in again[2]:
            again = forked(*words, "--resume")
        outputs.append([int(size), full, again])
        shutil.copytree(disk, folder / size)
        subprocess.run(["umount", disk], check=True)
    forked.close()
    sys.stdout.write(json.dumps(outputs))


main(Path(sys.argv[1]), *sys.argv[2:])
