"""Signed messages: what is accepted, what is rejected and why, and how a delivery goes on."""

import copy
import pickle
from dataclasses import replace

import pytest

from app.crypto.messages import (
    SERVER,
    DeliveryFailure,
    KeyRegistry,
    MessageDelivery,
    RejectedMessageError,
    SigningKey,
    Transport,
    new_session,
)
from app.crypto.secure_aggregation.agreement import KeyPair

BODY = bytes(range(200))


@pytest.fixture
def session():
    """Name of the present round."""
    return new_session()


@pytest.fixture
def three():
    """An enrolled client."""
    return SigningKey(3)


@pytest.fixture
def registry(three):
    """Clients 3 and 4 are enrolled."""
    found = KeyRegistry()
    found.enrol(3, three.public)
    found.enrol(4, SigningKey(4).public)
    return found


@pytest.fixture
def message(three, session):
    """An intact message of client 3."""
    return three.sign(session, 7, "masked", SERVER, BODY)


class Script(Transport):
    """A transport on which the n-th message sent arrives as a test says."""

    def __init__(self, *arrivals):
        self.arrivals = list(arrivals)
        self.carried = 0

    def carry(self, message):
        """What the script has next; the message itself where it says so."""
        self.carried += 1
        arrival = self.arrivals.pop(0)
        return message if arrival == "intact" else arrival


def flipped(data, place):
    """Bytes with one bit turned over."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_intact_message_is_accepted(registry, message, session):
    """What its sender signed for this step of this round passes."""
    registry.check(message, session, 7, "masked")


def test_message_says_what_was_sealed(message, session):
    """All fields are those that were given, and the size counts header, body and signature."""
    assert (message.session, message.round, message.step) == (session, 7, "masked")
    assert (message.sender, message.recipient, message.body) == (3, SERVER, BODY)
    assert message.size == 49 + 200 + 64


@pytest.mark.parametrize(
    "change",
    [
        {"session": bytes(16)},
        {"round": 8},
        {"step": "reveal"},
        {"sender": 4},
        {"recipient": 4},
        {"body": flipped(BODY, 0)},
        {"body": flipped(BODY, 199)},
        {"body": BODY[:-1]},
        {"body": BODY + b"\0"},
        {"signature": bytes(64)},
    ],
    ids=str,
)
def test_change_of_any_field_breaks_the_signature(registry, message, change):
    """Whatever is changed on the way, the signature does not fit, and the alleged sender is named."""
    changed = replace(message, **change)
    with pytest.raises(RejectedMessageError, match=f"the signature is not that of client {changed.sender}") as caught:
        registry.check(changed, changed.session, changed.round, changed.step)
    assert caught.value.client == changed.sender
    assert caught.value.step == changed.step


def test_another_identity_cannot_sign_for_a_client(registry, session):
    """A message in the name of client 3, signed with a key that is not enrolled for it."""
    forged = SigningKey(3).sign(session, 7, "masked", SERVER, BODY)
    with pytest.raises(RejectedMessageError, match="the signature is not that of client 3"):
        registry.check(forged, session, 7, "masked")


@pytest.mark.parametrize(("other_session", "other_round"), [(True, 7), (False, 6), (True, 6)])
def test_replay_is_noticed(registry, three, session, other_session, other_round):
    """A message with a good signature from another session or another round is not of this one."""
    old = three.sign(new_session() if other_session else session, other_round, "masked", SERVER, BODY)
    with pytest.raises(RejectedMessageError, match=r"it belongs to another round \(replayed\)"):
        registry.check(old, session, 7, "masked")


def test_wrong_step_and_unknown_client_are_named(registry, message, session):
    """The reason says what is wrong."""
    with pytest.raises(RejectedMessageError, match=r"reveal message of client 3 .* another step \(masked\)"):
        registry.check(message, session, 7, "reveal")
    stranger = SigningKey(5).sign(session, 7, "masked", SERVER, BODY)
    with pytest.raises(RejectedMessageError, match="nobody is enrolled as client 5"):
        registry.check(stranger, session, 7, "masked")


def test_key_is_entered_once(registry, three, message, session):
    """The same key may be entered again, another one is refused and changes nothing."""
    registry.enrol(3, three.public)
    with pytest.raises(ValueError, match="client 3 is enrolled with another key"):
        registry.enrol(3, SigningKey(3).public)
    registry.check(message, session, 7, "masked")


def test_session_has_a_fixed_length(three):
    """A session of another length is refused, and two sessions are never the same."""
    with pytest.raises(ValueError, match="16 bytes, not 3"):
        three.sign(b"abc", 0, "keys", SERVER, b"")
    assert len({new_session() for _ in range(50)}) == 50
    assert len(new_session()) == 16


def test_intact_delivery_leaves_no_trace(registry, message, session):
    """One attempt, no failure."""
    delivery = MessageDelivery(registry, Transport())
    assert delivery.deliver(message, session, 7) is message
    assert delivery.failures == []


def test_damaged_message_is_asked_for_again(registry, message, session):
    """The second attempt succeeds: the failure is on record as repaired."""
    transport = Script(replace(message, body=flipped(BODY, 5)), "intact")
    delivery = MessageDelivery(registry, transport)
    assert delivery.deliver(message, session, 7) == message
    assert delivery.failures == [
        DeliveryFailure(7, 3, "masked", "the signature is not that of client 3", repaired=True)
    ]


def test_message_that_never_arrives_is_given_up(registry, message, session):
    """After as many attempts as allowed, each an failure that was not repaired."""
    transport = Script(None, None, "intact")
    delivery = MessageDelivery(registry, transport, attempts=2)
    assert delivery.deliver(message, session, 7) is None
    assert transport.carried == 2
    assert delivery.failures == [DeliveryFailure(7, 3, "masked", "it did not arrive", repaired=False)] * 2


def test_replayed_or_exchanged_messages_are_not_delivered(registry, three, message, session):
    """What arrives instead has a good signature but is of another round, for somebody else, or for another step."""
    old = three.sign(new_session(), 6, "masked", SERVER, BODY)
    elsewhere = three.sign(session, 7, "masked", 4, BODY)
    early = three.sign(session, 7, "keys", SERVER, BODY)
    delivery = MessageDelivery(registry, Script(old, elsewhere, early), attempts=3)
    assert delivery.deliver(message, session, 7) is None
    reasons = [failure.reason for failure in delivery.failures]
    assert reasons[0] == "it belongs to another round (replayed)"
    assert reasons[1] == "it is from 3 to 4, not from 3 to -1"
    assert reasons[2] == "it is meant for another step (keys)"


def test_another_clients_message_does_not_count(three, message, session):
    """A genuine message of client 4 does not stand for that of client 3."""
    four, registry = SigningKey(4), KeyRegistry()
    registry.enrol(3, three.public)
    registry.enrol(4, four.public)
    delivery = MessageDelivery(registry, Script(four.sign(session, 7, "masked", SERVER, BODY)), attempts=1)
    assert delivery.deliver(message, session, 7) is None
    assert [failure.client for failure in delivery.failures] == [3]


def test_receiver_decides_which_round_it_is(registry, message, session):
    """An intact message is late where the receiver has gone on."""
    delivery = MessageDelivery(registry, Transport(), attempts=1)
    assert delivery.deliver(message, session, 8) is None
    assert delivery.failures[0].round == 8


def test_incidents_are_taken_once(registry, message, session):
    """Taking them empties the list."""
    delivery = MessageDelivery(registry, Script(None), attempts=1)
    delivery.deliver(message, session, 7)
    assert len(delivery.take_failures()) == 1
    assert delivery.take_failures() == []
    assert delivery.failures == []


def test_incident_reads_as_a_sentence():
    """Round, client, step, reason and how it ended."""
    failure = DeliveryFailure(2, 5, "shares", "it did not arrive", repaired=True)
    assert str(failure) == "Round 2, shares message of client 5: it did not arrive; it arrived when asked for again."
    assert str(replace(failure, repaired=False)).endswith("; it never arrived intact.")


def test_a_message_is_sent_at_least_once(registry):
    """Less than one attempt is refused."""
    with pytest.raises(ValueError, match="not 0 times"):
        MessageDelivery(registry, Transport(), attempts=0)


@pytest.mark.parametrize("kind", [SigningKey, KeyPair])
@pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy])
def test_secrets_stay_where_they_are(kind, leave):
    """Neither pickled nor copied, and a list that holds them neither."""
    with pytest.raises(TypeError, match="holds secrets and is neither copied nor pickled"):
        leave(kind(3))
    with pytest.raises(TypeError, match="holds secrets"):
        copy.deepcopy([kind(3)])


def test_nothing_secret_is_shown(three):
    """The number of the client is all that is printed."""
    assert repr(three) == "SigningKey(client=3)"
    assert str(KeyPair(3)) == "KeyPair(client=3)"


def test_envelopes_and_rejections_travel_between_processes(message):
    """Both are pickled; the repr of an message does not hold the body."""
    assert pickle.loads(pickle.dumps(message)) == message
    assert repr(BODY)[2:40] not in repr(message)
    error = pickle.loads(pickle.dumps(RejectedMessageError(3, "masked", "lost")))
    assert (error.client, error.step, error.reason) == (3, "masked", "lost")
