"""``docker compose``, which Harbor calls: the host's own, or Debian 13's, unpacked into the user's cache folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.integrations.ecosystem import CACHE, Missing, lacking, locked

SUITE = "trixie"
"""Debian's oldest release whose package docker-compose is Docker's plugin, and not the program of its own before it."""
PLUGIN = "usr/libexec/docker/cli-plugins/docker-compose"
"""Where the package has it."""


def compose_variables() -> dict[str, str]:
    """Environment variables with which ``docker compose`` runs. Without a way to it, skips the test; see `lacking`."""
    found = _variables()
    if isinstance(found, str):
        lacking(found)
    return found


@cache
def _variables() -> dict[str, str] | str:
    if not _fails({}):
        return {}
    folder = CACHE / "compose"
    with locked("compose"):
        try:
            if not (folder / "bin" / "docker-compose").exists():
                _unpack(folder)
        except Missing as error:
            return f"Harbor needs docker compose: {error}"
    variables = {"DOCKER_CONFIG": str(_configuration(folder))}
    failed = _fails(variables)
    return f"Harbor needs docker compose: {failed}" if failed else variables


def _fails(variables: dict[str, str]) -> str:
    """What ``docker compose version`` says if it fails; nothing otherwise."""
    done = subprocess.run(
        ["docker", "compose", "version"], env=os.environ | variables, capture_output=True, text=True, timeout=60
    )
    return done.stderr.strip() or "it fails" if done.returncode else ""


def _unpack(folder: Path) -> None:
    """Fetch the package from the mirror that this machine's apt uses, with apt's checks, beside apt's own lists."""
    if shutil.which("apt-get") is None:
        raise Missing("install Docker's plugin compose; without apt-get these tests cannot")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial", "bin"):
        (folder / name).mkdir(parents=True)
    pattern = "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)"
    targets = _run("apt-get", "indextargets", "--format", pattern, "Created-By: Packages").split()
    mirrors = [line.split("|")[3] for line in targets if line.startswith("Debian|Debian|main|")]
    if not mirrors:
        raise Missing("install Docker's plugin compose; these tests can only on Debian")
    (folder / "sources.list").write_text(f"deb {mirrors[0]} {SUITE} main\n")
    options = [
        *("-o", f"Dir::Etc::sourcelist={folder / 'sources.list'}", "-o", "Dir::Etc::sourceparts=-"),
        *("-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"),
        *("-o", "APT::Sandbox::User=root"),
    ]
    _run("apt-get", *options, "update", "--error-on=any")
    _run("apt-get", *options, "download", "docker-compose", folder=folder)
    (package,) = folder.glob("*.deb")
    _run("dpkg", "-x", str(package), str(folder / "unpacked"))
    (folder / "unpacked" / PLUGIN).rename(folder / "bin" / "docker-compose")
    for name in ("lists", "cache", "unpacked"):
        shutil.rmtree(folder / name)
    package.unlink()


def _configuration(folder: Path) -> Path:
    """A folder for DOCKER_CONFIG: the user's settings, and where the plugin is."""
    theirs = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    settings = json.loads((theirs / "config.json").read_text()) if (theirs / "config.json").is_file() else {}
    settings["cliPluginsExtraDirs"] = [*settings.get("cliPluginsExtraDirs", []), str(folder / "bin")]
    made = folder / "config"
    made.mkdir(exist_ok=True)
    (made / "config.json").write_text(json.dumps(settings))
    (made / "config.json").chmod(0o600)
    if (theirs / "contexts").is_dir() and not (made / "contexts").exists():
        (made / "contexts").symlink_to(theirs / "contexts")
    return made


def _run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise Missing(f"{' '.join(command[:1] + command[-1:])} failed: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout
