// Types and sizes of the tensors of a GGUF file, by kind. For users.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "moracle/checkpoint.h"

namespace moracle {

/// The tensors of all layers that have one name: "blk.*.ffn_down_exps.weight".
struct StoredTypes {
  std::string kind;
  std::map<DType, int64_t> num_tensors;  ///< of each type
  int64_t elements = 0;
  int64_t bytes = 0;
  double bits_per_weight() const;
};

/// In the order of the names. Empty unless the checkpoint is a model in GGUF: other producers state
/// their schemes.
std::vector<StoredTypes> stored_types(const Checkpoint& checkpoint);

/// "q4_k", or with their numbers of tensors "q4_k 36, q6_k 12".
std::string text(const StoredTypes& types);

}  // namespace moracle
