"""The report: one HTML file that needs nothing else, and beside it the tables and pictures as files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, unquote

from app.errors import UserError
from app.files import replace_all
from app.results.comparison.table import ComparisonTable
from app.results.report.details import run_section
from app.results.report.drawing import Drawing
from app.results.report.markup import Html, joined, tag
from app.results.report.sections import (
    download_section,
    finding_section,
    heading,
    obtained_section,
    picture_section,
    skip_links,
    skipped_section,
)
from app.results.report.table_section import table_section
from app.results.report.threats import threat_section
from app.results.run.store import Store

GENERATOR = "rampart report"
"""Tells our pages from those of others."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Nothing may be loaded from anywhere, nor sent anywhere."""


@dataclass(frozen=True)
class Part:
    """A part of the page.

    Attributes:
        key: its id.
        title: heading above it, and text of the link to it.
        content: everything below the heading.
    """

    key: str
    title: str
    content: Html


def write_page(
    path: Path,
    store: Store,
    table: ComparisonTable,
    drawings: Sequence[Drawing],
    tables: Mapping[str, str],
    more: Iterable[Part] = (),
    made: datetime | None = None,
) -> None:
    """Write the page and the folder of the same name beside it.

    Args:
        path: of the page; its folder is made.
        store: the runs.
        table: of these runs.
        drawings: pictures of them, in order.
        tables: files of tables, content by name.
        more: further parts, behind the pictures.
        made: when; now, unless told otherwise.

    Raises:
        UserError: where nothing can be written there.
    """
    folder = files_folder(path)
    contents = {folder / name: content.encode() for name, content in tables.items()}
    for drawing in drawings:
        contents[folder / f"{drawing.picture.key}.svg"] = drawing.svg.encode()
        contents[folder / f"{drawing.picture.key}.png"] = drawing.png
    contents[path] = page(store, table, drawings, tables, folder.name, more, made or datetime.now()).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        former = _linked(path, folder)
        replace_all(contents)
        for left in former - set(contents):
            left.unlink(missing_ok=True)
    except OSError as error:
        raise UserError.of(
            f"cannot write {path}: {error.strerror or error}",
            "there is no report",
            "free some space, or choose another place with --output",
        ) from error


def files_folder(path: Path) -> Path:
    """Folder of the files that belong to a page: `report/` beside `report.html`."""
    return path.with_suffix("")


def _linked(path: Path, folder: Path) -> set[Path]:
    """Files that the page before this one has linked: what it does not link any more would lie there unexplained."""
    if not path.is_file():
        return set()
    links = re.findall(rf'href="{re.escape(quote(folder.name))}/([^"/]+)"', path.read_text(errors="replace"))
    return {folder / Path(unquote(link)).name for link in links}


def page(
    store: Store,
    table: ComparisonTable,
    drawings: Sequence[Drawing],
    tables: Mapping[str, str],
    folder: str,
    more: Iterable[Part],
    made: datetime,
) -> str:
    """The page as text.

    Args:
        store: the runs.
        table: of these runs.
        drawings: pictures of them, in order.
        tables: files of tables, content by name.
        folder: where the files lie, relative to the page.
        more: further parts, behind the pictures.
        made: when.
    """
    parts = [
        Part("findings", "Findings", finding_section(table)),
        Part("table", "Table", table_section(table, store.baseline)),
        Part("pictures", "Pictures", picture_section(drawings, folder)),
        *more,
        Part("threats", "Threat models", threat_section(store)),
        Part("runs", "Runs", run_section(store, table)),
        Part("skipped", "Left out", skipped_section(store.skipped)),
        Part("obtained", "How the numbers were obtained", obtained_section(table)),
        Part("downloads", "Tables as files", download_section(tables, folder)),
    ]
    return f"<!DOCTYPE html>\n{tag('html', _head(store.name), _body(store, table, parts, made), lang='en')}\n"


def _head(title: str) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="generator", content=GENERATOR),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title}: report"),
        tag("style", _asset("report.css")),
        tag("script", _asset("report.js")),
    )


def _body(store: Store, table: ComparisonTable, parts: Sequence[Part], made: datetime) -> Html:
    toggle = tag("button", "Dark theme", type="button", id="theme", aria_pressed="false", hidden=True)
    links = skip_links({part.key: part.title for part in parts})
    sections = joined(
        tag("section", tag("h2", part.title), part.content, id=part.key, aria_label=part.title) for part in parts
    )
    return tag(
        "body",
        tag("a", "Skip to the table", href="#table", class_="skip"),
        tag("header", tag("div", heading(store, table, made), class_="title"), toggle),
        links,
        tag("main", sections),
        tag("div", id="tip", role="tooltip", hidden=True),
    )


def _asset(name: str) -> Html:
    """A file that lies beside this module, to be put into the page as it is."""
    return Html((files("app.results.report") / name).read_text())
