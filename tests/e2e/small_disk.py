"""A run on a disk of its own that is too small, and on from there when there is room. Run in a mount namespace:

unshare --user --map-root-user --mount python small_disk.py KILOBYTES FOLDER COMMAND RECIPE ...

mounts a file system in memory at FOLDER, runs `ramify COMMAND RECIPE ...`, makes the disk larger, runs it with --resume,
copies what it wrote to FOLDER-copy, and prints what both runs said as JSON.
"""

import json
import shutil
import subprocess
import sys


def main(kilobytes: str, folder: str, *arguments: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", folder], check=True)
    said = []
    for more in ([], ["--resume"]):
        command = [sys.executable, "-m", "ramify", *arguments, *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said.append([done.returncode, done.stderr])
        subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
    shutil.copytree(folder, f"{folder}-copy")
    sys.stdout.write(json.dumps(said))


main(*sys.argv[1:])
