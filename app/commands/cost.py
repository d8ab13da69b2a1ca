"""`rampart cost`: estimate what encrypted and masked channels would take per round, before any training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar, get_args

from app.commands.fit import quieten
from app.common.errors import UserError
from app.common.files import write_json
from app.common.progress import track
from app.common.ranges import Count
from app.common.wording import counted
from app.configuration import Parser, expand, run_parser
from app.crypto.cost import measure_masking, measure_paillier
from app.crypto.paillier.keys import KeyLength, generate
from app.crypto.secure_aggregation.streams import word_for
from app.federation.channels.cost import ChannelCost, RoundCosts
from app.federation.channels.integer_code import largest_sum
from app.federation.hooks import FederatedCallback, federated_callbacks
from app.federation.module import FederatedModule
from app.results.run.naming import shortened
from app.results.text_table import bullet, text_table
from app.run import run_of
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation

SECONDS = ("client s", "server s", "decrypt s", "shared s")

C = TypeVar("C", bound=FederatedCallback)


@dataclass(frozen=True)
class CostSettings:
    """What to estimate.

    Attributes:
        round: the round to look at, counted from 1; rounds differ where clients or submodels are drawn.
        json: also write the numbers to this file.
    """

    round: Count = 1
    json: str | None = None


def cost_parser() -> Parser:
    """The options of the command."""
    return run_parser("rampart cost", str(__doc__), cost=CostSettings)


def cost(arguments: Sequence[str]) -> int:
    """Estimate the costs of the channels; returns the exit code."""
    quieten()
    parser = cost_parser()
    config = parser.parse_args(expand(arguments))
    settings = CostSettings(**vars(config.cost))
    federation = run_of(parser, config, "dry").prepared()
    number = settings.round
    if number > federation.rounds:
        raise UserError.of(
            f"--cost.round is {number}, and the run has {counted(federation.rounds, 'round')}",
            "there is nothing to estimate",
            f"set --cost.round to {federation.rounds} or less",
        )
    costs = list(_costs(federation, number))
    clients = costs[0].clients
    taking_part = f"{counted(clients, 'client')} in round {number}"
    print(f"{federation.method.title}: {federation.space.size:,} weights, {taking_part}\n")
    neighbours = max(cost.neighbours for cost in costs)
    print(_table(costs), "", *map(bullet, _legend(_paillier(federation), neighbours)), sep="\n")
    if settings.json is not None:
        _write(Path(settings.json), costs)
    return 0


def _costs(federation: FederatedModule, number: int) -> Iterator[ChannelCost]:
    paillier, masking = _paillier(federation), _chosen(federation, SecureAggregation) or SecureAggregation()
    plan = federation.plan_of(number - 1)
    costs = RoundCosts(federation, plan, masking.point, masking.max_weight)
    yield costs.plain()
    word = word_for(largest_sum(federation, masking.point, masking.max_weight))
    yield costs.masked(measure_masking(word), masking.graph)
    packed = RoundCosts(federation, plan, paillier.point, paillier.max_weight)
    for bits in track(get_args(KeyLength), "measuring Paillier", "keys"):
        yield packed.paillier(bits, measure_paillier(generate(bits), paillier.exponent))


def _paillier(federation: FederatedModule) -> Paillier:
    return _chosen(federation, Paillier) or Paillier()


def _chosen(federation: FederatedModule, kind: type[C]) -> C | None:
    return next((callback for callback in federated_callbacks(federation.trainer) if isinstance(callback, kind)), None)


def _table(costs: list[ChannelCost]) -> str:
    rows = []
    for cost in costs:
        growth = f"{cost.up / costs[0].up:.2f}" if costs[0].up else "-"
        sizes = [_bytes(cost.up / max(1, cost.clients)), _bytes(cost.up), growth, _bytes(cost.down)]
        seconds = [cost.client, cost.server, cost.decrypt, cost.shared_decrypt]
        rows.append([cost.name, *sizes, *map(_seconds, seconds)])
    return text_table(("channel", "up / client", "up / round", "x plain", "down / round", *SECONDS), rows)


def _legend(paillier: Paillier, neighbours: int) -> Iterator[str]:
    yield "Seconds are of one core of this machine, extrapolated from measured samples; bytes follow from the plan."
    yield (
        "client s: an average client masks or encrypts; server s: the server adds up; decrypt s: one client decrypts "
        "the whole sum, for itself or for all; shared s: each client decrypts an equal part."
    )
    yield (
        f"Paillier: {paillier.point.bits} bits per value, precision {paillier.point.step:.2g}, {paillier.exponent} "
        f"exponents. Secure aggregation: nobody drops out, {counted(neighbours, 'neighbour')} per client."
    )


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _seconds(value: float) -> str:
    return "-" if value == 0 else f"{value:.3g}"


def _write(path: Path, costs: list[ChannelCost]) -> None:
    records = [asdict(cost) | {"shared_decrypt": cost.shared_decrypt} for cost in costs]
    try:
        write_json(path, records, private=False)
    except (OSError, ValueError) as error:  # a path that holds a null byte is a ValueError
        cause = f"cannot write {shortened(path)}: {getattr(error, 'strerror', None) or error}"
        raise UserError.of(cause, "the numbers are not kept", "choose another --cost.json") from error
