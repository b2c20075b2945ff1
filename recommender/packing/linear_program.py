"""Linear and integer programs, solved by HiGHS; the only module that knows the solver.

HiGHS is a dependency because two answers can't be had without it in bounded time: the least number of cards over all
layouts of MIG, and the bound below which no packing can get. Both are small covering problems; nothing here is called
per pod. No clock stops a search, a number of nodes does, so the same program has the same answer on any machine.
Called by `mig.geometry` and `packing.column_generation`.

Source: Huangfu & Hall, Parallelizing the dual revised simplex method, Mathematical Programming Computation 10 (2018);
ERGO-Code/HiGHS:docs/src/interfaces/python.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from fleet.errors import Refused

_THREADS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Minimise `costs` × x where row_least ≤ `rows` × x ≤ row_most and 0 ≤ x ≤ `most`.

    Attributes:
        costs: cost of one unit of each column, (columns,), float64.
        rows: coefficients, (rows, columns), float64.
        row_least: least value of each row, (rows,), float64; -inf for none.
        row_most: greatest value of each row, (rows,), float64; inf for none.
        most: greatest value of each column, (columns,), float64; inf for none.
    """

    costs: NDArray[np.float64]
    rows: NDArray[np.float64]
    row_least: NDArray[np.float64]
    row_most: NDArray[np.float64]
    most: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the solver found.

    Attributes:
        cost: cost of `amounts`.
        bound: no answer costs less; equals `cost` where the search came to its end.
        amounts: value of each column, (columns,), float64; whole numbers where they were asked for.
        duals: what one unit more of each row would cost, (rows,), float64; empty for whole numbers.
    """

    cost: float
    bound: float
    amounts: NDArray[np.float64]
    duals: NDArray[np.float64]


def solve_fractional(program: Program) -> Answer:
    """The least cost where columns may be taken in parts.

    Raises:
        Refused: no amounts keep within the rows.
    """
    solver = _solver(program, whole=False)
    solver.run()
    _check(solver)
    solution = solver.getSolution()
    cost = float(solver.getInfo().objective_function_value)
    return Answer(cost=cost, bound=cost, amounts=np.array(solution.col_value), duals=np.array(solution.row_dual))


def solve_whole(program: Program, *, nodes_max: int) -> Answer:
    """The least cost in whole columns.

    Args:
        nodes_max: nodes of the search tree after which the best answer so far is returned, with its bound.

    Raises:
        Refused: no whole amounts keep within the rows, or none was found within `nodes_max`.
    """
    solver = _solver(program, whole=True)
    solver.setOptionValue("mip_max_nodes", nodes_max)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        raise Refused(f"cannot solve an integer program of {len(program.costs)} columns within {nodes_max} nodes")
    return Answer(
        cost=float(info.objective_function_value),
        bound=float(info.mip_dual_bound),
        amounts=np.round(np.array(solver.getSolution().col_value)),
        duals=np.empty(0),
    )


def _solver(program: Program, *, whole: bool) -> highspy.Highs:
    rows, columns = program.rows.shape
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, rows
    model.col_cost_ = program.costs
    model.col_lower_, model.col_upper_ = np.zeros(columns), program.most
    model.row_lower_, model.row_upper_ = program.row_least, program.row_most
    filled = program.rows.T != 0
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(filled.sum(axis=1)))).astype(np.int32)
    model.a_matrix_.index_ = np.nonzero(filled)[1].astype(np.int32)
    model.a_matrix_.value_ = program.rows.T[filled]
    if whole:
        model.integrality_ = [highspy.HighsVarType.kInteger] * columns
    solver: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]  # its bindings carry no types
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", _THREADS)
    solver.setOptionValue("parallel", "off")
    solver.passModel(model)
    return solver


def _check(solver: highspy.Highs) -> None:
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise Refused(f"cannot solve a linear program: {solver.modelStatusToString(status)}")
