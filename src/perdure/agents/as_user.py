"""Execute a command as another user: `as_user.py UID GID DIRECTORY PROGRAM [ARGUMENT ...]`, started as root.

This is a program of its own, because a server process cannot switch the user of one child. It imports only
the standard library.
"""

import ctypes
import os
import sys

PR_SET_NO_NEW_PRIVS = 38
CANNOT_EXECUTE = 126


def main() -> None:
    """Drop all rights of root permanently, and execute the command."""
    user, group, directory, *command = sys.argv[1:]
    os.setgroups([])
    os.setresgid(int(group), int(group), int(group))
    os.setresuid(int(user), int(user), int(user))
    # Setuid programs, such as sudo, cannot restore the rights.
    if ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        sys.exit("perdure: this system cannot forbid new rights to a command")
    try:
        os.chdir(directory)
        os.execvp(command[0], command)  # noqa: S606 - the command of an agent or a phase
    except OSError as error:
        what = f"user {user} cannot execute {command[0]} in {directory}: {error.strerror}"
        sys.stderr.write(f"perdure: {what}\n")
        sys.exit(CANNOT_EXECUTE)


if __name__ == "__main__":
    main()
