"""Codes in rows numbered from 0, kept in FAISS, which finds the nearest of them.

FAISS proposes, float64 decides: what it finds is compared again exactly, so that distances are right for
every kind, and for a flat index also which rows are found and in which order.

Shapes: N rows, Q queries, K places, C candidates, D code entries, B rows of one block.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from orbitset.errors import OrbitsetError
from orbitset.search.distances import (
    CHUNK_BYTES,
    chunks,
    paired_distances,
    rounding,
    squared_distances,
)
from orbitset.seeds import stable_seed

Kind = Literal["flat", "ivf", "hnsw"]

_TRAIN_FROM = 10_000
"""Rows from which lists are faster than looking at every code"""
_TRAIN_AGAIN = 10
"""Lists are made anew once there are this many times the rows they were made for"""
_ROWS_PER_LIST = 39
"""The fewest that FAISS likes to train a list on"""
_SAMPLE_PER_LIST = 64
_LOOK_INTO = 16
"""One list of so many is searched"""
_LINKS = 32
_EFFORT = 64
_MORE = 32
"""Candidates of a flat index beyond those asked for"""
_BLOCK_BYTES = 2**20


class StoredCodes:
    """Rows of codes. A row that is no longer wanted can be passed over, and later be taken out."""

    def __init__(self, kind: Kind, code_size: int) -> None:
        self.kind: Kind = kind
        self.code_size = code_size
        self.trained_on: int | None = None
        """Rows that the lists of an ivf index were made for; before that it is searched like a flat one"""
        self._faiss = self._empty()

    @classmethod
    def read(
        cls, kind: Kind, code_size: int, trained_on: int | None, source: Callable[[int], bytes]
    ) -> "StoredCodes":
        """What `write` wrote, from a file's read method; a ValueError if it is something else."""
        faiss = load_faiss()
        stored = cls(kind, code_size)
        try:
            found = faiss.read_index(faiss.PyCallbackIOReader(source, _BLOCK_BYTES))
        except RuntimeError as error:
            raise ValueError(str(error).rsplit("Error: ", 1)[-1]) from None
        wanted = type(stored._faiss) if trained_on is None else faiss.IndexIVFFlat
        if type(found) is not wanted or found.d != code_size:
            raise ValueError(f"it holds an {type(found).__name__} of {found.d} entries")
        stored._faiss, stored.trained_on = found, trained_on
        return stored

    def write(self, target: Callable[[bytes], int]) -> None:
        """All of it, into a file's write method."""
        faiss = load_faiss()
        faiss.write_index(self._faiss, faiss.PyCallbackIOWriter(target, _BLOCK_BYTES))

    def __len__(self) -> int:
        return int(self._faiss.ntotal)

    @property
    def is_exact(self) -> bool:
        """Whether every code is looked at."""
        return self.kind == "flat" or (self.kind == "ivf" and self.trained_on is None)

    def add(self, codes_ND: np.ndarray) -> None:
        for rows in chunks(len(codes_ND), self.code_size):
            self._faiss.add(codes_ND[rows])

    def of(self, rows_N: np.ndarray) -> np.ndarray:
        """The codes of rows, (N, D)."""
        codes_ND: np.ndarray = self._faiss.reconstruct_batch(np.ascontiguousarray(rows_N, np.int64))
        return codes_ND

    def take_out(self, dead_N: np.ndarray) -> None:
        """Without these rows; the others move up in their order."""
        if self.is_exact:
            self._faiss.remove_ids(np.ascontiguousarray(dead_N, np.int64))
        else:
            self._fill(np.setdiff1d(np.arange(len(self)), dead_N), self._empty())

    def fit_lists(self, *, anew: bool = False) -> None:
        """Make the lists of an ivf index if it has none that suit it, or in any case."""
        num = len(self)
        if self.kind != "ivf" or num < _TRAIN_FROM:
            return
        if anew or self.trained_on is None or num >= _TRAIN_AGAIN * self.trained_on:
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
        asked = min(k + _MORE, len(self) - len(dead_N)) if self.is_exact else k
        # faiss.contrib.torch_utils, which other libraries load, puts a search without parameters in its place
        search = getattr(self._faiss, "search_numpy", self._faiss.search)
        for many in chunks(len(query_QD), 2 * asked):  # FAISS is fastest with many queries
            rough_QC, found_QC = search(query_QD[many], asked, params=self._parameters(k, dead_N))
            for few in chunks(many.stop - many.start, asked * self.code_size):
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
        """What FAISS found, compared exactly; and for which queries nothing else can be meant."""
        asked = row_QC.shape[1]
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
        if self.is_exact and asked < len(self) - len(dead_N):
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
        """The k nearest, by looking at every code in float64."""
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
        step = max(1, CHUNK_BYTES // (8 * max(self.code_size, queries)))
        return (rows_N[start : start + step] for start in range(0, len(rows_N), step))

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
        """FAISS's index of this kind without rows; the lists of an ivf index stay what they are."""
        faiss = load_faiss()
        if self.kind == "hnsw":
            return faiss.IndexHNSWFlat(self.code_size, _LINKS)
        if self.is_exact:
            return faiss.IndexFlatL2(self.code_size)
        centres = faiss.clone_index(faiss.downcast_index(self._faiss.quantizer))
        return self._around(centres, self._faiss.nlist)

    def _around(self, centres: Any, lists: int) -> Any:
        """An ivf index with a list around each of these centres, once there are any."""
        faiss = load_faiss()
        made = faiss.IndexIVFFlat(centres, self.code_size, lists)
        made.make_direct_map()
        return made

    def _with_lists(self, num: int) -> Any:
        """An empty ivf index, trained on a sample of the rows."""
        faiss = load_faiss()
        lists = max(1, min(int(4 * math.sqrt(num)), num // _ROWS_PER_LIST))
        seed = stable_seed("search lists", num)
        sample = np.random.default_rng(seed).permutation(num)[: _SAMPLE_PER_LIST * lists]
        made = self._around(faiss.IndexFlatL2(self.code_size), lists)
        made.cp.seed = seed % 2**31
        made.train(self.of(np.sort(sample)))
        return made

    def _fill(self, rows_N: np.ndarray, made: Any) -> None:
        """Put these rows into another index, and keep that instead."""
        for rows_B in self._blocks(rows_N):
            made.add(self.of(rows_B))
        self._faiss = made


def load_faiss() -> Any:
    """FAISS, or an error that says how to get it."""
    try:
        import faiss  # late: it is only needed here
    except ImportError:
        raise OrbitsetError(
            "search uses FAISS, which is not installed", hint="pip install faiss-cpu"
        ) from None
    return faiss
