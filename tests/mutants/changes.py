"""The mutants of a module: its syntax tree with one node changed."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to a module.

    Attributes:
        line: of the change.
        change: what stood there and what stands there now; it is the same when other lines of the module change.
        block: the innermost block that holds it, as `blocks` names it.
    """

    line: int
    change: str
    block: str
    _module: ast.Module
    _number: int
    _new: ast.AST

    @property
    def function(self) -> str:
        """The function that holds it, as `Class.method`."""
        return self.block.rpartition(":")[0]

    def tree(self) -> ast.Module:
        """The whole module with the change."""
        return _with(self._module, self._number, self._new)


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module's functions, in the order of its lines.

    Texts for people, annotations, docstrings, the defaults of arguments, and calls of `super` are left out.
    """
    tree = ast.parse(source)
    found, code = [], set(map(id, _code(tree)))
    held_by = {id(node): name for name, block in blocks(tree).items() for each in block for node in ast.walk(each)}
    for number, node in enumerate(ast.walk(tree)):
        for new in _changed(node) if id(node) in code and id(node) in held_by else ():
            change = f"{_text(node)} -> {_text(new)}"
            if "super()" not in change:
                line = getattr(node, "lineno", 0)
                found.append(Mutant(line, change, held_by[id(node)], tree, number, new))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.change))


def blocks(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """The blocks of statements of all functions, outer ones first, by name: the function and a number."""
    found: dict[str, list[ast.stmt]] = {}

    def visit(node: ast.AST, scope: str, is_function: bool) -> None:
        for value in (value for _, value in ast.iter_fields(node) if isinstance(value, list)):
            if is_function and value and isinstance(value[0], ast.stmt):
                found[f"{scope}:{sum(name.startswith(f'{scope}:') for name in found)}"] = value
            for child in (child for child in value if isinstance(child, ast.AST)):
                visit(child, *_scope_in(child, scope, is_function))

    visit(tree, "", False)
    return found


def _scope_in(node: ast.AST, scope: str, is_function: bool) -> tuple[str, bool]:
    """The scope of what the node holds; functions inside a function belong to it."""
    if is_function or not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return scope, is_function
    return f"{scope}.{node.name}".lstrip("."), not isinstance(node, ast.ClassDef)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide or wire something."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_for_people(child):
                yield from _code(child)


def _is_for_people(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        node = node.value.func
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "log"
    return isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom))


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the node's place."""
    match node:
        case ast.Compare(left, [op, *ops], right) if type(op) in _COMPARED:
            yield ast.Compare(left, [_COMPARED[type(op)](), *ops], right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.If(test, body, rest) | ast.While(test, body, rest) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield type(node)(ast.UnaryOp(ast.Not(), test), body, rest)
        case ast.IfExp(test, body, rest):
            yield ast.IfExp(test, rest, body)
        case ast.BinOp(left, op, right) if type(op) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.Call(func, args, keywords):
            yield from _other_calls(func, args, keywords)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _other_calls(func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Iterator[ast.AST]:
    """The call of the opposite function; the call without one of its named arguments, or without its last other one."""
    if isinstance(func, ast.Name) and func.id in _SWAPPED:
        yield ast.Call(ast.Name(_SWAPPED[func.id], ast.Load()), args, keywords)
    for number in range(len(keywords)):
        yield ast.Call(func, args, keywords[:number] + keywords[number + 1 :])
    if len(args) > 1:
        yield ast.Call(func, args[:-1], keywords)


def _with(tree: ast.Module, number: int, new: ast.AST) -> ast.Module:
    """A copy of the tree in which `new` stands in the place of the node of that number."""
    mutated = copy.deepcopy(tree)
    old = next(node for position, node in enumerate(ast.walk(mutated)) if position == number)
    for node in ast.walk(mutated):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
            elif isinstance(value, list):
                value[:] = [new if each is old else each for each in value]
    return ast.fix_missing_locations(mutated)


def _text(node: ast.AST) -> str:
    """The node on one line; of a statement with a body, its head."""
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).splitlines()[0].replace("|", "\\|")
