#include "checkpoint/lora/adapter_reader.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/module_names.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/state.h"
#include "quant/blocks/gguf_blocks.h"

namespace moracle {
namespace {

constexpr const char* kPrefix = "base_model.model.";
constexpr std::string_view kSuffix = ".lora_A.weight";

// A linear layer of the checkpoint, under the adapter's name, its name in another model class, or
// its published name. `name` is empty if there is none.
struct Found {
  std::string name;
  int64_t n = 0, k = 0;
};
Found find_linear(const Checkpoint& checkpoint, const std::string& module) {
  std::vector<std::string> names = module_names(module);
  constexpr std::string_view kBlock = ".mlp.";
  for (std::string name : module_names(module)) {
    const size_t at = name.find(kBlock);
    if (at != name.npos) names.push_back(name.replace(at, kBlock.size(), ".block_sparse_moe."));
  }
  const Checkpoint unclaimed = checkpoint.unclaimed_copy();
  for (const std::string& name : names) {
    const Result<DescribedMatrix> matrix = unclaimed.linear({name});
    if (matrix) return {name, matrix->shape().n, matrix->shape().k};
  }
  return {};
}

// Matrices of adapters are floats, in GGUF also blocks.
Result<TensorView> get_matrix(const Tensors& tensors, const std::string& name) {
  MORACLE_TRY(TensorView view, tensors.get(name));
  if (is_gguf_block(view.dtype)) return view;
  return get_floats(tensors, name);
}

Result<std::vector<float>> read_matrix(const Tensors& tensors, const std::string& name) {
  MORACLE_TRY(const TensorView view, tensors.get(name));
  if (!is_gguf_block(view.dtype)) return read_scales(tensors, name);
  MORACLE_TRY(const TensorData data, tensors.read(name));
  std::vector<float> values(static_cast<size_t>(view.num_elements()));
  decode_blocks(view.dtype, data.view.data, view.num_elements() / block(view.dtype).elements,
                values.data());
  return values;
}

}  // namespace

std::string AdapterReader::own_name(const std::string& module) const {
  for (const std::string& name : module_names(module)) {
    for (const char* part : {".lora_A.weight", ".lora_B.weight"}) {
      if (tensors_.find(kPrefix + name + part) != nullptr) return name;
    }
  }
  return module;
}

Result<LoraPair> AdapterReader::pair(const std::string& in_checkpoint, int64_t n, int64_t k) {
  const std::string module = own_name(in_checkpoint);
  const std::string a_name = kPrefix + module + ".lora_A.weight";
  const std::string b_name = kPrefix + module + ".lora_B.weight";
  const bool has_a = tensors_.find(a_name) != nullptr, has_b = tensors_.find(b_name) != nullptr;
  LoraPair pair;
  if (!has_a && !has_b) return pair;
  MORACLE_TRY(const TensorView a, get_matrix(tensors_, a_name));
  MORACLE_TRY(const TensorView b, get_matrix(tensors_, b_name));
  if (a.shape.size() != 2 || a.shape[0] < 1 || a.shape[1] != k)
    return tensors_.wrong(a_name, str("shape [rank, ", k, "]"), "it is " + to_string(a));
  pair.rank = a.shape[0];
  if (b.shape != std::vector<int64_t>{n, pair.rank})
    return tensors_.wrong(b_name, str("shape [", n, ", ", pair.rank, "]"), "it is " + to_string(b));
  MORACLE_TRY(pair.a, read_matrix(tensors_, a_name));
  MORACLE_TRY(pair.b, read_matrix(tensors_, b_name));
  // A router is a parameter, which patterns name with ".weight".
  pair.scale = settings_.scale(module, pair.rank);
  const float of_parameter = settings_.scale(module + ".weight", pair.rank);
  if (of_parameter != settings_.scale("", pair.rank)) pair.scale = of_parameter;
  rank_ = std::max(rank_, pair.rank);
  claimed_.insert({a_name, b_name});
  return pair;
}

Result<std::vector<LoraPair>> AdapterReader::experts(const std::string& prefix,
                                                     std::string_view part, int64_t num_experts,
                                                     int64_t n, int64_t k) {
  std::vector<LoraPair> pairs;
  bool any = false;
  for (int64_t e = 0; e < num_experts; ++e) {
    MORACLE_TRY(LoraPair one, pair(str(prefix, ".", e, ".", part), n, k));
    any |= one.rank > 0;
    pairs.push_back(std::move(one));
  }
  if (!any) pairs.clear();
  return pairs;
}

Result<std::vector<LoraPair>> AdapterReader::fused(const std::string& in_checkpoint,
                                                   std::string_view parameter, int64_t num_experts,
                                                   int64_t n, int64_t k) {
  std::vector<LoraPair> pairs;
  for (const char* wrapped : {"", ".base_layer"}) {
    const std::string wrapper = own_name(in_checkpoint + wrapped);
    const std::string module = wrapper.substr(0, wrapper.size() - std::string_view(wrapped).size());
    const std::string name = kPrefix + wrapper;
    const std::string a_name = name + ".lora_A.weight", b_name = name + ".lora_B.weight";
    if (tensors_.find(a_name) == nullptr || tensors_.find(b_name) == nullptr) continue;
    MORACLE_TRY(const TensorView a, get_floats(tensors_, a_name));
    MORACLE_TRY(const TensorView b, get_floats(tensors_, b_name));
    const bool fits = a.shape.size() == 2 && b.shape.size() == 2 && a.shape[1] == k &&
                      b.shape[0] == n && a.shape[0] == b.shape[1] && a.shape[0] > 0 &&
                      a.shape[0] % num_experts == 0;
    if (!fits) continue;
    MORACLE_TRY(const std::vector<float> all_a, read_scales(tensors_, a_name));
    MORACLE_TRY(const std::vector<float> all_b, read_scales(tensors_, b_name));
    const int64_t rank = a.shape[0] / num_experts;
    LoraPair pair{rank, settings_.scale(str(module, ".", parameter), rank), {}, {}};
    for (int64_t e = 0; e < num_experts; ++e) {
      const auto first = all_a.begin() + e * rank * k;
      pair.a.assign(first, first + rank * k);
      pair.b.clear();
      for (int64_t i = 0; i < n * rank; ++i)
        pair.b.push_back(all_b[static_cast<size_t>(i * num_experts + e)]);
      pairs.push_back(pair);
    }
    rank_ = std::max(rank_, rank);
    claimed_.insert({a_name, b_name});
    return pairs;
  }
  return pairs;
}

Status AdapterReader::check_base(const Checkpoint& checkpoint, const std::string& module,
                                 const std::string& name) {
  for (const char* part : {".weight", ".bias"}) {
    const std::string base = str(kPrefix, module, ".base_layer", part), own = name + part;
    if (tensors_.find(base) == nullptr) continue;
    claimed_.insert(base);
    const auto wrong = [&](std::string fact) {
      return tensors_.wrong(base, str("the values of '", own, "' in the checkpoint"),
                            std::move(fact));
    };
    const Tensors& originals = checkpoint.state().tensors;
    MORACLE_TRY(const TensorView copy, get_floats(tensors_, base));
    const Result<TensorView> original = get_floats(originals, own);
    if (!original || original->shape != copy.shape) return wrong("it has another shape or type");
    MORACLE_TRY(const std::vector<float> copied, read_scales(tensors_, base));
    MORACLE_TRY(const std::vector<float> expected, read_scales(originals, own));
    if (copied != expected) return wrong("it differs");
  }
  return {};
}

Result<std::map<std::string, LoraPair>> AdapterReader::linear_layers(const Checkpoint& checkpoint) {
  std::map<std::string, LoraPair> modules;
  for (const auto& [name, entry] : tensors_.all()) {
    if (claimed_.contains(name) || !name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const size_t begin = std::string_view(kPrefix).size();
    const std::string module = name.substr(begin, name.size() - begin - kSuffix.size());
    const Found found = find_linear(checkpoint, module);
    if (found.name.empty()) continue;
    MORACLE_TRY(LoraPair one, pair(module, found.n, found.k));
    MORACLE_CHECK(check_base(checkpoint, module, found.name));
    if (modules.emplace(found.name, std::move(one)).second) continue;
    return Error{ErrorKind::kUnsupported, tensors_.file_of(name), "tensor '" + name + "'",
                 "one adapter for each linear layer",
                 "'" + found.name + "' has a second one, under its name in another model class"};
  }
  return modules;
}

Status AdapterReader::check_claimed() const {
  for (const auto& [name, entry] : tensors_.all()) {
    if (claimed_.contains(name)) continue;
    return Error{ErrorKind::kUnsupported, tensors_.file_of(name), "tensor '" + name + "'",
                 "an expert or a linear layer of this checkpoint with this name and shape",
                 "the checkpoint has none"};
  }
  return {};
}

}  // namespace moracle
