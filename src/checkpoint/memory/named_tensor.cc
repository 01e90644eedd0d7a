#include <algorithm>
#include <atomic>

#include "base/finite.h"
#include "base/scalar.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/memory/stored_codes.h"
#include "quant/codec.h"

namespace moracle {

Error NamedTensor::wrong(std::string need) const {
  return {ErrorKind::kInvalidArgument, "", name, std::move(need),
          present() ? "it is " + to_string(view) : "it is missing"};
}

Result<HostTensor> NamedTensor::expert(int64_t e) const {
  HostTensor one{view, {}};
  one.view.shape.erase(one.view.shape.begin());
  const size_t bytes = one.view.num_bytes();
  one.view.data += e * static_cast<int64_t>(bytes);
  if (!read) return one;
  one.copy.resize(bytes);
  if (Status arrived = read(one.copy.data(), one.view.data, bytes); !arrived) {
    Error error = arrived.error();
    error.place = str(name, ", expert ", e, error.place.empty() ? "" : ": ", error.place);
    return error;
  }
  one.view.data = one.copy.data();
  return one;
}

Status NamedTensor::check_finite(const TensorView& one, int64_t e, ThreadPool& pool) const {
  constexpr int64_t kLeast = 1 << 16;
  const int64_t size = bits(one.dtype) / 8;
  std::atomic<int64_t> bad = -1;
  pool.split(
      one.num_elements(),
      [&](int64_t begin, int64_t end) {
        const int64_t at = first_not_finite(one.dtype, one.data + begin * size, end - begin);
        if (at >= 0) bad = begin + at;
      },
      kLeast);
  if (bad < 0) return {};
  return Error{ErrorKind::kInvalidArgument, "", str(name, ", expert ", e), "finite numbers",
               str("element ", bad.load(), " is NaN or infinite")};
}

Result<std::vector<float>> NamedTensor::floats(int64_t e) const {
  MORACLE_TRY(HostTensor here, expert(e));
  TensorView& one = here.view;
  if (one.dtype == DType::kU8) one.dtype = DType::kF8E8M0;
  const int64_t count = one.num_elements();
  const int64_t bad = first_not_finite(one.dtype, one.data, count);
  if (bad >= 0) {
    return Error{ErrorKind::kInvalidArgument, "", str(name, ", expert ", e), "finite numbers",
                 str("element ", bad, " is NaN or infinite")};
  }
  std::vector<float> values(count);
  if (one.dtype == DType::kF8E8M0)
    std::transform(one.as<uint8_t>(), one.as<uint8_t>() + count, values.begin(), e8m0_to_float);
  visit_codec(one.dtype, [&]<class Codec>() {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(Codec::decode(one.data, i));
  });
  return values;
}

}  // namespace moracle
