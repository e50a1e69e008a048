"""Turns between statements: threads of a simulated process also lose the processor where they use no lock and no
storage.

CPython lets another thread run where a function starts, where a loop starts its next round, and where a call has
returned. In the modules of `MODULES`, which hold what threads share, a call of `__preempt__` is inserted at these
places. The functions get code that was compiled from the same source with these calls in it. They get their own code
back when the simulation is over.

Rejected: `sys.settrace`. CPython records per interpreter thread that a trace function is running, and all simulated
threads share one interpreter thread. So no greenlet can be left inside a trace function. It would also cost a call per
line.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType, ModuleType

from opslog.testing.simulation import Process, Simulation

# The modules that are interrupted. Others share nothing between threads, or are reached only through these.
MODULES = [
    "opslog.aio",
    "opslog.backends.holders",
    "opslog.backends.local.fs",
    "opslog.backends.local.fs_log",
    "opslog.backends.local.resting",
    "opslog.backends.objects.backend",
    "opslog.compaction.automatic",
    "opslog.concurrency.background",
    "opslog.concurrency.locking",
    "opslog.concurrency.pool",
    "opslog.concurrency.soon",
    "opslog.log.freshness",
    "opslog.log.session",
    "opslog.log.shared",
    "opslog.log.writer",
    "opslog.merge.clock",
    "opslog.replica.batch",
    "opslog.replica.deciding",
    "opslog.replica.following",
    "opslog.replica.memory",
    "opslog.replica.news",
    "opslog.replica.replica",
    "opslog.replica.sight",
    "opslog.replica.state",
    "opslog.replica.transaction",
    "opslog.snapshot.runs",
    "opslog.store",
]

_NAME = "__preempt__"

# These run at any moment, which no seed decides.
_FINALIZERS = ("__del__",)

# A function, by its qualified name and its first line.
_Key = tuple[str, int]


@contextmanager
def preempting(simulation: Simulation, statements: int) -> Iterator[None]:
    """Inside the block a thread with other threads beside it loses its turn after so many places, on average; 0:
    never."""
    if not statements:
        yield
        return
    loaded = [importlib.import_module(name) for name in MODULES]
    functions = [(function, code) for module in loaded for function, code in _functions(module)]
    own = [function.__code__ for function, _ in functions]
    preempt = _preempt_in(simulation, statements)
    try:
        for module in loaded:
            setattr(module, _NAME, preempt)
        for function, code in functions:
            function.__code__ = code
        yield
    finally:
        for (function, _), code in zip(functions, own, strict=True):
            function.__code__ = code
        for module in loaded:
            delattr(module, _NAME)


def _preempt_in(simulation: Simulation, statements: int) -> Callable[[], None]:
    left: Counter[Process] = Counter()  # how many places until one of its threads loses its turn

    def preempt() -> None:
        thread = simulation.thread
        if thread is None:
            return
        process = thread.process
        if len(process.threads) < 2 or process.dead:
            return
        left[process] -= 1
        if left[process] < 0:
            left[process] = int(process.turns.expovariate(1 / statements))
            simulation.lose_turn(process.turns)

    return preempt


@cache
def _functions(module: ModuleType) -> list[tuple[FunctionType, CodeType]]:
    """Every function of a module, wherever it is now (under a decorator, for example), and its new code. Functions that
    another function makes get theirs from that one."""
    return list(_found(module))


def _found(module: ModuleType) -> Iterator[tuple[FunctionType, CodeType]]:
    codes = _codes(module)
    for function in [found for found in gc.get_objects() if isinstance(found, FunctionType)]:
        own = function.__code__
        if own.co_filename == module.__file__:
            code = codes.get((own.co_qualname, own.co_firstlineno))
            if code is not None and code.co_freevars == own.co_freevars:
                yield function, code


def _codes(module: ModuleType) -> dict[_Key, CodeType]:
    tree = _Places().visit(ast.parse(inspect.getsource(module)))
    whole = compile(ast.fix_missing_locations(tree), str(module.__file__), "exec", dont_inherit=True)
    return dict(_all_codes(whole))


def _all_codes(code: CodeType) -> Iterator[tuple[_Key, CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_name not in _FINALIZERS:
                yield (inner.co_qualname, inner.co_firstlineno), inner
            yield from _all_codes(inner)


class _Places(ast.NodeTransformer):
    """Inserts a call where functions and loops start, and after each statement that calls something."""

    def __init__(self) -> None:
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        if node.name not in _FINALIZERS:
            node.body.insert(1 if ast.get_docstring(node, clean=False) is not None else 0, _call(node))
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._depth and not isinstance(node, ast.ClassDef | ast.expr):
            for name in ("body", "orelse", "finalbody"):
                statements = getattr(node, name, None)
                if isinstance(statements, list) and statements:
                    begins = name == "body" and isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.With | ast.If)
                    setattr(node, name, [*[_call(node)][:begins], *_with_calls(statements)])
        return node


def _with_calls(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        is_simple = isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign)
        if is_simple and any(isinstance(inside, ast.Call | ast.Await) for inside in ast.walk(statement)):
            yield _call(statement)


def _call(at: ast.AST) -> ast.stmt:
    call = ast.Expr(ast.Call(ast.Name(_NAME, ast.Load()), [], []))
    return ast.copy_location(call, at)
