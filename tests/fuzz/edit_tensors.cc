#include "fuzz/edits.h"

#include <cctype>
#include <iterator>
#include <utility>
#include <vector>

namespace moracle::testing {
namespace {

constexpr const char* kSuffixes[] = {
    ".weight",        ".bias",         ".qweight",          ".qzeros",
    ".scales",        ".g_idx",        ".weight_scale",     ".weight_shape",
    ".weight_packed", ".weight_g_idx", ".input_scale",      "_blocks",
    "_scales",        "_bias",         ".weight_scale_inv", ".weight_zero_point",
    ".lora_A.weight", ".lora_B.weight"};

std::string without_digits(std::string name) {
  std::erase_if(name, [](unsigned char c) { return std::isdigit(c) != 0; });
  return name;
}

// Picks one tensor; or the tensors of the same name in all layers and experts; or all with the same
// ending.
std::vector<std::string> pick(const SyntheticCheckpoint& checkpoint, Bytes& bytes) {
  if (checkpoint.tensors.empty()) return {};
  const size_t index = bytes.below(checkpoint.tensors.size());
  const std::string name = std::next(checkpoint.tensors.begin(), static_cast<long>(index))->first;
  const uint8_t like = bytes.byte() % 3;
  if (like == 0) return {name};
  const std::string part = name.substr(std::min(name.size(), name.find("_proj")));
  std::vector<std::string> picked;
  for (const auto& [other, tensor] : checkpoint.tensors) {
    const bool alike = like == 1 ? without_digits(other) == without_digits(name)
                                 : other.find("_proj") != other.npos && other.ends_with(part);
    if (alike) picked.push_back(other);
  }
  return picked;
}

// "….q_proj" of "….q_proj.weight", "….down_proj" of "….down_proj_blocks".
std::string module_of(const std::string& name) {
  const size_t part = name.rfind("_proj");
  return name.substr(0, part == name.npos ? name.rfind('.') : part + 5);
}

// Bytes of a shape; -1 if they are too many to write, or if the product of the sizes overflows.
int64_t small_size(DType dtype, const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = 1 << 14, kLargest = int64_t{1} << 60;
  int64_t room = kLargest / bits(dtype), count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || size > room) return -1;
    if (size > 0) room /= size;
    count *= size;
  }
  const int64_t size = (count * bits(dtype) + 7) / 8;
  return size <= kMost ? size : -1;
}

void reshape(SyntheticCheckpoint& checkpoint, const std::string& name, uint8_t how, uint8_t where,
             int64_t size) {
  std::vector<int64_t> shape = checkpoint.at(name).shape;
  const size_t at = shape.empty() ? 0 : where % shape.size();
  switch (shape.empty() ? 0 : how % 8) {
    case 0:
      shape.insert(shape.begin() + static_cast<long>(at), size);
      break;
    case 1:
      shape.erase(shape.begin() + static_cast<long>(at));
      break;
    case 2:
      shape[at] *= 2;
      break;
    case 3:
      shape[at] /= 2;
      break;
    case 4:
      ++shape[at];
      break;
    case 5:
      std::swap(shape[at], shape[0]);
      break;
    default:
      shape[at] = size;
  }
  if (small_size(checkpoint.at(name).dtype, shape) >= 0) checkpoint.reshape(name, shape);
}

}  // namespace

void edit_tensors(SyntheticCheckpoint& checkpoint, Bytes& bytes) {
  const std::vector<std::string> names = pick(checkpoint, bytes);
  const uint8_t what = bytes.byte() % 8;
  const uint8_t how = bytes.byte(), where = bytes.byte();
  const int64_t size = bytes.size();
  const std::string suffix = what == 1 || what == 2 ? bytes.one_of(kSuffixes) : "";
  for (const std::string& name : names) {
    const std::string module = module_of(name);
    const std::string other = what > 2 || how % 8 != 0 ? module + suffix : bytes.text();
    TensorBytes& tensor = checkpoint.at(name);
    switch (what) {
      case 0:
        checkpoint.remove(name);
        break;
      case 1:
        if (other != name) checkpoint.rename(name, other);
        break;
      case 2: {
        TensorBytes copy = tensor;
        copy.name = other;
        checkpoint.tensors[other] = std::move(copy);
        break;
      }
      case 3: {
        const auto dtype = static_cast<DType>(how % (static_cast<int>(DType::kF8E8M0) + 1));
        if (dtype == DType::kI4 || small_size(dtype, tensor.shape) < 0) break;
        checkpoint.retype(name, dtype);
        break;
      }
      case 4:
        for (size_t i = 0; i < 8 && !tensor.bytes.empty(); ++i) {
          tensor.bytes[(size_t{how} * 256 + where + i) % tensor.bytes.size()] =
              static_cast<std::byte>(bytes.byte());
        }
        break;
      case 5:
        std::fill(tensor.bytes.begin(), tensor.bytes.end(), static_cast<std::byte>(how));
        break;
      default:
        reshape(checkpoint, name, how, where, size);
    }
  }
}

}  // namespace moracle::testing
