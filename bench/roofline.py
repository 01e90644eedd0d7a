#!/usr/bin/env python3
"""Draws rooflines: what each engine reached over its operations per byte, under the machine's limits.

    moracle bench --scheme int8-w8a8,bf16 --tokens 1,4,16,64,256,1024 --json > bench.json
    bench/roofline.py bench.json peers.json --title "…" > docs/pictures/roofline-….svg
    bench/roofline.py bench.json --against best_public > docs/pictures/against-….svg

Reads documents of `moracle bench --json` and of `./dev peers --json`. Bytes are those of the experts
that had a token, operations two per product; a line joins one engine's numbers of tokens. --against draws
how many times as long others take instead, of cells that `moracle bench --anchors` found (against.py).
"""
import argparse
import html
import json
import math
import pathlib
import statistics
import sys

WIDTH, HEIGHT = 1000, 620
LEFT, RIGHT, TOP, BOTTOM = 76, 304, 46, 56
COLOURS = ("#0b6bcb", "#c2410c", "#15803d", "#7c3aed", "#be123c", "#0f766e", "#a16207", "#475569")
STYLE = ("text{font:12px system-ui,sans-serif;fill:#1b1f24}.q{fill:#767c85}.e{text-anchor:end}"
         ".m{text-anchor:middle}.t{font-weight:bold;font-size:15px}.a{stroke:#d9dce0}"
         ".r{stroke:#1b1f24;stroke-width:1.5;fill:none}.l{fill:none;stroke-width:2}")


def read(document):
    """Limits {"read": bytes/s, "peaks": {name: op/s}} and points [(engine, name, tokens, x, y)]."""
    limits, points = document["limits"], []
    if isinstance(limits, dict):  # of `moracle bench`
        bandwidth = [row["read_gb_per_s"] for row in document["rows"]]
        named = {row["peak"] for row in document["rows"]}
        peaks = {k: v * 1e9 for k, v in limits["gop_per_s"].items() if k in named}
        name = lambda row: ("moracle", f"{row['scheme']} ({row['backend']})")
    else:
        bandwidth = [one["read_gb_per_s"] for one in limits]
        every = {one["peak"] for one in limits}
        peaks = {p: statistics.median(one["gop_per_s"] for one in limits if one["peak"] == p) * 1e9
                 for p in every}
        name = lambda row: (row["engine"], row["format"])
    for row in document["rows"]:
        seconds = row["us_median"] / 1e6
        points.append((*name(row), row["num_tokens"], row["ops"] / row["bytes"],
                       row["ops"] / seconds))
    return {"read": statistics.median(bandwidth) * 1e9, "peaks": peaks}, points


def merge(documents):
    every = [read(document) for document in documents]
    peaks = {}
    for limits, _ in every:
        for name, value in limits["peaks"].items():
            peaks.setdefault(name, []).append(value)
    limits = {"read": statistics.median(one["read"] for one, _ in every),
              "peaks": {name: statistics.median(values) for name, values in peaks.items()}}
    return limits, [point for _, points in every for point in points]


class Axes:
    """Logarithmic axes over whole decades around the points."""

    def __init__(self, xs, ys):
        self.x0, self.x1 = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
        self.y0, self.y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def x(self, value):
        part = (math.log10(value) - self.x0) / (self.x1 - self.x0)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        part = (math.log10(value) - self.y0) / (self.y1 - self.y0)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


def spell(ops):
    for unit, size in (("TOP/s", 1e12), ("GOP/s", 1e9)):
        if ops >= size:
            return f"{ops / size:g} {unit}"
    return f"{ops / 1e6:g} MOP/s"


def grid(axes):
    for power in range(axes.x0, axes.x1 + 1):
        x = axes.x(10.0 ** power)
        yield f"<path class='a' d='M{x:.1f} {TOP}V{HEIGHT - BOTTOM}'/>"
        yield f"<text class='q m' x='{x:.1f}' y='{HEIGHT - BOTTOM + 18}'>{10.0 ** power:g}</text>"
    for power in range(axes.y0, axes.y1 + 1):
        y = axes.y(10.0 ** power)
        yield f"<path class='a' d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}'/>"
        yield f"<text class='q e' x='{LEFT - 6}' y='{y + 4:.1f}'>{spell(10.0 ** power)}</text>"
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield (f"<text class='q m' x='{middle}' y='{HEIGHT - 14}'>operations per byte of weights "
           "(more tokens to the right)</text>")


def roofs(axes, limits):
    first = 10.0 ** axes.x0
    top = max(limits["peaks"].values())
    for name, peak in sorted(limits["peaks"].items(), key=lambda item: item[1]):
        corner = peak / limits["read"]
        line = (f"M{axes.x(first):.1f} {axes.y(first * limits['read']):.1f}" if peak == top
                else f"M{axes.x(corner):.1f} {axes.y(peak):.1f}")
        yield (f"<path class='r' d='{line}L{axes.x(corner):.1f} {axes.y(peak):.1f}"
               f"H{WIDTH - RIGHT}'/>")
        yield (f"<text class='e' x='{WIDTH - RIGHT - 4}' y='{axes.y(peak) - 5:.1f}'>"
               f"{html.escape(name)}: {peak / 1e12:.1f} TOP/s</text>")
    x, y = axes.x(first * 2), axes.y(first * 2 * limits["read"])
    slope = math.degrees(math.atan2(axes.y(10 * first) - axes.y(first * 100),
                                    axes.x(100 * first) - axes.x(10 * first)))
    yield (f"<text transform='translate({x:.1f} {y - 6:.1f}) rotate({-slope:.1f})'>"
           f"memory: {limits['read'] / 1e9:.0f} GB/s</text>")


def lines(axes, points):
    series = {}
    for engine, name, tokens, x, y in points:
        series.setdefault((engine, name), []).append((tokens, x, y))
    for i, ((engine, name), mine) in enumerate(series.items()):
        colour, mine = COLOURS[i % len(COLOURS)], sorted(mine)
        own = engine == "moracle"
        path = "L".join(f"{axes.x(x):.1f} {axes.y(y):.1f}" for _, x, y in mine)
        dash = "" if own else " stroke-dasharray='5 4'"
        yield f"<path class='l' stroke='{colour}'{dash} d='M{path}'/>"
        for tokens, x, y in mine:
            fill = colour if own else "#fff"
            yield (f"<circle cx='{axes.x(x):.1f}' cy='{axes.y(y):.1f}' r='4' fill='{fill}' "
                   f"stroke='{colour}' stroke-width='2'><title>{html.escape(f'{engine} {name}')}: "
                   f"{tokens} tokens, {y / 1e12:.3g} TOP/s</title></circle>")
        row = TOP + 14 + 20 * i
        at = WIDTH - RIGHT + 16
        yield f"<path class='l' stroke='{colour}'{dash} d='M{at} {row - 4}h24'/>"
        yield f"<text x='{at + 32}' y='{row}'>{html.escape(f'{engine} {name}')}</text>"


def draw(documents, title):
    limits, points = merge(documents)
    xs = [x for *_, x, _ in points]
    ys = [y for *_, y in points] + list(limits["peaks"].values())
    axes = Axes(xs, ys + [10.0 ** math.floor(math.log10(min(xs))) * limits["read"]])
    return picture([*grid(axes), *roofs(axes, limits), *lines(axes, points)], title)


def picture(body, title):
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
        f"height='{HEIGHT}' role='img'>", f"<title>{html.escape(title)}</title>",
        f"<style>{STYLE}</style>", f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#fff'/>",
        f"<text class='t' x='{LEFT}' y='26'>{html.escape(title)}</text>", *body, "</svg>", ""])


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", type=pathlib.Path)
    parser.add_argument("--title", default="Roofline")
    parser.add_argument("--only", default="", help="series whose name contains one of these")
    parser.add_argument("--against", choices=("best_public", "vllm"),
                        help="how many times as long these take, instead of a roofline")
    args = parser.parse_args(argv)
    documents = [json.loads(path.read_text()) for path in args.documents]
    if args.only:
        wanted = args.only.split(",")
        for document in documents:
            document["rows"] = [row for row in document["rows"]
                                if any(one in f"{row.get('engine', 'moracle')} "
                                       f"{row.get('format', row.get('scheme'))}" for one in wanted)]
        documents = [document for document in documents if document["rows"]]
    if args.against:
        import against  # here, because against imports this module
        sys.stdout.write(against.draw(documents, args.against, args.title))
    else:
        sys.stdout.write(draw(documents, args.title))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
