"""Why an attack gave no result, in words for its report."""

from __future__ import annotations

import traceback

from app.errors import UserError


def explained(error: Exception) -> str:
    """A refusal with its remedies, or where the attack broke down."""
    if isinstance(error, UserError):
        return "; ".join(f"{problem.cause} ({problem.remedy})" for problem in error.problems)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
    return f"the attack broke down: {type(error).__name__}: {error} ({where})"
