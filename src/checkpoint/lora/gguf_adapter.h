// A LoRA adapter in GGUF, as llama.cpp's convert_lora_to_gguf.py writes it: "blk.0.attn_q.weight"
// of the model has A in "blk.0.attn_q.weight.lora_a" [rank, K] and B in ".lora_b" [N, rank]; those
// of experts have one more dimension in front.
#pragma once

#include <string>

#include "checkpoint/lora/lora_settings.h"
#include "checkpoint/tensors/tensors.h"
#include "moracle/checkpoint.h"

namespace moracle {

struct GgufAdapter {
  LoraSettings settings;
  Tensors tensors;  ///< under PEFT's names, one pair for each module
};

/// Opens an adapter for `checkpoint`, which must be in GGUF: rows of B are in the order of the
/// model's file. Errors: those of GgufFile::open and LoraSettings::read_gguf; an adapter of another
/// architecture; a tensor that is neither A nor B, whose pair is missing, or whose matrix the
/// model's file lacks; shapes that do not fit the matrix.
Result<GgufAdapter> open_gguf_adapter(const std::string& path, const Checkpoint& checkpoint);

}  // namespace moracle
