#include "checkpoint/producers/producer.h"

#include <algorithm>
#include <cctype>

namespace moracle {

bool Producer::is(std::string_view method) const {
  std::string text(method);
  for (char& c : text)
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text == name || std::find(also.begin(), also.end(), text) != also.end();
}

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
