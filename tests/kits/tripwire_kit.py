"""Malicious servers in a few lines each, and the rounds of a federation whose clients have a tripwire."""

from typing import Any

import torch
from channel_kit import MIXED, NET, SIZES
from federation_kit import Blobs, Recorder, Reports, run, sgd, small_federation

from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.submodels import ClientRound, SubmodelMethod
from callbacks.defenses.tripwire import Tripwire

CHECKS = ("architecture", "repeated", "plan", "constant_fill", "gradient_suppression", "commitment")
OFF = {
    **{"repeated": None, "plan": False, "distinct_rows": None, "variation": None},
    **{"gradient_suppression": None, "commitment": False, "architecture": False},
}


class Server(FederatedCallback):
    """A server that is malicious to some clients in some rounds (0-based)."""

    kind = "attack"

    def __init__(self, clients=(1, 3), rounds=(1, 2)):
        self.clients, self.rounds = clients, rounds

    def on_broadcast(self, trainer, federation, client, vector):
        """Whether it is their turn."""
        if client in self.clients and federation.plan.round in self.rounds:
            self.edit(federation, client, vector)

    def edit(self, federation, client, vector):
        """In place."""
        raise NotImplementedError


class Freezing(Server):
    """Sends the coordinates of its very first model again and again."""

    def on_round_start(self, trainer, federation, plan):
        """Keep the first model."""
        if plan.round == 0:
            self.first = federation.theta.clone()

    def edit(self, federation, client, vector):
        """Whatever coordinates the client has by now."""
        vector.copy_(self.first[federation.plan.index(client)])


class Filling(Server):
    """Every parameter is the same constant, or has noise around it."""

    def __init__(self, *where, noise=0.0):
        super().__init__(*where)
        self.noise = noise

    def edit(self, federation, client, vector):
        """Noise of the paper's kind: uniform, relative to the constant."""
        draws = torch.Generator().manual_seed(client)
        vector.copy_(0.25 * (1 + self.noise * (2 * torch.rand(len(vector), generator=draws, dtype=vector.dtype) - 1)))


class FillingAll(Filling):
    """The same for up to four clients in the second round."""

    def __init__(self) -> None:
        super().__init__(range(4), (1,))


class Copying(Server):
    """The rows of the first layer are copies of its first half, as in a trap that is written twice."""

    def edit(self, federation, client, vector):
        """A first layer with four inputs."""
        net = federation.net.scaled(federation.plan.rate(client))
        rows = net.layers.hidden1.weight.shape[0]
        weight = vector[: rows * 4].view(rows, 4)
        weight[rows // 2 :] = weight[: rows - rows // 2].clone()


class Silencing(Server):
    """A last layer of equal rows, all of them distinct enough from a constant: passes no gradient back."""

    def edit(self, federation, client, vector):
        """The last layer is small enough not to be judged by its rows at half width."""
        net = federation.net.scaled(federation.plan.rate(client))
        classes, inputs = net.layers.classifier.weight.shape
        start = len(vector) - classes * inputs - classes
        vector[start : start + classes * inputs] = torch.linspace(-1, 1, inputs, dtype=vector.dtype).repeat(classes)


class Singling(Server):
    """Some clients get another model than the rest, off by a little in one coordinate."""

    def edit(self, federation, client, vector):
        """The first coordinate."""
        vector[0] += 1e-6


class Moved(SubmodelMethod):
    """The announced method, but some clients get the channels from the end."""

    def __init__(self, announced: SubmodelMethod, clients: tuple[int, ...]) -> None:
        self.announced, self.clients = announced, clients

    def key(self, client_round: ClientRound) -> Any:
        """Apart from the others."""
        return (self.announced.key(client_round), client_round.client in self.clients)

    def channels(self, axis, keep, client_round):
        """The last ones."""
        if client_round.client in self.clients:
            return torch.arange(axis.width - keep, axis.width)
        return self.announced.channels(axis, keep, client_round)


class Moving(FederatedCallback):
    """Runs another method than the announced one."""

    kind = "attack"

    def __init__(self, clients=(1, 3)):
        self.clients = clients

    def setup(self, trainer, pl_module, stage):
        """After the defenses have been set up."""
        pl_module.method = Moved(pl_module.method, self.clients)


class Diary(FederatedCallback):
    """What a tripwire tells after every round."""

    kind = "recorder"

    def __init__(self, tripwire):
        self.tripwire, self.rounds = tripwire, []

    def on_server_update(self, trainer, federation, aggregate):
        """Comes after the tripwire."""
        self.rounds.append({name.removeprefix("tripwire/"): int(n) for name, n in self.tripwire.measurements().items()})


class Outcome:
    """A run with a tripwire: what it told, what clients report, what travelled."""

    def __init__(self, *attack, rounds=3, extra=(), data=None, trainer=None, **settings):
        names = (
            "repeated",
            "plan",
            "distinct_rows",
            "variation",
            "gradient_suppression",
            "commitment",
            "action",
            "architecture",
        )
        given = {name: settings.pop(name) for name in (*names, "probe_samples") if name in settings}
        self.tripwire = Tripwire(**given)
        diary, reports, self.recorder = Diary(self.tripwire), Reports(), Recorder()
        federation = federation_of(**settings)
        watching = (diary, reports, self.recorder)
        self.end = run(
            federation, data or Blobs(SIZES), rounds, [self.tripwire, *extra, *attack, *watching], **(trainer or {})
        )
        self.measurements, self.reports, self.federation = diary.rounds, reports.rounds, federation

    def refusing(self, round_):
        """Clients that refused in a round (0-based)."""
        return tuple(client.client for client in self.reports[round_].clients if client.refusal)


def federation_of(**settings):
    """Eight clients of three widths."""
    local = LocalTraining(batch_size=8, optimizer=sgd(0.2))
    return small_federation(**{"net": NET, "local": local, "capacities": MIXED, **settings})
