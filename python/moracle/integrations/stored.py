"""The parameters w13_* and w2_* of engines' MoE layers as arguments of moracle.pack."""


class Declined(Exception):
    """Moracle does not serve a layer. The text is the reason."""


def both(layer, weight="weight", scale=None, zero_points=None, bias="bias"):
    """Arguments of pack() from the parameters w13_* and w2_* of a layer."""
    arguments = {}
    for number, prefix in (("w1", "w13_"), ("w2", "w2_")):
        arguments[number] = getattr(layer, prefix + weight).data
        if scale is not None:
            arguments[number + "_scale"] = getattr(layer, prefix + scale).data
        if zero_points is not None:
            arguments[number + "_zp"] = getattr(layer, prefix + zero_points).data
        stored = getattr(layer, prefix + bias, None) if bias else None
        if stored is not None:
            arguments[number + "_bias"] = stored.data
    return arguments


def group_name(size):
    return "channel" if size in (-1, None) else f"g{size}"


def per_row(layer, scale="weight_scale"):
    """Scales per tensor as scales per row: gate and up may have two, which Moracle keeps."""
    w13, w2 = getattr(layer, "w13_" + scale).data, getattr(layer, "w2_" + scale).data
    rows = layer.w13_weight.shape[1]
    return {"w1_scale": w13.float().repeat_interleave(rows // w13.shape[1], 1),
            "w2_scale": w2.float().reshape(-1, 1).repeat(1, layer.w2_weight.shape[1])}
