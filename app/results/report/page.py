"""The report: one HTML file that needs nothing else, and beside it the tables and figures as files."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, unquote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from app.common.errors import UserError
from app.common.files import list_made, replace_all
from app.common.reading import refuse_links
from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable
from app.results.comparison.verdict_tables import word_tables
from app.results.published.formats import HEADS, as_cells
from app.results.published.side_by_side import PublishedComparison
from app.results.report.conclusions import Conclusion, conclusions
from app.results.report.details import row_details
from app.results.report.drawing import RenderedFigure
from app.results.report.headline import headline
from app.results.report.notes import PageNotes
from app.results.report.table import page_table
from app.results.report.threats import threat_models
from app.results.run.naming import shortened
from app.results.run.store import Store

GENERATOR = "rampart report"
"""Tells our pages from those of others."""

KINDS = {".csv": "text/csv", ".md": "text/markdown", ".tex": "application/x-tex"}
"""Media types of the tables."""


@dataclass(frozen=True, eq=False)
class PageContent:
    """Everything that a page shows."""

    store: Store  # the runs
    table: ComparisonTable  # of these runs
    figures: Sequence[RenderedFigure]  # of these runs, in order
    files: Mapping[str, str]  # tables as files, content by name
    published: PublishedComparison | None = None  # published results beside ours; None where there are none


def write_page(path: Path, content: PageContent) -> None:
    """Write the page and the folder of the same name beside it.

    Args:
        path: of the page; its folder is made.
        content: what it shows.

    Raises:
        UserError: where nothing can be written there.
    """
    folder = files_folder(path)
    contents = {folder / name: text.encode() for name, text in content.files.items()}
    for each in content.figures:
        contents[folder / f"{each.figure.key}.svg"] = each.svg.encode()
        contents[folder / f"{each.figure.key}.png"] = each.png
    contents[path] = page(content, folder.name, datetime.now()).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder, itself=True)
        former = _linked(path, folder)
        list_made(contents)
        replace_all(contents, private=False)
        for obsolete in former - set(contents):
            obsolete.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # a path that holds a null byte is a ValueError
        raise UserError.of(
            f"cannot write {shortened(path)}: {getattr(error, 'strerror', None) or error}",
            "there is no report",
            "free some space, or choose another place with --output",
        ) from error


def files_folder(path: Path) -> Path:
    """Folder of the files that belong to a page: `report/` beside `report.html`."""
    return path.with_suffix("")


def _linked(path: Path, folder: Path) -> set[Path]:
    """Files that the former page of this path links."""
    if path.is_symlink() or not path.is_file():
        return set()
    links = re.findall(rf'href="{re.escape(quote(folder.name))}/([^"/]+)"', path.read_text(errors="replace"))
    return {folder / Path(unquote(link)).name for link in links}


def page(content: PageContent, folder: str, made: datetime) -> str:
    """The page as text.

    Args:
        content: what it shows.
        folder: where its files lie, relative to the page.
        made: time at which it is made.
    """
    store, table = content.store, content.table
    whole, words = page_table(table, store.baseline), word_tables(table)
    environment = Environment(
        loader=PackageLoader("app.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        generator=GENERATOR,
        style=_asset("report.css") + _asset("rows.css"),
        script=_asset("report.js") + _asset("rows.js"),
        store=store,
        made=made,
        facts=_facts(store, table),
        conclusions=_by_dataset(conclusions(table)),
        word_tables=words,
        places={(row.dataset, row.name): place for place, row in enumerate(table.rows)},
        table=whole,
        headline=headline(table, whole, words),
        figures=content.figures,
        published=content.published,
        published_heads=HEADS,
        published_cells=as_cells(content.published) if content.published else (),
        published_notes=PageNotes(prefix="published-note"),
        threats=threat_models(store),
        details=row_details(store, table),
        # folders that were left out have a section of their own
        methods=[note for note in table.notes if not note.startswith("left out:")],
        any_missing=any(isinstance(value, NotAvailable) for row in table.rows for value in row.values.values()),
        downloads=[(name, f"{folder}/{name}", _data_url(name, text)) for name, text in content.files.items()],
        folder=folder,
        quote=quote,
    )


def _facts(store: Store, table: ComparisonTable) -> dict[str, object]:
    return {
        "Runs": len(store.runs),
        "Rows": len(table.rows),
        "Seeds": len({run.labels.seed for run in store.runs}),
        "Datasets": ", ".join(store.datasets),
        "Baseline": " / ".join(store.baseline) if store.baseline else "none named",
        "Left out": len(store.skipped),
    }


def _by_dataset(sentences: Sequence[Conclusion]) -> dict[str, list[Conclusion]]:
    grouped: dict[str, list[Conclusion]] = {}
    for each in sentences:
        grouped.setdefault(each.dataset, []).append(each)
    return grouped


def _data_url(name: str, content: str) -> str:
    kind = KINDS.get(Path(name).suffix, "text/plain")
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(content.encode()).decode()}"


def _asset(name: str) -> Markup:
    """A file of the program beside this module, which the page contains as it is."""
    return Markup((files("app.results.report") / name).read_text())  # noqa: S704, our own file
