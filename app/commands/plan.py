"""`rampart plan`: show who trains which weights over the rounds, before any training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.commands.fit import quieten
from app.common.errors import Problem, UserError, raise_all
from app.common.files import write_figure, write_json, write_text
from app.common.progress import track
from app.common.ranges import Count
from app.common.wording import counted
from app.configuration import Parser, expand, run_parser
from app.federation.module import FederatedModule
from app.federation.plan_audit.audit import PlanAudit, audit
from app.federation.plan_audit.release_ledger import PlanBlocks, ReleaseLedger
from app.federation.private_coordinates import uploaded_coordinates, uploaded_rounds
from app.results.run.naming import shortened
from app.results.run.plan_figures import LayerMap, PlanMaps, draw_layer, draw_overview
from app.results.run.plan_report import findings, header, plain_plan, rows_csv, table
from app.results.text_table import bullet
from app.run import run_of


@dataclass(frozen=True)
class PlanSettings:
    """How far to plan, and where to keep the plan.

    Attributes:
        rounds: plan the first so many rounds, at least 1; without a number, all rounds of the run.
        folder: folder of the table and the figures, whose files are overwritten; without one, `plan` beside the runs.
    """

    rounds: Count | None = None
    folder: str | None = None


def plan_parser() -> Parser:
    """The options of the command."""
    return run_parser("rampart plan", str(__doc__), plan=PlanSettings)


def plan(arguments: Sequence[str]) -> int:
    """Show the plan of a federation; returns the exit code."""
    quieten()
    parser = plan_parser()
    config = parser.parse_args(expand(arguments))
    settings = PlanSettings(**vars(config.plan))
    folder = Path(settings.folder) if settings.folder is not None else Path(config.run.root) / "plan"
    raise_all(_problems(settings, folder))
    federation = run_of(parser, config, "dry").prepared()
    rounds = settings.rounds or federation.rounds
    if rounds < 1:
        remedy = "set --trainer.max_epochs to 1 or more, or --plan.rounds"
        raise UserError.of("the run has no round", "there is nothing to plan", remedy)
    maps = PlanMaps(federation.space, len(federation.client_pool.sizes), {*range(min(3, rounds)), rounds - 1})
    uploads = uploaded_rounds(federation, range(rounds))
    bar = track(uploads, "planning", "rounds", total=rounds)
    blocks = PlanBlocks(federation)
    followed = blocks.follow(maps.follow(bar))
    plan_audit = audit(followed, federation.space, uploaded_coordinates(federation), maps.watch)
    ledger = ReleaseLedger(federation, blocks, rounds=rounds)
    print(header(federation, plan_audit), table(plan_audit), sep="\n\n")
    print("", *map(bullet, findings(plan_audit, federation.uncovered_cells, ledger)), sep="\n")
    figures = _keep(folder, federation, plan_audit, ledger, maps.layers)
    print(f"\nin {folder}: plan.json, plan.csv" + (f", {figures}" if figures else ""))
    return 0


def _problems(settings: PlanSettings, folder: Path) -> Iterator[Problem]:
    """What cannot be planned, before data are read."""
    try:
        holds_run = (folder / "config.yaml").exists()
    except OSError as error:
        yield _not_kept(folder, error)
        return
    if holds_run:
        yield Problem(f"{folder} holds a run", "its plan.json would be overwritten", "choose another --plan.folder")


def _not_kept(folder: Path, error: Exception) -> Problem:
    cause = f"cannot write {shortened(folder)}: {getattr(error, 'strerror', None) or error}"
    return Problem(cause, "the plan is not kept", "choose another --plan.folder")


def _keep(
    folder: Path, federation: FederatedModule, plan_audit: PlanAudit, ledger: ReleaseLedger, layers: list[LayerMap]
) -> str:
    """Write the files; returns the names of the figures in words."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _delete_figures(folder)
        names = _draw(folder, federation, layers)
        record = plain_plan(federation, plan_audit, ledger) | {"pictures": names}
        write_json(folder / "plan.json", record, private=False)
        write_text(folder / "plan.csv", rows_csv(plan_audit), private=False)
    except (OSError, ValueError) as error:  # a path that holds a null byte is a ValueError
        raise UserError(_not_kept(folder, error)) from error
    return f"overview.png and one figure for each of {len(layers)} weight layers" if names else ""


def _draw(folder: Path, federation: FederatedModule, layers: list[LayerMap]) -> list[str]:
    if not layers:
        return []
    title = f"{federation.method.title}, {counted(len(federation.client_pool.sizes), 'client')}"
    write_figure(folder / "overview.png", draw_overview(layers, title), private=False)
    for layer in track(layers, "drawing", "figures"):
        write_figure(folder / f"{layer.name}.png", draw_layer(layer, title), private=False)
    return ["overview.png", *(f"{layer.name}.png" for layer in layers)]


def _delete_figures(folder: Path) -> None:
    """Delete the figures of an earlier plan, which may be those of another network."""
    try:
        names = json.loads((folder / "plan.json").read_text())["pictures"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and Path(name).name == name and name.endswith(".png"):
            (folder / name).unlink(missing_ok=True)
