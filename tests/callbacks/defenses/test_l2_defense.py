"""L2: the optimisers' own weight decay, in the loss and decoupled."""

from functools import partial

import pytest
import torch
from federation_kit import sgd
from regulariser_kit import trained
from torch.optim import SGD, Adam, AdamW

from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from callbacks.defenses.l2 import L2


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}], ids=["plain", "momentum"])
def test_l2_in_the_loss_is_the_weight_decay_of_sgd(settings):
    """Biases included, at every width."""
    decayed = LocalTraining(batch_size=4, optimizer=sgd(0.2, weight_decay=0.05, **settings))
    plain = LocalTraining(batch_size=4, optimizer=sgd(0.2, **settings))
    torch.testing.assert_close(trained(L2(0.05), local=plain), trained(local=decayed), rtol=0, atol=1e-12)


def test_l2_in_the_loss_is_the_weight_decay_of_adam_not_of_adamw():
    """Adam's weight_decay is a gradient, too."""
    adam = LocalTraining(batch_size=4, optimizer=partial(Adam, lr=0.01))
    result = trained(L2(0.1), local=adam)
    decayed = LocalTraining(batch_size=4, optimizer=partial(Adam, lr=0.01, weight_decay=0.1))
    torch.testing.assert_close(result, trained(local=decayed), rtol=0, atol=1e-9)
    assert not torch.allclose(result, trained(L2(0.1, "decoupled"), local=adam), rtol=0, atol=1e-4)


def test_decoupled_is_adamw():
    """Over Adam, the parameters shrink beside the step, by the round's learning rate."""
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    make = partial(LocalTraining, batch_size=4, lr_schedule=schedule)
    result = trained(L2(0.3, "decoupled"), local=make(optimizer=partial(Adam, lr=0.01)))
    expected = trained(local=make(optimizer=partial(AdamW, lr=0.01, weight_decay=0.3)))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_both_modes_agree_for_plain_sgd():
    """Without momentum there is no difference."""
    torch.testing.assert_close(trained(L2(0.05)), trained(L2(0.05, "decoupled")), rtol=0, atol=1e-12)


class Wrapped(SGD):
    """An optimiser that hides another one, like Opacus's."""

    def __init__(self, original):
        self.original_optimizer = original

    def zero_grad(self, set_to_none=False):
        """The other one's."""
        self.original_optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        """Doubles the gradient, then steps the other one."""
        for group in self.original_optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad *= 2
        self.original_optimizer.step()


class Wrap(FederatedCallback):
    """Wraps the optimiser; takes down what hooks it has in the end."""

    def __init__(self):
        self.left = []

    def on_client_start(self, trainer, federation, client):
        """Before or after L2."""
        client.optimizer = Wrapped(client.optimizer)

    def on_client_end(self, trainer, federation, client):
        """In reverse order."""
        self.left.append(len(client.optimizer.original_optimizer._optimizer_step_pre_hooks))


def test_decoupled_reaches_a_wrapped_optimiser():
    """Whether it was wrapped before or after; the hook goes when the client's training ends."""
    inside = Wrap()
    results = [trained(inside, L2(0.1, "decoupled")), trained(L2(0.1, "decoupled"), Wrap())]
    # the gradient of the loss counts twice, the decay once: as if half the decay were in the doubled gradient
    for result in results:
        torch.testing.assert_close(result, trained(Wrap(), L2(0.05)), rtol=0, atol=1e-12)
    assert inside.left == [0] * 6
