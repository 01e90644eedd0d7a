// Converts a described matrix to packed weights, on all threads. Small experts are converted side
// by side, each on one thread, so that a thread packs unpacked data from its own cache. Large
// experts are split by rows, since memory should hold only one of them. If the host cannot write
// to the device's memory, uploads overlap with reading.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "kernels/weights/convert_expert.h"
#include "kernels/weights/expert_sender.h"
#include "kernels/weights/kernel_weights.h"
#include "kernels/weights/shares.h"
#include "layout/sorted_columns.h"
#include "quant/e4m3_scales.h"

namespace moracle {
namespace {

// Maximum bytes of experts that are read at once.
constexpr int64_t kMostAtOnce = int64_t{64} << 20;

// Converts the experts of one matrix, one after another or several at once. `work(e, pool)`
// converts expert e on the threads of `pool`.
class Conversion {
 public:
  Conversion(const DescribedMatrix& source, const Layout& to, const Progress& progress)
      : source_(source),
        progress_(progress),
        total_(source.source_bytes()),
        sorts_(to.sorts_columns && source.shape().group_index) {
    // A slice must not end inside a panel: such rows must be stacked first.
    const std::vector<int64_t> rows = source.source_rows();
    for (size_t i = 0; i + 1 < rows.size(); ++i) in_slices_ &= rows[i] % kRowStep == 0;
  }

  /// Maximum number of experts in memory at once.
  int64_t most_at_once() const {
    const MatrixShape& shape = source_.shape();
    const int64_t bytes = shape.n * ((shape.k * bits(shape.key.dtype) + 7) / 8);
    const int64_t stored = total_ / std::max<int64_t>(source_.num_experts(), 1);
    return kMostAtOnce / std::max<int64_t>({bytes, stored, 1});
  }

  /// Reads expert e in slices, or whole if slices are not possible.
  Status read(int64_t e, ThreadPool& pool, const DescribedMatrix::UseSlice& use) const {
    static_assert(DescribedMatrix::kSliceRows % kRowStep == 0);
    Status usable;
    const auto check_and_use = [&](const CanonicalMatrix& slice, int64_t first_row) {
      if (usable) usable = check_e4m3_scales(slice, first_row, pool);
      if (!usable) return;
      if (!sorts_) return use(slice, first_row);
      const Result<CanonicalMatrix> in_order = sort_columns(slice);
      if (in_order)
        use(*in_order, first_row);
      else
        usable = in_order.error();
    };
    if (in_slices_) {
      MORACLE_CHECK(source_.read_slices(e, pool, check_and_use));
    } else {
      MORACLE_TRY(const CanonicalMatrix expert, source_.expert(e, pool));
      check_and_use(expert, 0);
    }
    if (usable) return {};
    Error error = usable.error();
    error.place = str("expert ", e, ": ", error.place);
    return error;
  }

  template <class Work>
  Status sequentially(ThreadPool& pool, const Work& work) const {
    for (int64_t e = 0; e < source_.num_experts(); ++e) {
      MORACLE_CHECK(work(e, pool));
      MORACLE_CHECK(report(e + 1));
    }
    return {};
  }

  /// Each of the first `threads` threads takes the next expert that is not taken.
  template <class Work>
  Status at_once(ThreadPool& pool, int64_t threads, const Work& work) {
    pool.run([&](int thread) {
      if (thread >= threads) return;
      ThreadPool alone(1);
      while (!stop_.load(std::memory_order_relaxed)) {
        const int64_t e = next_.fetch_add(1);
        if (e >= source_.num_experts()) return;
        if (Status done = work(e, alone); !done) return fail(e, done.error());
        const int64_t done = done_.fetch_add(1) + 1;
        if (thread != 0 || done == source_.num_experts()) continue;
        if (Status go_on = report(done); !go_on) fail(source_.num_experts(), go_on.error());
      }
    });
    if (error_) return *std::move(error_);
    return report(source_.num_experts());
  }

 private:
  // Experts are taken in order, so every expert before the first failure is also tried.
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
  const Progress& progress_;
  const int64_t total_;
  const bool sorts_;
  bool in_slices_ = true;
  std::atomic<int64_t> next_{0}, done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  int64_t failed_ = 0;
  std::optional<Error> error_;
};

// Packs into memory that the host may write to.
Status pack_here(const DescribedMatrix& source, const KernelWeights& weights, Device& device,
                 const Progress& progress, const PackedExperts& packed) {
  Conversion conversion(source, *weights.layout, progress);
  const auto work = [&](int64_t e, ThreadPool& pool) -> Status {
    std::byte* const out =
        weights.buffer.as<std::byte>() + e * static_cast<int64_t>(weights.sections.bytes);
    if (const std::byte* const there = packed.find(e)) {
      std::memcpy(out, there, weights.sections.bytes);
      return {};
    }
    return conversion.read(e, pool, [&](const CanonicalMatrix& slice, int64_t first_row) {
      pack(*weights.layout, weights.shape, slice, first_row, pool, out);
    });
  };
  ThreadPool& pool = kernel_device(device).host_threads();
  const bool at_once =
      source.num_experts() >= pool.size() && conversion.most_at_once() >= pool.size();
  return at_once ? conversion.at_once(pool, pool.size(), work)
                 : conversion.sequentially(pool, work);
}

// Packs into memory that the host may not write to.
Status pack_there(const DescribedMatrix& source, const KernelWeights& weights, Device& device,
                  const Progress& progress) {
  // Packing uses the device's own stream: keep other threads from recording it meanwhile.
  const DeviceLock lock = device.lock();
  Conversion conversion(source, *weights.layout, progress);
  const std::unique_ptr<Uploads> uploads = open_uploads(device);
  const ExpertSender sender(weights, *uploads);
  const auto work = [&](int64_t e, ThreadPool& pool) -> Status {
    ExpertSender::Scratch scratch = sender.scratch();
    Status sent;
    MORACLE_CHECK(conversion.read(e, pool, [&](const CanonicalMatrix& slice, int64_t first_row) {
      if (sent) sent = sender.send(e, slice, first_row, pool, scratch);
    }));
    MORACLE_CHECK(sent);
    return sender.send_rest(e, pool, scratch);
  };
  // If few experts fit at once, let all threads work on one expert.
  ThreadPool& pool = kernel_device(device).host_threads();
  const int64_t threads =
      std::min<int64_t>({pool.size(), source.num_experts(), conversion.most_at_once()});
  const bool at_once = threads > 1 && 4 * threads >= pool.size();
  const Status packed = or_out_of_memory("packing", [&] {
    return at_once ? conversion.at_once(pool, threads, work) : conversion.sequentially(pool, work);
  });
  const Status arrived = uploads->finish();  // always wait: the caller may free the memory next
  MORACLE_CHECK(packed);
  return arrived;
}

}  // namespace

Status convert_expert(const DescribedMatrix& from, int64_t e, const KernelWeights& to, int64_t at,
                      ThreadPool& pool) {
  const Conversion conversion(from, *to.layout, {});
  auto* const out = const_cast<std::byte*>(to.expert(at));
  return conversion.read(e, pool, [&](const CanonicalMatrix& slice, int64_t first_row) {
    pack(*to.layout, to.shape, slice, first_row, pool, out);
  });
}

Result<KernelWeights> convert(DescribedMatrix&& from, const Layout& to, Device& device,
                              const Progress& progress, int blocks, const PackedExperts& packed) {
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
        str("it has ", source.input_scales().size())};
  }
  MORACLE_TRY(weights.buffer, device.allocate(weights.sections.bytes * weights.num_experts));
  MORACLE_TRY(const std::unique_ptr<HostAccess> access, device.host_access(weights.buffer));
  if (device.host_visible() || access != nullptr) {
    if (access == nullptr)
      touch_near_threads(weights, blocks, kernel_device(device).host_threads());
    MORACLE_CHECK(pack_here(source, weights, device, progress,
                            device.host_visible() ? packed : PackedExperts()));
    if (access != nullptr) MORACLE_CHECK(access->end());
  } else {
    MORACLE_CHECK(pack_there(source, weights, device, progress));
  }
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
