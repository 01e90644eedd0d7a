// From a described matrix to packed weights, with all threads: small experts side by side, each on
// one thread, so that what a thread has unpacked is still in its cache when it packs it; large
// ones, of which memory should hold one alone, by their rows.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_weights.h"
#include "kernels/shares.h"

namespace moracle {
namespace {

// What experts may take up that are read at once.
constexpr int64_t kMostAtOnce = int64_t{64} << 20;

class Conversion {
 public:
  Conversion(const DescribedMatrix& source, const Layout& layout, const Progress& progress)
      : source_(source), layout_(layout), progress_(progress), total_(source.source_bytes()) {
    // Where a piece ends inside a panel, the panel's rows have to be stacked first.
    const std::vector<int64_t> rows = source.part_rows();
    for (size_t i = 0; i + 1 < rows.size(); ++i) in_pieces_ &= rows[i] % kRowStep == 0;
  }

  bool fit_at_once(int64_t experts) const {
    const MatrixShape& shape = source_.shape();
    const int64_t bytes = shape.n * ((shape.k * bits(shape.key.dtype) + 7) / 8);
    const int64_t stored = total_ / std::max<int64_t>(source_.num_experts(), 1);
    return std::max(bytes, stored) * experts <= kMostAtOnce;
  }

  /// Packs expert e to `out` and gives back the memory of its source.
  Status pack_expert(int64_t e, ThreadPool& pool, std::byte* out) const {
    const MatrixShape& shape = source_.shape();
    if (in_pieces_) {
      MORACLE_CHECK(
          source_.read_pieces(e, pool, [&](const CanonicalMatrix& piece, int64_t first_row) {
            pack(layout_, shape, piece, first_row, pool, out);
          }));
    } else {
      MORACLE_TRY(const CanonicalMatrix expert, source_.expert(e, pool));
      pack(layout_, shape, expert, 0, pool, out);
    }
    source_.release(e);
    return {};
  }

  /// One after another; `place` says where to pack expert e, `then` what becomes of it there.
  template <class Place, class Then>
  Status in_turn(ThreadPool& pool, Place place, Then then) const {
    for (int64_t e = 0; e < source_.num_experts(); ++e) {
      MORACLE_CHECK(pack_expert(e, pool, place(e)));
      MORACLE_CHECK(then(e));
      MORACLE_CHECK(report(e + 1));
    }
    return {};
  }

  /// Each thread takes the next that nobody has taken.
  template <class Place>
  Status at_once(ThreadPool& pool, Place place) {
    pool.run([&](int thread) {
      ThreadPool alone(1);
      while (!stop_.load(std::memory_order_relaxed)) {
        const int64_t e = next_.fetch_add(1);
        if (e >= source_.num_experts()) return;
        if (Status packed = pack_expert(e, alone, place(e)); !packed)
          return fail(e, packed.error());
        const int64_t done = done_.fetch_add(1) + 1;
        if (thread != 0 || done == source_.num_experts()) continue;
        if (Status go_on = report(done); !go_on) fail(source_.num_experts(), go_on.error());
      }
    });
    if (error_) return *std::move(error_);
    return report(source_.num_experts());
  }

 private:
  // Experts are taken in order, so all before the first that fails are taken, too, and tried.
  void fail(int64_t e, Error error) {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    if (error_ && failed_ < e) return;
    failed_ = e;
    error_ = std::move(error);
  }

  Status report(int64_t done) const {
    if (!progress_ ||
        progress_(total_ * done / std::max<int64_t>(source_.num_experts(), 1), total_))
      return {};
    return Error{ErrorKind::kCancelled, "", "loading", "", "stopped on request"};
  }

  const DescribedMatrix& source_;
  const Layout& layout_;
  const Progress& progress_;
  const int64_t total_;
  bool in_pieces_ = true;
  std::atomic<int64_t> next_{0}, done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  int64_t failed_ = 0;
  std::optional<Error> error_;
};

Status pack_all(const DescribedMatrix& source, KernelWeights& weights, Device& device,
                const Progress& progress) {
  ThreadPool& pool = device.host_threads();
  Conversion conversion(source, *weights.layout, progress);
  const auto bytes = static_cast<int64_t>(weights.sections.bytes);
  const auto place = [&](int64_t e) { return weights.buffer.as<std::byte>() + e * bytes; };
  if (!device.host_visible()) {
    std::vector<std::byte> staging(bytes);
    return conversion.in_turn(
        pool, [&](int64_t) { return staging.data(); },
        [&](int64_t e) { return device.upload(place(e), staging.data(), bytes); });
  }
  if (source.num_experts() >= pool.size() && conversion.fit_at_once(pool.size()))
    return conversion.at_once(pool, place);
  return conversion.in_turn(pool, place, [](int64_t) { return Status(); });
}

}  // namespace

Result<KernelWeights> convert(DescribedMatrix&& from, const Layout& to, Device& device,
                              const Progress& progress, int blocks) {
  const DescribedMatrix source = std::move(from);
  KernelWeights weights{
      &to, source.scheme(), source.shape(), source.num_experts(), to.sections(source.shape()), {},
      {}};
  const bool is_static = weights.scheme.activation && !weights.scheme.activation->dynamic;
  const size_t wanted_scales = is_static ? source.num_experts() : 0;
  if (source.input_scales().size() != wanted_scales) {
    return Error{
        ErrorKind::kInvalidArgument, "", "input scales",
        str(wanted_scales, " for ", source.num_experts(), " experts of ", name(weights.scheme)),
        str("there are ", source.input_scales().size())};
  }
  MORACLE_TRY(weights.buffer, device.allocate(weights.sections.bytes * weights.num_experts));
  if (device.host_visible()) touch_near_threads(weights, blocks, device.host_threads());
  MORACLE_CHECK(pack_all(source, weights, device, progress));
  const std::vector<float>& scales = source.input_scales();
  if (!scales.empty()) {
    MORACLE_TRY(weights.input_scales, device.allocate(scales.size() * sizeof(float)));
    MORACLE_CHECK(
        device.upload(weights.input_scales.data(), scales.data(), scales.size() * sizeof(float)));
    MORACLE_CHECK(device.synchronize());
  }
  return weights;
}

}  // namespace moracle
