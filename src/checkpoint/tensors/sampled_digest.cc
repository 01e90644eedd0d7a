#include "checkpoint/tensors/sampled_digest.h"

#include <algorithm>
#include <iomanip>
#include <mutex>
#include <sstream>

#include "base/checksum.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"

namespace moracle {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kInterval = uint64_t{16} << 20;  // the digest samples one block of each

struct Sample {
  const TensorFile* file;
  const std::string* tensor;
  uint64_t first, bytes;
};

uint64_t checksum_of_text(std::string_view text, uint64_t seed) {
  return checksum(std::as_bytes(std::span(text)), seed);
}

// Samples one block of each interval at a pseudo-random offset. A fixed offset could hit the same
// padding in all experts.
void add_samples(const TensorFile& file, const std::string& tensor, uint64_t bytes,
                 std::vector<Sample>& samples) {
  for (uint64_t begin = 0; begin < bytes; begin += kInterval) {
    const uint64_t size = std::min(kInterval, bytes - begin);
    const uint64_t block = std::min(kBlock, size);
    const uint64_t offset = checksum_of_text(tensor, begin) % (size - block + 1);
    samples.push_back({&file, &tensor, begin + offset, block});
  }
}

Result<uint64_t> sum_of(const Sample& sample) {
  std::byte block[kBlock];
  const std::span<std::byte> bytes(block, sample.bytes);
  MORACLE_CHECK(sample.file->read(*sample.tensor, sample.first, bytes));
  return checksum(bytes, checksum_of_text(*sample.tensor, sample.first));
}

}  // namespace

Result<std::string> sampled_digest(const Tensors& tensors, ThreadPool& pool) {
  std::vector<Sample> samples;
  uint64_t bytes = 0, sum = 0;
  for (const TensorFile& file : tensors.files()) {
    const std::string name = file.path().substr(file.path().find_last_of('/') + 1);
    sum = checksum_of_text(name, sum);
    for (const auto& [tensor, stored] : file.tensors()) {
      const uint64_t size = stored.view.num_bytes();
      // `first` covers the length of the header; together with the sizes it covers the length of
      // the file.
      sum = checksum_of_text(str(tensor, " ", to_string(stored.view), " ", stored.first), sum);
      add_samples(file, tensor, size, samples);
      bytes += size;
    }
  }
  std::vector<uint64_t> sums(samples.size());
  std::mutex mutex;
  Status read;
  pool.split(static_cast<int64_t>(samples.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Result<uint64_t> one = sum_of(samples[i]);
      if (one) {
        sums[i] = *one;
        continue;
      }
      const std::lock_guard lock(mutex);
      read = one.error();
      return;
    }
  });
  MORACLE_CHECK(read);
  sum = checksum(std::as_bytes(std::span(sums)), sum);
  std::ostringstream hex;
  hex << std::hex << std::setw(16) << std::setfill('0') << sum;
  return str(samples.size(), " blocks of ", bytes, " bytes, checksum ", hex.str());
}

}  // namespace moracle
