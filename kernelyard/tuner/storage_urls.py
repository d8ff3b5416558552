"""Database URLs for trials: how they are read, which driver serves them, and how they are shown: never with a password."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from kernelyard.errors import UsageError, masked
from kernelyard.store.files import BUSY_S

PLAIN = {"postgresql": "postgresql+pg8000", "postgres": "postgresql+pg8000"}
"""A PostgreSQL URL that names no driver gets the one that the extra installs; SQLAlchemy's own default is psycopg2."""


def parsed(url: str) -> URL:
    """A URL whose database SQLAlchemy knows; raises UsageError."""
    try:
        found = make_url(url)
        found = found.set(drivername=PLAIN.get(found.drivername, found.drivername))
        found.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        reads = "It reads sqlite:///file.db or postgresql://user:password@host:port/database."
        raise UsageError(f"--storage {masked(url)!r} is no database URL.", exists=reads) from error
    return found


def engine_options(url: URL) -> dict[str, Any]:
    """A stuck peer is given up after BUSY_S; a connection to a server is tried before use, as a night has restarts in it."""
    waits = {"sqlite": "timeout", "postgresql+pg8000": "timeout", "postgresql+psycopg": "connect_timeout"}
    wait = waits.get(url.drivername)
    options: dict[str, Any] = {"connect_args": {wait: int(BUSY_S)}} if wait else {}
    return options if url.get_backend_name() == "sqlite" else {**options, "pool_pre_ping": True}


def without_driver(url: URL, error: ImportError) -> UsageError:
    """What to install for a URL whose driver is not here."""
    missing = getattr(error.__cause__ or error, "name", None) or url.get_driver_name()
    ours = url.get_backend_name() == "postgresql"
    do = "pip install 'kernelyard[postgresql]', and write postgresql:// for its driver." if ours else "Install it."
    return UsageError(f"--storage {url.drivername}:// needs the driver {missing}, which is not installed.", do=do)


def told(error: BaseException) -> str:
    """What a database said, in one line; pg8000 hands on a server's fields as a dictionary with the text under M."""
    fields = error.args[0] if error.args else None
    text = str(fields.get("M", fields)) if isinstance(fields, dict) else str(error)
    return (text.splitlines() or [type(error).__name__])[0].rstrip(".")
