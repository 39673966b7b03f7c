"""One clear line instead of a parser's several.

What was given, what is allowed, the nearest name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lrt_lab.parts import PARTS, options_of, parts_of
from lrt_lab.wording import nearest, plain


def explain(message: str, options: Sequence[str]) -> str:
    """A jsonargparse error in one line.

    Args:
        message: the parser's text.
        options: every option's dotted name.
    """
    text = " ".join(message.split())
    group = next((g for g in PARTS if re.search(rf'key "(?:model\.)?{g}"', text)), None)
    if group:
        known = parts_of(PARTS[group])
        if wrong := re.search(r"import path string: (\S+)", text):
            name = wrong.group(1)
            hint = nearest(name, list(known))
            return f"unknown {group} {name!r}{hint}; known: {', '.join(sorted(known))}"
        if part := re.search(r"given class_path '[\w.]*?(\w+)': (.*)", text):
            return explain_part(part.group(1), part.group(2), known)
    if wrong := re.search(r"[Uu]nrecognized arguments?: -*([\w.]+)", text):
        return f"unknown option --{wrong.group(1)}{nearest(wrong.group(1), options)}"
    if wrong := re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", text):
        name = f"{wrong.group(1)}.{wrong.group(2)}"
        return f"unknown option {name}{nearest(name, options)}"
    if wrong := re.search(r"(?:Key|Option) '([\w.]+)' is not (?:expected|accepted)", text):
        return f"unknown option {wrong.group(1)}{nearest(wrong.group(1), options)}"
    if wrong := re.search(r"File does not exist: '([^']+)'", text):
        return f"config {wrong.group(1)} does not exist"
    if wrong := re.search(r'Parser key "([\w.]+)": (.*)', text):
        return f"option {wrong.group(1)}: {plain(wrong.group(2))}"
    return text


def explain_part(name: str, problem: str, known: dict[str, type]) -> str:
    """What is wrong with an option of a part."""
    options = options_of(known[name]) if name in known else []
    if wrong := re.search(r"Option '(\w+)' is not accepted", problem):
        takes = f"; it takes: {', '.join(options)}" if options else "; it takes none"
        return f"{name} has no option {wrong.group(1)!r}{nearest(wrong.group(1), options)}{takes}"
    if wrong := re.search(
        r'Parser key "(\w+)": (.*?)(?: - (?:Expected|Problem) .*| Given value .*)?$', problem
    ):
        return f"{name} option {wrong.group(1)}: {plain(wrong.group(2))}"
    return f"{name}: {plain(problem)}"
