"""Many run folders as one collection, from which tables, figures and reports are made.

A folder that is no finished run, or whose files cannot be read, is left out with the reason; it never stops the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from app.common.errors import UserError
from app.common.reading import read_json
from app.results.run.labels import RunLabels
from app.results.run.record import ClientEnd, RunRecord, error_text, read_run
from app.results.run.tuned import TunedRow, tuned_rows

__all__ = ["COMPARISON", "ClientEnd", "RunRecord", "Skipped", "Store", "read_store"]

COMPARISON = "comparison.json"
"""File beside the runs of a comparison with their places in its matrix."""

MOST_LISTED = 10
"""Reasons that an error lists."""


@dataclass(frozen=True)
class Skipped:
    """A folder or file that is not part of the collection, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class Store:
    """A collection of runs."""

    name: str  # of the comparison, or of the folder
    purpose: str  # what is compared, in one line; may be empty
    runs: tuple[RunRecord, ...]  # the finished runs, by labels
    skipped: tuple[Skipped, ...]  # what was left out
    # method and defense that others are compared with; None where nothing says so
    baseline: tuple[str, str] | None = None
    tuned: tuple[TunedRow, ...] = ()  # how rows were tuned, as far as they were

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.labels.dataset for run in self.runs))


@dataclass(frozen=True)
class _Plan:
    """Content of `comparison.json`: labels of its runs (`cells`) by name, and what of it cannot be used."""

    name: str = ""
    purpose: str = ""
    baseline: tuple[str, str] | None = None
    cells: Mapping[str, RunLabels] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_store(paths: Iterable[Path]) -> Store:
    """All runs below existing folders: run folders, folders of runs, or folders of comparisons.

    Raises:
        UserError: where a path does not exist, or no run is found in all of them.
    """
    folders = list(paths)
    runs: dict[Path, RunRecord] = {}
    skipped: list[Skipped] = []
    plans = [plan for path in folders if (plan := _plan_of(path, skipped)) is not None]
    for folder, labels in _folders(folders, skipped):
        try:
            runs.setdefault(folder.resolve(), read_run(folder, labels))
        except UserError as error:
            skipped.append(Skipped(folder, error.problems[0].cause))
        except Exception as error:  # a folder that nobody foresaw must not stop the others
            skipped.append(Skipped(folder, f"its files cannot be read ({type(error).__name__}: {error})"))
    if not runs:
        raise _nothing(folders, skipped)
    order = {labels: number for number, labels in enumerate(place for plan in plans for place in plan.cells.values())}
    first = plans[0] if len(plans) == 1 else _Plan()
    return Store(
        name=first.name or folders[0].resolve().name,
        purpose=first.purpose,
        runs=tuple(sorted(runs.values(), key=lambda run: (order.get(run.labels, len(order)), run.labels, run.name))),
        skipped=tuple(dict.fromkeys(skipped)),
        baseline=first.baseline,
        tuned=tuple(row for path in _comparisons(folders) for row in tuned_rows(path)),
    )


def _comparisons(paths: Iterable[Path]) -> list[Path]:
    """Folders that may hold the tuning of these runs: themselves, and those around them."""
    return list(dict.fromkeys(place for path in paths for place in (path.resolve(), path.resolve().parent)))


def _folders(paths: Iterable[Path], skipped: list[Skipped]) -> Iterator[tuple[Path, RunLabels | None]]:
    """Run folders with the labels that a comparison gives them."""
    for path in paths:
        if not path.is_dir():
            raise UserError.of(f"there is no folder {path}", "its runs cannot be shown", "name an existing folder")
        try:
            if _looks_like_run(path):
                yield path, _labels_from_parent(path)
                continue
            inner = sorted(each for each in path.iterdir() if not each.name.startswith("."))
        except OSError as error:
            skipped.append(Skipped(path, _unreadable(error)))
            continue
        yield from _within(path, inner, skipped)


def _within(path: Path, inner: list[Path], skipped: list[Skipped]) -> Iterator[tuple[Path, RunLabels | None]]:
    """Runs of a folder; those of its comparison that are not there yet are left out with that reason."""
    cells = (_plan_of(path) or _Plan()).cells
    for each in inner:
        try:
            if each.is_symlink():
                skipped.append(Skipped(each, "it is a link, and links are not followed; name it to see it"))
            elif each.name in cells or (each.is_dir() and _looks_like_run(each)):
                yield each, cells.get(each.name)
            elif each.is_dir():
                skipped.append(Skipped(each, _foreign(each)))
        except OSError as error:
            skipped.append(Skipped(each, _unreadable(error)))
    there = {each.name for each in inner}
    skipped += [Skipped(path / name, "not run yet") for name in cells if name not in there]


def _looks_like_run(path: Path) -> bool:
    return (path / "config.yaml").is_file()


def _foreign(path: Path) -> str:
    if (path / COMPARISON).is_file():
        return "it is a comparison of its own; name its folder to see it"
    return "it is no run of this program"


def _labels_from_parent(path: Path) -> RunLabels | None:
    """Labels of a single run in the comparison around it."""
    plan = _plan_of(path.resolve().parent)
    return None if plan is None else plan.cells.get(path.resolve().name)


def _plan_of(path: Path, skipped: list[Skipped] | None = None) -> _Plan | None:
    """Content of `comparison.json`, None where there is none; problems with it are added to `skipped`."""
    file = path / COMPARISON
    try:
        plan = _plan(read_json(file))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        plan = _Plan(problems=(f"{_unreadable(error)}; its runs are labelled by their configurations",))
    if skipped is not None:
        skipped += [Skipped(file, problem) for problem in plan.problems]
    return plan


def _plan(content: Any) -> _Plan:
    if not isinstance(content, Mapping):
        return _Plan(problems=("it tells no comparison; its runs are labelled by their configurations",))
    problems, cells = [], {}
    listed = content.get("cells")
    for number, cell in enumerate(listed if isinstance(listed, list) else [], start=1):
        try:
            dataset, method, defense = (str(cell[key]) for key in ("dataset", "method", "defense"))
            cells[str(cell["run"])] = RunLabels(dataset, method, defense, int(cell["seed"]))
        except (KeyError, TypeError, ValueError):
            problems.append(f"its cell {number} lacks the run's name or its place")
    return _Plan(
        name=str(content.get("name") or ""),
        purpose=str(content.get("purpose") or ""),
        baseline=_baseline(content.get("baseline")),
        cells=cells,
        problems=tuple(problems),
    )


def _baseline(pair: Any) -> tuple[str, str] | None:
    if isinstance(pair, Mapping) and "method" in pair and "defense" in pair:
        return str(pair["method"]), str(pair["defense"])
    return None


def _unreadable(error: Exception) -> str:
    return f"it cannot be read ({error_text(error)})"


def _nothing(folders: list[Path], skipped: list[Skipped]) -> UserError:
    left = "".join(f"\n    {folder.path}: {folder.reason}" for folder in skipped[:MOST_LISTED])
    more = f"\n    and {len(skipped) - MOST_LISTED} more" if len(skipped) > MOST_LISTED else ""
    return UserError.of(
        f"no finished run in {', '.join(map(str, folders))}{left}{more}",
        "there is nothing to show",
        "name folders of finished runs, such as runs/demo; `rampart fit` and `rampart compare` make them",
    )
