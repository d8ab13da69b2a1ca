"""Rounds of secure aggregation between clients and a server in one place, with clients dying where a test says."""

import numpy as np

from app.crypto.contributors import Contributors
from app.crypto.messages import KeyRegistry, MessageDelivery, SigningKey, Transport, new_session
from app.crypto.secure_aggregation.client import AggregationClient
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.rules import ClientRules
from app.crypto.secure_aggregation.server import AggregationServer

NARROW = np.dtype("<u4")
WIDE = np.dtype("<u8")


def plain_sum(layout, values, clients):
    """What the sum must be."""
    total = np.zeros(layout.length, dtype=np.int64)
    for client in clients:
        total[layout.positions[client]] += values[client]
    return total


def whole(clients, length, threshold, word=NARROW):
    """All clients hold the whole vector."""
    everything = np.arange(length)
    return VectorLayout(length, word, dict.fromkeys(clients, everything), threshold)


class Federation:
    """Clients with identities, one server and a transport, for several rounds."""

    def __init__(self, clients, transport=None, attempts=2):
        self.identities = {client: SigningKey(client) for client in clients}
        self.registry = KeyRegistry()
        for client, identity in self.identities.items():
            self.registry.enrol(client, identity.public)
        self.delivery = MessageDelivery(self.registry, transport or Transport(), attempts)

    def round(self, number, layout, values, bindings=None, dies=None, least=1):
        """A round in which clients die before the steps that `dies` names; None for `bindings`: ordinary masks."""
        return Round(self, number, layout, values, bindings, dies or {}, least)


class Round:
    """One round; every step is a method, `run` calls them all."""

    def __init__(self, federation, number, layout, values, bindings, dies, least):
        self.delivery, self.number, self.session, self.values = federation.delivery, number, new_session(), values
        self.layout, self.dies, self.bindings = layout, dies, bindings
        self.server = AggregationServer(self.session, number, layout, federation.registry)
        held = Contributors.of(layout.length, layout.positions)
        self.rules = ClientRules(federation.registry, held, least, layout.graph)
        self.clients = {
            client: AggregationClient(client, federation.identities[client], self.session, number, layout, self.rules)
            for client in layout.positions
        }

    def alive(self, step, clients):
        """Those that did not die before or at a step."""
        order = ["keys", "shares", "masked", "survivors", "reveal"]
        dead = {client for client, last in self.dies.items() if order.index(last) <= order.index(step)}
        return [client for client in clients if client not in dead]

    def send(self, messages):
        """What arrives."""
        arrived = [self.delivery.deliver(message, self.session, self.number) for message in messages]
        return [message for message in arrived if message is not None]

    def keys(self):
        """Everybody advertises keys."""
        self.advertised = self.server.collect_keys(
            self.send(self.clients[client].advertise_keys() for client in self.alive("keys", self.clients))
        )
        return self.advertised

    def shares(self):
        """Everybody shares secrets and settles on who goes on."""
        senders = self.alive("shares", self.server.roster)
        keys = {client: self.server.keys_for(client, self.advertised) for client in senders}
        shared = self.send(self.clients[client].share_secrets(keys[client]) for client in senders)
        mail = self.server.relay_shares(shared)
        self.rejected = [error for client in senders for error in self.clients[client].receive_shares(mail[client])]
        self.server.exclude(error.client for error in self.rejected)
        for client in set(self.server.masking_clients) & set(senders):
            self.clients[client].set_peers(self.server.masking_clients)

    def masked(self):
        """Everybody sends masked values."""
        for client in self.alive("masked", self.server.masking_clients):
            for message in self.send([self.masked_by(client)]):
                self.server.add_masked(message)

    def masked_by(self, client):
        """A client's masked values."""
        binding = None if self.bindings is None else lambda peer: self.bindings(client, peer)
        return self.clients[client].mask(self.values[client], binding)

    def survivors(self):
        """Everybody who is left signs who is left."""
        return self.send(
            self.clients[client].sign_survivors(self.server.arrived)
            for client in self.alive("survivors", self.server.arrived)
        )

    def reveals(self):
        """Everybody who is left answers the server."""
        signed = self.survivors()
        return self.send(
            self.clients[client].reveal_shares(signed) for client in self.alive("reveal", self.server.arrived)
        )

    def until_masked(self):
        """All steps but the last two."""
        self.keys()
        self.shares()
        self.masked()
        return self

    def run(self, sent=None):
        """The sum; `sent` gives the digests that the server knows."""
        self.until_masked()
        return self.server.unmask(self.reveals(), sent)
