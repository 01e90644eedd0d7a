#include "models/decoder/non_finite.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"

namespace moracle {
namespace {

// The first non-finite value, and the part of the step that computed it.
struct Found {
  std::string part;
  int64_t token = 0;  // index in the step
  float value = 0;
};

float element(const std::byte* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, data + i * static_cast<int64_t>(sizeof half), sizeof half);
  return dtype == DType::kBF16 ? bf16_to_float(half) : f16_to_float(half);
}

// Finds the first non-finite number of the matrix, row by row.
Result<std::optional<Found>> find_in(const Matrix& matrix, Device& device) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  std::vector<std::byte> copy;
  if (!device.host_visible()) {
    copy.resize(static_cast<size_t>(matrix.rows * matrix.stride * bits(matrix.dtype) / 8));
    MORACLE_CHECK(device.download(copy.data(), data, copy.size()));
    MORACLE_CHECK(device.synchronize());
    data = copy.data();
  }
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c) {
      const float value = element(data, matrix.dtype, r * matrix.stride + c);
      if (!std::isfinite(value)) return std::optional(Found{"", r, value});
    }
  }
  return std::optional<Found>();
}

// Runs the tokens of one step and checks the output of every part. Returns nothing if all values
// are finite.
Result<std::optional<Found>> find_in_step(Model& model, const Model::Step& step) {
  Model::State& m = ModelAccess::state(model);
  std::optional<Found> found;
  m.observer.on_output = [&](StepOutput part, int64_t layer, const Matrix& output) -> Status {
    if (found) return {};
    MORACLE_TRY(found, find_in(output, m.workspace->device()));
    if (found)
      found->part = layer < 0 ? std::string(name(part)) : str("layer ", layer, ", ", name(part));
    return {};
  };
  const Status done = model.forward({&step, 1});
  m.observer.on_output = {};
  MORACLE_CHECK(done);
  return found;
}

}  // namespace

Error explain_non_finite(Model& model, std::span<const int32_t> ids, KvCache& cache,
                         int32_t adapter) {
  const auto size = static_cast<int64_t>(ids.size());
  Error error{ErrorKind::kBadFile, "", str("logits at position ", size - 1), "finite numbers",
              "NaN or infinity was found, but not when the tokens were run again"};
  if (const Status emptied = cache.truncate(0); !emptied) return emptied.error();
  int64_t last = 0;
  for (int64_t done = 0; done < size;) {
    const int64_t count = std::min(model.max_num_tokens(), size - done);
    const Result<std::optional<Found>> found =
        find_in_step(model, {ids.subspan(done, count), &cache, adapter});
    if (!found) return found.error();
    if (*found) {
      const Found& first = **found;
      error.fact = str(first.part, " gives the first NaN or infinity: ", first.value,
                       " at position ", done + first.token);
      return error;
    }
    done += last = count;
  }
  const Result<std::span<const float>> logits = model.logits(last - 1, 1);
  if (!logits) return logits.error();
  const auto wild = std::find_if_not(logits->begin(), logits->end(),
                                     [](float logit) { return std::isfinite(logit); });
  if (wild != logits->end())
    error.fact = str("the output layer gives the first NaN or infinity: ", *wild);
  return error;
}

}  // namespace moracle
