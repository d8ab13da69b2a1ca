"""A malicious server that is hindered: by masks, by clients that look at what they get, and by interruptions."""

from functools import partial

import pytest
from federation_kit import Recorder
from malicious_kit import attacked, only

from app.attacks.reconstruction.active.convergence_rate import ConvergenceRate
from app.attacks.reconstruction.active.rolling_model import RollingModel
from app.attacks.reconstruction.active.trap_server import TrapServer
from app.federation.channels.integer_code import IntegerCode
from app.federation.hooks import FederatedCallback
from app.federation.submodels import FedRolex, Prefix
from callbacks.attacks.malicious_server import MaliciousServer
from callbacks.defenses.secure_aggregation import SecureAggregation
from callbacks.defenses.tripwire import Tripwire

ORDINARY = {"allow_singletons": True, "model_bound": False, "refuse_repeated": False}
MASKED = partial(SecureAggregation, **ORDINARY, range=64.0, bits=32)


@pytest.mark.parametrize("first", [False, True])
def test_masks_hand_over_what_they_sum(first):
    """Ordinary secure aggregation: no message can be read, and the images come back as if there were none.

    The server reads what the masks leave, whether it is given behind the defense or in front of it.
    """
    recorder, server = Recorder(), MaliciousServer(RollingModel())
    stack = (recorder, server, MASKED()) if first else (MASKED(), recorder)
    server, found, _ = attacked(RollingModel(), callbacks=stack, server=server)
    assert all(message.payload is None for message in recorder.messages)
    assert only(found).oracle.recovered == 4
    assert server._isolation_error < 1e-6


def test_clients_that_train_once_on_a_model_keep_the_server_out():
    """The rolling server sends the others one model twice: by default they refuse, although masks are not bound."""
    _, found, _ = attacked(RollingModel(), callbacks=(MASKED(refuse_repeated=True),))
    assert "not those of the clients that sent something" in found[0].result.reason


def test_masks_bound_to_the_model_leave_noise(monkeypatch):
    """Clients that got different values do not cancel: nothing comes back, though the server reads impossible sums."""
    monkeypatch.setattr(IntegerCode, "impossible", lambda *_: 0)
    server, found, _ = attacked(RollingModel(), callbacks=(MASKED(model_bound=True),))
    assert server._isolation_error > 10
    assert only(found).oracle.recovered == 0


def test_masks_bound_to_the_model_do_not_stop_one_model_for_all():
    """The trap server is consistent."""
    _, found, _ = attacked(
        TrapServer(), (1,) * 6, [1.0, 1.0, *[0.5] * 4], rounds=1, callbacks=(MASKED(model_bound=True),)
    )
    assert only(found).oracle.recovered >= 4


def test_tripwire_keeps_inconsistent_servers_out():
    """Whoever got something else than the server committed to refuses; the attacked clients send nothing."""
    _, rolled, _ = attacked(RollingModel(others="frozen"), method=Prefix(), callbacks=(Tripwire(),))
    _, converged, _ = attacked(ConvergenceRate(), rounds=2, callbacks=(Tripwire(),))
    assert "no update reached the server" in rolled[0].result.reason, "all others see the same model twice"
    assert "none of the attacked clients" in converged[0].result.reason


def test_tripwire_does_not_notice_one_model_for_all():
    """A server that commits to its traps is consistent; nothing but noise on the updates would help."""
    tripwire = Tripwire()
    _, found, _ = attacked(TrapServer(), (1,) * 6, [1.0, 1.0, *[0.5] * 4], rounds=1, callbacks=(tripwire,))
    assert tripwire.measurements()["tripwire/alarms"] == 0
    assert only(found).oracle.recovered >= 4


def interrupted(tmp_path, before, **settings):
    """A server whose run was stopped before a round (0-based) and resumed, with the federation."""

    class Saving(FederatedCallback):
        """Keeps a checkpoint of every round."""

        kind = "recorder"

        def on_train_epoch_end(self, trainer, pl_module):
            """The state as it is between rounds."""
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch + 1}.ckpt")

    attacked(
        RollingModel(), server=MaliciousServer(RollingModel(), round=2), rounds=5, callbacks=(Saving(),), **settings
    )
    server = MaliciousServer(RollingModel(), round=2)
    _, found, federation = attacked(
        RollingModel(),
        server=server,
        rounds=5,
        checkpoint=tmp_path / f"{before}.ckpt",
        callbacks=(Saving(),),
        **settings,
    )
    return server, found, federation


def test_a_run_interrupted_within_the_attack_says_so(tmp_path):
    """The sum of the first round is gone; the rest of the run is honest, and the plan as announced."""
    _, found, federation = interrupted(tmp_path, before=2)
    assert "interrupted between the rounds" in found[0].result.reason
    assert isinstance(federation.method, FedRolex)


def test_a_run_interrupted_after_the_attack_keeps_its_result(tmp_path):
    """Results are written as soon as they are there, and nothing replaces them."""
    server, found, _ = interrupted(tmp_path, before=4)
    assert server._done
    assert found == []
    server = MaliciousServer(RollingModel())
    server.load_state_dict({"first": 1, "done": True})
    assert server.on_transcript(None, None) is None


def test_a_run_interrupted_before_the_attack_is_attacked(tmp_path):
    """As if nothing had happened."""
    _, found, _ = interrupted(tmp_path, before=1)
    assert only(found).oracle.recovered == 4
