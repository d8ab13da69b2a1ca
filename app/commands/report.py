"""`rampart report FOLDER ...`: tables, figures and one HTML page of finished runs.

A folder is a run, a folder of runs, or a comparison. Runs that are not finished are left out, with the reason.
"""

from __future__ import annotations

import re
import webbrowser
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from app.commands.fit import quieten
from app.errors import UserError
from app.results.comparison.data_formats import as_csv, as_csv_seeds, tracked_columns, tracked_numbers, tracked_rows
from app.results.comparison.formats import as_latex, as_markdown, as_text
from app.results.comparison.table import ComparisonTable
from app.results.comparison.tabulate import tabulate
from app.results.figures import figures_of
from app.results.published.formats import as_markdown as published_markdown
from app.results.published.formats import as_text as published_text
from app.results.published.side_by_side import PublishedComparison, published_of, side_by_side
from app.results.report.drawing import RenderedFigure, render_figure
from app.results.report.page import GENERATOR, PageContent, files_folder, write_page
from app.results.run.store import COMPARISON, Store, read_store
from app.results.run.tracking import TrackingMode, make_tracker

MOST_LISTED = 20
"""Folders that were left out, and are listed on the terminal; the page lists all of them."""


@dataclass(frozen=True, eq=False)
class Report:
    """A report that was written: its page, the runs it is about, and their table."""

    path: Path
    store: Store
    table: ComparisonTable


def report(arguments: Sequence[str]) -> int:
    """Make a report; returns the exit code."""
    quieten()
    options = report_parser().parse_args(list(arguments))
    made = make_report(options.folders, options.output, options.published)
    if options.track is not None:
        _track(made, options.track)
    if options.open:
        webbrowser.open(made.path.resolve().as_uri())
    return 0


def report_parser() -> ArgumentParser:
    """The options of the command."""
    parser = ArgumentParser(
        prog="rampart report",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="runs or comparisons, as in runs/demo")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page (default: report.html in the folder)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--published", action="store_true", help="print published figures beside the measured ones")
    parser.add_argument(
        "--track", choices=("offline", "online"), help="keep the report in Weights & Biases too: offline, or uploaded"
    )
    return parser


def make_report(paths: Sequence[Path], output: Path | None = None, published: bool = False) -> Report:
    """Write the report of some folders and print its table.

    Args:
        paths: existing folders of runs or comparisons, one or more.
        output: the page, ending in `.html`; without, `report.html` in the folder of the comparison, or the first one.
        published: whether published numbers are printed beside the measured ones.
    """
    path = _page_path(paths, output)
    store = _without_reports(read_store(paths))
    table = tabulate(store)
    beside = _beside(store, table, published)
    write_page(path, PageContent(store, table, list(_rendered(store, table)), _tables(table, beside), beside))
    print(as_text(table))
    if beside and published:
        print(published_text(beside))
    print(*_closing_lines(store, path), sep="\n", flush=True)
    return Report(path, store, table)


def _beside(store: Store, table: ComparisonTable, wanted: bool) -> PublishedComparison | None:
    """Published numbers beside ours; None where the comparisons name none."""
    figures = published_of(store)
    if wanted and not figures:
        raise UserError.of(
            "no published figures are known for these runs",
            "there is nothing to set beside them",
            "leave out --published, or name a comparison of a published table, see `rampart list comparisons`",
        )
    return side_by_side(store, table, figures) if figures else None


def _page_path(paths: Sequence[Path], output: Path | None) -> Path:
    """Where the page goes; a file that is no report is never overwritten."""
    home = next((path for path in paths if (path / COMPARISON).is_file()), paths[0])
    path = output or home / "report.html"
    if path.is_dir():
        path = path / "report.html"
    if path.suffix != ".html":
        raise UserError.of(f"the report would be {path}", "browsers would not show it", "let --output end in .html")
    if path.is_file() and GENERATOR.encode() not in path.read_bytes()[:2000]:
        raise UserError.of(f"{path} is no report of this program", "it would be lost", "choose another --output")
    if (files_folder(path) / "config.yaml").is_file():
        cause = f"the report's tables and figures would go to {files_folder(path)}, which is a run"
        raise UserError.of(cause, "they would be mixed with its results", "choose another --output")
    return path


def _without_reports(store: Store) -> Store:
    """The store without remarks on folders that an earlier report has left beside the runs."""
    others = [folder for folder in store.skipped if not folder.path.with_suffix(".html").is_file()]
    return replace(store, skipped=tuple(others))


def _rendered(store: Store, table: ComparisonTable) -> Iterator[RenderedFigure]:
    figures = figures_of(store, table)
    yield from map(render_figure, tqdm(figures, "drawing", unit=" figures", delay=1, leave=False, disable=None))


def _tables(table: ComparisonTable, beside: PublishedComparison | None) -> dict[str, str]:
    files = {
        "table.csv": as_csv(table),
        "table-seeds.csv": as_csv_seeds(table),
        "table.md": as_markdown(table),
        "table.tex": as_latex(table),
    }
    return files | ({"published.md": published_markdown(beside)} if beside else {})


def _closing_lines(store: Store, path: Path) -> Iterator[str]:
    """Folders that were left out, and the place of the report."""
    if store.skipped:
        yield f"left out ({len(store.skipped)}):"
        yield from (f"  {folder.path}: {folder.reason}" for folder in store.skipped[:MOST_LISTED])
        if len(store.skipped) > MOST_LISTED:
            yield f"  and {len(store.skipped) - MOST_LISTED} more, all of them listed in the report"
    yield f"report: {path} (tables and figures as files: {files_folder(path)}/)"


def _track(made: Report, mode: TrackingMode) -> None:
    folder = files_folder(made.path)
    name = re.sub(r"[^\w.-]", "-", f"{made.store.name}-report")
    project = next((str(run.config["project"]) for run in made.store.runs if run.config.get("project")), "rampart")
    tracker = make_tracker(mode, folder, name, made.store.name, project)
    assert tracker is not None
    others = sorted(path for path in folder.iterdir() if path.is_file())
    tracker.log_report(
        made.path, others, tracked_numbers(made.table), tracked_columns(made.table), tracked_rows(made.table)
    )
    tracker.finalize("success")
    print(f"Weights & Biases: run {name} of group {made.store.name}, {mode}" + _hint(mode, folder))


def _hint(mode: TrackingMode, folder: Path) -> str:
    return f"; upload it with: wandb sync {folder / 'wandb'}/offline-run-*" if mode == "offline" else ""
