// Logits of the last step's tokens: all of them, or the top-k selected in device memory.
#include <utility>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "models/decoder/model_state.h"
#include "models/generation/allowed_logits.h"
#include "models/generation/divided_logits.h"

namespace moracle {
namespace {

static_assert(Model::kMaxTopK == kMostTopK);

// Computes logits of the last step's tokens [first, first + count) and leaves them in place: of a
// divided output, this rank's own.
Result<Matrix> enqueue_logits(Model::State& m, int64_t first, int64_t count) {
  if (first < 0 || count < 1 || count > Model::kMaxLogitRows || first + count > m.num_rows) {
    return Error{ErrorKind::kInvalidArgument, "", "logits",
                 str("1 to ", Model::kMaxLogitRows, " rows, within the last step's ", m.num_rows),
                 str("the request is ", count, " rows from row ", first)};
  }
  const Matrix out = own_logits(m, count);
  MORACLE_CHECK(m.output->apply(m.activations.normed.slice(first, count), out, {}, first));
  if (m.spec.logit_cap > 0) {
    MORACLE_CHECK(kernel_device(m.workspace->device()).ops().cap(out, m.spec.logit_cap, Stream()));
  }
  m.observer.done(StepPart::kOutput);
  return out;
}

// Returns memory that the host can read: device memory if readable, else a copy at byte offset `at`
// of host_logits.
Result<const std::byte*> on_host(Model::State& m, const void* data, size_t bytes, size_t at) {
  Device& device = m.workspace->device();
  if (device.host_visible()) return static_cast<const std::byte*>(data);
  auto* const to = m.host_logits.as<std::byte>() + at;
  MORACLE_CHECK(device.download(to, data, bytes));
  return to;
}
Status make_host_scratch(Model::State& m, size_t bytes) {
  Device& device = m.workspace->device();
  if (device.host_visible() || m.host_logits.bytes() >= bytes) return {};
  m.host_logits = Buffer();
  MORACLE_TRY(m.host_logits, device.allocate_host(bytes));
  return {};
}

// Selects the k largest of each row on the device.
Result<Model::TopKLogits> top_k_of(Model::State& m, const Matrix& out, int64_t k) {
  Device& device = m.workspace->device();
  // Side by side, so that one copy brings both to the host.
  const auto values = static_cast<size_t>(out.rows * k);
  int32_t* const ids = m.activations.largest;
  auto* const logits = reinterpret_cast<float*>(ids + values);
  MORACLE_CHECK(or_out_of_memory("largest logits", [&] {
    return kernel_device(device).ops().find_top_k(out, k, ids, logits, m.activations.top_k_scratch,
                                                  Stream());
  }));
  const size_t bytes = values * sizeof(float);
  MORACLE_CHECK(make_host_scratch(m, 2 * bytes));
  MORACLE_TRY(const std::byte* const host, on_host(m, ids, 2 * bytes, 0));
  MORACLE_CHECK(device.synchronize());
  return Model::TopKLogits{{reinterpret_cast<const int32_t*>(host), values},
                           {reinterpret_cast<const float*>(host + bytes), values}};
}

}  // namespace

Result<std::span<const float>> Model::logits(int64_t first, int64_t count) {
  State& m = *state_;
  const DeviceLock lock = m.workspace->device().lock();
  MORACLE_TRY(const Matrix out, enqueue_logits(m, first, count));
  if (m.output_shares.size > 1) return gather_logits(m, count);
  const auto values = static_cast<size_t>(count * m.spec.vocab_size);
  MORACLE_CHECK(make_host_scratch(m, values * sizeof(float)));
  MORACLE_TRY(const std::byte* const host, on_host(m, out.data, values * sizeof(float), 0));
  MORACLE_CHECK(m.workspace->device().synchronize());
  return std::span(reinterpret_cast<const float*>(host), values);
}

Result<Model::TopKLogits> Model::top_k_logits(int64_t first, int64_t count, int64_t k) {
  State& m = *state_;
  const DeviceLock lock = m.workspace->device().lock();
  MORACLE_TRY(const Matrix out, enqueue_logits(m, first, count));
  if (m.output_shares.size > 1) return gather_top_k(m, count, k);
  return top_k_of(m, out, k);
}

Result<Model::TopKLogits> top_k_allowed_logits(Model& model, int64_t first, int64_t count,
                                               int64_t k, std::span<const uint32_t> allowed) {
  Model::State& m = ModelAccess::state(model);
  Device& device = m.workspace->device();
  const int64_t words = words_of_mask(m.spec.vocab_size);
  if (m.output_shares.size > 1 || std::cmp_not_equal(allowed.size(), count * words)) {
    return Error{ErrorKind::kInvalidArgument, "", "allowed",
                 str(count, " rows of ", words, " words, and an output on one rank"),
                 str(allowed.size(), " words")};
  }
  const DeviceLock lock = device.lock();
  MORACLE_TRY(const Matrix out, enqueue_logits(m, first, count));
  const uint32_t* bits = allowed.data();
  if (!device.host_visible()) {
    if (m.allowed.bytes() == 0) {
      MORACLE_TRY(m.allowed, device.allocate(static_cast<size_t>(Model::kMaxLogitRows * words) *
                                             sizeof(uint32_t)));
    }
    MORACLE_CHECK(device.enqueue_upload(m.allowed.data(), bits, allowed.size_bytes()));
    bits = m.allowed.as<uint32_t>();
  }
  MORACLE_CHECK(kernel_device(device).ops().keep_allowed(out, bits, Stream()));
  return top_k_of(m, out, k);
}

}  // namespace moracle
