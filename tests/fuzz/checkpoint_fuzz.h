// Shared by the fuzz targets of all producers: applies the fuzzer's bytes as edits to one valid
// checkpoint.
#pragma once

#include <span>

#include "fuzz/edits.h"
#include "fuzz/read_all.h"

namespace moracle::testing {

/// As small as the formats allow.
inline constexpr SyntheticSize kTiny{.layers = 1,
                                     .experts = 2,
                                     .top_k = 1,
                                     .hidden = 16,
                                     .intermediate = 8,
                                     .heads = 1,
                                     .kv_heads = 1,
                                     .head_dim = 8,
                                     .vocab = 4};

/// True if every base opens. A target whose bases are rejected would test nothing.
inline bool all_open(std::span<const SyntheticCheckpoint> bases) {
  return std::all_of(bases.begin(), bases.end(), [](const SyntheticCheckpoint& base) {
    const auto weights = base.experts();
    return weights.ok() && weights->w13.expert(0).ok() && weights->w2.expert(0).ok();
  });
}

inline void fuzz_checkpoint(std::span<const SyntheticCheckpoint> bases, const uint8_t* data,
                            size_t size) {
  static const bool open = all_open(bases);
  require(open);
  static const TemporaryFolder folder;
  Bytes bytes({data, size});
  SyntheticCheckpoint checkpoint = bases[bytes.below(bases.size())];
  for (int edits = 0; edits < 32 && !bytes.empty(); ++edits) {
    bytes.byte() % 2 == 0 ? edit_tensors(checkpoint, bytes) : edit_config(checkpoint.config, bytes);
  }
  require(checkpoint.write(folder.path()).ok());
  read_all(folder.path());
}

}  // namespace moracle::testing
