// libFuzzer: no bytes may crash the safetensors reader, and accepted files must be consistent.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "checkpoint/safetensors/safetensors.h"

namespace moracle::testing::safetensors_fuzz {

namespace {

void check(std::span<const std::byte> image) {
  const auto tensors = SafetensorsFile::parse(image, "fuzz");
  if (!tensors) {
    if (tensors.error().to_string().size() > 4096) std::abort();
    return;
  }
  size_t total = 0;
  unsigned sum = 0;
  for (const auto& [name, view] : *tensors) {
    const size_t size = view.num_bytes();
    total += size;
    // Reads the data, so that a view outside the image is found by AddressSanitizer.
    for (size_t i = 0; i < size; ++i) sum += std::to_integer<unsigned>(view.data[i]);
  }
  const volatile unsigned kept = sum;
  static_cast<void>(kept);
  if (total > image.size()) std::abort();
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  const auto image = std::as_bytes(std::span(data, size));
  check(image);

  // Parse once more with a correct length: the bytes up to the last '}' become the header.
  size_t header = size;
  while (header > 0 && data[header - 1] != '}') --header;
  std::vector<std::byte> whole(8);
  for (size_t i = 0; i < 8; ++i) whole[i] = static_cast<std::byte>(uint64_t{header} >> (8 * i));
  whole.insert(whole.end(), image.begin(), image.end());
  check(whole);
  return 0;
}

}  // namespace moracle::testing::safetensors_fuzz
