"""Runs one piece of code in this very process and shows it as an interactive session would.

What is printed, the value of a last expression and a short traceback of the code's own lines go to standard output.
Invariant: whatever the code raises or leaves behind, `run_code` shows it and returns; it imports next to nothing.
"""

import _ast
import os
import sys

FILE = "<code>"
"""The name under which tracebacks know the code."""
RAISED = 81
"""The exit status after an exception, whose traceback was shown."""
OUT_OF_MEMORY = 82

_MAX_FRAMES = 5
_MAX_LINE = 120


def run_code(code: str) -> int:
    """Runs the code to its end, its threads included, and gives the exit status."""
    sys.modules["__main__"] = module = type(sys)("__main__")
    status = 0
    try:
        _execute(code, module.__dict__)
        _join_threads()
    except MemoryError:
        status = OUT_OF_MEMORY
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is shown
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            _show(_describe(error, code))
            status = RAISED
    _flush()
    return status


def _execute(code: str, namespace: dict[str, object]) -> None:
    try:
        tree = compile(code, FILE, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    except (MemoryError, RecursionError):
        raise SyntaxError("the code is nested too deeply") from None
    assert isinstance(tree, _ast.Module)
    value = None
    if tree.body and isinstance(last := tree.body[-1], _ast.Expr):
        exec(compile(_ast.Module(tree.body[:-1], []), FILE, "exec", dont_inherit=True), namespace)
        value = eval(compile(_ast.Expression(last.value), FILE, "eval", dont_inherit=True), namespace)
    else:
        exec(compile(tree, FILE, "exec", dont_inherit=True), namespace)
    if value is not None:
        _show(repr(value))


def _join_threads() -> None:
    if (threading := sys.modules.get("threading")) is not None:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()


def _describe(error: BaseException, code: str) -> str:
    """A traceback of the code's own lines alone, without those of the libraries it called."""
    places = []
    if isinstance(error, SyntaxError) and error.filename == FILE:
        places.append((error.lineno or 0, ""))
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == FILE:
            name = step.tb_frame.f_code.co_name
            places.append((step.tb_lineno, "" if name == "<module>" else f", in {name}"))
        step = step.tb_next
    source = code.splitlines()
    lines = ["Traceback (most recent call last):"] if places else []
    if len(places) > _MAX_FRAMES:
        lines.append(f"  ... {len(places) - _MAX_FRAMES} calls are not shown")
    for number, name in places[-_MAX_FRAMES:]:
        lines.append(f"  line {number}{name}")
        if 0 < number <= len(source):
            lines.append(f"    {source[number - 1].strip()[:_MAX_LINE]}")
    return "\n".join([*lines, _name(error)])


def _name(error: BaseException) -> str:
    """As Python itself would end a traceback: `ZeroDivisionError: division by zero`."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"
    try:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - the code's own exceptions need not know how to show themselves
        message = "(it cannot be shown)"
    return f"{name}: {message}" if message else name


def _show(text: str) -> None:
    """Past `sys.stdout`, which the code may have replaced or closed, and after what it still holds."""
    _flush()
    data = f"{text}\n".encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(1, data) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - contextlib takes long to import
            stream.flush()
        except Exception:  # noqa: BLE001 - the code may have put anything in its place
            pass
