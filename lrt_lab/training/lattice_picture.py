"""The lattice as a picture: lines for a terminal, and an SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from lrt_lab.training.lattice import Lattice

COLOURS = {"depth": "#5b4ba8", "tokens": "#7a7a7a", "time": "#c0522f"}
#: Positions drawn, and pixels between them.
COLUMNS, APART = 3, 190
#: With more units than this, only the last position shows what skips units.
CROWDED = 16


def reached(lookback: int | None) -> str:
    """The token path of one unit in words."""
    if lookback is None:
        return "all before"
    return f"{lookback} before" if lookback else ""


def name(lattice: Lattice, height: int) -> str:
    """What stands at a height; above all outputs stands the head."""
    if height == 0:
        return "input"
    units = len(lattice.units)
    return "head" if height > units else f"{height - 1} {lattice.units[height - 1]}"


def leaving(lattice: Lattice) -> int | None:
    """The height at which memory leaves: the newest output in it, or the token's."""
    if not lattice.tap:
        return None
    return max(lattice.leaves, default=0)


def ports(lattice: Lattice, height: int) -> tuple[str, ...]:
    """By which ports memory enters there: the stack's input is every reader's, and shown once."""
    if height == 0:
        return ("embed",) if "embed" in lattice.enters[0] else ()
    return tuple(port for port in lattice.enters[height - 1] if port != "embed")


def lines(lattice: Lattice) -> Iterator[str]:
    """One line per unit, the head first.

    Of depth: a dot per output that is read, an open one where a newer vector holds it in its sum.
    """
    units = len(lattice.units)
    left = max(len(name(lattice, height)) for height in range(units + 2)) + 2
    middle = max(units + 1, len("depth")) + 2
    yield f"{'':{left}}{'depth':{middle}}{'tokens':12}time"
    for height in range(units + 1, -1, -1):
        dots = tokens = ""
        if height:
            reader = height - 1
            marks = {h: "●" if h in lattice.kept[reader] else "○" for h in lattice.depth[reader]}
            dots = "".join(marks.get(h, " ") for h in range(units + 1))
            tokens = "" if height > units else reached(lattice.lookback[reader])
        time = [f"in: {', '.join(found)}"] if (found := ports(lattice, height)) else []
        if height == leaving(lattice):
            time.append(f"out: {lattice.tap}")
        row = f"{name(lattice, height):{left}}{dots:{middle}}{tokens:12}{'; '.join(time)}"
        yield row.rstrip()


def svg(lattice: Lattice, title: str) -> str:
    """The same for three positions, as an SVG document."""
    units = len(lattice.units)
    pitch = 30 if units <= CROWDED else 16
    foot = 40 + pitch * (units + 1)
    columns = [200 + APART * column for column in range(COLUMNS)]
    last = columns[-1]

    def y(height: int) -> int:
        return foot - pitch * height

    def curve(path: str, x0: int, h0: int, x1: int, h1: int, bend: float) -> str:
        """From one node to another, its middle moved sideways in a column, else upwards."""
        across, up = (bend, 0.0) if x0 == x1 else (0.0, bend)
        middle = f"{(x0 + x1) / 2 + across:g} {(y(h0) + y(h1)) / 2 - up:g}"
        return (
            f'<path d="M{x0} {y(h0)} Q{middle} {x1} {y(h1)}" stroke="{COLOURS[path]}"'
            f' marker-end="url(#{path})"/>'
        )

    edges: list[str] = []
    for column, x in enumerate(columns):
        for reader in range(units + 1):
            for h in sorted(lattice.kept[reader] & lattice.depth[reader]):
                if h == reader or units <= CROWDED or x == last:
                    skipped = reader - h
                    edges.append(curve("depth", x, h, x, reader + 1, -12 * skipped**0.6 * 2))
        for unit, back in enumerate(lattice.lookback):
            for before in range(1, column + 1 if back is None else min(back, column) + 1):
                at = columns[column - before]
                edges.append(curve("tokens", at, unit + 1, x, unit + 1, 9.0 * (before - 1)))
        out = leaving(lattice)
        if out is not None and column >= lattice.across:
            entries = [h for h in range(units + 2) if ports(lattice, h)]
            for h in entries:
                bend = 0.0 if lattice.across else 70.0
                edges.append(curve("time", columns[column - lattice.across], out, x, h, bend))
    nodes = [
        f'<circle cx="{x}" cy="{y(height)}" r="4"/>' for x in columns for height in range(units + 2)
    ]
    names = [
        f'<text x="20" y="{y(height) + 4}">{escape(name(lattice, height))}</text>'
        for height in range(units + 2)
    ]
    marks = [
        f'<text x="{x}" y="{foot + 26}" text-anchor="middle">{label}</text>'
        for x, label in zip(columns, ("t - 2", "t - 1", "t"), strict=True)
    ]
    legend = [
        f'<text x="20" y="{foot + 52 + 18 * row}" fill="{COLOURS[path]}">{path}: {words}</text>'
        for row, (path, words) in enumerate(
            (
                ("depth", "earlier outputs at the position, each where it is kept apart"),
                ("tokens", "earlier positions at the unit"),
                ("time", f"what leaves a position ({escape(lattice.tap or 'nothing')})"),
            )
        )
    ]
    arrows = [
        f'<marker id="{path}" viewBox="0 0 6 6" refX="9" refY="3" markerWidth="6" markerHeight="6"'
        f' orient="auto"><path d="M0 0L6 3L0 6z" fill="{colour}"/></marker>'
        for path, colour in COLOURS.items()
    ]
    width, height = last + 120, foot + 110
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            ' font-family="sans-serif" font-size="11" fill="#222">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f"<defs>{''.join(arrows)}</defs>",
            f'<text x="20" y="20" font-size="13">{escape(title)}</text>',
            '<g fill="none" stroke-width="1.2">',
            *edges,
            "</g>",
            *nodes,
            *names,
            *marks,
            *legend,
            "</svg>",
            "",
        ]
    )
