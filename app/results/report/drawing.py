"""Figures as files and as part of the page: text stays text, the ink follows the theme, ids are unique."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from xml.etree import ElementTree

from markupsafe import Markup

from app.common.files import spell_missing_glyphs
from app.results.figures.style import INK, ReportFigure, report_style

REFERENCE = re.compile(r"url\(#([^)]*)\)")
LEFT_OUT = frozenset({"metadata", "style", "title"})
"""Elements that are left out of the page: metadata, and style rules that would apply to the whole page."""


@dataclass(frozen=True, eq=False)
class RenderedFigure:
    """A figure with its files: SVG on a transparent background, PNG on white."""

    figure: ReportFigure
    svg: str
    png: bytes

    @property
    def title_id(self) -> str:
        """Id of its heading in the page."""
        return f"{self.figure.key}-title"

    @property
    def inline_svg(self) -> Markup:
        """The drawing as an element of the page, labelled by its heading."""
        root = ElementTree.fromstring(self.svg)  # noqa: S314, matplotlib wrote it just now
        _strip(root)
        for element in root.iter():
            _rename(element, f"{self.figure.key}-")
        width = root.get("viewBox", "0 0 0 0").split()[2]
        for name in ("width", "height", "version"):
            root.attrib.pop(name, None)
        # points of 1/72 inch as pixels of 1/96 inch: the size in which it was drawn
        root.set("style", f"max-width: {float(width) * 4 / 3:.0f}px")
        root.set("role", "img")
        root.set("aria-labelledby", self.title_id)
        return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704, texts of the drawing are escaped


def render_figure(figure: ReportFigure) -> RenderedFigure:
    """Draw a figure in both formats."""
    vector, raster = io.StringIO(), io.BytesIO()
    with report_style():
        with warnings.catch_warnings():
            # text stays text: the fonts of the browser draw it
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.plot.savefig(vector, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        spell_missing_glyphs(figure.plot)
        figure.plot.savefig(raster, format="png", bbox_inches="tight", dpi=150, facecolor="white")
    return RenderedFigure(figure, vector.getvalue(), raster.getvalue())


def _strip(parent: ElementTree.Element) -> None:
    """Remove elements that the page leaves out, and namespaces, which HTML does not need."""
    parent.tag = _local(parent.tag)
    parent.attrib = {_local(name): value for name, value in parent.attrib.items()}
    for child in list(parent):
        if not isinstance(child.tag, str) or _local(child.tag) in LEFT_OUT:
            parent.remove(child)
        else:
            _strip(child)


def _rename(element: ElementTree.Element, prefix: str) -> None:
    """Give ids a prefix that no other figure has, and replace the ink by that of the page."""
    for name, value in element.attrib.items():
        if name == "id":
            element.set(name, prefix + value)
        elif name == "href" and value.startswith("#"):
            element.set(name, f"#{prefix}{value[1:]}")
        else:
            element.set(name, REFERENCE.sub(rf"url(#{prefix}\1)", value).replace(INK, "currentColor"))


def _local(name: str) -> str:
    return name.rpartition("}")[2]
