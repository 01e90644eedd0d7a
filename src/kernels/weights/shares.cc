#include "kernels/weights/shares.h"

#include <sys/mman.h>
#include <unistd.h>

namespace moracle {

std::vector<ByteRange> share_of_thread(const Layout& layout, const MatrixShape& shape, int blocks,
                                       int thread, int threads) {
  const int64_t panels = (shape.n + kRowStep - 1) / kRowStep;
  const auto end = static_cast<int64_t>(layout.sections(shape).scales);
  const auto byte_of = [&](int64_t panel) {
    return panel >= panels ? end : layout.code_bit(shape, panel * kRowStep, 0) / 8;
  };
  const auto range = [&](int64_t first, int64_t last) {
    return ByteRange{byte_of(first), byte_of(last)};
  };
  if (blocks == 2) {
    const int64_t half = panels / 2;
    const auto [first, last] = ThreadPool::range_of(half, thread, threads);
    return {range(first, last), range(half + first, half + last)};
  }
  const auto [first, last] = ThreadPool::range_of((panels + 1) / 2, thread, threads);
  return {range(2 * first, 2 * last)};
}

bool touch_near_threads(const KernelWeights& weights, int blocks, ThreadPool& pool) {
  const ThreadAffinity& affinity = pool.affinity();
  if (affinity.num_nodes < 2 || weights.num_experts == 0) return false;
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  auto* const base = weights.buffer.as<volatile char>();
  // Avoid 2 MiB pages for small experts: one page would hold several threads' shares.
  constexpr int64_t kHugeShare = int64_t{8} << 20;
  const auto bytes = static_cast<int64_t>(weights.sections.bytes);
  if (bytes / affinity.num_nodes < kHugeShare)
    ::madvise(weights.buffer.data(), weights.buffer.bytes(), MADV_NOHUGEPAGE);
  // The caller's thread is not pinned, so a thread on its node touches its share, too.
  const int stand_in = affinity.nodes.size() > 1 && affinity.nodes[1] == affinity.nodes[0] ? 1 : 0;
  const auto touch = [&](int of_thread) {
    for (const ByteRange& share :
         share_of_thread(*weights.layout, weights.shape, blocks, of_thread, pool.size())) {
      for (int64_t e = 0; e < weights.num_experts; ++e) {
        // Pages that begin in the share; the buffer is page-aligned.
        const int64_t first = (e * bytes + share.begin + page - 1) / page * page;
        for (int64_t at = first; at < e * bytes + share.end; at += page) base[at] = 0;
      }
    }
  };
  pool.run_on_each([&](int thread) {
    if (thread > 0 || stand_in == 0) touch(thread);
    if (thread > 0 && thread == stand_in) touch(0);
  });
  return true;
}

}  // namespace moracle
