// libFuzzer: no bytes may crash the GGUF reader, and accepted files must be consistent.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "checkpoint/gguf/gguf_file.h"

namespace moracle::testing::gguf_fuzz {

namespace {

void check(std::span<const std::byte> image) {
  const auto header = GgufFile::parse(image, "fuzz");
  if (!header) {
    if (header.error().to_string().size() > 4096) std::abort();
    return;
  }
  size_t total = 0;
  for (const auto& [name, tensor] : header->tensors) {
    const size_t size = tensor.view.num_bytes();
    total += size;
    if (tensor.first > image.size() || size > image.size() - tensor.first) std::abort();
  }
  if (total > image.size()) std::abort();
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check(bytes);

  // Parse once more as the rest of a header with few tensors and few pairs.
  if (size < 2) return 0;
  struct {
    uint32_t magic = 0x46554747, version = 3;
    uint64_t tensors, pairs;
  } start{.tensors = data[0] % 4u, .pairs = data[1] % 4u};
  std::vector<std::byte> whole(sizeof start);
  std::memcpy(whole.data(), &start, sizeof start);
  whole.insert(whole.end(), bytes.begin() + 2, bytes.end());
  check(whole);
  return 0;
}

}  // namespace moracle::testing::gguf_fuzz
