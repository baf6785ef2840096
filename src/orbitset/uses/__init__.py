"""What a trained model is used for: embed, rectify, search, verify, find duplicates, recognise, export."""

from orbitset.uses.embedding import embed, embed_to_file, rectify_to_folder
from orbitset.uses.finding import add_to_index, remove_from_index, search_index
from orbitset.uses.grouping import find_duplicates
from orbitset.uses.onnx import export_onnx
from orbitset.uses.recognising import classify
from orbitset.uses.verifying import verify_pair

__all__ = [
    "add_to_index",
    "classify",
    "embed",
    "embed_to_file",
    "export_onnx",
    "find_duplicates",
    "rectify_to_folder",
    "remove_from_index",
    "search_index",
    "verify_pair",
]
