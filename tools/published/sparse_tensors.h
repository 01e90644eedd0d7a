// A safetensors file with a real header and a hole instead of data: full size on a small disk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle::published {

class SparseTensors {
 public:
  /// Adds a tensor whose bytes are zeros.
  void add(std::string name, DType dtype, std::vector<int64_t> shape);
  /// Adds a tensor with these bytes, for values that are read before weights, such as scales that
  /// must not be 0.
  void add(std::string name, DType dtype, std::vector<int64_t> shape, std::string_view bytes);

  int64_t bytes() const { return bytes_; }
  size_t size() const { return tensors_.size(); }
  /// Errors: kIo.
  Status write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    TensorView view;
    int64_t at;  // in `stored_`; -1: in the hole
  };
  std::vector<Tensor> tensors_;
  std::string stored_;  // starts the data
  int64_t bytes_ = 0;
};

}  // namespace moracle::published
