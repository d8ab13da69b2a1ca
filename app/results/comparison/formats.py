"""All formats of a table in one place."""

from app.results.comparison.csv_format import as_csv, as_csv_seeds
from app.results.comparison.latex_format import as_latex
from app.results.comparison.markdown_format import as_markdown
from app.results.comparison.text_format import as_text

__all__ = ["as_csv", "as_csv_seeds", "as_latex", "as_markdown", "as_text"]
