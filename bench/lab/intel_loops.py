"""The hot loop of a kernel for Intel GPUs, in the disassembly that `ocloc disasm` writes: the loop around its dpas
instructions, and what one pass of it executes."""
import dataclasses
import heapq
import math
import re


@dataclasses.dataclass(frozen=True)
class Loop:
    """One pass of the hot loop: 32 columns."""
    dpas: int
    others: int       # instructions that are not dpas
    sends: int        # messages to memory among them
    cycles: int       # that the others occupy an engine of `lanes` lanes


def cycles_of(line, lanes):
    """Cycles of one instruction on 32-bit lanes: registers wider than the engine take several."""
    size = re.search(r"\((\d+)\|M\d+\)", line)
    if size is None or re.search(r"\b(send|sync|goto|join|jmpi)\b", line):
        return 1
    return max(1, math.ceil(int(size[1]) * (2 if re.search(r":(u?q|df)\b", line) else 1) / lanes))


def next_lines(lines, labels, at):
    """Indices of the instructions that may run after this one. SIMD branches count as uniform."""
    line = lines[at]
    if not re.search(r"\b(goto|jmpi|while|endif|brc)\b", line):
        return [at + 1]
    target = labels[re.findall(r"\bL\d+\b", line)[-1]]
    always = re.match(r"(\(W\))?\s*\w", line)
    return [target] if always else [at + 1, target]


def shortest_path(lines, labels, begin, end):
    """Indices of the instructions from `begin` to before `end`, the fewest that lead there."""
    queue, before = [(0, begin, None)], {}
    while queue:
        cost, at, previous = heapq.heappop(queue)
        if at in before or at >= len(lines):
            continue
        before[at] = previous
        if at == end and previous is not None:
            break
        for other in next_lines(lines, labels, at):
            if other == end or other not in before:
                heapq.heappush(queue, (cost + 1, other, at))
    path, at = [], before[end]
    while at is not None:
        path.append(at)
        at = before[at] if at != begin else None
    return path[::-1]


def hot_loop(text, lanes):
    """The loop around the dpas instructions, on its shortest way through all of them."""
    lines, labels = [], {}
    for line in text.splitlines():
        label = re.match(r"(L\d+):", line)
        if label:
            labels[label[1]] = len(lines)
        elif line.strip():
            lines.append(line)
    dpas = [i for i, line in enumerate(lines) if re.search(r"\bdpas", line)]
    backs = [(at - target, target) for at in range(len(lines)) for target in next_lines(lines, labels, at)
             if target <= dpas[0] and at >= dpas[-1]]
    head = min(backs)[1]
    stops = [head, *dpas, head]
    path = []
    for begin, end in zip(stops, stops[1:]):
        path += shortest_path(lines, labels, begin, end)
    others = [lines[i] for i in path if i not in set(dpas)]
    return Loop(len(dpas), len(others), sum("send" in line for line in others),
                sum(cycles_of(line, lanes) for line in others))
