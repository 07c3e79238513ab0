"""Sandboxes below Apptainer: on clusters that have it, and no bubblewrap.

Apptainer starts the same process as bubblewrap does for `NamespaceSandboxes` (`zygote.py`), below the same root folder,
or below a SIF file beside it. That process forks into the namespaces of each sandbox, a user namespace among them, and
finishes each one (`warden/zygote.py`): so the limits, the filter of system calls and the read-only root are the same as
those of a sandbox of namespaces with one user.

What Apptainer cannot hold is refused. Its containers have a single user, so each sandbox has one, as a user without a
range of ids has with namespaces. Root gets none, since the kernel does not limit its processes. Apptainer's own limits
need control groups that root has delegated, so none of them is used. Harnesses' own images are built by bubblewrap, and
are refused without it.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

from ..errors import SandboxError
from .namespaces import NamespaceHost, NamespaceSandboxes, raise_limits
from .root_folder import Root, find_root
from .root_run import apptainer, apptainer_exec
from .zygote import Launch


def image_file(root: Root) -> Path:
    """What Apptainer runs: the SIF file ``root.sif`` beside a root folder, if there is one, else the folder."""
    file = root.folder.with_name("root.sif")
    return file if file.is_file() else root.folder


class ApptainerHost(NamespaceHost):
    """What the sandboxes of one provider share."""

    locks = True
    grouped = False

    def prepare(self) -> None:
        with self._lock:
            if self._root is None:
                apptainer()
                raise_limits()
                self._root = find_root()

    @property
    def ranged(self) -> bool:
        return False

    @contextlib.contextmanager
    def launch(self, root: Root, missing: Collection[str], *, groups: bool, programs: Path | None) -> Iterator[Launch]:
        if programs is not None:
            raise SandboxError("below Apptainer, agents have no programs in their sandboxes; use namespaces or Docker")
        scratch = [word for path in missing for word in ("--scratch", path)]
        command, environment = apptainer_exec(image_file(root), *scratch)
        yield Launch(command, single=True, environment=environment)


class ApptainerSandboxes(NamespaceSandboxes):
    """Makes sandboxes below Apptainer on this machine.

    Example:
        async with ApptainerSandboxes() as provider:
            sandbox = await provider.create()
            print((await sandbox.run("iverilog -V | head -1")).output)
    """

    def __init__(self) -> None:
        super().__init__(ApptainerHost())


def check_apptainer() -> str:
    """Whether Apptainer and the image are here; describes them in a sentence. Starts nothing.

    Raises:
        SandboxError: Apptainer is missing.
        ImageError: The image has not been unpacked.
    """
    version = subprocess.run([apptainer(), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return f"{version}; {image_file(find_root())}; one user per sandbox"
