"""Loads the user's own functions, given by file and name: tools, rewards, parts of an algorithm.

The file runs with the permissions of the run, because it is the user's code and not the model's.
"""

import hashlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadedFunction:
    """A function or class, with the path of its file and the SHA-256 of the file's content."""

    function: Callable[..., Any]
    path: Path
    sha256: str


WITHOUT_FILE = Path("<python>")
"""Path of the functions that are in no file: those of a notebook or an interactive session."""
_IN_PROCESS: dict[tuple[Path, str], LoadedFunction] = {}
"""The functions that Python code passed as objects, by the path and the name that stand for them in a recipe."""


def name_function(function: Callable[..., Any]) -> tuple[Path, str]:
    """Return the path and the name with which `load_function` returns this very function or class.

    What stands at the top of a file has that file and its own name, so that another process finds it. Anything else has a name
    that means something in this process only: with its line in a file (a lambda), or with a checksum of its source (a function of a
    notebook, which has the same name in the next session, and another one after a change).
    """
    source = inspect.unwrap(function)
    code = getattr(source, "__code__", None)
    name = getattr(source, "__qualname__", type(source).__qualname__)[-150:]
    origin = Path(code.co_filename if code is not None else _source_file(source))
    module = sys.modules.get(getattr(source, "__module__", None) or "")
    path = origin if origin.is_file() else WITHOUT_FILE
    content = path.read_bytes() if path is origin else _source(source).encode()
    loaded = LoadedFunction(function, origin, hashlib.sha256(content).hexdigest())
    is_at_top = path is origin and module is not None and module.__dict__.get(name) is function
    known = _IN_PROCESS.get((path, name))
    # A file that was changed and imported again keeps its names: a recipe means the file as it is.
    if not is_at_top or (known is not None and known.sha256 == loaded.sha256 and _differs(known, loaded)):
        mark = getattr(code, "co_firstlineno", 0) if path is origin else loaded.sha256[:8]
        name = plain = f"{name}:{mark}"
        copies = 1
        while (known := _IN_PROCESS.get((path, name))) is not None and _differs(known, loaded):
            copies += 1
            name = f"{plain}#{copies}"
    _IN_PROCESS[path, name] = loaded
    return path, name


def _differs(known: LoadedFunction, new: LoadedFunction) -> bool:
    """Return True unless both are one definition: a cell that ran again as it was, or a file that was imported twice."""
    return known.sha256 != new.sha256 or _definition(known.function) != _definition(new.function)


def _definition(function: Callable[..., Any]) -> object:
    """Return what two definitions with the same source differ in; of an object, or of what holds variables, itself."""
    source = inspect.unwrap(function)
    name = getattr(source, "__qualname__", "<locals>")
    if isinstance(source, type) and "<locals>" not in name:
        return name
    code = getattr(source, "__code__", None)
    if code is None or getattr(function, "__closure__", None):
        return id(function)
    return code, repr((source.__defaults__, source.__kwdefaults__))


def in_process(path: Path, name: str) -> LoadedFunction | None:
    """Return a function that Python code passed as an object; None if its file has to be run."""
    return _IN_PROCESS.get((path, name))


def needs_process(path: Path, name: str) -> bool:
    """Return True if no other process can find the function of this path and name."""
    return path == WITHOUT_FILE or ":" in name


def _source_file(source: object) -> str:
    try:
        return inspect.getsourcefile(source if inspect.isclass(source) else type(source)) or str(WITHOUT_FILE)
    except (TypeError, OSError):
        return str(WITHOUT_FILE)


def _source(source: object) -> str:
    """Return the text of a function or class of a notebook; of one without text, that of its methods or its code."""
    try:
        return inspect.getsource(source)  # type: ignore[arg-type]
    except (TypeError, OSError):
        pass
    if isinstance(code := getattr(source, "__code__", None), types.CodeType):
        return f"{code.co_code!r} {code.co_consts!r}"
    kind = source if isinstance(source, type) else type(source)
    methods = (each for each in vars(kind).values() if inspect.isfunction(each))
    return "".join((kind.__qualname__, *map(_source, methods)))


def load_function(path: Path, name: str) -> LoadedFunction:
    """Run a Python file and return a function or class from it, or return one that Python code passed as an object.

    Functions from the same file share one module. The file's folder is not added to the import path.

    Raises:
        ConfigError: The file cannot be read or run, or has no such function; the message begins with the path.
    """
    if (live := in_process(path, name)) is not None:
        return live
    if needs_process(path, name):
        raise ConfigError(
            f"{path}: {name}: a function of another Python session, which no file has. Go on from Python, or put it at the top "
            "of a file"
        )
    module, sha256 = _run_file(path)
    function = module.__dict__.get(name)
    if not callable(function):
        own = sorted(
            key
            for key, value in module.__dict__.items()
            if callable(value)
            and not key.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
        )
        has = ", ".join(own) or "no function or class of its own"
        raise ConfigError(f"{path}: no function or class {name!r}. It has {has}.")
    return LoadedFunction(function, path, sha256)


def load_object(path: Path, name: str) -> object:
    """Run a Python file and return what has this name at its top.

    Raises:
        ConfigError: The file cannot be read or run, or has no such name; the message begins with the path.
    """
    module, _ = _run_file(path)
    if name not in module.__dict__:
        raise ConfigError(f"{path}: expected a name at the top of the file, found no {name!r:.60}")
    return module.__dict__[name]


def _run_file(path: Path) -> tuple[types.ModuleType, str]:
    """Return the module of a file, which is run once, and the SHA-256 of its content."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: expected a Python file: {error.strerror or error}") from None
    sha256 = hashlib.sha256(source).hexdigest()
    return _module(path, source, sha256), sha256


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A loaded function with its further arguments; whatever goes wrong in it is a ConfigError that names its line.

    Attributes:
        loaded: The function and its file.
        name: Its name in the file.
        args: Its further arguments.
    """

    loaded: LoadedFunction
    name: str
    args: Mapping[str, Any]

    def call(self, *values: Any, about: str = "") -> Any:  # noqa: ANN401 - whatever the function returns
        """Return what the function returns; `about` names what it is called for, for the message.

        Raises:
            ConfigError: The function raised, or exited.
        """
        try:
            return self.loaded.function(*values, **self.args)
        except BaseException as error:
            # Ctrl-C and signals are raised in the main thread only; elsewhere the function raised it, which would end the loop.
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            line = _line(error, self.loaded.path) or self._line
            reason = f"it raised {one_line(error)[:300]}. Correct the function."
            raise ConfigError(f"{self.loaded.path}{line}: {self.name}: {about}{reason}") from error

    def refused(self, problem: str, remedy: str, about: str = "") -> ConfigError:
        """Return the error of a value that the function returned and that cannot be used."""
        return ConfigError(f"{self.loaded.path}{self._line}: {self.name}: {about}{problem}. {remedy}.")

    @property
    def _line(self) -> str:
        """Return the line at which the function begins, as text for a message."""
        code = getattr(inspect.unwrap(self.loaded.function), "__code__", None)
        is_here = code is not None and code.co_filename == str(self.loaded.path)
        return f", line {code.co_firstlineno}" if code is not None and is_here else ""


def load_user_function(
    path: Path, name: str, parameters: Sequence[str], args: Mapping[str, Any]
) -> UserFunction:
    """Load a function that is called with `parameters` by position and `args` by name.

    Raises:
        ConfigError: The file cannot be run or has no such function, or the function cannot take its arguments.
    """
    loaded = load_function(path, name)
    # The name of a function that no file has ends with its line.
    plain = name.partition(":")[0]
    own = UserFunction(loaded, plain, args)
    what = f"{path}: {name}" if in_process(path, name) is None else f"{loaded.path}{own._line}: {plain}"
    if inspect.iscoroutinefunction(loaded.function):
        raise ConfigError(f"{what}: expected a plain function, got an async one. Remove async.")
    check_signature(loaded.function, what, plain, parameters, args)
    return own


def check_signature(
    function: Callable[..., Any], what: str, name: str, parameters: Sequence[str], args: Mapping[str, Any]
) -> None:
    """Check that a function returns, and takes `parameters` by position and `args` by name; `what` begins the message.

    Raises:
        ConfigError: It is a class or a generator, or has other parameters.
    """
    if any(is_kind(function) for is_kind in _WITHOUT_RESULT):
        raise ConfigError(f"{what}: expected a function that returns, got a class or a generator")
    try:
        inspect.signature(function).bind(*parameters, **args)
    except (TypeError, ValueError) as error:
        form = f"{name}({', '.join(parameters)}{', **args' if args else ''})"
        raise ConfigError(f"{what}: expected {form}: {error}. Give it these parameters.") from None


_WITHOUT_RESULT = (inspect.isclass, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def place_of(function: Callable[..., Any], error: BaseException | None = None) -> str:
    """Return " (FILE, line N)" of a function, or of the line of its file at which an error was raised; "": it has no file."""
    source = inspect.unwrap(function)
    code = getattr(source, "__code__", None)
    if code is None:
        return ""
    line = "" if error is None else _line(error, Path(code.co_filename))
    return f" ({code.co_filename}{line or f', line {code.co_firstlineno}'})"


def one_line(error: BaseException) -> str:
    """Return type and message of an exception; only the type if the message cannot be computed."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a user's exception class may raise anything here
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _module(path: Path, source: bytes, sha256: str) -> types.ModuleType:
    """Run the file as a module, under a name that collides with no other module."""
    digest = hashlib.sha256(f"{path.resolve()}\0{sha256}".encode()).hexdigest()
    name = f"_ramify_user_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"{path}{line}: not Python: {reason}") from None
    module = types.ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses and type hints look up their module by name.
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    # Also SystemExit: a script that exits is not a file of functions.
    except BaseException as error:  # noqa: BLE001
        del sys.modules[name]
        raise ConfigError(f"{path}{_line(error, path)}: running it failed: {one_line(error)}") from None
    return module


def _line(error: BaseException, path: Path) -> str:
    """Return the line of the file that was running at the error, as text for the message."""
    last = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            last = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return last
