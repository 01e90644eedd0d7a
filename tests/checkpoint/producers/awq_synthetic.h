// Writes tiny checkpoints in the format of AutoAWQ.
#pragma once

#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "checkpoint/synthetic_checkpoint.h"

namespace moracle::testing {

/// Parameters of a synthetic AWQ file.
struct Awq {
  int64_t group_size = 8;  ///< -1: one group
  bool zero_point = true;
};
inline std::ostream& operator<<(std::ostream& out, const Awq& format) {
  format.group_size == -1 ? out << "all" : out << "g" << format.group_size;
  return out << (format.zero_point ? "_zero_points" : "_symmetric");
}

inline void add_awq(SyntheticCheckpoint& checkpoint, const std::string& module, int64_t n,
                    int64_t k, const Awq& format, std::mt19937& random) {
  const int64_t size = format.group_size == -1 ? k : format.group_size;
  const int64_t groups = (k + size - 1) / size;
  std::vector<uint32_t> codes(k * n / 8), zeros(groups * n / 8, 0x88888888u);
  for (uint32_t& code : codes) code = static_cast<uint32_t>(random());
  for (uint32_t& zero : zeros) zero = format.zero_point ? static_cast<uint32_t>(random()) : zero;
  std::vector<uint16_t> scales(groups * n);
  for (uint16_t& scale : scales) {
    scale = float_to_f16(0.01f + static_cast<float>(random() >> 8) * 0x1p-28f);
  }
  checkpoint.tensors.erase(module + ".weight");
  checkpoint.add(module + ".qweight", DType::kI32, {k, n / 8}, codes);
  checkpoint.add(module + ".qzeros", DType::kI32, {groups, n / 8}, zeros);
  checkpoint.add(module + ".scales", DType::kF16, {groups, n}, scales);
}

/// A checkpoint with all expert matrices in this format.
inline SyntheticCheckpoint awq_checkpoint(const Awq& format = {}) {
  const SyntheticSize size{.layers = 1, .experts = 2};
  auto checkpoint = SyntheticCheckpoint::plain(size);
  std::mt19937 random(5);
  for (int64_t e = 0; e < size.experts; ++e) {
    for (const char* part : {"gate_proj", "up_proj"}) {
      add_awq(checkpoint, SyntheticCheckpoint::expert(0, e, part), 16, 32, format, random);
    }
    add_awq(checkpoint, SyntheticCheckpoint::expert(0, e, "down_proj"), 32, 16, format, random);
  }
  checkpoint.config["quantization_config"] = {{"quant_method", "awq"},
                                              {"bits", 4},
                                              {"group_size", format.group_size},
                                              {"zero_point", format.zero_point},
                                              {"version", "gemm"}};
  return checkpoint;
}

}  // namespace moracle::testing
