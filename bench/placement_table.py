#!/usr/bin/env python3
"""Tokens a second by GPU memory: measures, prints a table and draws the picture of docs/placement.md.

    bench/placement_table.py MODEL.gguf --device cuda --sizes 2GB,4GB,8GB,12GB --json table.json --svg docs/pictures/placement.svg
    bench/placement_table.py MODEL.gguf --device cuda --sizes … --llama-bench ./llama-bench --layers 48
    bench/placement_table.py --model-shape qwen3-30b-a3b --scheme int4-w4a16-g128 --layers 8 --device cuda --sizes …
    bench/placement_table.py --model-shape qwen3-235b-a22b --scheme int4-w4a16-g128 --layers 6 --device cuda --sizes …
    bench/placement_table.py MODEL.gguf --device cuda --sizes 7GB --sequences 1,8,32 --alone cpu,30GB --rounds 3
    bench/placement_table.py --from table.json --svg docs/pictures/placement.svg

Each size is `moracle bench --model MODEL --gpu-memory SIZE --routing-trace TRACE`: for every number of sequences the same
trace, so that rows compare by their counts also where times mean nothing, as with an emulated GPU. llama.cpp keeps the experts of
whole layers on the GPU: of each size its rows take as many layers as the slots' experts fill (`-ncmoe`), in turns with this
library's. --alone adds the CPU alone and a GPU that has this memory, with the same trace, in turns with each size, and says whether
the experts on both are ever slower than one device. With --model-shape and fewer layers than the model has, sizes are those of the
layers that are built, and tokens a second those of all layers, scaled. Needs a command in build/cuda or --moracle."""
import argparse
import html
import json
import os
import re
import subprocess
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 64, 170, 44, 48
COLOURS = ["#1a5fb4", "#c64600", "#26a269", "#813d9c", "#5e5c64"]


def size_of(text):
    number, unit = re.fullmatch(r"([0-9.]+)([kMG]?B?)", text).groups()
    return int(float(number) * {"": 1, "B": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit[:1] if unit != "B" else ""])


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"placement_table: {' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def model_of(options):
    if options.model_shape:
        return ["--model-shape", options.model_shape, "--scheme", options.scheme, "--layers", str(options.layers)]
    return ["--model", options.model]


def bench(options, device):
    """One row for each number of sequences. `device`: options that say where the model lies."""
    command = [options.moracle, "bench", *model_of(options), *device, "--routing-trace", options.trace, "--batch", options.sequences,
               "--context", str(options.context), "--seconds", str(options.seconds), "--json"]
    document = json.loads(run(command))
    rows = []
    for one in document.get("batches") or [document]:
        experts = one.get("experts") or {}
        choices = experts.get("hits", 0) + experts.get("misses", 0)
        rows.append({"batch": one["batch"], "slots": experts.get("num_slots"), "num_experts": one.get("num_experts"),
                     "hit_rate": experts.get("hits", 0) / choices if choices else None, "moves": experts.get("moves"),
                     "bytes_moved": experts.get("bytes_moved"),
                     "tokens_per_second": one.get("tokens_per_second_replayed_all_layers") or one["tokens_per_second_all_layers"]})
    return rows


def measure(options, size):
    return bench(options, ["--device", options.device, "--gpu-memory", str(size)]
                 + (["--cpu-memory", options.cpu_memory] if options.cpu_memory else []))


def alone(options, way):
    """The CPU, or a GPU that has this memory for a copy of the model."""
    return bench(options, ["--device", "cpu"] if way == "cpu" else ["--device", options.device, "--gpu-memory", str(size_of(way))])


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def compare(options, size):
    """Rounds of all ways in turns; the median of each."""
    rounds = [(measure(options, size), {way: alone(options, way) for way in options.alone}) for _ in range(options.rounds)]
    rows = []
    for i, row in enumerate(rounds[-1][0]):
        row["gpu_memory"] = size
        row["tokens_per_second"] = median([placed[i]["tokens_per_second"] for placed, _ in rounds])
        row["alone"] = {way: median([others[way][i]["tokens_per_second"] for _, others in rounds]) for way in options.alone}
        rows.append(row)
    return rows


def llama(options, rows):
    """llama.cpp with as many whole layers of experts on the GPU as the slots hold."""
    share = rows[0]["slots"] / rows[0]["num_experts"] if rows[0]["slots"] is not None else 1
    on_cpu = options.layers - int(share * options.layers)
    command = [options.llama_bench, "-m", options.model, "-ngl", "99", "-ncmoe", str(on_cpu), "-p", "0", "-n", "64", "-o", "json"]
    return {"layers_on_gpu": options.layers - on_cpu, "tokens_per_second": json.loads(run(command))[0]["avg_ts"]}


def sequences(row):
    return "1 sequence" if row["batch"] == 1 else f"{row['batch']} sequences"


def show(document):
    print(f"{document['model']}, device {document['device']}, trace {document['trace']}\n")
    ways = list(document["rows"][0].get("alone", {}))
    titles = ["GPU memory", "sequences", "slots", "found in slots", "moves", "tokens a second", "llama.cpp", *ways]
    print("| " + " | ".join("CPU alone" if one == "cpu" else one for one in titles) + " |\n" + "|---" * len(titles) + "|")
    for row in document["rows"]:
        hits = "" if row["hit_rate"] is None else f"{100 * row['hit_rate']:.0f} %"
        slots = "all" if row["slots"] is None else row["slots"]
        peer = f"{row['llama']['tokens_per_second']:.1f}" if row.get("llama") else ""
        print(f"| {row['gpu_memory'] / 1e9:.3g} GB | {row['batch']} | {slots} | {hits} | {row['moves'] or 0} "
              f"| {row['tokens_per_second']:.1f} | {peer} |" + "".join(f" {row['alone'][way]:.1f} |" for way in ways))
    # A GPU that has the whole model is another machine: what more memory would give.
    slower = [row for row in document["rows"] if row["tokens_per_second"] < 0.95 * row.get("alone", {}).get("cpu", 0)]
    for row in slower:
        print(f"\nslower than the CPU alone: {sequences(row)} with {row['gpu_memory'] / 1e9:.3g} GB")
    return not slower


def nice_steps(largest):
    step = 10 ** len(str(int(largest))) / 10
    while largest / step < 4:
        step /= 2
    return [step * i for i in range(int(largest / step) + 1)]


def picture(document):
    series = {}
    for row in document["rows"]:
        name = sequences(row)
        series.setdefault(name, []).append((row["gpu_memory"] / 1e9, row["tokens_per_second"]))
        if row.get("llama"):
            series.setdefault("llama.cpp, 1 sequence", []).append((row["gpu_memory"] / 1e9, row["llama"]["tokens_per_second"]))
    most_x = max(x for points in series.values() for x, _ in points)
    most_y = max(y for points in series.values() for _, y in points) * 1.08

    def at(x, y):
        return (LEFT + (WIDTH - LEFT - RIGHT) * x / most_x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / most_y)

    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' "
             "font-family='sans-serif' font-size='12'>", "<rect width='100%' height='100%' fill='white'/>",
             f"<text x='{LEFT}' y='20' font-size='14'>{html.escape('Tokens a second by GPU memory: ' + document['title'])}</text>"]
    for y in nice_steps(most_y):
        left, line = at(0, y)
        parts += [f"<line x1='{left}' x2='{WIDTH - RIGHT}' y1='{line:.1f}' y2='{line:.1f}' stroke='#ddd'/>",
                  f"<text x='{left - 6}' y='{line + 4:.1f}' text-anchor='end'>{y:g}</text>"]
    for x in sorted({x for points in series.values() for x, _ in points}):
        place, base = at(x, 0)
        parts.append(f"<text x='{place:.1f}' y='{base + 18}' text-anchor='middle'>{x:.3g}</text>")
    parts.append(f"<text x='{(LEFT + WIDTH - RIGHT) / 2}' y='{HEIGHT - 8}' text-anchor='middle'>GB of GPU memory</text>")
    for colour, (name, points) in zip(COLOURS * 9, series.items()):
        places = [at(x, y) for x, y in sorted(points)]
        parts.append(f"<polyline fill='none' stroke='{colour}' stroke-width='2' points='"
                     + " ".join(f"{x:.1f},{y:.1f}" for x, y in places) + "'/>")
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in places]
        parts.append(f"<text x='{places[-1][0] + 8:.1f}' y='{places[-1][1] + 4:.1f}' fill='{colour}'>{html.escape(name)}</text>")
    return "\n".join([*parts, "</svg>", ""])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", nargs="?")
    options.add_argument("--moracle", default="build/cuda/moracle")
    options.add_argument("--device", default="cuda")
    options.add_argument("--sizes", type=lambda text: [size_of(one) for one in text.split(",")], default=[])
    options.add_argument("--cpu-memory")
    options.add_argument("--trace", default="generated")
    options.add_argument("--sequences", "--batch", default="1,8,32", help="that decode side by side, each row one of them")
    options.add_argument("--alone", type=lambda text: text.split(","), default=[],
                         help="ways to compare with: cpu, and memory for a GPU that holds more, such as 30GB")
    options.add_argument("--rounds", type=int, default=1, help="of all ways in turns; rows have medians")
    options.add_argument("--context", type=int, default=128)
    options.add_argument("--seconds", type=float, default=2)
    options.add_argument("--llama-bench", help="llama.cpp's program, built with CUDA, to take turns with")
    options.add_argument("--model-shape", help="instead of a model: random layers of this published shape, --layers of them")
    options.add_argument("--scheme", default="int4-w4a16-g128", help="with --model-shape")
    options.add_argument("--layers", type=int, help="layers with experts, for --llama-bench and --model-shape")
    options.add_argument("--title")
    options.add_argument("--json", help="write the figures here")
    options.add_argument("--from", dest="source", help="read figures instead of measuring")
    options.add_argument("--svg", help="write the picture here")
    given = options.parse_args()
    if given.source:
        with open(given.source) as file:
            document = json.load(file)
    else:
        if not (given.model or given.model_shape) or not given.sizes or ((given.llama_bench or given.model_shape) and not given.layers):
            options.error("needs a model or a shape, and --sizes, with --llama-bench or a shape also --layers; or --from")
        name = given.model_shape or os.path.basename(given.model.rstrip("/"))
        document = {"model": name, "device": given.device, "trace": given.trace, "title": given.title or name, "rows": []}
        for size in given.sizes:
            rows = compare(given, size)
            if given.llama_bench:
                rows[0]["llama"] = llama(given, rows)
            document["rows"] += rows
    never_slower = show(document)
    if given.json:
        with open(given.json, "w") as file:
            json.dump(document, file, indent=1)
    if given.svg:
        with open(given.svg, "w") as file:
            file.write(picture(document))
    return 0 if never_slower else 1


if __name__ == "__main__":
    sys.exit(main())
