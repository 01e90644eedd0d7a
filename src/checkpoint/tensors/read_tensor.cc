// Reads a tensor from a file and checks it: each chunk is checked while it is in the cache.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/finite.h"
#include "base/first_error.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/tensors/tensors.h"
#include "quant/blocks/gguf_blocks.h"
#include "quant/codec.h"

namespace moracle {
namespace {

constexpr int64_t kChunkBytes = 1 << 18;
// Minimum chunks per thread: waking a thread takes as long as reading a few chunks.
constexpr int64_t kLeastChunks = 4;

// "element 7", or "element [3, 0, 7]" for two or more dimensions.
std::string place_of(const TensorView& view, int64_t element) {
  if (view.shape.size() < 2) return str("element ", element);
  std::vector<int64_t> index(view.shape.size());
  for (size_t d = view.shape.size(); d-- > 0;) {
    index[d] = element % view.shape[d];
    element /= view.shape[d];
  }
  return "element [" + join(index) + "]";
}

std::string number_text(DType type, const std::byte* value) {
  double number = NAN;
  if (type == DType::kF64) {
    std::memcpy(&number, value, sizeof number);
  } else {
    visit_codec(type,
                [&]<class Codec>() { number = static_cast<double>(Codec::decode(value, 0)); });
  }
  if (std::isnan(number)) return "nan";
  return number < 0 ? "-inf" : "inf";
}

}  // namespace

Error Tensors::not_finite(const std::string& name, int64_t element, DType type,
                          const std::byte* value) const {
  const TensorView* const view = find(name);  // none for a source of another tensor
  const std::string place = view ? place_of(*view, element) : str("element ", element);
  if (type == DType::kF8E8M0) return wrong(name, "exponents from 0 to 254", place + " is 255");
  if (is_gguf_block(type))
    return wrong(name, "finite scales", "the block from " + place + " has NaN or infinity");
  return wrong(name, "finite numbers", place + " is " + number_text(type, value));
}

Result<TensorData> Tensors::read(const std::string& name, int64_t first, int64_t count,
                                 ThreadPool& pool) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return wrong(name, "to be in the file", "it is missing");
  return read(name, entry->second, first, count, pool);
}

Result<TensorData> Tensors::read(const std::string& name, const Entry& entry, int64_t first,
                                 int64_t count, ThreadPool& pool) const {
  const DType type = entry.view.dtype;
  if (entry.make) return entry.make(*this, first, count, pool);
  if (entry.row) return read_rows(name, entry, first, count, pool);
  const TensorFile& file = files_[entry.file];
  const std::string& stored = entry.stored.empty() ? name : entry.stored;
  const auto [elements, bytes] = block(type);
  const int64_t first_block = first / elements, blocks = (count + elements - 1) / elements;
  const std::shared_ptr<std::byte[]> memory(new std::byte[blocks * bytes]);  // not zeroed first
  const int64_t size = bytes, step = kChunkBytes / size, chunks = (blocks + step - 1) / step;
  FirstError first_error;
  pool.split(
      chunks,
      [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
          const int64_t at = chunk * step, here = std::min(step, blocks - at);
          std::byte* const data = memory.get() + at * size;
          const std::span<std::byte> to(data, static_cast<size_t>(here * size));
          const int64_t from = (first_block + at) * size;
          const Status done = file.read(stored, entry.first_byte + from, to);
          if (!done) return first_error.keep(chunk, done.error());
          if (record_->on.load(std::memory_order_relaxed)) record_->add(name, from, to);
          const int64_t bad = is_gguf_block(type) ? first_not_finite_block(type, data, here)
                                                  : first_not_finite(type, data, here);
          if (bad >= 0) {
            const int64_t element = (first_block + at + bad) * block(type).elements;
            return first_error.keep(chunk, not_finite(name, element, type, data + bad * size));
          }
          if (entry.change != nullptr) {
            entry.change({reinterpret_cast<float*>(data), static_cast<size_t>(here)});
          }
        }
      },
      kLeastChunks);
  MORACLE_CHECK(std::move(first_error).status());
  return TensorData{{memory.get(), type, {count}}, memory};
}

Result<TensorData> Tensors::read_rows(const std::string& name, const Entry& entry, int64_t first,
                                      int64_t count, ThreadPool& pool) const {
  const int64_t columns = entry.view.num_elements() / entry.view.shape[0];
  const int64_t begin = first / columns, end = (first + count + columns - 1) / columns;
  const int64_t bytes = row_bytes(entry.view.dtype, columns);
  Entry whole = entry;
  whole.row = nullptr;
  const std::shared_ptr<std::byte[]> memory(new std::byte[(end - begin) * bytes]);
  for (int64_t row = begin, next; row < end; row = next) {
    const int64_t stored = entry.row(row);
    for (next = row + 1; next < end && entry.row(next) == stored + next - row;) ++next;
    MORACLE_TRY(const TensorData run,
                read(name, whole, stored * columns, (next - row) * columns, pool));
    std::memcpy(memory.get() + (row - begin) * bytes, run.view.data, (next - row) * bytes);
  }
  const std::byte* const data = memory.get() + row_bytes(entry.view.dtype, first - begin * columns);
  return TensorData{{data, entry.view.dtype, {count}}, memory};
}

Result<TensorData> Tensors::read(const std::string& name, int64_t first, int64_t count) const {
  ThreadPool caller(1);
  return read(name, first, count, caller);
}

Result<TensorData> Tensors::read(const std::string& name, ThreadPool& pool) const {
  MORACLE_TRY(const TensorView view, get(name));
  MORACLE_TRY(TensorData data, read(name, 0, view.num_elements(), pool));
  data.view.shape = view.shape;
  return data;
}

Result<TensorData> Tensors::read(const std::string& name) const {
  ThreadPool caller(1);
  return read(name, caller);
}

}  // namespace moracle
