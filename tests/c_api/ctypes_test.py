#!/usr/bin/env python3
"""Tests the C API from ctypes, with the standard library only: ctypes_test.py LIBRARY COMMAND MODEL"""
import ctypes as c
import json
import subprocess
import sys


class Request(c.Structure):
    _fields_ = [("size", c.c_size_t), ("backend", c.c_char_p), ("device", c.c_char_p), ("max_num_tokens", c.c_int64),
                ("deterministic", c.c_int32), ("bf16_activations", c.c_int32), ("ep_size", c.c_int64),
                ("ep_rank", c.c_int64), ("expert_map", c.c_void_p)]


class Call(c.Structure):
    _fields_ = [("size", c.c_size_t), ("num_tokens", c.c_int64), ("hidden", c.c_void_p), ("hidden_dtype", c.c_int32),
                ("output_dtype", c.c_int32), ("output", c.c_void_p), ("hidden_stride", c.c_int64),
                ("output_stride", c.c_int64), ("topk_ids", c.c_void_p), ("topk_weights", c.c_void_p),
                ("stream", c.c_void_p)]


class Library:
    """Functions by name. A non-zero status raises the error's text."""

    def __init__(self, path):
        self.library = c.CDLL(path)
        self.library.moracle_error_text.restype = c.c_char_p

    def call(self, name, *arguments):
        error = c.c_void_p()
        if getattr(self.library, name)(*arguments, c.byref(error)) != 0:
            text = self.library.moracle_error_text(error).decode()
            self.library.moracle_error_free(error)
            raise RuntimeError(text)

    def new(self, name, *arguments):
        out = c.c_void_p()
        self.call(name, *arguments, c.byref(out))
        return out

    def text(self, name, *arguments):
        out = self.new(name, *arguments)
        text = c.string_at(out).decode()
        self.library.moracle_text_free(out)
        return text

    def number(self, name, handle):
        function = getattr(self.library, name)
        function.restype = c.c_int64
        return function(handle)


def apply(library, moe, hidden, ids, weights, size):
    output = (c.c_float * len(hidden))()
    call = Call(size=c.sizeof(Call), num_tokens=len(hidden) // size, hidden=c.addressof(hidden),
                output=c.addressof(output), topk_ids=c.addressof(ids), topk_weights=c.addressof(weights))
    library.call("moracle_moe_apply", moe, c.byref(call))
    return list(output)


def main():
    path, command, model = sys.argv[1:]
    library = Library(path)
    try:
        library.new("moracle_checkpoint_open", b"nowhere")
        sys.exit("a folder that does not exist was opened")
    except RuntimeError as error:
        assert str(error) == "nowhere: needs the folder of a checkpoint; the folder does not exist", error

    checkpoint = library.new("moracle_checkpoint_open", model.encode())
    layer = library.new("moracle_layer_from_checkpoint", checkpoint, c.c_int64(0), None)
    size, top_k = library.number("moracle_layer_hidden_size", layer), library.number("moracle_layer_top_k", layer)
    machine = library.new("moracle_machine_find", None)
    request = Request(size=c.sizeof(Request), device=b"cpu", max_num_tokens=8)
    selection = library.new("moracle_select", layer, machine, c.byref(request))

    # Choice and reasons must equal the command's, which plans for the same number of tokens.
    shown = json.loads(library.text("moracle_selection_json", selection))
    explained = json.loads(subprocess.run([command, "explain", model, "--json", "--num-tokens", "8"], check=True,
                                          capture_output=True, text=True).stdout)
    group = explained["groups"][0]
    for key in ("scheme", "chosen", "weight_bytes", "considered", "plan"):
        assert shown[key] == group[key], f"{key}: {shown[key]} and {group[key]}"
    assert shown["chosen"] in library.text("moracle_selection_explain", selection, c.c_int32(1))

    device = library.new("moracle_device_open", b"cpu", None)
    progress = c.CFUNCTYPE(c.c_int32, c.c_int64, c.c_int64, c.c_void_p)
    seen = []
    moe = library.new("moracle_moe_make", layer, selection, device,
                      progress(lambda done, total, _: seen.append((done, total)) or 1), None)
    assert seen and all(done <= total for done, total in seen)

    hidden = (c.c_float * (2 * size))(*((7 * i % 11 - 5) / 4 for i in range(2 * size)))
    ids = (c.c_int32 * (2 * top_k))(*(list(range(top_k)) + [-1] * top_k))
    ones, twos = ((c.c_float * (2 * top_k))(*[weight] * (2 * top_k)) for weight in (1, 2))
    once, twice = (apply(library, moe, hidden, ids, weights, size) for weights in (ones, twos))
    # Doubled router weights double the output bit for bit; ids of -1 add zero.
    assert any(once[:size]) and not any(once[size:])
    assert twice == [2 * value for value in once]

    for kind, handle in (("moe", moe), ("device", device), ("selection", selection), ("machine", machine),
                         ("layer", layer), ("checkpoint", checkpoint)):
        getattr(library.library, f"moracle_{kind}_free")(handle)


main()
