"""Computes the table's numbers from the seconds of each run in each round."""

import math
import statistics


def quartiles(values):
    """The quartiles, with linear interpolation."""
    ordered = sorted(values)

    def at(part):
        place = part * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return at(0.25), at(0.5), at(0.75)


def times(rounds):
    """Median, minimum and quartiles over all runs, in µs."""
    runs = [seconds * 1e6 for one in rounds for seconds in one]
    low, middle, high = quartiles(runs)
    return {"us_median": middle, "us_min": min(runs), "us_p25": low, "us_p75": high,
            "runs": len(runs)}


def ratio(rounds, beside):
    """How many times as long as `beside`, from the ratios of the medians within each round. Above 1 the other is
    faster. Skips rounds that either lacks."""
    pairs = zip(rounds, beside)
    each = [statistics.median(one) / statistics.median(other) for one, other in pairs]
    low, middle, high = quartiles(each)
    return {"ratio": middle, "ratio_p25": low, "ratio_p75": high}


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else None


def work(distinct, num_tokens, shape, bits):
    """Bytes of the experts with a token, and operations (two per product)."""
    return {"bytes": round(distinct * shape.weights_per_expert * bits / 8),
            "ops": 2 * num_tokens * shape.top_k * shape.weights_per_expert}


def floor(work_, read, ops):
    """The floor: the longer of bytes over bandwidth and operations over peak."""
    memory, compute = work_["bytes"] / read, work_["ops"] / ops
    return {"us_floor": max(memory, compute) * 1e6,
            "floor_by": "memory" if memory >= compute else "compute"}
