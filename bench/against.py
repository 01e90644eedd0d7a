"""Draws how many times as long as Moracle other libraries take, by tokens: roofline.py --against."""
import html
import math
import statistics

import roofline as r


def read(documents, whom):
    """{(shape, scheme): [(tokens, ratio, impl)]} of the oracle's choices that have an anchor."""
    series = {}
    for document in documents:
        for row in document["rows"]:
            if row.get("chosen") and whom in row:
                series.setdefault((row["shape"], row["scheme"]), []).append(
                    (row["num_tokens"], row[whom]["ratio"], row[whom]["impl"]))
    return {name: sorted(points) for name, points in series.items()}


def mean(series):
    every = [ratio for points in series.values() for _, ratio, _ in points]
    return math.exp(statistics.fmean(math.log(ratio) for ratio in every))


class Axes:
    """Tokens and ratios in powers of two."""

    def __init__(self, series):
        tokens = [t for points in series.values() for t, _, _ in points]
        ratios = [q for points in series.values() for _, q, _ in points] + [1]
        self.x0, self.x1 = math.log2(min(tokens)), math.log2(max(tokens)) or 1
        self.y0, self.y1 = math.floor(math.log2(min(ratios))), math.ceil(math.log2(max(ratios)))
        if self.y0 == self.y1:
            self.y0, self.y1 = self.y0 - 1, self.y1 + 1

    def x(self, tokens):
        part = (math.log2(tokens) - self.x0) / max(self.x1 - self.x0, 1)
        return r.LEFT + part * (r.WIDTH - r.LEFT - r.RIGHT)

    def y(self, ratio):
        part = (math.log2(ratio) - self.y0) / (self.y1 - self.y0)
        return r.HEIGHT - r.BOTTOM - part * (r.HEIGHT - r.TOP - r.BOTTOM)


def grid(axes, series):
    for tokens in sorted({t for points in series.values() for t, _, _ in points}):
        x = axes.x(tokens)
        yield f"<path class='a' d='M{x:.1f} {r.TOP}V{r.HEIGHT - r.BOTTOM}'/>"
        yield f"<text class='q m' x='{x:.1f}' y='{r.HEIGHT - r.BOTTOM + 18}'>{tokens:,}</text>"
    for power in range(axes.y0, axes.y1 + 1):
        y, style = axes.y(2.0 ** power), "r" if power == 0 else "a"
        yield f"<path class='{style}' d='M{r.LEFT} {y:.1f}H{r.WIDTH - r.RIGHT}'/>"
        yield f"<text class='q e' x='{r.LEFT - 6}' y='{y + 4:.1f}'>{2.0 ** power:g}</text>"
    middle = (r.LEFT + r.WIDTH - r.RIGHT) / 2
    yield (f"<text class='q m' x='{middle}' y='{r.HEIGHT - 14}'>tokens at once (above 1 this library "
           "is faster)</text>")


def lines(axes, series):
    """Each scheme has a colour, each shape a dash pattern."""
    schemes, shapes = (list(dict.fromkeys(name[at] for name in series)) for at in (1, 0))
    for i, ((shape, scheme), points) in enumerate(series.items()):
        colour = r.COLOURS[schemes.index(scheme) % len(r.COLOURS)]
        dash = ("", "6 4", "2 3", "9 3 2 3")[shapes.index(shape) % 4]
        path = "L".join(f"{axes.x(t):.1f} {axes.y(q):.1f}" for t, q, _ in points)
        stroke = f"stroke='{colour}' stroke-dasharray='{dash}'"
        yield f"<path class='l' {stroke} d='M{path}'/>"
        for tokens, ratio, impl in points:
            what = html.escape(f"{shape} {scheme}: {tokens} tokens, {ratio:.2f} × ({impl})")
            yield (f"<circle cx='{axes.x(tokens):.1f}' cy='{axes.y(ratio):.1f}' r='4' "
                   f"fill='{colour}'><title>{what}</title></circle>")
        at, row = r.WIDTH - r.RIGHT + 16, r.TOP + 14 + 18 * i
        yield f"<path class='l' {stroke} d='M{at} {row - 4}h24'/>"
        yield f"<text x='{at + 32}' y='{row}'>{html.escape(f'{shape} {scheme}')}</text>"


def draw(documents, whom, title):
    series = read(documents, whom)
    if not series:
        raise SystemExit(f"no row has '{whom}': was moracle bench given --anchors?")
    axes = Axes(series)
    return r.picture([*grid(axes, series), *lines(axes, series)],
                     f"{title} (geometric mean {mean(series):.2f})")
