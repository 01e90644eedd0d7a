#include "models/stored_types.h"

#include <algorithm>

#include "base/text.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

// "blk.*.attn_q.weight" for "blk.3.attn_q.weight".
std::string kind_of(const std::string& name) {
  constexpr std::string_view kStart = "blk.";
  if (!name.starts_with(kStart)) return name;
  const size_t end = name.find_first_not_of("0123456789", kStart.size());
  return end == name.npos ? name : str(kStart, "*", name.substr(end));
}

}  // namespace

double StoredTypes::bits_per_weight() const {
  return elements == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
}

std::vector<StoredTypes> stored_types(const Checkpoint& checkpoint) {
  const Checkpoint::State& state = checkpoint.state();
  std::map<std::string, StoredTypes> kinds;
  if (!state.gguf) return {};
  for (const TensorFile& file : state.tensors.files()) {
    for (const auto& [name, tensor] : file.tensors()) {
      StoredTypes& types = kinds[kind_of(name)];
      types.num_tensors[tensor.view.dtype] += 1;
      types.elements += tensor.view.num_elements();
      types.bytes += static_cast<int64_t>(tensor.view.num_bytes());
    }
  }
  std::vector<StoredTypes> all;
  for (auto& [kind, types] : kinds) {
    types.kind = kind;
    all.push_back(std::move(types));
  }
  return all;
}

std::string text(const StoredTypes& types) {
  std::vector<std::string> counts;
  int64_t total = 0;
  for (const auto& [type, count] : types.num_tensors) total += count;
  for (const auto& [type, count] : types.num_tensors) {
    counts.push_back(count == total ? std::string(name(type)) : str(name(type), " ", count));
  }
  return join(counts);
}

}  // namespace moracle
