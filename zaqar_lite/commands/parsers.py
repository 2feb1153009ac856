"""The parsers of the command line, which answer a wrong word in one line and suggest another.

argparse by itself prints the whole usage first, which is twenty lines for some commands.
"""

import argparse
import os
import re
from collections.abc import Iterable
from typing import Any, NoReturn

SHARED = "is_shared"
"""An attribute of options that many commands have: a usage leaves them out."""


class Formatter(argparse.HelpFormatter):
    """Help in which a usage has a command's own options, and names have room beside their text."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:  # noqa: ANN401
        """Add the usage."""
        own = [one for one in actions if not hasattr(one, SHARED)]
        super().add_usage(usage, own, groups, prefix)

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument; the names of verbs stand two further in, which argparse forgets."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            longest = max(map(len, action.choices)) + self._current_indent + self._indent_increment
            self._action_max_length = max(self._action_max_length, longest)


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong with the words of a command."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - as argparse has it
        super().__init__(**({"formatter_class": Formatter} | options))
        # No option begins with a digit, so `-5m` is a value, as -5 and -.5 are to argparse itself.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and end with exit code 2."""
        text = f"{self.prog}: {message.removeprefix('argument ')}; see {self.prog} --help\n"
        self.exit(2, text.replace("?; see", "? See"))

    def format_help(self) -> str:
        """Return the help, with examples at its end."""
        from zaqar_lite.commands import examples  # noqa: PLC0415 - only help needs them

        found = "".join(f"  {line}\n" for line in examples.of(self.prog))
        return super().format_help() + (f"\nexamples:\n{found}" if found else "")

    # The base class overloads this method; only the words that it leaves over matter here.
    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Parse, and refuse unknown words here: the root would not name the command."""
        namespace, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self._refuse(unknown)
        return namespace, unknown

    def _refuse(self, unknown: list[str]) -> NoReturn:
        option = next((word for word in unknown if word.startswith("-")), None)
        if option is None:
            self.error(f"it takes no {unknown[0]!r}")
        name = option.partition("=")[0]
        known = [one for one in self._option_string_actions if one.startswith("--")]
        near = nearest(name, known)
        if not near and self.prog.endswith(" serve"):
            variable = name.strip("-").replace("-", "_").upper()
            near = f"; a setting without one is the variable ZAQAR_LITE_{variable}, or in --config"
        self.error(f"it has no option {name}{near}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        """Refuse a word that is none of the choices, and suggest the nearest."""
        choices = [] if action.choices is None else [str(one) for one in action.choices]
        if choices and value not in choices:
            near = nearest(str(value), choices) or f"; there are {', '.join(choices)}"
            what = "/".join(action.option_strings) or str(action.metavar or action.dest).lower()
            raise argparse.ArgumentError(None, f"there is no {what} {value!r}{near}")


class Leaf(Parser):
    """A parser that takes options and words in any order: `post QUEUE --ttl 60 BODY`.

    argparse by itself gives all words that may be many, `BODY ...`, to the first run of words. So
    does this where a shell completes a word, because argcomplete must see each word once.
    """

    _intermixed = "_ARGCOMPLETE" in os.environ

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Parse; `parse_known_intermixed_args` comes back here for each of its two passes."""
        if self._intermixed:
            return argparse.ArgumentParser.parse_known_args(self, *args, **kwargs)
        self._intermixed = True
        try:
            namespace, unknown = self.parse_known_intermixed_args(*args, **kwargs)
        finally:
            self._intermixed = False
        if unknown:
            self._refuse(unknown)
        return namespace, unknown


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean ...?` for the known word that is nearest, or nothing."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a wrong word needs it

    found = get_close_matches(word, list(known), 1, cutoff=0.7)
    return f": did you mean {found[0]}?" if found else ""
