// A linear layer as tensors in memory.
#pragma once

#include "moracle/checkpoint.h"

namespace moracle {

/// The tensors of StoredMatrix without the dimension of experts.
struct StoredLinear {
  StoredMatrix matrix;
  Packing packing = Packing::kRows;
  std::shared_ptr<const void> owner;  ///< as in StoredExperts
  ReadMemory read;                    ///< as in StoredExperts
};

/// Describes a linear layer in memory. The weight gives the sizes: codes in i32 words hold a whole
/// number of words of each row. Errors as for experts.
Result<DescribedMatrix> describe(StoredLinear stored, const Scheme& scheme);

}  // namespace moracle
