"""Addresses to listen on. Imports no web framework, so that a server can check them before its imports."""

from __future__ import annotations

import errno
import os
import socket
from ipaddress import ip_address

from s1_mini.exceptions import ConfigurationError

OPEN_TO_ALL = "the server is open to everyone who reaches this port: S1_MINI_SERVER_API_KEY is not set"


def check_address(host: str, port: int, port_option: str = "--port", host_option: str = "--host") -> None:
    """Check that the server can listen on an address, before anything is loaded.

    Raises `ConfigurationError`, which names the options.
    """
    sentences = {
        errno.EADDRINUSE: f"port {port} is taken; choose another with `{port_option}`",
        errno.EACCES: f"port {port} is not allowed for this user; choose another with `{port_option}`",
        errno.EADDRNOTAVAIL: f"host {host!r} is not an address of this machine; choose another with `{host_option}`",
    }
    try:
        for listener in bind(host, port):
            listener.close()
    except (socket.gaierror, UnicodeError):
        raise ConfigurationError(f"host {host!r} cannot be resolved; choose another with `{host_option}`") from None
    except OSError as error:
        other = f"cannot listen at host {host!r}, port {port}: {error.strerror}"
        raise ConfigurationError(sentences.get(error.errno or 0, other)) from None


def bind(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to every address of `host`, like uvicorn's. Raises `OSError` or `UnicodeError`."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    failures: list[OSError] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        free = bound[0].getsockname()[1] if bound else port  # for port 0, the port chosen for the first address
        try:
            listener = socket.socket(family, kind, protocol)
        except OSError as error:  # a disabled address family, such as IPv6
            failures.append(error)
            continue
        try:
            # So that a restart need not wait for old connections; on Windows, the option would allow two listeners.
            if os.name != "nt":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], free, *address[2:]))
        except OSError as error:
            listener.close()
            failures.append(error)
        else:
            bound.append(listener)
    taken = [error for error in failures if port and error.errno == errno.EADDRINUSE]
    if taken or not bound:
        for listener in bound:
            listener.close()
        raise (taken or failures)[0]
    return bound


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_of(host: str, port: int) -> str:
    """Return the URL to open on this machine."""
    name = "localhost" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"http://{name}:{port}/"
