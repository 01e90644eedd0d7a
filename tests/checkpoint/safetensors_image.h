// A whole safetensors file in memory, for tests that look at its numbers.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/small_file.h"
#include "base/try.h"
#include "checkpoint/safetensors/safetensors.h"

namespace moracle::testing {

class SafetensorsImage {
 public:
  static Result<SafetensorsImage> open(const std::string& path) {
    SafetensorsImage image;
    MORACLE_TRY(*image.text_, read_small_file(path));
    MORACLE_TRY(image.tensors_, SafetensorsFile::parse(image.bytes(), path));
    return image;
  }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(*text_)); }

 private:
  std::unique_ptr<std::string> text_ = std::make_unique<std::string>();
  std::map<std::string, TensorView> tensors_;
};

}  // namespace moracle::testing
