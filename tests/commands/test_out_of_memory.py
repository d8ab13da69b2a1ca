"""Too little memory: one clear error that says what asked for how much, or a refusal before anything is allocated."""

import numpy as np
import pytest
import torch
from run_kit import command, exit_code

from app.attacks.findings import explained
from app.common.memory import available_memory, in_bytes, out_of_memory
from app.common.progress import Step
from app.federation.hooks import FederatedCallback

pytestmark = pytest.mark.filterwarnings("ignore")

HUGE = 2**58
"""Bytes that no machine has."""


class Greedy(FederatedCallback):
    """Asks for more memory than there is in the second round."""

    def on_client_update(self, trainer, federation, update):
        """An exabyte, or an error without a size."""
        if update.round == 1:
            torch.empty(HUGE, dtype=torch.uint8)


def raised(allocate) -> BaseException:
    """The error of an allocation."""
    with pytest.raises((MemoryError, RuntimeError)) as caught, Step("attack network", 9, "epochs"):
        allocate()
    return caught.value


@pytest.mark.parametrize(
    ("allocate", "asked"),
    [
        (lambda: torch.empty(HUGE, dtype=torch.uint8), "288 PB"),
        (lambda: np.empty(HUGE, dtype=np.uint8), "256. PiB"),
        (lambda: (_ for _ in ()).throw(MemoryError()), "memory"),
        (
            lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA: Tried to allocate 20.00 GiB. GPU 0")),
            "20.00 GiB",
        ),
    ],
    ids=["torch", "numpy", "python", "cuda"],
)
def test_the_error_names_step_and_size(allocate, asked):
    """As the libraries word it, on any device; also where it ends an attack only."""
    error = raised(allocate)
    problem = out_of_memory(error)
    assert problem.cause == f"out of memory: {asked} asked for by attack network: 0 of 9 epochs"
    assert "--model.block_size" in problem.remedy
    assert explained(error).startswith(problem.cause)


def test_other_errors_are_not_about_memory():
    """They keep their traceback."""
    assert out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert out_of_memory(ValueError("tried to allocate 5 bytes")) is None


def test_a_run_that_runs_out_of_memory(tmp_path, capsys):
    """Exit code 1, the round and the size of the network; no traceback."""
    assert exit_code("fit", *command(tmp_path, "a", "--defenses.greedy", f"{__name__}.Greedy")) == 1
    error = capsys.readouterr().err
    assert "error: out of memory: 288 PB asked for by round 2 of a network with 610 parameters" in error
    assert "remedy: " in error
    assert "Traceback" not in error


@pytest.mark.parametrize("hidden", ["[1000000000]", "[1000000, 1000000]", f"[{2**31 - 1}, {2**31 - 1}]"])
def test_a_network_too_large_for_memory_is_refused(hidden, tmp_path, capsys):
    """Before anything is allocated, whether or not a number can hold its size."""
    assert exit_code("fit", *command(tmp_path, "a", "--model.net.hidden", hidden)) == 2
    error = capsys.readouterr().err
    assert "the network has" in error
    assert "remedy: make it smaller: --model.net" in error


def test_memory_in_words():
    """There is some."""
    assert 0 < available_memory() < HUGE
    assert [in_bytes(count) for count in (12, 1234, 5e6, 7.25e12, 1e19)] == [
        *("12 bytes", "1.23 kB", "5 MB", "7.25 TB", "1e+04 PB"),
    ]
