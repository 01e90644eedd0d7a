"""A linear layer packed from tensors, for many calls."""
from ._moracle import Linear, describe_linear, select
from .packed import MAX_NUM_TOKENS, _on_host, _open_device, float_scheme


class PackedLinear:
    """A linear layer, packed for the oracle's choice of backend. Keeps none of the caller's tensors."""

    def __init__(self, linear, selection):
        self.linear = linear
        self.selection = selection
        self.apply = linear.apply_any  # saves a Python frame

    def __call__(self, x, output=None):
        """output [num_tokens, N] = x [num_tokens, K] times the transposed weight, plus the bias, in the type of x.

        x: f32, bf16 or f16; on a GPU its activation type, bf16. Forward only.
        """
        return self.apply(x, output)

    def __deepcopy__(self, memo):
        return self  # immutable: share it

    def __repr__(self):
        return f"<PackedLinear {self.linear!r}>"


def pack_linear(weight, *, scheme=None, scale=None, zp=None, g_idx=None, bias=None, input_scale=None, packing="rows",
                backend="auto", device=None, max_num_tokens=None, progress=None):
    """Packs a linear layer. The tensors can be freed afterwards.

    weight: [N, K] as the checkpoint stores it, N outputs of K inputs; all other tensors, `scheme`, `packing`, `device` and
    `max_num_tokens` as in pack(), without the dimension of experts. Errors name the tensor.
    """
    device = _open_device(device, weight)
    parts = {"weight": weight, "scale": scale, "zp": zp, "g_idx": g_idx, "bias": bias, "input_scale": input_scale}
    described = describe_linear({part: _on_host(tensor) for part, tensor in parts.items()},
                                scheme=float_scheme(weight) if scheme is None else scheme, packing=packing)
    selection = select(described, device=device.name, backend=backend,
                       max_num_tokens=max_num_tokens or MAX_NUM_TOKENS[device.platform])
    return PackedLinear(Linear(described, selection, device, progress=progress), selection)
