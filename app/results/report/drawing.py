"""Pictures as files and as part of the page: text stays text, the ink follows the theme, no names clash."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from app.results.figures.style import INK, ReportFigure, report_style
from app.results.report.markup import Html

REFERENCE = re.compile(r"url\(#([^)]*)\)")
KEPT_OUT = frozenset({"metadata", "style", "title"})
"""Parts of a drawing that the page does without: where it comes from, and rules that would reach the whole page."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A drawn picture.

    Attributes:
        picture: what was drawn, with its texts.
        svg: a complete SVG file on a transparent background.
        png: a PNG file on white.
    """

    picture: ReportFigure
    svg: str
    png: bytes


def drawn(picture: ReportFigure) -> Drawing:
    """Draw a picture in both formats."""
    vector, raster = io.StringIO(), io.BytesIO()
    with report_style():
        picture.plot.savefig(vector, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        picture.plot.savefig(raster, format="png", bbox_inches="tight", dpi=150, facecolor="white")
    return Drawing(picture, vector.getvalue(), raster.getvalue())


def inline(drawing: Drawing, labelled_by: str) -> Html:
    """The drawing as an element of a page.

    Args:
        drawing: from `drawn`.
        labelled_by: id of the element that names it.
    """
    root = ElementTree.fromstring(drawing.svg)  # noqa: S314, matplotlib wrote it just now
    _strip(root)
    prefix = f"{drawing.picture.key}-"
    for element in _below(root):
        _rename(element, prefix)
    width = root.get("viewBox", "0 0 0 0").split()[2]
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    # points of 1/72 inch as pixels of 1/96 inch: the size it was drawn in
    root.set("style", f"max-width: {float(width) * 4 / 3:.0f}px")
    root.set("role", "img")
    root.set("aria-labelledby", labelled_by)
    return Html(ElementTree.tostring(root, encoding="unicode"))


def _strip(parent: ElementTree.Element) -> None:
    """Leave out what the page does without, and the namespaces, which HTML knows by itself."""
    parent.tag = _local(parent.tag)
    parent.attrib = {_local(name): value for name, value in parent.attrib.items()}
    for child in list(parent):
        if not isinstance(child.tag, str) or _local(child.tag) in KEPT_OUT:
            parent.remove(child)
        else:
            _strip(child)


def _rename(element: ElementTree.Element, prefix: str) -> None:
    """Names that no other drawing has, and ink that follows the page."""
    for name, value in element.attrib.items():
        if name == "id":
            element.set(name, prefix + value)
        elif name == "href" and value.startswith("#"):
            element.set(name, f"#{prefix}{value[1:]}")
        else:
            element.set(name, REFERENCE.sub(rf"url(#{prefix}\1)", value).replace(INK, "currentColor"))


def _below(element: ElementTree.Element) -> Iterator[ElementTree.Element]:
    yield from (inner for inner in element.iter() if isinstance(inner.tag, str))


def _local(name: str) -> str:
    return name.rpartition("}")[2]
