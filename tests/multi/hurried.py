"""ramify with less patience."""

import sys

from ramify.cli import main
from ramify.learner import signs_of_life
from ramify.runs import checkpoint

if __name__ == "__main__":
    signs_of_life.SILENCE_SECONDS, signs_of_life._PATIENCE_SECONDS, signs_of_life._BEAT_SECONDS = (
        5.0,
        1.0,
        0.5,
    )
    checkpoint._SHOWN_SECONDS = 2.0
    sys.exit(main(sys.argv[1:]))
