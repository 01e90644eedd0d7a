#include "checkpoint/producers/producer.h"

namespace moracle {

std::span<const Producer* const> producers() {
  static constexpr const Producer* kProducers[] = {
#define X(producer) &producer,
#include "checkpoint/producers/producers.inc"
#undef X
  };
  return kProducers;
}

Result<DescribedLinear> Reader::describe_expert(const Tensors& tensors, const std::string& module,
                                                int64_t, int64_t) const {
  return Error{ErrorKind::kUnsupported, tensors.file_of(module), "module '" + module + "'",
               "one tensor per expert from this producer",
               "the file stores all experts in one tensor"};
}

}  // namespace moracle
