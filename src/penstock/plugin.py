"""Loading an object by its name: `module:name`, as entry points write it.

The operator gives the names (in a settings file, a command line, a program). They never come from the network:
importing a module runs its code.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from penstock.config_def import shown

_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class UnusableName(Exception):
    """A name that cannot be loaded. The message says why, and what to do."""


def load_object(text: str) -> Any:
    """The object of a name: `my_company.retention:KeepDaily`. UnusableName."""
    if not _NAME.fullmatch(text):
        raise UnusableName(f"{shown(text)!r} is not module:name; expected something like my_company.module:Name")
    module_name, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnusableName(
            f"{shown(text)}: no module named {error.name!r}; install it, or add its folder to PYTHONPATH"
        ) from error
    except Exception as error:
        raise UnusableName(f"{shown(text)}: importing {module_name} failed: {shown(repr(error))}") from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UnusableName(f"{shown(text)}: module {module_name} has no {path!r}") from None
    return found


def load_callable(text: str) -> Any:
    """The class or function of a name. UnusableName."""
    found = load_object(text)
    if not callable(found):
        raise UnusableName(f"{shown(text)} is not a class or function, but {shown(repr(found))}")
    return found
