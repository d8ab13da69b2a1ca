"""What all regularisers share: nothing at strength 0, no learning at a huge one, what is refused; label smoothing."""

from functools import cache, partial

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, run, small_federation, whole_batch
from regulariser_kit import LOCAL, Losses, trained
from torch.nn.functional import cross_entropy, log_softmax, one_hot

from app.common.errors import UserError
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from callbacks.defenses.dropout import Dropout
from callbacks.defenses.l2 import L2
from callbacks.defenses.label_smoothing import LabelSmoothing
from callbacks.defenses.mixup import Mixup

OFF = {
    "dropout": lambda: Dropout(0.0),
    "l2": lambda: L2(0.0),
    "decoupled": lambda: L2(0.0, "decoupled"),
    "smoothing": lambda: LabelSmoothing(0.0),
    "mixup": lambda: Mixup(0.0),
}
STRONG = {
    "dropout": lambda: Dropout(0.999),
    "l2": lambda: L2(4.5),
    "decoupled": lambda: L2(5.0, "decoupled"),
    "smoothing": lambda: LabelSmoothing(1.0),
}
USUAL = {
    "dropout": Dropout,
    "l2": L2,
    "decoupled": partial(L2, mode="decoupled"),
    "smoothing": LabelSmoothing,
    "mixup": Mixup,
}


def in_single_precision(executor, *defenses):
    """The end of a run."""
    return trained(*defenses, executor=executor, workers=2, precision="32-true", local=LocalTraining(batch_size=4))


undefended = cache(in_single_precision)


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
@pytest.mark.parametrize("name", OFF)
def test_strength_zero_is_plain_training(name, executor):
    """Bit for bit in single precision, with any executor."""
    assert torch.equal(in_single_precision(executor, OFF[name]()), undefended(executor))
    assert OFF[name]().traits() == frozenset()


@pytest.mark.parametrize("name", USUAL)
def test_usual_strength_changes_training_at_every_width(name):
    """Of wide and narrow clients; and with threads as in sequence."""
    recorders = [Recorder() for _ in range(3)]
    for recorder, defenses, executor in zip(
        recorders, ([], [USUAL[name]()], [USUAL[name]()]), ("sequence", "sequence", "threads"), strict=True
    ):
        trained(*defenses, recorder, executor=executor, workers=3, rounds=1)
    plain, defended, threads = (recorder.updates for recorder in recorders)
    for one, other, again in zip(plain, defended, threads, strict=True):
        assert not torch.allclose(one[1], other[1], rtol=0, atol=1e-7)
        torch.testing.assert_close(again[1], other[1], rtol=0, atol=1e-12)
    assert "trains-differently" in USUAL[name]().traits()


def accuracy(*defenses):
    """Of the server after enough rounds to learn the patterns."""
    federation = small_federation(TINY_MLP, local=whole_batch(0.3, epochs=60), capacities=[1.0, 0.5])
    run(federation, Blobs((30, 30), tests=60), 2, defenses)
    return federation.report.server.accuracy


def test_a_huge_strength_destroys_learning():
    """Plain training learns the patterns; with the defense turned up, they are hardly better than guessed."""
    assert accuracy() > 0.85
    for name, make in STRONG.items():
        assert accuracy(make()) < 0.6, name


WRONG = {
    "rate": [Dropout(1.0), Dropout(-0.1), Dropout(float("nan"))],
    "weight": [L2(-1.0), L2(float("nan")), L2(float("inf"))],
    "smoothing": [LabelSmoothing(1.1), LabelSmoothing(-0.1)],
    "alpha": [Mixup(-1.0), Mixup(float("nan")), Mixup(float("inf"))],
    "mode": [L2(mode="los")],
}


@pytest.mark.parametrize("option", WRONG)
def test_wrong_settings_are_refused(option):
    """With the option that corrects them."""
    for defense in WRONG[option]:
        with pytest.raises(UserError, match=f"{option}(.|\n)*--defenses.NAME.{option}") as error:
            trained(defense, rounds=1)
        assert type(defense).__name__ in error.value.problems[0].cause


def test_all_mistakes_at_once():
    """Four defenses, four remedies."""
    with pytest.raises(UserError) as error:
        trained(*(defenses[0] for option, defenses in WRONG.items() if option != "mode"), rounds=1)
    assert len(error.value.problems) == 4


@pytest.mark.parametrize("name", ["l2", "smoothing"])
def test_executors_agree(name):
    """One call for all clients gives what each gets alone."""
    defense = {"l2": L2(0.05), "smoothing": LabelSmoothing(0.3)}[name]
    first, *others = (trained(defense, executor=executor) for executor in ("sequence", "threads", "vectorised"))
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-12)


@pytest.mark.parametrize("defense", [Dropout(), L2(mode="decoupled"), Mixup()], ids=lambda made: type(made).__name__)
def test_what_acts_on_clients_one_by_one_says_so(defense):
    """The vectorised executor is refused."""
    with pytest.raises(UserError, match=f"{type(defense).__name__} acts on clients one by one"):
        trained(defense, executor="vectorised")


def test_smoothed_loss_in_closed_form():
    """1 - s + s/C of the true class and s/C of the others; what another defense added before stays."""

    class Ten(FederatedCallback):
        def client_loss(self, federation, client, batch, logits, loss):
            """Ten more."""
            return loss + 10

    losses = Losses()
    trained(Ten(), LabelSmoothing(0.3), losses)
    assert len(losses.seen) > 10
    for (_, labels), logits, loss in losses.seen:
        smooth = 0.7 * one_hot(labels, 3).double() + 0.1
        expected = -(smooth * log_softmax(logits, 1)).sum(1).mean()
        torch.testing.assert_close(loss - 10, expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(expected, cross_entropy(logits, labels, label_smoothing=0.3), rtol=0, atol=1e-13)


def test_smoothing_zero_leaves_the_loss_alone():
    """The very tensor, so that terms of other defenses are not rounded."""
    loss = torch.ones(())
    assert LabelSmoothing(0.0).client_loss(None, None, (None, None), None, loss) is loss


def test_at_smoothing_one_labels_do_not_matter():
    """The same model comes out for other labels."""

    class Relabelled(Blobs):
        def load(self):
            """Every label is another one."""
            raw = super().load()
            raw.labels.copy_((raw.labels + 1) % 3)
            return raw

    first, second = (
        run(small_federation(TINY_MLP, local=LOCAL), data(), 2, [LabelSmoothing(1.0)]) for data in (Blobs, Relabelled)
    )
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
