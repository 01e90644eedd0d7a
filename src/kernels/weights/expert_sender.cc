#include "kernels/weights/expert_sender.h"

#include <mutex>
#include <optional>

#include "base/try.h"

namespace moracle {
namespace {

// Minimum bytes per thread.
constexpr int64_t kLeastBytes = 1 << 20;

// Runs work(begin, end) over [0, count) on the threads of the pool. Errors: one of theirs.
template <class Work>
Status split(ThreadPool& pool, int64_t count, int64_t least, const Work& work) {
  std::mutex mutex;
  std::optional<Error> error;
  pool.split(
      count,
      [&](int64_t begin, int64_t end) {
        Status done = work(begin, end);
        if (done) return;
        const std::lock_guard lock(mutex);
        if (!error) error = std::move(done).error();
      },
      least);
  if (error) return *std::move(error);
  return {};
}

}  // namespace

Status ExpertSender::send(int64_t e, const CanonicalMatrix& slice, int64_t first_row,
                          ThreadPool& pool, const Scratch& scratch) const {
  const Layout& layout = *weights_.layout;
  const MatrixShape& shape = weights_.shape;
  if (!packs_) {
    pack(layout, shape, slice, first_row, pool, scratch.get());
    return {};
  }
  std::byte* const codes = base_of(e) + weights_.sections.codes;
  const int64_t least = kLeastBytes / slice.row_bytes() + 1;
  MORACLE_CHECK(split(pool, slice.n, least, [&](int64_t begin, int64_t end) {
    return uploads_.send_rows(layout, shape, slice, first_row, begin, end, codes);
  }));
  layout.pack_beside(shape, slice, first_row, scratch.get());
  return {};
}

Status ExpertSender::send_rest(int64_t e, ThreadPool& pool, const Scratch& scratch) const {
  const size_t first = packs_ ? weights_.sections.scales : 0;
  const auto bytes = static_cast<int64_t>(weights_.sections.bytes - first);
  return split(pool, bytes, kLeastBytes, [&](int64_t begin, int64_t end) {
    const size_t at = first + static_cast<size_t>(begin);
    return uploads_.send(base_of(e) + at, scratch.get() + at, end - begin);
  });
}

}  // namespace moracle
