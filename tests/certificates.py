"""Certificates of a test's own, made with openssl: an authority, a server's and a client's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> Path:
    """A folder with ``ca.pem``, ``cert.pem`` and ``key.pem`` for a client, and ``server-*.pem`` for a server.

    Args:
        folder: Created.
        names: What the server's certificate is for.
    """
    if shutil.which("openssl") is None:
        pytest.skip("certificates take openssl")
    folder.mkdir()
    (folder / "server.ext").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth\n")
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    _openssl(
        folder,
        "req -x509 -newkey rsa:2048 -nodes -sha256 -days 2 -subj /CN=authority -keyout ca-key.pem -out ca.pem "
        "-addext keyUsage=critical,keyCertSign",
    )
    for name, certificate, key in (("server", "server-cert", "server-key"), ("client", "cert", "key")):
        _openssl(folder, f"req -newkey rsa:2048 -nodes -sha256 -subj /CN={name} -keyout {key}.pem -out {name}.csr")
        signing = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -sha256"
        _openssl(folder, f"{signing} -extfile {name}.ext -out {certificate}.pem")
    return folder


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
