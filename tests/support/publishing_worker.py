"""Publishes a branch of several tables whenever it is told to, each time in a process that is killed.

Run as `python -m support.publishing_worker PLACE TABLES BRANCH`; each line of standard input starts a process, whose id
is printed when it begins to publish. When it has published, it waits to be killed; 'done' is printed when it was.
"""

import os
import pickle
import signal
import sys
from pathlib import Path

from support.place import Place


def main() -> None:
    place: Place = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - of the test
    tables, branch = sys.argv[2].split(","), sys.argv[3]
    for _ in sys.stdin:
        # Nothing is connected before this, so that the processes share no connection.
        if (process := os.fork()) == 0:
            manager = place.iceberg().table_manager
            manager.load_table(tables[0])
            sys.stdout.write(f"{os.getpid()}\n")
            sys.stdout.flush()
            manager.publish_branches(tables, branch)
            signal.pause()
        os.waitpid(process, 0)
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
