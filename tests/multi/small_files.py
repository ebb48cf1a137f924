"""ramify, on rank 0 with a limit on the size of files, as on a disk that is full there alone."""

import os
import resource
import sys

from ramify.cli import main

BYTES = 300_000

if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))
    sys.exit(main(sys.argv[1:]))
