#!/usr/bin/env python3
"""Times quantized experts beside transformers' grouped_mm on dequantized weights, for a layer of Qwen3-30B-A3B.

    bench/python_quantized.py                 on the CPU with 2 threads
    bench/python_quantized.py --device cuda   on an NVIDIA GPU

`each call`: the weights are dequantized to bf16 in every call, as memory for one copy needs it. `once`: they stay
in bf16, in 2 to 4 times the memory. Both then run grouped_mm. Turns, rounds and cells are those of python_layers.py.
"""
import torch
from python_layers import call_of, compare, experts, geometric_mean, in_turns, parser_of, routing, row

import moracle

GROUP = 128


def int8_channel(w):
    scale = w.abs().amax(-1, keepdim=True).float() / 127
    codes = (w / scale).round().to(torch.int8)
    return codes, scale[..., 0].contiguous(), lambda: codes * scale.bfloat16()


def int4_groups(w):
    parts = w.unflatten(-1, (-1, GROUP))
    scale = parts.abs().amax(-1, keepdim=True).float() / 7
    whole = (parts / scale).round().add_(8).to(torch.uint8).flatten(-2)
    codes = whole[..., ::2] | whole[..., 1::2] << 4

    def values():
        unpacked = torch.stack([codes & 15, codes >> 4], -1).to(torch.int8).sub_(8)
        return (unpacked.view(parts.shape) * scale.bfloat16()).view(w.shape)
    return codes, scale[..., 0].contiguous(), values


def fp8_blocks(w):
    parts = w.unflatten(-1, (-1, GROUP)).unflatten(-3, (-1, GROUP))
    scale = parts.abs().amax((-3, -1), keepdim=True).float() / 448
    codes = (parts / scale).to(torch.float8_e4m3fn)
    return codes.view(w.shape), scale[..., 0, :, 0].contiguous(), lambda: (codes.bfloat16() * scale.bfloat16()).view(w.shape)


SCHEMES = {"int8-w8a8": int8_channel, "int4-w4a16-g128": int4_groups, "fp8-w8a8-block128x128": fp8_blocks}


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--schemes", type=lambda text: text.split(","), default=list(SCHEMES), help=", ".join(SCHEMES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = ("each call", "once", "moracle")
    print("| scheme | tokens | " + " | ".join(names) + " | each call / moracle | once / moracle |")
    print("| --- | ---: " + "| ---: " * (len(names) + 2) + "|")
    for scheme in options.schemes:
        quantize = SCHEMES[scheme]
        module = experts(options.device)
        codes1, scale1, values1 = quantize(module.gate_up_proj.data)
        codes2, scale2, values2 = quantize(module.down_proj.data)
        packed = moracle.pack(codes1, codes2, top_k=8, scheme=scheme, w1_scale=scale1, w2_scale=scale2)

        def dequantize():
            module.gate_up_proj.data, module.down_proj.data = values1(), values2()
        ratios = []
        for num_tokens in options.tokens:
            hidden, ids, weights = routing(num_tokens, options.device, num_tokens)
            grouped = call_of(module, "grouped_mm", (hidden, ids, weights))
            calls = {"each call": lambda: (dequantize(), grouped())[1], "once": grouped,
                     "moracle": lambda: packed(hidden, weights, ids)}
            # Activations of 8 bits differ by 1 to 4 % from those of 16.
            compare(calls, calls["each call"]().float(), 6e-2, f"{scheme}, {num_tokens} tokens")
            times = in_turns(calls, options.device, options.seconds)
            ratios.append([times[name] / times["moracle"] for name in names[:2]])
            row(f"{scheme} | {num_tokens:,}", times, names, ratios[-1])
        print(f"| {scheme} | mean | | | | " + " | ".join(f"{geometric_mean(column):.2f}" for column in zip(*ratios)) + " |")


if __name__ == "__main__":
    with torch.no_grad():
        main()
