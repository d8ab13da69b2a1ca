"""Requests to end a command."""

import signal

import pytest

from app.common.signals import hangup_terminates, termination_interrupts


@pytest.fixture(autouse=True)
def restored():
    """The handlers of before, whatever a test leaves."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_closed_terminal_counts_as_a_request_to_terminate():
    """Whoever handles SIGTERM at that moment is called; afterwards SIGHUP is what it was."""
    before, seen = signal.getsignal(signal.SIGHUP), []
    with hangup_terminates():
        signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
        signal.raise_signal(signal.SIGHUP)
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) == before


def test_nohup_is_respected():
    """A signal that is ignored stays so."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with hangup_terminates():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_termination_interrupts_a_context():
    """At once, and only within it."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), hangup_terminates(), termination_interrupts():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGTERM) == before
