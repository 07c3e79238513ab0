"""Connects this process to a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket

from ..errors import UsageError

CONNECT_SECONDS = 10.0
"""Time in which a cluster's head has to answer."""


def use_token() -> bool:
    """Authenticate by this user's token, if there is one and ``RAY_AUTH_MODE`` says nothing; whether Ray asks for one.

    A head that is started where a token exists asks for it, but clients with an explicit address do not send it by
    themselves: https://docs.ray.io/en/latest/ray-security/token-auth.html
    """
    try:
        from ray._private.authentication import authentication_token_setup as setup
    except ImportError:  # a version of Ray without authentication
        return False
    logging.getLogger(setup.__name__).setLevel(logging.ERROR)
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def connect(address: str) -> None:
    """Connect this process to a Ray cluster. Raises `UsageError` if there is none."""
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed; pip install 'rtl-agent-gym[ray]'") from None
    if ray.is_initialized():
        return
    use_token()
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(f"no Ray cluster answers at {address!r}: {str(error).splitlines()[0]}") from error
    except (RuntimeError, ray.exceptions.RayError) as error:  # another version of Ray or Python, mostly
        raise UsageError(f"the Ray cluster at {address!r} cannot be used: {' '.join(str(error).split())}") from error
