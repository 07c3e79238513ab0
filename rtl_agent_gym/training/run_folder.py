"""A run's folder, and the order in which its files are written.

::

    config.json          the options
    metrics.jsonl        one line per step; a metric that is NaN or infinite is left out
    checkpoints.jsonl    one line per checkpoint, written after its weights are saved
    logs.log             the log
    code.diff            the code's commit, and the package's uncommitted changes
    transcripts/         one file per episode
    episodes/            graded episodes of steps that are not yet in a checkpoint
    report.html          the curves

A step counts once the line of its checkpoint is complete. That line also contains the step's metrics, so a run that is
killed before it writes them to metrics.jsonl loses nothing and counts nothing twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UsageError, cannot_write
from ..files import naming, replace_file
from ..logs import LOGS, logging_to
from ..policies.judge import judge_name
from ..problems.paths import expand_home
from .options import LogDirBehavior, TrainOptions

CONFIG, METRICS, CHECKPOINTS, DIFF = "config.json", "metrics.jsonl", "checkpoints.jsonl", "code.diff"

CHANGEABLE = {
    "behavior_if_log_dir_exists", "log_path", "save_every", "resume_every", "eval_every", "eval_episodes",
    "eval_temperature", "wandb_project", "wandb_name", "max_concurrent", "sandbox", "sandbox_limits", "ray_address",
    "metrics_port", "rollout_retries", "base_url", "service_wait_seconds", "ray_slots", "canary_seconds",
    "local_device", "local_batch", "local_batch_tokens", "local_gradient_checkpointing", "annotate_transcripts",
    "prices",
}  # fmt: skip
"""Options that may differ when a run is resumed, because they do not affect its steps, or only by rounding."""

ENGINE = "resolved_engine"
"""Key of the engine that ``engine=auto`` stands for, in a run's configuration."""

DISK_FAULTS = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO
"""Disk errors that are not caused by wrong options."""

COMPACT_EVERY = 100
"""After this many checkpoints, data that only the last one needs is removed from older ones: it may be large."""

LOCK, WANDB, WEIGHTS = ".lock", "wandb", "checkpoints"
_NO_RESULTS = {CONFIG, DIFF, LOGS, LOCK, WANDB, "report.html", "report.md", "report_curves.svg"}
"""The files of a run that failed before its first episode."""


class RunFolder:
    """The files of one run. One process at a time holds the folder's lock, which ends with the process."""

    def __init__(self, path: Path | str) -> None:
        self.path = expand_home(path)
        self.transcripts, self.episodes = self.path / "transcripts", self.path / "episodes"
        self._owned = contextlib.ExitStack()
        self._config: Mapping[str, Any] = {}
        self._added = 0
        self._old_log: int | None = None
        """Size in bytes of the log of the run that `begin` will delete; None if there is no such run."""

    def open(self, config: Mapping[str, Any], behavior: LogDirBehavior) -> None:
        """Create the folder, or open it if it exists. A run that is to be deleted stays until `begin`.

        Raises `UsageError` if the folder exists but must not, contains a run with other options, cannot be written, or
        is used by another process.
        """
        try:
            exists = self.path.exists() and not all(map(_is_of_a_start, self.path.iterdir()))
            self.path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise self._unusable("used as a folder", error) from error
        deleting = exists and self._check_existing(behavior) == "delete"
        if deleting:
            self._check_inputs(config)
        try:
            self._lock()
            self._config, self._old_log = config, None
            if deleting:
                log = self.path / LOGS
                self._old_log = log.stat().st_size if log.exists() else 0
            else:
                self._write_config()
            self._owned.enter_context(logging_to(self.path / LOGS, "tinker", quiet=True))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.errno not in DISK_FAULTS:
                raise self._unusable("written", error) from error
            raise

    def _unusable(self, use: str, error: OSError | ValueError) -> UsageError:
        return UsageError(f"log_path: {self.path} cannot be {use}: {getattr(error, 'strerror', None) or error}")

    @property
    def replaces(self) -> bool:
        """Whether there is a run that `begin` deletes."""
        return self._old_log is not None

    def begin(self) -> None:
        """Delete the previous run, if `open` found that it must. Call this once nothing else can refuse the new run.

        Until then `checkpoints` and `repair` find nothing.
        """
        if not self.replaces:
            return
        for path in self.path.iterdir():
            if path.name in (CONFIG, LOGS, LOCK, WANDB):  # the configuration is replaced, the others are in use
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        log = self.path / LOGS
        log.write_bytes(log.read_bytes()[self._old_log :])
        self._old_log = None
        self._write_config()

    def _write_config(self) -> None:
        if begun := self._has_begun():
            self._check_same_run()
        text = json.dumps(self._config, indent=2, sort_keys=True, default=str) + "\n"
        replace_file(self.path / CONFIG, text, durable=True)
        if not begun or not (self.path / DIFF).exists():
            replace_file(self.path / DIFF, code_state(), durable=True)

    def _has_begun(self) -> bool:
        """Whether there is any result. If not, the configuration is only that of a failed start."""
        found = (path for path in self.path.iterdir() if path.name not in _NO_RESULTS and not _is_of_a_start(path))
        return any(not path.is_dir() or any(not below.is_dir() for below in path.rglob("*")) for path in found)

    def close(self) -> None:
        """Release the folder. Idempotent."""
        self._owned.close()

    def add_checkpoint(self, record: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> None:
        """Add a checkpoint whose weights are saved, with the metrics of the steps since the last checkpoint.

        The steps count once the checkpoint's line is on disk. Raises like `check_present`.
        """
        self.check_present()
        rows = [_known(row) for row in metrics]
        _append(self.path / CHECKPOINTS, json.dumps({**record, "metrics": rows}) + "\n")
        _append(self.path / METRICS, _lines(rows))
        self._added += 1
        if self._added % COMPACT_EVERY == 0:
            replace_file(self.path / CHECKPOINTS, _lines(self.checkpoints()), durable=True)

    def check_present(self) -> None:
        """Raise `UsageError` if the folder was removed or moved since `open`, which saved weights would hide."""
        if self._config and not (self.path / CONFIG).exists():
            raise UsageError(
                f"log_path: {self.path} was removed or moved during the run; if it was moved, resume the run with its "
                "new log_path"
            )

    def explain(self, error: OSError) -> None:
        """Raise the error of this package for a file of this folder that cannot be used; return for other files.

        Errors of `DISK_FAULTS` are left to the caller. Raises like `check_present` and `cannot_write`.
        """
        if isinstance(error, FileNotFoundError):
            self.check_present()
        if error.errno not in DISK_FAULTS and _is_below(error.filename, self.path):
            raise cannot_write("log_path", os.fsdecode(error.filename), error) from error

    def checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoints, oldest first, without a line that a crash cut off. Raises `UsageError` for other damage.

        Only the last one, from which a run resumes, has the loop's state and the metrics, which may be large.
        """
        found: list[dict[str, Any]] = []
        for record in _read(self.path / CHECKPOINTS, "batch") if not self.replaces else ():
            for name in ("loop", "metrics") if found else ():
                found[-1].pop(name, None)
            found.append(record)
        return [self._here(record) for record in found]

    def _here(self, record: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint with paths in this folder, which may have been moved or copied from another run."""
        weights, here = f"/{WEIGHTS}/local-", str(self.path.absolute())
        before, found, inside = str(record.get("state_path")).rpartition(weights)
        if not found or before == here or not Path(f"{here}{weights}{inside}").exists():
            return record
        old, new = (json.dumps(f"{folder}{weights}")[1:-1] for folder in (before, here))
        moved: dict[str, Any] = json.loads(json.dumps(record).replace(old, new))
        return moved

    def best_checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint with the highest ``test/pass_rate`` so far; None without held-out problems.

        Of equal checkpoints, it is the last, which has learned from more episodes.
        """
        return next((record for record in reversed(self.checkpoints()) if record.get("best")), None)

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics, one row per step. Raises `UsageError` for a damaged file."""
        return list(_read(self.path / METRICS, "step"))

    def repair(self) -> dict[str, Any] | None:
        """Restore the files to the last checkpoint's state, and return that checkpoint; None if there is none.

        Removes the metrics of later steps, which will be repeated, the local engine's weights that are neither kept nor
        needed to resume, and temporary files of a killed run. Adds metrics from the checkpoint that were not written
        before a crash. Call it while the folder is open.

        Raises `UsageError` for a damaged file, or if there are metrics, but no checkpoint: the list was lost.
        """
        if self.replaces:
            return None
        own = (self.path.glob(f".{name}.*.new") for name in (CONFIG, METRICS, CHECKPOINTS, DIFF))  # not of a report
        for scratch in chain(*own, self.episodes.glob(".*.new"), self.transcripts.glob(".*.new")):
            scratch.unlink(missing_ok=True)
        records, written = self.checkpoints(), self.metrics()
        if written and not records:
            raise UsageError(
                f"log_path: {self.path} has metrics of {len(written)} step(s), but {CHECKPOINTS} is missing or empty, "
                "so the run cannot be resumed; restore the file, choose another log_path, or set "
                "behavior_if_log_dir_exists=delete"
            )
        done = int(records[-1]["batch"]) if records else 0
        saved = (row for record in _read(self.path / CHECKPOINTS, "batch") for row in record.get("metrics", []))
        kept = {int(row["step"]): _known(row) for row in chain(saved, written) if int(row["step"]) < done}
        for path, rows in ((METRICS, [kept[step] for step in sorted(kept)]), (CHECKPOINTS, records)):
            if (self.path / path).exists() or rows:
                replace_file(self.path / path, _lines(rows), durable=True)
        needed = records[-1:]
        best = self.best_checkpoint()  # earlier ones are not needed, unless `save_every` keeps them
        for record in records[:-1]:
            if not record.get("rolling") and (record.get("permanent", True) or record == best):
                needed.append(record)
        self._delete_weights_except({Path(text).parts[-3:] for text in _texts(needed)})
        return records[-1] if records else None

    def _delete_weights_except(self, kept: Set[tuple[str, ...]]) -> None:
        """Delete the local engine's weights, except those whose last three path components are in `kept`.

        Weights that are only linked from here stay: another run may use them.
        """
        here = self.path.resolve() / WEIGHTS
        for path in here.glob("local-*/*weights/*"):
            if path.parts[-3:] not in kept and path.is_dir() and path.resolve() == path:
                shutil.rmtree(path, ignore_errors=True)

    def _check_existing(self, behavior: LogDirBehavior) -> LogDirBehavior:
        """What to do with the run in the folder. Raises `UsageError` if the folder has no run, or must not exist."""
        if behavior == "ask":
            if not sys.stdin.isatty():
                raise UsageError(
                    f"log_path: {self.path} exists, and there is no terminal to ask what to do; "
                    "set behavior_if_log_dir_exists=resume, delete or raise"
                )
            answer = ""
            with contextlib.suppress(EOFError):  # Ctrl-D
                answer = input(f"{self.path} exists. What do you want to do? [resume, delete, exit]: ").strip()
            if answer not in ("resume", "delete"):
                raise UsageError(f"log_path: {self.path} exists")
            behavior = "delete" if answer == "delete" else "resume"
        if behavior == "raise":
            raise UsageError(f"log_path: {self.path} exists; choose another, or behavior_if_log_dir_exists=resume")
        if not self._has_run():
            raise UsageError(
                f"log_path: {self.path} is not empty and has no run: its {CONFIG} is missing or not of a training run; "
                "choose another folder"
            )
        return behavior

    def _check_inputs(self, config: Mapping[str, Any]) -> None:
        """Raise `UsageError` if an option of the new run names a path in the folder, which is to be deleted."""
        folder = self.path.resolve()
        for name, value in config.items():
            for text in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
                if name != "log_path" and _is_inside(text, folder):
                    raise UsageError(
                        f"{name}: {text} is in {self.path}, which behavior_if_log_dir_exists=delete deletes; "
                        "choose another log_path, or move it"
                    )

    def _has_run(self) -> bool:
        """Whether the folder's configuration is a training run's; other folders may have a file with this name, too."""
        try:
            config = json.loads((self.path / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(config, dict) and config.keys() >= {"log_path", "num_steps"}

    def _lock(self) -> None:
        handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._owned.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"log_path: another run is using {self.path}; wait for it or choose another") from error
        except OSError as error:  # for example, Lustre mounted without the option flock
            raise self._unusable("locked", error) from error

    def _check_same_run(self) -> None:
        """Raise `UsageError` if options other than `CHANGEABLE` differ from those of the run to resume."""
        try:
            before = json.loads((self.path / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        now = json.loads(json.dumps(self._config, default=str))
        # A run that began before an option was added had that option's default.
        defaults = TrainOptions.model_validate({}).model_dump(mode="json")
        before = {name: value for name, value in defaults.items() if name in now} | before
        if "://" in (before.get("judge") or ""):  # the run began when the complete address was recorded
            before["judge"] = judge_name(before["judge"])
        digest = before.get("problems_digest")
        if digest is not None and digest == now.get("problems_digest"):  # wherever these problems come from
            digested = {"held_out", "extra_held_out"}
            if "episodes_digest" not in now:  # the training problems of a supervised run have no digest
                digested.add("cvdp_jsonl_path")
            before |= {name: now.get(name) for name in digested}
        if ENGINE in before:  # it is more specific than the option
            before["engine"] = now.get("engine")
        # If a run began before digests of files and the engine were recorded, they are not compared.
        before = {name: value for name, value in now.items() if name == ENGINE or name.endswith("_digest")} | before
        # Compare the engine first: defaults depend on it, so it may be the reason for other differences.
        for name in sorted(set(before) | set(now), key=lambda name: (name not in ("engine", ENGINE), name)):
            if name not in CHANGEABLE and before.get(name) != now.get(name):
                if name == ENGINE:
                    needed = " and its TINKER_API_KEY" if before[name] == "tinker" else ""
                    raise UsageError(
                        f"engine: the run in {self.path} uses the engine {before[name]}, not {now.get(name)}; "
                        f"resume it with engine={before[name]}{needed}, or choose another log_path"
                    )
                was = f"has {before.get(name)!r}, not {now.get(name)!r}; resume it with the run's value,"
                if name.endswith("_digest"):
                    was = "began with other contents than the present ones;"
                raise UsageError(
                    f"{name}: the run in {self.path} {was} choose another log_path, or "
                    "behavior_if_log_dir_exists=delete"
                )


def code_state() -> str:
    """The commit of this package's checkout and the package's uncommitted changes; a note if it is not a checkout."""
    here, found = Path(__file__).resolve(), list[str]()
    # An installed package may be inside a repository of the user, which does not track it.
    tracked, commit = ["ls-files", "--error-unmatch", "--", str(here)], ["rev-parse", "HEAD"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for words in (tracked, commit, ["diff", "--no-color", "HEAD", "--", "."]):
            done = subprocess.run(
                ["git", *words],
                cwd=here.parents[1],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=20,
                check=True,
            )
            found.append(done.stdout)
    return "".join(found[1:]) or "installed from a package, so there is no commit\n"


def _is_inside(value: object, folder: Path) -> bool:
    """Whether an option's value is an existing path in the folder, or the folder itself."""
    text = str(value or "").removeprefix("@").removeprefix("hints:")
    try:
        return bool(text) and expand_home(text).resolve(strict=True).is_relative_to(folder)
    except (OSError, ValueError):  # not a path, or it does not exist
        return False


def _is_below(name: object, folder: Path) -> bool:
    """Whether the file name of an `OSError` is a path in the folder."""
    return isinstance(name, (str, bytes)) and Path(os.fsdecode(name)).absolute().is_relative_to(folder.absolute())


def _is_of_a_start(path: Path) -> bool:
    """Whether a file is a leftover of a start that was killed while it wrote its first files."""
    return path.name == LOCK or any(fnmatch(path.name, f".{name}.*.new") for name in (CONFIG, DIFF))


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """The finite metrics; other values are unknown, and JSON cannot express them."""
    return {name: value for name, value in row.items() if not isinstance(value, float) or math.isfinite(value)}


def _texts(value: object) -> Iterator[str]:
    """All strings in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _append(path: Path, text: str) -> None:
    with naming(path), path.open("a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _read(path: Path, counter: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, each with an integer named `counter`, without a last line that was cut off."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line.decode()) if line != b"\n" else None
            except (ValueError, RecursionError) as error:
                raise _damaged(path, number, "is not JSON") from error
            if row is not None:
                if not isinstance(row, dict) or not isinstance(row.get(counter), int):
                    raise _damaged(path, number, f"has no number {counter!r}")
                yield row


def _damaged(path: Path, number: int, fault: str) -> UsageError:
    return UsageError(
        f"log_path: line {number} of {path} {fault}, so the run cannot be read; repair the file, choose another "
        "log_path, or set behavior_if_log_dir_exists=delete"
    )
