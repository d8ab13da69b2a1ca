"""Parts of the page that are mostly text: title, findings, pictures, what was left out, how numbers were obtained."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from urllib.parse import quote

from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable
from app.results.report.conclusions import Conclusion, findings
from app.results.report.drawing import Drawing, inline
from app.results.report.markup import Html, items, joined, tag
from app.results.run.store import Skipped, Store

KINDS = {".csv": "text/csv", ".md": "text/markdown", ".tex": "application/x-tex"}


def heading(store: Store, table: ComparisonTable, made: datetime) -> Html:
    """Title, purpose, and how much the report is about."""
    seeds = {run.labels.seed for run in store.runs}
    facts = [
        ("Runs", len(store.runs)),
        ("Rows", len(table.rows)),
        ("Seeds", len(seeds)),
        ("Datasets", ", ".join(store.datasets)),
        ("Baseline", " / ".join(store.baseline) if store.baseline else "none named"),
        ("Left out", len(store.skipped)),
        ("Made", tag("time", made.strftime("%Y-%m-%d %H:%M"), datetime=made.isoformat(timespec="minutes"))),
    ]
    told = joined(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts)
    return joined(
        (
            tag("h1", store.name),
            tag("p", store.purpose, class_="purpose") if store.purpose else "",
            tag("dl", told, class_="facts"),
        )
    )


def finding_section(table: ComparisonTable) -> Html:
    """What the standings say, one sentence per dataset and headline measure."""
    found = findings(table)
    if not found:
        return tag("p", "There is nothing to compare: every dataset has a single row with numbers.")
    by_dataset: dict[str, list[Html]] = {}
    for one in found:
        by_dataset.setdefault(one.dataset, []).append(_finding(one))
    blocks = [
        tag("div", tag("h3", dataset) if len(by_dataset) > 1 else "", items(told))
        for dataset, told in by_dataset.items()
    ]
    return tag("div", *blocks, class_="findings")


def _finding(found: Conclusion) -> Html:
    """What the measure means, up to its range or a remark in brackets, and what the standings say."""
    what = re.split(r", | \(", found.measure.meaning, maxsplit=1)[0].rstrip(".")
    together = found.sentence.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    return joined((tag("b", f"{what[:1].upper()}{what[1:]}: "), together))


def picture_section(drawings: Sequence[Drawing], folder: str) -> Html:
    """Every picture with what it shows and how to read it.

    Args:
        drawings: in order.
        folder: where their files lie, relative to the page.
    """
    return joined(_report_figure(drawing, folder) for drawing in drawings) or tag("p", "There is nothing to draw.")


def _report_figure(drawing: Drawing, folder: str) -> Html:
    told = drawing.picture
    files = joined((tag("a", kind.upper(), href=quote(f"{folder}/{told.key}.{kind}")) for kind in ("svg", "png")), " ")
    return tag(
        "figure",
        tag("h3", told.title, id=f"{told.key}-title"),
        tag(
            "div",
            inline(drawing, f"{told.key}-title"),
            class_="scroll drawing",
            tabindex="0",
            role="region",
            aria_label=told.title,
        ),
        tag(
            "figcaption",
            tag("p", told.shows),
            tag("p", tag("b", "How to read it: "), told.reading),
            tag("p", "Files: ", files, class_="files"),
        ),
        class_="picture",
        id=f"picture-{told.key}",
    )


def skipped_section(skipped: Sequence[Skipped]) -> Html:
    """What was left out, and why."""
    if not skipped:
        return tag("p", "Every folder that was given has been read.")
    return items(joined((tag("code", one.path), ": ", one.reason)) for one in skipped)


def obtained_section(table: ComparisonTable) -> Html:
    """How the numbers came about, and what the signs beside them mean."""
    # what was left out has a part of its own
    return items([*(note for note in table.notes if not note.startswith("left out:")), *_signs(table)])


def _signs(table: ComparisonTable) -> Iterator[str]:
    yield (
        "bold: better than every other row of the dataset beyond chance; ~: cannot be told from the best; no sign: "
        "worse beyond chance, or too few seeds to tell. Pointing at a number says which, and shows all seeds."
    )
    if any(isinstance(value, NotAvailable) for row in table.rows for value in row.values.values()):
        yield "N/A: the number does not exist; it is never replaced by a guess, nor counted as chance."


def download_section(tables: Mapping[str, str], folder: str) -> Html:
    """Tables to save from the page itself, and beside it.

    Args:
        tables: content by file name.
        folder: where the files lie, relative to the page.
    """
    return items(
        joined((tag("a", f"Save {name}", href=_data(name, content), download=name), ", ", _beside(name, folder)))
        for name, content in tables.items()
    )


def skip_links(titles: Mapping[str, str]) -> Html:
    """Links to the parts of the page.

    Args:
        titles: title of every part by its id.
    """
    return tag("nav", _links(titles.items()), aria_label="Parts of the report")


def _links(titles: Iterable[tuple[str, str]]) -> Html:
    return tag("ul", *(tag("li", tag("a", title, href=f"#{part}")) for part, title in titles))


def _data(name: str, content: str) -> str:
    kind = KINDS.get(name[name.rindex(".") :], "text/plain")
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(content.encode()).decode()}"


def _beside(name: str, folder: str) -> Html:
    path = f"{folder}/{name}"
    return joined(("or open ", tag("a", path, href=quote(path))))
