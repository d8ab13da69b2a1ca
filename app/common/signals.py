"""Requests to end a command: a closed terminal counts as a request to terminate, and that may act like Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hangup_terminates() -> Iterator[None]:
    """Let SIGHUP, which a closed terminal sends, act as SIGTERM does; one that is ignored, as under nohup, still is."""
    number = getattr(signal, "SIGHUP", None)  # which Windows lacks
    if number is None or not _in_main_thread() or signal.getsignal(number) == signal.SIG_IGN:
        yield
        return
    with _handled(number, lambda *_: signal.raise_signal(signal.SIGTERM)):
        yield


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let SIGTERM end this context at once, as Ctrl-C would; elsewhere Lightning lets the round end first."""
    if not _in_main_thread():
        yield
        return
    with _handled(signal.SIGTERM, _interrupt):
        yield


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _handled(number: int, handler: Callable[..., Any]) -> Iterator[None]:
    previous = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, previous if previous is not None else signal.SIG_DFL)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
