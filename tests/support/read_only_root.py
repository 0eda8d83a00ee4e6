"""A pod's file system on this machine: everything is read-only but one folder, and the user has no privileges.

Devices stay as they are, the shared memory of /dev/shm among them: pods have it, too.

A mount namespace of its own does it, with the kernel's word: neither root nor a forgotten `chmod` gets around.
Where we are root, the command runs as user 1000 with no right left but to read.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

USER = 1000
# The user has a name, as in our image, and a home that is not there.
PASSWD = f"floe:x:{USER}:{USER}::/nonexistent:/bin/sh\n"

_SCRIPT = """
set -e
writable=$1 passwd=$2
shift 2
mount --make-rprivate /
mount --bind "$writable" "$writable"
mount --bind "$passwd" /etc/passwd
awk '{ print $5 }' /proc/self/mountinfo | sort -u | while read -r place; do
  case $place in
    "$writable" | /proc | /proc/* | /sys | /sys/* | /dev | /dev/*) ;;
    *) mount -o remount,ro,bind "$place" ;;
  esac
done
for place in . / /tmp /var/tmp; do
  if touch "$place/not-read-only" 2>/dev/null; then echo "$place can be written to" >&2; exit 97; fi
done
exec "$@"
"""


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """A folder that another user may enter; pytest's are for the user that runs it."""
    with tempfile.TemporaryDirectory(prefix="floe-pod-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def in_read_only_root(command: Sequence[str | Path], *, writable: Path, environment: Mapping[str, str]) -> list[str]:
    """The command, for `subprocess.run`, where it can write below one folder and nowhere else.

    Args:
        command: What to run.
        writable: The one folder, of a `folder_for_all`; it becomes the user's.
        environment: All that the command knows of its surroundings, besides the PATH.
    """
    passwd = writable.with_name(f"{writable.name}-passwd")
    passwd.write_text(PASSWD)
    variables = {"PATH": os.environ["PATH"], **environment}
    inner = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *map(str, command)]
    namespace = ["unshare", "--mount"]
    if os.geteuid() == 0:
        os.chown(writable, USER, USER)
        # Interpreters below root's home are fine to read; nothing else is left of root's rights.
        rights = ["--inh-caps", "-all,+dac_read_search", "--ambient-caps", "+dac_read_search"]
        inner = [
            "setpriv",
            "--reuid",
            str(USER),
            "--regid",
            str(USER),
            "--clear-groups",
            "--no-new-privs",
            *rights,
            *inner,
        ]
    else:
        namespace.append("--map-root-user")
    return [*namespace, "sh", "-c", _SCRIPT, "sh", str(writable), str(passwd), *inner]
