#include "published/sparse_tensors.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/text.h"

namespace moracle::published {
namespace {

std::string dtype_name(DType dtype) {
  std::string text(name(dtype));
  for (char& c : text) c = 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

// Appends with std::to_string: a header has up to 500,000 tensors, and streams are slow.
void append_tensor(std::string& header, const std::string& name, const TensorView& view,
                   int64_t begin) {
  header += header.size() > 1 ? ",\"" : "\"";
  header += name + "\":{\"dtype\":\"" + dtype_name(view.dtype) + "\",\"shape\":[";
  for (size_t i = 0; i < view.shape.size(); ++i)
    header += (i > 0 ? "," : "") + std::to_string(view.shape[i]);
  const auto end = begin + static_cast<int64_t>(view.num_bytes());
  header += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

}  // namespace

void SparseTensors::add(std::string name, DType dtype, std::vector<int64_t> shape) {
  TensorView view{nullptr, dtype, std::move(shape)};
  bytes_ += static_cast<int64_t>(view.num_bytes());
  tensors_.push_back({std::move(name), std::move(view), -1});
}

void SparseTensors::add(std::string name, DType dtype, std::vector<int64_t> shape,
                        std::string_view bytes) {
  add(std::move(name), dtype, std::move(shape));
  tensors_.back().at = static_cast<int64_t>(stored_.size());
  stored_ += bytes;
}

Status SparseTensors::write(const std::string& path) const {
  std::string header = "{";
  auto hole = static_cast<int64_t>(stored_.size());
  for (const Tensor& tensor : tensors_) {
    append_tensor(header, tensor.name, tensor.view, tensor.at < 0 ? hole : tensor.at);
    if (tensor.at < 0) hole += static_cast<int64_t>(tensor.view.num_bytes());
  }
  header += "}";
  const uint64_t length = header.size();
  char prefix[sizeof length];
  std::memcpy(prefix, &length, sizeof length);
  std::ofstream file(path, std::ios::binary);
  file.write(prefix, sizeof prefix) << header << stored_ << std::flush;
  std::error_code failed;
  if (file) std::filesystem::resize_file(path, sizeof prefix + length + hole, failed);
  if (file && !failed) return {};
  return Error{ErrorKind::kIo, path, "", "to be written", "the system refused it"};
}

}  // namespace moracle::published
