"""Addresses of Postgres servers, as libpq understands them. Connections to other machines are encrypted."""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from helmsman.base.addresses import is_loopback
from helmsman.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Mapping


def checked_address(url: str, setting: str) -> str:
    """Return the address of a Postgres, with encryption for one on another machine.

    Raises:
        InvalidSetting: It is none. `setting` has it.
    """
    parts = urlsplit(url)
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        given = {}
    if parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/") or not given:
        raise InvalidSetting(
            f"The address of a Postgres has the form postgresql://USER@HOST/DATABASE. Put it into {setting}."
        )
    url = "postgresql" + url[url.index(":") :]
    # The service file or a variable may demand encryption already.
    used = {**_defaults(given.get("service")), **given}
    if given.get("sslmode") == "disable" or _is_encrypted(given, used) or all(map(_is_here, _addresses(used))):
        return url
    # libpq's default falls back to plain text if the server, or a machine in the middle, offers no encryption.
    rest = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "sslmode"]
    return urlunsplit(urlsplit(url)._replace(query=urlencode([*rest, ("sslmode", "require")])))


def _defaults(service: Any) -> dict[str, Any]:
    """Return what libpq takes where the address says nothing: from the service file, then from variables."""
    if service is None:
        return {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.val}
    before = os.environ.get("PGSERVICE")
    os.environ["PGSERVICE"] = str(service)  # libpq reads its file of services for no other call
    try:
        return _defaults(None)
    finally:
        if before is None:
            del os.environ["PGSERVICE"]
        else:
            os.environ["PGSERVICE"] = before


def _is_encrypted(given: Mapping[str, Any], used: Mapping[str, Any]) -> bool:
    """Return whether libpq is certain to encrypt."""
    if "sslmode" not in given and used.get("sslrootcert") == "system":
        return True  # then libpq's default is to check the server
    return used.get("sslmode") in ("require", "verify-ca", "verify-full")


def _addresses(used: Mapping[str, Any]) -> list[str]:
    """Return the places that libpq connects to: `hostaddr` counts before `host`, one by one."""
    hosts, numbers = (str(used.get(name) or "").split(",") for name in ("host", "hostaddr"))
    return [number or host for host, number in zip_longest(hosts, numbers, fillvalue="")]


def _is_here(host: str) -> bool:
    """Return whether the connection to a host stays on this machine."""
    return not host or host.startswith(("/", "@")) or is_loopback(host)
