"""Search among codes: find, group and recognise images, and show the results."""

from orbitset.search.duplicates import Group, find_groups
from orbitset.search.examples import Examples, Recognised, leave_one_out_threshold
from orbitset.search.index import Added, Found, Index, Removed
from orbitset.search.sheet import SheetPicture, SheetRow, contact_sheet
from orbitset.search.stored import Kind

__all__ = [
    "Added",
    "Examples",
    "Found",
    "Group",
    "Index",
    "Kind",
    "Recognised",
    "Removed",
    "SheetPicture",
    "SheetRow",
    "contact_sheet",
    "find_groups",
    "leave_one_out_threshold",
]
