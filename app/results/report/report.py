"""Reports: tables, figures and one HTML page of finished runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.common.errors import UserError
from app.common.progress import track
from app.results.comparison.data_formats import as_csv, as_csv_seeds, tracked_columns, tracked_rows
from app.results.comparison.formats import as_latex, as_markdown, as_text
from app.results.comparison.table import ComparisonTable
from app.results.comparison.tabulate import tabulate
from app.results.figures import figures_of
from app.results.frames import as_frame, html_table
from app.results.published.formats import as_markdown as published_markdown
from app.results.published.formats import as_text as published_text
from app.results.published.side_by_side import PublishedComparison, published_of, side_by_side
from app.results.report.drawing import RenderedFigure, render_figure
from app.results.report.page import GENERATOR, PageContent, files_folder, write_page
from app.results.run.naming import shortened
from app.results.run.store import COMPARISON, Store, read_store

if TYPE_CHECKING:
    import pandas

MOST_LISTED = 20
"""Folders that were left out, and are listed on the terminal; the page lists all of them."""


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A report that was written.

    Attributes:
        path: its page.
        store: the runs it is about.
        table: their table.
        published: published numbers beside ours; None where they were not asked for.
    """

    path: Path
    store: Store
    table: ComparisonTable
    published: PublishedComparison | None = None

    def text(self) -> str:
        """The table as text, and where the report is."""
        beside = [] if self.published is None else [published_text(self.published)]
        return "\n".join([as_text(self.table), *beside, *_closing_lines(self.store, self.path)])

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a data frame: one row per dataset, method and defense, numbers in the units of their columns."""
        return as_frame(tracked_columns(self.table), tracked_rows(self.table))

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html_table(tracked_columns(self.table), tracked_rows(self.table))


def report(*folders: str | Path, output: str | Path | None = None, published: bool = False) -> Report:
    """Write tables, figures and one HTML page about finished runs.

    Example::

        report("runs/demo").to_pandas()

    Args:
        folders: existing folders of runs or comparisons, one or more.
        output: the page, ending in `.html`; without, `report.html` in the folder of the comparison, or the first one.
        published: whether published numbers must be known, and are part of its text.

    Raises:
        UserError: where there is no finished run, or the page cannot be written there.
    """
    paths = [Path(folder) for folder in folders]
    try:
        path = _page_path(paths, None if output is None else Path(output))
    except OSError as error:
        cause = f"{shortened(error.filename or paths[0])} cannot be opened: {error.strerror or error}"
        raise UserError.of(cause, "there is no report", "name other folders, or another --output") from error
    store = _without_reports(read_store(paths))
    table = tabulate(store)
    beside = _beside(store, table, published)
    write_page(path, PageContent(store, table, list(_rendered(store, table)), _tables(table, beside), beside))
    return Report(path, store, table, beside if published else None)


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
    place = home if output is None else output
    path = place / "report.html" if output is None or output.is_dir() else place
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
    yield from map(render_figure, track(figures, "drawing", "figures"))


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
