"""Converts entries to one JSON document, and that document to the table."""

from . import ratios

MANY = 64  # from this number of tokens on, compute time matters


def to_document(entries, cells, machine):
    """`cells`: {(family, tokens): {"read", "ops", "peak", "distinct"}}."""
    rows = []
    by_format = {(e.peer, e.format.name): e for e in entries}
    for entry in entries:
        other = by_format.get(("moracle", entry.format.beside))
        for tokens, rounds in entry.rounds.items():
            if not rounds:
                continue
            row = {"engine": entry.peer, "format": entry.format.name, "bits": entry.format.bits,
                   "family": entry.format.family, "num_tokens": tokens,
                   "nrmse": entry.nrmse.get(tokens), **ratios.times(rounds)}
            if other and other.rounds.get(tokens):
                row["beside"] = entry.format.beside
                row.update(ratios.ratio(rounds, other.rounds[tokens]))
            cell = cells[entry.format.family, tokens]
            work = ratios.work(
                cell["distinct"], tokens, machine["shape"], entry.format.bits)
            rows.append({**row, **work,
                         **ratios.floor(work, cell["read"], cell["ops"])})
    limits = [{"family": family, "num_tokens": tokens, "read_gb_per_s": cell["read"] / 1e9,
               "peak": cell["peak"], "gop_per_s": cell["ops"] / 1e9}
              for (family, tokens), cell in cells.items()]
    about = {**machine, "shape": machine["shape"].name}
    return {**about, "limits": limits, "rows": rows}


def _us(value):
    return f"{value:,.0f}"


def _cell(row):
    if row is None:
        return "–"
    text = _us(row["us_median"])
    if "ratio" in row:
        text += f" {row['ratio']:.2f} ({row['ratio_p25']:.2f}–{row['ratio_p75']:.2f})"
    return text


def _means(values):
    """The ratios over MANY tokens and more, and over all, as texts."""
    many = ratios.geometric_mean(v for tokens, v in values.items() if tokens >= MANY)
    everywhere = ratios.geometric_mean(values.values())
    return [f"{mean:.2f}" if mean else "–" for mean in (many, everywhere)]


def _family(document, family):
    rows = [row for row in document["rows"] if row["family"] == family]
    tokens = sorted({row["num_tokens"] for row in rows})
    lines = [["engine", "format", "bits", "nrmse", *map(str, tokens), f"{MANY}+", "all"]]
    names = list(dict.fromkeys((row["engine"], row["format"]) for row in rows))
    at = {(row["engine"], row["format"], row["num_tokens"]): row for row in rows}
    best = {}
    for engine, name in names:
        mine = {t: at[engine, name, t] for t in tokens if (engine, name, t) in at}
        compared = {t: row["ratio"] for t, row in mine.items() if "ratio" in row}
        errors = [row["nrmse"] for row in mine.values() if row["nrmse"] is not None]
        bits = next(iter(mine.values()))["bits"]
        lines.append([engine, name, f"{bits:g}", f"{max(errors):.3f}" if errors else "–",
                      *(_cell(mine.get(t)) for t in tokens), *_means(compared)])
        if engine == "moracle":
            shares = (f"{row['us_floor'] / row['us_median'] * 100:.0f} %" if row else "–"
                      for row in map(mine.get, tokens))
            lines.append(["", "of the limit", "", "", *shares, "", ""])
        for t, ratio in compared.items():
            best[t] = min(best.get(t, ratio), ratio)
    if best:
        lines.append(["best peer", "", "", "",
                      *(f"{best[t]:.2f}" if t in best else "–" for t in tokens), *_means(best)])
    return lines


def to_text(document):
    """Markdown: a table for each number of bits."""
    parts = []
    for family in sorted({row["family"] for row in document["rows"]}):
        lines = _family(document, family)
        head = ["| " + " | ".join(lines[0]) + " |", "|" + " --- |" * len(lines[0])]
        body = ["| " + " | ".join(line) + " |" for line in lines[1:]]
        limits = [one for one in document["limits"] if one["family"] == family]
        reads = " ".join(f"{one['read_gb_per_s']:.0f}" for one in limits)
        peaks = " ".join(f"{one['gop_per_s'] / 1e3:.1f}" for one in limits)
        under = (f"Read bandwidth by column, GB/s: {reads}; {limits[0]['peak']}, TOP/s: {peaks}.")
        parts.append("\n".join([f"{family} bits", "", *head, *body, "", under]))
    notes = [f"{one['engine']} {one['format']}: {one['note']}" for one in document["notes"]]
    parts += ["; ".join(part) + "." for part in (notes, document["versions"].values()) if part]
    for one in document["absent"]:
        parts.append(f"no {one['engine']} {one['format']}: {one['reason']}")
    return "\n\n".join(parts) + "\n"
