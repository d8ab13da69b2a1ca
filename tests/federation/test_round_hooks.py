"""What callbacks hear in a round, in which order, and what their edits do."""

import pytest
import torch
from federation_kit import Blobs, Reader, Recorder, initial, run, sgd, small_federation, whole_batch

from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining


class Diary(FederatedCallback):
    """Writes down every hook, with the client where there is one."""

    def __init__(self, name: str, book: list) -> None:
        self.name, self.book = name, book

    @property
    def state_key(self):
        """Two of them may run together."""
        return self.name

    def note(self, hook, *what):
        """One line of the diary."""
        self.book.append((self.name, hook, *what))

    def on_round_start(self, trainer, federation, plan):
        """Noted with the participants."""
        self.note("round_start", plan.participants)

    def on_broadcast(self, trainer, federation, client, vector):
        """Noted."""
        self.note("broadcast", client)

    def on_client_start(self, trainer, federation, client):
        """Noted."""
        self.note("client_start", client.client)

    def client_loss(self, federation, client, batch, logits, loss):
        """Noted with the size of the batch."""
        self.note("loss", client.client, len(batch[1]))
        return loss

    def on_client_end(self, trainer, federation, client):
        """Noted."""
        self.note("client_end", client.client)

    def on_client_update(self, trainer, federation, update):
        """Noted."""
        self.note("update", update.client)

    def on_message(self, trainer, federation, message):
        """Noted."""
        self.note("message", message.client)

    def on_server_update(self, trainer, federation, aggregate):
        """Noted with the number of updates."""
        self.note("server", aggregate.updates)


def test_order_of_all_hooks():
    """Two callbacks, two clients (the larger first), two steps each: given order, reversed when clients end."""
    book = []
    run(small_federation(local=whole_batch(epochs=2)), Blobs((5, 8)), 1, [Diary("a", book), Diary("b", book)])
    expected = [("a", "round_start", (1, 0)), ("b", "round_start", (1, 0))]
    for client, size in ((1, 8), (0, 5)):
        steps = [("a", "loss", client, size), ("b", "loss", client, size)] * 2
        expected += [
            *((name, hook, client) for hook in ("broadcast", "client_start") for name in "ab"),
            *steps,
            ("b", "client_end", client),
            ("a", "client_end", client),
            *((name, hook, client) for hook in ("update", "message") for name in "ab"),
        ]
    expected += [("a", "server", 2), ("b", "server", 2)]
    assert book == expected


@pytest.mark.parametrize("executor", ["threads", "sequence"])
def test_main_hooks_follow_the_plan_with_every_executor(executor):
    """Updates and messages come in the order of the plan, also when worker threads finish in another."""
    book = []
    sizes = (5, 9, 3, 8, 7, 2, 6)
    run(small_federation(executor=executor, workers=3), Blobs(sizes), 1, [Diary("a", book)])
    plan = sorted(range(len(sizes)), key=lambda client: -sizes[client])
    for hook in ("broadcast", "update", "message"):
        assert [line[2] for line in book if line[1] == hook] == plan
    for client in plan:
        hooks = [line[1] for line in book if line[2] == client and line[1] != "server"]
        assert hooks == ["broadcast", "client_start", "loss", "client_end", "update", "message"]


class Editor(FederatedCallback):
    """Replaces one thing in place."""

    def __init__(self, **edits: float) -> None:
        self.edits, self.received, self.loaded = edits, {}, {}

    def on_broadcast(self, trainer, federation, client, vector):
        """What a malicious server sends."""
        if "broadcast" in self.edits:
            vector.fill_(self.edits["broadcast"] + client)

    def on_client_start(self, trainer, federation, client):
        """What arrived at the client."""
        self.loaded[client.client] = torch.cat([p.detach().flatten() for p in client.net.parameters()])

    def on_client_update(self, trainer, federation, update):
        """What a defense makes of the update."""
        self.received[update.client] = update.received.clone()
        if "update" in self.edits and update.client == 0:
            update.vector.fill_(self.edits["update"])

    def on_server_update(self, trainer, federation, aggregate):
        """What the server adds."""
        if "server" in self.edits:
            aggregate.mean.add_(self.edits["server"])


def test_editing_an_update_changes_the_aggregate():
    """The first client's values are replaced by 7; the second's count as they are."""
    recorder = Recorder()
    end = run(small_federation(), Blobs((5, 8)), 1, [Editor(update=7.0), recorder])
    vectors = {client: vector for client, vector, _ in recorder.updates}
    assert torch.equal(vectors[0], torch.full_like(vectors[0], 7.0))
    assert torch.equal(recorder.messages[1].payload, vectors[0])
    torch.testing.assert_close(end, (7.0 + vectors[1]) / 2, rtol=0, atol=1e-15)


@pytest.mark.parametrize("first", [True, False])
def test_defenses_edit_updates_in_the_given_order(first):
    """The later one has the last word; the earlier one's edit is what it sees. Recorders see all edits."""
    reader, recorder, editor = Reader(), Recorder(), Editor(update=7.0)
    run(small_federation(), Blobs((5, 8)), 1, [recorder, *([reader, editor] if first else [editor, reader])])
    before, after = ({client: vector for client, vector, _ in one.updates} for one in (reader, recorder))
    assert bool((before[0] == 7.0).all()) is not first
    assert bool((before[0] == 7.0).any()) is not first
    assert torch.equal(after[0], torch.full_like(after[0], 7.0))
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("executor", ["threads", "sequence"])
def test_editing_the_broadcast_changes_what_each_client_receives(executor):
    """Every client can be sent something else; it starts there and reports it as received."""
    editor = Editor(broadcast=3.0)
    federation = small_federation(executor=executor, local=whole_batch(lr=0.0), workers=2)
    end = run(federation, Blobs((5, 8)), 1, [editor])
    for client in (0, 1):
        expected = torch.full((15,), 3.0 + client, dtype=torch.float64)
        assert torch.equal(editor.loaded[client], expected)
        assert torch.equal(editor.received[client], expected)
    assert torch.equal(end, torch.full((15,), 3.5, dtype=torch.float64))


def test_a_broadcast_does_not_leak_into_the_server_or_the_next_client():
    """Both clients start from the server's vector although each one trains in place."""
    editor = Editor()
    start = initial(small_federation(), Blobs((5, 8)))
    run(small_federation(), Blobs((5, 8)), 1, [editor])
    assert all(torch.equal(editor.loaded[client], start) for client in (0, 1))


def test_editing_the_aggregate_changes_the_server():
    """Noise on the mean arrives in the server's model."""
    plain = run(small_federation(), Blobs((5, 8)), 1)
    moved = run(small_federation(), Blobs((5, 8)), 1, [Editor(server=0.25)])
    torch.testing.assert_close(moved, plain + 0.25, rtol=0, atol=1e-15)


class Swap(FederatedCallback):
    """Gives the client another optimiser, or other batches."""

    def __init__(self, what: str) -> None:
        self.what, self.after = what, []

    def on_client_start(self, trainer, federation, client):
        """Replace one of the two."""
        if self.what == "optimizer":
            client.optimizer = torch.optim.SGD(client.net.parameters(), lr=0.0)
        else:
            client.batches = list(client.batches) * 3

    def on_client_end(self, trainer, federation, client):
        """Still there when clients end."""
        self.after.append((client.client, client.optimizer is not None, client.samples, client.round, client.lr))


def test_clients_may_get_another_optimiser():
    """With learning rate 0 nothing moves, and the next round starts with a fresh optimiser anyway."""
    swap = Swap("optimizer")
    start = initial(small_federation(), Blobs((5, 8)))
    assert torch.equal(run(small_federation(), Blobs((5, 8)), 2, [swap]), start)
    assert swap.after == [(1, True, 8, 0, 0.5), (0, True, 5, 0, 0.5), (1, True, 8, 1, 0.5), (0, True, 5, 1, 0.5)]


def test_clients_may_get_other_batches():
    """One full batch repeated three times is three epochs of full-batch training."""
    swapped = run(small_federation(), Blobs((5, 8)), 1, [Swap("batches")])
    thrice = run(small_federation(local=whole_batch(epochs=3)), Blobs((5, 8)), 1)
    torch.testing.assert_close(swapped, thrice, rtol=0, atol=1e-14)


class Ridge(FederatedCallback):
    """L2 regularisation as a callback."""

    vectorisable = True

    def client_loss(self, federation, client, batch, logits, loss):
        """Adds half the squared norm."""
        return loss + 0.05 * sum(parameter.square().sum() for parameter in client.net.parameters())


def test_a_loss_hook_changes_the_objective():
    """0.05 |w|^2 in the loss is weight decay 0.1 in the optimiser."""
    decayed = small_federation(local=LocalTraining(batch_size=100, optimizer=sgd(weight_decay=0.1)))
    expected = run(decayed, Blobs((5, 8)), 2)
    torch.testing.assert_close(run(small_federation(), Blobs((5, 8)), 2, [Ridge()]), expected, rtol=0, atol=1e-12)


class Stumble(Swap):
    """Fails in the middle of local training."""

    def client_loss(self, federation, client, batch, logits, loss):
        """Always fails."""
        raise RuntimeError("stumbled")


@pytest.mark.parametrize("executor", ["threads", "sequence"])
def test_client_end_is_heard_even_if_training_fails(executor):
    """So that what a callback wrapped is unwrapped; the failure itself reaches the user."""
    stumble = Stumble("batches")
    with pytest.raises(RuntimeError, match="stumbled"):
        run(small_federation(executor=executor, workers=1), Blobs((5, 8)), 1, [stumble])
    assert stumble.after[0][0] == 1


def test_an_update_tells_all_that_a_defense_needs():
    """Coordinates, parameters among them, samples, learning rate and round."""

    class Facts(FederatedCallback):
        """Keeps the updates."""

        def __init__(self):
            self.updates = []

        def on_client_update(self, trainer, federation, update):
            """Kept."""
            self.updates.append(update)

    facts = Facts()
    run(small_federation(weighting="samples"), Blobs((5, 8)), 2, [facts])
    assert [(u.round, u.client, u.samples, u.weight, u.lr) for u in facts.updates] == [
        (0, 1, 8, 8.0, 0.5),
        (0, 0, 5, 5.0, 0.5),
        (1, 1, 8, 8.0, 0.5),
        (1, 0, 5, 5.0, 0.5),
    ]
    assert all(u.trainable == 15 and torch.equal(u.index, torch.arange(15)) for u in facts.updates)
    assert all(u.vector.shape == u.received.shape == (15,) for u in facts.updates)
