// The keys of AutoRound's quantization config that matter for reading.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/config.h"

namespace moracle::auto_round {

/// How tensors hold integers: packing_format.
enum class Form { kGptq, kGptqV2, kAwq };
/// data_type, without its variants.
enum class Type { kInt, kMx, kNv, kFp };

struct Options {
  Type type = Type::kInt;
  Form form = Form::kGptq;
  int64_t bits = 0;
  std::vector<int64_t> group = {128};  ///< along K, -1: one group; of fp also [rows, columns]
  bool symmetric = true;
  int64_t act_bits = 16;

  bool plain() const { return bits > 8; }  ///< not quantized
};

/// Changes the options to the values of the keys that `config` has: the whole config, or an entry
/// of extra_config. Errors (kUnsupported): bits, a data type or a form without a reader, by its
/// key.
Status read_options(const Config& config, Options& options);

/// block_name_to_quantize, or to_quant_block_names of older files: beginnings of module names, in a
/// text, a list, or lists of lists.
Result<std::vector<std::string>> read_blocks(const Config& config);

}  // namespace moracle::auto_round
