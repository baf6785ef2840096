"""Codes in rows numbered from 0, in a FAISS index, which finds the nearest of them.

FAISS proposes, float64 decides: its results are compared again exactly, so that distances are right for every
kind of index, and for a flat one also which rows are found and in which order.

Shapes: N rows, Q queries, K places, C candidates, D code entries, B rows of one block.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np

from orbitset.errors import OrbitsetError
from orbitset.search.distances import chunks, paired_distances, rounding, squared_distances
from orbitset.seeds import stable_seed

Kind = Literal["flat", "ivf", "hnsw"]

_TRAIN_FROM = 10_000
"""Rows from which on lists are faster than comparing every code"""
_TRAIN_AGAIN = 10
"""Lists are trained again at this many times the rows they were trained on"""
_ROWS_PER_LIST = 39
"""The fewest rows per list that FAISS trains without a warning"""
_SAMPLE_PER_LIST = 64
_LOOK_INTO = 16
"""The share of lists that is searched is one in so many"""
_LINKS = 32
_EFFORT = 64
_MORE = 32
"""Candidates of a flat index beyond k"""
_BLOCK_BYTES = 2**20
_NAMES: dict[Kind, bytes] = {"flat": b"IxF2", "ivf": b"IwFl", "hnsw": b"IHNf"}
"""What FAISS begins an index of each kind with"""
_HEAD_BYTES, _NUM_LISTS = 57, slice(37, 45)
"""Up to the name of the index of the centres of lists, and where their number stands"""


class StoredCodes:
    """Rows of codes. A dead row can be passed over in a search, and be taken out later."""

    def __init__(self, kind: Kind, code_size: int) -> None:
        self.kind: Kind = kind
        self.code_size = code_size
        self.trained_on: int | None = None
        """Rows that the lists of an ivf index were trained on; before that it is searched like a flat one"""
        self._faiss = self._empty()

    @classmethod
    def read(
        cls,
        kind: Kind,
        code_size: int,
        trained_on: int | None,
        source: Callable[[int], bytes],
        num_bytes: int,
    ) -> "StoredCodes":
        """Read what `write` wrote, which is so many bytes, through a file's read method; raises ValueError if
        it is something else.

        FAISS believes what it reads, of any of its many kinds of index. It is asked for those alone that are
        written here.
        """
        faiss = load_faiss()
        stored = cls(kind, code_size)
        begun = source(_HEAD_BYTES)
        kind_in_file: Kind = "flat" if kind == "ivf" and trained_on is None else kind
        _check_beginning(begun, kind_in_file, num_bytes)
        whole = itertools.chain([begun], iter(partial(source, _BLOCK_BYTES), b""))
        try:
            with _vectors_up_to(num_bytes):
                index = faiss.read_index(faiss.PyCallbackIOReader(_reader(whole), _BLOCK_BYTES))
        except (RuntimeError, MemoryError) as error:
            raise ValueError(str(error).rsplit("Error: ", 1)[-1]) from None
        expected = type(stored._faiss) if trained_on is None else faiss.IndexIVFFlat
        is_ours = type(index) is expected and index.metric_type == faiss.METRIC_L2
        if not is_ours or index.d != code_size:
            raise ValueError(f"it holds an {type(index).__name__} of {index.d} entries")
        if trained_on is not None:
            _check_lists(index)
        stored._faiss, stored.trained_on = index, trained_on
        return stored

    def write(self, target: Callable[[bytes], int]) -> None:
        """Write all codes through a file's write method."""
        faiss = load_faiss()
        faiss.write_index(self._faiss, faiss.PyCallbackIOWriter(target, _BLOCK_BYTES))

    def __len__(self) -> int:
        return int(self._faiss.ntotal)

    @property
    def is_exact(self) -> bool:
        """Whether a search compares every code."""
        return self.kind == "flat" or (self.kind == "ivf" and self.trained_on is None)

    def add(self, codes_ND: np.ndarray) -> None:
        for rows in chunks(len(codes_ND), self.code_size):
            self._faiss.add(codes_ND[rows])

    def of(self, rows_N: np.ndarray) -> np.ndarray:
        """The codes of rows, (N, D)."""
        codes_ND: np.ndarray = self._faiss.reconstruct_batch(np.ascontiguousarray(rows_N, np.int64))
        return codes_ND

    def take_out(self, dead_N: np.ndarray) -> None:
        """Remove these rows; the others move up in their order."""
        if self.is_exact:
            self._faiss.remove_ids(np.ascontiguousarray(dead_N, np.int64))
        else:
            self._fill(np.setdiff1d(np.arange(len(self)), dead_N), self._empty())

    def fit_lists(self) -> None:
        """Train the lists of an ivf index if it has none, or too few for its rows."""
        num = len(self)
        if self.kind != "ivf" or num < _TRAIN_FROM:
            return
        if self.trained_on is None or num >= _TRAIN_AGAIN * self.trained_on:
            self._fill(np.arange(num), self._with_lists(num))
            self.trained_on = num

    def nearest(
        self, query_QD: np.ndarray, k: int, dead_N: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the k nearest codes and their squared distances, of equally near ones the first.

        Dead rows are passed over; k is at most the number of the others.
        """
        row_QK = np.empty((len(query_QD), k), np.int64)
        distance_QK = np.empty((len(query_QD), k))
        count = min(k + _MORE, len(self) - len(dead_N)) if self.is_exact else k
        # faiss.contrib.torch_utils, which other libraries load, puts a search without parameters in its place
        search = getattr(self._faiss, "search_numpy", self._faiss.search)
        for many in chunks(len(query_QD), 2 * count):  # FAISS is fastest with many queries
            rough_QC, found_QC = search(query_QD[many], count, params=self._parameters(k, dead_N))
            for few in chunks(many.stop - many.start, count * self.code_size):
                part = slice(many.start + few.start, many.start + few.stop)
                row_QK[part], distance_QK[part], is_sure_Q = self._compare(
                    query_QD[part], rough_QC[few], found_QC[few], k, dead_N
                )
                if not is_sure_Q.all():
                    place = np.flatnonzero(~is_sure_Q) + part.start
                    row_QK[place], distance_QK[place] = self._scan(query_QD[place], k, dead_N)
        return row_QK, distance_QK

    def _compare(
        self,
        query_QD: np.ndarray,
        rough_QC: np.ndarray,
        row_QC: np.ndarray,
        k: int,
        dead_N: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """FAISS's candidates, compared exactly, and for which queries no other code can be nearer."""
        count = row_QC.shape[1]
        is_found_QC = row_QC >= 0
        place_Q, place_C = is_found_QC.nonzero()
        exact_QC = np.full(row_QC.shape, np.inf)
        exact_QC[place_Q, place_C] = paired_distances(
            self.of(row_QC[place_Q, place_C]), query_QD[place_Q]
        )
        order = np.lexsort((row_QC, exact_QC), axis=1)[:, :k]
        row_QK = np.take_along_axis(row_QC, order, 1)
        exact_QK = np.take_along_axis(exact_QC, order, 1)
        is_sure_Q = is_found_QC.sum(1) >= k
        if self.is_exact and count < len(self) - len(dead_N):
            # a code that was left out and is as near as the k-th has at most this length and this error
            furthest_Q = exact_QK[:, -1]
            length_Q = np.linalg.norm(query_QD.astype(np.float64), axis=1)
            error_Q = (2 * length_Q + np.sqrt(furthest_Q)) ** 2 * rounding(
                np.float32, self.code_size
            )
            error_Q += float(np.finfo(np.float32).tiny) * (self.code_size + 8)
            is_sure_Q &= rough_QC[:, -1] > furthest_Q + error_Q
        return row_QK, exact_QK, is_sure_Q

    def _scan(
        self, query_QD: np.ndarray, k: int, dead_N: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest of all codes, compared in float64."""
        row_QK = np.zeros((len(query_QD), 0), np.int64)
        distance_QK = np.zeros((len(query_QD), 0))
        for rows_B in self._blocks(np.setdiff1d(np.arange(len(self)), dead_N), len(query_QD)):
            distance = squared_distances(query_QD, self.of(rows_B))
            distance = np.concatenate([distance_QK, distance], 1)
            row = np.concatenate([row_QK, np.broadcast_to(rows_B, (len(query_QD), len(rows_B)))], 1)
            order = distance.argsort(axis=1, kind="stable")[:, :k]
            row_QK = np.take_along_axis(row, order, 1)
            distance_QK = np.take_along_axis(distance, order, 1)
        return row_QK, distance_QK

    def _blocks(self, rows_N: np.ndarray, queries: int = 1) -> Iterator[np.ndarray]:
        parts = chunks(len(rows_N), max(self.code_size, queries))
        return (rows_N[part] for part in parts)

    def _parameters(self, k: int, dead_N: np.ndarray) -> Any:
        faiss = load_faiss()
        chosen: dict[str, Any] = {}
        if len(dead_N):
            is_live_N = np.ones(len(self), bool)
            is_live_N[dead_N] = False
            chosen["sel"] = faiss.IDSelectorBitmap(np.packbits(is_live_N, bitorder="little"))
        if self.is_exact:
            return faiss.SearchParameters(**chosen)
        if self.kind == "ivf":
            probes = math.ceil(self._faiss.nlist / _LOOK_INTO)
            return faiss.SearchParametersIVF(nprobe=probes, **chosen)
        effort = max(_EFFORT, 2 * k) * len(self) // (len(self) - len(dead_N))
        return faiss.SearchParametersHNSW(efSearch=effort, **chosen)

    def _empty(self) -> Any:
        """A FAISS index of this kind without rows; an ivf index keeps its lists."""
        faiss = load_faiss()
        if self.kind == "hnsw":
            return faiss.IndexHNSWFlat(self.code_size, _LINKS)
        if self.is_exact:
            return faiss.IndexFlatL2(self.code_size)
        centres = faiss.clone_index(faiss.downcast_index(self._faiss.quantizer))
        return self._around(centres, self._faiss.nlist)

    def _around(self, centres: Any, lists: int) -> Any:
        """An empty ivf index with a list around each centre."""
        faiss = load_faiss()
        index = faiss.IndexIVFFlat(centres, self.code_size, lists)
        index.make_direct_map()
        return index

    def _with_lists(self, num: int) -> Any:
        """An empty ivf index, trained on a sample of the rows."""
        faiss = load_faiss()
        lists = max(1, min(int(4 * math.sqrt(num)), num // _ROWS_PER_LIST))
        seed = stable_seed("search lists", num)
        sample = np.random.default_rng(seed).permutation(num)[: _SAMPLE_PER_LIST * lists]
        index = self._around(faiss.IndexFlatL2(self.code_size), lists)
        index.cp.seed = seed % 2**31
        index.train(self.of(np.sort(sample)))
        return index

    def _fill(self, rows_N: np.ndarray, index: Any) -> None:
        """Copy these rows into another index, and use that one from now on."""
        for rows_B in self._blocks(rows_N):
            index.add(self.of(rows_B))
        self._faiss = index


def _check_beginning(begun: bytes, kind: Kind, num_bytes: int) -> None:
    """Refuse an index of another kind, by the names that stand at its beginning, and one with more lists than
    bytes, before FAISS reads it."""
    if begun[:4] != _NAMES[kind]:
        raise ValueError(f"its codes begin with {begun[:4]!r}, as those of no {kind} index do")
    centres = begun[_HEAD_BYTES - 4 :]
    if kind == "ivf" and centres != _NAMES["flat"]:
        raise ValueError(f"the centres of its lists begin with {centres!r}, as no flat index does")
    if kind == "ivf" and int.from_bytes(begun[_NUM_LISTS], "little") > num_bytes:
        raise ValueError("it says that it has more lists than it is long")


def _reader(parts: Iterator[bytes]) -> Callable[[int], bytes]:
    """A file's read method for content in parts."""
    left = b""

    def read(size: int) -> bytes:
        nonlocal left
        while len(left) < size and (part := next(parts, b"")):
            left += part
        taken, left = left[:size], left[size:]
        return taken

    return read


@contextmanager
def _vectors_up_to(num_bytes: int) -> Iterator[None]:
    """Inside, FAISS makes no vector that is longer than the file, whatever that says, if it is new enough."""
    faiss = load_faiss()
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    before = faiss.get_deserialization_vector_byte_limit()
    faiss.set_deserialization_vector_byte_limit(num_bytes)
    try:
        yield
    finally:
        faiss.set_deserialization_vector_byte_limit(before)


def _check_lists(index: Any) -> None:
    """Refuse lists that do not hold every row once; where each row is, is found anew and not believed."""
    faiss = load_faiss()
    lists = index.invlists
    rows = [
        faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))
        for number in range(index.nlist)
        if lists.list_size(number)
    ]
    centres = faiss.downcast_index(index.quantizer)
    stated = (centres.d, centres.ntotal, centres.metric_type, index.is_trained)
    if stated != (index.d, index.nlist, faiss.METRIC_L2, True):
        raise ValueError("its lists have no centres, or too many")
    row_N = np.sort(np.concatenate([np.empty(0, np.int64), *rows]))
    if len(row_N) != index.ntotal or not np.array_equal(row_N, np.arange(len(row_N))):
        raise ValueError("its lists do not hold every row once")
    index.set_direct_map_type(faiss.DirectMap.NoMap)
    index.make_direct_map()


def load_faiss() -> Any:
    """Import FAISS, or raise an error that says how to install it."""
    try:
        import faiss  # late: it is only needed here
    except ImportError:
        raise OrbitsetError(
            "search uses FAISS, which is not installed", hint="pip install faiss-cpu"
        ) from None
    return faiss
