"""Becomes sandboxes of namespaces: a process that has loaded the warden and forks into the process 1 of each one.

Loading Python and the warden takes more processor time than everything else in a start. So bubblewrap starts one such
process for each root folder, in which nothing but this program ever runs. Its control socket carries messages:

- from the client: a number, with three descriptors: the sandbox's socket, its stderr, and a file with what it should be
  (`setup.py`), in JSON;
- to the client: ``started NUMBER`` with a descriptor of the new process, or ``failed NUMBER WHY``, and later
  ``ended NUMBER STATUS``, where the status is that of `os.waitpid`.

It ends when its control socket does. As process 1 of a PID namespace it then takes all of its sandboxes with it.
"""

from __future__ import annotations

import codecs
import gc
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any

from .frames import Watcher
from .processes import ChildWatch, fork_into
from .setup import CLONE_NEWNS, CLONE_NEWPID, enter_user_namespace, set_up

_NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | 0x4000000 | 0x8000000 | 0x40000000
"""The last three are CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET."""
_CLONE_NEWUSER = 0x10000000
_LONGEST_MESSAGE = 256


class Zygote:
    """The state of the loop.

    Args:
        single: Whether each sandbox gets a user namespace of its own, below this process's.
        filter_program: The filter of system calls of all sandboxes.
        run: What process 1 of a sandbox does, with the warden's arguments and the filter. Never returns.
    """

    def __init__(self, single: bool, filter_program: bytes, run: Callable[[dict[str, str], bytes], None]) -> None:
        self.single, self.filter_program, self.run = single, filter_program, run
        self.control = socket.socket(fileno=0)
        self.ids = os.getuid(), os.getgid()
        self.sandboxes: dict[int, int] = {}
        """The clients' numbers by process id."""

    def serve(self) -> None:
        """Serve until the client is gone."""
        watcher = Watcher()
        watcher.watch(0, self.on_request)
        ChildWatch(watcher, self.on_end)
        codecs.lookup("ascii")  # what each sandbox needs is loaded once
        gc.collect()
        gc.freeze()  # a collection would write to memory that is shared with the sandboxes
        while True:
            watcher.turn(None)

    def on_request(self) -> None:
        """Start a sandbox."""
        message, descriptors, _, _ = socket.recv_fds(self.control, _LONGEST_MESSAGE, 3)
        if not message:
            os._exit(0)
        number = int(message)
        try:
            pid = fork_into(_NAMESPACES | (_CLONE_NEWUSER if self.single else 0))
            if not pid:
                self.become(*descriptors)
            self.sandboxes[pid] = number
            process = os.pidfd_open(pid)
            socket.send_fds(self.control, [b"started %d" % number], [process])
            os.close(process)
        except BrokenPipeError:
            os._exit(0)
        except OSError as error:
            self.control.send(b"failed %d %s" % (number, str(error).encode()[: _LONGEST_MESSAGE // 2]))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def on_end(self, pid: int, status: int) -> None:
        """Report a sandbox that has ended."""
        if (number := self.sandboxes.pop(pid, None)) is not None:
            self.control.send(b"ended %d %d" % (number, status))

    def become(self, line: int, errors: int, request: int) -> None:
        """Be process 1 of a new sandbox. Never returns."""
        try:
            os.dup2(errors, 2)
            wanted: dict[str, Any] = json.loads(os.pread(request, os.fstat(request).st_size, 0))
            os.dup2(line, 0)
            os.dup2(line, 1)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            signal.set_wakeup_fd(-1)
            os.setsid()
            if self.single:
                enter_user_namespace(wanted["uid"], *self.ids)
            set_up(wanted)
            os.environ.clear()
            os.environ.update(wanted["environment"])
            self.run(wanted["words"], self.filter_program)
        except BaseException:  # the child must never return into its parent's loop
            traceback.print_exc()
        finally:
            os._exit(1)
